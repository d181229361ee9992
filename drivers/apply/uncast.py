"""Results of rules that a walk leaves in their builtin types, without a cast back to torch.

Nearly all that a conversion makes is read by ops that are converted next: a cast back to torch
would be made, read past, and erased. So where types alone decide what becomes of an op, a walk puts
the builtin value itself in the place of the torch one, and casts it where an op that stays reads
it. Until then such ops have operands of types that their dialect does not know; nothing but the
walk sees them.

That goes for functions of torch ops alone, whose values all have torch types: a builtin one among
their operands was left there. Before the first other op, and before one with regions, all that was
left is cast, and nothing is left any more; nor in functions of several blocks, whose order says
nothing of what comes first. It goes for floats alone, since builtin integers do not tell their
signs.
"""

from __future__ import annotations

from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.match.rewrites import Bare

__all__ = ["Uncast"]

_BACK = "torch_c.from_builtin_tensor"
#: Ops beside those of torch whose operands are torch values, where all others' are.
_PLAIN = frozenset(["builtin.module", "func.func", "func.return"])


class Uncast:
    """What one walk left without its cast."""

    def __init__(self, unknown: ir.Location) -> None:
        #: Whether results may be left.
        self.allowed = True
        #: The torch types of values that were left, by their builtin types.
        self.torch: dict[ir.Type, ir.Type] = {}
        # What was cast after all, by its builtin value.
        self._casts: dict[ir.Value, ir.Value] = {}
        self._unknown = unknown

    def takes(self, bare: Bare | None, torch: ir.Type) -> bool:
        """Whether results of that rewrite, of a torch type, may be left; notes their types."""
        if bare is None or not self.allowed:
            return False
        return bool(self.torch.setdefault(bare.type, torch) == torch)

    def foreign(self, name: str) -> bool:
        """Whether an op of that name may have builtin values of its own."""
        return not name.startswith("torch.") and name not in _PLAIN

    def settle(self, op: ir.Operation) -> None:
        """Cast the operands of an op that stays, or that a rule is to look at as it was."""
        operands = op.operands
        for n in range(len(operands)):
            value = operands[n]
            torch = self.torch.get(value.type)
            if torch is not None and not isinstance(value.owner, ir.Block):
                operands[n] = self._cast(value, torch)

    def _cast(self, value: ir.Value, torch: ir.Type) -> ir.Value:
        made = self._casts.get(value)
        if made is None:
            made = ir.Operation.create(
                _BACK,
                results=[torch],
                operands=[value],
                # Behind what makes it, so that it stands before all that reads it.
                ip=ir.InsertionPoint.after(ir.OpResult(value).owner),
                loc=self._unknown,
            ).result
            self._casts[value] = made
        return made

    def forget(self, value: ir.Value) -> None:
        """Note that the cast of a builtin value is about to be erased."""
        self._casts.pop(value, None)

    def end(self, current: ir.Operation) -> None:
        """Cast what was left before ``current``; nothing is left any more."""
        self.allowed = False
        if self.torch:
            self._end_in(current.block, current)
            self.torch.clear()

    def _end_in(self, block: ir.Block, current: ir.Operation) -> None:
        """Cast what was left in a block and is read at ``current`` or behind it."""
        for view in block.operations:
            op = view.operation
            if op == current:
                break
            for value in op.results:
                torch = self.torch.get(value.type)
                if torch is None:
                    continue
                for use in list(value.uses):
                    if _stays(use.owner.operation, block, current):
                        use.owner.operands[use.operand_number] = self._cast(value, torch)


def _stays(op: ir.Operation, block: ir.Block, current: ir.Operation) -> bool:
    """Whether an op, or what it stands in, is at ``current`` or behind it in the block.

    A copy that waits to be put into the program stands nowhere. What has no parent must not be
    asked for its block: the bindings of IREE 3.13 give one that was never made, and what that lets
    go of is anything.
    """
    while (around := op.parent) is not None:
        if op.block == block:
            return bool(op == current or current.is_before_in_block(op))
        op = around.operation
    return False
