// Two rules that undo each other: the driver stops, names both, and fails instead of hanging.
// RUN: %exits 2 %mlirules apply %s --rules %S/rules/loop --bound 100 2>&1 | %filecheck %s
// RUN: %exits 2 %mlirules apply %s --rules %S/rules/loop --order bottom-up 2>&1 | %filecheck %s
// CHECK: cos-to-sin.yaml:2:7: error[loop]: cos-to-sin is part of a loop: {{[0-9]+}} of the last
// CHECK: help: a rule must not produce what it
// CHECK: sin-to-cos.yaml:2:7: error[loop]: sin-to-cos is part of a loop
func.func @f(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %y = torch.aten.sin %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %y : !torch.vtensor<[4],f32>
}
