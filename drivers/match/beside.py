"""Matches with several roots: further ops that a rule replaces beside its root."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.match.attempt import PATTERN_HOLDS, State, Stop
from mlirules.drivers.match.places import Places
from mlirules.drivers.match.results import Match, Refusal
from mlirules.drivers.match.structure import Structure
from mlirules.drivers.match.values import TORCH_CONSTANTS, is_used, owner_of
from mlirules.language.notation import ast
from mlirules.language.rule import OpPattern, Rule

# How many users of a shared operand are looked at for a match of several roots, and how many may be
# tried: a rule with three roots tries pairs of them.
MAX_LOOKED_AT = 64
MAX_BESIDE = 16

# What may be brought before the ops that it feeds: it stands anywhere just as well.
_ANYWHERE = frozenset(
    [
        "torch.vtensor.literal",
        "torch.prim.ListConstruct",
        "torch.aten.t",
        "torch.aten.permute",
        "torch.aten.transpose.int",
        "torch.aten.view",
        "torch.aten.to.dtype",
        "arith.constant",
        *TORCH_CONSTANTS,
    ]
)


class Beside:
    """Finds the further roots of a match, and the place of its rewrite."""

    def __init__(self, rule: Rule, structure: Structure) -> None:
        self.rule = rule
        self.structure = structure

    def others(
        self,
        left: list[int],
        root: ir.Operation,
        state: State,
        swaps: tuple[bool, ...],
        refusals: list[Refusal],
    ) -> Iterator[State]:
        """Every way to find the roots that are ``left``; why there are no more in ``refusals``."""
        if not left:
            yield state
            return
        number, *rest = left
        pattern = self.rule.match[number]
        for candidate in self._candidates(pattern, root, state):
            if self.structure.several:
                for way in self.structure.ways(pattern, number, candidate, state, swaps, refusals):
                    yield from self.others(rest, root, way, swaps, refusals)
                continue
            trial = state.copy()
            try:
                self.structure.op(pattern, number, candidate, trial, swaps)
            except Stop as stop:
                refusals.append(stop.refusal)
                continue
            yield from self.others(rest, root, trial, swaps, refusals)
        refusals.append(
            Refusal(
                pattern.line,
                f"no other {self.rule.spelt(pattern.op)} shares these operands",
                depth=state.depth,
            )
        )

    def _candidates(
        self, pattern: OpPattern, root: ir.Operation, state: State
    ) -> list[ir.Operation]:
        """Ops beside the root that share an operand with what is bound, in program order.

        Of a value that very many ops read, the ops that read it last are looked at.
        """
        call = pattern.equation.call
        shared = [
            value
            for a in call.args
            if isinstance(a, ast.Name) and isinstance(value := state.values.get(a.id), ir.Value)
        ]
        taken = list(state.ops.values())
        out: list[ir.Operation] = []
        for use in itertools.islice(shared[0].uses if shared else (), MAX_LOOKED_AT):
            op = use.owner.operation
            if (
                not self.rule.may_be(call.fn, op.name)
                or op.block != root.block
                or op in taken
                or op in out
            ):
                continue
            # An op that an earlier application replaced may still stand here.
            if is_used(op):
                out.append(op)
                if len(out) == MAX_BESIDE:
                    break
        return state.around.places.ordered(out)

    def place(self, match: Match, root: ir.Operation, places: Places) -> None:
        """Find where the rewrite goes: before the first op that it replaces.

        What it reads must stand there by then; constants can be brought there.
        """
        match.anchor = places.ordered([root, *match.others])[0]
        moved: dict[ir.Operation, None] = {}
        for argument in match.rewrite.lowered.arguments:
            value = match.values[argument.path]
            if isinstance(value, ir.Value) and not _brought(value, match.anchor, moved, places):
                name = argument.path.partition("#")[0]
                raise Stop(
                    Refusal(
                        self.rule.root.line,
                        f"{name} is computed after the first of the ops that the rule replaces",
                        depth=PATTERN_HOLDS * 2,
                    )
                )
        match.moved = list(moved)


def _brought(
    value: ir.Value, anchor: ir.Operation, moved: dict[ir.Operation, None], places: Places
) -> bool:
    """Whether a value stands before ``anchor``, or can; notes the ops to move there, in order."""
    left = [(value, False)]
    while left:
        value, ready = left.pop()
        owner = owner_of(value)
        if owner is None:
            continue
        op = owner.operation
        if op in moved or op.block != anchor.block:
            continue
        if ready:
            moved[op] = None
        elif not places.before(op, anchor):
            if op.name not in _ANYWHERE:
                return False
            left.append((value, True))  # once what it reads is there
            left += [(v, False) for v in reversed(op.operands)]
    return True
