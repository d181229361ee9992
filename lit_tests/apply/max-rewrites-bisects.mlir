// --max-rewrites stops after N applications: the first N are always the same, so a bad one is found.
// RUN: %mlirules apply %s --rules torch/to-linalg/elementwise/torch-relu-to-linalg --rules torch/to-linalg/elementwise/torch-abs-to-linalg --max-rewrites 0 | %filecheck %s --check-prefix=ZERO
// RUN: %mlirules apply %s --rules torch/to-linalg/elementwise/torch-relu-to-linalg --rules torch/to-linalg/elementwise/torch-abs-to-linalg --max-rewrites 1 --expect 1 2>%t.err | %filecheck %s --check-prefix=ONE
// RUN: %filecheck %s --check-prefix=SAYS --input-file=%t.err
// RUN: %mlirules apply %s --rules torch/to-linalg/elementwise/torch-relu-to-linalg --rules torch/to-linalg/elementwise/torch-abs-to-linalg --max-rewrites 2 --expect 2 | %filecheck %s --check-prefix=TWO
// ZERO: torch.aten.abs
// ZERO: torch.aten.relu
// ONE: math.absf
// ONE: torch.aten.relu
// TWO: math.absf
// TWO: arith.maximumf
// TWO-NOT: torch.aten
// SAYS: stopped after 1 applications (--max-rewrites)
func.func @f(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %y = torch.aten.abs %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %z = torch.aten.relu %y : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %z : !torch.vtensor<[4],f32>
}
