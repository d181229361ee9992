"""Going over the ops of a program. Nothing here recurses: a program may be as deep as it likes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iree.compiler import ir

__all__ = ["SCALAR_BODIES", "children", "ops_below"]

#: Ops whose regions compute on scalars.
SCALAR_BODIES = ("linalg.", "tensor.", "iree_linalg_ext.", "arith.", "math.")


def children(operation: ir.Operation) -> Iterator[ir.Operation]:
    """The ops that stand directly in the regions of ``operation``, in the order of the text."""
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                yield op.operation


def ops_below(
    operation: ir.Operation, into: Callable[[ir.Operation], bool] | None = None
) -> Iterator[ir.Operation]:
    """Every op below ``operation``, in the order of the text.

    ``into`` says whether to enter an op that has regions (default: every one). An op may be erased
    once the next one is asked for, and the ops in its regions before that.
    """
    stack = [children(operation)]
    while stack:
        for op in stack[-1]:
            yield op
            if len(op.regions) and (into is None or into(op)):
                stack.append(children(op))
                break
        else:
            stack.pop()
