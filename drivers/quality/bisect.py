"""The first rule application that breaks a program, by binary search over the applications."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlirules.drivers.apply.engine import Application
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import numerics
from mlirules.drivers.measure.timing import paired
from mlirules.drivers.pipelines import cost
from mlirules.drivers.pipelines.transform import stage_rules, transform
from mlirules.drivers.quality.verify import Settings, verify
from mlirules.language.faults import CheckFailed, MlirulesError
from mlirules.language.pipeline import Stage

#: Whether a program, given as text, is good.
Check = Callable[[str], bool]


@dataclass
class Culprit:
    """The application that breaks a program; ``tried`` programs were checked to find it."""

    application: Application
    total: int
    tried: int


def bisect(
    text: str,
    stages: Sequence[Stage],
    good: Check,
    *,
    path: str = "<string>",
    step: Callable[[str], object] = lambda _: None,
    costs: cost.Settings | None = None,
) -> Culprit:
    """Find the first application after which ``good`` no longer holds.

    ``costs`` is what cost stages decide by.
    Raises :class:`CheckFailed` when the program is bad without any rule or good with all of them.
    """
    total = transform(text, path=path, stages=stages, costs=costs).outcome.total
    tried = 0

    def holds(count: int) -> bool:
        nonlocal tried
        tried += 1
        step(f"{count} of {total} applications")
        done = transform(text, path=path, stages=stages, max_rewrites=count, costs=costs)
        return good(done.text)

    if not total:
        raise CheckFailed(f"{path}: no rule applies: nothing to bisect")
    if not holds(0):
        raise CheckFailed(f"{path}: the check fails without any rule, too")
    if holds(total):
        raise CheckFailed(f"{path}: the check holds after all {total} applications")
    low, high = 0, total  # good after low, bad after high
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    done = transform(text, path=path, stages=stages, record=True, max_rewrites=high, costs=costs)
    return Culprit(done.outcome.applications[high - 1], total, tried)


def by_command(command: str) -> Check:
    """Good is where a command exits with 0; ``{}`` in it is the program's path.

    Raises :class:`MlirulesError` for a command without ``{}``.
    """
    words = shlex.split(command)
    if not any("{}" in word for word in words):
        raise MlirulesError.at(
            "--check",
            "says nowhere where the program goes",
            code="check",
            suggestion="write {} for its path: --check 'mycheck {}'",
        )

    def good(text: str) -> bool:
        with tempfile.TemporaryDirectory(prefix="mlirules-") as folder:
            program = Path(folder) / "program.mlir"
            program.write_text(text, encoding="utf-8")
            filled = [word.replace("{}", str(program)) for word in words]
            try:
                return subprocess.run(filled, capture_output=True, check=False).returncode == 0
            except OSError as error:
                raise MlirulesError.at("--check", f"{words[0]}: {error.strerror}") from None

    return good


def by_numbers(before: str, settings: Settings) -> Check:
    """Good is where the program computes what it did without rules."""

    def good(text: str) -> bool:
        try:
            report = verify(before, text, settings)
        except MlirulesError:
            return False  # it does not compile any more
        if not report.comparisons:
            raise CheckFailed("nothing could be compared: " + "; ".join(report.skipped))
        return report.passed

    return good


def by_time(before: str, target: Target, factor: float) -> Check:
    """Good is where the program takes at most ``factor`` times as long as without rules.

    Both stay loaded and run in turns; the median of the rounds' ratios counts.
    """
    name, arguments = numerics.signature(before)
    inputs = numerics.random_inputs(arguments)

    def loaded(text: str) -> runtime.Program:
        return runtime.Program(compiler.compile_module(text, target), inputs, target.device, name)

    plain = loaded(before)

    def good(text: str) -> bool:
        timed = paired({"plain": plain, "rules": loaded(text)}, baseline="plain", rounds=15)
        # How many times as fast with the rules as without.
        return timed.ratio("rules").median * factor >= 1.0

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
    text: str,
    stages: Sequence[Stage],
    target: Target,
    *,
    path: str = "<string>",
    step: Callable[[str], object] = lambda _: None,
    repeat: int = 5,
    costs: cost.Settings | None = None,
) -> list[Ablation]:
    """Compile and run time with each rule that applies left out, in turn; all of them first."""
    counts = transform(text, path=path, stages=stages, costs=costs).outcome.counts
    out = []
    for rule in ["", *counts]:
        step(rule or "all rules")
        kept = _without(stages, rule) if rule else list(stages)
        out.append(_timed(text, kept, target, rule, path, repeat, costs))
    return out


def _without(stages: Sequence[Stage], rule: str) -> list[Stage]:
    kept = []
    for stage in stages:
        names = [r.name for r in stage_rules(stage)]
        if rule not in names:
            kept.append(stage)
        elif len(names) > 1:
            kept.append(stage.model_copy(update={"skip": [*stage.skip, rule]}))
    return kept


def _timed(
    text: str,
    stages: Sequence[Stage],
    target: Target,
    rule: str,
    path: str,
    repeat: int,
    costs: cost.Settings | None,
) -> Ablation:
    done = transform(text, path=path, stages=stages, costs=costs)
    started = time.perf_counter()
    name, arguments = numerics.signature(text)
    inputs = numerics.random_inputs(arguments)
    try:
        binary = compiler.compile_module(done.text, target, path=path)
        compiled = time.perf_counter() - started
        samples = []
        for _ in range(repeat):
            started = time.perf_counter()
            runtime.run(binary, inputs, target, name)
            samples.append(time.perf_counter() - started)
    except MlirulesError as error:
        said = error.faults[0].message.splitlines()[0][:120]
        return Ablation(rule, done.outcome.total, 0.0, 0.0, said)
    return Ablation(rule, done.outcome.total, compiled, min(samples))
