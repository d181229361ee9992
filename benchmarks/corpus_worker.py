"""What happens to one program: transform, compile, run, compare. Also what a worker does.

A worker imports the compiler once and then takes job after job; it tells `stage` before each step
and `row` after each mode. The compiler runs inside it, which saves the start of a process for each
program; when it dies, so does the worker, and the parent asks another one to do that job
`isolated`: each step in a process of its own.
"""

import functools
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpus_data import Program, difference, load

from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.runtime import Array
from mlirules.drivers.iree.targets import Target
from mlirules.language.faults import CheckFailed, MlirulesError
from mlirules.support import package
from mlirules.support.pool import Tell

if TYPE_CHECKING:
    from mlirules.drivers.pipelines.transform import Pipeline

FORMAT = 1
"""Of the state file; to be raised when outcomes of the same program would be judged otherwise."""

#: Ops at the border between torch types and builtin ones: no work is left in them.
BORDER = frozenset(
    f"torch_c.{way}_{type_}"
    for way in ("to", "from")
    for type_ in ("builtin_tensor", "i64", "i1", "f64")
)
_OP = re.compile(r'^\s*(?:%[^=]*= )?"?(torch(?:_c)?\.[\w.]+)', re.MULTILINE)


@dataclass(frozen=True)
class Setup:
    """What all jobs of a run share. `flags` go to the compiler, the same ones in every mode."""

    folder: str
    target: str
    pipeline: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """The outcome of one program in one variant and mode.

    `outcome` is `pass`, `converted` (without compiling), or how it failed: `leftover` (torch ops
    remain and nothing else may convert them), `transform`, `compile`, `run`, `numerics`, `crash`,
    `timeout`. `artefact` hashes what was compiled: equal artefacts have equal outcomes.
    """

    mode: str
    outcome: str
    why: str = ""
    leftovers: tuple[str, ...] = ()
    seconds: float = 0.0
    artefact: str = ""


@dataclass
class Transformed:
    """A program after the rules: its text and the torch ops that remain, border casts aside.

    `flags` are the pipeline's that the compiler gets for it.
    """

    text: str
    leftovers: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass
class Judged:
    """What became of a text: outcome, first line of why, and the results when it ran."""

    outcome: str
    why: str = ""
    detail: str = ""
    results: list[Array] = field(default_factory=list)


def torch_ops(text: str) -> list[str]:
    """The torch ops of a module in its printed form, border casts aside, each as often as it is."""
    body = text.partition("\n{-#")[0]
    return [op for op in _OP.findall(body) if op not in BORDER]


def transform(text: str, pipeline: str, path: str, target: Target) -> Transformed:
    """`text` after the rules of `pipeline`; cost stages decide for `target`. Raises MlirulesError.

    The leftovers are looked for in the text too, not only believed.
    """
    from mlirules.drivers.apply.invariant import guard_sums
    from mlirules.drivers.pipelines import makeway
    from mlirules.drivers.pipelines.cost import Settings
    from mlirules.drivers.pipelines.transform import transform as apply

    line = load_pipeline(pipeline)
    done = apply(text, line, path=path, costs=Settings(target, flags=tuple(line.flags)))
    line, _ = makeway.for_products(line, done.program.module)
    if target.kind == "cpu":
        guard_sums(done.program.module)
    left = tuple(sorted({*done.leftovers, *torch_ops(done.text)} - BORDER))
    return Transformed(done.text, left, tuple(line.flags))


@functools.cache
def load_pipeline(name: str) -> "Pipeline":
    """The pipeline with all its rules read.

    Raises MlirulesError for a wrong rule or pipeline, and for stages that work on other phases
    than torch: those would be left out of what is measured.
    """
    from mlirules.drivers.pipelines.transform import Pipeline, stage_rules

    pipeline = Pipeline.load(name)
    others = sorted({stage.phase for stage in pipeline.stages} - {"torch"})
    if others:
        raise MlirulesError.at(
            name, f"only torch stages can be measured here, not those of {', '.join(others)}"
        )
    for stage in pipeline.stages:
        stage_rules(stage)
    return pipeline


def signature_flags(target: Target, text: str) -> tuple[str, ...]:
    """The flags for a program, from its torch form: a rewritten one must not get others."""
    wanted = compiler.flags_for(target, text)
    return tuple(flag for flag in wanted if flag.startswith("--iree-input-demote"))


def judge(
    program: Program,
    variant: str,
    text: str | Callable[[], bytes],
    job: compiler.Job,
    *,
    isolated: bool,
    stage: Callable[[str], None] = lambda _: None,
) -> Judged:
    """Compile `text`, run it on the program's inputs and compare with the golden results.

    `text` may be what compiles it, by itself in a process of its own. `isolated`: in processes of
    their own, stopped after the job's timeout.
    """
    target = job.target
    job = replace(job, path=str(program.path(variant)))
    try:
        stage("compile")
        if not isinstance(text, str):
            vmfb = text()
        elif isolated:
            vmfb = compiler.compile_job(text, job)
        else:
            vmfb = compiler.compile_here(text, target, flags=job.flags, path=job.path)
        stage("run")
        results = runtime.run(
            vmfb,
            program.inputs(),
            target,
            place=runtime.Place(
                # Workers share the cores already, and a million small dispatches (multinomial) take
                # minutes when each is handed to another thread.
                device="local-sync" if target.kind == "cpu" else None,
                isolated=isolated,
                timeout=job.timeout if isolated else None,
            ),
        )
    except compiler.CompileError as error:
        kind = error.kind if error.kind in ("crash", "timeout") else "compile"
        return Judged(kind, _why(error), error.stderr)
    except runtime.RunError as error:
        kind = error.kind if error.kind in ("crash", "timeout") else "run"
        return Judged(kind, _why(error))
    except MlirulesError as error:
        return Judged("run", _why(error))
    except Exception as error:  # noqa: BLE001 -- a fault of ours is an outcome to report
        return Judged("compile", f"{type(error).__name__}: {error}".splitlines()[0])
    stage("compare")
    unequal = difference(program, variant, results)
    return Judged("numerics" if unequal else "pass", unequal, results=results)


