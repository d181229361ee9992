"""Tensor functions of the notation on tensors of symbolic size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlirules.drivers.prove import scalars
from mlirules.drivers.prove.conditions import all_of, at_least_zero, is_zero
from mlirules.drivers.prove.expr import Int, Node, Poly, Undecided, dim, key_of
from mlirules.drivers.prove.scalars import E
from mlirules.drivers.prove.symbols import Symbols
from mlirules.drivers.prove.tensors import Array
from mlirules.drivers.prove.world import Impossible, World
from mlirules.language.operands import Refused
from mlirules.language.values import DType


def array(
    name: str,
    shape: Sequence[Int],
    dtype: DType,
    elem: Callable[[Sequence[Int]], E],
    base: Array | None = None,
    world: World | None = None,
) -> Array:
    """A tensor of these sizes and elements."""
    if world is not None:
        elem = _remembered(world, elem)
    return Array(name, tuple(shape), dtype, elem=elem, base=base)


def _remembered(world: World, elem: Callable[[Sequence[Int]], E]) -> Callable[[Sequence[Int]], E]:
    """Each element is worked out once, as long as nothing more becomes known of sizes and types."""
    held: dict[str, E] = {}
    stage = (-1, -1)

    def once(index: Sequence[Int]) -> E:
        nonlocal stage
        if stage != world.stage():
            held.clear()
            stage = world.stage()
        key = key_of(tuple(index))
        found = held.get(key)
        if found is None:
            found = elem(index)
            if stage == world.stage():
                held[key] = found
        return found

    return once


def operand(name: str, shape: Sequence[Int], dtype: DType) -> Array:
    """A tensor that is given: its elements are what they are."""
    sizes = list(shape)

    def elem(index: Sequence[Int]) -> E:
        at = tuple(0 if s == 1 else i for i, s in zip(index, sizes, strict=True))
        return E("elem", (name, at), dtype)

    return array(name, sizes, dtype, elem)


def product(sizes: Sequence[Int]) -> Int:
    """The product of sizes."""
    out: Int = 1
    for s in sizes:
        out = out * s
    return out


def row_major(index: Sequence[Int], shape: Sequence[Int]) -> Int:
    """The place of an element in row-major order."""
    out: Int = 0
    for i, s in zip(index, shape, strict=True):
        out = out * s + i
    return out


def unravelled(world: World, at: Int, shape: Sequence[Int]) -> list[Int]:
    """The index of the element at a place in row-major order."""
    out: list[Int] = []
    rest = at
    for place in range(len(shape) - 1, -1, -1):
        size = shape[place]
        if size == 1:
            out.append(0)
            continue
        if place == 0 or all(s == 1 for s in shape[:place]):
            # What is left lies below the first size.
            out.append(rest)
            rest = 0
            continue
        high = world.idiv(rest, size)
        out.append(rest - size * high)
        rest = high
    return out[::-1]


def reshaped(symbols: Symbols, x: Array, shape: Sequence[object], *, assume: bool) -> Array:
    """The same elements in row-major order; one -1 is inferred."""
    world = symbols.world
    sizes = [symbols.whole(s, "a size") for s in shape]
    total = product(x.shape)
    # Sizes that the rule cannot name: whatever stands there, the result has some sizes.
    loose = [
        assume and any(str(n.args[0]).startswith("_") for n in s.symbols)
        if isinstance(s, Poly)
        else False
        for s in sizes
    ]
    known = _shaped_before(world, sizes, total)
    if known is not None:
        sizes = known
    elif assume and not all(
        plain or not isinstance(s, Poly) or _surely_size(s)
        for s, plain in zip(sizes, loose, strict=True)
    ):
        sizes = _shaped(world, sizes, total, loose)
    else:
        sizes = _inferred(symbols, sizes, total, loose, assume=assume)
    # A shape of a shape is one of what lies below.
    below = x.base if x.base is not None else x
    have = below.shape
    assert x.dtype is not None
    if len(have) == len(sizes) and all(world.same(a, b) for a, b in zip(have, sizes, strict=True)):
        return array(x.name, have, x.dtype, below.elem, below)
    # Dims that stay as they are at the front and the back are read as they are.
    front = 0
    while front < min(len(have), len(sizes)) and world.same(have[front], sizes[front]):
        front += 1
    back = 0
    while back < min(len(have), len(sizes)) - front and world.same(
        have[-1 - back], sizes[-1 - back]
    ):
        back += 1
    end = len(sizes) - back
    inner_have, inner_new = have[front : len(have) - back], sizes[front:end]

    def elem(index: Sequence[Int]) -> E:
        at = row_major(index[front:end], inner_new)
        middle = unravelled(world, at, inner_have)
        return below.elem([*index[:front], *middle, *index[end:]])

    return array(x.name, sizes, x.dtype, elem, below)


def _surely_size(value: Poly) -> bool:
    """Whether a number is written by sizes alone, so that it is not -1."""
    return not value.vars and all(
        c > 0 and all(n.op == "dim" for n, _ in m) for m, c in value.terms.items()
    )


def _shaped_before(world: World, sizes: list[Int], total: Int) -> list[Int] | None:
    """What these numbers said of as many elements before: the same list, the same shape."""
    for key, elements, found in world.shaped:
        if key == key_of(tuple(sizes)) and world.same(elements, total):
            return list(found)
    return None


def _shaped(world: World, sizes: list[Int], total: Int, loose: list[bool]) -> list[Int]:
    """The sizes of a program's result: each is what the list says, or it is inferred."""
    found: list[Int] = []
    for at, (s, plain) in enumerate(zip(sizes, loose, strict=True)):
        if not isinstance(s, Poly) or plain or _surely_size(s):
            if s == -1:
                s = dim(world.fresh("inferred"))
            elif isinstance(s, Poly):
                world.assume(at_least_zero(s))
            elif s < 0:
                raise Impossible("a negative size")
            found.append(s)
            continue
        size = dim(f"size {at} of {key_of(tuple(sizes))} {key_of(total)}")
        inferred, same = is_zero(s + 1), is_zero(s - size)
        if isinstance(inferred, Node) and isinstance(same, Node):
            world.assume(Node("or", inferred, same), check=False)
        found.append(size)
    if not world.same(product(found), total):
        world.assume(is_zero(product(found) - total))
    world.shaped.append((key_of(tuple(sizes)), total, found))
    return found


