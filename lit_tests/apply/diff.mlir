// --diff shows what became of the program instead of printing it.
// RUN: %mlirules apply %s --rules torch/to-linalg/elementwise/torch-relu-to-linalg --rules torch/to-linalg/elementwise/torch-abs-to-linalg --diff | %filecheck %s
// CHECK: --- {{.*}}diff.mlir (before)
// CHECK: +++ {{.*}}diff.mlir (after)
// CHECK: @@
// CHECK: - {{.*}}torch.aten.relu
// CHECK: + {{.*}}linalg
func.func @f(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %z = torch.aten.relu %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %z : !torch.vtensor<[4],f32>
}
