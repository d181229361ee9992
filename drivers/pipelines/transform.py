"""Pipelines at work: a program through its stages, and on through the compiler."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlirules.drivers.apply import leftovers as leftovers_of
from mlirules.drivers.apply import session, tracking
from mlirules.drivers.apply.complexes import guard_complex
from mlirules.drivers.apply.copies import guard_copies
from mlirules.drivers.apply.engine import (
    Engine,
    convert_returned_constants,
    leftovers,
    op_names,
    select,
)
from mlirules.drivers.apply.gathers import configure_gathers
from mlirules.drivers.apply.invariant import guard_sums
from mlirules.drivers.apply.looporder import order_loops
from mlirules.drivers.apply.programs import as_program, located, shared_context
from mlirules.drivers.apply.rereading import guard_reductions
from mlirules.drivers.apply.run import Options, Outcome
from mlirules.drivers.apply.slices import guard_slices
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import Program, ir
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines import cost, makeway
from mlirules.drivers.pipelines.phases import check_dispatched, check_rules
from mlirules.language.faults import CheckFailed, Fault, MlirulesError, Span, did_you_mean
from mlirules.language.library import Entry, RuleSet, reachable
from mlirules.language.pipeline import Pipeline, default_for
from mlirules.language.rule import Rule
from mlirules.language.stage import DISPATCHED, LATER, Expect, Stage, as_data

if TYPE_CHECKING:
    from mlirules.drivers.tuning_specs.compile import ConfigReport

__all__ = [
    "WHOLE",
    "Part",
    "Pipeline",
    "Recipe",
    "Transformed",
    "compile_program",
    "default_for",
    "program_at",
    "rule_set",
    "transform",
]


@dataclass
class Transformed:
    """A program after its torch stages."""

    program: Program
    outcome: Outcome
    #: Torch ops that no rule converted, by name.
    leftovers: list[str]
    leftover_counts: Counter[str] = field(default_factory=Counter)
    #: What config rules did; None when there were none.
    configs: ConfigReport | None = None
    #: What was not done as the pipeline says, and why.
    notes: list[str] = field(default_factory=list)
    #: The flags that the compiler was given: the pipeline's, then the user's.
    flags: tuple[str, ...] = ()

    @functools.cached_property
    def text(self) -> str:
        """The program as text, weights included: not for programs on their way to the compiler."""
        return str(self.program.module)

    @property
    def applications(self) -> Counter[str]:
        """Applications by rule."""
        return self.outcome.counts


@dataclass(frozen=True)
class Part:
    """A part of what a pipeline does to a program; None stands for all.

    The first ``applications`` of its rules in the order of the phases, these ``flags`` of its own
    and of the user's, and the first of its config rules.
    """

    applications: int | None = None
    flags: tuple[str, ...] | None = None
    configs: int | None = None


#: All that a pipeline does.
WHOLE = Part()


@dataclass(frozen=True)
class Recipe:
    """How a program is compiled: what `compile`, `verify`, `bench` and `bisect` have in common."""

    #: The program: its text, or what reads it (it is changed while it is compiled).
    source: str | Callable[[], Program]
    target: Target
    #: None: the target's default.
    pipeline: Pipeline | None = None
    path: str = "<string>"
    #: Further flags of the user's.
    flags: tuple[str, ...] = ()
    configs: tuple[str | Path, ...] = ()
    costs: cost.Settings | None = None
    timeout: float | None = None

    def program(self) -> str | Program:
        """The program before any rule."""
        return self.source if isinstance(self.source, str) else self.source()

    def compile(
        self, part: Part = WHOLE, *, record: bool = False, fallback: bool = True
    ) -> tuple[bytes, Transformed]:
        """Compile the program by the pipeline or a part of it; raises as `compile_program` does."""
        return compile_program(
            self.program(),
            self.target,
            self.pipeline,
            path=self.path,
            fallback=fallback,
            flags=self.flags,
            record=record,
            timeout=self.timeout,
            configs=self.configs,
            costs=self.costs,
            part=part,
        )

    def rewritten(self, applications: int | None = None, *, record: bool = False) -> Transformed:
        """The program after the torch stages, or after their first applications."""
        program = as_program(self.program(), self.path)
        line = self.pipeline or default_for(self.target.kind)
        pipeline, _ = makeway.for_weights(line, program.module)
        flags = (*pipeline.flags, *self.flags)
        costs = self.costs or cost.Settings(self.target)
        return transform(
            program,
            pipeline,
            path=self.path,
            record=record,
            max_rewrites=applications,
            costs=replace(costs, target=self.target, flags=flags),
            kind=self.target.kind,
        )


class LeftoverError(CheckFailed):
    """``--no-fallback`` was given and torch ops are left."""


class ExpectationError(CheckFailed):
    """A rule that the pipeline says must apply did not."""


def library(paths: tuple[str, ...]) -> RuleSet:
    """Rule sets by name or path: their rules are read when they are needed.

    Raises :class:`MlirulesError` with the faults of all rules.
    """
    return session.current().library(paths)


def rule_set(paths: tuple[str, ...]) -> tuple[Rule, ...]:
    """The rules of rule sets by name or path. Raises :class:`MlirulesError`."""
    return tuple(library(paths).rules())


def engine_for(rules: Sequence[Rule]) -> Engine:
    """An engine for these rules in the session's context; what it decides is kept."""
    return session.current().engine_for(rules)


