"""Pipelines at work: a program through its stages, and on through the compiler."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlirules.drivers.apply import kernels, tracking
from mlirules.drivers.apply import leftovers as leftovers_of
from mlirules.drivers.apply.engine import (
    Engine,
    convert_returned_constants,
    leftovers,
    select,
)
from mlirules.drivers.apply.guards import guard_early, guard_program, known_wrong, needs_guards
from mlirules.drivers.apply.present import Present, op_names
from mlirules.drivers.apply.programs import as_program, located
from mlirules.drivers.apply.run import Options, Outcome
from mlirules.drivers.apply.session import Session, current
from mlirules.drivers.apply.sharing import share
from mlirules.drivers.iree import compiler, cpu
from mlirules.drivers.iree.compiler import Job, Program, ir
from mlirules.drivers.iree.constants import compiled, lowered
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines import cost, makeway
from mlirules.drivers.pipelines.choosing import Chooser, Yielding
from mlirules.drivers.pipelines.phases import check_dispatched, check_rules
from mlirules.drivers.pipelines.settled import Verdict
from mlirules.generator import xsmm
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
    "Run",
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
    #: The pipeline, where it is another than was asked for.
    pipeline: Pipeline | None = None

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
class Run:
    """How stages are run over a program: in which session, what is kept of it, where it ends."""

    #: What is kept between programs (default: the session that this thread is in).
    session: Session = field(default_factory=current, compare=False, repr=False)
    #: Keep every application, and with ``texts`` the IR before and after each.
    record: bool = False
    texts: bool = True
    #: The work ends after so many applications; what must apply is then not asked for.
    max_rewrites: int | None = None
    #: More applications in one stage are taken for a loop (default: by the program's size).
    bound: int | None = None
    #: The CPU that kernels are for where no costs name a target; empty: this machine's.
    cpu: str = ""


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
    #: Sets of config rules, tried before those of the pipeline's configuration stages.
    configs: tuple[str | Path, ...] = ()
    #: What cost stages decide by (default: the roofline model for the target).
    costs: cost.Settings | None = None
    #: Seconds for each run of the compiler.
    timeout: float | None = None
    #: None: the session of the thread that compiles.
    session: Session | None = field(default=None, compare=False, repr=False)
    #: The file for the vmfb: what is compiled is left there, and no bytes are returned.
    output: Path | None = field(default=None, compare=False)

    def program(self) -> str | Program:
        """The program before any rule."""
        return self.source if isinstance(self.source, str) else self.source()

    def run(self, applications: int | None = None, *, record: bool = False) -> Run:
        """How the stages are run: all they do, or their first applications."""
        return Run(self.session or current(), record=record, max_rewrites=applications)

    def compile(
        self, part: Part = WHOLE, *, record: bool = False, fallback: bool = True
    ) -> tuple[bytes, Transformed]:
        """The whole way: torch stages, IREE's phases with further stages between them, binary.

        ``part`` leaves out what follows it; what must apply is then not asked for.
        Raises :class:`LeftoverError` when ``fallback`` is False and torch ops are left, and
        :class:`~mlirules.drivers.tuning_specs.compile.NotApplied` when a config rule did not take
        effect.
        """
        run = self.run(part.applications, record=record)
        try:
            return _whole(self, part, run, fallback)
        except CheckFailed as error:
            line, note = makeway.for_configs(self.pipeline or default_for(self.target.kind), error)
        binary, done = _whole(replace(self, pipeline=line), part, run, fallback)
        return binary, replace(done, notes=[*done.notes, note], pipeline=line)

    def rewritten(self, applications: int | None = None, *, record: bool = False) -> Transformed:
        """The program after the torch stages, or after their first applications."""
        return _begun(self, self.run(applications, record=record))[0]


class LeftoverError(CheckFailed):
    """``--no-fallback`` was given and torch ops are left."""


class ExpectationError(CheckFailed):
    """A rule that the pipeline says must apply did not."""


def library(paths: tuple[str, ...], session: Session | None = None) -> RuleSet:
    """Rule sets by name or path: their rules are read when they are needed.

    Kept in ``session`` (default: that of this thread). Raises :class:`MlirulesError` with the
    faults of all rules.
    """
    return (session or current()).library(paths)


def rule_set(paths: tuple[str, ...], session: Session | None = None) -> tuple[Rule, ...]:
    """The rules of rule sets by name or path. Raises :class:`MlirulesError`."""
    return tuple(library(paths, session).rules())


def engine_for(rules: Sequence[Rule], session: Session | None = None) -> Engine:
    """An engine for these rules in a session's context; what it decides is kept."""
    return (session or current()).engine_for(rules)


