// The suite's own tools are found: IREE's optimizer reads torch, and filecheck reads what it says.
// RUN: %iree-opt --pass-pipeline='builtin.module(func.func(convert-torch-to-linalg))' %s | %filecheck %s
// RUN: %iree-opt %s | filecheck --check-prefix=SAME %s

// CHECK: linalg.matmul
// CHECK-NOT: torch.aten.mm
// SAME: torch.aten.mm
func.func @mm(%a: !torch.vtensor<[2,3],f32>, %b: !torch.vtensor<[3,4],f32>) -> !torch.vtensor<[2,4],f32> {
  %c = torch.aten.mm %a, %b : !torch.vtensor<[2,3],f32>, !torch.vtensor<[3,4],f32> -> !torch.vtensor<[2,4],f32>
  return %c : !torch.vtensor<[2,4],f32>
}
