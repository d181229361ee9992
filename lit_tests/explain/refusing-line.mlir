// explain names, for each op the rule could start at, the line of the rule that says no.
// RUN: %mlirules explain torch-mm-to-linalg %s | %filecheck %s
// RUN: %mlirules explain torch-mm-to-linalg %s --at 19 | %filecheck %s --check-prefix=AT
// RUN: %mlirules explain torch-mm-to-linalg %s --json | %filecheck %s --check-prefix=JSON
// RUN: %mlirules explain torch-relu-to-linalg %s 2>&1 | %filecheck %s --check-prefix=NONE
// CHECK: refusing-line.mlir:18:{{.*}}torch.aten.mm
// CHECK-NEXT: torch-mm-to-linalg applies here
// CHECK: refusing-line.mlir:19:{{.*}}torch.aten.mm
// CHECK-NEXT: torch-mm-to-linalg.yaml:{{.*}}error[no-match]
// CHECK-NEXT: | {{.*}}T != i1
// AT-NOT: applies here
// AT: T != i1
// JSON: "applies": true
// JSON: "line": "T != i1"
// NONE: the program has no torch.aten.relu

func.func @f(%a: !torch.vtensor<[2,2],f32>, %b: !torch.vtensor<[2,2],i1>) -> (!torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],i1>) {
  %c = torch.aten.mm %a, %a : !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2,2],f32>
  %d = torch.aten.mm %b, %b : !torch.vtensor<[2,2],i1>, !torch.vtensor<[2,2],i1> -> !torch.vtensor<[2,2],i1>
  return %c, %d : !torch.vtensor<[2,2],f32>, !torch.vtensor<[2,2],i1>
}
