"""What rules did to a program."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mlirules.api import pages
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.pipelines.transform import Transformed

if TYPE_CHECKING:
    from mlirules.drivers.apply.run import Application
    from mlirules.drivers.irdiff.changes import Diff
    from mlirules.drivers.match.results import Diagnosis

__all__ = ["Applied", "Explanation"]


class Explanation:
    """Why a rule does not apply to a program, candidate by candidate, the nearest first.

    ``diagnoses`` are the candidates: each says its op and what refuses, with the rule's line.
    """

    def __init__(self, rule: str, applications: int, diagnoses: list[Diagnosis]) -> None:
        self.rule = rule
        self.applications = applications
        self.diagnoses = diagnoses

    @property
    def applies(self) -> bool:
        """Whether the rule applied, or could at some op."""
        return self.applications > 0 or any(d.applies for d in self.diagnoses)

    def lines(self) -> list[str]:
        """The explanation, line by line."""
        out = [f"{self.rule}: applied {self.applications} times"] if self.applications else []
        for diagnosis in self.diagnoses:
            if diagnosis.applies:
                continue
            name = "the program" if diagnosis.op is None else diagnosis.op.name
            out.append(f"{name}: {diagnosis.passed} of {diagnosis.total} parts hold")
            for refusal in diagnosis.refusals:
                where = f"{refusal.line.span}: " if refusal.line is not None else ""
                out.append(f"  {where}{refusal.message}")
        return out or [f"{self.rule}: the program has no op that it could be about"]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return pages.render("lines.html.j2", lines=self.lines())


class Applied:
    """A program after the rules, and what they did."""

    def __init__(
        self,
        done: Transformed,
        path: str,
        before: Callable[[], str],
        explain: Callable[[str], Explanation],
    ) -> None:
        self.facts = done
        self._path = path
        self._before = before
        self._explain = explain

    @property
    def module(self) -> ir.Module:
        """The rewritten program, in the session's context."""
        return self.facts.program.module

    @property
    def applications(self) -> dict[str, int]:
        """Applications by rule."""
        return dict(self.facts.applications)

    @property
    def trace(self) -> list[Application]:
        """Every application in order: rule, place, op, bindings, the IR before and after."""
        return self.facts.outcome.applications

    @property
    def decisions(self) -> list[Any]:
        """Where a cost model weighed rules, and what came out."""
        return self.facts.outcome.decisions

    @property
    def leftovers(self) -> dict[str, int]:
        """Torch ops that no rule converted, by name."""
        return dict(self.facts.leftover_counts)

    @property
    def text(self) -> str:
        """The rewritten program as text."""
        return str(self.module)

    @cached_property
    def _diff(self) -> Diff:
        from mlirules.drivers.irdiff.changes import compare
        from mlirules.drivers.irdiff.provenance import Provenance

        done = self.facts.outcome.applications
        return compare(
            self._before(),
            self.text,
            names=(f"{self._path} (before)", f"{self._path} (after)"),
            provenance=Provenance.of(vars(a) for a in done) if done else None,
        )

    def diff(self) -> Diff:
        """What changed, op by op, and which rule did it."""
        return self._diff

    def explain(self, rule: str) -> Explanation:
        """Why a rule of the session's pipeline does not apply to the program that was given.

        Raises :class:`MlirulesError` when the pipeline has no such rule.
        """
        return self._explain(rule)

    def __repr__(self) -> str:
        total = self.facts.outcome.total
        return f"<{self._path}: {total} applications of {len(self.applications)} rules>"

    def _repr_html_(self) -> str:
        recorded = bool(self.facts.outcome.applications)
        return pages.render(
            "applied.html.j2",
            program=self,
            decisions=[str(decision) for decision in self.decisions],
            changes=self.diff().changes if recorded else None,
        )
