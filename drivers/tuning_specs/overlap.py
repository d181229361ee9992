"""Whether two config rules are for the same ops: told by what they mean, not by their names."""

from __future__ import annotations

import heapq
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mlirules.language.config.model import DimRange
from mlirules.language.config.op import ConfigRule, affine_map
from mlirules.language.notation import ast
from mlirules.language.typetexts import TensorType, builtin_type, without_sizes

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


_Relate = Callable[[ConfigRule, ConfigRule], "Relation | None"]


def overlaps(rules: Sequence[ConfigRule]) -> list[Overlap]:
    """Pairs of rules that are for some op in common, in order.

    A rule that can never hit is told once, with the first that takes all its ops. Rules are held
    only against those that ask for the same computation and whose exact sizes and ranges can meet,
    so that many rules for different ops cost no more than each by itself.
    """
    order = {id(rule): number for number, rule in enumerate(rules)}
    candidates: list[list[tuple[ConfigRule, _Relate]]] = [[] for _ in rules]
    for one, other, relate in _candidates(rules):
        first, second = sorted((one, other), key=lambda r: order[id(r)])
        candidates[order[id(second)]].append((first, relate))
    found = []
    dead: set[int] = set()
    for number, second in enumerate(rules):
        mine: list[Overlap] = []
        for first, related_by in sorted(candidates[number], key=lambda c: order[id(c[0])]):
            if id(first) in dead:
                continue
            related = related_by(first, second)
            if related is None:
                continue
            mine.append(Overlap(first, second, related, _example(first, second)))
            if mine[-1].dead:
                dead.add(id(second))
                mine = mine[-1:] if mine[-1].agrees else mine
                break
        found += mine
    return found


def _candidates(
    rules: Sequence[ConfigRule],
) -> Iterator[tuple[ConfigRule, ConfigRule, _Relate]]:
    """Pairs that may be for one op, each once, and what tells whether they are."""
    named = [rule for rule in rules if rule.match.op == "operation"]
    shaped = [rule for rule in rules if rule.match.op != "operation"]
    groups: dict[tuple[object, ...], list[ConfigRule]] = {}
    for rule in shaped:
        key = (_meaning(rule), _types(rule), tuple(rule.doc.targets))
        groups.setdefault(key, []).append(rule)
    for group in groups.values():
        for one, other in _meeting(group, [_box(rule) for rule in group]):
            yield one, other, _by_sizes
    yield from _across_targets(groups)
    by_name: dict[object, list[ConfigRule]] = {}
    for rule in named:
        by_name.setdefault(rule.match.name, []).append(rule)
    for group in by_name.values():
        for one, other in _meeting(group, [_operand_box(rule) for rule in group]):
            yield one, other, relation
    for one in named:
        classes = _NAMED.get(one.match.name or "", ())
        if classes and one.match.program is None:
            yield from ((one, other, relation) for other in shaped if other.match.op in classes)


def _across_targets(
    groups: dict[tuple[object, ...], list[ConfigRule]],
) -> Iterator[tuple[ConfigRule, ConfigRule, _Relate]]:
    """Pairs for one computation whose targets are not spelt alike: `hip` and `hip:gfx942`."""
    alike: dict[object, list[list[ConfigRule]]] = {}
    for key, group in groups.items():
        alike.setdefault(key[:2], []).append(group)
    for several in alike.values():
        if len(several) < 2:
            continue
        together = [rule for group in several for rule in group]
        for one, other in _meeting(together, [_box(rule) for rule in together]):
            if one.doc.targets != other.doc.targets and _targets_meet(one, other):
                yield one, other, _by_sizes


#: Sizes by dim, each from and to; a dim that is not limited is missing.
_Box = dict[object, tuple[int, int]]
_LARGEST = 1 << 62


def _box(rule: ConfigRule) -> _Box:
    return {
        number: (rule.dims[loop].min or 1, rule.dims[loop].max or _LARGEST)
        for number, loop in enumerate(rule.loops)
        if loop in rule.dims
    }


def _operand_box(rule: ConfigRule) -> _Box:
    box: _Box = {}
    if rule.match.program is not None:
        # Another computation is another place along one more dim.
        spelt, types = without_sizes(rule.match.program)
        place = zlib.crc32(spelt.encode()) + 1
        box["program"] = (place, place)
        for i, type_ in enumerate(types):
            for j, size in enumerate(type_.sizes):
                if size is not None:
                    box["program", i, j] = (size, size)
    for i, asked in enumerate(rule.match.operands):
        found = builtin_type(asked or "")
        for j, size in enumerate(found.sizes if found is not None else ()):
            if size is not None:
                box[i, j] = (size, size)
    for limit in rule.match.limits:
        box.setdefault((limit.operand, limit.dim), (limit.min or 1, limit.max or _LARGEST))
    return box