def stage_entries(stage: Stage) -> list[Entry]:
    """The rules of a stage, filtered, as far as they are known without being read."""
    return select(library(tuple(stage.rules)).entries, stage.only, stage.skip)


def stage_rules(stage: Stage) -> list[Rule]:
    """The rules of a stage, filtered."""
    return [entry.rule for entry in stage_entries(stage)]


def _stage_engine(stage: Stage, module: Any) -> Engine:
    """The engine of a stage, with the rules that a program can come to need."""
    entries = stage_entries(stage)
    key = tuple(f"{e.digest}:{e.path}:{e.name}" for e in entries)
    engine = session.current().engine(key)
    engine.include([e.rule for e in reachable(entries, op_names(module))])
    return engine


def _options(
    stage: Stage,
    record: bool,
    max_rewrites: int | None,
    bound: int | None,
    first: int,
    texts: bool,
) -> Options:
    return Options(
        driver=stage.driver,
        order=stage.order,
        full=stage.full,
        record=record,
        max_rewrites=max_rewrites,
        bound=bound,
        first=first,
        texts=texts,
    )


def _run_stage(
    stage: Stage,
    number: int,
    module: Any,
    outcome: Outcome,
    record: bool,
    max_rewrites: int | None,
    bound: int | None = None,
    texts: bool = True,
    rest: Sequence[Stage] = (),
    costs: cost.Settings | None = None,
    kind: str = "cpu",
) -> None:
    left = None if max_rewrites is None else max_rewrites - outcome.total
    options = _options(stage, record, left, bound, outcome.total, texts)
    options.target = kind
    if costs is not None and kind == "cpu" == costs.target.kind:
        options.cpu = costs.target.architecture
    engine = _stage_engine(stage, module)
    if stage.driver == "saturate":
        from mlirules.drivers.measure import opcost, roofline

        known = roofline.parameters(costs.target.kind if costs is not None else kind)
        options.weigh = functools.partial(opcost.seconds, known=known)
        options.nodes, options.seconds = stage.nodes, stage.seconds
        options.rounds, options.megabytes = stage.rounds, stage.megabytes
        options.margin = stage.margin or 0.0
    if stage.driver == "cost":
        options.accept = judge = _judge(stage, engine, rest, costs)
    done = engine.run(module, options)
    if stage.driver == "cost":
        done.decisions = judge.decisions
    outcome.merge(done)
    if max_rewrites is None:
        _check_expectations(stage, number, done)


def _judge(
    stage: Stage, engine: Engine, rest: Sequence[Stage], costs: cost.Settings | None
) -> cost.Judge:
    """Decides for a cost stage; what it weighs goes through the ``rest`` of the stages."""
    if costs is None:
        raise MlirulesError.at(
            ", ".join(stage.rules),
            "whether a rule pays depends on the target, and none is given",
            code="cost",
            suggestion="give --target",
        )
    if stage.margin is not None:
        costs = replace(costs, margin=stage.margin)
    # What other cost stages would do is left out: weighing it here would not end.
    plain = [s for s in rest if s.driver != "cost"]
    torch = [s for s in plain if s.phase == "torch"]
    later = Pipeline(
        pipeline="rest",
        summary="the rest",
        targets=[costs.target.kind],
        stages=[s for s in plain if s.phase in LATER],
    )

    def finish(text: str) -> cost.Candidate:
        done = transform(
            text, path="<piece>", stages=[_unexpecting(s) for s in torch], kind=costs.target.kind
        )
        if not later.stages:
            return cost.Candidate(done.text)
        filled = as_program(cost.filled(done.text), "<piece>")
        last, resume = _later_stages(
            replace(done, program=filled),
            later,
            costs.target,
            costs.flags,
            "<piece>",
            costs.timeout,
        )
        return cost.Candidate(str(last.module), resume)

    return cost.Judge(engine.matchers, engine.context, costs, finish, lambda: _content(plain))


