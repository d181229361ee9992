"""Which of the ops of a block comes first, asked again and again while rules change the block.

MLIR numbers the ops of a block when it is asked, and forgets the numbers whenever an op moves into
the block or within it, as every application of a rule does: asking it once an application costs the
size of the block each time. :class:`Numbered` keeps numbers of its own in the program, as marks
that go with their ops (see :mod:`mlirules.drivers.match.liveness` for why no table will do).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from mlirules.drivers.iree.compiler import Op, ir
from mlirules.drivers.iree.traversal import ops_below

__all__ = ["Numbered", "Places", "following", "forget"]

_MARK = "mlirules.place"
#: So many times ops are put in order by MLIR: its numbers cost a small part of what marks cost.
PATIENCE = 32
#: Ops with the same number may stand so far apart until a block is numbered anew.
NEAR = 256


class Places:
    """The order of ops as MLIR knows it."""

    def before(self, a: ir.Operation, b: ir.Operation) -> bool:
        """Whether op ``a`` stands before op ``b`` of the same block."""
        return a != b and a.is_before_in_block(b)

    def ordered(self, ops: Iterable[ir.Operation]) -> list[ir.Operation]:
        """Ops of one block, the first one first."""

        def compared(a: ir.Operation, b: ir.Operation) -> int:
            return 0 if a == b else -1 if a.is_before_in_block(b) else 1

        return sorted(ops, key=functools.cmp_to_key(compared))

    def moves(self, op: Op) -> None:
        """Note that ``op`` is about to be moved."""

    def erase(self) -> None:
        """Take what was noted out of the program."""


class Numbered(Places):
    """The order of ops by marks that live through changes of the block.

    A block's ops are numbered in their order. What comes in later gets the number of the next op
    that has one, so that numbers never fall along the block; of two ops with the same number, the
    one that leads to the other comes first.
    """

    def __init__(self, module: ir.Module) -> None:
        self._module = module
        self._type = ir.IntegerType.get_signless(64, module.context)
        self._asked = 0
        # The size of the largest block that was numbered.
        self._size = 0

    def before(self, a: ir.Operation, b: ir.Operation) -> bool:
        """See :class:`Places`."""
        if a == b:
            return False
        if self._asked < PATIENCE:
            return super().before(a, b)
        first, second = self._number(a), self._number(b)
        return first < second if first != second else self._leads_to(a, b)

    def ordered(self, ops: Iterable[ir.Operation]) -> list[ir.Operation]:
        """See :class:`Places`."""
        ops = list(ops)
        if self._asked < PATIENCE:
            self._asked += len(ops) > 1
            return super().ordered(ops)

        def compared(a: ir.Operation, b: ir.Operation) -> int:
            return 0 if a == b else -1 if self.before(a, b) else 1

        return sorted(ops, key=functools.cmp_to_key(compared))

    def moves(self, op: Op) -> None:
        """See :class:`Places`."""
        if self._size:
            forget(op)

    def erase(self) -> None:
        """See :class:`Places`."""
        if self._size:
            for op in ops_below(self._module.operation):
                forget(op)

    def _number(self, op: ir.Operation) -> int:
        passed: list[ir.Operation] = []
        at: ir.Operation | None = op
        while at is not None:
            attributes = at.attributes
            if _MARK in attributes:
                number = attributes[_MARK]
                for unnumbered in passed:
                    unnumbered.attributes[_MARK] = number
                return ir.IntegerAttr(number).value
            passed.append(at)
            at = following(at)
        self._renumber(op.block)
        return ir.IntegerAttr(op.attributes[_MARK]).value

    def _leads_to(self, a: ir.Operation, b: ir.Operation) -> bool:
        """Whether ``b`` comes after ``a``: from both at once, so that the nearer end is found."""
        next_a, next_b = a, b
        for _ in range(max(NEAR, self._size // 16)):
            after_a, after_b = following(next_a), following(next_b)
            if after_a == b or after_b is None:
                return True
            if after_b == a or after_a is None:
                return False
            next_a, next_b = after_a, after_b
        self._renumber(a.block)
        return self._number(a) < self._number(b)

    def _renumber(self, block: ir.Block) -> None:
        number = -1
        for number, op in enumerate(block.operations):
            op.operation.attributes[_MARK] = ir.IntegerAttr.get(self._type, number)
        self._size = max(self._size, number + 1)


def following(op: ir.Operation) -> ir.Operation | None:
    """The op after ``op`` in its block; None: it is the last."""
    found = ir.InsertionPoint.after(op).ref_operation
    return None if found is None else found.operation


def forget(op: Op) -> None:
    """Take the mark off one op, a copy perhaps."""
    if _MARK in op.attributes:
        del op.attributes[_MARK]
