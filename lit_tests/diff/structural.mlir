// Names, aliases and order do not count; a change is told with its class, and exits with 1.
// RUN: %exits 0 %mlirules diff %s %S/Inputs/renamed.mlir | %filecheck %s --check-prefix=SAME
// SAME: no difference
// RUN: %exits 1 %mlirules diff %s %S/Inputs/inserted.mlir | %filecheck %s
// CHECK: @@ 1: inserted: arith.negf @@
// CHECK-NEXT: + {{.*}}arith.negf %arg0
// CHECK: 1 changes: 1 inserted
// RUN: %exits 1 %mlirules diff %s %S/Inputs/inserted.mlir -y | %filecheck %s --check-prefix=COLUMNS
// COLUMNS: %0 = math.exp %arg0 : f32 {{.*}} │ {{.*}} %0 = math.exp %arg0 : f32
// RUN: %exits 2 %mlirules diff %s 2>%t.err
// RUN: %filecheck %s --check-prefix=TWO --input-file=%t.err
// TWO: takes two paths, 1 given
func.func @f(%x: f32) -> f32 {
  %a = math.exp %x : f32
  %b = math.cos %x : f32
  %c = arith.addf %a, %b : f32
  return %c : f32
}
