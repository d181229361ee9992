// Filters choose rules by name, tag or kind; one that fits no rule is refused, not ignored.
// RUN: %mlirules apply %s --rules torch/to-linalg/elementwise/torch-relu-to-linalg --rules torch/to-linalg/elementwise/torch-abs-to-linalg --only torch-relu-to-linalg | %filecheck %s --check-prefix=RELU
// RUN: %mlirules apply %s --rules torch/to-linalg/elementwise/torch-relu-to-linalg --rules torch/to-linalg/elementwise/torch-abs-to-linalg --skip torch-relu-* | %filecheck %s --check-prefix=ABS
// RUN: %mlirules apply %s --rules torch/to-linalg/elementwise/torch-relu-to-linalg --rules torch/to-linalg/elementwise/torch-abs-to-linalg --only kind:conversion --only torch-abs-to-linalg --skip torch-relu-to-linalg | %filecheck %s --check-prefix=ABS
// RUN: %mlirules apply %s --only torch-relu-to-linalg | %filecheck %s --check-prefix=RELU
// RUN: %exits 2 %mlirules apply %s --rules torch/to-linalg/elementwise/torch-relu-to-linalg --rules torch/to-linalg/elementwise/torch-abs-to-linalg --only torch-relu-to-linlag 2>&1 | %filecheck %s --check-prefix=NONE
// RELU: torch.aten.abs
// RELU-NOT: torch.aten.relu
// RELU: arith.maximumf
// ABS: math.absf
// ABS: torch.aten.relu
// NONE: --only torch-relu-to-linlag: error[filter]: fits no rule of the set
// NONE: did you mean 'torch-relu-to-linalg'
func.func @f(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %y = torch.aten.abs %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %z = torch.aten.relu %y : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %z : !torch.vtensor<[4],f32>
}
