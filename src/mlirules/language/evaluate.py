"""Evaluation of expressions over the symbols of a match, before any IR exists.

The functions here are the closed set that ``where``, ``let`` and index lists may use. There is no
``eval``: the syntax tree is walked, and every name is looked up in the match's environment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mlirules.language.notation import ast
from mlirules.language.values import (
    DType,
    Dyn,
    Opaque,
    Scalar,
    Tensor,
    dtype_named,
    dtype_of_code,
)


class Refused(Exception):
    """An expression that has no value for this match: the rule does not apply, and why."""

    def __init__(self, message: str, node: ast.Node | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.node = node


@dataclass(frozen=True)
class Function:
    """A function of the closed set."""

    name: str
    arity: tuple[int, int]
    doc: str
    example: str
    impl: Callable[..., Any] | None
    # Asks about the IR around a match (uses), not about types and constants: never cached.
    structural: bool = False


FUNCTIONS: dict[str, Function] = {}


_Impl = TypeVar("_Impl", bound=Callable[..., Any])


def _function(
    name: str, low: int, high: int, doc: str, example: str, *, structural: bool = False
) -> Callable[[_Impl], _Impl]:
    def register(impl: _Impl) -> _Impl:
        FUNCTIONS[name] = Function(name, (low, high), doc, example, impl, structural)
        return impl

    return register


MAX_LIST = 4096


def number(value: Any, what: str = "value") -> int | float:
    """``value`` as a number known now; raises :class:`Refused` when it is not."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, (Dyn, Scalar)):
        raise Refused(f"{what} {value if isinstance(value, Dyn) else value.name} is not constant")
    raise Refused(f"{what} is {describe(value)}, not a number")


def integer(value: Any, what: str = "value") -> int:
    """``value`` as an integer known now; raises :class:`Refused` when it is not."""
    found = number(value, what)
    if isinstance(found, float):
        raise Refused(f"{what} is {found}, not a whole number")
    return found


def sequence(value: Any, what: str = "value") -> list[Any]:
    """``value`` as a list; raises :class:`Refused` when it is not one."""
    if isinstance(value, (list, tuple)):
        return list(value)
    raise Refused(f"{what} is {describe(value)}, not a list")


def tensor(value: Any) -> Tensor:
    """``value`` as a ranked tensor of known element type; raises :class:`Refused` otherwise."""
    if not isinstance(value, Tensor):
        raise Refused(f"{describe(value)} is not a tensor")
    if value.dims is None:
        raise Refused(f"the rank of {value.name} is not known")
    if value.dtype is None:
        raise Refused(f"the element type of {value.name} is not known")
    return value


def dtype(value: Any) -> DType:
    """``value`` (an element type, or a tensor that has one) as an element type."""
    if isinstance(value, DType):
        return value
    if isinstance(value, Tensor) and value.dtype is not None:
        return value.dtype
    raise Refused(f"{describe(value)} has no element type")


