// Two rules overlap at the exp: which one gets it depends on where the greedy driver starts, and
// what is left of the program with it. docs/drivers.md tells the story.
// RUN: %mlirules apply %s --rules %S/rules --order top-down --trace %t.down | %filecheck %s --check-prefix=DOWN
// RUN: %filecheck %s --check-prefix=DOWN-TRACE --input-file=%t.down
// RUN: %mlirules apply %s --rules %S/rules --order bottom-up --trace %t.up | %filecheck %s --check-prefix=UP
// RUN: %filecheck %s --check-prefix=UP-TRACE --input-file=%t.up
// RUN: %mlirules apply %s --rules %S/rules --driver walk | %filecheck %s --check-prefix=DOWN

// DOWN: %[[E:.*]] = torch.aten.exp %arg0
// DOWN: %[[R:.*]] = torch.aten.reciprocal %[[E]]
// DOWN: torch.aten.log %[[R]]
// DOWN-TRACE: "number": 1, "rule": "exp-of-neg"
// DOWN-TRACE-SAME: "order": "top-down"
// DOWN-TRACE-NOT: "number": 2

// UP: %[[N:.*]] = torch.aten.neg %arg0
// UP-NEXT: return %[[N]]
// UP-TRACE: "number": 1, "rule": "log-of-exp"
// UP-TRACE-SAME: "order": "bottom-up"
// UP-TRACE-NOT: "number": 2
func.func @f(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
  %n = torch.aten.neg %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %e = torch.aten.exp %n : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  %y = torch.aten.log %e : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %y : !torch.vtensor<[4],f32>
}
