"""The saturate driver: rules as equalities, in any order, with their inverses."""

from __future__ import annotations

import contextlib
import functools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlirules import cli
from mlirules.drivers.apply import saturating
from mlirules.drivers.apply.alternatives import Skeleton
from mlirules.drivers.apply.egraph import Application, EGraph
from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.programs import parsed, shared_context
from mlirules.drivers.apply.run import Options, Outcome
from mlirules.drivers.apply.saturate import sort_out
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.match.matcher import Matcher
from mlirules.drivers.measure import opcost, roofline
from mlirules.drivers.pipelines import cost
from mlirules.drivers.pipelines.transform import rule_set, transform
from mlirules.language.faults import MlirulesError
from mlirules.language.loader import load_rule
from mlirules.language.pipeline import Pipeline
from mlirules.language.rule import Rule
from mlirules.language.stage import Stage

T = "!torch.vtensor<[4,4],f32>"
TESTS = """\
tests:
  - {name: positive, input: "module {}", check: "CHECK: module"}
  - {name: negative, unchanged: "module {}"}
"""
PROGRAMS = sorted((Path(__file__).parent / "attention").glob("*.mlir"))


def rule(name: str, match: list[str], rewrite: list[str], extra: str = "") -> Rule:
    wanted = ", s: 'vtensor<S... x T>'" if any(line.startswith("s =") for line in rewrite) else ""
    text = (
        f"rule: {name}\nkind: fusion\nsummary: A rule of a test.\n"
        "reason: It shows how a driver behaves.\n"
        "types: {x: 'vtensor<S... x T>', y: 'vtensor<S... x T>'"
        f"{wanted}}}\n"
        f"{extra}match: {json.dumps(match)}\nrewrite: {json.dumps(rewrite)}\n{TESTS}"
    )
    return load_rule(f"{name}.yaml", text, ops=compiler.op_oracle)


def unary(name: str, source: str, target: str) -> Rule:
    return rule(name, [f"y = torch.aten.{source}(x)"], [f"y = torch.aten.{target}(x)"])


def run(rules: list[Rule], text: str, **options: Any) -> tuple[str, Outcome]:
    module = parsed(text)
    weigh = options.pop(
        "weigh", functools.partial(opcost.seconds, known=roofline.parameters("cpu"))
    )
    engine = Engine(rules, shared_context())
    outcome = engine.run(module, Options(driver="saturate", weigh=weigh, **options))
    assert module.operation.verify()
    return str(module), outcome


def function(body: str, result: str = "%y", arguments: str = f"%x: {T}") -> str:
    return f"func.func @main({arguments}) -> {T} {{\n{body}\n  return {result} : {T}\n}}\n"


def op(result: str, name: str, *operands: str) -> str:
    types = ", ".join([T] * len(operands))
    return f"  {result} = torch.aten.{name} {', '.join(operands)} : {types} -> {T}\n"


def cheap(*names: str) -> Any:
    """Ops of these names take a microsecond, all others a millisecond."""
    return lambda op: 1e-6 if op.name.removeprefix("torch.aten.") in names else 1e-3


# ---------------------------------------------------------------- the graph


def test_congruence_follows_unions_and_is_explained() -> None:
    graph = EGraph()
    a, b = graph.value(), graph.value()
    fa, fb, gfa, gfb = (graph.value() for _ in range(4))
    graph.node("f", [a], [fa])
    graph.node("f", [b], [fb])
    graph.node("g", [fa], [gfa])
    graph.node("g", [fb], [gfb])
    assert graph.find(gfa) != graph.find(gfb)
    graph.union(a, b, Application(7))
    graph.rebuild()
    assert graph.find(gfa) == graph.find(gfb)
    assert graph.grounds([(gfa, gfb, graph.clock)]) == {7}
    assert len(graph.members(gfa)) == 1


# ---------------------------------------------------------------- what is chosen


def test_rules_that_undo_each_other_end_in_the_cheaper_form() -> None:
    rules = [unary("to-sin", "cos", "sin"), unary("to-cos", "sin", "cos")]
    text = function(op("%y", "cos", "%x"))
    module = parsed(text)
    with pytest.raises(MlirulesError, match="loop"):
        Engine(rules, shared_context()).run(module, Options())
    sin, outcome = run(rules, text, weigh=cheap("sin"))
    assert "aten.sin" in sin
    assert outcome.counts == {"to-sin": 1}
    cos, outcome = run(rules, text, weigh=cheap("cos"))
    assert "aten.cos" in cos
    assert not outcome.total


