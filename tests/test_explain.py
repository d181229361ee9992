"""``explain``: the line that refuses, in words, for pairs of a rule and a program it must leave.

Each folder of ``tests/explain`` holds a rule, a program that it does not match for one known
reason, and that reason. The rule's own positive test differs from the program in nothing else.
"""

from __future__ import annotations

import gc
import json
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from mlirules.cli import main
from mlirules.commands.explain import as_data, shown
from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.programs import shared_context
from mlirules.drivers.apply.run import Options
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.match.matcher import Matcher
from mlirules.drivers.match.results import Refusal
from mlirules.drivers.pipelines.transform import rule_set
from mlirules.drivers.quality.explain import diagnoses, why_not
from mlirules.language.loader import load_rule

PAIRS = sorted((Path(__file__).parent / "explain").iterdir())


def matcher_of(folder: Path) -> Matcher:
    return Matcher(load_rule(folder / "rule.yaml", ops=compiler.op_oracle), shared_context())


def parsed(text: str) -> Any:
    return compiler.parse(text, "program.mlir", shared_context())


def test_there_are_at_least_thirty_pairs() -> None:
    assert len(PAIRS) >= 30


def test_what_is_refused_leaves_nothing_to_collect() -> None:
    """Frames that held what was raised held themselves, and what they saw, till the collector."""
    places = []
    for folder in PAIRS:
        matcher, module = matcher_of(folder), parsed((folder / "program.mlir").read_text())
        at = [op for op in ops_below(module.operation) if op.name in matcher.rule.root_ops]
        places.append((matcher, module, at))

    def refused() -> int:
        return sum(isinstance(m.match(op), Refusal) for m, _, at in places for op in at)

    refused()  # what is decided once is kept
    gc.collect()
    gc.disable()
    try:
        assert refused() >= len(PAIRS) // 2
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("folder", PAIRS, ids=lambda p: p.name)
def test_the_known_reason_comes_first(folder: Path) -> None:
    wanted = yaml.safe_load((folder / "reason.yaml").read_text())
    found = diagnoses(matcher_of(folder), parsed((folder / "program.mlir").read_text()))
    nearest = found[0]
    first = nearest.refusals[0]
    assert first.line is not None
    assert (first.fault(matcher_of(folder).rule).span.line, str(first.line)) == (
        wanted["line"],
        wanted["text"],
    )
    assert first.message.removeprefix("linalg.generic: ") == wanted["says"]
    assert (first.expected, first.found) == (wanted["expected"], wanted["found"])
    assert len(nearest.refusals) == 1, [r.message for r in nearest.refusals]


@pytest.mark.parametrize("folder", PAIRS, ids=lambda p: p.name)
def test_without_the_reason_the_rule_applies(folder: Path) -> None:
    matcher = matcher_of(folder)
    program = next(t.input for t in matcher.rule.tests if t.input)
    assert diagnoses(matcher, parsed(program))[0].applies


def test_the_command_reports_it(capsys: pytest.CaptureFixture[str]) -> None:
    folder = next(p for p in PAIRS if p.name.endswith("-one-use"))
    main_exit(["explain", str(folder / "rule.yaml"), str(folder / "program.mlir"), "--json"])
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["line"] == "one_use(t)"
    assert answer["place"].startswith(str(folder / "rule.yaml"))
    assert answer["location"] == f"{folder / 'program.mlir'}:3:8"
    main_exit(["explain", str(folder / "rule.yaml"), str(folder / "program.mlir")])
    said = capsys.readouterr().out
    assert "t has 2 uses: torch.aten.tanh, func.return" in said
    assert "the only reason" in said


