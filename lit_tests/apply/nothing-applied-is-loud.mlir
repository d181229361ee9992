// Nothing applied: a warning, and a failure where something was expected.
// RUN: %exits 0 %mlirules apply %s --rules torch/to-linalg/elementwise/torch-relu-to-linalg --rules torch/to-linalg/elementwise/torch-abs-to-linalg 2>&1 | %filecheck %s --check-prefix=LOUD
// RUN: %exits 1 %mlirules apply %s --rules torch/to-linalg/elementwise/torch-relu-to-linalg --rules torch/to-linalg/elementwise/torch-abs-to-linalg --expect-min 1 2>&1 | %filecheck %s --check-prefix=MIN
// RUN: %exits 1 %mlirules apply %s --rules torch/to-linalg/elementwise/torch-relu-to-linalg --rules torch/to-linalg/elementwise/torch-abs-to-linalg --expect 3 2>&1 | %filecheck %s --check-prefix=EXACT
// RUN: %exits 0 %mlirules apply %s --rules torch/to-linalg/elementwise/torch-relu-to-linalg --rules torch/to-linalg/elementwise/torch-abs-to-linalg --expect 0 2>&1 | %filecheck %s --check-prefix=QUIET
// LOUD: warning: NOTHING APPLIED
// MIN: 0 applications, at least 1 expected
// EXACT: 0 applications, 3 expected
// QUIET-NOT: warning
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
