"""Functions of numbers and lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mlirules.language.builtins.registry import MAX_LIST, Table
from mlirules.language.operands import Refused, arith, equal, integer, number, sequence
from mlirules.language.values import Dyn

table = Table()


@table.function("ceildiv", 2, 2, "Division rounded up.", "ceildiv(N, 16)")
def ceildiv(a: object, b: object) -> Any:
    """``a // b``, rounded up."""
    if isinstance(a, Dyn) or isinstance(b, Dyn):
        return arith("//", arith("+", a, arith("-", b, 1)), b)
    if integer(b) == 0:
        raise Refused("division by zero")
    return -(-integer(a) // integer(b))


@table.function("abs", 1, 1, "The absolute value of a number.", "abs(n)")
def _abs(a: object) -> Any:
    return abs(number(a))


@table.function("max", 1, 16, "The largest of numbers (or of a list).", "max(a, 0)")
def largest(*args: object) -> Any:
    """The largest of numbers, or of a list."""
    return extremum("max", args)


@table.function("min", 1, 16, "The smallest of numbers (or of a list).", "min(a, n)")
def smallest(*args: object) -> Any:
    """The smallest of numbers, or of a list."""
    return extremum("min", args)


def extremum(name: str, args: Sequence[object]) -> Any:
    """The ``max`` or ``min`` of numbers and dims; run-time ones give a :class:`Dyn`."""
    flat = sequence(args[0]) if len(args) == 1 and isinstance(args[0], (list, tuple)) else [*args]
    if not flat:
        raise Refused(f"{name} of nothing")
    if any(isinstance(v, Dyn) for v in flat):
        out = flat[0]
        for v in flat[1:]:
            out = out if out == v else Dyn(name, (out, v))
        return out
    pick = max if name == "max" else min
    return pick(number(v) for v in flat)


@table.function("sqrt", 1, 1, "The square root of a number.", "sqrt(D)")
def _sqrt(a: object) -> float:
    value = number(a)
    if value < 0:
        raise Refused("square root of a negative number")
    return math.sqrt(value)


@table.function("len", 1, 1, "The length of a list.", "len(sizes) == 2")
def _len(items: object) -> int:
    return len(sequence(items))


@table.function("product", 1, 1, "The product of a list of numbers.", "product(kernel)")
def product(items: object) -> Any:
    """The product of a list of numbers."""
    out: Any = 1
    for v in sequence(items):
        out = arith("*", out, v)
    return out


@table.function("sum", 1, 1, "The sum of a list of numbers.", "sum(sizes)")
def _sum(items: object) -> Any:
    out: Any = 0
    for v in sequence(items):
        out = arith("+", out, v)
    return out


@table.function(
    "range", 1, 2, "The numbers from 0 (or a) up to, not including, n.", "range(rank(x))"
)
def _range(a: object, b: object = None) -> list[int]:
    low, high = (0, integer(a)) if b is None else (integer(a), integer(b))
    if high - low > MAX_LIST:
        raise Refused(f"a range of more than {MAX_LIST}")
    return list(range(low, high))


@table.function("repeat", 2, 2, "A list that holds a value n times.", "repeat(0, rank(x))")
def _repeat(value: object, count: object) -> list[Any]:
    n = integer(count)
    if n > MAX_LIST:
        raise Refused(f"a list of more than {MAX_LIST}")
    return [value] * max(0, n)


@table.function(
    "expanded",
    2,
    2,
    "A list stretched to n: a single value is repeated.",
    "expanded(stride, 2)",
)
def _expanded(items: object, count: object) -> list[Any]:
    values = sequence(items) if isinstance(items, (list, tuple)) else [items]
    n = integer(count)
    if len(values) == 1:
        return values * n
    if len(values) != n:
        raise Refused(f"a list of {len(values)} where {n} are needed")
    return values


@table.function("positions", 2, 2, "Where a value stands in a list.", "positions(shape(x), 1)")
def _positions(items: object, value: object) -> list[int]:
    return [i for i, v in enumerate(sequence(items)) if not isinstance(v, Dyn) and equal(v, value)]


@table.function(
    "take",
    2,
    2,
    "The first n of a list (negative n: all but the last -n).",
    "take(dims, 2)",
)
def _take(items: object, count: object) -> list[Any]:
    return sequence(items)[: integer(count)]


@table.function("last", 2, 2, "The last n of a list.", "last(shape(x), 2)")
def _last(items: object, count: object) -> list[Any]:
    n = integer(count)
    return sequence(items)[len(sequence(items)) - n :] if n > 0 else []


@table.function("skip", 2, 2, "A list without its first n.", "skip(dims, 2)")
def _skip(items: object, count: object) -> list[Any]:
    return sequence(items)[integer(count) :]


@table.function(
    "slice", 3, 3, "Items a up to, not including, b of a list.", "slice(shape(x), 1, 3)"
)
def _slice(items: object, a: object, b: object) -> list[Any]:
    return sequence(items)[integer(a) : integer(b)]


@table.function("reversed", 1, 1, "A list back to front.", "reversed(pads)")
def _reversed(items: object) -> list[Any]:
    return sequence(items)[::-1]


@table.function("every", 3, 3, "Items a, a+n, a+2n ... of a list.", "every(pads, 0, 2)")
def _every(items: object, first: object, step: object) -> list[Any]:
    if integer(step) < 1:
        raise Refused("the step must be positive")
    return sequence(items)[integer(first) :: integer(step)]


@table.function(
    "interleave", 2, 2, "The items of two lists in turn.", "interleave(shape(x), steps)"
)
def _interleave(a: object, b: object) -> list[Any]:
    first, second = sequence(a), sequence(b)
    if len(first) != len(second):
        raise Refused(f"lists of {len(first)} and {len(second)} items")
    return [v for pair in zip(first, second, strict=True) for v in pair]


@table.function("inverse", 1, 1, "The inverse of a permutation.", "inverse(dims)")
def _inverse(items: object) -> list[int]:
    perm = [integer(v) for v in sequence(items)]
    if sorted(perm) != list(range(len(perm))):
        raise Refused(f"{perm} is not a permutation")
    return [perm.index(i) for i in range(len(perm))]


@table.function("distinct", 1, 1, "No two items of a list are equal.", "distinct(dims)")
def distinct(items: object) -> bool:
    """Whether no two items are equal."""
    values = sequence(items)
    return all(values[i] not in values[:i] for i in range(len(values)))


@table.function(
    "is_permutation", 1, 1, "The list holds 0 .. n-1 once each.", "is_permutation(dims)"
)
def _is_permutation(items: object) -> bool:
    return sorted(integer(v) for v in sequence(items)) == list(range(len(sequence(items))))


@table.function(
    "all_equal", 2, 2, "Every item of a list equals the value.", "all_equal(dilation, 1)"
)
def _all_equal(items: object, value: object) -> bool:
    return all(equal(v, value) for v in sequence(items))


@table.function(
    "at_least", 2, 2, "Every item of a list is at least the value.", "at_least(pads, 0)"
)
def _at_least(items: object, value: object) -> bool:
    return all(number(v) >= number(value) for v in sequence(items))


def _axes(items: list[object], where: object, what: str = "the axis") -> list[int]:
    values = where if isinstance(where, (list, tuple)) else [where]
    out = []
    for v in values:
        a = integer(v, "the axis")
        if not -len(items) <= a < len(items):
            last = f", whose last is {len(items) - 1}" if items else ""
            raise Refused(f"{what} {a} is outside a list of {len(items)}{last}")
        out.append(a % len(items))
    return out


def item_at(items: object, where: object, what: str = "the index") -> Any:
    """The item at a place of a list; a negative place counts from the end."""
    values = sequence(items)
    if not values and isinstance(where, int):
        raise Refused(f"{what} {where} is outside an empty list")
    return values[_axes(values, where, what)[0]]


@table.function(
    "set", 3, 3, "A list with the item (or items) at an axis replaced.", "x[set(I, d, 0)]"
)
def replaced(items: object, where: object, value: object) -> list[Any]:
    """A list with items at some places replaced."""
    out = sequence(items)
    axes = _axes(out, where)
    values = value if isinstance(value, (list, tuple)) else [value] * len(axes)
    if len(values) != len(axes):
        raise Refused(f"{len(values)} values for {len(axes)} axes")
    for a, new in zip(axes, values, strict=True):
        out[a] = new
    return out


@table.function("insert", 3, 3, "A list with an item put in before an axis.", "x[insert(I, d, k)]")
def _insert(items: object, where: object, value: object) -> list[Any]:
    out = sequence(items)
    a = integer(where, "the axis")
    if a < 0:
        a += len(out) + 1
    if not 0 <= a <= len(out):
        raise Refused(f"axis {a} is outside a list of {len(out) + 1}")
    return [*out[:a], value, *out[a:]]


@table.function("drop", 2, 2, "A list without the items at some axes.", "y[drop(I, dims)]")
def without(items: object, where: object) -> list[Any]:
    """A list without the items at some places."""
    values = sequence(items)
    gone = set(_axes(values, where))
    return [v for i, v in enumerate(values) if i not in gone]


@table.function(
    "restore",
    3,
    3,
    "The inverse of drop: a value put in to stand at some axes.",
    "reshape(x, restore(shape(x), dims, 1))",
)
def _restore(items: object, where: object, value: object) -> list[Any]:
    values = sequence(items)
    places = where if isinstance(where, (list, tuple)) else [where]
    at = set(_axes([*values, *places], places))
    if len(at) != len(places):
        raise Refused("an axis stands twice")
    rest = iter(values)
    return [value if i in at else next(rest) for i in range(len(values) + len(places))]


@table.function("permute", 2, 2, "Item p[i] of a list at place i.", "y[permute(I, dims)]")
def _permute(items: object, perm: object) -> list[Any]:
    values = sequence(items)
    return [values[i] for i in _axes(values, perm)]


@table.function("swap", 3, 3, "A list with two items exchanged.", "y[swap(I, 0, 1)]")
def _swap(items: object, a: object, b: object) -> list[Any]:
    out = sequence(items)
    i, j = _axes(out, [a, b])
    out[i], out[j] = out[j], out[i]
    return out


@table.function("concat", 1, 8, "Lists joined end to end.", "concat(shape(x), [1])")
def _concat(*lists: object) -> list[Any]:
    out: list[object] = []
    for items in lists:
        out.extend(sequence(items))
    return out
