// A rule that PDL can say whole becomes PDL without natives, which plain iree-opt applies; a rule
// that needs more is refused with the line that asks for it.
// RUN: rm -rf %t
// RUN: %mlirules generate %S/rules/relu-of-relu.yaml --to pdl -o %t | %filecheck %s --check-prefix=WROTE
// RUN: %iree-opt @%t/rules-relu-of-relu/standalone/relu-of-relu.iree-opt.flags %s | %filecheck %s
// RUN: %mlirules generate torch/to-linalg/elementwise/torch-relu-to-linalg --to pdl -o %t 2>&1 | %filecheck %s --check-prefix=REFUSED
// RUN: %exits 1 %mlirules generate torch/to-linalg/elementwise/torch-relu-to-linalg --to transform -o %t 2>&1 | %filecheck %s --check-prefix=TRANSFORM
// RUN: %exits 2 %mlirules generate torch/to-linalg/elementwise/torch-relu-to-linalg --to pdal -o %t 2>&1 | %filecheck %s --check-prefix=FORM
// WROTE: standalone/relu-of-relu.pdl.mlir
// CHECK-COUNT-2: torch.aten.relu %arg0
// CHECK: return
// REFUSED: standalone pdl: {{.*}}relu-to-linalg.yaml:{{[0-9]+:[0-9]+}}: error[not-in-pdl]: PDL has no native-free way to say a condition
// TRANSFORM: error[not-in-transform]: a spec is applied when no torch op is left
// FORM: --to: error[form]: there is no form 'pdal'
// FORM: did you mean 'pdl'
func.func @f(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %a = torch.aten.relu %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %b = torch.aten.relu %a : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %b : !torch.vtensor<[4],f32>
}