def _inferred(
    symbols: Symbols, given: list[Int], total: Int, loose: list[bool], *, assume: bool
) -> list[Int]:
    """The sizes that a list says; whether one of them is -1 is decided."""
    world, sizes = symbols.world, list(given)
    inferred = [i for i, s in enumerate(sizes) if not loose[i] and symbols.equal(s, -1)]
    if len(inferred) > 1:
        if assume:
            raise Impossible("more than one size is inferred")
        raise Refused("more than one size is inferred")
    if inferred:
        rest = product([s for i, s in enumerate(sizes) if i != inferred[0]])
        if world.decide(is_zero(rest)):
            if assume:
                raise Impossible("a size is inferred beside an empty one")
            raise Refused("cannot infer a dim beside an empty one")
        known = world.inferred.get(key_of((total, rest)))
        if known is not None:
            sizes[inferred[0]] = known
        elif assume:
            sizes[inferred[0]] = dim(world.fresh("inferred"))
            world.assume(is_zero(sizes[inferred[0]] * rest - total))
            world.inferred[key_of((total, rest))] = sizes[inferred[0]]
        else:
            sizes[inferred[0]] = world.idiv(total, rest)
    for s in sizes:
        if isinstance(s, Poly):
            if assume:
                world.assume(at_least_zero(s))
        elif s < 0:
            raise Refused("a negative size")
    if not world.same(product(sizes), total):
        if not assume:
            raise Undecided("a reshape whose numbers of elements are not known to be equal")
        world.assume(is_zero(product(sizes) - total))
    if assume:
        world.shaped.append((key_of(tuple(given)), total, sizes))
    return sizes


