"""Pipelines at work: a program through its stages, and on through the compiler."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlirules.drivers import compiler, tracking
from mlirules.drivers.configs import ConfigReport, compile_with, config_set
from mlirules.drivers.engine import (
    Engine,
    Options,
    Outcome,
    convert_returned_constants,
    leftovers,
    select,
)
from mlirules.drivers.targets import Target
from mlirules.rules.faults import CheckFailed, Fault, MlirulesError, Span
from mlirules.rules.loader import load_rules
from mlirules.rules.rule import Rule
from mlirules.specs.pipeline import Expect, Pipeline, Stage, default_for

__all__ = [
    "Pipeline", "Transformed", "compile_program", "default_for", "read_program", "rule_set",
    "transform",
]  # fmt: skip


@dataclass
class Transformed:
    """A program after its torch stages."""

    text: str
    outcome: Outcome
    #: Torch ops that no rule converted, by name.
    leftovers: list[str]
    leftover_counts: Counter[str] = field(default_factory=Counter)
    #: What config rules did; None when there were none.
    configs: ConfigReport | None = None

    @property
    def applications(self) -> Counter[str]:
        """Applications by rule."""
        return self.outcome.counts


class LeftoverError(CheckFailed):
    """``--no-fallback`` was given and torch ops are left."""


class ExpectationError(CheckFailed):
    """A rule that the pipeline says must apply did not."""


@functools.lru_cache(maxsize=64)
def rule_set(paths: tuple[str, ...]) -> tuple[Rule, ...]:
    """Rule sets by name or path, read once. Raises :class:`MlirulesError`."""
    return tuple(load_rules(paths, ops=compiler.op_oracle))


_context: Any = None
_engines: dict[tuple[str, ...], Engine] = {}


def shared_context() -> Any:
    """The context that engines share within a process."""
    global _context
    if _context is None:
        _context = compiler.context()
    return _context


def engine_for(rules: Sequence[Rule]) -> Engine:
    """An engine for these rules in the shared context; templates are kept between programs."""
    key = tuple(r.path + ":" + r.name for r in rules)
    if key not in _engines:
        _engines[key] = Engine(rules, shared_context())
    return _engines[key]


def read_program(path: str | Path) -> str:
    """The text of an MLIR program. Raises :class:`MlirulesError` when it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise MlirulesError.at(str(path), f"cannot be read: {reason}", code="file") from None


_INTEGER_RESOURCE = re.compile(r"dense_resource<([^>]+)> : (tensor<[0-9x]*(?:si|ui)\d+>)")


def inline_integer_resources(text: str) -> str:
    """Signed integer resources as literals.

    A literal of signed integers must become one of signless integers, which the bindings cannot do
    for a resource; these are index tables and are small.
    """
    wanted = {m.group(1) for m in _INTEGER_RESOURCE.finditer(text)}
    if not wanted:
        return text
    at = text.rfind("{-#")
    if at < 0:
        return text
    section = text[at:]
    blobs: dict[str, str] = {}
    for found in re.finditer(r'([\w.\-$]+|"[^"]+"): "0x([0-9A-Fa-f]*)"', section):
        name = found.group(1).strip('"')
        if name in wanted:
            blobs[name] = found.group(2)[8:]  # after the alignment, 4 bytes

    def inline(found: re.Match[str]) -> str:
        blob = blobs.get(found.group(1).strip('"'))
        if blob is None:
            return found.group(0)
        if not blob:
            return f"dense<> : {found.group(2)}"
        return f'dense<"0x{blob}"> : {found.group(2)}'

    return _INTEGER_RESOURCE.sub(inline, text[:at]) + section


def stage_rules(stage: Stage) -> list[Rule]:
    """The rules of a stage, filtered."""
    return select(list(rule_set(tuple(stage.rules))), stage.only, stage.skip)


def _options(
    stage: Stage, record: bool, max_rewrites: int | None, bound: int | None, first: int
) -> Options:
    return Options(
        driver=stage.driver, order=stage.order, full=stage.full, record=record,
        max_rewrites=max_rewrites, bound=bound, first=first,
    )  # fmt: skip


def _run_stage(
    stage: Stage, number: int, module: Any, outcome: Outcome, record: bool,
    max_rewrites: int | None, bound: int | None = None, kind: str = "cpu",
) -> None:  # fmt: skip
    left = None if max_rewrites is None else max_rewrites - outcome.total
    options = _options(stage, record, left, bound, outcome.total)
    options.target = kind
    done = engine_for(stage_rules(stage)).run(module, options)
    outcome.merge(done)
    if max_rewrites is None:
        _check_expectations(stage, number, done)


def _check_expectations(stage: Stage, number: int, done: Outcome) -> None:
    names = {r.name for r in stage_rules(stage)}
    problems = []
    if stage.expect is not None:
        problems += _unmet(stage.expect, done.total, f"stage {number} ({', '.join(stage.rules)})")
    for name, expect in stage.expect_rules.items():
        if name not in names:
            problems.append(f"stage {number} expects the rule {name}, which it does not have")
            continue
        problems += _unmet(expect, done.counts[name], f"rule {name}")
    if problems:
        raise ExpectationError("\n".join(problems))


