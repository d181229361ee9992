"""Which ops of a program are dead: they only compute, and nothing that lives uses their results.

Rules ask how often a value is used, and what an earlier application left behind does not count.
Whether an op is dead depends on all that comes after it, so it is not looked up anew at every
question: :class:`Marks` keeps the answer in the program while rules run, and :class:`Frozen` beside
a program that does not change. Both look at an op once, and again when a user of it dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from mlirules.drivers.iree.compiler import Op, ir
from mlirules.drivers.iree.traversal import is_open

__all__ = ["Frozen", "Liveness", "Marks", "in_reverse", "is_dead"]

_TORCH = ("torch.aten.", "torch.prims.", "torch.quantized_decomposed.")
_BUILTIN = ("linalg.", "tensor.")
# Rewrites share these: dead now, they may live again. What they read is no tensor of the program.
_SHARED = frozenset(["linalg.fill", "tensor.empty"])
_MARK = "mlirules.dead"


class Liveness(Protocol):
    """Tells dead ops from others."""

    def dead(self, op: Op) -> bool:
        """Whether ``op`` only computes and nothing that lives uses its results."""


def in_reverse(operation: ir.Operation) -> Iterator[ir.Operation]:
    """The ops in the regions of ``operation``, each one after its users, a level at a time.

    What stands in bodies that compute on scalars, or is a kernel's code, is left out: it never dies
    before its op.
    """
    levels = [operation]
    for parent in levels:
        for region in parent.regions:
            for block in region.blocks:
                ops = [op.operation for op in block.operations]
                levels += [op for op in ops if len(op.regions) and is_open(op)]
                yield from reversed(ops)


def is_dead(op: Op) -> bool:
    """Whether ``op`` is dead, asked of the program itself: a look at all that it leads to."""
    seen = {op}
    left = [op]
    while left:
        op = left.pop()
        if not _computes(op):
            return False
        for value in op.results:
            for use in value.uses:
                user = use.owner.operation
                if user not in seen:
                    seen.add(user)
                    left.append(user)
    return True


def _computes(op: Op) -> bool:
    name = op.name
    if name.startswith(_TORCH):
        return True  # assertions among them: they ask for a value that something else must want
    # What gives no result is a terminator.
    return name.startswith(_BUILTIN) and name not in _SHARED and len(op.results) > 0


def _unused(op: Op, dead: Callable[[Op], bool]) -> bool:
    """Whether an op computes, and only ops for which ``dead`` holds use it."""
    if not _computes(op):
        return False
    return all(dead(use.owner.operation) for value in op.results for use in value.uses)


class Frozen:
    """The dead ops of a program that nobody changes."""

    def __init__(self, operation: ir.Operation) -> None:
        self._dead: set[Op] = set()
        for op in in_reverse(operation):
            if _unused(op, self._dead.__contains__):
                self._dead.add(op)

    def dead(self, op: Op) -> bool:
        """See :class:`Liveness`."""
        return op in self._dead


class Marks:
    """The dead ops of a program under rewriting, marked in it.

    Drivers erase ops behind our back and give their memory to new ones, so that no table here
    could be trusted; a mark goes with its op.
    """

    def __init__(self, module: ir.Module) -> None:
        self._module = module
        self._marked = False
        for op in in_reverse(module.operation):
            if _unused(op, self.dead):
                self._mark(op)

    @staticmethod
    def dead(op: Op) -> bool:
        """See :class:`Liveness`."""
        return _MARK in op.attributes

    def _mark(self, op: Op) -> None:
        op.attributes[_MARK] = ir.UnitAttr.get(op.context)
        self._marked = True

    def goes(self, op: Op, instead: Iterable[ir.Value] = ()) -> None:
        """Note that ``op`` gives way to the values ``instead``: nothing will use it any more."""
        kept = [v.owner.operation for v in instead if not isinstance(v.owner, ir.Block)]
        left = [op]
        while left:
            op = left.pop()
            if self.dead(op):
                continue
            self._mark(op)
            for value in op.operands:
                maker = value.owner
                if isinstance(maker, ir.Block):
                    continue
                owner = maker.operation
                if owner not in kept and not self.dead(owner) and _unused(owner, self.dead):
                    left.append(owner)

    def forget(self, op: Op) -> None:
        """Take the mark off one op."""
        if self.dead(op):
            del op.attributes[_MARK]

    def erase(self) -> None:
        """Take the marks off the ops that are left."""
        if self._marked:
            for op in in_reverse(self._module.operation):
                self.forget(op)
