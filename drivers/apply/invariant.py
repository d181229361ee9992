"""Sums along a loop along which nothing varies: IREE 3.13 for cpu gets them wrong.

Its code generation folds a fill into the reduction that reads it and then counts the number once
for a vector, not once for an element (125 ones make 8). Such operands are put behind a barrier:
they are written to memory before they are summed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from mlirules.drivers.apply.barriers import guard, positions
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import open_ops, ops_below

__all__ = ["guard_sums"]

_SAME = frozenset(
    {"torch_c.to_builtin_tensor", "torch_c.from_builtin_tensor", "tensor.cast", "arith.extf"}
)

#: The dims along which a tensor may vary; a tensor that is not in it may vary along all.
_Varying: TypeAlias = dict[ir.Value, frozenset[int]]


def guard_sums(module: ir.Module) -> int:
    """Put operands that do not vary along a loop that is summed behind barriers.

    Returns how many. One pass over the ops; what it cannot tell is taken to vary.
    """
    varying: _Varying = {}
    found: list[tuple[ir.Operation, int]] = []
    for op in open_ops(module):
        if op.name in ("tensor.empty", "tensor.splat") or _splat(op) or op.name == "linalg.fill":
            varying[op.results[0]] = frozenset()
        elif op.name in _SAME:
            known = varying.get(op.operands[0])
            if known is not None:
                varying[op.results[0]] = known
        elif op.name.startswith("linalg.") and any(v in varying for v in op.operands):
            found += _structured(op, varying)
    for op, number in found:
        guard(op, number)
    return len(found)


def _splat(op: ir.Operation) -> bool:
    if op.name != "arith.constant":
        return False
    value = op.attributes["value"]
    return isinstance(value, ir.DenseElementsAttr) and value.is_splat


def _structured(op: ir.Operation, varying: _Varying) -> list[tuple[ir.Operation, int]]:
    """What of an op's operands is to be guarded; notes along which dims its results vary."""
    maps = compiler.indexing_maps(op)
    if not maps or len(maps) != len(op.operands):
        return []
    loops = [places for places in map(positions, maps) if places is not None]
    if len(loops) < len(maps) or any(o.name == "linalg.index" for o in _body(op)):
        return []
    inputs = len(maps) - len(op.results)
    read = list(zip(op.operands, loops, strict=True))[:inputs]
    along: set[int] = set()
    for value, places in read:
        known = varying.get(value)
        along |= {p for d, p in enumerate(places) if known is None or d in known}
    for result, places in zip(op.results, loops[inputs:], strict=True):
        varying[result] = frozenset(d for d, p in enumerate(places) if p in along)
    kept = {place for places in loops[inputs:] for place in places}
    constant = set(range(maps[0].n_dims)) - kept - along
    return [
        (op, number)
        for number, (value, places) in enumerate(read)
        if constant & set(places) and isinstance(value.type, ir.RankedTensorType)
    ]


def _body(op: ir.Operation) -> Iterable[ir.Operation]:
    return ops_below(op) if len(op.regions) else ()
