"""Whether two config rules are for the same ops: told by what they mean, not by their names."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mlirules.language.config.model import DimRange
from mlirules.language.config.op import ConfigRule, affine_map
from mlirules.language.notation import ast

Relation = Literal["same", "covers", "covered", "overlaps"]

#: Loop counts beyond which nothing is tried: sizes are compared, not searched for.
_ANY = DimRange()


@dataclass(frozen=True)
class Overlap:
    """Two rules that are for some op in common; ``first`` stands before ``second``."""

    first: ConfigRule
    second: ConfigRule
    relation: Relation
    example: str  # an op that both are for, in words

    @property
    def agrees(self) -> bool:
        """Whether both set the same, so that their order does not matter."""
        return self.first.doc.set == self.second.doc.set and (
            self.first.loops == self.second.loops or self.first.match.op == "operation"
        )

    @property
    def dead(self) -> bool:
        """Whether the second can never hit."""
        return self.relation in ("same", "covers")

    @property
    def message(self) -> str:
        """What is the matter, in a sentence."""
        how = {
            "same": "matches exactly what",
            "covers": "matches everything that",
            "covered": "matches a part of what",
            "overlaps": "matches some of what",
        }[self.relation]
        return f"{self.first.name} {how} {self.second.name} matches: {self.example}"


def overlaps(rules: Sequence[ConfigRule]) -> list[Overlap]:
    """All pairs of rules that are for some op in common, in order."""
    found = []
    for j, second in enumerate(rules):
        for first in rules[:j]:
            related = relation(first, second)
            if related is not None:
                found.append(Overlap(first, second, related, _example(first, second)))
    return found


def relation(a: ConfigRule, b: ConfigRule) -> Relation | None:
    """How the ops of two rules relate; None when there is no op that both are for."""
    if not _targets_meet(a, b):
        return None
    if a.match.op == "operation" or b.match.op == "operation":
        return _by_name(a, b)
    if _meaning(a) != _meaning(b) or _types(a) != _types(b):
        return None
    forward = backward = True
    for x, y in zip(a.loops, b.loops, strict=True):
        left, right = a.dims.get(x, _ANY), b.dims.get(y, _ANY)
        if not _meet(left, right):
            return None
        forward &= _within(right, left)
        backward &= _within(left, right)
    return _relation(forward, backward)


def _relation(forward: bool, backward: bool) -> Relation:
    if forward and backward:
        return "same"
    return "covers" if forward else "covered" if backward else "overlaps"


def _targets_meet(a: ConfigRule, b: ConfigRule) -> bool:
    return any(a.fits(t) for t in b.doc.targets) or any(b.fits(t) for t in a.doc.targets)


def _meaning(rule: ConfigRule) -> tuple[object, ...]:
    """The computation without names: maps over numbered loops, and the body over positions."""
    numbers = {loop: f"d{i}" for i, loop in enumerate(rule.loops)}
    maps = tuple(
        re.sub(r"\b[A-Za-z_]\w*\b", lambda m: numbers.get(m[0], m[0]), affine_map(rule, o))
        for o in rule.operands
    )
    assert rule.equation is not None
    places = {o.name: str(i) for i, o in enumerate(rule.operands)}
    # One operator for all attention; contractions and convolutions are products, as generics say.
    return maps, rule.equation.op, _body(rule.equation.value, places)


def _body(node: ast.Expr, places: dict[str, str]) -> str:
    match node:
        case ast.Access(base=ast.Name(id=name)):
            return places[name]
        case ast.Binary(op=op, left=left, right=right):
            parts = [_body(left, places), _body(right, places)]
            if op in ("+", "*"):
                parts.sort()
            return f"({parts[0]} {op} {parts[1]})"
        case ast.Unary(op=op, operand=operand):
            return f"({op} {_body(operand, places)})"
        case ast.Call(fn=fn, args=args):
            return f"{fn}({', '.join(_body(a, places) for a in args)})"
        case ast.Literal(value=value):
            return repr(value)
    return type(node).__name__


def _types(rule: ConfigRule) -> tuple[str, ...]:
    given = rule.match.types
    out = tuple(o.element for o in rule.operands)
    if rule.match.op == "attention":
        return (
            *out,
            given.get("scale", out[0]),
            given.get("max", out[-1]),
            given.get("sum", out[-1]),
        )
    return out


def _meet(a: DimRange, b: DimRange) -> bool:
    """Whether some size is within both limits."""
    step = math.lcm(a.multiple_of or 1, b.multiple_of or 1)
    low = max(a.min or 1, b.min or 1)
    highs = [h for h in (a.max, b.max) if h is not None]
    return not highs or min(highs) // step * step >= low


def _within(inner: DimRange, outer: DimRange) -> bool:
    """Whether every size within ``inner`` is within ``outer``."""
    if inner.min is not None and inner.min == inner.max:
        size = inner.min
        return (outer.min or 1) <= size <= (outer.max or size) and size % (
            outer.multiple_of or 1
        ) == 0
    if outer.multiple_of and (inner.multiple_of or 1) % outer.multiple_of:
        return False
    if outer.min is not None and (inner.min is None or inner.min < outer.min):
        return False
    return outer.max is None or (inner.max is not None and inner.max <= outer.max)


_NAMED = {
    "iree_linalg_ext.online_attention": ("attention",),
    "linalg.generic": ("contraction", "convolution", "generic"),
    "linalg.matmul": ("contraction",),
    "linalg.batch_matmul": ("contraction",),
}
_TENSOR = re.compile(r"tensor<((?:(?:\?|\d+)x)*)(\w+)>")


def _by_name(a: ConfigRule, b: ConfigRule) -> Relation | None:
    """Relations with rules that go by an op's name and operand types."""
    if a.match.op == b.match.op:
        if a.match.name != b.match.name:
            return None
        count = max(len(a.match.operands), len(b.match.operands))
        left = [*a.match.operands, *[None] * (count - len(a.match.operands))]
        right = [*b.match.operands, *[None] * (count - len(b.match.operands))]
        if not all(_types_meet(x, y) for x, y in zip(left, right, strict=True)):
            return None
        forward = all(_type_within(y, x) for x, y in zip(left, right, strict=True))
        backward = all(_type_within(x, y) for x, y in zip(left, right, strict=True))
        return _relation(forward, backward)
    named, other = (a, b) if a.match.op == "operation" else (b, a)
    if other.match.op not in _NAMED.get(named.match.name or "", ()):
        return None
    typed = [_type_of(other, i) for i in range(len(other.operands))]
    asked = list(named.match.operands)
    for i, wanted in enumerate(asked):
        have = typed[i] if i < min(3, len(typed)) else None
        if not _types_meet(wanted, have):
            return None
    # Named attention takes every one whose types fit; other names say too little to be sure.
    covers = other.match.op == "attention" and all(
        _type_within(typed[i], wanted) for i, wanted in enumerate(asked) if i < min(3, len(typed))
    )
    if not covers:
        return "overlaps"
    return "covers" if named is a else "covered"


