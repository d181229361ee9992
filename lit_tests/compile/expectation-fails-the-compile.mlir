// A rule that must apply and does not fails the compile.
// RUN: %exits 1 %mlirules compile %s -p %S/Inputs/relu-only.yaml -o %t.vmfb 2>&1 | %filecheck %s --check-prefix=STAGE
// RUN: %exits 1 %mlirules compile %s -p %S/Inputs/relu-rule.yaml -o %t.vmfb 2>&1 | %filecheck %s --check-prefix=RULE
// STAGE: stage 1 (torch/to-linalg/elementwise) must apply 2 times, but applied 0 times
// RULE: rule torch-relu-to-linalg must apply at least 1 times, but applied 0 times
func.func @main(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %y = torch.aten.tanh %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %y : !torch.vtensor<[4],f32>
}
