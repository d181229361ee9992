"""Rules' inline tests in processes of their own: what crashes costs one test, not the run.

A worker of a pool runs the tests of one rule after the other and says each result. Where it dies,
the test that it was at has failed, and a worker goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mlirules.drivers.quality.config_test import any_rules, run_any_test
from mlirules.drivers.quality.ruletest import TestResult
from mlirules.language import consent
from mlirules.language.config.op import ConfigRule
from mlirules.language.rule import Rule
from mlirules.language.workers import workers as workers_of
from mlirules.support.pool import Ended, Job, Said, Tell, Work

#: Seconds that one test may take.
TIMEOUT = 900.0


@dataclass(frozen=True)
class Setup:
    """What workers need of a run."""

    #: The rule sets that hold the rules.
    paths: tuple[str, ...]
    #: None: all that are here.
    devices: tuple[str, ...] | None = None
    bounds: bool = True
    consent: consent.Consent = field(default_factory=consent.current)


def run_apart(
    setup: Setup,
    rules: Sequence[Rule | ConfigRule],
    *,
    step: Callable[[str], object] = lambda _: None,
    timeout: float = TIMEOUT,
    workers: str = "1",
) -> Iterator[TestResult]:
    """The results of the inline tests of ``rules``, in order; the rule sets of ``setup`` hold them.

    A result is given as soon as those before it are there. Raises MlirulesError.
    """
    work = Work(f"{__name__}:Tests", setup, timeout)
    made: dict[tuple[int, int], TestResult] = {}
    places = [(r, t) for r, rule in enumerate(rules) for t in range(len(rule.tests))]
    told = 0
    #: Rules that are left, by their first test that is.
    left = {r: 0 for r, rule in enumerate(rules) if rule.tests}
    with workers_of(workers) as pool:
        while left:
            numbers = list(left)
            jobs = [Job((rules[r].path, rules[r].name, left[r])) for r in numbers]
            for one in pool.run(work, jobs):
                number = numbers[one.job]
                rule = rules[number]
                # A worker may end badly, too, after it told the last result.
                if isinstance(one, Ended) and (not one.fate or left[number] == len(rule.tests)):
                    del left[number]
                    continue
                test = rule.tests[left[number]]
                made[number, left[number]] = (
                    TestResult(rule, test, *one.value)
                    if isinstance(one, Said)
                    else TestResult(rule, test, [_fate(one, timeout)])
                )
                left[number] += 1
                step(rule.name)
                if isinstance(one, Ended) and left[number] == len(rule.tests):
                    del left[number]
                while told < len(places) and places[told] in made:
                    yield made.pop(places[told])
                    told += 1


def _fate(ended: Ended, timeout: float) -> str:
    """How the worker ended."""
    if ended.fate == "timed out":
        return f"did not end within {timeout:g} s"
    said = [line for line in ended.stderr.splitlines() if line.strip()]
    if ended.status is None:
        return f"was lost: {ended.why}"
    if ended.status < 0:
        # What a crashing compiler says begins with the cause and goes on with its stack.
        shown = f": {said[0][:200]}" if said else ""
        return f"crashed the compiler or runtime ({ended.why}){shown}"
    return f"ended its process with exit code {ended.status}" + (
        f": {said[-1][:300]}" if said else ""
    )


class Tests:
    """What a worker does: run the tests of a rule from one on, and tell each result."""

    def __init__(self, setup: Setup) -> None:
        consent.grant(native=setup.consent.native, python=setup.consent.python)
        self._setup = setup
        self._rules = {(rule.path, rule.name): rule for rule in any_rules(setup.paths)}

    def __call__(self, job: tuple[str, str, int], tell: Tell) -> None:
        """Tell problems, what was skipped, and the output of each test."""
        path, name, start = job
        rule = self._rules[path, name]
        for test in rule.tests[start:]:
            result = run_any_test(
                rule, test, devices=self._setup.devices, bounds=self._setup.bounds
            )
            tell((result.problems, result.skipped, result.output))
