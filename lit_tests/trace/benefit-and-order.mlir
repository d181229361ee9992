// The trace tells which rule fired, with which benefit, in which order, on what, and what it made.
// RUN: %mlirules apply %s --rules %S/rules/benefit --trace %t -o %t.mlir
// RUN: %filecheck %s --input-file=%t
// RUN: %mlirules apply %s --rules %S/rules/benefit --order bottom-up --trace %t -o %t.mlir
// RUN: %filecheck %s --check-prefix=UP --input-file=%t
// CHECK: {"number": 1, "rule": "tanh-to-cos", "benefit": 5, "location": "{{.*}}benefit-and-order.mlir:19:8", "op": "torch.aten.tanh"
// CHECK-SAME: "bindings":
// CHECK-SAME: "before": "%0 = torch.aten.tanh %arg0
// CHECK-SAME: "after": "%{{.*}} = torch.aten.cos %arg0
// CHECK-SAME: "driver": "greedy", "order": "top-down"
// CHECK-NEXT: "number": 2, "rule": "tanh-to-cos", "benefit": 5, "location": "{{.*}}benefit-and-order.mlir:20:8"
// CHECK-NOT: tanh-to-sin
// UP: "number": 1, {{.*}}benefit-and-order.mlir:20:8
// UP-NEXT: "number": 2, {{.*}}benefit-and-order.mlir:19:8



func.func @f(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %y = torch.aten.tanh %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %z = torch.aten.tanh %y : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %z : !torch.vtensor<[4],f32>
}
