"""Structured ops against the index equations of a rule that matches by meaning."""

from __future__ import annotations

from collections.abc import Iterator

from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.match import indexing
from mlirules.drivers.match.attempt import State
from mlirules.drivers.match.results import Refusal
from mlirules.drivers.match.values import owner_of
from mlirules.language.rule import Line, Rule
from mlirules.language.signs import said_by


class Equations:
    """Matches the index equations of a rule, from the last one to what feeds it."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        # Targets of earlier equations -> their places.
        self.by_target = {e.target: n for n, (_, e) in enumerate(rule.index_match[:-1])}
        self.said = said_by(rule)

    def ways(
        self, number: int, op: ir.Operation, state: State, refusals: list[Refusal]
    ) -> Iterator[State]:
        """Every way in which ``op`` and what feeds it compute an equation and those before it."""
        line, equation = self.rule.index_match[number]
        if number in state.ops:
            if state.ops[number] == op:
                yield state
            else:
                refusals.append(
                    Refusal(line, "two different ops where the rule has one", depth=state.depth)
                )
            return
        found = indexing.all_matches(equation, op, said=self.said)
        if isinstance(found, indexing.Miss):
            refusals.append(
                Refusal(
                    line,
                    f"{op.name}: {found.message}",
                    found.expected or str(line),
                    found.found or op.name,
                    state.depth - 10 + found.depth,
                    at=op,
                )
            )
            return
        for way in found:
            trial = state.copy()
            trial.ops[number] = op
            trial.depth += 100
            if any(trial.symbols.setdefault(k, v) != v for k, v in way.symbols.items()):
                refusals.append(
                    Refusal(line, "a number differs from another line's", depth=trial.depth)
                )
                continue
            states = iter([trial])
            for name, value in way.inputs.items():
                states = self._inputs(line, name, value, states, refusals)
            yield from states

    def _inputs(
        self,
        line: Line,
        name: str,
        value: ir.Value,
        states: Iterator[State],
        refusals: list[Refusal],
    ) -> Iterator[State]:
        """Bind an operand of an equation, through the equation that computes it if there is one."""
        for state in states:
            known = state.values.get(name)
            if known is not None and known != value:
                refusals.append(
                    Refusal(line, f"{name} stands for two different values here", depth=state.depth)
                )
                continue
            trial = state.copy()
            trial.values[name] = value
            number = self.by_target.get(name)
            if number is None:
                yield trial
                continue
            owner = owner_of(value)
            if owner is None:
                refusals.append(
                    Refusal(
                        self.rule.index_match[number][0],
                        f"{name} is an argument",
                        depth=state.depth,
                    )
                )
                continue
            trial.inner.append(owner.operation)
            yield from self.ways(number, owner.operation, trial, refusals)