def _type_of(rule: ConfigRule, position: int) -> str:
    operand = rule.operands[position]
    sizes = [
        str(rule.exact(i.id) or "?") if isinstance(i, ast.Name) else "?" for i in operand.indices
    ]
    return f"tensor<{''.join(s + 'x' for s in sizes)}{operand.element}>"


def _types_meet(a: str | None, b: str | None) -> bool:
    if a is None or b is None:
        return True
    x, y = _TENSOR.fullmatch(a), _TENSOR.fullmatch(b)
    if x is None or y is None or x[2] != y[2]:
        return False
    left, right = x[1].split("x"), y[1].split("x")
    return len(left) == len(right) and all(
        "?" in (p, q) or p == q for p, q in zip(left, right, strict=True)
    )


def _type_within(inner: str | None, outer: str | None) -> bool:
    if outer is None:
        return True
    if inner is None:
        return False
    x, y = _TENSOR.fullmatch(inner), _TENSOR.fullmatch(outer)
    if x is None or y is None or x[2] != y[2]:
        return False
    left, right = x[1].split("x"), y[1].split("x")
    return len(left) == len(right) and all(q in ("?", p) for p, q in zip(left, right, strict=True))


def _example(a: ConfigRule, b: ConfigRule) -> str:
    """An op that both rules are for, by its sizes."""
    if not a.operands or not b.operands:
        return a.match.name or b.match.name or "an op of that name"
    sizes = []
    for x, y in zip(a.loops, b.loops, strict=True):
        left, right = a.dims.get(x, _ANY), b.dims.get(y, _ANY)
        step = math.lcm(left.multiple_of or 1, right.multiple_of or 1)
        low = max(left.min or 1, right.min or 1)
        sizes.append(f"{x}={-(-low // step) * step}")
    types = ", ".join(dict.fromkeys(o.element for o in a.operands))
    return f"{a.match.op} with {', '.join(sizes)} of {types}"
