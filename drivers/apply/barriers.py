"""Values that the compiler must write to memory before they are read."""

from __future__ import annotations

from mlirules.drivers.iree.compiler import Op, ir

__all__ = ["RESHAPES", "guard", "guard_result", "positions"]

#: Ops that give the numbers that they read in another shape: the compiler reads through them.
RESHAPES = frozenset(["tensor.expand_shape", "tensor.collapse_shape", "tensor.cast"])
_BARRIER = "iree_tensor_ext.compute_barrier.start"


def positions(map_: ir.AffineMap) -> list[int] | None:
    """The loop of each dim, or None where a dim is more than a loop."""
    places = []
    for expression in map_.results:
        if not isinstance(expression, ir.AffineDimExpr):
            return None
        places.append(expression.position)
    return places


def guard(op: ir.Operation, number: int) -> None:
    """Have an operand written to memory before an op reads it."""
    op.operands[number] = _barrier(op.operands[number], ir.InsertionPoint(op), op.location)


def guard_result(op: Op) -> None:
    """Have the result of an op written to memory before anything reads it."""
    value = op.results[0]
    uses = [(use.owner, use.operand_number) for use in value.uses]
    guarded = _barrier(value, ir.InsertionPoint.after(op), op.location)
    for user, number in uses:
        user.operands[number] = guarded


def _barrier(value: ir.Value, place: ir.InsertionPoint, location: ir.Location) -> ir.Value:
    type_ = ir.ShapedType(value.type)
    with place, location:
        index = ir.IndexType.get()
        sizes: list[ir.Value] = []
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
        return ir.Operation.create(_BARRIER, results=[value.type], operands=[value, *sizes]).result
