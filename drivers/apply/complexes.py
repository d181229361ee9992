"""Complex numbers made where a sum is read: IREE 3.13 for Vulkan does not compile them.

A normalisation whose result is made a complex number for a transform becomes one dispatch that
writes both, which ends in "failed to legalize unresolved source materialization". What complex
numbers are made of is written to memory first.
"""

from __future__ import annotations

from mlirules.drivers.apply.barriers import guard
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import open_ops

__all__ = ["guard_complex"]


def guard_complex(module: ir.Module) -> int:
    """Put the real tensors that complex ones are made of behind barriers; returns how many."""
    found = [
        (op, number)
        for op in open_ops(module)
        if op.name == "linalg.generic" and any(_complex(value) for value in op.results)
        for number, value in enumerate(list(op.operands)[: len(op.operands) - len(op.results)])
        if isinstance(value.type, ir.RankedTensorType) and not _complex(value)
    ]
    for op, number in found:
        guard(op, number)
    return len(found)


def _complex(value: ir.Value) -> bool:
    type_ = value.type
    return isinstance(type_, ir.RankedTensorType) and isinstance(type_.element_type, ir.ComplexType)
