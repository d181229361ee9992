"""Which ops of a program are dead: they only compute, and nothing that lives uses their results.

Rules ask how often a value is used, and what an earlier application left behind does not count.
Whether an op is dead depends on all that comes after it, so it is not looked up anew at every
question: :class:`Marks` keeps the answer in the program while rules run, and :class:`Frozen` beside
a program that does not change. Both look at an op once, and again when a user of it dies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from mlirules.drivers.iree.compiler import ir

__all__ = ["Frozen", "Liveness", "Marks", "in_reverse", "is_dead"]

_TORCH = ("torch.aten.", "torch.prims.")
_BUILTIN = ("linalg.", "tensor.")
# Rewrites share these: dead now, they may live again. What they read is no tensor of the program.
_SHARED = frozenset(["linalg.fill", "tensor.empty"])
_SCALAR = ("linalg.", "tensor.", "iree_linalg_ext.")
_MARK = "mlirules.dead"


class Liveness(Protocol):
    """Tells dead ops from others."""

    def dead(self, op: Any) -> bool:
        """Whether ``op`` only computes and nothing that lives uses its results."""


def in_reverse(operation: Any) -> Iterator[Any]:
    """The ops in the regions of ``operation``, each one after its users, a level at a time.

    What stands in bodies that compute on scalars is left out: it never dies before its op.
    """
    levels = [operation]
    for parent in levels:
        for region in parent.regions:
            for block in region.blocks:
                ops = [op.operation for op in block.operations]
                levels += [op for op in ops if len(op.regions) and not op.name.startswith(_SCALAR)]
                yield from reversed(ops)


def is_dead(op: Any) -> bool:
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


def _computes(op: Any) -> bool:
    name = op.name
    if name.startswith(_TORCH):
        return True  # assertions among them: they ask for a value that something else must want
    # What gives no result is a terminator.
    return name.startswith(_BUILTIN) and name not in _SHARED and len(op.results) > 0


def _unused(op: Any, dead: Any) -> bool:
    """Whether an op computes, and only ops for which ``dead`` holds use it."""
    if not _computes(op):
        return False
    return all(dead(use.owner.operation) for value in op.results for use in value.uses)


def _is_argument(value: Any) -> bool:
    return isinstance(value.owner, ir.Block)


class Frozen:
    """The dead ops of a program that nobody changes."""

    def __init__(self, operation: Any) -> None:
        self._dead: set[Any] = set()
        for op in in_reverse(operation):
            if _unused(op, self._dead.__contains__):
                self._dead.add(op)

    def dead(self, op: Any) -> bool:
        """See :class:`Liveness`."""
        return op in self._dead


class Marks:
    """The dead ops of a program under rewriting, marked in it.

    Drivers erase ops behind our back and give their memory to new ones, so that no table here
    could be trusted; a mark goes with its op.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._marked = False
        for op in in_reverse(module.operation):
            if _unused(op, self.dead):
                self._mark(op)

    @staticmethod
    def dead(op: Any) -> bool:
        """See :class:`Liveness`."""
        return _MARK in op.attributes

    def _mark(self, op: Any) -> None:
        op.attributes[_MARK] = ir.UnitAttr.get(op.context)
        self._marked = True

    def goes(self, op: Any, instead: Iterable[Any] = ()) -> None:
        """Note that ``op`` gives way to the values ``instead``: nothing will use it any more."""
        kept = [value.owner.operation for value in instead if not _is_argument(value)]
        left = [op]
        while left:
            op = left.pop()
            if self.dead(op):
                continue
            self._mark(op)
            for value in op.operands:
                if _is_argument(value):
                    continue
                owner = value.owner.operation
                if owner not in kept and not self.dead(owner) and _unused(owner, self.dead):
                    left.append(owner)

    def forget(self, op: Any) -> None:
        """Take the mark off one op."""
        if self.dead(op):
            del op.attributes[_MARK]

    def erase(self) -> None:
        """Take the marks off the ops that are left."""
        if self._marked:
            for op in in_reverse(self._module.operation):
                self.forget(op)
