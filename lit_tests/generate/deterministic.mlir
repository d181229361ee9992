// The same rules give the same files; what is there already is not written again, and mlir-pdll
// does not run again.
// RUN: rm -rf %t && mkdir %t
// RUN: env MLIRULES_CACHE_DIR=%t/cache %mlirules generate torch/to-linalg/matmul -o %t/a | %filecheck %s --check-prefix=FIRST
// RUN: env MLIRULES_CACHE_DIR=%t/cache %mlirules generate torch/to-linalg/matmul -o %t/a | %filecheck %s --check-prefix=AGAIN
// RUN: env MLIRULES_CACHE_DIR=%t/other %mlirules generate torch/to-linalg/matmul -o %t/b | %filecheck %s --check-prefix=FIRST
// RUN: diff -r %t/a %t/b
// RUN: env MLIRULES_CACHE_DIR=%t/cache %mlirules apply %s --rules torch/to-linalg/elementwise/torch-relu-to-linalg --only torch-relu-to-linalg -o %t/out.mlir
// FIRST: wrote {{.*}}to-linalg-matmul.pdl.mlir
// FIRST: mlir-pdll ran {{[1-9][0-9]*}} times
// AGAIN: unchanged {{.*}}to-linalg-matmul.pdl.mlir
// AGAIN: 0 files written, {{.*}}mlir-pdll ran 0 times
func.func @f(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %y = torch.aten.relu %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %y : !torch.vtensor<[4],f32>
}
