// What is wrong with an input is told at its place, without a traceback, and exits with 2.
// RUN: %exits 2 %mlirules apply %examples/toy_model.mlir --rules %S/rules/misspelt.yaml 2>&1 | %filecheck %s --check-prefix=RULE
// RUN: %exits 2 %mlirules check %S/rules/misspelt.yaml 2>&1 | %filecheck %s --check-prefix=RULE
// RUN: %exits 2 %mlirules check %S/rules/misspelt.yaml --json 2>&1 | %filecheck %s --check-prefix=JSON
// RUN: %exits 2 %mlirules apply %s --rules torch/to-linalg/elementwise/torch-relu-to-linalg 2>&1 | %filecheck %s --check-prefix=MLIR
// RUN: %exits 2 %mlirules apply %s.not-there --rules torch/to-linalg/elementwise/torch-relu-to-linalg 2>&1 | %filecheck %s --check-prefix=FILE
// RUN: %exits 2 %mlirules apply 2>&1 | %filecheck %s --check-prefix=USAGE
// RUN: %exits 2 %mlirules aply %s 2>&1 | %filecheck %s --check-prefix=COMMAND
// RUN: %exits 2 %mlirules explain torch-rleu-to-linalg %s 2>&1 | %filecheck %s --check-prefix=NAME
// RULE-NOT: Traceback
// RULE: misspelt.yaml:6:9: error[unknown-op]: the installed compiler has no op 'torch.aten.rleu'
// RULE: ^^^
// RULE: did you mean 'torch.aten.relu'
// RULE: misspelt.yaml:15:5: error[unknown-key]: unknown key 'chekc'
// JSON: "code": "unknown-op"
// MLIR: input-wrong-is-2.mlir:26:8: error[mlir]: custom op
// FILE: error[file]: cannot be read
// USAGE: Missing argument
// COMMAND: No such command 'aply'
// NAME: did you mean 'torch-relu-to-linalg'




func.func @f(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %y = torch.aten.rleu %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %y : !torch.vtensor<[4],f32>
}
