"""Programs that a saturating stage left alone are not grown again; what changed is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlirules.drivers.apply.saturate import Saturation
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines import cost
from mlirules.drivers.pipelines.transform import transform
from mlirules.language.stage import Stage

T = "!torch.vtensor<[4,4],f32>"
COSTS = cost.Settings(Target.parse("cpu"))
RULE = """
rule: twice-{to}
kind: fusion
summary: A rule of a test.
reason: It shows when a stage looks at a program.
types: {{x: 'vtensor<S... x T>', y: 'vtensor<S... x T>', z: 'vtensor<S... x T>'}}
match: ["y = torch.aten.{inner}(x)", "z = torch.aten.{outer}(y)"]
rewrite: ["z = torch.aten.{to}(x)"]
tests:
  - name: positive
    input: |
      func.func @f(%x: {t}) -> {t} {{
        %y = torch.aten.{inner} %x : {t} -> {t}
        %z = torch.aten.{outer} %y : {t} -> {t}
        return %z : {t}
      }}
    check: "CHECK: torch.aten.{to}"
  - name: negative
    unchanged: |
      func.func @f(%x: {t}) -> {t} {{
        %z = torch.aten.{outer} %x : {t} -> {t}
        return %z : {t}
      }}
    because: "y = torch.aten.{inner}(x)"
"""


def _rule(folder: Path, inner: str, outer: str, to: str) -> Stage:
    file = folder / f"twice-{to}.yaml"
    file.write_text(RULE.format(inner=inner, outer=outer, to=to, t=T), encoding="utf-8")
    return Stage(phase="torch", rules=[str(file)], driver="saturate", margin=0.05)


def _program(*ops: str) -> str:
    body = [f"%v{n + 1} = torch.aten.{op} %v{n} : {T} -> {T}" for n, op in enumerate(ops)]
    lines = "\n  ".join(body)
    return f"func.func @main(%v0: {T}) -> {T} {{\n  {lines}\n  return %v{len(ops)} : {T}\n}}"


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Counts the blocks whose forms are looked for, with nothing kept from before."""
    monkeypatch.setenv("MLIRULES_CACHE_DIR", str(tmp_path / "cache"))
    seen: list[int] = []
    genuine = Saturation.grow

    def counted(self: Saturation, *arguments: Any) -> Any:
        seen.append(len(self.ops))
        return genuine(self, *arguments)

    monkeypatch.setattr(Saturation, "grow", counted)
    return seen


def test_what_was_left_alone_is_not_looked_at_again(tmp_path: Path, grown: list[int]) -> None:
    # As many ops before as behind: no form gains.
    stage = _rule(tmp_path, "tanh", "relu", "sigmoid")
    left = _program("relu", "tanh")
    for _ in range(2):
        done = transform(left, [stage], costs=COSTS)
        assert done.outcome.total == 0
    assert len(grown) == 1
    # Another program, and a rule that says something else, are looked at.
    transform(_program("relu", "tanh", "tanh"), [stage], costs=COSTS)
    assert len(grown) == 2
    transform(left, [_rule(tmp_path, "tanh", "relu", "exp")], costs=COSTS)
    assert len(grown) == 3


def test_what_gains_is_done_every_time(tmp_path: Path, grown: list[int]) -> None:
    stage = _rule(tmp_path, "neg", "neg", "relu")
    program = _program("neg", "neg", "neg", "neg")
    for turn in range(1, 3):
        assert transform(program, [stage], costs=COSTS).outcome.total > 0
        assert len(grown) == turn


def test_notes_are_told_again(tmp_path: Path, grown: list[int]) -> None:
    stage = _rule(tmp_path, "tanh", "relu", "sigmoid")
    lists = f"""
func.func @main(%x: {T}) -> {T} {{
  %l = torch.prim.ListConstruct %x : ({T}) -> !torch.list<vtensor<[4,4],f32>>
  %n = torch.aten.append.t %l, %x :
      !torch.list<vtensor<[4,4],f32>>, {T} -> !torch.list<vtensor<[4,4],f32>>
  %y = torch.aten.relu %x : {T} -> {T}
  %z = torch.aten.tanh %y : {T} -> {T}
  return %z : {T}
}}"""
    first, second = (transform(lists, [stage], costs=COSTS).outcome.notes for _ in range(2))
    assert grown == []
    assert first == second
    assert any("changes a list in place" in note for note in first)
