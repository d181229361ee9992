// --no-fallback fails with the ops that no rule converts; without it IREE converts them.
// RUN: %exits 1 %mlirules compile %s -p %S/Inputs/relu-rule.yaml --no-fallback -o %t.vmfb 2>&1 | %filecheck %s
// RUN: %mlirules compile %s -p %S/Inputs/relu-rule.yaml -o %t.vmfb 2>&1 | %filecheck %s --check-prefix=REST
// CHECK: no-fallback-lists-leftovers.mlir: no rule converts these ops:
// CHECK-NEXT: 1 x torch.aten.tanh
// REST: left to IREE's own conversion: torch.aten.tanh
// REST: vmfb: {{[0-9]+}} bytes for cpu, 1 applications
func.func @main(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %y = torch.aten.tanh %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %z = torch.aten.relu %y : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %z : !torch.vtensor<[4],f32>
}
