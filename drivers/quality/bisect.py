"""What breaks a program, by binary search: an application of a rule, a flag, a config rule.

The program is compiled as `compile` compiles it, by ever larger parts of what the pipeline does:
first no application of a rule and no flag, then the first applications in their order through all
phases, then the flags one by one, then the config rules.
"""

from __future__ import annotations

import functools
import shlex
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlirules.drivers.apply.run import Application
from mlirules.drivers.apply.session import Session
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import child, numerics
from mlirules.drivers.pipelines.transform import (
    WHOLE,
    Part,
    Recipe,
    Transformed,
    default_for,
    stage_rules,
)
from mlirules.drivers.quality.verify import Settings, Source, verify
from mlirules.language.faults import CheckFailed, MlirulesError
from mlirules.language.stage import Stage
from mlirules.support import children


@dataclass
class Candidate:
    """A program compiled by a part of what its pipeline does; made when it is asked for."""

    recipe: Recipe
    part: Part

    @functools.cached_property
    def text(self) -> str:
        """The program after the applications, as text: what the torch stages make of it."""
        return self.recipe.rewritten(self.part.applications).text

    @functools.cached_property
    def compiled(self) -> tuple[bytes, Transformed]:
        """The program compiled. Raises what `compile` does."""
        return self.recipe.compile(self.part)


#: Whether a program is good.
Check = Callable[[Candidate], bool]


@dataclass
class Culprit:
    """What breaks a program: one of ``application``, ``flag`` and ``config`` (a config rule).

    ``number`` is its place among the ``total`` of all three; ``tried`` programs were checked.
    """

    number: int
    total: int
    tried: int
    application: Application | None = None
    flag: str = ""
    config: str = ""

    def __str__(self) -> str:
        if self.application is not None:
            at = self.application
            return f"application {self.number} of {self.total}: {at.rule} at {at.location}"
        if self.flag:
            return f"the flag {self.flag}"
        return f"the config rule {self.config}"

    def as_json(self) -> dict[str, object]:
        """The culprit as plain data."""
        application = vars(self.application) if self.application is not None else None
        return {
            "application": application,
            "flag": self.flag,
            "config": self.config,
            "number": self.number,
            "total": self.total,
            "tried": self.tried,
        }


@dataclass
class _Steps:
    """All that a pipeline does to a program, one after the other."""

    applications: int
    flags: tuple[str, ...]
    configs: tuple[str, ...]

    @property
    def total(self) -> int:
        return self.applications + len(self.flags) + len(self.configs)

    def part(self, count: int) -> Part:
        """The first ``count`` steps."""
        if count >= self.total:
            return WHOLE
        flags = max(0, count - self.applications)
        configs = max(0, flags - len(self.flags))
        some = count if count < self.applications else None
        return Part(some, self.flags[:flags], configs)

    def said(self) -> str:
        """The steps in words."""
        words = [f"{self.applications} applications"]
        words += [f"{len(self.flags)} flags"] if self.flags else []
        words += [f"{len(self.configs)} config rules"] if self.configs else []
        return ", ".join(words)


def bisect(
    recipe: Recipe,
    good: Check,
    *,
    step: Callable[[str], object] = lambda _: None,
    text_only: bool = False,
) -> Culprit:
    """Find the first step of the pipeline after which ``good`` no longer holds.

    ``text_only``: the check looks at the program before it is compiled, so only the torch stages
    have a say. Raises :class:`CheckFailed` when the program is bad without any rule and flag, or
    good with all of them.
    """
    compiles = True
    if text_only:
        steps = _Steps(recipe.rewritten().outcome.total, (), ())
    else:
        try:
            done = recipe.compile()[1]
            recipe = replace(recipe, pipeline=done.pipeline or recipe.pipeline)
        except (compiler.CompileError, CheckFailed):
            compiles = False
            done = recipe.rewritten()
            pipeline = recipe.pipeline or default_for(recipe.target.kind)
            done.flags = (*pipeline.flags, *recipe.flags)
        names = dict.fromkeys(hit.rule.name for hit in done.configs.hits) if done.configs else ()
        steps = _Steps(done.outcome.total, tuple(dict.fromkeys(done.flags)), tuple(names))
    tried = 0

    def holds(count: int) -> bool:
        nonlocal tried
        tried += 1
        step(f"{count} of {steps.total} steps")
        try:
            return good(Candidate(recipe, steps.part(count)))
        except compiler.CompileError:
            # What is looked for is what breaks the whole: its compilation, or its numbers.
            return compiles

    if not steps.total:
        raise CheckFailed(f"{recipe.path}: no rule applies and there is no flag: nothing to bisect")
    if not holds(0):
        raise CheckFailed(f"{recipe.path}: the check fails without any rule and flag, too")
    if compiles and holds(steps.total):
        raise CheckFailed(f"{recipe.path}: the check holds after all {steps.said()}")
    low, high = 0, steps.total  # good after low, bad after high
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    if high > steps.applications + len(steps.flags):
        config = steps.configs[high - steps.applications - len(steps.flags) - 1]
        return Culprit(high, steps.total, tried, config=config)
    if high > steps.applications:
        flag = steps.flags[high - steps.applications - 1]
        return Culprit(high, steps.total, tried, flag=flag)
    done = recipe.rewritten(high, record=True)
    if len(done.outcome.applications) < high:  # one of a later phase
        done = recipe.compile(Part(high, (), 0), record=True)[1]
    return Culprit(high, steps.total, tried, done.outcome.applications[high - 1])


