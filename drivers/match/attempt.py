"""One attempt to match a rule at an op: what it has bound so far, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from mlirules.drivers.iree.compiler import Op
from mlirules.drivers.match.results import Around, Bound, Refusal
from mlirules.drivers.match.rewrites import Rewrite
from mlirules.language.notation import ast
from mlirules.language.rule import Line, Rule

#: Beyond what any pattern counts: the ops are right, a type or a condition is not.
PATTERN_HOLDS = 100_000


class Stop(Exception):
    """The attempt ends: the rule does not fit."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass
class Verdict:
    """What types and constants decide of a rule: its rewrite, or a refusal."""

    rewrite: Rewrite | None
    refusal: Refusal | None
    env: dict[str, object]


@dataclass
class State:
    """What one attempt has bound so far."""

    around: Around
    verdict: Verdict | None = None
    values: dict[str, Bound] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    ops: dict[int, Op] = field(default_factory=dict)
    inner: list[Op] = field(default_factory=list)
    symbols: dict[str, Any] = field(default_factory=dict)
    depth: int = 0
    # Explaining: what refuses is collected here, and the attempt goes on. None: the first one ends
    # it.
    refusals: list[Refusal] | None = None
    # Explaining: the first two operands of this call are taken in the other order.
    swapped: ast.Call | None = None
    # The item of a list that an op is matched for, where one stands for every item.
    item: int = 0
    # Lists with several packs: which of the ways to divide them is tried, and how many there are,
    # in the order in which they were come upon. By the list's node and the item.
    divided: dict[tuple[int, int], int] = field(default_factory=dict)
    ways: dict[tuple[int, int], int] = field(default_factory=dict)

    def copy(self) -> State:
        """A state to go on from; what is bound in it does not show here."""
        return replace(
            self,
            values=dict(self.values),
            lists=dict(self.lists),
            ops=dict(self.ops),
            inner=list(self.inner),
            symbols=dict(self.symbols),
            ways=dict(self.ways),
        )


def refuse(state: State, refusal: Refusal) -> None:
    """End the attempt, or note why it would have ended and let it go on."""
    if state.refusals is None:
        raise Stop(refusal)
    state.refusals.append(refusal)


def progress(rule: Rule, line: Line | None) -> int:
    """How far into the rule a line stands, for telling which attempt got furthest."""
    if line is None:
        return 0
    if line.section == "types":
        return list(rule.types).index(str(line.key)) if line.key in rule.types else 0
    base = {"match": 0, "let": 10, "where": 20, "rewrite": 40}.get(line.section, 0)
    return base + (line.key if isinstance(line.key, int) else 0)
