"""Verification by workers: gates and mutants of rules, and one program on several targets.

With one worker all happens in this process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlirules.drivers.apply.programs import load_program
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import Recipe, rule_set
from mlirules.drivers.quality import custom_ops, mutation
from mlirules.drivers.quality.config_test import any_rules
from mlirules.drivers.quality.gate import GateResult, run_gate
from mlirules.drivers.quality.synthesis import Synthesis
from mlirules.drivers.quality.verify import Report, Settings, verify
from mlirules.language import consent
from mlirules.language.faults import MlirulesError
from mlirules.language.rule import Rule
from mlirules.language.workers import workers as workers_of
from mlirules.support.pool import Done, Ended, Job, Tell, Work, outcomes

#: Seconds that the gate or the mutants of one rule, or a program on one target, may take.
TIMEOUT = 3600.0


# ---- a job for each rule --------------------------------------------------------------------


def _in_order(
    work: Work, rules: Sequence[Rule], workers: str, step: Callable[[str], object]
) -> Iterator[Done]:
    """What came of the work on each rule, in the order of the rules."""
    jobs = [Job((rule.path, rule.name)) for rule in rules]
    made: dict[int, Done] = {}
    told = 0
    with workers_of(workers) as pool:
        for done in outcomes(pool, work, jobs):
            step(rules[done.job].name)
            made[done.job] = done
            while told in made:
                yield made.pop(told)
                told += 1


def _fate(ended: Ended) -> str:
    return f"the worker {ended.fate}: {ended.why}"


def run_gates(
    paths: Sequence[str],
    rules: Sequence[Rule],
    targets: Sequence[Target],
    workers: str = "1",
    step: Callable[[str], object] = lambda _: None,
) -> Iterator[GateResult]:
    """The gates of ``rules``, in order; the rule sets ``paths`` hold them.

    A worker that dies or takes too long is a problem of the rule that it was at. Raises
    MlirulesError.
    """
    if workers == "1":
        for rule in rules:
            step(rule.name)
            yield run_gate(rule, targets)
        return
    given = tuple(paths), tuple(t.name for t in targets), consent.current()
    work = Work(f"{__name__}:Gates", given, TIMEOUT)
    for rule, done in zip(rules, _in_order(work, rules, workers, step), strict=True):
        result = GateResult(rule)
        if done.ended.fate:
            result.problems.append(_fate(done.ended))
        else:
            (fields,) = done.said
            result = replace(result, **fields)
        yield result


class Gates:
    """What a worker does: run the gate of a rule."""

    def __init__(self, given: tuple[tuple[str, ...], tuple[str, ...], consent.Consent]) -> None:
        paths, targets, said = given
        consent.grant(native=said.native, python=said.python)
        self._rules = {(rule.path, rule.name): rule for rule in rule_set(paths)}
        self._targets = [Target.parse(name) for name in targets]

    def __call__(self, job: tuple[str, str], tell: Tell) -> None:
        """Tell the result without its rule, as fields."""
        result = run_gate(self._rules[job], self._targets)
        tell({name: value for name, value in vars(result).items() if name != "rule"})


def run_mutants(
    paths: Sequence[str],
    rules: Sequence[Rule],
    numbers: bool,
    workers: str = "1",
    step: Callable[[str], object] = lambda _: None,
) -> Iterator[mutation.Report]:
    """What tests see of the conditions of ``rules``, in order; the rule sets ``paths`` hold them.

    ``numbers`` as for :func:`mutation.measure`. A worker that dies or takes too long is a problem
    of the rule that it was at. Raises MlirulesError.
    """
    if workers == "1":
        for rule in rules:
            step(rule.name)
            yield mutation.measure(rule, numbers=numbers)
        return
    work = Work(f"{__name__}:Mutants", (tuple(paths), numbers, consent.current()), TIMEOUT)
    for rule, done in zip(rules, _in_order(work, rules, workers, step), strict=True):
        if done.ended.fate:
            yield mutation.Report(rule, Synthesis(rule), [_fate(done.ended)])
        else:
            yield from done.said


class Mutants:
    """What a worker does: tell what the tests of a rule see of its conditions."""

    def __init__(self, given: tuple[tuple[str, ...], bool, consent.Consent]) -> None:
        paths, self._numbers, said = given
        consent.grant(native=said.native, python=said.python)
        rules = (rule for rule in any_rules(paths) if isinstance(rule, Rule))
        self._rules = {(rule.path, rule.name): rule for rule in rules}

    def __call__(self, job: tuple[str, str], tell: Tell) -> None:
        """Tell the report."""
        tell(mutation.measure(self._rules[job], numbers=self._numbers))


# ---- one program ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """A program's recipes without their source, by target, and how it is verified."""

    recipes: Mapping[Target, Recipe]
    settings: Settings
    consent: consent.Consent


