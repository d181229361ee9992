// run compiles, executes and prints; with --golden it compares, and a difference exits with 1.
// RUN: %mlirules run %s --input '2x2xf32=-1 2 -3 4' -o %t.npz | %filecheck %s
// RUN: %exits 2 %mlirules run %s --input '2x2xf32=1 2 3' 2>&1 | %filecheck %s --check-prefix=BAD
// RUN: %exits 2 %mlirules run %s 2>&1 | %filecheck %s --check-prefix=FEW
// RUN: %mlirules run %examples/hello_nn_world.mlir --golden %examples/hello_nn_world.npz 2>&1 | %filecheck %s --check-prefix=EQUAL
// RUN: %exits 1 %mlirules run %s --input 2x2xf32=1 --golden %examples/hello_nn_world.npz 2>&1 | %filecheck %s --check-prefix=DIFFERS
// CHECK: r0: float32 2x2
// CHECK: 0. 2.
// CHECK: 0. 4.
// BAD: not an input
// FEW: 'main' takes 1 arguments, 0 given
// EQUAL: equal to {{.*}}hello_nn_world.npz within rtol 1e-05, atol 1e-06 or 0.0001 of the largest number
// DIFFERS: r0: shape [2, 2], not [16, 10]
func.func @main(%x: !torch.vtensor<[2,2],f32>) -> !torch.vtensor<[2,2],f32> {
  %y = torch.aten.relu %x : !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
  return %y : !torch.vtensor<[2,2],f32>
}