def describe(value: Any) -> str:
    """``value`` in words that a rule's author understands."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Tensor):
        return value.torch_type() if value.torch else value.builtin_type()
    if isinstance(value, Scalar):
        return f"a {value.kind} known only at run time"
    if isinstance(value, Dyn):
        return "a number known only at run time"
    if isinstance(value, Opaque):
        return value.type
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(describe(v) for v in value) + "]"
    return str(value)


# ---- tensors, dims, element types ------------------------------------------------------------


@_function("rank", 1, 1, "The number of dims of a tensor.", "rank(x) == 3")
def _rank(x: Any) -> int:
    return tensor(x).rank


@_function("shape", 1, 1, "The dims of a tensor, as a list.", "shape(x)")
def _shape(x: Any) -> list[Any]:
    return list(tensor(x).dims or ())


@_function("dim", 2, 2, "One dim of a tensor; a negative axis counts from the end.", "dim(x, -1)")
def _dim(x: Any, axis: Any) -> Any:
    return _get(list(tensor(x).dims or ()), axis, "the axis")


@_function("numel", 1, 1, "The number of elements of a tensor.", "numel(x)")
def _numel(x: Any) -> Any:
    return _product(list(tensor(x).dims or ()))


@_function("dtype", 1, 1, "The element type of a tensor.", "dtype(x) == f32")
def _dtype(x: Any) -> DType:
    return dtype(x)


@_function("dtype_of", 1, 1, "The element type that PyTorch numbers n (6 is f32).", "dtype_of(6)")
def _dtype_of(code: Any) -> DType:
    found = dtype_of_code(integer(code, "the dtype"))
    if found is None:
        raise Refused(f"dtype {code} is not known")
    return found


@_function("is_float", 1, 1, "A floating-point element type (or a tensor of one).", "is_float(T)")
def _is_float(t: Any) -> bool:
    if isinstance(t, (int, float)):
        return isinstance(t, float)
    if isinstance(t, Scalar):
        return t.kind == "float"
    if isinstance(t, Dyn):
        return False
    return dtype(t).is_float


@_function("is_int", 1, 1, "An integer element type; bool is not one.", "is_int(T)")
def _is_int(t: Any) -> bool:
    if isinstance(t, (int, float)):
        return isinstance(t, int) and not isinstance(t, bool)
    if isinstance(t, Dyn):
        return True
    if isinstance(t, Scalar):
        return t.kind == "int"
    return dtype(t).is_int


@_function("is_bool", 1, 1, "The element type i1.", "is_bool(T)")
def _is_bool(t: Any) -> bool:
    if isinstance(t, (bool, int, float, Dyn)):
        return isinstance(t, bool)
    if isinstance(t, Scalar):
        return t.kind == "bool"
    return dtype(t).is_bool


@_function("is_unsigned", 1, 1, "An unsigned integer element type (bool counts).", "is_unsigned(T)")
def _is_unsigned(t: Any) -> bool:
    return dtype(t).is_unsigned


@_function("is_complex", 1, 1, "A complex element type.", "not is_complex(T)")
def _is_complex(t: Any) -> bool:
    return dtype(t).is_complex


@_function("bitwidth", 1, 1, "The width of an element type in bits.", "bitwidth(T) >= 32")
def _bitwidth(t: Any) -> int:
    return dtype(t).width


@_function(
    "lowest",
    1,
    1,
    "Minus infinity, or the smallest integer, of an element type.",
    "lowest(T)",
)
def _lowest(t: Any) -> int | float:
    return dtype(t).lowest


@_function("highest", 1, 1, "Infinity, or the largest integer, of an element type.", "highest(T)")
def _highest(t: Any) -> int | float:
    return dtype(t).highest


@_function("part", 1, 1, "The float type of a complex type's parts.", "part(T)")
def _part(t: Any) -> DType:
    return DType(f"f{dtype(t).width // 2}")


@_function("opmath", 1, 1, "The type PyTorch computes T in: f32 for f16 and bf16.", "opmath(T)")
def _opmath(t: Any) -> DType:
    found = dtype(t)
    return DType("f32") if found.is_float and found.width < 32 else found


def _promoted_pair(a: DType, b: DType) -> DType:
    """PyTorch's ``promote_types``."""
    if a == b:
        return a
    if a.is_complex or b.is_complex:
        widths = [t.width if t.is_complex else 2 * t.width if t.is_float else 0 for t in (a, b)]
        return DType(f"complex{max(widths)}")
    if a.is_float and b.is_float:
        return DType("f32") if a.width == b.width else a if a.width > b.width else b
    if a.is_float or b.is_float:
        return a if a.is_float else b
    if a.is_bool or b.is_bool:
        return b if a.is_bool else a
    if a.is_unsigned != b.is_unsigned:
        unsigned, signed = (a, b) if a.is_unsigned else (b, a)
        if unsigned.width > 8:
            raise Refused(f"PyTorch does not promote {a} and {b}")
        return DType(f"si{max(16, signed.width)}")
    return a if a.width > b.width else b


def _promoted_category(high: DType | None, low: DType | None) -> DType | None:
    """What values of a higher rank of priority become beside values of a lower one."""
    if high is None or low is None:
        return high or low
    if high.is_complex or high.is_float:
        wide = low.is_complex and not high.is_complex
        return DType(f"complex{2 * high.width}") if wide else high
    if high.is_bool or low.is_float or low.is_complex:
        return _promoted_pair(high, low)
    return high


@_function(
    "promoted",
    1,
    8,
    "The element type in which PyTorch combines tensors and numbers.",
    "promoted(x, other)",
)
def _promoted(*values: Any) -> DType:
    # Tensors with dims weigh more than rank-0 tensors, and those more than numbers.
    found: list[DType | None] = [None, None, None]
    for value in values:
        if isinstance(value, Tensor):
            level, t = 0 if tensor(value).rank else 1, dtype(value)
        elif isinstance(value, DType):
            level, t = 0, value
        else:
            name = "i1" if _is_bool(value) else "si64" if _is_int(value) else "f32"
            level, t = 2, DType(name)
        held = found[level]
        found[level] = t if held is None else _promoted_pair(held, t)
    out = _promoted_category(found[0], _promoted_category(found[1], found[2]))
    if out is None:
        raise Refused("nothing to promote")
    return out