def _why(error: MlirulesError) -> str:
    """The first line of the fault that says most: the end it came to, else the first."""
    if not error.faults:
        return str(error)
    ends = [fault for fault in error.faults if fault.code in ("crash", "timeout")]
    fault = (ends or error.faults)[0]
    said = (fault.message.strip().splitlines() or [""])[0]
    return f"{said} ({fault.span})" if fault.span.path.endswith(".yaml") else said


class Worker:
    """Does the jobs of one run. `known` maps artefacts to the outcomes they had before."""

    def __init__(self, setup: Setup, known: dict[str, tuple[str, str]]) -> None:
        self.setup = setup
        self.known = known
        self.target = Target.parse(setup.target)
        self.programs = {program.name: program for program in load(Path(setup.folder))}

    def do(
        self,
        name: str,
        variant: str,
        modes: Sequence[str],
        *,
        isolated: bool,
        timeout: float,
        tell: Callable[..., None],
    ) -> Iterator[Row]:
        """The rows of one program and variant, one for each mode, as they are found.

        `tell(stage=..., mode=..., artefact=...)` is called before whatever may not come back.
        Raises MlirulesError when the pipeline itself is wrong, which no program is to blame for.
        """
        program = self.programs[name]
        text = program.text(variant)
        flags = (*self.setup.flags, *signature_flags(self.target, text))

        def judged(
            mode: str,
            text: str,
            leftovers: tuple[str, ...],
            start: float,
            flags: Sequence[str],
            made: Callable[[], bytes] | None = None,
        ) -> Row:
            behind = package.content("drivers/apply", ".py") if made else ""
            artefact = self._artefact(program, variant, text + behind, flags)
            seen = self.known.get(artefact)
            if seen is None:
                verdict = judge(
                    program,
                    variant,
                    made or text,
                    compiler.Job(self.target, tuple(flags), timeout),
                    isolated=isolated,
                    stage=lambda stage: tell(stage=stage, mode=mode, artefact=artefact),
                )
                seen = self.known[artefact] = (verdict.outcome, verdict.why)
            return Row(mode, *seen, leftovers, _since(start), artefact)

        if "builtin" in modes:
            yield judged("builtin", text, (), time.perf_counter(), flags)
        ours = [mode for mode in modes if mode != "builtin"]
        if not ours:
            return
        try:
            line = load_pipeline(self.setup.pipeline)
        except MlirulesError:
            raise
        except Exception as error:
            # Without this the first program would be blamed for it, and every other one too.
            raise MlirulesError.at(
                self.setup.pipeline, f"cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        start = time.perf_counter()
        tell(stage="transform", mode="", artefact="")
        try:
            done = transform(text, self.setup.pipeline, str(program.path(variant)), self.target)
        except (MlirulesError, CheckFailed) as error:
            why = _why(error) if isinstance(error, MlirulesError) else str(error).splitlines()[0]
            yield from (Row(mode, "transform", why, (), _since(start)) for mode in ours)
            return
        except Exception as error:  # noqa: BLE001 -- a fault of ours is an outcome to report
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            yield from (Row(mode, "transform", why, (), _since(start)) for mode in ours)
            return
        if done.leftovers:
            why = "left: " + ", ".join(done.leftovers)
            for mode in ours:
                if mode != "fallback":
                    yield Row(mode, "leftover", why, done.leftovers, _since(start))
            ours = [mode for mode in ours if mode == "fallback"]
        given, flags = flags, (*done.flags, *flags)

        def whole() -> bytes:
            """As `mlirules compile` does it, with what stands between rules and the compiler."""
            from mlirules.drivers.pipelines.transform import Recipe

            path = str(program.path(variant))
            return Recipe(text, self.target, line, path, given, timeout=timeout).compile()[0]

        for mode in ours:
            if mode == "convert":
                yield Row(mode, "converted", seconds=_since(start))
            else:
                yield judged(mode, done.text, done.leftovers, start, flags, whole)

    def _artefact(self, program: Program, variant: str, text: str, flags: Sequence[str]) -> str:
        parts = (compiler.version(), self.target.name, flags, program.digest(variant), text)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def _since(start: float) -> float:
    return round(time.perf_counter() - start, 4)


def known_artefacts(state: Path, timeout: float) -> dict[str, tuple[str, str]]:
    """The outcomes of artefacts in a state file, without what was stopped before `timeout`."""
    known: dict[str, tuple[str, str]] = {}
    if not state.exists():
        return known
    with state.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:  # the line that an interrupted run did not finish
                continue
            row = entry["row"]
            stopped = row["outcome"] == "timeout" and entry["timeout"] < timeout
            if entry["format"] == FORMAT and row["artefact"] and not stopped:
                known[row["artefact"]] = (row["outcome"], row["why"])
    return known


class Doer:
    """What a worker process does: jobs of a run by its setup, with what its state file knows."""

    def __init__(self, given: tuple[Setup, str, float]) -> None:
        setup, state, timeout = given
        self._worker = Worker(setup, known_artefacts(Path(state), timeout))
        compiler.single_threaded()

    def __call__(self, order: dict[str, Any], tell: Tell) -> None:
        """Tell the stage before each step, and a row after each mode."""
        for row in self._worker.do(**order, tell=lambda **said: tell(said)):
            tell({"row": asdict(row)})
