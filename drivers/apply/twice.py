"""Reductions that one op reads along different loops: IREE 3.13 for cpu gets them wrong.

`softmax(x) + softmax(x).transpose(-1, -2)`, `y[:, None] - y[:, :, None]` of what is summed: the
compiler makes one dispatch of the reductions and of what reads them, which computes a tile of them
for a tile of the reader. Where the reader needs two different tiles of one reduction, one of them
is read before it is made. There the operands are put behind barriers, and the reductions become a
dispatch of their own.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from typing import TypeAlias

from mlirules.drivers.apply.barriers import guard
from mlirules.drivers.apply.rereading import reshaped
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import open_ops

__all__ = ["guard_twice_read"]

#: A reduction by its number, and in which dims of a value those of its result are found, in order;
#: None: in dims that are not known.
_Place: TypeAlias = tuple[int, tuple[int, ...] | None]
#: The reductions that a value may share a dispatch with.
_Held: TypeAlias = dict[ir.Value, frozenset[_Place]]

#: The newest reductions of a value that are looked at: no dispatch holds more.
_MOST = 16
#: Ops that give the numbers that they read, of the same rank in the same dims.
_SAME = frozenset(["tensor.cast", "tensor.extract_slice", "tensor.pad"])


def guard_twice_read(module: ir.Module) -> int:
    """Put reductions behind barriers where one op reads one of them along different loops.

    Returns how many operands. One pass over the ops.
    """
    held: _Held = {}
    numbers = count()
    found: list[tuple[ir.Operation, int]] = []
    for op in open_ops(module):
        if op.name.startswith("linalg."):
            found += _structured(op, held, numbers)
        elif op.name in ("tensor.expand_shape", "tensor.collapse_shape"):
            if (known := held.get(op.operands[0])) is not None:
                held[op.results[0]] = frozenset((r, reshaped(op, at)) for r, at in known)
        elif op.name in _SAME and (known := held.get(op.operands[0])) is not None:
            of, made = (ir.ShapedType(v.type).rank for v in (op.operands[0], op.results[0]))
            held[op.results[0]] = known if of == made else frozenset((r, None) for r, _ in known)
    for op, number in found:
        guard(op, number)
    return len(found)


def _structured(
    op: ir.Operation, held: _Held, numbers: count[int]
) -> list[tuple[ir.Operation, int]]:
    """What of an op's operands is to be guarded; notes what its results hold."""
    maps = compiler.indexing_maps(op)
    if not maps or len(maps) != len(op.operands) or not len(op.results):
        return []
    inputs = len(maps) - len(op.results)
    loops = [[_loop(e) for e in map_.results] for map_ in maps]
    # Along which loops each reduction is read, and by which operands; None: what is not known.
    read: dict[int, dict[tuple[int, ...] | None, list[int]]] = defaultdict(dict)
    for number in range(inputs):
        for reduction, places in held.get(op.operands[number], ()):
            along = None
            if places is not None:
                at = (loops[number][place] for place in places)
                along = tuple(loop for loop in at if loop is not None)
            read[reduction].setdefault(along, []).append(number)
    guarded = sorted(
        {
            number
            for ways in read.values()
            if len(ways) > 1 or len({_read(op, maps, n) for n in ways.get(None, ())}) > 1
            for way in ways.values()
            for number in way
        }
    )
    made = loops[inputs]
    if sorted(loop for loop in made if loop is not None) != list(range(maps[0].n_dims)):
        for result in op.results:
            if isinstance(result.type, ir.RankedTensorType):
                held[result] = frozenset([(next(numbers), tuple(range(result.type.rank)))])
    else:
        own = {
            (r, None if along is None else tuple(made.index(loop) for loop in along))
            for r, ways in read.items()
            for along, by in ways.items()
            if not set(by) <= set(guarded)
        }
        newest = sorted({r for r, _ in own}, reverse=True)[:_MOST]
        kept = frozenset(one for one in own if one[0] in newest)
        if kept:
            for result in op.results:
                held[result] = kept
    return [(op, number) for number in guarded]


def _read(op: ir.Operation, maps: list[ir.AffineMap], number: int) -> tuple[ir.Value, str]:
    return op.operands[number], str(maps[number])


def _loop(expression: ir.AffineExpr) -> int | None:
    return expression.position if isinstance(expression, ir.AffineDimExpr) else None
