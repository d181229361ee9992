"""The conversion driver: as the walk, and what rules make is looked at where rules take it.

What rules make reads converted operands (a builtin tensor instead of a ``!torch.vtensor``); where
the rest of the program reads what was converted, it is cast back (``torch_c.from_builtin_tensor``).
As in MLIR's dialect conversion, rules match the program as it was: where a rule looks at more than
one op, ops that are converted already stand where they did until all is done.

Full conversion fails when an op of the torch dialect is left. It is partial conversion with nothing
left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from mlirules.drivers.apply import walk
from mlirules.drivers.apply.run import CONSTANTS, Run
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.match.results import Match
from mlirules.language.faults import Fault, MlirulesError, Span
from mlirules.language.rule import Rule

__all__ = ["apply", "check_full", "may_loop"]


def _roots(rules: Sequence[Rule]) -> frozenset[str]:
    """The ops that rules convert. Constants feed ops that rules left, and go when unused."""
    return frozenset(name for rule in rules for name in rule.root_ops) - CONSTANTS


def may_loop(rules: Sequence[Rule]) -> bool:
    """Whether rules may match what they make, and so go on for ever."""
    roots = _roots(rules)
    return any(not roots.isdisjoint(rule.produced_ops) for rule in rules)


class _Lasting(walk.Walk):
    """A conversion whose rules look at ops that others convert: what was converted stays on."""

    def __init__(self, run: Run, rules: Sequence[Rule], again: frozenset[str]) -> None:
        super().__init__(run, rules, again)
        self.one_by_one = True
        #: What was converted, in order.
        self._converted: list[ir.Operation] = []
        self._gone: set[ir.Operation] = set()

    def _match(self, site: walk.Site, op: ir.Operation) -> None:
        if op not in self._gone:  # with an op before it
            super()._match(site, op)

    def _apply(
        self, match: Match, op: ir.Operation, _held: Any, *, looks_again: bool
    ) -> list[tuple[walk.Site, Any]]:
        self._goes(op, self.run.apply(match, op, self._goes))
        return self._legalised() if looks_again else []

    def _goes(self, op: ir.Operation, values: Sequence[ir.Value]) -> None:
        """Note what the results of an op became."""
        for result, value in zip(op.results, values, strict=True):
            self.instantiator.became[result] = value
        self._converted.append(op)
        self._gone.add(op)

    def replace(self) -> None:
        """Put what ops became in their place, and erase them."""
        now = self.instantiator.now
        for result, value in [(r, now(r)) for op in self._converted for r in op.results]:
            result.replace_all_uses_with(value)
        self.instantiator.became.clear()
        for op in self._converted:  # nothing uses them any more
            op.erase()
        self.run.may_leave_dead = True


def apply(run: Run, module: ir.Module, rules: Sequence[Rule]) -> None:
    """Convert ``module`` in place. What goes wrong is left in ``run``."""
    roots = _roots(rules)
    # A match that takes in what another rule converts must find it. What several ops became one of
    # must not be found again.
    several = any(rule.other_roots for rule in rules)
    if not several and any(len(r.match) > 1 and not roots.isdisjoint(r.op_names) for r in rules):
        lasting = _Lasting(run, rules, roots)
        walk.over(lasting, module)
        lasting.replace()
    else:
        walk.over(walk.Walk(run, rules, roots), module)


def check_full(left: Counter[str]) -> None:
    """Raise :class:`MlirulesError`, one fault an op, when torch ops are left."""
    if left:
        raise MlirulesError(
            [
                Fault(
                    Span("conversion"),
                    "not-converted",
                    f"full conversion: no rule converts {name} ({count} left)",
                    "`mlirules explain` says which rule came nearest and why it refused",
                )
                for name, count in left.most_common()
            ]
        )