def stage_entries(stage: Stage, session: Session | None = None) -> list[Entry]:
    """The rules of a stage, filtered, as far as they are known without being read."""
    return select(library(tuple(stage.rules), session).entries, stage.only, stage.skip)


def stage_rules(stage: Stage, session: Session | None = None) -> list[Rule]:
    """The rules of a stage, filtered."""
    return [entry.rule for entry in stage_entries(stage, session)]


@dataclass(frozen=True)
class _Way:
    """The stages of a pipeline, and what a program goes through them with."""

    stages: tuple[Stage, ...]
    run: Run
    #: What messages call the program.
    path: str
    #: The kind of target that kernels are chosen for.
    kind: str
    #: What cost stages decide by.
    costs: cost.Settings | None = None


def _stage_engine(stage: Stage, present: Present, session: Session) -> Engine:
    """The engine of a stage, with the rules that a program can come to need."""
    entries = stage_entries(stage, session)
    key = tuple(f"{e.digest}:{e.path}:{e.name}" for e in entries)
    engine = session.engine(key)
    engine.include([e.rule for e in reachable(entries, present.ops, lambda: present.elements)])
    return engine


def _run_stage(
    way: _Way,
    number: int,
    module: ir.Module,
    outcome: Outcome,
    present: Present | None = None,
) -> Present | None:
    """Run the stage of this number, from 1, over a module, and add what it did to ``outcome``.

    ``present`` is what there is in the module where it is known. Returns it where it still is: most
    stages find nothing for their rules, and to count the ops is most of what these take.
    """
    stage, run, costs = way.stages[number - 1], way.run, way.costs
    options = Options(
        driver=stage.driver,
        order=stage.order,
        full=stage.full,
        record=run.record,
        max_rewrites=None if run.max_rewrites is None else run.max_rewrites - outcome.total,
        bound=run.bound,
        first=outcome.total,
        texts=run.texts,
    )
    options.target = way.kind
    if costs is not None and way.kind == "cpu" == costs.target.kind:
        options.cpu = costs.target.architecture
    elif way.kind == "cpu":
        options.cpu = run.cpu
    if way.kind == "cpu" and not _is_for(stage, options.cpu):
        return present
    verdict = None
    if stage.driver == "saturate":
        from mlirules.drivers.measure import opcost, roofline

        known = roofline.parameters(costs.target.kind if costs is not None else way.kind)
        options.weigh = functools.partial(opcost.seconds, known=known)
        options.nodes, options.seconds = stage.nodes, stage.seconds
        options.rounds, options.megabytes = stage.rounds, stage.megabytes
        options.margin = stage.margin or 0.0
        entries = stage_entries(stage, run.session)
        verdict = Verdict.of(stage, entries, module, options, known)
        told = None if verdict is None else verdict.left()
        if told is not None:
            outcome.merge(Outcome(notes=told))
            _check_expectations(stage, number, Outcome(), run.session)
            return present
    if present is None:
        present = Present(module)
    engine = _stage_engine(stage, present, run.session)
    judge: cost.Judge | Yielding | None = None
    if stage.driver == "cost":
        options.accept = judge = _judge(way, number, engine)
    elif stage.yields is not None and costs is not None:
        chooser = Chooser(costs.target, costs.flags)
        options.accept = judge = Yielding(chooser, stage.yields)
    done = engine.run(module, options, present)
    if judge is not None:
        done.decisions = judge.decisions
    if verdict is not None:
        verdict.keep(done)
    done.notes.extend(_not_installed(engine, module))
    outcome.merge(done)
    if run.max_rewrites is None:
        _check_expectations(stage, number, done, run.session)
    return present if done.untouched else None


def _is_for(stage: Stage, architecture: str) -> bool:
    """Whether a CPU has what a stage needs, and nothing with which it is left out."""
    return all(cpu.fact(name, architecture) for name in stage.needs) and not any(
        cpu.fact(name, architecture) for name in stage.unless
    )


