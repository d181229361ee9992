// An option that would have no effect is refused.
// RUN: %exits 2 %mlirules apply %s --rules %S/rules/loop --driver walk --order bottom-up 2>&1 | %filecheck %s --check-prefix=ORDER
// RUN: %exits 2 %mlirules apply %s --rules %S/rules/loop --driver walk --full 2>&1 | %filecheck %s --check-prefix=FULL
// ORDER: --order: error[order]: the walk driver has one order
// FULL: --full: error[full]: the walk driver has no illegal ops
func.func @f() {
  return
}
