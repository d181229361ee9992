"""The gate of a rule: the programs of its own tests, on inputs that include the edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mlirules.drivers.apply.programs import parsed
from mlirules.drivers.apply.run import Options
from mlirules.drivers.apply.session import Session, current
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import numerics
from mlirules.drivers.quality.custom_ops import ReferenceFailed, of_rules
from mlirules.drivers.quality.verify import Comparison, Counterexample, Settings, Tolerance, verify
from mlirules.language.faults import MlirulesError
from mlirules.language.model import RunDoc, Test
from mlirules.language.rule import Rule


@dataclass
class GateResult:
    """How a rule fared. ``stated`` is the tolerance that the rule states, with its reason."""

    rule: Rule
    comparisons: list[Comparison] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    compiler_wrong: list[str] = field(default_factory=list)
    counterexamples: list[Counterexample] = field(default_factory=list)

    @property
    def stated(self) -> str:
        """The reason that the rule gives for other numbers, empty for none."""
        return self.rule.doc.tolerance

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong, or the rule says why its numbers differ."""
        return not self.problems or bool(self.stated)

    def as_json(self) -> dict[str, object]:
        """The result as plain data."""
        return {
            "rule": self.rule.name,
            "path": self.rule.path,
            "passed": self.passed,
            "tolerance": self.stated,
            "problems": self.problems,
            "skipped": self.skipped,
            "compiler_wrong": self.compiler_wrong,
            "comparisons": len(self.comparisons),
            "references": sorted({c.reference for c in self.comparisons}),
            "max_ulp": max((c.max_ulp for c in self.comparisons), default=0.0),
        }


def run_gate(rule: Rule, targets: Sequence[Target], session: Session | None = None) -> GateResult:
    """Rewrite the programs of a rule's positive tests and verify each on edge values.

    The reference is PyTorch where it is installed, else the compiler without the rule.
    """
    result = GateResult(rule)
    session = session or current()
    for test in rule.tests:
        if test.input is None:
            continue
        try:
            _test(test, targets, result, session)
        except MlirulesError as error:
            said = error.faults[0].message.splitlines()[0][:200]
            told = isinstance(error, ReferenceFailed) or error.faults[0].code == "consent"
            if test.run is None and not told:  # the author has not asked for numbers either
                result.skipped.append(f"{test.name}: {said}")
            else:
                result.problems.append(f"{test.name}: {said}")
    return result


def _test(test: Test, targets: Sequence[Target], result: GateResult, session: Session) -> None:
    rule = result.rule
    assert test.input is not None
    module = parsed(test.input, rule.path, session)
    if not session.engine_for([rule]).run(module, Options()).total:
        result.problems.append(f"{test.name}: the rule did not apply")
        return
    run = test.run or RunDoc()
    settings = Settings(
        targets,
        run.sizes or [()],
        Tolerance(max(run.rtol, 1e-5), max(run.atol, 1e-6)),
        seed=run.seed,
        low=run.low,
        high=run.high,
        first="torch",
        functions=of_rules([rule]),
    )
    if run.inputs is not None:
        _, arguments = numerics.signature(test.input)
        settings.inputs = [
            np.asarray(value, dtype=numerics._NUMPY[element])
            for value, (_, element) in zip(run.inputs, arguments, strict=True)
        ]
        if run.expect is not None:
            settings.expect = [np.asarray(value) for value in run.expect]
    report = verify(test.input, str(module), settings)
    result.comparisons += report.comparisons
    result.compiler_wrong += report.compiler_wrong
    result.skipped += [f"{test.name}: {reason}" for reason in report.skipped]
    for c in report.comparisons:
        if not c.passed:
            sizes = f", sizes {list(c.sizes)}" if c.sizes else ""
            result.problems.append(
                f"{test.name}: {c.target}, {c.inputs}{sizes}, result {c.result}, against "
                f"{c.reference}: {c.message}"
            )
    if report.counterexample is not None:
        result.counterexamples.append(report.counterexample)