def _unmet(expect: Expect, found: int, what: str) -> list[str]:
    if expect.applied is not None and found != expect.applied:
        return [f"{what} must apply {expect.applied} times, but applied {found} times"]
    if expect.min is not None and found < expect.min:
        return [f"{what} must apply at least {expect.min} times, but applied {found} times"]
    return []


def located(location: str, path: str) -> str:
    """A location with the program's path: a program that was parsed from text is called ``-``."""
    return re.sub(r"(?<![^\s\[,])-(?=:\d+:\d+)", lambda _: path, location)


def transform(
    text: str,
    pipeline: Pipeline | str | None = None,
    *,
    path: str = "<string>",
    record: bool = False,
    max_rewrites: int | None = None,
    bound: int | None = None,
    stages: Iterable[Stage] | None = None,
    kind: str = "cpu",
) -> Transformed:
    """Run a program through a pipeline's torch stages.

    ``kind`` is the kind of target that kernels are chosen for.
    ``max_rewrites`` ends the work after so many applications; more than ``bound`` in one stage are
    taken for a loop (default: by the program's size).

    Raises :class:`MlirulesError` for a program or rule that is wrong, and
    :class:`ExpectationError` when a rule that must apply did not.
    """
    if isinstance(pipeline, str):
        pipeline = Pipeline.load(pipeline)
    if stages is None:
        pipeline = pipeline or default_for("cpu")
        stages = [s for s in pipeline.stages if s.phase == "torch"]
    module = compiler.parse(inline_integer_resources(text), path, shared_context())
    outcome = Outcome()
    if record:
        tracking.number(module)
    for number, stage in enumerate(stages, 1):
        _run_stage(stage, number, module, outcome, record, max_rewrites, bound, kind)
    for application in outcome.applications:
        application.location = located(application.location, path)
    if max_rewrites is None:
        convert_returned_constants(module, shared_context())
    if not module.operation.verify():
        raise MlirulesError.at(path, "the rewritten program does not verify", code="verify")
    if record:
        made = tracking.made(module)
        for application in outcome.applications:
            application.made = made.get(application.number, [])
    counts = leftovers(module)
    return Transformed(str(module), outcome, sorted(counts), counts)


def compile_program(
    text: str,
    target: Target,
    pipeline: Pipeline | None = None,
    *,
    path: str = "<string>",
    fallback: bool = True,
    flags: Sequence[str] = (),
    record: bool = False,
    timeout: float | None = None,
    configs: Sequence[str | Path] = (),
) -> tuple[bytes, Transformed]:
    """The whole way: torch stages, IREE's phases with further stages between them, binary.

    ``configs`` are sets of config rules, tried before those of the pipeline's configuration stages.

    Raises :class:`LeftoverError` when ``fallback`` is False and torch ops are left, and
    :class:`~mlirules.drivers.configs.NotApplied` when a config rule did not take effect.
    """
    pipeline = pipeline or default_for(target.kind)
    if target.kind not in pipeline.targets:
        raise MlirulesError(
            Fault(Span(pipeline.pipeline), "pipeline-target",
                  f"the pipeline is for {', '.join(pipeline.targets)}, not {target}",
                  f"--pipeline {target.kind} is the one shipped for {target.kind}")
        )  # fmt: skip
    done = transform(text, pipeline, path=path, record=record, kind=target.kind)
    if not fallback and done.leftovers:
        listed = "\n".join(f"  {n:>4} x {name}" for name, n in done.leftover_counts.most_common())
        raise LeftoverError(f"{path}: no rule converts these ops:\n{listed}")
    flags = (*pipeline.flags, *flags)
    current = done.text
    resume: str | None = None
    for phase in ("input", "preprocessing"):
        stages = [s for s in pipeline.stages if s.phase == phase]
        if not stages:
            continue
        current = compiler.lower_to(
            current, target, phase, flags=flags, path=path, compile_from=resume, timeout=timeout
        )
        resume = phase
        module = compiler.parse(current, f"{path} after {phase}", shared_context())
        before = len(pipeline.stages) - len(stages)
        for number, stage in enumerate(stages, before + 1):
            _run_stage(stage, number, module, done.outcome, record, None, kind=target.kind)
        current = str(module)
    done = replace(done, text=current if resume is None else done.text)
    stages = [s for s in pipeline.stages if s.phase == "configuration"]
    sets = [*configs, *(name for stage in stages for name in stage.rules)]
    if not sets:
        binary = compiler.compile_module(
            current, target, flags=flags, path=path, compile_from=resume, timeout=timeout
        )
        return binary, done
    binary, report = compile_with(
        current, target, config_set(sets), flags=flags, path=path, compile_from=resume,
        timeout=timeout,
    )  # fmt: skip
    for stage in stages:
        _check_config_expectations(stage, report)
    return binary, replace(done, configs=report)


def _check_config_expectations(stage: Stage, report: ConfigReport) -> None:
    names = {rule.name for rule in config_set(stage.rules)}
    problems = []
    if stage.expect is not None:
        total = sum(report.count(name) for name in names)
        problems += _unmet(stage.expect, total, f"the configuration stage {stage.rules}")
    for name, expect in stage.expect_rules.items():
        if name not in names:
            problems.append(f"the configuration stage expects the rule {name}, which it lacks")
            continue
        problems += _unmet(expect, report.count(name), f"rule {name}")
    if problems:
        raise ExpectationError("\n".join(problems))