def _not_installed(engine: Engine, module: ir.Module) -> list[str]:
    """Which rules had ops to look at and lack something here: they refuse in silence."""
    rules = [matcher.rule for matcher in engine.matchers.values()]
    lacking = {rule.name: (rule, why) for rule in rules if (why := xsmm.lacking(rule)) is not None}
    names = op_names(module) if lacking else ()
    return [
        f"{name} left alone: {why}"
        for name, (rule, why) in lacking.items()
        if any(op in names for op in rule.root_ops)
    ]


def _judge(way: _Way, number: int, engine: Engine) -> cost.Judge:
    """Decides for the cost stage of a number; what it weighs goes through the stages after it."""
    stage, costs, session = way.stages[number - 1], way.costs, way.run.session
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
    plain = [s for s in way.stages[number:] if s.driver != "cost"]
    torch = [_unexpecting(s) for s in plain if s.phase == "torch"]
    # A piece's kernels are for the CPU that the program is compiled for, as the program's own.
    cpu = costs.target.architecture if costs.target.kind == "cpu" else ""
    later = _Way(
        tuple(s for s in plain if s.phase in LATER),
        Run(session, cpu=cpu),
        "<piece>",
        costs.target.kind,
    )
    job = Job(costs.target, costs.flags, costs.timeout, "<piece>")

    def finish(text: str) -> cost.Candidate:
        done = transform(text, torch, path=later.path, kind=later.kind, run=later.run)
        if not later.stages:
            return cost.Candidate(done.text)
        filled = as_program(cost.filled(done.text), later.path, session)
        last, resume = _later_stages(replace(done, program=filled), later, job)
        return cost.Candidate(str(last.module), resume)

    return cost.Judge(
        engine.matchers, engine.context, costs, finish, lambda: _content(plain, session)
    )


def _content(stages: Sequence[Stage], session: Session) -> str:
    """What stages do, by the content of their rules; empty where files beside those take part."""
    said = []
    for stage in stages:
        if stage.phase == "configuration":
            continue
        rules = library(tuple(stage.rules), session)
        if not all(entry.head.whole for entry in rules.entries):
            return ""
        said.append(f"{json.dumps(as_data(stage))} {rules.digest}")
    return "\0".join(["stages", *said])


def _unexpecting(stage: Stage) -> Stage:
    """A stage that need not apply: a piece of a program has few of its ops."""
    return replace(stage, expect=None, expect_rules={})


def _check_expectations(stage: Stage, number: int, done: Outcome, session: Session) -> None:
    if stage.expect is None and not stage.expect_rules:
        return
    names = {e.name for e in stage_entries(stage, session)}
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
    pipeline: Pipeline | str | Sequence[Stage] | None = None,
    *,
    path: str = "<string>",
    costs: cost.Settings | None = None,
    kind: str = "",
    run: Run | None = None,
) -> Transformed:
    """Run a program through a pipeline's torch stages.

    ``pipeline`` is one, its name or file, or stages alone. A module of the session's context is
    changed in place.

    ``kind`` is the kind of target that kernels are chosen for (default: that of ``costs``, else
    the cpu), and whose default pipeline is taken where none is given.

    ``costs`` is what cost stages decide by (default: for a pipeline, the roofline model for this
    machine's cpu or Vulkan device; none for stages alone). ``run`` says what is kept of the work
    and where it ends.

    Raises :class:`MlirulesError` for a program or rule that is wrong, and
    :class:`ExpectationError` when a rule that must apply did not.
    """
    if isinstance(pipeline, str):
        pipeline = Pipeline.load(pipeline)
    if pipeline is None:
        pipeline = default_for(kind or (costs.target.kind if costs else "cpu"))
    if isinstance(pipeline, Pipeline):
        if costs is None and (here := kind or pipeline.targets[0]) in ("cpu", "vulkan"):
            costs = cost.Settings(Target(here), flags=tuple(pipeline.flags))
        pipeline = pipeline.stages
    kind = kind or (costs.target.kind if costs is not None else "cpu")
    return _transformed(source, _Way(tuple(pipeline), run or Run(), path, kind, costs))