def test_a_form_that_must_get_dearer_first_is_found() -> None:
    # abs(x) -> relu(x) costs; only then does sin(relu(x)) become neg(x).
    rules = [
        unary("abs-relu", "abs", "relu"),
        rule(
            "sin-relu",
            ["a = torch.aten.relu(x)", "y = torch.aten.sin(a)"],
            ["y = torch.aten.neg(x)"],
        ),
        unary("sin-cos", "sin", "cos"),
    ]
    text = function(op("%a", "abs", "%x") + op("%y", "sin", "%a"))
    found, outcome = run(rules, text, weigh=cheap("neg", "abs", "cos"))
    assert outcome.counts == {"abs-relu": 1, "sin-relu": 1}
    assert "aten.neg %arg0" in found


def test_what_is_read_twice_counts_once() -> None:
    # The square of one sine is cheaper than a tanh that takes as long as one and a half of them.
    square = ["s = torch.aten.sin(x)", "y = torch.aten.mul.Tensor(s, s)"]
    rules = [rule("tanh-square", ["y = torch.aten.tanh(x)"], square)]

    def weigh(found: Any) -> float:
        return {"tanh": 1.5, "sin": 1.0, "Tensor": 0.1}[found.name.split(".")[-1]]

    found, outcome = run(rules, function(op("%y", "tanh", "%x")), weigh=weigh)
    assert outcome.total == 1
    assert found.count("aten.sin") == 1


def test_what_looks_like_something_refused_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    match = Matcher.match

    def watched(self: Matcher, at: Any, *rest: Any) -> Any:
        asked.append(at.name)
        return match(self, at, *rest)

    monkeypatch.setattr(Matcher, "match", watched)
    other = "!torch.vtensor<[8],f32>"
    text = function(
        "  %i = torch.constant.int 1\n  %j = torch.constant.int 2\n"
        + "".join(
            f"  %{n} = torch.aten.add.Scalar %{'x' if n == 0 else n - 1}, %{by}, %i : "
            f"{T}, !torch.int, !torch.int -> {T}\n"
            for n, by in enumerate("jjjijj")
        )
        + f"  %o = torch.aten.add.Scalar %z, %j, %i : {other}, !torch.int, !torch.int -> {other}\n",
        "%5",
        f"%x: {T}, %z: {other}",
    )
    only = rule(
        "add-one",
        ["y = torch.aten.add.Scalar(x, n, 1)"],
        ["y = torch.aten.neg(x)"],
        "where: [n == 1]\n",
    )
    found, outcome = run([only], text, weigh=cheap("neg"))
    assert outcome.counts == {"add-one": 1}
    assert found.count("aten.neg") == 1
    # Of the refused ones the first, and the first of another type; and the one that holds.
    assert len(asked) == 3


def test_rules_whose_ops_are_not_there_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def watched(self: Skeleton, *_: Any) -> tuple[()]:
        asked.append(self.rule.name)
        return ()

    monkeypatch.setattr(Skeleton, "ways", watched)
    rules = [
        rule("cos-sin", ["a = torch.aten.cos(x)", "y = torch.aten.sin(a)"], ["y = x"]),
        rule("abs-sin", ["a = torch.aten.abs(x)", "y = torch.aten.sin(a)"], ["y = x"]),
        unary("any-sin", "sin", "neg"),
    ]
    run(rules, function(op("%a", "cos", "%x") + op("%y", "sin", "%a")))
    assert asked == ["cos-sin", "any-sin"]


def test_conditions_on_uses_are_for_cost_and_not_asked() -> None:
    rules = [
        rule(
            "sin-relu",
            ["a = torch.aten.relu(x)", "y = torch.aten.sin(a)"],
            ["y = torch.aten.neg(x)"],
            "where: ['one_use(a)']\n",
        )
    ]
    body = op("%a", "relu", "%x") + op("%s", "sin", "%a") + op("%y", "add", "%a", "%s")
    body = body.replace("aten.add %a, %s :", "aten.mul.Tensor %a, %s :")
    found, outcome = run(rules, function(body))
    assert outcome.total == 1
    assert "aten.relu" in found
    assert "aten.sin" not in found