def test_an_op_below_the_root_is_explained_by_the_root(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = next(p for p in PAIRS if p.name.endswith("-one-use"))
    rule, program = folder / "rule.yaml", folder / "program.mlir"
    main_exit(["explain", str(rule), str(program), "--at", "2", "--json"])
    (answer,) = json.loads(capsys.readouterr().out)
    assert answer["op"] == "torch.aten.tanh"


def test_why_not_tells_of_every_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = [next(p for p in PAIRS if p.name.endswith(n)) for n in ("-one-use", "-divisible")]
    program = rules[0] / "program.mlir"
    names = ",".join(str(p / "rule.yaml") for p in rules)
    main_exit(["apply", str(program), "--rules", names, "--why-not", "--json"])
    reasons = json.loads(capsys.readouterr().out)["why_not"]
    assert [r["rule"] for r in reasons] == ["one-use", "divisible"]
    assert reasons[0]["nearest"]["line"] == "one_use(t)"
    assert reasons[1]["candidates"] == 0
    assert reasons[1]["nearest"] is None
    main_exit(["apply", str(program), "--rules", names, "--why-not", "-o", str(tmp_path / "o")])
    assert "1 more rules start at ops that the program does not hold" in capsys.readouterr().err


def ops_held_by(*roots: Any) -> list[Any]:
    """The ops and values of programs that can be reached from objects."""
    closed = (type, types.ModuleType, types.FunctionType, compiler.ir.Context)
    found, seen, left = [], set(), list(roots)
    while left:
        item = left.pop()
        if id(item) in seen or isinstance(item, closed):
            continue
        seen.add(id(item))
        if isinstance(item, compiler.ir.OpView | compiler.ir.Operation | compiler.ir.Value):
            found.append(item)
        left += gc.get_referents(item)
    return found


def test_nothing_that_outlives_a_program_holds_an_op_of_it() -> None:
    """Such an op is freed memory: reading its name has ended the process."""
    wanted = ("-one-use", "-divisible", "-producer-is-another-op", "-operand-order")
    folders = [next(p for p in PAIRS if p.name.endswith(n)) for n in wanted]
    programs = [parsed((folder / "program.mlir").read_text()) for folder in folders]
    matchers = [matcher_of(folder) for folder in folders]
    told = [d for m in matchers for p in programs for d in diagnoses(m, p, lambda _: True)]
    assert ops_held_by(matchers[0].diagnose(next(iter(ops_below(programs[0].operation)))))
    outcome = Engine([matchers[0].rule], shared_context()).run(programs[0], Options(record=True))
    reasons = [r for p in programs for r in why_not(matchers, p, p, outcome)]
    assert any(r.at is not None for d in told for r in d.refusals)
    assert any(r.nearest is not None for r in reasons)
    assert not ops_held_by(told, reasons, outcome)
    before = [as_data(d, Path("m.mlir")) for d in told]
    programs.clear()
    gc.collect()
    for size in range(50):  # what was freed is used for something else
        parsed(
            f"func.func @f(%a: tensor<{size}xf32>) -> tensor<{size}xf32> {{ return %a : "
            f"tensor<{size}xf32> }}"
        )
    assert [as_data(d, Path("m.mlir")) for d in told] == before
    assert all(shown(d.op, []).startswith(("%", "func.", "return")) for d in told if d.op)


def test_a_config_rule_is_held_against_dispatches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "small.mlir"
    program.write_text(
        "func.func @f(%a: tensor<4x8xf16>, %b: tensor<16x8xf16>, %c: tensor<4x16xf32>)"
        " -> tensor<4x16xf32> {\n"
        "  %d = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>,"
        " affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]"
        " ins(%a, %b : tensor<4x8xf16>, tensor<16x8xf16>) outs(%c : tensor<4x16xf32>)"
        " -> tensor<4x16xf32>\n  return %d : tensor<4x16xf32>\n}\n"
    )
    main_exit(["explain", "mmt-2048x1280x5120-f16-cpu", str(program), "--json"])
    first = json.loads(capsys.readouterr().out)[0]
    assert (first["op"], first["line"], first["applies"]) == ("linalg.matmul", "dims.m", False)
    assert first["message"] == "m is 4, not 2048"
    main_exit(["explain", "mmt-2048x1280x5120-f16-cpu", str(program), "--target", "cpu"])
    assert "dims: {m: 2048" in capsys.readouterr().out


@pytest.mark.slow
def test_explanations_agree_with_every_inline_test_that_ships() -> None:
    wrong = []
    for rule in rule_set(("torch", "linalg")):
        matcher = Matcher(rule, shared_context())
        for test in rule.tests:
            module = parsed(test.input or test.unchanged or "")
            found = diagnoses(matcher, module)
            if test.input is not None:
                right = any(d.applies for d in found)
            else:
                said = {str(d.refusals[0].line).strip() for d in found if d.refusals}
                right = not any(d.applies for d in found) and (
                    test.because is None or test.because.strip() in said
                )
            if not right:
                wrong.append((rule.name, test.name))
    assert not wrong


def main_exit(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(arguments)
    assert done.value.code == 0
