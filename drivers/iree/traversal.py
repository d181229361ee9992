"""Going over the ops of a program. Nothing here recurses: a program may be as deep as it likes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from types import GeneratorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iree.compiler import ir

__all__ = [
    "EXECUTABLES",
    "Steps",
    "children",
    "finish",
    "flattened",
    "is_open",
    "open_ops",
    "ops_below",
]

#: What gives items, and generators of such steps where it would otherwise call itself.
Steps = Generator[Any, None, None]

#: Ops that hold the code of kernels, whose ops are no part of the program that is rewritten.
EXECUTABLES = ("stream.executable", "hal.executable")
#: The others have regions that compute on scalars.
_CLOSED = (*("linalg.", "tensor.", "iree_linalg_ext.", "arith.", "math."), *EXECUTABLES)


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


def is_open(op: ir.Operation) -> bool:
    """Whether what stands in an op's regions, if it has any, is part of the program."""
    return not op.name.startswith(_CLOSED)


def open_ops(module: ir.Module) -> Iterator[ir.Operation]:
    """The ops of a program in order, without bodies of structured ops and kernels' code."""
    return ops_below(module.operation, is_open)


def flattened(steps: Steps) -> Iterator[Any]:
    """What ``steps`` give, in order; those that they give are gone through before they go on.

    ``yield inner()`` stands where a recursive function would call itself, at any depth.
    """
    stack = [steps]
    while stack:
        for item in stack[-1]:
            if isinstance(item, GeneratorType):
                stack.append(item)
                break
            yield item
        else:
            stack.pop()


def finish(steps: Steps) -> None:
    """Go through ``steps`` that give nothing but further steps."""
    for _ in flattened(steps):
        pass