def test_random_ops_and_regions_stay_where_they_are() -> None:
    none = "%n = torch.constant.none\n"
    rand = f"torch.aten.rand_like %x, %n, %n, %n, %n, %n : {T}, " + ", ".join(["!torch.none"] * 5)
    body = (
        none
        + f"  %a = {rand} -> {T}\n  %b = {rand} -> {T}\n"
        + op("%c", "cos", "%a")
        + op("%d", "cos", "%b")
        + op("%y", "mul.Tensor", "%c", "%d")
    )
    found, outcome = run([unary("to-sin", "cos", "sin")], function(body), weigh=cheap("sin"))
    assert outcome.total == 2  # what they read differs
    assert found.count("rand_like") == 2
    assert found.count("aten.sin") == 2


IN, ROW, WHOLE = (f"!torch.vtensor<[{s}],f32>" for s in ("1,64,32", "1,512", "1,64,512"))
WEIGHT = "!torch.vtensor<[512,32],f32>"
LAYER = f"""\
func.func @main(%x: {IN}, %w: {WEIGHT}) -> (RESULTS) {{
  %none = torch.constant.none
  %one = torch.constant.int 1
  %last = torch.constant.int -1
  %l = torch.aten.linear %x, %w, %none : {IN}, {WEIGHT}, !torch.none -> {WHOLE}
  %a = torch.aten.relu %l : {WHOLE} -> {WHOLE}
  %y = torch.aten.select.int %a, %one, %last : {WHOLE}, !torch.int, !torch.int -> {ROW}
  return VALUES : RESULTS
}}
"""
ONE = LAYER.replace("RESULTS", ROW).replace("VALUES", "%y")
BOTH = LAYER.replace("RESULTS", f"{ROW}, {WHOLE}").replace("VALUES", "%y, %a")


def test_what_nobody_reads_is_not_computed() -> None:
    rules = list(rule_set(("torch/algebra",)))
    found, outcome = run(rules, ONE)
    assert outcome.counts == {
        "torch-select-as-slice": 1,
        "torch-slice-of-elementwise": 1,
        "torch-slice-of-linear": 1,
    }
    assert "-> !torch.vtensor<[1,1,512],f32>" in found
    assert WHOLE not in found


def test_what_is_read_as_a_whole_is_not_computed_twice() -> None:
    # For itself the row would be cheaper from a row of the layer; the whole is there in any case.
    found, outcome = run(list(rule_set(("torch/algebra",))), BOTH)
    assert not outcome.total
    assert found.count("aten.linear") == 1


def test_the_stage_of_the_default_pipeline_and_its_margin() -> None:
    line = Pipeline.load("cpu-fast")
    (stage,) = (s for s in line.stages if s.driver == "saturate")
    settings = cost.Settings(Target("cpu"))
    done = transform(ONE, [stage], costs=settings)
    assert done.outcome.total == 3
    (weighed,) = done.outcome.decisions
    gain = weighed.before_ms / weighed.after_ms
    dearer = replace(stage, margin=gain - 1 + 0.01)
    assert not transform(ONE, [dearer], costs=settings).outcome.total


# ---------------------------------------------------------------- told


def test_limits_end_it_with_the_best_so_far() -> None:
    grows = rule(
        "grow", ["y = torch.aten.cos(x)"], ["s = torch.aten.cos(x)", "y = torch.aten.abs(s)"]
    )
    # cos(x) = abs(cos(x)) closes at once; a number that is counted up does not.
    more = rule(
        "more",
        ["y = torch.aten.mul.Scalar(x, n)"],
        ["y = torch.aten.mul.Scalar(x, n + 1)"],
    )
    text = function(
        f"  %n = torch.constant.int 1\n  %y = torch.aten.mul.Scalar %x, %n : {T}, !torch.int -> {T}"
    )
    assert not any("early" in n for n in run([grows], function(op("%y", "cos", "%x")))[1].notes)
    for limits, why in (({"nodes": 9}, "the limit is 9"), ({"rounds": 3}, "after 3 rounds")):
        outcome = run([more], text, **limits)[1]
        assert any(why in note for note in outcome.notes), outcome.notes