def _transformed(source: str | ir.Module | Program, way: _Way) -> Transformed:
    """The program after the torch stages of a way."""
    path, run = way.path, way.run
    if way.costs is not None:
        told = way.costs.progress
        costs = replace(way.costs, progress=lambda what: told(located(what, path)))
        way = replace(way, costs=costs)
    given = as_program(source, path, run.session)
    module = given.module
    outcome = Outcome()
    if run.record:
        tracking.number(module)
    present: Present | None = None
    with run.session.steady():
        for number, stage in enumerate(way.stages, 1):
            if stage.phase == "torch":
                present = _run_stage(way, number, module, outcome, present)
    _locate(outcome, path)
    if run.max_rewrites is None:
        convert_returned_constants(module, run.session.context)
    if not module.operation.verify():
        raise MlirulesError.at(path, "the rewritten program does not verify", code="verify")
    if run.record:
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
) -> tuple[bytes, Transformed]:
    """Compile a program that is at hand; see :meth:`Recipe.compile`, and :class:`Recipe` for more.

    A module is changed in place.
    """
    given = Program(source) if isinstance(source, ir.Module) else source
    read = given if isinstance(given, str) else lambda: given
    return Recipe(read, target, pipeline, path, tuple(flags)).compile(fallback=fallback)


def _begun(recipe: Recipe, run: Run) -> tuple[Transformed, Pipeline, _Way, list[str]]:
    """A program after its torch stages; its pipeline as it suits it, its way, what was told."""
    target = recipe.target
    program = as_program(recipe.program(), recipe.path, run.session)
    pipeline, notes = makeway.for_weights(
        recipe.pipeline or default_for(target.kind), program.module
    )
    flags = (*pipeline.flags, *recipe.flags)
    costs = replace(recipe.costs or cost.Settings(target), target=target, flags=flags)
    way = _Way(tuple(pipeline.stages), run, recipe.path, target.kind, costs)
    return _transformed(program, way), pipeline, way, notes


@dataclass(frozen=True)
class _Flags:
    """The flags for the compiler beside the target's, by whom they come from."""

    #: The pipeline's own: some make way where a program does not compile with them.
    own: tuple[str, ...]
    #: The user's, which stay.
    users: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Both, the user's last: they win."""
        return (*self.own, *self.users)


def _whole(recipe: Recipe, part: Part, run: Run, fallback: bool) -> tuple[bytes, Transformed]:
    """A recipe followed up to a part of it; see :meth:`Recipe.compile`."""
    line, path, kind = recipe.pipeline, recipe.path, recipe.target.kind
    if line is not None and kind not in line.targets:
        raise MlirulesError(
            Fault(
                Span(line.pipeline),
                "pipeline-target",
                f"the pipeline is for {', '.join(line.targets)}, not {recipe.target}",
                f"--pipeline {default_for(kind).pipeline} is the one shipped for {kind}",
            )
        )
    done, pipeline, way, notes = _begun(recipe, run)
    pipeline, more = makeway.for_products(pipeline, done.program.module, target=recipe.target)
    way = replace(way, stages=tuple(pipeline.stages))
    done.notes += notes + more + known_wrong(done.program, kind, path)
    given = {*pipeline.flags, *recipe.flags} if part.flags is None else set(part.flags)
    flags = _Flags(
        tuple(flag for flag in pipeline.flags if flag in given),
        tuple(flag for flag in recipe.flags if flag in given),
    )
    done.flags = flags.all
    if not fallback and done.leftovers:
        listed = "\n".join(f"  {n:>4} x {name}" for name, n in done.leftover_counts.most_common())
        unknown = leftovers_of.unruled(done.program, path)
        told = f"\n{MlirulesError(unknown)}" if unknown else ""
        raise LeftoverError(f"{path}: no rule converts these ops:\n{listed}{told}")
    # Taken down now: what the compiler fails at in the end is told by a line of its own.
    unknown = leftovers_of.unruled(done.program, path)
    try:
        return _compiled(recipe, part, pipeline, way, done, flags)
    except compiler.CompileError as error:
        if not unknown or error.kind != "error":
            raise
        raise compiler.CompileError(error.kind, error.stderr, unknown, error.op) from error


