"""`compile --check`: a compiled program against plain IREE's, or against given results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mlirules.drivers.pipelines.transform import Recipe
from mlirules.drivers.quality import bisect as bisecting
from mlirules.drivers.quality import custom_ops
from mlirules.drivers.quality.verify import WHOLE_PROGRAMS, Report, Settings, Tolerance, verify
from mlirules.language.faults import CheckFailed

Array = npt.NDArray[Any]


@dataclass
class Checked:
    """What a check found: its report, and what made the difference if there is one."""

    report: Report
    culprit: bisecting.Culprit | None = None
    #: Why what made the difference is not known.
    unknown: str = ""

    @property
    def skipped(self) -> bool:
        """Whether nothing could be compared."""
        return not self.report.comparisons

    @property
    def failed(self) -> bool:
        """Whether a result differs."""
        return any(not c.passed for c in self.report.comparisons)

    def message(self) -> str:
        """What differs, and what made it so."""
        wrong = [c for c in self.report.comparisons if not c.passed]
        first = wrong[0]
        called = f", @{first.function}" if first.function else ""
        said = (
            f"{len(wrong)} of {len(self.report.comparisons)} results differ; {first.target}{called}"
            f", {first.inputs} inputs, result {first.result}, against {first.reference}: "
            f"{first.message}"
        )
        if self.culprit is not None:
            return f"{said}\nmade by {self.culprit}"
        return f"{said}\nwhat made it is not known: {self.unknown}"

    def as_json(self) -> dict[str, object]:
        """The check as plain data."""
        return {
            "passed": not self.failed and not self.skipped,
            "skipped": self.report.skipped,
            "references": self.report.references,
            "culprit": self.culprit.as_json() if self.culprit is not None else None,
            "unknown": self.unknown,
            "comparisons": [c.as_json() for c in self.report.comparisons],
        }


@dataclass(frozen=True)
class Call:
    """What a program is called with, and what that is to give."""

    #: None: random and edge inputs.
    inputs: Sequence[Array] | None = None
    #: None: what plain IREE makes of it.
    expect: Sequence[Array] | None = None
    #: None: every function.
    function: str | None = None


def check(
    recipe: Recipe,
    binary: bytes,
    *,
    tolerance: Tolerance = WHOLE_PROGRAMS,
    call: Call | None = None,
    parameters: Sequence[str] = (),
    step: Callable[[str], object] = lambda _: None,
) -> Checked:
    """Run a compiled program and what plain IREE makes of it on random and edge inputs.

    With ``call``, as it says. A difference is traced to the application, flag or config rule that
    made it.
    """
    call = call or Call()
    settings = Settings(
        [recipe.target],
        sizes=[(), (1,), (5,)],
        tolerance=tolerance,
        inputs=call.inputs,
        expect=call.expect,
        function=call.function,
        finite=True,
        isolated=True,
        parameters=parameters,
        timeout=recipe.timeout or 600,
        functions={} if call.expect is not None else custom_ops.of_recipe(recipe),
    )
    checked = Checked(verify(recipe.source, lambda _: binary, settings, step))
    if not checked.failed:
        return checked
    example = checked.report.counterexample
    once = replace(settings, stop=True)
    if example is not None:
        once = replace(
            once,
            inputs=example.inputs,
            expect=[np.asarray(a) for a in example.expected],
            function=example.function,
        )
    step("looking for what makes the difference")
    try:
        good = bisecting.by_numbers(recipe.source, once)
        checked.culprit = bisecting.bisect(recipe, good, step=step)
    except CheckFailed as failed:
        checked.unknown = str(failed)
    return checked
