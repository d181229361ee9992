"""Values that the compiler must write to memory before they are read."""

from __future__ import annotations

from mlirules.drivers.iree.compiler import Op, ir

__all__ = ["RESHAPES", "copy", "guard", "guard_result", "positions"]

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


def guard(op: Op, number: int) -> None:
    """Have an operand written to memory before an op reads it."""
    op.operands[number] = _barrier(op.operands[number], ir.InsertionPoint(op), op.location)


def copy(op: Op, number: int) -> None:
    """Have an operand copied to memory of its own before an op reads it.

    By a choice of its numbers that no pass of the compiler can make, since a copy that it sees
    through is no copy.
    """
    value, location = op.operands[number], op.location
    type_ = ir.RankedTensorType(value.type)
    with ir.InsertionPoint(op), location:
        i1, i32 = ir.IntegerType.get_signless(1), ir.IntegerType.get_signless(32)
        none = _constant(i32)
        hidden = ir.Operation.create(
            "util.optimization_barrier", results=[i32], operands=[none]
        ).result
        empty = ir.Operation.create("tensor.empty", results=[type_], operands=_sizes(value)).result
        same = ir.AffineMapAttr.get(ir.AffineMap.get_identity(type_.rank))
        parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
        copied = ir.Operation.create(
            "linalg.generic",
            results=[type_],
            operands=[value, empty],
            attributes={
                "indexing_maps": ir.ArrayAttr.get([same, same]),
                "iterator_types": ir.ArrayAttr.get([parallel] * type_.rank),
                "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1]),
            },
            regions=1,
        )
        element = type_.element_type
        body = copied.regions[0].blocks.append(element, element, arg_locs=[location, location])
        with ir.InsertionPoint(body):
            equal = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)
            chosen = ir.Operation.create(
                "arith.cmpi",
                results=[i1],
                operands=[hidden, none],
                attributes={"predicate": equal},
            ).result
            number_of = ir.Operation.create(
                "arith.select",
                results=[element],
                operands=[chosen, body.arguments[0], _constant(element)],
            ).result
            ir.Operation.create("linalg.yield", operands=[number_of])
    op.operands[number] = _barrier(copied.result, ir.InsertionPoint(op), location)


def _constant(type_: ir.Type, value: int = 0) -> ir.Value:
    """A number of a type, at the place that the caller stands at."""
    name = "arith.constant"
    attribute: ir.Attribute
    if isinstance(type_, ir.ComplexType):
        part = ir.FloatAttr.get(type_.element_type, value)
        name, attribute = "complex.constant", ir.ArrayAttr.get([part, part])
    elif isinstance(type_, ir.IntegerType | ir.IndexType):
        attribute = ir.IntegerAttr.get(type_, value)
    else:
        attribute = ir.FloatAttr.get(type_, value)
    return ir.Operation.create(name, results=[type_], attributes={"value": attribute}).result


def guard_result(op: Op) -> None:
    """Have the result of an op written to memory before anything reads it."""
    value = op.results[0]
    uses = [(use.owner, use.operand_number) for use in value.uses]
    guarded = _barrier(value, ir.InsertionPoint.after(op), op.location)
    for user, number in uses:
        user.operands[number] = guarded


def _barrier(value: ir.Value, place: ir.InsertionPoint, location: ir.Location) -> ir.Value:
    with place, location:
        return ir.Operation.create(
            _BARRIER, results=[value.type], operands=[value, *_sizes(value)]
        ).result


def _sizes(value: ir.Value) -> list[ir.Value]:
    """The sizes of a tensor that are known only at run time."""
    type_ = ir.ShapedType(value.type)
    index = ir.IndexType.get()
    return [
        ir.Operation.create(
            "tensor.dim", results=[index], operands=[value, _constant(index, dim)]
        ).result
        for dim in range(type_.rank)
        if type_.is_dynamic_dim(dim)
    ]