@_function("static", 1, 1, "All dims are known at compile time.", "static(x)")
def _static(x: Any) -> bool:
    if isinstance(x, Tensor):
        return x.dims is not None and all(isinstance(d, int) for d in x.dims)
    if isinstance(x, (list, tuple)):
        return all(_static(v) for v in x)
    return isinstance(x, (int, float))


@_function("ranked", 1, 1, "The rank and element type of a tensor are known.", "ranked(x)")
def _ranked(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dims is not None and x.dtype is not None


@_function("constant", 1, 1, "A scalar (or a list of them) known at compile time.", "constant(dim)")
def _constant(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return all(_constant(v) for v in x)
    return not isinstance(x, (Dyn, Scalar, Tensor, Opaque))


@_function("present", 1, 1, "An optional operand is there (is not none).", "present(bias)")
def _present(x: Any) -> bool:
    return x is not None


@_function("is_tensor", 1, 1, "The value is a tensor.", "is_tensor(x)")
def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


@_function("one_use", 1, 1, "The value has exactly one use.", "one_use(x)", structural=True)
def _one_use(_x: Any) -> bool:
    raise Refused("one_use needs the IR around the match")


@_function(
    "inside", 1, 1, "Only ops of the match use the value.", "inside(scores)", structural=True
)
def _inside(_x: Any) -> bool:
    raise Refused("inside needs the IR around the match")


@_function("unused", 1, 1, "Nothing uses the value.", "unused(indices)", structural=True)
def _unused(_x: Any) -> bool:
    raise Refused("unused needs the IR around the match")


@_function(
    "broadcasts",
    2,
    8,
    "The shapes broadcast together as in PyTorch, as far as known.",
    "broadcasts(x, y)",
)
def _broadcasts(*tensors: Any) -> bool:
    shapes = [list(reversed(tensor(t).dims or ())) for t in tensors]
    for i in range(max(len(s) for s in shapes)):
        sizes = {s[i] for s in shapes if i < len(s) and isinstance(s[i], int) and s[i] != 1}
        if len(sizes) > 1:
            return False
    return True


# ---- numbers and lists -----------------------------------------------------------------------


@_function("divisible", 2, 2, "The first is a multiple of the second.", "divisible(K, 16)")
def _divisible(a: Any, b: Any) -> bool:
    divisor = integer(b, "the divisor")
    if divisor == 0:
        raise Refused("division by zero")
    return integer(a) % divisor == 0


@_function("ceildiv", 2, 2, "Division rounded up.", "ceildiv(N, 16)")
def _ceildiv(a: Any, b: Any) -> Any:
    if isinstance(a, Dyn) or isinstance(b, Dyn):
        return arith("//", arith("+", a, arith("-", b, 1)), b)
    if integer(b) == 0:
        raise Refused("division by zero")
    return -(-integer(a) // integer(b))


@_function("abs", 1, 1, "The absolute value of a number.", "abs(n)")
def _abs(a: Any) -> Any:
    return abs(number(a))


@_function("max", 1, 16, "The largest of numbers (or of a list).", "max(a, 0)")
def _max(*args: Any) -> Any:
    return extremum("max", args)


@_function("min", 1, 16, "The smallest of numbers (or of a list).", "min(a, n)")
def _min(*args: Any) -> Any:
    return extremum("min", args)


def extremum(name: str, args: Sequence[Any]) -> Any:
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


@_function("sqrt", 1, 1, "The square root of a number.", "sqrt(D)")
def _sqrt(a: Any) -> float:
    value = number(a)
    if value < 0:
        raise Refused("square root of a negative number")
    return math.sqrt(value)


@_function("len", 1, 1, "The length of a list.", "len(sizes) == 2")
def _len(items: Any) -> int:
    return len(sequence(items))


@_function("product", 1, 1, "The product of a list of numbers.", "product(kernel)")
def _product(items: Any) -> Any:
    out: Any = 1
    for v in sequence(items):
        out = arith("*", out, v)
    return out


@_function("sum", 1, 1, "The sum of a list of numbers.", "sum(sizes)")
def _sum(items: Any) -> Any:
    out: Any = 0
    for v in sequence(items):
        out = arith("+", out, v)
    return out


@_function("range", 1, 2, "The numbers from 0 (or a) up to, not including, n.", "range(rank(x))")
def _range(a: Any, b: Any = None) -> list[int]:
    low, high = (0, integer(a)) if b is None else (integer(a), integer(b))
    if high - low > MAX_LIST:
        raise Refused(f"a range of more than {MAX_LIST}")
    return list(range(low, high))


@_function("repeat", 2, 2, "A list that holds a value n times.", "repeat(0, rank(x))")
def _repeat(value: Any, count: Any) -> list[Any]:
    n = integer(count)
    if n > MAX_LIST:
        raise Refused(f"a list of more than {MAX_LIST}")
    return [value] * max(0, n)


@_function("axis", 2, 2, "An axis (or a list of them) counted from the front.", "axis(dim, x)")
def _axis(d: Any, x: Any) -> Any:
    if isinstance(d, (list, tuple)):
        return [_axis(v, x) for v in d]
    rank = (
        integer(x)
        if isinstance(x, int)
        else (len(x) if isinstance(x, (list, tuple)) else tensor(x).rank)
    )
    found = integer(d, "the axis")
    # PyTorch lets axis 0 and -1 name the only element of a rank-0 tensor.
    if not -max(1, rank) <= found < max(1, rank):
        raise Refused(f"axis {found} is outside a rank-{rank} tensor")
    return found + max(1, rank) if found < 0 else found


@_function(
    "axes",
    2,
    2,
    "The axes that a reduction runs over, counted from the front: all when none are named.",
    "axes(dims, x)",
)
def _axes_of(dims: Any, x: Any) -> list[int]:
    rank = tensor(x).rank
    named = [dims] if isinstance(dims, int) else [] if dims is None else sequence(dims)
    found = [integer(_axis(d, rank)) for d in named]
    if rank == 0:
        return []
    if not _distinct(found):
        raise Refused(f"an axis stands twice in {describe(named)}")
    return found or list(range(rank))


@_function(
    "pooled",
    6,
    6,
    "The sizes that windows give: of input sizes, kernel, stride, padding, dilation, ceil_mode.",
    "pooled(S, kernel, stride, padding, dilation, false)",
)
def _pooled(
    sizes: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any
) -> list[Any]:
    lists = [sequence(v) for v in (sizes, kernel, stride, padding, dilation)]
    if len({len(items) for items in lists}) > 1:
        raise Refused(f"lists of {', '.join(str(len(items)) for items in lists)} items")
    if any(integer(s) < 1 for s in lists[2]):
        raise Refused("the stride must be positive")
    out = []
    for n, k, s, p, d in zip(*lists, strict=True):
        room = arith("-", arith("+", n, 2 * integer(p)), integer(d) * (integer(k) - 1) + 1)
        if not truth(ceil_mode):
            out.append(arith("+", arith("//", room, integer(s)), 1))
            continue
        # The last window must start inside the input or the padding before it.
        most = arith("+", _ceildiv(room, s), 1)
        out.append(extremum("min", [most, _ceildiv(arith("+", n, integer(p)), s)]))
    return out


@_function(
    "expanded",
    2,
    2,
    "A list stretched to n: a single value is repeated.",
    "expanded(stride, 2)",
)
def _expanded(items: Any, count: Any) -> list[Any]:
    values = sequence(items) if isinstance(items, (list, tuple)) else [items]
    n = integer(count)
    if len(values) == 1:
        return values * n
    if len(values) != n:
        raise Refused(f"a list of {len(values)} where {n} are needed")
    return values


@_function(
    "bound",
    2,
    2,
    "A slice's bound as PyTorch reads it: counted from the end when negative, then put in 0..n.",
    "bound(start, dim(x, d))",
)
def _bound(value: Any, size: Any) -> Any:
    if isinstance(value, Dyn):
        # 1 where the value is negative, else 0: run-time dims know no condition.
        negative = _max(_min(arith("-", 0, value), 1), 0)
        value = arith("+", value, arith("*", size, negative))
        return _min(_max(value, 0), size)
    found = integer(value)
    if isinstance(size, int):
        return min(max(found + size if found < 0 else found, 0), size)
    if found < 0:
        return _max(arith("+", size, found), 0)
    return 0 if found == 0 else size if found >= 1 << 62 else _min(size, found)


@_function("positions", 2, 2, "Where a value stands in a list.", "positions(shape(x), 1)")
def _positions(items: Any, value: Any) -> list[int]:
    return [i for i, v in enumerate(sequence(items)) if not isinstance(v, Dyn) and equal(v, value)]


@_function(
    "expanded_shape",
    2,
    2,
    "The shape that x is stretched to by sizes, in which -1 keeps x's dim.",
    "expanded_shape(x, sizes)",
)
def _expanded_shape(x: Any, sizes: Any) -> list[Any]:
    dims, wanted = list(tensor(x).dims or ()), sequence(sizes)
    if len(wanted) < len(dims):
        raise Refused(f"{len(wanted)} sizes for a tensor of rank {len(dims)}")
    out = [*wanted[: len(wanted) - len(dims)]]
    for have, want in zip(dims, wanted[len(out) :], strict=True):
        out.append(have if want == -1 or have != 1 else want)
    return out


@_function(
    "take",
    2,
    2,
    "The first n of a list (negative n: all but the last -n).",
    "take(dims, 2)",
)
def _take(items: Any, count: Any) -> list[Any]:
    return sequence(items)[: integer(count)]


@_function("last", 2, 2, "The last n of a list.", "last(shape(x), 2)")
def _last(items: Any, count: Any) -> list[Any]:
    n = integer(count)
    return sequence(items)[len(sequence(items)) - n :] if n > 0 else []


@_function("skip", 2, 2, "A list without its first n.", "skip(dims, 2)")
def _skip(items: Any, count: Any) -> list[Any]:
    return sequence(items)[integer(count) :]


@_function("slice", 3, 3, "Items a up to, not including, b of a list.", "slice(shape(x), 1, 3)")
def _slice(items: Any, a: Any, b: Any) -> list[Any]:
    return sequence(items)[integer(a) : integer(b)]


@_function("reversed", 1, 1, "A list back to front.", "reversed(pads)")
def _reversed(items: Any) -> list[Any]:
    return sequence(items)[::-1]


@_function("every", 3, 3, "Items a, a+n, a+2n ... of a list.", "every(pads, 0, 2)")
def _every(items: Any, first: Any, step: Any) -> list[Any]:
    if integer(step) < 1:
        raise Refused("the step must be positive")
    return sequence(items)[integer(first) :: integer(step)]


@_function("interleave", 2, 2, "The items of two lists in turn.", "interleave(shape(x), steps)")
def _interleave(a: Any, b: Any) -> list[Any]:
    first, second = sequence(a), sequence(b)
    if len(first) != len(second):
        raise Refused(f"lists of {len(first)} and {len(second)} items")
    return [v for pair in zip(first, second, strict=True) for v in pair]


@_function("inverse", 1, 1, "The inverse of a permutation.", "inverse(dims)")
def _inverse(items: Any) -> list[int]:
    perm = [integer(v) for v in sequence(items)]
    if sorted(perm) != list(range(len(perm))):
        raise Refused(f"{perm} is not a permutation")
    return [perm.index(i) for i in range(len(perm))]


@_function("distinct", 1, 1, "No two items of a list are equal.", "distinct(dims)")
def _distinct(items: Any) -> bool:
    values = sequence(items)
    return all(values[i] not in values[:i] for i in range(len(values)))


@_function("is_permutation", 1, 1, "The list holds 0 .. n-1 once each.", "is_permutation(dims)")
def _is_permutation(items: Any) -> bool:
    return sorted(integer(v) for v in sequence(items)) == list(range(len(sequence(items))))


@_function("all_equal", 2, 2, "Every item of a list equals the value.", "all_equal(dilation, 1)")
def _all_equal(items: Any, value: Any) -> bool:
    return all(equal(v, value) for v in sequence(items))


@_function("at_least", 2, 2, "Every item of a list is at least the value.", "at_least(pads, 0)")
def _at_least(items: Any, value: Any) -> bool:
    return all(number(v) >= number(value) for v in sequence(items))


# ---- lists of indices (and any other list) ---------------------------------------------------


def _axes(items: list[Any], where: Any) -> list[int]:
    values = where if isinstance(where, (list, tuple)) else [where]
    out = []
    for v in values:
        a = integer(v, "the axis")
        if not -len(items) <= a < len(items):
            raise Refused(f"axis {a} is outside a list of {len(items)}")
        out.append(a % len(items))
    return out


def _get(items: Any, where: Any, what: str = "the index") -> Any:
    values = sequence(items)
    if not values and isinstance(where, int):
        raise Refused(f"{what} {where} is outside an empty list")
    return values[_axes(values, where)[0]]


@_function("set", 3, 3, "A list with the item (or items) at an axis replaced.", "x[set(I, d, 0)]")
def _set(items: Any, where: Any, value: Any) -> list[Any]:
    out = sequence(items)
    axes = _axes(out, where)
    many = isinstance(value, (list, tuple))
    if many and len(value) != len(axes):
        raise Refused(f"{len(value)} values for {len(axes)} axes")
    for n, a in enumerate(axes):
        out[a] = value[n] if many else value
    return out


@_function("insert", 3, 3, "A list with an item put in before an axis.", "x[insert(I, d, k)]")
def _insert(items: Any, where: Any, value: Any) -> list[Any]:
    out = sequence(items)
    a = integer(where, "the axis")
    if a < 0:
        a += len(out) + 1
    if not 0 <= a <= len(out):
        raise Refused(f"axis {a} is outside a list of {len(out) + 1}")
    return [*out[:a], value, *out[a:]]


@_function("drop", 2, 2, "A list without the items at some axes.", "y[drop(I, dims)]")
def _drop(items: Any, where: Any) -> list[Any]:
    values = sequence(items)
    gone = set(_axes(values, where))
    return [v for i, v in enumerate(values) if i not in gone]


@_function(
    "restore",
    3,
    3,
    "The inverse of drop: a value put in to stand at some axes.",
    "reshape(x, restore(shape(x), dims, 1))",
)
def _restore(items: Any, where: Any, value: Any) -> list[Any]:
    values = sequence(items)
    places = where if isinstance(where, (list, tuple)) else [where]
    at = set(_axes([*values, *places], places))
    if len(at) != len(places):
        raise Refused("an axis stands twice")
    rest = iter(values)
    return [value if i in at else next(rest) for i in range(len(values) + len(places))]


@_function("permute", 2, 2, "Item p[i] of a list at place i.", "y[permute(I, dims)]")
def _permute(items: Any, perm: Any) -> list[Any]:
    values = sequence(items)
    return [values[i] for i in _axes(values, perm)]


@_function("swap", 3, 3, "A list with two items exchanged.", "y[swap(I, 0, 1)]")
def _swap(items: Any, a: Any, b: Any) -> list[Any]:
    out = sequence(items)
    i, j = _axes(out, [a, b])
    out[i], out[j] = out[j], out[i]
    return out


@_function(
    "reduced",
    3,
    3,
    "The indices of a reduction's result: axes dropped, or 0 there when they are kept.",
    "y[reduced(I, dims, keepdim)] += x[I...]",
)
def _reduced(items: Any, where: Any, keep: Any) -> list[Any]:
    return _set(items, where, 0) if truth(keep) else _drop(items, where)


@_function(
    "aligned",
    2,
    2,
    "The indices of a tensor that is broadcast: the last of a list, 0 where its dim is 1.",
    "v[aligned(I, v)]",
)
def aligned(items: Any, x: Any) -> list[Any]:
    """The last items of a list, one for each dim of ``x``, with 0 for dims of size 1."""
    source = getattr(x, "tensor", x)
    values, dims = sequence(items), list(tensor(source).dims or ())
    if len(values) < len(dims):
        raise Refused(f"{len(values)} indices for a tensor of rank {len(dims)}")
    return [
        0 if d == 1 else v for v, d in zip(values[len(values) - len(dims) :], dims, strict=True)
    ]


def advanced(indices: Sequence[Any], rank: int) -> tuple[int, int]:
    """Where the dims of the index tensors stand in the result of x[indices], and how many.

    They replace the indexed dims when those are neighbours, and come first otherwise.
    """
    if len(indices) > rank:
        raise Refused(f"{len(indices)} indices for a tensor of rank {rank}")
    places = [i for i, v in enumerate(indices) if v is not None]
    if not places:
        return 0, 0
    for v in indices:
        if v is not None and not dtype(v).is_int:
            raise Refused(f"an index of type {tensor(v).dtype}: masks select unknown many")
    together = places[-1] - places[0] + 1 == len(places)
    return places[0] if together else 0, max(tensor(indices[i]).rank for i in places)


@_function("indexed_shape", 2, 2, "The shape of PyTorch's x[indices].", "indexed_shape(indices, x)")
def _indexed_shape(indices: Any, x: Any) -> list[Any]:
    items, dims = sequence(indices), list(tensor(x).dims or ())
    at, rank = advanced(items, len(dims))
    own: list[Any] = [1] * rank
    for v in items:
        if v is not None:
            for i, d in enumerate(reversed(list(tensor(v).dims or ()))):
                if d != 1 and (own[-1 - i] == 1 or isinstance(d, int)):
                    own[-1 - i] = d
    rest = [d for i, d in enumerate(dims) if i >= len(items) or items[i] is None]
    return [*rest[:at], *own, *rest[at:]]


# ---- operators -------------------------------------------------------------------------------


def truth(value: Any) -> bool:
    """``value`` as a truth value known now; raises :class:`Refused` when it is not."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (Scalar, Dyn)):
        raise Refused(f"{value.name if isinstance(value, Scalar) else value} is not constant")
    raise Refused(f"{describe(value)} is not true or false")


def equal(a: Any, b: Any) -> bool:
    """Equality of two values as far as it is known now; raises :class:`Refused` when unknown."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (Dyn, Scalar)) or isinstance(b, (Dyn, Scalar)):
        if a == b:
            return True
        if a is None or b is None:
            return False
        raise Refused(f"{describe(a)} and {describe(b)} cannot be compared before run time")
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    return bool(a == b)


def arith(op: str, a: Any, b: Any) -> Any:
    """``a op b`` on numbers and dims; run-time numbers give a :class:`Dyn`."""
    if isinstance(a, bool):
        a = int(a)
    if isinstance(b, bool):
        b = int(b)
    for v in (a, b):
        if not isinstance(v, (int, float, Dyn)):
            raise Refused(f"{describe(v)} is not a number")
    if isinstance(a, Dyn) or isinstance(b, Dyn):
        if isinstance(a, float) or isinstance(b, float):
            raise Refused("a run-time dim cannot be combined with a fraction")
        if op == "/":
            raise Refused("run-time dims are divided with //")
        if op in "+-" and b == 0:
            return a
        if op == "+" and a == 0:
            return b
        if op in ("*", "//") and b == 1:
            return a
        if op == "*" and a == 1:
            return b
        if op == "*" and (a == 0 or b == 0):
            return 0
        if op == "-" and a == b:
            return 0
        # (d + 2) - 2: keep chains short so that equal dims stay equal.
        if (
            op in "+-"
            and isinstance(b, int)
            and isinstance(a, Dyn)
            and a.op == "+"
            and isinstance(a.args[1], int)
        ):
            rest = a.args[1] + b if op == "+" else a.args[1] - b
            return a.args[0] if rest == 0 else Dyn("+", (a.args[0], rest))
        if op == "-" and isinstance(b, int):
            return Dyn("+", (a, -b))
        return Dyn(op, (a, b))
    if op == "+":
        return a + b
    if op == "-":
        return a - b
    if op == "*":
        out = a * b
        if isinstance(out, int) and abs(out) > 1 << 128:
            raise Refused("the number is too large")
        return out
    if b == 0:
        raise Refused("division by zero")
    if op == "/":
        return a / b
    if op == "//":
        return a // b
    if op == "%":
        return a % b
    raise Refused(f"unknown operator {op}")


def compare(op: str, a: Any, b: Any) -> bool:
    """An ordering of numbers known now."""
    x, y = number(a), number(b)
    return {"<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y}[op]


class Evaluator:
    """Walks an expression over an environment of names. See the module's docstring."""

    def __init__(
        self,
        names: Mapping[str, Any],
        structural: Callable[[str, list[str]], bool] | None = None,
    ) -> None:
        self.names: Mapping[str, Any] = names
        # Answers the functions that ask about the IR around the match (one_use).
        self.structural = structural

    def eval(self, node: ast.Expr) -> Any:
        """The value of ``node``. Raises :class:`Refused` with the node that has none."""
        try:
            return self._eval(node)
        except Refused as refused:
            if refused.node is None:
                refused.node = node
            raise

    def _eval(self, node: ast.Expr) -> Any:
        match node:
            case ast.Literal(value=value):
                return value
            case ast.Name():
                return self.name(node)
            case ast.ListExpr(items=items):
                return self.items(items)
            case ast.Call():
                return self.call(node)
            case ast.Access(base=base, items=items):
                return self.access(node, self.eval(base), items)
            case ast.Unary(op=op, operand=operand):
                return self.unary(op, self.eval(operand))
            case ast.Binary(op=op, left=left, right=right):
                if op in ("and", "or"):
                    return self.logical(op, left, right)
                return self.binary(op, self.eval(left), self.eval(right))
            case ast.Conditional(condition=c, then=a, otherwise=b):
                return self.conditional(self.eval(c), a, b)
            case ast.Pack():
                raise Refused("a pack (I...) can stand only in a list or in indices", node)
            case _:
                raise Refused("'_' has no value", node)

    def name(self, node: ast.Name) -> Any:
        """The value of a name: bound, or an element type."""
        if node.id in self.names:
            return self.names[node.id]
        found = dtype_named(node.id)
        if found is not None:
            return found
        raise Refused(f"{node.id} has no value here", node)

    def items(self, items: Sequence[ast.Expr]) -> list[Any]:
        """The values of list items, with packs (``I...``) spliced in."""
        out: list[Any] = []
        for item in items:
            if isinstance(item, ast.Pack):
                out.extend(self.pack(item))
            else:
                out.append(self.eval(item))
        return out

    def pack(self, node: ast.Pack) -> list[Any]:
        """The values that a pack stands for."""
        if node.id is None:
            raise Refused("'...' has no value here", node)
        return sequence(self.name(ast.Name(node.pos, node.end, node.id)), node.id)

    def call(self, node: ast.Call) -> Any:
        """The value of a function of the closed set."""
        function = FUNCTIONS.get(node.fn)
        if function is None or function.impl is None:
            raise Refused(f"unknown function {node.fn}", node)
        if function.structural:
            if self.structural is None:
                raise Refused(f"{node.fn} cannot stand here", node)
            return self.structural(
                node.fn, [a.id for a in node.args if isinstance(a, (ast.Name, ast.Pack)) and a.id]
            )
        args = self.items(node.args)
        low, high = function.arity
        if not low <= len(args) <= high:
            raise Refused(f"{node.fn} takes {low} to {high} values, not {len(args)}", node)
        if any(isinstance(a, list) and len(a) > MAX_LIST for a in args):
            raise Refused(f"a list of more than {MAX_LIST}", node)
        return function.impl(*(self.argument_of(a) for a in args))

    def argument_of(self, value: Any) -> Any:
        """``value`` as a function of the closed set takes it."""
        return value

    def access(self, node: ast.Access, base: Any, items: Sequence[ast.Expr]) -> Any:
        """An item of a list."""
        where = self.items(items)
        if len(where) != 1:
            raise Refused("a list takes one index", node)
        return _get(base, where[0])

    def unary(self, op: str, value: Any) -> Any:
        """``not`` or ``-``, over lists item by item."""
        if op == "not":
            return not truth(value)
        if isinstance(value, (list, tuple)):
            return [self.unary(op, v) for v in value]
        return arith("-", 0, value) if isinstance(value, Dyn) else -number(value)

    def logical(self, op: str, left: ast.Expr, right: ast.Expr) -> Any:
        """``and`` and ``or``: the right side counts only where the left does not decide."""
        a = truth(self.eval(left))
        if op == "and":
            return a and truth(self.eval(right))
        return a or truth(self.eval(right))

    def conditional(self, condition: Any, then: ast.Expr, otherwise: ast.Expr) -> Any:
        """One of two expressions; the other is not evaluated."""
        return self.eval(then if truth(condition) else otherwise)

    def binary(self, op: str, a: Any, b: Any) -> Any:
        """An operator's value, over lists item by item."""
        if op in ("in", "not in"):
            found = any(equal(a, v) for v in sequence(b, "the right side of 'in'"))
            return found if op == "in" else not found
        if op == "==":
            return equal(a, b)
        if op == "!=":
            return not equal(a, b)
        if op in ("<", "<=", ">", ">="):
            return compare(op, a, b)
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            if len(a) != len(b):
                raise Refused(f"lists of {len(a)} and {len(b)} items")
            return [self.binary(op, x, y) for x, y in zip(a, b, strict=True)]
        if isinstance(a, (list, tuple)):
            return [self.binary(op, x, b) for x in a]
        if isinstance(b, (list, tuple)):
            return [self.binary(op, a, y) for y in b]
        return arith(op, a, b)


@_function("concat", 1, 8, "Lists joined end to end.", "concat(shape(x), [1])")
def _concat(*lists: Any) -> list[Any]:
    out: list[Any] = []
    for items in lists:
        out.extend(sequence(items))
    return out
