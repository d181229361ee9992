"""Ops of which no more is known than how they move: slices, and functions of single elements.

``slice.Tensor(x, d, start, end, step)`` reads, at each index along ``d``, some index of ``x`` below
its size; how many it reads and which depends on that size and on ``start``, ``end`` and ``step``
alone. What is equal for any such map is equal for slices. In the same way an op that PyTorch
computes element by element is some function of its operands' elements, broadcast, of their types,
that of its result, and of operands that are no tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlirules.drivers.prove.arrays import array
from mlirules.drivers.prove.conditions import at_least_zero
from mlirules.drivers.prove.equations import Equation
from mlirules.drivers.prove.expr import Int, Node, Undecided, atom, dim, whole
from mlirules.drivers.prove.names import POINTWISE
from mlirules.drivers.prove.scalars import BOOL, E, type_key
from mlirules.drivers.prove.symbols import Symbols
from mlirules.drivers.prove.tensors import Array, Unknown
from mlirules.drivers.prove.world import Impossible, World
from mlirules.language.notation import ast
from mlirules.language.notation.parser import parse_statement
from mlirules.language.operands import Refused
from mlirules.language.values import DType

#: The op that reads part of an axis.
SLICE = "torch.aten.slice.Tensor"

#: An operand by what it holds.
Named = Callable[[World, Any], Any]


def sliced(world: World, args: Sequence[object], named: Named, *, assume: bool) -> Array:
    """The result of a slice of these operands. ``assume``: of a program that PyTorch accepts."""
    x, axis, *bounds = args
    x = _settled(x)
    if isinstance(axis, Unknown) and axis.name != "_":
        # A program gives a number here, whatever the rule says of it.
        axis = world.chosen.setdefault(f"operand {axis.name}", whole(axis.name))
    if not isinstance(x, Array) or isinstance(axis, Unknown) or len(bounds) != 3:
        raise Undecided("a slice of what is no tensor")
    if not x.rank:
        if assume:
            raise Impossible("PyTorch slices no tensor without axes")
        raise Undecided("a slice of a tensor without axes")
    symbols = Symbols(world, {})
    try:
        at = symbols.concrete(symbols.do_axis(axis, x), 0, x.rank)
    except Refused as refused:
        if assume:
            raise Impossible("PyTorch refuses an axis that there is not") from None
        raise Undecided(str(refused)) from None
    size = world.canonical(x.shape[at])
    said = Node("bounds", *(named(world, b) for b in bounds))
    for other, held, of in world.slices:
        # Equal sizes under two names: one map.
        if held == said and world.same(size, of):
            key, size = other, of
            break
    else:
        key = Node("slice", size, said)
        world.slices.append((key, said, size))
        # No index is read twice.
        world.assume(at_least_zero(size - dim(f"slice {key.key}")), check=False)
    shape = x.shape
    shape[at] = dim(f"slice {key.key}")

    def elem(index: Sequence[Int]) -> E:
        inner = list(index)
        # An axis of one element has but that one.
        inner[at] = 0 if world.same(size, 1) else atom(Node("pick", key, size, inner[at]))
        return x.elem(inner)

    assert x.dtype is not None
    return array(x.name, shape, x.dtype, elem)


def pointwise(
    world: World, op: str, args: Sequence[object], t: DType, named: Named, *, assume: bool
) -> Array:
    """The result, of type ``t``, of an op that is a function of its operands' elements."""
    count = POINTWISE[op]
    tensors = [_settled(a) for a in args[:count]]
    if len(tensors) < count or not all(isinstance(x, Array) for x in tensors):
        raise Undecided(f"{op} of what is no tensor")
    rest = [named(world, a) for a in args[count:]]
    names = [f"x{n}" for n in range(count)]
    # Truth values are only told apart, never computed with: they carry the operands' elements.
    carried = {n: _carrying(n, x) for n, x in zip(names, tensors, strict=True)}
    text = "y[...] = " + " and ".join(f"{n}[...]" for n in names)
    equation = parse_statement(text)
    assert isinstance(equation, ast.IndexEquation)
    made = Equation(world, equation, dict(carried), (None, BOOL), assume=assume).made()

    def elem(index: Sequence[Int]) -> E:
        found = made.elem(index)
        parts = (found,) if count == 1 else found.args
        types = [type_key(x.dtype) for x in tensors if x.dtype is not None]
        key = Node("pointwise", op, type_key(t), *types, *rest)
        return E("applied", (key, 0, tuple(p.args[0] for p in parts)), t)

    return array(op, made.shape, t, elem)


def _carrying(name: str, x: Array) -> Array:
    def elem(index: Sequence[Int]) -> E:
        return E("carried", (x.elem(index),), BOOL)

    return array(name, x.shape, BOOL, elem)


def _settled(value: object) -> Any:
    return value.settle() if isinstance(value, Unknown) and value.settle is not None else value