def by_command(command: str) -> Check:
    """Good is where a command exits with 0.

    ``{}`` in it is the path of the program after the torch stages, ``{vmfb}`` that of the compiled
    program. Raises :class:`MlirulesError` for a command with neither.
    """
    words = shlex.split(command)
    if not any("{}" in word or "{vmfb}" in word for word in words):
        raise MlirulesError.at(
            "--check",
            "says nowhere where the program goes",
            code="check",
            suggestion="write {} for its path, {vmfb} for that of the compiled program: "
            "--check 'mycheck {}'",
        )

    def good(candidate: Candidate) -> bool:
        with tempfile.TemporaryDirectory(prefix="mlirules-") as folder:
            program, binary = Path(folder) / "program.mlir", Path(folder) / "program.vmfb"
            if any("{}" in word for word in words):
                program.write_text(candidate.text, encoding="utf-8")
            if compiled(command):
                binary.write_bytes(candidate.compiled[0])
            filled = [w.replace("{}", str(program)).replace("{vmfb}", str(binary)) for w in words]
            try:
                return children.run(filled).status == 0
            except OSError as error:
                raise MlirulesError.at("--check", f"{words[0]}: {error.strerror}") from None

    return good


def compiled(command: str) -> bool:
    """Whether a command of :func:`by_command` looks at the compiled program."""
    return "{vmfb}" in command


def by_numbers(before: Source, settings: Settings) -> Check:
    """Good is where the program computes what it did without rules and flags."""

    def good(candidate: Candidate) -> bool:
        report = verify(before, lambda _: candidate.compiled[0], settings)
        if not report.comparisons:
            raise CheckFailed("nothing could be compared: " + "; ".join(report.skipped))
        return report.passed

    return good


def by_time(before: Source, target: Target, factor: float) -> Check:
    """Good is where the program takes at most ``factor`` times as long as without rules.

    Both run in turns, in a process of their own; the median of the rounds' ratios counts.
    """
    source = before if isinstance(before, str) else before()
    name, arguments = numerics.signature(source)
    inputs = numerics.random_inputs(arguments)
    plain = compiler.compile_module(source, target)

    def good(candidate: Candidate) -> bool:
        forms = {"plain": plain, "rules": candidate.compiled[0]}
        timed = child.compare(forms, inputs, target, child.Budget(15), function=name)
        # How many times as fast with the rules as without.
        return timed.comparison.ratio("rules").median * factor >= 1.0

    return good


@dataclass
class Ablation:
    """A program with one rule left out (``rule`` empty: with all)."""

    rule: str
    applied: int
    compile_s: float
    run_s: float
    problem: str = ""


def ablate(
    recipe: Recipe,
    *,
    step: Callable[[str], object] = lambda _: None,
    repeat: int = 5,
) -> list[Ablation]:
    """Compile and run time with each rule that applies left out, in turn; all of them first."""
    pipeline = recipe.pipeline or default_for(recipe.target.kind)
    counts = recipe.compile()[1].outcome.counts
    out = []
    for rule in ["", *counts]:
        step(rule or "all rules")
        stages = _without(pipeline.stages, rule, recipe.session) if rule else list(pipeline.stages)
        kept = replace(pipeline, stages=stages)
        out.append(_timed(replace(recipe, pipeline=kept), rule, repeat))
    return out


def _without(stages: Sequence[Stage], rule: str, session: Session | None) -> list[Stage]:
    kept = []
    for stage in stages:
        free = replace(stage, expect=None, expect_rules={})
        rewriting = stage.phase != "configuration"
        names = [r.name for r in stage_rules(stage, session)] if rewriting else []
        if rule not in names:
            kept.append(free)
        elif len(names) > 1:
            kept.append(replace(free, skip=[*stage.skip, rule]))
    return kept


def _timed(recipe: Recipe, rule: str, repeat: int) -> Ablation:
    name, arguments = numerics.signature(recipe.program())
    inputs = numerics.random_inputs(arguments)
    started = time.perf_counter()
    try:
        binary, done = recipe.compile()
        spent = time.perf_counter() - started
        samples = []
        for _ in range(repeat):
            started = time.perf_counter()
            runtime.run(binary, inputs, recipe.target, name)
            samples.append(time.perf_counter() - started)
    except MlirulesError as error:
        said = error.faults[0].message.splitlines()[0][:120]
        return Ablation(rule, 0, 0.0, 0.0, said)
    return Ablation(rule, done.outcome.total, spent, min(samples))
