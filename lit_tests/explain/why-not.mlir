// apply --why-not says of every rule that left an op alone which line refused, on stderr.
// RUN: %mlirules apply %s --rules torch/to-linalg/matmul --driver walk --why-not -o %t 2>&1 | %filecheck %s
// RUN: %mlirules apply %s --rules torch/to-linalg/matmul --driver walk --why-not --json | %filecheck %s --check-prefix=JSON
// CHECK: torch-mm-to-linalg: 1 op left alone, applied 1 times; the nearest:
// CHECK-NEXT: why-not.mlir:15:8: %d = torch.aten.mm %b, %b
// CHECK-NEXT: torch-mm-to-linalg.yaml:{{.*}}error[no-match]: T is i1, which the rule excludes
// CHECK: expected T other than i1; found T = i1
// CHECK: more rules start at ops that the program does not hold
// JSON: "why_not": [
// JSON: "rule": "torch-mm-to-linalg"
// JSON: "line": "T != i1"

func.func @f(%a: !torch.vtensor<[2,2],f32>, %b: !torch.vtensor<[2,2],i1>) -> (!torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],i1>) {
  %c = torch.aten.mm %a, %a : !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
  %d = torch.aten.mm %b, %b : !torch.vtensor<[2,2],i1>, !torch.vtensor<[2,2],i1> -> !torch.vtensor<[2,2],i1>
  return %c, %d : !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],i1>
}
