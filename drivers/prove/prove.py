"""A rule's verdict: whether both sides are equal in every case, or where the proof stops."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mlirules.drivers.prove.expr import Node, Poly, Undecided, atom, nodes_in
from mlirules.drivers.prove.meanings import Meanings, op_key
from mlirules.drivers.prove.normal import Normal
from mlirules.drivers.prove.scalars import E
from mlirules.drivers.prove.sides import At, Case
from mlirules.drivers.prove.symbols import Array
from mlirules.drivers.prove.world import Limits, OutOfTime, World, bound_in, paths
from mlirules.language.notation import ast
from mlirules.language.rule import BodyText, Line, Rule

#: The highest rank for which a rule over any rank is proven.
RANKS = 6

Word = Literal["proven", "bounded", "refuted", "undecided"]


@dataclass
class Verdict:
    """What is known of a rule, why, and at which line the proof stopped."""

    rule: str
    verdict: Word
    #: How far: "all sizes, ranks to 6", the bounds, or the reason that nothing is decided.
    reason: str
    line: Line | None = None
    #: Whether both sides round alike: then also NaN, infinities and signed zeros are equal.
    exact: bool = False
    seconds: float = 0.0
    cases: int = 0
    #: Conversion rules that said what the ops mean.
    used: tuple[str, ...] = ()
    #: Conditions without which both sides are equal, too.
    unneeded: tuple[str, ...] = ()
    method: str = ""

    def data(self) -> dict[str, Any]:
        """The verdict for ``--json``."""
        out: dict[str, Any] = {
            "rule": self.rule,
            "verdict": self.verdict,
            "reason": self.reason,
            "arithmetic": "bit for bit" if self.exact else "over the reals",
            "special_values": "equal" if self.exact else "not decided",
            "cases": self.cases,
            "seconds": round(self.seconds, 3),
        }
        if self.line is not None:
            out["line"] = str(self.line.span)
        if self.unneeded:
            out["unneeded"] = list(self.unneeded)
        return out


@dataclass
class _Round:
    """What one way of proving found."""

    rank: int = -1  # every rank up to here is proven
    cases: int = 0
    exact: bool = True
    line: Line | None = None
    reason: str = ""
    used: set[str] = field(default_factory=set)


def prove(rule: Rule, meanings: Meanings, *, timeout: float = 30.0, dropped: int | None = None) -> Verdict:
    """The verdict on a rule. ``dropped``: without that line of ``where``."""
    started = time.monotonic()
    deadline = started + timeout
    best = _Round()
    for opaque in _ways(rule):
        mine = Meanings(meanings.rules, opaque, rule.name)
        found = _round(rule, mine, deadline, dropped)
        found.used = mine.used
        if (found.rank, found.cases) > (best.rank, best.cases) or not best.reason:
            best = found
        if found.rank >= RANKS or time.monotonic() > deadline:
            break
    seconds = time.monotonic() - started
    used = tuple(sorted(best.used))
    if best.rank >= RANKS and best.cases:
        verdict: Word = "proven"
        reason = "for all sizes, and every rank to 6 where the rule leaves it open"
    elif best.rank >= 0 and best.cases:
        verdict = "bounded"
        reason = f"for all sizes, ranks to {best.rank}; beyond: {best.reason}"
    else:
        verdict, reason = "undecided", best.reason or "no case of the rule was found"
    return Verdict(
        rule.name,
        verdict,
        reason,
        None if verdict == "proven" else best.line,
        best.exact and verdict in ("proven", "bounded"),
        seconds,
        best.cases,
        used,
    )


def _ways(rule: Rule) -> list[frozenset[str]]:
    """Ops to take as unknown functions, in turn: those of both sides first, then none."""
    before = {op_key(p.equation.call) for p in rule.match}
    after = {
        op_key(s.call)
        for _, s in rule.rewrite
        if not isinstance(s, BodyText) and isinstance(s, ast.OpEquation)
    }
    common = frozenset(op for op in before & after if _heavy(op))
    return [common, frozenset()] if common else [frozenset()]


def _heavy(op: str) -> bool:
    return op not in ("torch.aten.view", "torch.aten.reshape", "torch.aten.transpose.int")


def _round(rule: Rule, meanings: Meanings, deadline: float, dropped: int | None) -> _Round:
    out = _Round()
    variants: list[int | None] = [None]
    variants += [
        n for n, p in enumerate(rule.match) if p.op in rule.doc.commutative
    ]
    for rank in range(RANKS + 1):
        limits = Limits(deadline, rank)
        try:
            for swapped in variants:

                def run(world: World, swapped: int | None = swapped, rank: int = rank) -> bool:
                    case = Case(world, rule, meanings, swapped=swapped, dropped=dropped)
                    sides = case.run(rank)
                    exact = True
                    for name, value in sides.before.items():
                        case.line = case.line or (rule.rewrite[0][0] if rule.rewrite else None)
                        try:
                            exact = compare(world, name, value, sides.after[name]) and exact
                        except OutOfTime:
                            raise
                        except Undecided as undecided:
                            raise At(case.line, undecided.reason) from None
                    return exact

                found: list[tuple[bool]] = []
                for _, exact in paths(lambda w: (run(w),), limits):
                    out.cases += 1
                    out.exact = out.exact and exact[0]
                    found.append(exact)
        except At as at:
            out.line, out.reason = at.line, at.reason
            return out
        except Undecided as undecided:
            out.reason = undecided.reason
            return out
        out.rank = rank
    return out


def compare(world: World, name: str, before: Any, after: Any) -> bool:
    """Hold a result against what replaces it; whether they are computed alike.

    Raises :class:`Undecided` where they are not known to be equal.
    """
    if not isinstance(before, Array):
        raise Undecided(f"{name} is no tensor")
    index = [
        0 if s == 1 else atom(Node("var", f"out:{i}", s)) for i, s in enumerate(before.shape)
    ]
    for v in index:
        if isinstance(v, Poly):
            from mlirules.drivers.prove.world import at_least_zero

            (node,) = v.vars
            world.assume(at_least_zero(node.args[1] - 1))
            world.assume(at_least_zero(node.args[1] - 1 - v))
    left, right = before.elem(index), after.elem(index)
    if left.key == right.key:
        return True
    normal = Normal(world)
    if strict(normal, left, {}) == strict(normal, right, {}):
        return True
    for _ in range(40):
        a, b = normal.of(left), normal.of(right)
        if (isinstance(a, Poly) and isinstance(b, Poly) and a == b) or (
            not isinstance(a, Poly) and not isinstance(b, Poly) and a == b
        ):
            return False
        split = _free_condition(a, b)
        if split is None:
            raise Undecided(f"not shown to be equal: {name} is {shown(a)} and {shown(b)}")
        world.decide(split)
        normal = Normal(world)
        left, right = before.elem(index), after.elem(index)
    raise Undecided("too many conditions on indices")


def shown(value: Any) -> str:
    """A normal form, cut to a line."""
    text = str(value)
    return text if len(text) <= 300 else text[:300] + "..."


def _free_condition(a: Any, b: Any) -> Node | None:
    """A condition on sizes and indices of the result that is open."""
    for node in nodes_in((a, b)):
        if node.op == "holds" and node.args[0].op in ("eq0", "ge0"):
            condition = node.args[0]
            if not bound_in(condition):
                assert isinstance(condition, Node)
                return condition
    return None


def strict(normal: Normal, e: E, names: dict[Node, Any], depth: int = 0) -> str:
    """A key of a tree that rounds alike: equal but for the order of commuting operands."""

    def one(value: Any) -> str:
        if isinstance(value, E):
            return strict(normal, value, names, depth)
        if isinstance(value, (Poly, Node)):
            from mlirules.drivers.prove.expr import key_of

            return key_of(normal.replaced(value, names, bare=True))
        if isinstance(value, tuple):
            return "(" + ",".join(one(v) for v in value) + ")"
        return repr(value)

    if e.op == "red":
        op, t, loops, body = e.args
        inner = dict(names)
        sizes = []
        for i, v in enumerate(loops):
            size = normal.replaced(v.args[1], inner, bare=True)
            sizes.append(one(size))
            inner[v] = atom(Node("var", f"~{depth}.{i}", size))
        text = strict(normal, body, inner, depth + 1)
        return f"red({op},{t},{','.join(sizes)},{text})"
    parts = [one(a) for a in e.args]
    if e.op in ("add", "mul"):
        parts[1:] = sorted(parts[1:])
    if e.op in ("and", "or", "xor"):
        parts.sort()
    return f"{e.op}({','.join(parts)})"


def library(paths_: Sequence[str]) -> list[Rule]:
    """All rules of some sets, read."""
    from mlirules.language.library import open_rules

    return open_rules(paths_).rules()
