"""Functions of tensors, their dims, and how the IR uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlirules.language.builtins.lists import (
    ceildiv,
    distinct,
    extremum,
    item_at,
    largest,
    product,
    replaced,
    smallest,
    without,
)
from mlirules.language.builtins.registry import Table
from mlirules.language.operands import (
    Refused,
    arith,
    describe,
    dtype,
    integer,
    sequence,
    tensor,
    truth,
)
from mlirules.language.values import Dyn, Opaque, Scalar, Tensor

table = Table()


@table.function("rank", 1, 1, "The number of dims of a tensor.", "rank(x) == 3")
def _rank(x: object) -> int:
    return tensor(x).rank


@table.function("shape", 1, 1, "The dims of a tensor, as a list.", "shape(x)")
def _shape(x: object) -> list[Any]:
    return list(tensor(x).dims or ())


@table.function(
    "dim", 2, 2, "One dim of a tensor; a negative axis counts from the end.", "dim(x, -1)"
)
def _dim(x: object, axis: object) -> Any:
    return item_at(list(tensor(x).dims or ()), axis, "the axis")


@table.function("numel", 1, 1, "The number of elements of a tensor.", "numel(x)")
def _numel(x: object) -> Any:
    return product(list(tensor(x).dims or ()))


@table.function("static", 1, 1, "All dims are known at compile time.", "static(x)")
def _static(x: object) -> bool:
    if isinstance(x, Tensor):
        return x.dims is not None and all(isinstance(d, int) for d in x.dims)
    if isinstance(x, (list, tuple)):
        return all(_static(v) for v in x)
    return isinstance(x, (int, float))


@table.function("ranked", 1, 1, "The rank and element type of a tensor are known.", "ranked(x)")
def _ranked(x: object) -> bool:
    return isinstance(x, Tensor) and x.dims is not None and x.dtype is not None


@table.function(
    "constant", 1, 1, "A scalar (or a list of them) known at compile time.", "constant(dim)"
)
def _constant(x: object) -> bool:
    if isinstance(x, (list, tuple)):
        return all(_constant(v) for v in x)
    return not isinstance(x, (Dyn, Scalar, Tensor, Opaque))


@table.function(
    "fixed", 1, 1, "A tensor that the program knows, no call brings it (in kernels).", "fixed(w)"
)
def _fixed(x: object) -> bool:
    if not isinstance(x, Tensor):
        raise Refused(f"{describe(x)} is no tensor")
    return x.fixed


@table.function(
    "embedded",
    1,
    1,
    "A tensor whose numbers stand in the program: fixed, and no mapped parameter (in kernels).",
    "embedded(w)",
)
def _embedded(x: object) -> bool:
    if not isinstance(x, Tensor):
        raise Refused(f"{describe(x)} is no tensor")
    return x.embedded


@table.function("present", 1, 1, "An optional operand is there (is not none).", "present(bias)")
def _present(x: object) -> bool:
    return x is not None


@table.function("is_tensor", 1, 1, "The value is a tensor.", "is_tensor(x)")
def _is_tensor(x: object) -> bool:
    return isinstance(x, Tensor)


@table.function("one_use", 1, 1, "The value has exactly one use.", "one_use(x)", structural=True)
def _one_use(_x: object) -> bool:
    raise Refused("one_use needs the IR around the match")


@table.function(
    "inside", 1, 1, "Only ops of the match use the value.", "inside(scores)", structural=True
)
def _inside(_x: object) -> bool:
    raise Refused("inside needs the IR around the match")


@table.function("unused", 1, 1, "Nothing uses the value.", "unused(indices)", structural=True)
def _unused(_x: object) -> bool:
    raise Refused("unused needs the IR around the match")


@table.function(
    "broadcasts",
    2,
    8,
    "The shapes broadcast together as in PyTorch, as far as known.",
    "broadcasts(x, y)",
)
def _broadcasts(*tensors: object) -> bool:
    shapes = [list(reversed(tensor(t).dims or ())) for t in tensors]
    for i in range(max(len(s) for s in shapes)):
        sizes = {s[i] for s in shapes if i < len(s) and isinstance(s[i], int) and s[i] != 1}
        if len(sizes) > 1:
            return False
    return True


@table.function(
    "broadcast_shape",
    2,
    8,
    "The shape that tensors are broadcast to together, as in PyTorch.",
    "broadcast_shape(bias, mask)",
)
def _broadcast_shape(*tensors: object) -> list[Any]:
    shapes = [list(reversed(tensor(t).dims or ())) for t in tensors]
    out: list[Any] = []
    for i in range(max(len(s) for s in shapes)):
        # A size known only at run time may be 1 then, which what is known decides.
        sizes = list(dict.fromkeys(s[i] for s in shapes if i < len(s) and s[i] != 1))
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) > 1 or (not known and len(sizes) > 1):
            raise Refused(f"{' and '.join(map(describe, tensors))} have no shape in common")
        out.append((known or sizes or [1])[0])
    return out[::-1]


@table.function("divisible", 2, 2, "The first is a multiple of the second.", "divisible(K, 16)")
def _divisible(a: object, b: object) -> bool:
    divisor = integer(b, "the divisor")
    if divisor == 0:
        raise Refused("division by zero")
    return integer(a) % divisor == 0


@table.function("axis", 2, 2, "An axis (or a list of them) counted from the front.", "axis(dim, x)")
def _axis(d: object, x: object) -> Any:
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


@table.function(
    "axes",
    2,
    2,
    "The axes that a reduction runs over, counted from the front: all when none are named.",
    "axes(dims, x)",
)
def _axes_of(dims: object, x: object) -> list[int]:
    rank = tensor(x).rank
    named = [dims] if isinstance(dims, int) else [] if dims is None else sequence(dims)
    found = [integer(_axis(d, rank)) for d in named]
    if rank == 0:
        return []
    if not distinct(found):
        raise Refused(f"an axis stands twice in {describe(named)}")
    return found or list(range(rank))


@table.function(
    "pooled",
    6,
    6,
    "The sizes that windows give: of input sizes, kernel, stride, padding, dilation, ceil_mode.",
    "pooled(S, kernel, stride, padding, dilation, false)",
)
def _pooled(
    sizes: object,
    kernel: object,
    stride: object,
    padding: object,
    dilation: object,
    ceil_mode: object,
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
        most = arith("+", ceildiv(room, s), 1)
        out.append(extremum("min", [most, ceildiv(arith("+", n, integer(p)), s)]))
    return out


@table.function(
    "bound",
    2,
    2,
    "A slice's bound as PyTorch reads it: counted from the end when negative, then put in 0..n.",
    "bound(start, dim(x, d))",
)
def _bound(value: object, size: object) -> Any:
    if isinstance(value, Dyn):
        # 1 where the value is negative, else 0: run-time dims know no condition.
        negative = largest(smallest(arith("-", 0, value), 1), 0)
        value = arith("+", value, arith("*", size, negative))
        return smallest(largest(value, 0), size)
    found = integer(value)
    if isinstance(size, int):
        return min(max(found + size if found < 0 else found, 0), size)
    if found < 0:
        return largest(arith("+", size, found), 0)
    return 0 if found == 0 else size if found >= 1 << 62 else smallest(size, found)


@table.function(
    "expanded_shape",
    2,
    2,
    "The shape that x is stretched to by sizes, in which -1 keeps x's dim.",
    "expanded_shape(x, sizes)",
)
def _expanded_shape(x: object, sizes: object) -> list[Any]:
    dims, wanted = list(tensor(x).dims or ()), sequence(sizes)
    if len(wanted) < len(dims):
        raise Refused(f"{len(wanted)} sizes for a tensor of rank {len(dims)}")
    out = [*wanted[: len(wanted) - len(dims)]]
    for have, want in zip(dims, wanted[len(out) :], strict=True):
        out.append(have if want == -1 or have != 1 else want)
    return out


@table.function(
    "reduced",
    3,
    3,
    "The indices of a reduction's result: axes dropped, or 0 there when they are kept.",
    "y[reduced(I, dims, keepdim)] += x[I...]",
)
def _reduced(items: object, where: object, keep: object) -> list[Any]:
    return replaced(items, where, 0) if truth(keep) else without(items, where)


@table.function(
    "aligned",
    2,
    2,
    "The indices of a tensor that is broadcast: the last of a list, 0 where its dim is 1.",
    "v[aligned(I, v)]",
)
def aligned(items: object, x: object) -> list[Any]:
    """The last items of a list, one for each dim of ``x``, with 0 for dims of size 1."""
    source = getattr(x, "tensor", x)
    values, dims = sequence(items), list(tensor(source).dims or ())
    if len(values) < len(dims):
        raise Refused(f"{len(values)} indices for a tensor of rank {len(dims)}")
    return [
        0 if d == 1 else v for v, d in zip(values[len(values) - len(dims) :], dims, strict=True)
    ]


def advanced(indices: Sequence[object], rank: int) -> tuple[int, int]:
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


@table.function(
    "indexed_shape", 2, 2, "The shape of PyTorch's x[indices].", "indexed_shape(indices, x)"
)
def _indexed_shape(indices: object, x: object) -> list[Any]:
    items, dims = sequence(indices), list(tensor(x).dims or ())
    at, rank = advanced(items, len(dims))
    own: list[object] = [1] * rank
    for v in items:
        if v is not None:
            for i, d in enumerate(reversed(list(tensor(v).dims or ()))):
                if d != 1 and (own[-1 - i] == 1 or isinstance(d, int)):
                    own[-1 - i] = d
    rest = [d for i, d in enumerate(dims) if i >= len(items) or items[i] is None]
    return [*rest[:at], *own, *rest[at:]]
