"""All checks of a config rule that its model cannot say."""

from __future__ import annotations

from mlirules.language.checks.config_gpu import GpuChecks
from mlirules.language.checks.config_match import MatchChecks
from mlirules.language.checks.config_tiles import TileChecks
from mlirules.language.config.model import PIPELINES
from mlirules.language.config.op import ConfigRule
from mlirules.language.faults import MlirulesError, did_you_mean
from mlirules.language.source import Path_


class Checker(MatchChecks, TileChecks, GpuChecks):
    """Checks a rule; ``faults`` holds what is wrong."""

    def run(self, *, tests: bool = True) -> ConfigRule | None:
        """The rule, or None where it is too wrong to be one; without ``tests`` it may have none."""
        self.targets()
        rule = self.matched()
        self.vocabulary()
        if rule is not None and not self.faults:
            self.tiles(rule)
            self.gpu(rule)
            self.decomposition(rule)
        if rule is not None and tests:
            self.tests(rule)
        return rule

    def targets(self) -> None:
        """Each target is known, and what it can do is asked."""
        for i, name in enumerate(self.doc.targets):
            kind = name.partition(":")[0]
            if kind not in PIPELINES:
                self.fault(
                    ("targets", i),
                    "target",
                    f"unknown target {name!r}",
                    did_you_mean(name, PIPELINES) or "known: " + ", ".join(PIPELINES),
                )
                continue
            if kind not in self.kinds:
                self.kinds.append(kind)
            # A kind without architecture is every target of it: nothing to look up.
            if self.oracle is not None and (":" in name or kind in ("cpu", "vulkan")):
                try:
                    self.facts.append(self.oracle(name))
                except MlirulesError as error:
                    for fault in error.faults:
                        self.fault(("targets", i), "target", fault.message, fault.suggestion)

    def tests(self, rule: ConfigRule) -> None:
        """Each test says what it shows; one hits and one does not."""
        positive = negative = False
        reasons = self.reasons(rule)
        for i, test in enumerate(self.doc.tests):
            positive |= test.input is not None
            negative |= test.unchanged is not None
            place: Path_ = ("tests", i, "name")
            if (test.input is None) == (test.unchanged is None):
                self.fault(
                    place,
                    "test-input",
                    "a test has either `input:` or `unchanged:`",
                    "`input:`: a program with an op that the entry hits; `unchanged:`: one without",
                    key=True,
                )
            if test.unchanged is not None:
                for key in ("check", "run", "hits"):
                    if getattr(test, key) is not None:
                        self.fault(
                            ("tests", i, key),
                            "test-input",
                            f"an `unchanged:` test has no `{key}:`",
                            key=True,
                        )
                if test.because is None:
                    self.fault(
                        place,
                        "because",
                        "the test does not say what must refuse",
                        f"add `because:`, one of {', '.join(reasons)}",
                        key=True,
                    )
                elif test.because not in reasons:
                    self.fault(
                        ("tests", i, "because"),
                        "because",
                        f"`match` has no {test.because!r}",
                        did_you_mean(test.because, reasons) or "it has " + ", ".join(reasons),
                    )
            elif test.because is not None:
                self.fault(
                    ("tests", i, "because"),
                    "test-input",
                    "`because:` belongs to an `unchanged:` test",
                    key=True,
                )
            if test.target is not None and not rule.fits(test.target):
                self.fault(
                    ("tests", i, "target"),
                    "target",
                    f"the rule is not for {test.target!r}",
                    "it is for " + ", ".join(self.doc.targets),
                )
        for found, code, what in (
            (positive, "no-positive-test", "a program that the entry hits (`input:`)"),
            (negative, "no-negative-test", "one that it must not hit (`unchanged:`)"),
        ):
            if not found:
                self.fault(("tests",), code, f"no test shows {what}", key=True)

    def reasons(self, rule: ConfigRule) -> list[str]:
        """What a `because:` may name."""
        match = rule.match
        if match.op == "operation":
            types = [f"operands.{i}" for i, t in enumerate(match.operands) if t]
            program = ["program"] if match.program is not None else []
            return ["name", *types, *program, *(f"limits.{i}" for i in range(len(match.limits)))]
        types = [f"types.{n}" for n in match.types]
        name = ["name"] if match.name is not None else []
        return ["op", *name, "compute", *types, *(f"dims.{n}" for n in match.dims)]
