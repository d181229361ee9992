// --json reports on stdout what applied and what is left.
// RUN: %mlirules apply %s --rules torch/to-linalg/elementwise/torch-relu-to-linalg --rules torch/to-linalg/elementwise/torch-abs-to-linalg --only torch-relu-to-linalg --json | %filecheck %s
// CHECK: "applied": 1,
// CHECK: "torch-relu-to-linalg": 1
// CHECK: "leftovers": {
// CHECK-NEXT: "torch.aten.tanh": 1
func.func @f(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %y = torch.aten.tanh %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %z = torch.aten.relu %y : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %z : !torch.vtensor<[4],f32>
}