@dataclass(frozen=True)
class Verified:
    """A report, how often rules applied by target, and what compiling told."""

    report: Report
    applied: dict[str, int]
    notes: list[str]


def verify_recipes(
    recipes: Mapping[Target, Recipe], settings: Settings, workers: str = "1"
) -> tuple[Report, dict[str, int], list[str]]:
    """Hold a program, compiled by a recipe for each target, against itself without rules.

    Several workers take a target each. Returns the report, how often rules applied by target, and
    what compiling told. Raises MlirulesError as :func:`verify` does, and for a worker that dies.
    """
    first = next(iter(recipes.values()))
    if workers == "1":
        made = _verified(recipes, settings)
        return made.report, made.applied, made.notes
    # Neither what reads the program nor Python functions go through a pipe.
    bare = {target: _bare(recipe) for target, recipe in recipes.items()}
    setup = Setup(bare, replace(settings, functions={}), consent.current())
    jobs = [Job(target) for target in settings.targets]
    found: dict[int, Verified] = {}
    with workers_of(workers) as pool:
        for done in outcomes(pool, Work(f"{__name__}:Program", setup, TIMEOUT), jobs):
            if done.ended.fate:
                raise MlirulesError.at(
                    first.path,
                    f"the worker that verified it for {settings.targets[done.job]} "
                    f"{done.ended.fate}: {done.ended.why}",
                    code="crash" if done.ended.fate == "died" else "timeout",
                )
            (found[done.job],) = done.said
    report = Report()
    applied: dict[str, int] = {}
    notes: list[str] = []
    for _, one in sorted(found.items()):
        report.comparisons += one.report.comparisons
        report.compiler_wrong += one.report.compiler_wrong
        report.skipped += [s for s in one.report.skipped if s not in report.skipped]
        if report.counterexample is None and one.report.counterexample is not None:
            report.counterexample = replace(one.report.counterexample, source=first.source)
        applied |= one.applied
        notes += [said for said in one.notes if said not in notes]
    return report, applied, notes


def _bare(recipe: Recipe) -> Recipe:
    """A recipe without the functions that it holds; what is weighed is not told then."""
    costs = recipe.costs and replace(recipe.costs, progress=str)
    return replace(recipe, source="", costs=costs)


def _verified(recipes: Mapping[Target, Recipe], settings: Settings) -> Verified:
    applied: dict[str, int] = {}
    notes: list[str] = []

    def build(target: Target) -> bytes:
        binary, done = recipes[target].compile()
        applied[target.name] = done.outcome.total
        notes.extend(said for said in done.notes if said not in notes)
        return binary

    report = verify(next(iter(recipes.values())).source, build, settings)
    return Verified(report, applied, notes)


class Program:
    """What a worker does: verify the program on a target."""

    def __init__(self, setup: Setup) -> None:
        consent.grant(native=setup.consent.native, python=setup.consent.python)
        self._recipes = {
            target: replace(recipe, source=functools.partial(load_program, Path(recipe.path)))
            for target, recipe in setup.recipes.items()
        }
        functions: custom_ops.Functions = {}
        for recipe in self._recipes.values():
            functions = {**functions, **custom_ops.of_recipe(recipe)}
        self._settings = replace(setup.settings, functions=functions)

    def __call__(self, target: Target, tell: Tell) -> None:
        """Tell what is :class:`Verified`."""
        settings = replace(self._settings, targets=[target])
        made = _verified({target: self._recipes[target]}, settings)
        if made.report.counterexample is not None:
            made.report.counterexample.source = ""
        tell(made)
