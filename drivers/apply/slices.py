"""Parts of tensors that start where a vector of the tensor does not: wrong on Vulkan.

IREE 3.13's code generator for Vulkan reads and writes memory as vectors where the inner sizes allow
it, and divides the places by the vector's length. Where a part of a tensor starts within a vector,
what is left of that division is lost: an image that is padded by 1 as it is computed comes out one
column too far left, a part that is read as something is computed from it is read too far left. A
copy by itself is right: what is put into the tensor is written to memory before, and so is what is
taken out of it; that is taken from memory, too, or the compiler would take it of what the tensor is
computed from.

A stride along a dim of which one place is taken means nothing, and is more than the code generator
can read from memory ("unresolved materialization"): it becomes 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlirules.drivers.apply.barriers import guard, guard_result
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import open_ops

__all__ = ["guard_slices"]

#: The bits of the longest vector that is read at once.
_LONGEST = 128
#: An offset that is known only at run time.
_DYNAMIC = ir.ShapedType.get_dynamic_stride_or_offset()


def guard_slices(module: ir.Module) -> int:
    """Put parts of tensors behind barriers where they start within a vector.

    Returns how many parts. One pass over the ops. The program is best past IREE's global
    optimisation, which moves slices.
    """
    found: list[ir.Operation] = []
    for op in open_ops(module):
        if op.name == "tensor.pad":
            whole = ir.ShapedType(op.results[0].type)
            sizes, offsets = ir.ShapedType(op.operands[0].type).shape, _numbers(op, "static_low")
            strides = [1] * len(offsets)
        elif op.name in ("tensor.insert_slice", "tensor.extract_slice"):
            whole = ir.ShapedType(op.operands[1 if op.name == "tensor.insert_slice" else 0].type)
            sizes, offsets = _numbers(op, "static_sizes"), _numbers(op, "static_offsets")
            strides = _numbers(op, "static_strides")
            if any(size == 1 and by != 1 for size, by in zip(sizes, strides, strict=True)):
                strides = [1 if n == 1 else by for n, by in zip(sizes, strides, strict=True)]
                op.attributes["static_strides"] = ir.DenseI64ArrayAttr.get(strides, op.context)
        else:
            continue
        if _within_vector(whole, sizes, offsets, strides):
            found.append(op)
    for op in found:
        guard(op, 0)
        if op.name == "tensor.extract_slice":
            guard_result(op)
    return len(found)


def _numbers(op: ir.Operation, name: str) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


def _within_vector(
    whole: ir.ShapedType, sizes: Sequence[int], offsets: Sequence[int], strides: Sequence[int]
) -> bool:
    """Whether a part of a tensor may start within one of the vectors it is read or written by."""
    bits = max(8, getattr(whole.element_type, "width", _LONGEST))
    longest = max(1, _LONGEST // bits)
    # The inner dims that are whole become one with the dim before them.
    inner = 1
    for dim in reversed(range(whole.rank)):
        if whole.is_dynamic_dim(dim) or sizes[dim] < 0:
            return False  # read element by element
        size = whole.get_dim_size(dim)
        if size == sizes[dim]:
            inner *= size
            continue
        vector = math.gcd(size * inner, sizes[dim] * inner, longest)
        if offsets[dim] == _DYNAMIC or strides[dim] != 1:
            return vector > 1
        return offsets[dim] * inner % vector != 0
    return False