def _compiled(
    recipe: Recipe, part: Part, pipeline: Pipeline, way: _Way, done: Transformed, flags: _Flags
) -> tuple[bytes, Transformed]:
    """What the compiler makes of a program after its torch stages."""
    target = recipe.target
    _prepare(done.program.module, pipeline, target)
    job = Job(target, flags.all, recipe.timeout, recipe.path, output=recipe.output)
    current, resume = _later_stages(done, way, job)
    job = replace(job, compile_from=resume)
    stages = [s for s in pipeline.stages if s.phase == "configuration"]
    sets = [*recipe.configs, *(name for stage in stages for name in stage.rules)]
    chosen = []
    if sets and part.configs != 0:
        # Few pipelines have config rules, and what reads them is slow to load.
        from mlirules.drivers.tuning_specs.compile import config_set

        chosen = config_set(sets)[: part.configs]
    if not chosen:
        try:
            binary = compiled(current, job)
        except compiler.CompileError as error:
            dropped = [flag for flag in flags.own if flag in pipeline.dispensable]
            added = makeway.instead(target.kind, error)
            if not (dropped or added) or error.kind == "timeout":
                raise
            # What the user gives stays.
            kept = (*(f for f in flags.own if f not in dropped), *added, *flags.users)
            binary = compiled(current, replace(job, flags=kept))
            done.flags = kept
            done.notes.append(makeway.told(pipeline, dropped, added, error))
        return binary, done
    from mlirules.drivers.tuning_specs.compile import compile_with, nothing_hit, packs

    # What the user gives stays, and fails located; a pipeline's own habit makes way.
    left_out = packs(chosen, target, flags.own)
    kept = tuple(flag for flag in flags.all if flag not in left_out)
    binary, report = compile_with(str(current.module), replace(job, flags=kept), chosen)
    if part == WHOLE and not report.hits:
        raise nothing_hit(chosen, left_out, recipe.path)
    if left_out:
        report.notes.append(
            f"compiled without {', '.join(left_out)} of the pipeline {pipeline.pipeline}: packed "
            "products take no configuration"
        )
    for stage in stages if part == WHOLE else ():
        _check_config_expectations(stage, report)
    return binary, replace(done, configs=report)


def _prepare(module: ir.Module, pipeline: Pipeline, target: Target) -> None:
    """What a program gets last before the compiler."""
    guard_early(module, target.kind)
    if target.kind == "cpu" and pipeline.affinity and (parts := cpu.parts(target.architecture)) > 1:
        share(module, parts)
    kernels.gather(module)


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
    done: Transformed, way: _Way, job: Job, last: str = LATER[-1], before: str | None = None
) -> tuple[Program, str | None]:
    """The program after the stages that follow phases of the compiler, and the last such phase.

    ``before``: as the stages for this phase find it.
    """
    current = done.program
    resume: str | None = None
    for phase in LATER:
        stages = [(n, s) for n, s in enumerate(way.stages, 1) if s.phase == phase]
        early = phase == "global-optimization"
        guards = early and needs_guards(current.module, way.kind, bool(done.leftovers))
        wanted = stages or guards
        if not wanted or compiler.PHASES.index(phase) > compiler.PHASES.index(last):
            continue
        going = replace(job, compile_from=resume)
        current = lowered(current, going) if early else compiler.lower(current, going, phase)
        resume = phase
        module = current.module
        if phase == before:
            break
        for number, stage in stages:
            check_rules(stage, number, stage_entries(stage, way.run.session))
            applied = done.outcome.total
            _run_stage(way, number, module, done.outcome)
            if phase in DISPATCHED and done.outcome.total > applied:
                check_dispatched(module, phase)
        if guards:
            guard_program(module, way.kind)
        _locate(done.outcome, f"{way.path} after {phase}")
    return current, resume


def suited(recipe: Recipe) -> tuple[str, Pipeline]:
    """The program after the torch stages, as it is compiled, and the pipeline that suits it."""
    done, pipeline, _, _ = _begun(recipe, recipe.run())
    pipeline, _ = makeway.for_products(pipeline, done.program.module, target=recipe.target)
    _prepare(done.program.module, pipeline, recipe.target)
    return done.text, pipeline


def program_at(recipe: Recipe, phase: str, *, before: bool = False) -> str:
    """The text of a recipe's program as it is at a phase of compilation.

    ``source`` is the program itself, ``torch`` what the pipeline's torch stages make of it, the
    others are those of the compiler, after the pipeline's stages for them (``before``: before).
    """
    if phase == "source":
        program = recipe.program()
        return program if isinstance(program, str) else str(program.module)
    done, pipeline, way, _ = _begun(recipe, recipe.run())
    pipeline, _ = makeway.for_products(pipeline, done.program.module, target=recipe.target)
    way = replace(way, stages=tuple(pipeline.stages))
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
    job = Job(recipe.target, (*pipeline.flags, *recipe.flags), recipe.timeout, recipe.path)
    current, resume = _later_stages(done, way, job, last=phase, before=phase if before else None)
    if resume == phase:
        return str(current.module)
    return compiler.lower_to(current, replace(job, compile_from=resume), phase)
