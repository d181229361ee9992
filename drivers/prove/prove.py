"""A rule's verdict: whether both sides are equal in every case, or where the proof stops."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mlirules.drivers.prove.binding import op_key
from mlirules.drivers.prove.expr import Node, Poly, Undecided, atom, key_of, nodes_in
from mlirules.drivers.prove.meanings import Meanings
from mlirules.drivers.prove.normal import Normal
from mlirules.drivers.prove.scalars import E
from mlirules.drivers.prove.sides import At, Case
from mlirules.drivers.prove.tensors import Applied, Array
from mlirules.drivers.prove.world import (
    Limits,
    OutOfTime,
    World,
    at_least_zero,
    bound_in,
    paths,
)
from mlirules.language.notation import ast
from mlirules.language.operands import Refused
from mlirules.language.rule import Line, Rule
from mlirules.support import files

#: The highest rank for which a rule over any rank is proven.
RANKS = 6
#: The ranks to which a proof goes in turn: where time runs out, the last one is the bound.
CAPS = (2, 4, RANKS)

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
            span = self.line.span
            out["line"] = str(replace(span, path=files.shown(span.path)))
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
    #: The highest rank of any case.
    reached: int = 0
    #: The highest rank of any case of the rounds that ended.
    before: int = 0
    #: Sizes are at least this.
    least: int = 0
    left_out: dict[str, str] = field(default_factory=dict)


def prove(
    rule: Rule, meanings: Meanings, *, timeout: float = 30.0, dropped: int | None = None
) -> Verdict:
    """The verdict on a rule. ``dropped``: without that line of ``where``."""
    started = time.monotonic()
    deadline = started + timeout
    best = _Round()
    for least, opaque in [(n, w) for n in (0, 1) for w in _ways(rule, meanings)]:
        mine = Meanings(meanings.rules, opaque, meanings.valid, rule.name, meanings.definitions)
        found = _round(rule, mine, deadline, dropped, least)
        found.used = mine.used
        if best.reason == "out of time" and found.rank <= best.rank:
            break
        if found.rank > best.rank or (found.rank == best.rank and least == 0):
            best = found
        if found.rank >= RANKS or time.monotonic() > deadline:
            break
    seconds = time.monotonic() - started
    used = tuple(sorted(best.used))
    verdict: Word
    limits = []
    if best.rank < RANKS:
        limits.append(f"ranks to {max(best.rank, best.before)}; beyond: {best.reason}")
    if best.least:
        limits.append("sizes of at least 1")
    limits += [f"where {op} has a meaning ({why})" for op, why in best.left_out.items()]
    if best.rank < 0 or not best.cases:
        verdict, reason = "undecided", best.reason or "no case of the rule was found"
    elif limits:
        verdict, reason = "bounded", "; ".join(limits)
    else:
        verdict = "proven"
        reason = "for all sizes, and every rank to 6 where the rule leaves it open"
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


def _ways(rule: Rule, meanings: Meanings) -> list[frozenset[str]]:
    """Ops to take as unknown functions, in turn: those of both sides first, then none."""
    before = {op_key(p.equation.call) for p in rule.match}
    for op in list(before):
        for written in meanings.definitions.get(op, ()):
            before |= _made_by(written)
    common = frozenset(op for op in before & _made_by(rule) if op not in _LIGHT)
    return [common, frozenset()] if common else [frozenset()]


#: Ops that only move elements: what they do is cheaper to write out than to compare.
_LIGHT = frozenset(
    f"torch.aten.{name}"
    for name in ("view", "reshape", "transpose.int", "permute", "unsqueeze", "squeeze.dim")
)


def _made_by(rule: Rule) -> set[str]:
    return {op_key(s.call) for _, s in rule.rewrite if isinstance(s, ast.OpEquation)}


def _symmetric(call: ast.Call) -> bool:
    """An op that PyTorch defines by a commuting operation of its first two operands."""
    if call.fn == "torch.aten.add.Tensor":
        return (
            len(call.args) == 3
            and isinstance(call.args[2], ast.Literal)
            and (call.args[2].value == 1)
        )
    return call.fn in ("torch.aten.mul.Tensor", "torch.aten.logical_and", "torch.aten.logical_or")


def _round(
    rule: Rule, meanings: Meanings, deadline: float, dropped: int | None, least: int
) -> _Round:
    out = _Round(least=least)
    variants: list[int | None] = [None]
    variants += [
        n
        for n, p in enumerate(rule.match)
        if p.op in rule.doc.commutative and not _symmetric(p.equation.call)
    ]
    for before, rank in itertools.pairwise((-1, *CAPS)):
        limits = Limits(deadline, rank, least=least, left_out=out.left_out)
        try:
            for swapped in variants:

                def run(world: World, swapped: int | None = swapped, before: int = before) -> bool:
                    case = Case(world, rule, meanings, swapped=swapped, dropped=dropped)
                    sides = case.run(before + 1)
                    exact = True
                    for name, value in sides.before.items():
                        case.line = case.line or (rule.rewrite[0][0] if rule.rewrite else None)
                        try:
                            exact = compare(world, name, value, sides.after[name]) and exact
                        except OutOfTime:
                            raise
                        except Undecided as undecided:
                            raise At(case.line, undecided.reason) from None
                        except Refused as refused:
                            raise At(case.line, str(refused)) from None
                    return exact

                found: list[tuple[bool]] = []
                for world, exact in paths(lambda w: (run(w),), limits):
                    out.cases += 1
                    out.reached = max([out.reached, *world.ranks])
                    out.exact = out.exact and exact[0]
                    found.append(exact)
        except At as at:
            out.line, out.reason = at.line, at.reason
            return out
        except Undecided as undecided:
            out.reason = undecided.reason
            return out
        out.rank, out.before = rank, out.reached
        if not limits.capped:
            out.rank = RANKS
            break
    if not out.cases:
        out.rank, out.reason = -1, "no case of the rule was found"
    return out


def compare(world: World, name: str, before: Any, after: Any) -> bool:
    """Hold a result against what replaces it; whether they are computed alike.

    Raises :class:`Undecided` where they are not known to be equal.
    """
    if isinstance(before, Applied) and isinstance(after, Applied):
        if before == after:
            return True
        raise Undecided(f"{name} is an op of other operands, and nothing is known of the op")
    if not isinstance(before, Array) or not isinstance(after, Array):
        raise Undecided(f"{name} is no tensor whose elements are known")
    index = [
        0 if world.same(s, 1) else atom(Node("var", f"out:{i}", s))
        for i, s in enumerate(before.shape)
    ]
    for v in index:
        if isinstance(v, Poly):
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
        if world.equal and key_of(a) != key_of(b):
            # Sizes that are equal on this path, under one name.
            for _ in range(3):
                a, b = normal.replaced(a, world.equal), normal.replaced(b, world.equal)
        if (isinstance(a, Poly) and isinstance(b, Poly) and a == b) or (
            not isinstance(a, Poly) and not isinstance(b, Poly) and a == b
        ):
            return False
        split = _free_condition(a, b) or _emptiness(world, a, b)
        if split is None:
            only = a - b if isinstance(a, Poly) or isinstance(b, Poly) else a
            raise Undecided(f"not shown to be equal: {name}, whose difference is {shown(only)}")
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


def _emptiness(world: World, a: Any, b: Any) -> Node | None:
    """Whether a reduction runs over anything, where that is open."""
    for node in nodes_in((a, b)):
        if node.op in ("sum", "reduce"):
            for v in node.args[0]:
                some = at_least_zero(v.args[1] - 1)
                if isinstance(some, Node) and not some.vars and world.answer(some) is None:
                    return some
    return None


def strict(normal: Normal, e: E, names: dict[Node, Any], depth: int = 0) -> str:
    """A key of a tree that rounds alike: equal but for the order of commuting operands."""

    def one(value: Any) -> str:
        if isinstance(value, E):
            return strict(normal, value, names, depth)
        if isinstance(value, (Poly, Node)):
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


def library(sets: Sequence[str]) -> list[Rule]:
    """All rules of some sets, read. Raises :class:`MlirulesError` with their faults."""
    from mlirules.drivers.iree import compiler
    from mlirules.language.library import open_rules

    return open_rules(sets, ops=compiler.op_oracle, compiler=compiler.revision()).rules()


def meanings() -> Meanings:
    """What ops mean by the conversion rules that ship."""
    from mlirules.language.library import open_rules
    from mlirules.language.loader import LIBRARY

    folders = [str(LIBRARY / "torch" / name) for name in ("to-linalg", "decompose")]
    return Meanings.of(open_rules(folders).rules())
