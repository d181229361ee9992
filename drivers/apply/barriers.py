"""Values that the compiler must write to memory before they are read."""

from __future__ import annotations

from typing import Any

from mlirules.drivers.iree.compiler import ir

__all__ = ["guard", "positions"]

_BARRIER = "iree_tensor_ext.compute_barrier.start"


def positions(map_: Any) -> list[int] | None:
    """The loop of each dim, or None where a dim is more than a loop."""
    places = []
    for expression in map_.results:
        if not isinstance(expression, ir.AffineDimExpr):
            return None
        places.append(expression.position)
    return places


def guard(op: Any, number: int) -> None:
    """Have an operand written to memory before an op reads it."""
    value = op.operands[number]
    type_ = value.type
    with ir.InsertionPoint(op), op.location:
        index = ir.IndexType.get()
        sizes = []
        for dim in range(type_.rank):
            if type_.is_dynamic_dim(dim):
                at = ir.Operation.create(
                    "arith.constant",
                    results=[index],
                    attributes={"value": ir.IntegerAttr.get(index, dim)},
                ).result
                sizes.append(
                    ir.Operation.create("tensor.dim", results=[index], operands=[value, at]).result
                )
        barrier = ir.Operation.create(_BARRIER, results=[type_], operands=[value, *sizes])
    op.operands[number] = barrier.result