def test_every_limit_takes_the_best_so_far_and_says_so() -> None:
    # The first rule never ends; what the second gains is there after the first round.
    more = rule(
        "more", ["y = torch.aten.mul.Scalar(x, n)"], ["y = torch.aten.mul.Scalar(x, n + 1)"]
    )
    pays = unary("to-sin", "cos", "sin")
    scaled = f"torch.aten.mul.Scalar %x, %n : {T}, !torch.int -> {T}"
    text = function(f"  %n = torch.constant.int 1\n  %s = {scaled}\n" + op("%y", "cos", "%s"))
    limits: dict[str, dict[str, Any]] = {
        "the limit is 12": {"nodes": 12},
        "after 3 rounds": {"rounds": 3},
        "after 1e-09 s": {"seconds": 1e-9},
        "after -1 MB": {"megabytes": -1},  # hit at once, however little it grows
    }
    for why, limit in limits.items():
        found, outcome = run([pays, more], text, weigh=cheap("sin"), **limit)
        assert any("ended early" in n and why in n for n in outcome.notes), outcome.notes
        # Time is over before the last op was looked at.
        assert ("aten.sin" in found) == ("seconds" not in limit), why


def test_a_block_that_is_too_large_is_left_alone_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    text = function(op("%a", "cos", "%x") + op("%y", "cos", "%a"))
    monkeypatch.setattr(saturating, "LARGEST", 1)
    found, outcome = run([unary("to-sin", "cos", "sin")], text, weigh=cheap("sin"))
    assert "aten.sin" not in found
    assert outcome.notes == ["saturate leaves func.func @main alone: 2 ops, more than 1"]


def test_rules_that_a_graph_cannot_hold_are_told_in_a_line_for_each_reason() -> None:
    bodies = [
        rule(f"b{n}", ["y = torch.aten.cos(x)"], ["y[I...] = sin(x[I...])"]) for n in range(5)
    ]
    _, outcome = run(bodies, function(op("%y", "cos", "%x")))
    assert outcome.notes[0] == (
        "saturate leaves out 5 of 5 rules that could apply:\n"
        "  makes ops with bodies, not torch ops alone: b0, b1, b2 and 2 more"
    )


# ---------------------------------------------------------------- the chain


CHAIN = [
    unary("abs-relu", "abs", "relu"),
    rule(
        "sin-relu", ["a = torch.aten.relu(x)", "y = torch.aten.sin(a)"], ["y = torch.aten.neg(x)"]
    ),
    unary("cos-abs", "cos", "abs"),
]
LONG = function(op("%a", "cos", "%x") + op("%y", "sin", "%a"))


def test_each_step_of_the_trace_is_a_program_for_apply() -> None:
    _, outcome = run(CHAIN, LONG, weigh=cheap("neg"), record=True)
    steps = outcome.applications
    assert [s.rule for s in steps] == ["cos-abs", "abs-relu", "sin-relu"]
    assert [s.number for s in steps] == [1, 2, 3]
    by_name = {r.name: r for r in CHAIN}
    for step in steps:
        module = parsed(step.before)
        Engine([by_name[step.rule]], shared_context()).run(module, Options(max_rewrites=1))
        assert str(module) == step.after


def test_the_first_steps_alone_are_taken() -> None:
    # Costs fall along the chain, so that each part of it is worth taking.
    def weigh(found: Any) -> float:
        return {"neg": 1e-6, "relu": 1e-5, "abs": 1e-4}.get(found.name.split(".")[-1], 1e-3)

    names = [
        run(CHAIN, LONG, weigh=weigh, max_rewrites=n)[0].count(f"aten.{name} ")
        for n, name in enumerate(("cos", "abs", "relu", "neg"))
    ]
    assert names == [1, 1, 1, 1]


