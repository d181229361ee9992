"""Reductions read in another order than they are made in: IREE 3.13 for Vulkan gets them wrong.

What reads a reduction along more loops (the quotient of a softmax, a normalised image) is compiled
into one dispatch with it. The code generator gives both the tiles and threads of the reduction's
loops, by their numbers. Where the reader's outermost loops are others (the reduction is along any
dim but the last ones, or the result is transposed), threads read sums that other threads have not
made yet. There the reduction is put behind a barrier: it becomes a dispatch of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from mlirules.drivers.apply.barriers import guard, positions
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import open_ops

__all__ = ["guard_reductions", "reshaped"]

#: For a value that may share a dispatch with reductions: in which of its dims, by the order of
#: the loops that made it, the result of each is found. None: in dims that are not known.
_Places: TypeAlias = tuple[int, ...] | None
_Held: TypeAlias = dict[ir.Value, frozenset[_Places]]

#: More kinds of reductions than this in one value are taken as one that is not known.
_MOST = 16


def guard_reductions(module: ir.Module) -> int:
    """Put reductions behind barriers where what reads them goes by other loops than they do.

    Returns how many operands. One pass over the ops. The program is best past IREE's global
    optimisation, which moves transposes.
    """
    held: _Held = {}
    found: list[tuple[ir.Operation, int]] = []
    for op in open_ops(module):
        if op.name.startswith("linalg."):
            found += _structured(op, held)
        elif op.name in ("tensor.expand_shape", "tensor.collapse_shape"):
            known = held.get(op.operands[0])
            if known is not None:
                held[op.results[0]] = frozenset(reshaped(op, places) for places in known)
        elif op.name == "tensor.cast" and op.operands[0] in held:
            held[op.results[0]] = held[op.operands[0]]
    for op, number in found:
        guard(op, number)
    return len(found)


def _structured(op: ir.Operation, held: _Held) -> list[tuple[ir.Operation, int]]:
    """What of an op's operands is to be guarded; notes what its results hold."""
    maps = compiler.indexing_maps(op)
    if not maps or len(maps) != len(op.operands) or not len(op.results):
        return []
    loops = maps[0].n_dims
    inputs = len(maps) - len(op.results)
    made = positions(maps[inputs])
    if made is None or sorted(made) != list(range(loops)):  # a reduction
        for result in op.results:
            rank = result.type.rank if isinstance(result.type, ir.RankedTensorType) else 0
            held[result] = frozenset([tuple(range(rank))])
        return []
    guarded: list[tuple[ir.Operation, int]] = []
    own: set[_Places] = set()
    for number in range(inputs):
        known = held.get(op.operands[number])
        if known is None:
            continue
        read = [_loops(places, positions(maps[number])) for places in known]
        if all(along is not None and _fits(along, loops) for along in read):
            own.update(tuple(map(made.index, along)) for along in read if along is not None)
        else:
            guarded.append((op, number))
    if own:
        kept: frozenset[_Places] = frozenset(own if len(own) <= _MOST else [None])
        for result in op.results:
            held[result] = kept
    return guarded


def _loops(places: _Places, dims: Sequence[int] | None) -> tuple[int, ...] | None:
    """The reader's loops that go along a reduction's; None where that is not known."""
    if places is None or dims is None:
        return None
    return tuple(dims[place] for place in places)


def _fits(along: tuple[int, ...], loops: int) -> bool:
    """Whether a reader with so many loops may share a reduction's tiles.

    One that has no further loops is compiled in the reduction's order.
    """
    return len(along) == loops or along == tuple(range(len(along)))


def reshaped(op: ir.Operation, places: _Places) -> _Places:
    """Where a reduction is found after a reshape, each of whose groups becomes, or was, one dim."""
    if places is None:
        return None
    groups = [
        [ir.IntegerAttr(dim).value for dim in ir.ArrayAttr(group)]
        for group in ir.ArrayAttr(op.attributes["reassociation"])
    ]
    if not groups:
        return ()  # a single number, on either side: its dims are of size one
    if op.name == "tensor.expand_shape":
        return tuple(dim for place in places for dim in groups[place])
    out: list[int] = []
    rest = list(places)
    while rest:
        number = next(n for n, group in enumerate(groups) if rest[0] in group)
        group = groups[number]
        if rest[: len(group)] != group:
            return None  # a dim of which the reduction is a part
        out.append(number)
        del rest[: len(group)]
    return tuple(out)
