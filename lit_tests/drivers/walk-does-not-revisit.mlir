// The walk driver sees each op once: what a rule makes is not matched again, so no loop.
// RUN: %mlirules apply %s --rules %S/rules/loop --driver walk --expect 2 | %filecheck %s
// CHECK: torch.aten.cos
// CHECK-NEXT: torch.aten.sin
func.func @f(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %y = torch.aten.sin %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %z = torch.aten.cos %y : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %z : !torch.vtensor<[4],f32>
}