def test_explain_shows_the_chain_and_apply_replays_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.mlir"
    model.write_text(ONE, encoding="utf-8")
    arguments = ["explain", "torch/algebra", str(model), "--driver", "saturate"]
    assert status(arguments) == 0
    told = capsys.readouterr().out
    assert "1. torch-select-as-slice" in told
    assert "3. torch-slice-of-linear" in told
    assert status([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [step["rule"] for step in found["steps"]] == [
        "torch-select-as-slice",
        "torch-slice-of-elementwise",
        "torch-slice-of-linear",
    ]
    for step in found["steps"]:
        before, after = tmp_path / "before.mlir", tmp_path / "after.mlir"
        before.write_text(step["before"], encoding="utf-8")
        (file,) = (r.path for r in rule_set(("torch/algebra",)) if r.name == step["rule"])
        once = ["--rules", file, "--only", step["rule"], "--max-rewrites", "1", "-o", str(after)]
        assert status(["apply", str(before), *once]) == 0
        capsys.readouterr()
        assert after.read_text(encoding="utf-8").strip() == step["after"].strip()


def test_bisect_finds_the_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.mlir"
    model.write_text(ONE, encoding="utf-8")
    # The layer of one row is what breaks it: it comes with the last of three steps.
    check = "sh -c '! grep -q \"aten.linear.*-> .*1,1,512\" {}'"
    arguments = ["bisect", str(model), "--rules", "torch/algebra", "--driver", "saturate"]
    assert status([*arguments, "--check", check, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["application"]["rule"] == "torch-slice-of-linear"
    assert (found["number"], found["total"]) == (3, 3)


def status(arguments: list[str]) -> int:
    """What a command exits with."""
    try:
        cli.main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


# ---------------------------------------------------------------- orders


def _orders(count: int, programs: list[Path]) -> None:
    rules = list(rule_set(("torch/fusions", "torch/unfuse", "torch/algebra")))
    weigh = functools.partial(opcost.seconds, known=roofline.parameters("cpu"))
    first: dict[Path, str] = {}
    changed = 0
    for seed in range(count):
        order = list(range(len(rules)))
        if seed:
            random.Random(seed).shuffle(order)
        given = [
            replace(r, order=at, doc=r.doc.model_copy(update={"benefit": at}))
            for r, at in zip(rules, order, strict=True)
        ]
        engine = Engine(given, shared_context())
        for program in programs:
            module = parsed(program.read_text(encoding="utf-8"))
            outcome = engine.run(module, Options(driver="saturate", weigh=weigh, seconds=60))
            changed += outcome.total > 0
            assert str(module) == first.setdefault(program, str(module)), (program.name, seed)
    assert changed


def test_the_order_of_the_rules_makes_no_difference() -> None:
    _orders(3, [p for p in PROGRAMS if p.name in ("bert.aten.mlir", "both_scaled.core.mlir")])


@pytest.mark.slow
def test_a_hundred_orders_give_one_program() -> None:
    _orders(100, PROGRAMS[:10])


# ---------------------------------------------------------------- the ways in


def test_a_stage_and_the_command_line(tmp_path: Path) -> None:
    path = PROGRAMS[[p.name for p in PROGRAMS].index("bert.aten.mlir")]
    stage = Stage(phase="torch", rules=["torch/fusions", "torch/unfuse"], driver="saturate")
    done = transform(path.read_text(encoding="utf-8"), [stage], costs=cost.Settings(Target("cpu")))
    out, trace = tmp_path / "out.mlir", tmp_path / "trace.jsonl"
    arguments = [
        "apply",
        str(path),
        "--rules",
        "torch/fusions,torch/unfuse",
        "--driver",
        "saturate",
    ]
    arguments += ["-o", str(out), "--trace", str(trace)]
    with contextlib.suppress(SystemExit):
        cli.main(arguments)
    assert out.read_text(encoding="utf-8") == done.text
    lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    weighed = lines.pop()["decision"]
    assert weighed["after_ms"] < weighed["before_ms"]
    assert len(lines) == done.outcome.total > 0
    assert {line["driver"] for line in lines} == {"saturate"}


def test_the_default_pipeline_saturates_with_rules_that_it_can_hold() -> None:
    """A person who compiles a model is told nothing about rules that they did not choose."""
    (stage,) = (s for s in Pipeline.load("cpu-fast").stages if s.driver == "saturate")
    kept, left = sort_out(rule_set(tuple(map(str, stage.rules))))
    assert (left, len(kept) > 20) == ({}, True)
