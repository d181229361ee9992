"""Ways to compile a whole program: flags, rewrites and other pipelines, beside configurations.

They are declared in the spaces' folder (``specs/spaces/*.yaml``, files with ``ways:``). Each is
compiled, must take effect (a binary of its own; each of its rule sets must have applied), must
compute the same numbers, and is timed in turns with the default.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from mlirules.drivers.apply.session import Session, current
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import CompileError, Job
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines import transform as pipeline
from mlirules.drivers.tuning import measure
from mlirules.drivers.tuning.measure import Runner, RunnerDied
from mlirules.drivers.tuning.space import SPACES
from mlirules.language.config.model import PIPELINES
from mlirules.language.faults import CheckFailed, Fault, MlirulesError, did_you_mean
from mlirules.language.pipeline import DEFAULTS, Pipeline, default_for
from mlirules.language.reading import load_yaml
from mlirules.language.source import SourceFile
from mlirules.language.stage import Stage

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
Flag = Annotated[str, StringConstraints(pattern=r"^--[a-z0-9]", max_length=400)]
Knob = Annotated[str, StringConstraints(pattern=r"^[A-Z][A-Z0-9_]*$", max_length=40)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ChangeDoc(_Strict):
    """What a way changes in the pipeline that the program goes through."""

    without: list[Name] = Field(default=[], description="Stages that are left out.")
    affinity: bool | None = Field(
        default=None, description="Whether each core has its part of a kernel's workgroups."
    )
    yields: float | None = Field(
        default=None, description="What kernels make way for, where a stage says that they do."
    )


class WayDoc(_Strict):
    """One way, or one for each value of its knobs."""

    way: Name
    reason: str = Field(min_length=3, description="What may be gained.")
    flags: list[Flag] = Field(default=[], description="For the compiler; `{KNOB}` is a value.")
    rules: list[str] = Field(default=[], description="Rule sets that rewrite the program first.")
    pipeline: ChangeDoc | None = Field(default=None, description="The pipeline, changed.")
    knobs: dict[Knob, list[int | str]] = Field(default={}, description="Values to try.")


class WaysDoc(_Strict):
    """A file of ways."""

    space: Name
    summary: str = Field(min_length=3)
    targets: list[str] = Field(min_length=1, description="Kinds of target: cpu, vulkan, ...")
    ways: list[WayDoc] = Field(min_length=1)


@dataclass(frozen=True)
class Change:
    """A pipeline with some of its stages left out, or set otherwise."""

    without: tuple[str, ...] = ()
    affinity: bool | None = None
    yields: float | None = None

    def of(self, pipeline: Pipeline) -> Pipeline:
        """The pipeline changed: itself where that is no difference."""
        stages = [stage for stage in pipeline.stages if stage.name not in self.without]
        if self.yields is not None:
            stages = [s if s.yields is None else replace(s, yields=self.yields) for s in stages]
        affinity = pipeline.affinity if self.affinity is None else self.affinity
        changed = replace(pipeline, stages=stages, affinity=affinity)
        return pipeline if changed == pipeline else changed


@dataclass(frozen=True)
class Given:
    """A program as its pipeline gives it to the compiler, and what makes it anew by another."""

    text: str
    #: The pipeline that suits the program.
    pipeline: Pipeline | None = None
    #: The text by a pipeline.
    by: Callable[[Pipeline], str] | None = None


def given(recipe: pipeline.Recipe) -> tuple[Given, Pipeline]:
    """The program of a recipe as it is compiled, and the pipeline that suits it.

    The recipe's source must be text, or give the program anew.
    """
    text, suiting = pipeline.suited(recipe)

    def by(line: Pipeline) -> str:
        return pipeline.suited(replace(recipe, pipeline=line))[0]

    return Given(text, suiting, by), suiting


@dataclass(frozen=True)
class Way:
    """Flags, rule sets, or another pipeline that a program is compiled with."""

    name: str
    flags: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    change: Change | None = None

    @property
    def stages(self) -> list[Stage]:
        """The rewriting as stages of a pipeline; each must apply."""
        return [Stage(phase="torch", rules=[r]) for r in self.rules]

    def program(
        self, given: Given, target: Target, path: str, session: Session | None = None
    ) -> str:
        """A program rewritten, in ``session`` (default: that of this thread).

        Raises CheckFailed for a rule set that does not apply, and for a change that is none.
        """
        text = given.text
        if self.change is not None:
            if given.pipeline is None or given.by is None:
                raise CheckFailed("the program did not come by a pipeline")
            changed = self.change.of(given.pipeline)
            if changed is given.pipeline:
                raise CheckFailed("the pipeline is like that")
            text = given.by(changed)
        run = pipeline.Run(session or current())
        for stage in self.stages:
            done = pipeline.transform(text, [stage], path=path, kind=target.kind, run=run)
            if not sum(done.applications.values()):
                raise CheckFailed(f"{stage.rules[0]} does not apply")
            text = done.text
        return text


@dataclass(frozen=True)
class Tried:
    """What became of one way. ``state`` as for configurations, or ``idle``: no effect here."""

    way: Way
    state: str
    ratio: float | None = None
    spread: float = 0.0
    default_ms: float | None = None
    tuned_ms: float | None = None
    rounds: int = 0
    binary: str = ""
    note: str = ""

    def as_json(self) -> dict[str, object]:
        """Plain data that :func:`tried_of` reads back."""
        return asdict(self)


def tried_of(data: dict[str, Any]) -> Tried:
    """A result from what :meth:`Tried.as_json` wrote."""
    way = data["way"]
    change = way.get("change")
    if change is not None:
        change = Change(tuple(change["without"]), change["affinity"], change["yields"])
    flags, rules, targets = (tuple(way[key]) for key in ("flags", "rules", "targets"))
    known = Way(way["name"], flags, rules, targets, change)
    return Tried(**{**data, "way": known})


def load_ways(paths: Sequence[str | Path] = (), kind: str = "") -> list[Way]:
    """Ways from files and folders (the shipped ones when none are named), for a kind of target.

    Files that declare configurations are passed over. Raises MlirulesError, located.
    """
    found: dict[str, Way] = {}
    faults: list[Fault] = []
    for given in paths or [SPACES]:
        path = Path(given)
        if not path.exists() and (SPACES / f"{given}.yaml").exists():
            path = SPACES / f"{given}.yaml"
        for file in sorted(path.rglob("*.yaml")) if path.is_dir() else [path]:
            source = load_yaml(file)
            if not holds_ways(source):
                continue
            try:
                made = list(_ways(source))
            except MlirulesError as error:
                faults += error.faults
                continue
            found.update({w.name: w for w in made if not kind or kind in w.targets})
    if faults:
        raise MlirulesError(faults)
    return list(found.values())


def holds_ways(source: SourceFile) -> bool:
    """Whether a file declares ways, not configurations."""
    return isinstance(source.data, dict) and "ways" in source.data


def _ways(source: SourceFile) -> Iterator[Way]:
    try:
        doc = WaysDoc.model_validate(source.data)
    except pydantic.ValidationError as error:
        known = [*WaysDoc.model_fields, *WayDoc.model_fields, *ChangeDoc.model_fields]
        raise MlirulesError(
            [
                Fault(
                    source.span_at(tuple(e["loc"])),
                    "space",
                    f"{'.'.join(map(str, e['loc']))}: {e['msg']}",
                    did_you_mean(str(e["loc"][-1]), known)
                    if e["type"] == "extra_forbidden"
                    else "",
                )
                for e in error.errors(include_url=False)
            ]
        ) from None
    faults = [
        Fault(
            source.span_at(("targets", i)),
            "space",
            f"unknown kind {kind!r}",
            did_you_mean(kind, PIPELINES),
        )
        for i, kind in enumerate(doc.targets)
        if kind not in PIPELINES
    ]
    for index, way in enumerate(doc.ways):
        place = ("ways", index, "way")
        if not way.flags and not way.rules and way.pipeline in (None, ChangeDoc()):
            faults.append(
                Fault(
                    source.span_at(place),
                    "space",
                    f"{way.way} changes nothing",
                    "give `flags:`, `rules:` or `pipeline:`",
                )
            )
        if way.pipeline is not None:
            stages = {s.name for kind in doc.targets for s in _stages_for(kind) if s.name}
            faults += [
                Fault(
                    source.span_at(("ways", index, "pipeline", "without", i)),
                    "space",
                    f"no pipeline that {' or '.join(doc.targets)} gets has a stage {name!r}",
                    did_you_mean(name, sorted(stages)),
                )
                for i, name in enumerate(way.pipeline.without)
                if name not in stages
            ]
        for i, rules in enumerate(way.rules):
            try:
                pipeline.rule_set((rules,))
            except MlirulesError as error:
                said = f"{rules}: {error.faults[0].message}"
                faults.append(Fault(source.span_at(("ways", index, "rules", i)), "space", said))
        for i, flag in enumerate(way.flags):
            name = flag.partition("=")[0]
            if not compiler.has_flag(name):
                faults.append(
                    Fault(
                        source.span_at(("ways", index, "flags", i)),
                        "space",
                        f"the compiler has no flag {name}",
                    )
                )
        text = " ".join(way.flags)
        faults += [
            Fault(
                source.span_at(("ways", index, "knobs", knob), key=True),
                "space",
                f"no flag uses {{{knob}}}",
            )
            for knob in way.knobs
            if f"{{{knob}}}" not in text
        ]
    if faults:
        raise MlirulesError(faults)
    for way in doc.ways:
        for values in itertools.product(*way.knobs.values()):
            chosen = dict(zip(way.knobs, values, strict=True))
            flags = way.flags
            for knob, value in chosen.items():
                flags = [f.replace(f"{{{knob}}}", str(value)) for f in flags]
            name = "-".join([way.way, *map(str, values)])
            yield Way(
                name, tuple(flags), tuple(way.rules), tuple(doc.targets), _change(way.pipeline)
            )


def _change(doc: ChangeDoc | None) -> Change | None:
    return None if doc is None else Change(tuple(doc.without), doc.affinity, doc.yields)


def _stages_for(kind: str) -> Sequence[Stage]:
    """The stages of the pipeline that a kind of target gets."""
    return default_for(kind).stages if kind in DEFAULTS else ()


def compiled(
    way: Way, program: Given, job: Job, session: Session | None = None
) -> tuple[str, bytes]:
    """A program as a way has it, and its binary. Raises CheckFailed, MlirulesError."""
    text = way.program(program, job.target, job.path, session)
    return text, compiler.compile_job(text, replace(job, flags=(*job.flags, *way.flags)))


def evaluate(
    way: Way, program: Given, runner: Runner, job: Job, known: dict[str, str], course: Course
) -> Tried:
    """Compile a way, compare its numbers with the default's, and time it.

    ``known`` maps the digests of binaries that were timed to names; the default's is in it.
    """
    try:
        _, binary = compiled(way, program, job, course.session)
    except CheckFailed as error:
        return Tried(way, "idle", note=str(error))
    except CompileError as error:
        state = "timeout" if error.kind == "timeout" else "fails"
        return Tried(way, state, note=error.faults[0].message[:300] if error.faults else "")
    digest = measure.digest_of(binary)
    if digest in known:
        idle = known[digest] == "default"
        note = "the binary is the default's" if idle else known[digest]
        return Tried(way, "idle" if idle else "same", binary=digest, note=note)
    known[digest] = way.name
    try:
        answer = runner.time(binary, rounds=course.rounds)
    except RunnerDied as died:
        return Tried(way, str(died), binary=digest)
    except MlirulesError as error:
        return Tried(way, "crash", binary=digest, note=error.faults[0].message[:300])
    if answer["difference"]:
        return Tried(way, "wrong", binary=digest, note=answer["difference"])
    made = measure.ratio_of(answer)
    return Tried(
        way,
        "slow" if answer["hopeless"] else "ok",
        made.ratio,
        made.spread,
        made.default_ms,
        made.tuned_ms,
        made.rounds,
        digest,
    )


@dataclass(frozen=True)
class Course:
    """What a search among ways goes on from, and how far it goes."""

    #: What was tried before.
    known: Sequence[Tried]
    #: Turns of each way with the default.
    rounds: int
    #: Gets each result.
    keep: Callable[[Tried], None]
    #: Whether there is time for another.
    more: Callable[[], bool]
    #: In which programs are rewritten (default: that of this thread).
    session: Session = field(default_factory=current, compare=False, repr=False)


def search(
    ways: Sequence[Way], program: Given, runner: Runner, job: Job, course: Course
) -> list[Tried]:
    """Try each way to compile a program that is not known yet, while there is time."""
    known = course.known
    done = {t.way: t for t in known}
    binaries = {t.binary: t.way.name for t in known if t.binary and t.state not in ("same", "idle")}
    binaries[measure.digest_of(runner.default)] = "default"
    for way in ways:
        if way in done or not course.more():
            continue
        done[way] = evaluate(way, program, runner, job, binaries, course)
        course.keep(done[way])
    return [done[w] for w in ways if w in done]
