"""Reductions whose loops make their result in another order than its dims: wrong on Vulkan.

IREE 3.13's code generator for Vulkan shares a result's elements among threads by its dims where it
is filled, and by the loops' numbers where it is added to: where the two orders differ, threads add
to what other threads have not filled yet, or fill again. A depthwise convolution of NCHW images,
whose loops go by places before channels, comes out wrong for most sizes. The loops are put in the
order of the result's dims.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlirules.drivers.apply.barriers import guard, positions
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import open_ops, ops_below

__all__ = ["order_loops"]

#: What a generic says itself, and what a named op's maps say already.
_OWN = frozenset(["indexing_maps", "iterator_types", "operandSegmentSizes", "dilations", "strides"])


def order_loops(module: ir.Module) -> int:
    """Put the loops of a program's reductions in the order of their results; returns how many."""
    found: list[tuple[ir.Operation, list[ir.AffineMap], list[int] | None]] = []
    for op in open_ops(module):
        maps = compiler.indexing_maps(op) if op.name.startswith("linalg.") else None
        if not maps or not len(op.results) or len(maps) != len(op.operands):
            continue
        made = [positions(one) for one in maps[len(maps) - len(op.results) :]]
        if any(one and len(one) < maps[0].n_dims and one != sorted(one) for one in made):
            found.append((op, maps, made[0] if made.count(made[0]) == len(made) else None))
    for op, maps, order in found:
        if order is not None:
            rest = [loop for loop in range(maps[0].n_dims) if loop not in order]
            _reorder(op, maps, order + rest)
        else:  # no order suits all results
            for number in range(len(maps) - len(op.results), len(maps)):
                guard(op, number)
    return len(found)


def _reorder(op: ir.Operation, maps: Sequence[ir.AffineMap], order: Sequence[int]) -> None:
    """Number an op's loops anew: the first is the one that was ``order[0]``."""
    loops = len(order)
    place = {old: new for new, old in enumerate(order)}
    with op.context, op.location:
        renamed = ir.AffineMap.get(
            loops, 0, [ir.AffineDimExpr.get(place[loop]) for loop in range(loops)]
        )
        moved = [
            ir.AffineMap.get(loops, 0, [result.compose(renamed) for result in one.results])
            for one in maps
        ]
        made = positions(maps[-1]) or []
        kinds = ["parallel" if old in made else "reduction" for old in order]
        attributes: dict[str, ir.Attribute] = {
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(one) for one in moved]),
            "iterator_types": ir.ArrayAttr.get(
                [ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds]
            ),
        }
        for inner in ops_below(op):
            if inner.name == "linalg.index":
                dim = ir.IntegerAttr(inner.attributes["dim"])
                inner.attributes["dim"] = ir.IntegerAttr.get(dim.type, place[dim.value])
        if op.name == "linalg.generic":
            for name, value in attributes.items():
                op.attributes[name] = value
            return
        inputs = len(op.operands) - len(op.results)
        attributes["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get([inputs, len(op.results)])
        attributes |= {name: op.attributes[name] for name in op.attributes if name not in _OWN}
        generic = ir.Operation.create(
            "linalg.generic",
            results=[result.type for result in op.results],
            operands=list(op.operands),
            attributes=attributes,
            regions=1,
            ip=ir.InsertionPoint(op),
        )
    op.regions[0].blocks[0].append_to(generic.regions[0])
    for old, new in zip(op.results, generic.results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()
