"""What affine expressions say, asked of the bindings."""

from __future__ import annotations

from mlirules.drivers.iree.bindings import ir

__all__ = ["loops_of"]


def loops_of(expression: ir.AffineExpr) -> set[int]:
    """The dims of a map that an expression reads: the loops of an op, by number."""
    found: set[int] = set()
    left = [expression]
    while left:
        part = left.pop()
        if isinstance(part, ir.AffineDimExpr):
            found.add(part.position)
        elif isinstance(part, ir.AffineBinaryExpr):
            left += (part.lhs, part.rhs)
    return found
