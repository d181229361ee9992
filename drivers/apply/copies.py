"""Copies of copies that IREE 3.13 does not get to the end of, or takes for others.

- What is read by a computed index (`flip`, `roll`, `gather`) out of every second or third element
  of a tensor, or out of a column, on cpu: "LLVM Translation failed for operation:
  builtin.unrealized_conversion_cast".
- What is padded twice, by two numbers, as it is computed, on cpu and Vulkan: "failed on workgroup
  distribution verification", "write affecting operations on global resources".
- Every second place of an image, as the mean of windows of one place, added to what a convolution
  gives that has its channels last, on cpu: the same.
- A column that is a factor of a packed product (`x @ w[:, :1]`), on cpu: other columns are read.
- What is sorted and then padded, put into a larger tensor or sorted again: "write affecting
  operations on global resources".
- What is written into every second place of a fill, and with that into a fill of the same number (a
  padding, too): it is written into places that lie side by side, on all targets.
- What is written into a slice of a fill, or into a fill that is written into every second place or
  one row of another: "write affecting operations on global resources".

The copy that is read is written to memory, and so is the fill.
"""

from __future__ import annotations

from mlirules.drivers.apply.barriers import RESHAPES, guard, guard_result, positions
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import Op, ir
from mlirules.drivers.iree.traversal import ops_below

__all__ = ["guard_copies"]

#: What a part of a tensor is taken by.
_VIEWS = RESHAPES | {"tensor.extract_slice"}
_SORT = "iree_linalg_ext.sort"
#: Ops that do not take what is sorted as it is computed.
_AFTER_SORT = frozenset(["tensor.pad", "tensor.insert_slice", _SORT])


def guard_copies(module: ir.Module) -> int:
    """Put copies behind barriers where the compiler fails to read through them.

    Returns how many. One pass over the ops.
    """
    read: dict[ir.OpView, None] = {}
    written: dict[tuple[ir.OpView, int], None] = {}
    for op in ops_below(module.operation):
        if op.name in _AFTER_SORT:
            sorted_ = [n for n, v in enumerate(op.operands) if _name(_seen_through(v)) == _SORT]
            # What is sorted together is of one shape, of which a barrier says less than others.
            together = op.name == _SORT and sorted_
            for number in range(len(op.operands)) if together else sorted_:
                written[op.opview, number] = None
        if op.name == "tensor.extract":
            source = _seen_through(op.operands[0], RESHAPES)
            if not isinstance(source, ir.Block) and _strided(source):
                read[source.opview] = None
        elif op.name == "tensor.pad":
            source = op.operands[0].owner
            if isinstance(source, ir.Block) or source.name != "tensor.pad":
                continue
            if _by(source) is None or _by(source) != _by(op):
                written[op.opview, 0] = None
        elif op.name == "tensor.insert_slice" and _into_fill(op):
            written[op.opview, 1] = None
        elif op.name.startswith("linalg.") and compiler.is_contraction(op):
            for value in (op.operands[0], op.operands[1]):
                source = value.owner
                while not isinstance(source, ir.Block) and _moves(source):
                    source = source.operands[0].owner
                if not isinstance(source, ir.Block) and _column(source):
                    read[source.opview] = None
        elif op.name == "linalg.generic" and _by_steps(op):
            read[op.opview] = None
    for user, number in written:
        guard(user, number)
    for copy in read:
        guard_result(copy)
    return len(written) + len(read)


def _strided(op: Op) -> bool:
    if op.name != "tensor.extract_slice":
        return False
    strides = list(ir.DenseI64ArrayAttr(op.attributes["static_strides"]))
    sizes = list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"]))
    steps = any(by != 1 and size != 1 for by, size in zip(strides, sizes, strict=True))
    return steps or _column(op)


def _moves(op: Op) -> bool:
    """Whether an op gives the numbers that it reads in another shape or order."""
    if op.name != "linalg.generic":
        return op.name in RESHAPES or op.name == "linalg.transpose"
    return len(op.operands) == 2 and len(list(op.regions[0].blocks[0].operations)) == 1


def _column(op: Op) -> bool:
    """Whether an op takes one place of the last dim."""
    if op.name != "tensor.extract_slice":
        return False
    sizes = list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"]))
    whole = ir.ShapedType(op.operands[0].type)
    return bool(sizes) and sizes[-1] == 1 and whole.shape[-1] != 1


def _seen_through(value: ir.Value, views: frozenset[str] = _VIEWS) -> Op | ir.Block:
    """What gives a tensor that a value is a part of, or the same numbers in another shape."""
    source = value.owner
    while not isinstance(source, ir.Block) and source.name in views:
        source = source.operands[0].owner
    return source


def _name(source: Op | ir.Block) -> str:
    return "" if isinstance(source, ir.Block) else source.name


def _into_fill(op: ir.Operation) -> bool:
    """Whether what is written into a fill comes out otherwise, or does not come out."""
    into = _seen_through(op.operands[1])
    if _name(into) != "linalg.fill":
        return False
    if into != op.operands[1].owner or not _side_by_side(op):
        return True
    return any(
        use.owner.name == "tensor.insert_slice"
        and not use.operand_number
        and not _side_by_side(use.owner)
        for use in op.results[0].uses
    )


def _side_by_side(op: Op) -> bool:
    """Whether a part is written as it is: no place left out, no dim of it gone."""
    part, whole = (ir.ShapedType(value.type) for value in op.operands[:2])
    return part.rank == whole.rank and set(
        ir.DenseI64ArrayAttr(op.attributes["static_strides"])
    ) <= {1}


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