def padded(
    symbols: Symbols, x: Array, low: Sequence[object], high: Sequence[object], value: object
) -> Array:
    """Elements put before and after each dim; negative numbers take elements away."""
    have = x.shape
    if not len(low) == len(high) == len(have):
        raise Refused("as many pads as dims")
    lows = [symbols.whole(v, "a pad") for v in low]
    highs = [symbols.whole(v, "a pad") for v in high]
    shape = [s + a + b for s, a, b in zip(have, lows, highs, strict=True)]
    assert x.dtype is not None
    if (isinstance(value, E) and value.dtype is scalars.NUMBER) or not isinstance(value, E):
        fill = scalars.converted(value, x.dtype)
    else:
        fill = scalars.to_type(value, x.dtype)

    def elem(index: Sequence[Int]) -> E:
        conditions = []
        inner = []
        for i, s, a, b in zip(index, have, lows, highs, strict=True):
            inner.append(i - a)
            if a == 0 and b == 0:
                continue
            conditions.append(at_least_zero(i - a))
            conditions.append(at_least_zero(s - 1 - (i - a)))
        known = [(c, symbols.world.answer(c)) for c in conditions]
        if any(answer is False for _, answer in known):
            return fill
        inside = all_of(c for c, answer in known if answer is None)
        if inside is True:
            return x.elem(inner)
        if inside is False:
            return fill
        return scalars.selected(scalars.truth(inside), x.elem(inner), fill)

    return array(x.name, shape, x.dtype, elem)


def windowed(
    symbols: Symbols, x: Array, axis: int, start: object, size: object, step: object
) -> Array:
    """A strided window along one axis."""
    start, size, step = (symbols.whole(v, "a bound") for v in (start, size, step))
    shape = x.shape
    if not 0 <= axis < len(shape):
        raise Refused(f"axis {axis}")
    shape[axis] = size

    def elem(index: Sequence[Int]) -> E:
        at = list(index)
        at[axis] = start + step * at[axis]
        return x.elem(at)

    assert x.dtype is not None
    return array(x.name, shape, x.dtype, elem)


def concatenated(symbols: Symbols, xs: Sequence[Array], axis: int, *, assume: bool) -> Array:
    """Tensors joined on an axis."""
    world = symbols.world
    if not xs:
        raise Refused("nothing to join")
    first = xs[0]
    for x in xs[1:]:
        if x.rank != first.rank:
            raise Undecided("tensors of several ranks joined")
        if not (x.dtype is first.dtype or x.dtype == first.dtype):
            raise Undecided("tensors of several types joined")
        for i, (a, b) in enumerate(zip(first.shape, x.shape, strict=True)):
            if i != axis and not world.same(a, b):
                if not assume:
                    raise Undecided("joined tensors differ in another size")
                world.assume(is_zero(a - b))
    if not 0 <= axis < first.rank:
        raise Refused(f"axis {axis}")
    sizes = [x.shape[axis] for x in xs]
    shape = first.shape
    shape[axis] = sum(sizes[1:], sizes[0])

    def elem(index: Sequence[Int]) -> E:
        def one(n: int, offset: Int) -> E:
            at = list(index)
            at[axis] = at[axis] - offset
            if n == len(xs) - 1:
                return xs[n].elem(at)
            here = at_least_zero(sizes[n] - 1 - at[axis])
            answer = world.answer(here)
            if (
                answer is None
                and isinstance(here, Node)
                and all(str(v.args[0]).startswith("out:") for v in here.vars)
            ):
                answer = world.decide(here)
            if answer is True:
                return xs[n].elem(at)
            rest = one(n + 1, offset + sizes[n])
            if answer is False:
                return rest
            return scalars.selected(scalars.truth(here), xs[n].elem(at), rest)

        return one(0, 0)

    assert first.dtype is not None
    return array(first.name, shape, first.dtype, elem)


def cast(x: Array, t: DType) -> Array:
    """Every element converted."""
    if x.dtype is t:
        return x
    return array(
        x.name,
        x.shape,
        t,
        lambda index: scalars.converted(x.elem(index), t),
    )


def spread(symbols: Symbols, x: Array, shape: Sequence[object]) -> Array:
    """A tensor broadcast to a shape."""
    sizes = [symbols.whole(s, "a size") for s in shape]
    skip = len(sizes) - x.rank
    if skip < 0:
        raise Refused("too few sizes")
    have = x.shape

    def elem(index: Sequence[Int]) -> E:
        return x.elem([symbols.stretched(s, i) for s, i in zip(have, index[skip:], strict=True)])

    assert x.dtype is not None
    return array(x.name, sizes, x.dtype, elem)