def _content(stages: Sequence[Stage]) -> str:
    """What stages do, by the content of their rules; empty where files beside those take part."""
    said = []
    for stage in stages:
        if stage.phase == "configuration":
            continue
        rules = library(tuple(stage.rules))
        if any(entry.kind == "kernel" for entry in rules.entries):
            return ""
        said.append(f"{json.dumps(as_data(stage))} {rules.digest}")
    return "\0".join(["stages", *said])


def _unexpecting(stage: Stage) -> Stage:
    """A stage that need not apply: a piece of a program has few of its ops."""
    return replace(stage, expect=None, expect_rules={})


def _check_expectations(stage: Stage, number: int, done: Outcome) -> None:
    if stage.expect is None and not stage.expect_rules:
        return
    names = {e.name for e in stage_entries(stage)}
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


def _locate(outcome: Outcome, path: str) -> None:
    """Give the places in an outcome the name of their program."""
    for place in (*outcome.applications, *outcome.decisions):
        place.location = located(place.location, path)


def transform(
    source: str | ir.Module | Program,
    pipeline: Pipeline | str | None = None,
    *,
    path: str = "<string>",
    record: bool = False,
    texts: bool = True,
    max_rewrites: int | None = None,
    bound: int | None = None,
    stages: Iterable[Stage] | None = None,
    costs: cost.Settings | None = None,
    kind: str = "",
) -> Transformed:
    """Run a program through a pipeline's torch stages.

    A module of :func:`shared_context` is changed in place.

    ``kind`` is the kind of target that kernels are chosen for (default: that of ``costs``, else
    the cpu), and whose default pipeline is taken where neither ``pipeline`` nor ``stages`` are
    given.

    ``record`` keeps every application, and ``texts`` with it the IR before and after each.
    ``max_rewrites`` ends the work after so many applications; more than ``bound`` in one stage are
    taken for a loop (default: by the program's size). ``costs`` is what cost stages decide by
    (default: for a pipeline, the roofline model for this machine's cpu or Vulkan device; none for
    ``stages``).

    Raises :class:`MlirulesError` for a program or rule that is wrong, and
    :class:`ExpectationError` when a rule that must apply did not.
    """
    if isinstance(pipeline, str):
        pipeline = Pipeline.load(pipeline)
    if stages is None:
        pipeline = pipeline or default_for(kind or (costs.target.kind if costs else "cpu"))
        stages = pipeline.stages
        if costs is None and (here := kind or pipeline.targets[0]) in ("cpu", "vulkan"):
            costs = cost.Settings(Target(here), flags=tuple(pipeline.flags))
    stages = list(stages)
    kind = kind or (costs.target.kind if costs is not None else "cpu")
    if costs is not None:
        told = costs.progress
        costs = replace(costs, progress=lambda what: told(located(what, path)))
    given = as_program(source, path)
    module = given.module
    outcome = Outcome()
    if record:
        tracking.number(module)
    with session.current().steady():
        for number, stage in enumerate(stages, 1):
            if stage.phase == "torch":
                _run_stage(
                    stage,
                    number,
                    module,
                    outcome,
                    record,
                    max_rewrites,
                    bound,
                    texts,
                    stages[number:],
                    costs,
                    kind,
                )
    _locate(outcome, path)
    if max_rewrites is None:
        convert_returned_constants(module, shared_context())
    if not module.operation.verify():
        raise MlirulesError.at(path, "the rewritten program does not verify", code="verify")
    if record:
        made = tracking.made(module)
        for application in outcome.applications:
            application.made = made.get(application.number, [])
    counts = leftovers(module)
    return Transformed(given, outcome, sorted(counts), counts, notes=list(outcome.notes))


