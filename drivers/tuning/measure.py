"""Compiling and timing one configuration of one dispatch.

The configuration is written onto the root op at the compiler's ``executable-sources`` phase, where
every target takes it in the same way; the spec that a rule becomes is proved later, on the whole
program. Timing happens in a child process (:mod:`runner`), which a candidate may hang or crash
without harm, in turns with the default configuration: what counts is the ratio within each turn.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import CompileError
from mlirules.drivers.iree.devices import device_name
from mlirules.drivers.iree.runtime import Executable
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.tuning import dispatches
from mlirules.drivers.tuning.dispatches import Dispatch, Root, Value
from mlirules.drivers.tuning.space import Candidate, compilation_info
from mlirules.language.config.model import Settings
from mlirules.language.faults import MlirulesError
from mlirules.support import children

SOURCES = "executable-sources"

#: A candidate that takes this many times as long as what it is timed against is timed once only.
HOPELESS = 1.5


@dataclass(frozen=True)
class Task:
    """A dispatch that is ready to be measured: all that a worker needs, on any machine."""

    key: str
    dispatch: Dispatch
    target: str
    flags: tuple[str, ...]
    #: The dispatch at the ``executable-sources`` phase, and compiled with the default.
    sources: str
    default: bytes
    #: Seconds that the default took to compile: what timeouts are derived from.
    compile_s: float
    seed: int = 0

    @property
    def root(self) -> Root:
        """The op that is configured."""
        return self.dispatch.root


@dataclass(frozen=True)
class Result:
    """What became of one candidate.

    ``state``: ``ok``, ``slow`` (timed once, far slower than the default), ``same`` (the binary of
    another candidate, ``note`` names it), ``wrong`` (other numbers than the default's), ``fails``
    (does not compile), ``timeout`` or ``crash``. Times are milliseconds; ``ratio`` is default by
    candidate, the median of the turns; ``spread`` is half their middle range over the median.
    """

    key: str
    state: str
    default_ms: float | None = None
    tuned_ms: float | None = None
    ratio: float | None = None
    spread: float | None = None
    rounds: int = 0
    binary: str = ""
    note: str = ""
    device: str = ""
    compile_s: float = 0.0

    def as_json(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


def prepare(
    dispatch: Dispatch,
    target: Target,
    *,
    flags: Sequence[str] = (),
    seed: int = 0,
    timeout: float | None = 300,
) -> Task:
    """Compile a dispatch with the default configuration. Raises CompileError."""
    job = compiler.Job(target, tuple(flags), timeout, compile_from="flow")
    sources = compiler.lower_to(dispatch.text, job, SOURCES)
    began = time.perf_counter()
    default = compiler.compile_job(sources, replace(job, compile_from=SOURCES))
    spent = time.perf_counter() - began
    named = f"{dispatch.key} {target} {' '.join(flags)}"
    key = hashlib.sha256(named.encode()).hexdigest()[:16]
    return Task(key, dispatch, target.name, tuple(flags), sources, default, spent, seed)


def annotate(sources: str, configure: dict[str, str]) -> tuple[str, list[str]]:
    """A program at ``executable-sources`` with configurations on its root ops.

    ``configure`` gives the attribute for a :attr:`Root.key`; the names of the dispatches that got
    one are returned, too.
    """
    module = compiler.parse(sources)
    done = []
    for function in dispatches.functions(module):
        op = dispatches.root_op(function)
        if op is None:
            continue
        key = dispatches.key_of(op)
        if key in configure:
            op.attributes["compilation_info"] = compiler.ir.Attribute.parse(
                configure[key], module.context
            )
            done.append(str(function.attributes["sym_name"]).strip('"'))
    return str(module.operation.get_asm()), done


def configured(task: Task, settings: Settings) -> str:
    """The task's dispatch with a configuration, at ``executable-sources``."""
    target = Target.parse(task.target)
    info = compilation_info(settings, task.root.loops, target.kind)
    text, done = annotate(task.sources, {task.root.key: info})
    if len(done) != 1:
        raise MlirulesError.at(
            task.dispatch.name, f"the root op was found {len(done)} times", code="tuning"
        )
    return text


def compile_candidate(task: Task, candidate: Candidate) -> bytes:
    """The binary of a candidate. Raises CompileError, also after the timeout."""
    return compiler.compile_module(
        configured(task, candidate.settings),
        Target.parse(task.target),
        flags=task.flags,
        compile_from=SOURCES,
        timeout=max(20.0, 20 * task.compile_s),
        path=task.dispatch.name,
    )


# ---- who computes when ---------------------------------------------------------------------


@contextlib.contextmanager
def _gate(exclusive: bool) -> Iterator[None]:
    """Compilations share this machine; a timing has it alone.

    Across all processes of this user: two workers on one machine must not time at once.
    """
    folder = Path(tempfile.gettempdir()) / f"mlirules-tune-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    with (folder / "turnstile").open("w") as turnstile, (folder / "gate").open("w") as gate:
        # Who waits to time stands in the turnstile, and no new compilation gets past.
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        try:
            fcntl.flock(gate, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        finally:
            fcntl.flock(turnstile, fcntl.LOCK_UN)
        yield


# ---- the child that runs -------------------------------------------------------------------


class RunnerDied(Exception):
    """The child process crashed (``crash``) or had to be stopped (``timeout``)."""


class Runner:
    """A child process that holds a default binary with its inputs, and times others against it."""

    def __init__(
        self,
        name: str,
        program: Executable,
        inputs: Sequence[Value],
        target: Target,
        seed: int = 0,
        key: str = "",
    ) -> None:
        self.default, self.function = program.vmfb, program.function
        self.parameters = program.parameters
        self.name, self.inputs, self.target = name, inputs, target
        self.seed, self.key = seed, key
        self._child: children.Child | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="mlirules-tune-")
        #: Seconds of one call of the default.
        self.default_s = 0.0

    def baseline(self, rounds: int = 7) -> list[float]:
        """Seconds of repeated calls of the default."""
        self._start()
        with _gate(exclusive=True):
            answer = self._ask({"do": "baseline", "rounds": rounds}, 60 + 20 * self.default_s)
        samples: list[float] = answer["samples"]
        return samples

    def time(self, binary: bytes, *, rounds: int) -> dict[str, Any]:
        """Time a binary in turns with the default; see :mod:`runner` for the answer.

        Raises RunnerDied.
        """
        self._start()
        path = self._written("candidate", binary)
        limit = 10 + 30 * self.default_s + 4 * rounds * max(self.default_s, 0.05)
        with _gate(exclusive=True):
            return self._ask(
                {"do": "time", "binary": str(path), "rounds": rounds, "hopeless": HOPELESS}, limit
            )

    def contest(self, binaries: dict[str, bytes], *, rounds: int) -> dict[str, Any]:
        """Time binaries and the default (``default``) in turns: ``samples`` and ``differences``.

        Raises RunnerDied.
        """
        self._start()
        paths = {
            name: str(self._written(f"c{i}", b)) for i, (name, b) in enumerate(binaries.items())
        }
        limit = 60 + 6 * rounds * (len(paths) + 1) * max(self.default_s, 0.1)
        with _gate(exclusive=True):
            return self._ask({"do": "contest", "binaries": paths, "rounds": rounds}, limit)

    def _written(self, name: str, binary: bytes) -> Path:
        path = Path(self._folder.name) / f"{name}.vmfb"
        path.write_bytes(binary)
        return path

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            child.stop()
            atexit.unregister(self.close)

    def _start(self) -> None:
        if self._child is not None and self._child.alive:
            return
        default = self._written("default", self.default)
        from mlirules.drivers.iree import runtime

        command = children.python("mlirules.drivers.tuning.runner:main")
        command, _ = runtime.with_limits(command, None, self.target.device)
        self.close()  # one that died by itself
        self._child = children.Child(command)
        atexit.register(self.close)
        inputs = [[list(v.shape), v.element] for v in self.inputs]
        with _gate(exclusive=True):
            answer = self._ask(
                {
                    "do": "load",
                    "binary": str(default),
                    "inputs": inputs,
                    "seed": self.seed,
                    "device": self.target.device,
                    "function": self.function,
                    "parameters": list(self.parameters),
                },
                300,
            )
        self.default_s = answer["seconds"]

    def _ask(self, request: dict[str, object], timeout: float) -> dict[str, Any]:
        assert self._child is not None
        try:
            answer = self._child.ask(request, timeout)
        except children.Died as died:
            self.close()
            raise RunnerDied(died.kind) from None
        if "error" in answer:
            raise MlirulesError.at(self.name, answer["error"], code="run")
        return answer


class Runners:
    """Who times what one search, or one worker, measures: a runner for the task at hand.

    Leaving it, or :meth:`close`, ends the child.
    """

    def __init__(self) -> None:
        self._held: Runner | None = None

    def of(self, task: Task) -> Runner:
        """The runner for a task; that of another one is ended."""
        held = self._held
        if held is None or held.key != task.key:
            self.close()
            held = self._held = Runner(
                task.dispatch.name,
                Executable(task.default),
                task.dispatch.inputs,
                Target.parse(task.target),
                task.seed,
                task.key,
            )
        return held

    def close(self) -> None:
        """End the runner."""
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def __enter__(self) -> Runners:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Compiled:
    """A candidate's binary, or why there is none, and the seconds that took."""

    binary: bytes
    failed: Result | None
    seconds: float


def compiled(task: Task, candidate: Candidate) -> Compiled:
    """Compile a candidate. Never raises for what a candidate does."""
    began = time.perf_counter()
    # A timing on another device than the processor does not mind compilations.
    apart = Target.parse(task.target).kind in ("cuda", "hip")
    try:
        with contextlib.nullcontext() if apart else _gate(exclusive=False):
            binary = compile_candidate(task, candidate)
    except CompileError as error:
        spent = time.perf_counter() - began
        state = "timeout" if error.kind == "timeout" else "fails"
        note = error.faults[0].message[:300] if error.faults else ""
        failed = Result(candidate.key, state, note=note, compile_s=spent)
        return Compiled(b"", failed, spent)
    return Compiled(binary, None, time.perf_counter() - began)


def judged(
    task: Task,
    candidate: Candidate,
    made: Compiled,
    known: dict[str, str],
    rounds: int,
    runners: Runners,
) -> Result:
    """Time what was compiled with ``runners``, unless the very binary was timed already.

    ``known`` maps the digests of binaries that were timed to their candidates' keys.
    """
    if made.failed is not None:
        return made.failed
    digest = digest_of(made.binary)
    if known.get(digest, candidate.key) != candidate.key:
        return Result(
            candidate.key, "same", binary=digest, note=known[digest], compile_s=made.seconds
        )
    known[digest] = candidate.key
    return timed(task, candidate, made, rounds, runners)


def digest_of(binary: bytes) -> str:
    """What tells binaries apart."""
    return hashlib.sha256(binary).hexdigest()[:16]


def evaluate(
    task: Task,
    candidate: Candidate,
    runners: Runners,
    known: dict[str, str] | None = None,
    rounds: int = 5,
) -> Result:
    """Compile a candidate, compare its numbers with the default's, and time it."""
    return judged(task, candidate, compiled(task, candidate), known or {}, rounds, runners)


def timed(
    task: Task, candidate: Candidate, made: Compiled, rounds: int, runners: Runners
) -> Result:
    """Run and time a compiled candidate."""
    binary, compile_s = made.binary, made.seconds
    digest = digest_of(binary)
    device = device_name(task.target)
    try:
        answer = runners.of(task).time(binary, rounds=rounds)
    except RunnerDied as died:
        return Result(candidate.key, str(died), binary=digest, device=device, compile_s=compile_s)
    except MlirulesError as error:
        return Result(
            candidate.key,
            "crash",
            binary=digest,
            device=device,
            compile_s=compile_s,
            note=error.faults[0].message[:300],
        )
    if answer["difference"]:
        return Result(
            candidate.key,
            "wrong",
            binary=digest,
            device=device,
            compile_s=compile_s,
            note=answer["difference"],
        )
    found = ratio_of(answer)
    return Result(
        candidate.key,
        "slow" if answer["hopeless"] else "ok",
        default_ms=found.default_ms,
        tuned_ms=found.tuned_ms,
        ratio=found.ratio,
        spread=found.spread,
        rounds=found.rounds,
        binary=digest,
        device=device,
        compile_s=compile_s,
    )


@dataclass(frozen=True)
class Paired:
    """A program timed in turns with the default: medians, and the ratios' spread."""

    default_ms: float
    tuned_ms: float
    ratio: float
    spread: float
    rounds: int


def ratio_of(answer: dict[str, Any]) -> Paired:
    """What a runner's answer to ``time`` says."""
    tuned, default = answer["tuned"], answer["default"]
    ratios = [d / t for d, t in zip(default, tuned, strict=True)]
    return Paired(
        1e3 * statistics.median(default),
        1e3 * statistics.median(tuned),
        statistics.median(ratios),
        spread_of(ratios),
        len(ratios),
    )


def spread_of(values: Sequence[float]) -> float:
    """Half the range of the middle half of ``values``, over the median."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2 / statistics.median(values)


def uncertainty_of(ratios: Sequence[float]) -> float:
    """How far the median of ``ratios`` may be off, relatively: their spread over sqrt(n)."""
    return spread_of(ratios) / math.sqrt(max(1, len(ratios)))
