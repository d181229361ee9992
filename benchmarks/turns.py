"""Engines in turns, each in a process of its own that stands still while another runs.

What `peers.py` does with whole models and `ops.py` with single ops: a row is what the engines made
of one of them. Round by round each engine takes a sample, every other round backwards, after a call
that is not timed. On a machine of many cores several models may be prepared side by side, each on
cores of its own; all else stands still while one of them is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import queue
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import mlirules
from mlirules.drivers.iree import cpu
from mlirules.language.faults import MlirulesError
from mlirules.support import children
from mlirules.support.children import Child, Died

__all__ = [
    "NO_PEERS",
    "OURS",
    "Engine",
    "Plan",
    "Row",
    "Store",
    "cell",
    "groups",
    "line",
    "measure",
    "measured",
    "ratio",
]

OURS = ("mlirules", "tuned")
#: What is no peer: nobody chooses between those.
NO_PEERS = ("stock", *OURS)
#: Engines that take ten times as long to compile as others may.
SLOW = ("max-autotune", "tuned")
#: What is said of a model whose default nothing was found to be faster than.
NOTHING = "nothing gained by tuning"
#: Seconds that interrupted engines may take to end what they have started.
GRACE = 2.0
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Plan:
    """How models are measured: by which engines, where their files are, how long.

    ``timeout`` is seconds to compile, ``seconds`` those for each engine; a sample is calls that
    last ``sample_s`` together. ``alike``: memory's speed is that of as many bytes as the model
    reads and writes, which stay in the caches where the model's do; else that of a large copy.
    """

    folder: Path
    engines: tuple[str, ...]
    threads: int = 1
    tune: str = ""
    rounds: int = 40
    seconds: float = 4
    timeout: float = 900
    sample_s: float = 0.05
    alike: bool = False


@dataclass(frozen=True)
class Row:
    """A model with some threads: the machine, its limits, and what each engine did.

    ``engines`` maps names to ``ms`` (of one thread the least processor time, else the median of
    the clock), ``cpu_ms``, ``wall_ms``, ``low_ms``, ``high_ms`` (quartiles of the clock),
    ``compile_s``, ``compile_cpu_s``, ``compile_mb``, ``mb``, ``error``, ``note``; or to ``failed``.
    """

    model: str
    threads: int
    cpu: str
    flops: float
    bytes: float
    peak: float
    bandwidth: float
    rounds: int
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Bytes a second of a copy that no cache holds; 0 where it was not measured.
    memory: float = 0.0

    @property
    def limit_ms(self) -> float:
        """No engine can be faster, but for algorithms that need fewer operations."""
        return 1e3 * max(self.flops / self.peak, self.bytes / self.bandwidth)

    @property
    def memory_ms(self) -> float | None:
        """What its bytes take from memory and to it, as where other layers ran in between."""
        return 1e3 * self.bytes / self.memory if self.memory else None

    def ms(self, engine: str) -> float | None:
        """What a call takes."""
        found = self.engines.get(engine, {}).get("ms")
        return None if found is None else float(found)

    @property
    def best_peer(self) -> float | None:
        """The time of the fastest peer."""
        known = [self.ms(name) for name in self.engines if name not in NO_PEERS]
        return min((ms for ms in known if ms is not None), default=None)


class Store:
    """Finished models: a file of JSON lines, the last line of a model and threads counts."""

    def __init__(self, path: Path) -> None:
        self.rows: dict[tuple[str, int], Row] = {}
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):  # an interrupted run did not finish the line
                row = Row(**json.loads(text))
                self.rows[row.model, row.threads] = row

    def put(self, row: Row) -> None:
        """Keep a row, at once on disk."""
        self.rows[row.model, row.threads] = row
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")


class Turn:
    """Who may run: engines that are prepared, side by side, or the one that is measured."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._preparing: set[int] = set()

    @contextlib.contextmanager
    def begin(self) -> Iterator[set[int]]:
        """While an engine begins to prepare: the processes that do, to which its own is added."""
        with self._lock:
            yield self._preparing

    def end(self, process: int) -> None:
        """It is prepared, and stands still from now on."""
        with self._lock:
            self._preparing.discard(process)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGSTOP)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nothing is prepared meanwhile."""
        with self._lock:
            still = [one for process in self._preparing for one in _stopped(process)]
            try:
                yield
            finally:
                for process in still:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGCONT)


def _stopped(process: int) -> list[int]:
    """Stop a process and all that it has started, sessions of their own included; who was."""
    found = [process]
    for one in found:  # stopped, it starts no more of those that are listed next
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGSTOP)
        found += _children(one)
    return found


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            after_name = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
            if int(after_name.split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def groups(threads: int, models: int) -> list[set[int]]:
    """For each of so many models as many physical cores as it has threads, with all of theirs.

    Empty sets are all that there is, where a model has as many threads. Raises MlirulesError where
    the cores are too few for several.
    """
    by_core = defaultdict[object, set[int]](set)
    for one in sorted(os.sched_getaffinity(0)):
        by_core[cpu.core_of(one)].add(one)
    cores = list(by_core.values())
    if threads >= len(cores):
        return [set() for _ in range(models)]
    if threads * models > len(cores):
        raise MlirulesError.at(
            "--together",
            f"{models} models of {threads} threads need {models * threads} cores; "
            f"there are {len(cores)}",
        )
    return [set[int]().union(*cores[n : n + threads]) for n in range(0, threads * models, threads)]


@contextlib.contextmanager
def _on(cores: set[int]) -> Iterator[None]:
    """What this thread starts meanwhile runs on these cores."""
    before = os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Engine:
    """An engine in its process, which stands still but for the time of an order."""

    def __init__(self, name: str, model: str, plan: Plan, cores: set[int] | None = None) -> None:
        self.name = name
        self._scratch = tempfile.TemporaryDirectory(prefix="peers-")
        package = Path(mlirules.__file__).parent.parent
        path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
        words = [
            *(name, model, plan.folder.absolute()),
            *(self._scratch.name, plan.threads, plan.tune),
        ]
        worker = Path(__file__).with_name("peers_worker.py")
        environment = {"PYTHONPATH": path} | dict.fromkeys(THREADS, str(plan.threads))
        with _on(cores or set()):
            self._child = Child(
                [sys.executable, worker, *(str(word) for word in words)], environment=environment
            )

    @property
    def process(self) -> int:
        """Its process, and the group of what that starts."""
        return self._child.pid

    def ask(self, order: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The answer to an order: with ``failed`` where there is none."""
        with contextlib.suppress(ProcessLookupError):  # it died: the answer says so
            os.killpg(self._child.pid, signal.SIGCONT)
        found = self.answer(order, timeout)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGSTOP)
        return found

    def answer(self, order: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The same of one that runs, and goes on running."""
        try:
            return self._child.ask(order, timeout)
        except Died as died:
            return {"failed": f"{died.kind}: {died.why}"[:300]}

    @staticmethod
    def kill(engines: Sequence[Engine]) -> None:
        """End engines, from any thread: the one that asks them is answered ``failed``."""
        these = [engine._child for engine in engines]
        for child in these:
            with contextlib.suppress(ProcessLookupError):  # what stands still ends nothing
                os.killpg(child.pid, signal.SIGCONT)
        children.let_end(these, GRACE)
        for child in these:
            child.kill()

    def stop(self) -> None:
        """End it, and what it wrote. For the thread that asks it."""
        self._child.stop()
        self._scratch.cleanup()


@dataclass
class _Prepared:
    """A model whose engines are ready, but for those that failed."""

    model: str
    known: dict[str, Any]
    bounds: dict[str, Any] = field(default_factory=dict)
    engines: dict[str, Engine] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def stop(self) -> None:
        for engine in self.engines.values():
            engine.stop()


class _Workshop:
    """Where models are prepared and measured on some cores, in turns with others of its kind."""

    def __init__(self, plan: Plan, cores: set[int], turn: Turn) -> None:
        self._plan = plan
        self._cores = cores
        self._turn = turn
        self._engines: list[Engine] = []
        self._ended = False

    def _begun(self, name: str, model: str) -> Engine:
        """An engine that ends with the workshop; none begins after that."""
        engine = Engine(name, model, self._plan, self._cores)
        self._engines.append(engine)
        if self._ended:
            engine.stop()
            raise MlirulesError.at(model, "is not measured: interrupted")
        return engine

    def _asked(self, name: str, model: str, timeout: float) -> tuple[Engine, dict[str, Any]]:
        with self._turn.begin() as preparing:
            engine = self._begun(name, model)
            preparing.add(engine.process)
        try:
            return engine, engine.answer({"do": "prepare"}, timeout)
        finally:
            self._turn.end(engine.process)

    def prepare(self, model: str) -> _Prepared:
        """Raises MlirulesError where the model cannot be exported."""
        plan = self._plan
        facts = plan.folder / f"{model}.json"
        if not facts.exists():
            exporter, found = self._asked("export", model, plan.timeout)
            exporter.stop()
            if "failed" in found:
                raise MlirulesError.at(model, f"is not exported: {found['failed']}")
        ready = _Prepared(model, json.loads(facts.read_text(encoding="utf-8")))
        try:
            for name in plan.engines:
                timeout = plan.timeout * (10 if name in SLOW else 1)
                engine, ready.rows[name] = self._asked(name, model, timeout)
                if "failed" in ready.rows[name]:
                    engine.stop()
                else:
                    ready.engines[name] = engine
        except BaseException:
            ready.stop()
            raise
        return ready

    def measure(self, ready: _Prepared) -> Row:
        """The engines in turns, and the machine's limits beside them; all of them end."""
        plan, known, rows = self._plan, ready.known, ready.rows
        try:
            with self._turn.alone():
                traffic = {key: known[key] for key in ("read", "written")} if plan.alike else {}
                machine = self._begun("limits", ready.model)
                ready.bounds = machine.ask({"do": "prepare"} | traffic, plan.timeout)
                machine.stop()
                if "failed" in ready.bounds:
                    why = f"the machine's limits: {ready.bounds['failed']}"
                    raise MlirulesError.at(ready.model, why)
                samples, rounds = _in_turns(ready.engines, rows, plan)
        finally:
            ready.stop()
        for name, taken in samples.items():
            rows[name] |= _summary(taken, plan.threads)
        return Row(
            ready.model,
            plan.threads,
            _cpu(),
            known["flops"],
            known["bytes"],
            ready.bounds["flops"],
            ready.bounds["bytes"],
            rounds,
            {name: {k: v for k, v in row.items() if k != "call_s"} for name, row in rows.items()},
            ready.bounds["memory"],
        )

    def stop(self) -> None:
        """End all that it has started. For the thread that works here."""
        while self._engines:
            self._engines.pop().stop()

    def interrupt(self) -> None:
        """From another thread: all that it has started ends, and what it starts meanwhile."""
        self._ended = True
        Engine.kill(list(self._engines))


def measure(model: str, plan: Plan) -> Row:
    """All engines on a model. Raises MlirulesError where it cannot be exported."""
    (cores,) = groups(plan.threads, 1)
    workshop = _Workshop(plan, cores, Turn())
    try:
        return workshop.measure(workshop.prepare(model))
    finally:
        workshop.stop()


def measured(
    models: Sequence[str], plan: Plan, together: int = 1
) -> Iterator[tuple[str, Row | MlirulesError]]:
    """Models with what the engines make of each, or why nothing is known of it.

    With ``together`` so many are prepared side by side; they come as they are ready then.
    """
    turn, left = Turn(), queue.SimpleQueue[str]()
    workshops = [_Workshop(plan, cores, turn) for cores in groups(plan.threads, together)]
    for model in models:
        left.put(model)
    done = queue.SimpleQueue[tuple[str, Row | BaseException]]()

    def work(workshop: _Workshop) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                model = left.get_nowait()
                try:
                    done.put((model, workshop.measure(workshop.prepare(model))))
                except BaseException as error:  # noqa: BLE001 -- raised where they are awaited
                    done.put((model, error))
                finally:
                    workshop.stop()

    threads = [threading.Thread(target=work, args=[one], daemon=True) for one in workshops]
    for thread in threads:
        thread.start()
    try:
        for _ in models:
            model, found = done.get()
            if isinstance(found, (Row, MlirulesError)):
                yield model, found
            else:
                raise found
    finally:
        while not left.empty():
            with contextlib.suppress(queue.Empty):
                left.get_nowait()
        for workshop in workshops:
            workshop.interrupt()
        for thread in threads:
            thread.join(timeout=10)


def _in_turns(
    engines: dict[str, Engine], rows: dict[str, dict[str, Any]], plan: Plan
) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """Samples of each engine, round by round; one that fails meanwhile is left out."""
    calls = {
        name: max(1, round(plan.sample_s / max(rows[name]["call_s"], 1e-6))) for name in engines
    }
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    end = time.monotonic() + plan.seconds * len(engines)
    rounds = 0
    while engines and rounds < plan.rounds and (rounds < 3 or time.monotonic() < end):
        for name in list(engines)[:: 1 if rounds % 2 else -1]:
            order = {"do": "sample", "calls": calls[name]}
            found = engines[name].ask(order, plan.timeout)
            if "failed" in found:
                rows[name] = found
                engines.pop(name).stop()
                samples.pop(name)
            else:
                samples[name].append(found)
        rounds += 1
    return samples, rounds


def _summary(samples: list[dict[str, Any]], threads: int) -> dict[str, Any]:
    wall = sorted(1e3 * sample["wall"] for sample in samples)
    low, median, high = statistics.quantiles(wall, n=4) if len(wall) > 1 else wall * 3
    cpu = 1e3 * min(sample["cpu"] for sample in samples)
    return {
        "ms": cpu if threads == 1 else median,
        "cpu_ms": cpu,
        "wall_ms": median,
        "low_ms": low,
        "high_ms": high,
        "mb": max(sample["mb"] for sample in samples),
    }


def _cpu() -> str:
    """The processor's name and the number of cores."""
    name = platform.processor()
    with contextlib.suppress(OSError):
        for text in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if text.startswith("model name"):
                name = text.partition(":")[2].strip()
                break
    return f"{name}, {os.cpu_count()} cores"


def ratio(theirs: float | None, ours: float | None) -> str:
    """How many times as fast, where both are known."""
    return "" if theirs is None or ours is None else f"{theirs / ours:.2f}"


def line(cells: Sequence[str]) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def cell(text: str) -> str:
    """Text that fits into one."""
    return " ".join(text.split())[:200].replace("|", "\\|").replace("<", "&lt;")