def compile_program(
    source: str | ir.Module | Program,
    target: Target,
    pipeline: Pipeline | None = None,
    *,
    path: str = "<string>",
    fallback: bool = True,
    flags: Sequence[str] = (),
    record: bool = False,
    timeout: float | None = None,
    configs: Sequence[str | Path] = (),
    costs: cost.Settings | None = None,
    part: Part = WHOLE,
) -> tuple[bytes, Transformed]:
    """The whole way: torch stages, IREE's phases with further stages between them, binary.

    ``configs`` are sets of config rules, tried before those of the pipeline's configuration stages.
    ``costs`` is what cost stages decide by (default: the roofline model for the target). ``part``
    leaves out what follows it; what must apply is then not asked for.

    Raises :class:`LeftoverError` when ``fallback`` is False and torch ops are left, and
    :class:`~mlirules.drivers.tuning_specs.compile.NotApplied` when a config rule did not take
    effect.
    """
    pipeline = pipeline or default_for(target.kind)
    if target.kind not in pipeline.targets:
        raise MlirulesError(
            Fault(
                Span(pipeline.pipeline),
                "pipeline-target",
                f"the pipeline is for {', '.join(pipeline.targets)}, not {target}",
                f"--pipeline {default_for(target.kind).pipeline} is the one shipped for "
                f"{target.kind}",
            )
        )
    program = as_program(source, path)
    pipeline, notes = makeway.for_weights(pipeline, program.module)
    costs = replace(costs or cost.Settings(target), target=target, flags=(*pipeline.flags, *flags))
    done = transform(
        program,
        pipeline,
        path=path,
        record=record,
        costs=costs,
        kind=target.kind,
        max_rewrites=part.applications,
    )
    pipeline, more = makeway.for_products(pipeline, done.program.module)
    done.notes += notes + more
    given = {*pipeline.flags, *flags} if part.flags is None else set(part.flags)
    own = [flag for flag in pipeline.flags if flag in given]
    users = [flag for flag in flags if flag in given]
    done.flags = (*own, *users)
    if not fallback and done.leftovers:
        listed = "\n".join(f"  {n:>4} x {name}" for name, n in done.leftover_counts.most_common())
        unknown = leftovers_of.unruled(done.program, path)
        told = f"\n{MlirulesError(unknown)}" if unknown else ""
        raise LeftoverError(f"{path}: no rule converts these ops:\n{listed}{told}")
    # Taken down now: what the compiler fails at in the end is told by a line of its own.
    unknown = leftovers_of.unruled(done.program, path)
    try:
        return _compiled(
            done, pipeline, target, own, users, path, timeout, record, configs, costs, part
        )
    except compiler.CompileError as error:
        if not unknown or error.kind != "error":
            raise
        raise compiler.CompileError(error.kind, error.stderr, unknown, error.op) from error


def _compiled(
    done: Transformed,
    pipeline: Pipeline,
    target: Target,
    own: Sequence[str],
    users: Sequence[str],
    path: str,
    timeout: float | None,
    record: bool,
    configs: Sequence[str | Path],
    costs: cost.Settings,
    part: Part,
) -> tuple[bytes, Transformed]:
    flags = (*own, *users)
    if target.kind == "cpu":
        guard_sums(done.program.module)
    guard_copies(done.program.module)
    current, resume = _later_stages(
        done, pipeline, target, flags, path, timeout, record, costs=costs, upto=part.applications
    )
    stages = [s for s in pipeline.stages if s.phase == "configuration"]
    sets = [*configs, *(name for stage in stages for name in stage.rules)]
    chosen = []
    if sets and part.configs != 0:
        # Few pipelines have config rules, and what reads them is slow to load.
        from mlirules.drivers.tuning_specs.compile import config_set

        chosen = config_set(sets)[: part.configs]
    if not chosen:
        try:
            binary = compiler.compile_module(
                current, target, flags=flags, path=path, compile_from=resume, timeout=timeout
            )
        except compiler.CompileError as error:
            dropped = [flag for flag in own if flag in pipeline.dispensable]
            if not dropped or error.kind == "timeout":
                raise
            # What the user gives stays.
            kept = [*(flag for flag in own if flag not in dropped), *users]
            binary = compiler.compile_module(
                current, target, flags=kept, path=path, compile_from=resume, timeout=timeout
            )
            done.flags = tuple(kept)
            why = error.faults[0].message.splitlines()[0]
            done.notes.append(
                f"compiled without {', '.join(dropped)} of the pipeline "
                f"{pipeline.pipeline}, with which the program does not compile: {why}"
            )
        return binary, done
    from mlirules.drivers.tuning_specs.compile import compile_with, nothing_hit, packs

    # What the user gives stays, and fails located; a pipeline's own habit makes way.
    left_out = packs(chosen, target, own)
    binary, report = compile_with(
        str(current.module),
        target,
        chosen,
        flags=[f for f in flags if f not in left_out],
        path=path,
        compile_from=resume,
        timeout=timeout,
    )
    if part == WHOLE and not report.hits:
        raise nothing_hit(chosen, left_out, path)
    if left_out:
        report.notes.append(
            f"compiled without {', '.join(left_out)} of the pipeline {pipeline.pipeline}: packed "
            "products take no configuration"
        )
    for stage in stages if part == WHOLE else ():
        _check_config_expectations(stage, report)
    return binary, replace(done, configs=report)