def _meeting(
    rules: Sequence[ConfigRule], boxes: Sequence[_Box]
) -> Iterator[tuple[ConfigRule, ConfigRule]]:
    """Pairs whose boxes meet, found dim by dim: exact sizes by value, ranges by a sweep."""
    waiting: list[tuple[list[int], int]] = [(list(range(len(rules))), 0)]
    dims = sorted({dim for box in boxes for dim in box}, key=str)
    met: set[tuple[int, int]] = set()
    while waiting:
        group, depth = waiting.pop()
        if len(group) < 2:
            continue
        if depth == len(dims) or len(group) == 2:
            for j, second in enumerate(group):
                for first in group[:j]:
                    pair = (min(first, second), max(first, second))
                    if pair not in met:
                        met.add(pair)
                        yield rules[pair[0]], rules[pair[1]]
            continue
        dim = dims[depth]
        anything = (1, _LARGEST)
        waiting += ((part, depth + 1) for part in _swept(group, boxes, dim, anything))


def _swept(
    group: Sequence[int], boxes: Sequence[_Box], dim: object, anything: tuple[int, int]
) -> Iterator[list[int]]:
    """The largest sets of a group whose sizes of a dim have one in common."""
    ranges = sorted((boxes[i].get(dim, anything), i) for i in group)
    open_ones: list[tuple[int, int]] = []  # a heap of (end, rule)
    grown = False
    for (low, high), i in ranges:
        if open_ones and open_ones[0][0] < low:
            if grown:
                yield sorted(rule for _, rule in open_ones)
                grown = False
            while open_ones and open_ones[0][0] < low:
                heapq.heappop(open_ones)
        heapq.heappush(open_ones, (high, i))
        grown = True
    if grown:
        yield sorted(rule for _, rule in open_ones)


def relation(a: ConfigRule, b: ConfigRule) -> Relation | None:
    """How the ops of two rules relate; None when there is no op that both are for."""
    if not _targets_meet(a, b):
        return None
    if a.match.op == "operation" or b.match.op == "operation":
        return _by_name(a, b)
    if _meaning(a) != _meaning(b) or _types(a) != _types(b):
        return None
    return _by_sizes(a, b)


def _by_sizes(a: ConfigRule, b: ConfigRule) -> Relation | None:
    """Relations of rules for one computation."""
    one, other = a.match.name, b.match.name
    if one is not None and other is not None and one != other:
        return None
    forward, backward = one in (None, other), other in (None, one)
    # One that takes configured ops as well takes more; before it, the other takes its part.
    forward &= a.match.configured or not b.match.configured
    backward &= b.match.configured or not a.match.configured
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


def _by_name(a: ConfigRule, b: ConfigRule) -> Relation | None:
    """Relations with rules that go by an op's name and operand types."""
    if a.match.op == b.match.op:
        if a.match.name != b.match.name:
            return None
        count = max(len(a.match.operands), len(b.match.operands))
        left, right = ([*_asked(r), *[None] * (count - len(r.match.operands))] for r in (a, b))
        if not all(_types_meet(x, y) for x, y in zip(left, right, strict=True)):
            return None
        forward = all(_type_within(y, x) for x, y in zip(left, right, strict=True))
        backward = all(_type_within(x, y) for x, y in zip(left, right, strict=True))
        if a.match.limits != b.match.limits:
            related = _limits_relate(a, b)
            if related is None:
                return None
            forward, backward = forward and related[0], backward and related[1]
        if a.match.program != b.match.program:
            if a.match.program is not None and b.match.program is not None:
                text_a, types_a = without_sizes(a.match.program)
                text_b, types_b = without_sizes(b.match.program)
                # Compared exactly by the compiler: what is spelt otherwise is another op.
                if text_a != text_b or not all(map(_types_meet, types_a, types_b)):
                    return None
                forward &= all(map(_type_within, types_b, types_a))
                backward &= all(map(_type_within, types_a, types_b))
            else:
                forward &= a.match.program is None
                backward &= b.match.program is None
        forward &= a.match.configured or not b.match.configured
        backward &= b.match.configured or not a.match.configured
        return _relation(forward, backward)
    named, other = (a, b) if a.match.op == "operation" else (b, a)
    if other.match.op not in _NAMED.get(named.match.name or "", ()):
        return None
    typed = [_type_of(other, i) for i in range(len(other.operands))]
    asked = _asked(named)
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


def _limits_relate(a: ConfigRule, b: ConfigRule) -> tuple[bool, bool] | None:
    """Whether the limits of the one take in the other's, both ways; None: no op has both."""
    forward = backward = True
    sides = [{(x.operand, x.dim): x for x in rule.match.limits} for rule in (a, b)]
    for place in {*sides[0], *sides[1]}:
        left, right = (
            DimRange(min=x.min, max=x.max, multiple_of=x.multiple_of) if x else _ANY
            for x in (side.get(place) for side in sides)
        )
        if not _meet(left, right):
            return None
        forward &= _within(right, left)
        backward &= _within(left, right)
    return forward, backward


def _type_of(rule: ConfigRule, position: int) -> TensorType:
    operand = rule.operands[position]
    sizes = (rule.exact(i.id) or None if isinstance(i, ast.Name) else None for i in operand.indices)
    return TensorType(tuple(sizes), operand.element)


def _asked(rule: ConfigRule) -> list[TensorType | None]:
    """The types that a rule asks of an op's operands: the checks know that they are tensors'."""
    return [None if text is None else builtin_type(text) for text in rule.match.operands]


def _types_meet(a: TensorType | None, b: TensorType | None) -> bool:
    return a is None or b is None or a.meets(b)


def _type_within(inner: TensorType | None, outer: TensorType | None) -> bool:
    return outer is None or (inner is not None and inner.within(outer))


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
