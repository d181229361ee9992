"""Copies of copies that IREE 3.13 does not get to the end of.

- What is read by a computed index (`flip`, `roll`, `gather`) out of every second or third element
  of a tensor, or out of a column, on cpu: "LLVM Translation failed for operation:
  builtin.unrealized_conversion_cast".
- What is padded twice, by two numbers, as it is computed, on cpu and Vulkan: "failed on workgroup
  distribution verification", "write affecting operations on global resources".
- Every second place of an image, as the mean of windows of one place, added to what a convolution
  gives that has its channels last, on cpu: the same.

The copy that is read is written to memory.
"""

from __future__ import annotations

from mlirules.drivers.apply.barriers import RESHAPES, guard, guard_result, positions
from mlirules.drivers.iree.compiler import Op, ir
from mlirules.drivers.iree.traversal import ops_below

__all__ = ["guard_copies"]


def guard_copies(module: ir.Module) -> int:
    """Put copies behind barriers where the compiler fails to read through them.

    Returns how many. One pass over the ops.
    """
    read: dict[ir.OpView, None] = {}
    padded = []
    for op in ops_below(module.operation):
        if op.name == "tensor.extract":
            source = op.operands[0].owner
            while not isinstance(source, ir.Block) and source.name in RESHAPES:
                source = source.operands[0].owner
            if not isinstance(source, ir.Block) and _strided(source):
                read[source] = None
        elif op.name == "tensor.pad":
            source = op.operands[0].owner
            if isinstance(source, ir.Block) or source.name != "tensor.pad":
                continue
            if _by(source) is None or _by(source) != _by(op):
                padded.append(op)
        elif op.name == "linalg.generic" and _by_steps(op):
            read[op.opview] = None
    for op in padded:
        guard(op, 0)
    for copy in read:
        guard_result(copy)
    return len(padded) + len(read)


def _strided(op: Op) -> bool:
    if op.name != "tensor.extract_slice":
        return False
    strides = list(ir.DenseI64ArrayAttr(op.attributes["static_strides"]))
    sizes = list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"]))
    if any(by != 1 and size != 1 for by, size in zip(strides, sizes, strict=True)):
        return True
    whole = ir.ShapedType(op.operands[0].type)
    return bool(sizes) and sizes[-1] == 1 and whole.shape[-1] != 1


def _by_steps(op: ir.Operation) -> bool:
    """Whether an op sums windows of one place each, some places apart: what is left is a copy."""
    maps = [ir.AffineMapAttr(one).value for one in ir.ArrayAttr(op.attributes["indexing_maps"])]
    if positions(maps[0]) is not None or (made := positions(maps[-1])) is None:
        return False
    single = {
        expression.position
        for map_, value in zip(maps, op.operands, strict=True)
        if isinstance(value.type, ir.RankedTensorType)
        for expression, size in zip(map_.results, value.type.shape, strict=True)
        if isinstance(expression, ir.AffineDimExpr) and size == 1
    }
    summed = set(range(maps[0].n_dims)).difference(made)
    return bool(summed) and summed <= single


def _by(op: Op) -> ir.Attribute | None:
    """The number that a tensor is padded by; None: not known."""
    (block,) = op.regions[0].blocks
    value = list(block.operations)[-1].operands[0]
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    return owner.attributes["value"]