def _check_config_expectations(stage: Stage, report: ConfigReport) -> None:
    from mlirules.drivers.tuning_specs.compile import config_set

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


def _later_stages(
    done: Transformed,
    pipeline: Pipeline,
    target: Target,
    flags: Sequence[str],
    path: str,
    timeout: float | None,
    record: bool = False,
    last: str = LATER[-1],
    costs: cost.Settings | None = None,
    upto: int | None = None,
    before: str | None = None,
) -> tuple[Program, str | None]:
    """The program after the stages that follow phases of the compiler, and the last such phase.

    ``before``: as the stages for this phase find it.
    """
    current = done.program
    resume: str | None = None
    for phase in LATER:
        stages = [s for s in pipeline.stages if s.phase == phase]
        guards = target.kind == "vulkan" and phase == "global-optimization"
        wanted = stages or guards
        if not wanted or compiler.PHASES.index(phase) > compiler.PHASES.index(last):
            continue
        current = compiler.lower(
            current, target, phase, flags=flags, path=path, compile_from=resume, timeout=timeout
        )
        resume = phase
        module = current.module
        if phase == before:
            break
        for stage in stages:
            number = pipeline.stages.index(stage) + 1
            rest = pipeline.stages[number:]
            check_rules(stage, number, stage_entries(stage))
            applied = done.outcome.total
            _run_stage(
                stage,
                number,
                module,
                done.outcome,
                record,
                upto,
                rest=rest,
                costs=costs,
                kind=target.kind,
            )
            if phase in DISPATCHED and done.outcome.total > applied:
                check_dispatched(module, phase)
        if guards:
            order_loops(module)
            guard_reductions(module)
            guard_slices(module)
            guard_complex(module)
            configure_gathers(module)
        _locate(done.outcome, f"{path} after {phase}")
    return current, resume


def program_at(
    text: str,
    target: Target,
    phase: str,
    pipeline: Pipeline | None = None,
    *,
    path: str = "<string>",
    flags: Sequence[str] = (),
    timeout: float | None = None,
    before: bool = False,
) -> str:
    """The program as it is at a phase of compilation.

    ``source`` is the program itself, ``torch`` what the pipeline's torch stages make of it, the
    others are those of the compiler, after the pipeline's stages for them (``before``: before).
    """
    if phase == "source":
        return text
    program = as_program(text, path)
    pipeline, _ = makeway.for_weights(pipeline or default_for(target.kind), program.module)
    costs = cost.Settings(target, flags=(*pipeline.flags, *flags))
    done = transform(program, pipeline, path=path, costs=costs, kind=target.kind)
    pipeline, _ = makeway.for_products(pipeline, done.program.module)
    flags = (*pipeline.flags, *flags)
    if phase == "torch":
        return done.text
    if phase not in compiler.PHASES:
        known = ("source", "torch", *compiler.PHASES)
        raise MlirulesError.at(
            "--phases",
            f"unknown phase {phase!r}",
            code="phase",
            suggestion=did_you_mean(phase, known) or "known: " + ", ".join(known),
        )
    current, resume = _later_stages(
        done,
        pipeline,
        target,
        flags,
        path,
        timeout,
        last=phase,
        costs=costs,
        before=phase if before else None,
    )
    if resume == phase:
        return str(current.module)
    return compiler.lower_to(
        current, target, phase, flags=flags, path=path, compile_from=resume, timeout=timeout
    )
