"""The search for rules: programs enumerated and run, equal ones found, proven and written."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("z3")

from mlirules.cli import main
from mlirules.drivers.discover import opsets
from mlirules.drivers.discover.general import forms
from mlirules.drivers.discover.implied import Rules
from mlirules.drivers.discover.numeric import NotComputed, Operand, kernel
from mlirules.drivers.discover.search import Search, Settings
from mlirules.drivers.discover.space import Space, same
from mlirules.drivers.discover.state import State
from mlirules.drivers.discover.terms import Ref
from mlirules.drivers.discover.written import Pair, rule_text, spelt
from mlirules.drivers.iree import compiler
from mlirules.drivers.prove.meanings import Meanings
from mlirules.drivers.prove.prove import meanings, prove
from mlirules.language.faults import MlirulesError
from mlirules.language.loader import load_rule

SMALL = "t,mm,relu"


@functools.cache
def known() -> Meanings:
    return meanings()


@functools.cache
def grown(ops: str = SMALL, size: int = 3) -> Space:
    space = Space(opsets.opened(ops, known(), size=size, rank=2, dtype=None), known())
    for n in range(1, size + 1):
        space.grow(n)
    return space


def program(space: Space, text: str) -> int:
    """The program that is spelt so."""
    (found,) = [n for n in range(len(space.terms)) if spelt(space.terms, n) == text]
    return found


# ---- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "args", "expected"),
    [
        ("mm", ["x", "w"], lambda x, w: x @ w),
        ("transpose.int", ["x", -2, -1], lambda x, _w: x.T),
        ("view", ["x", [6]], lambda x, _w: x.ravel()),
        ("sum.dim_IntList", ["x", [-1], True, None], lambda x, _w: x.sum(-1, keepdims=True)),
        ("mean.dim", ["x", [0], False, None], lambda x, _w: x.mean(0)),
        ("cat", [["x", "x"], -1], lambda x, _w: np.concatenate([x, x], -1)),
        ("relu", ["x"], lambda x, _w: np.maximum(x, 0)),
        (
            "softmax.int",
            ["x", -1, None],
            lambda x, _w: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
        ),
        ("triu", ["x", 1], lambda x, _w: np.triu(x, 1)),
        ("slice.Tensor", ["x", 1, 1, 3, 1], lambda x, _w: x[:, 1:3]),
    ],
)
def test_an_op_is_computed_by_its_conversion_rule(op: str, args: list[Any], expected: Any) -> None:
    rng = np.random.default_rng(3)
    values = {"x": rng.normal(size=(2, 3)), "w": rng.normal(size=(3, 5))}
    given = {n: Operand(n, v.shape, "f32") for n, v in values.items()}

    def filled(a: Any) -> Any:
        if isinstance(a, list):
            return [filled(i) for i in a]
        return given.get(a, a) if isinstance(a, str) else a

    made = kernel(known(), f"torch.aten.{op}", [filled(a) for a in args])
    np.testing.assert_allclose(made.run(values), expected(*values.values()), rtol=1e-12)


def test_what_no_rule_lowers_is_not_computed() -> None:
    x = Operand("x", (2, 3), "f32")
    with pytest.raises(NotComputed):
        kernel(known(), "torch.aten.mm", [x, x])
    with pytest.raises(NotComputed):
        kernel(known(), "torch.aten.no_such_op", [x])


def test_the_same_up_to_rounding() -> None:
    x = np.array([1.0, -2.0, np.inf])
    assert same(x, x * (1 + 1e-13))
    assert not same(x, x * (1 + 1e-6))
    assert not same(x, np.array([1.0, -2.0, np.nan]))
    assert not same(x, np.array([[1.0, -2.0, np.inf]]))


# ---- classes ----------------------------------------------------------------------------------


def test_programs_that_compute_the_same_are_one_class() -> None:
    space = grown()
    x, there_and_back = program(space, "x"), program(space, "t(t(x))")
    assert space.of[x] == space.of[there_and_back]
    assert space.of[program(space, "relu(relu(x))")] == space.of[program(space, "relu(x)")]
    assert space.of[program(space, "mm(t(v), t(x))")] == space.of[program(space, "t(mm(x, v))")]
    assert space.of[program(space, "relu(t(x))")] == space.of[program(space, "t(relu(x))")]
    assert space.of[program(space, "relu(x)")] != space.of[x]
    # Larger programs grow from the smallest of a class alone.
    assert not [t for t in range(len(space.terms)) if "t(t(" in spelt(space.terms, t)[1:]]


def test_an_op_whose_operands_may_be_swapped_is_found_out() -> None:
    ops = opsets.opened("add.Tensor,sub.Tensor", known(), size=1, rank=1, dtype=None)
    space = Space(ops, known())
    space.grow(1)
    assert space.commuting("torch.aten.add.Tensor")
    assert not space.commuting("torch.aten.sub.Tensor")


def test_a_smaller_rule_implies_a_larger_one() -> None:
    space = grown()
    rules = Rules(space)
    rules.add(program(space, "relu(relu(x))"), program(space, "relu(x)"))
    assert rules.implies(program(space, "relu(relu(x))"))
    assert not rules.implies(program(space, "relu(t(x))"))
    inner = program(space, "relu(relu(t(x)))")
    assert rules.implies(inner), "another operand is an instance of the pattern"


# ---- rules ------------------------------------------------------------------------------------


def pair(left: str, right: str, ops: str = SMALL) -> tuple[Space, Pair]:
    space = grown(ops)
    return space, Pair(
        space.terms, program(space, left), program(space, right), space.ops, frozenset()
    )


def test_a_pair_over_any_rank() -> None:
    space, found = pair("neg(neg(x))", "x", "neg,t")
    first = next(iter(forms(space, found)))
    assert first.pack == "*"
    rule = load_rule("a.yaml", rule_text(first, first.name), ops=compiler.op_oracle)
    assert rule.doc.types["x"] == "vtensor<S... x T>"
    assert prove(rule, known(), timeout=60).verdict == "proven"


def test_a_pair_over_the_rank_that_its_ops_have() -> None:
    space, found = pair("mm(t(v), t(x))", "t(mm(x, v))")
    (only,) = forms(space, found)
    rule = load_rule("a.yaml", rule_text(only, only.name), ops=compiler.op_oracle)
    assert [str(p.line) for p in rule.match] == [
        "t1 = torch.aten.t(x)",
        "t2 = torch.aten.t(w)",
        "y = torch.aten.mm(t1, t2)",
    ]
    assert prove(rule, known(), timeout=60).verdict == "proven"


# ---- the whole --------------------------------------------------------------------------------


def products() -> opsets.OpSet:
    """Products and sums of three inputs."""
    ops = opsets.opened("sums", known(), size=3, rank=2, dtype=None)
    return replace(
        ops,
        leaves={n: t for n, t in ops.leaves.items() if n != "u"},
        operators=[t for t in ops.operators if t.op in ("torch.aten.mm", "torch.aten.add.Tensor")],
    )


@pytest.mark.slow
def test_a_search_writes_rules_that_pass_and_goes_on(tmp_path: Path) -> None:
    settings = Settings(tmp_path, timeout=30, most=1)
    found = Search(products(), known(), settings, lambda *_: None).run()
    assert not found.stopped
    (row,) = [r for r in found.rows if r.verdict == "new"]
    assert (row.left, row.right) == ("add(mm(x, v), mm(y, v))", "mm(add(x, y), v)")
    assert row.gain > 1.5
    text = (tmp_path / "rules" / f"{row.rule}.yaml").read_text()
    rule = load_rule(f"{row.rule}.yaml", text, ops=compiler.op_oracle)
    assert rule.doc.commutative == ["torch.aten.add.Tensor"]
    assert any(t.run for t in rule.tests)
    assert any(t.unchanged for t in rule.tests)
    assert rule.doc.notes is not None
    assert rule.doc.notes.startswith("Proven equal")
    # Again: nothing is worked out anew, and the outcome is the same.
    again = Search(products(), known(), settings, lambda *_: None)
    second = again.run()
    assert again.state.recalled
    assert [r.__dict__ for r in second.rows] == [r.__dict__ for r in found.rows]


def test_an_interrupt_leaves_what_was_worked_out(tmp_path: Path) -> None:
    def interrupt(what: str, *_: int) -> None:
        if what.startswith("pairs"):
            raise KeyboardInterrupt

    found = Search(products(), known(), Settings(tmp_path), interrupt).run()
    assert found.stopped == "interrupted"
    assert found.programs > 0
    assert not list(tmp_path.glob("**/*.tmp*"))


def test_the_state_of_other_code_is_not_taken_up(tmp_path: Path) -> None:
    state = State(tmp_path / "state.json")
    state.put("costs", "a program", 1.5)
    state.save()
    assert State(tmp_path / "state.json").get("costs", "a program") == 1.5
    text = (tmp_path / "state.json").read_text().replace(state.key, "0" * 64)
    (tmp_path / "state.json").write_text(text)
    assert State(tmp_path / "state.json").get("costs", "a program") is None
    (tmp_path / "state.json").write_text("no state")
    with pytest.raises(MlirulesError, match="is no state"):
        State(tmp_path / "state.json")


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as done:
        main(["discover", "--list", "--json"])
    assert done.value.code == 0
    assert "elementwise" in json.loads(capsys.readouterr().out)
    with pytest.raises(SystemExit) as done:
        main(["discover", "--ops", "no_such_op", "--out", str(tmp_path)])
    assert done.value.code == 2
    assert "no_such_op" in capsys.readouterr().err


@pytest.mark.slow
def test_most_of_the_shipped_rules_are_found_again(tmp_path: Path) -> None:
    over: set[str] = set()
    again: set[str] = set()
    for name in opsets.named():
        ops = opsets.opened(name, known(), size=None, rank=2, dtype=None)
        settings = Settings(tmp_path / name, only_shipped=True)
        found = Search(ops, known(), settings, lambda *_: None).run()
        over |= set(found.shipped)
        again |= {rule for rule, program in found.shipped.items() if program}
    assert len(over) >= 40
    assert len(again) >= 0.8 * len(over), sorted(over - again)


def test_refs_are_plain() -> None:
    space = grown()
    assert space.terms[program(space, "t(x)")].args == (Ref(program(space, "x")),)
