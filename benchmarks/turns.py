"""Engines in turns, each in a process of its own that stands still while another runs.

What `peers.py` does with whole models and `ops.py` with single ops: a row is what the engines made
of one of them. Round by round each engine takes a sample, every other round backwards, after a call
that is not timed.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import mlirules
from mlirules.language.faults import MlirulesError
from mlirules.support.children import Child, Died

__all__ = ["NO_PEERS", "OURS", "Engine", "Plan", "Row", "Store", "cell", "line", "measure", "ratio"]

OURS = ("mlirules", "tuned")
#: What is no peer: nobody chooses between those.
NO_PEERS = ("stock", *OURS)
#: Engines that take ten times as long to compile as others may.
SLOW = ("max-autotune", "tuned")
#: What is said of a model whose default nothing was found to be faster than.
NOTHING = "nothing gained by tuning"
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


class Engine:
    """An engine in its process, which stands still but for the time of an order."""

    def __init__(self, name: str, model: str, plan: Plan) -> None:
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
        self._child = Child(
            [sys.executable, worker, *(str(word) for word in words)], environment=environment
        )

    def ask(self, order: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The answer to an order: with ``failed`` where there is none."""
        with contextlib.suppress(ProcessLookupError):  # it died: the answer says so
            os.killpg(self._child.pid, signal.SIGCONT)
        try:
            found = self._child.ask(order, timeout)
        except Died as died:
            return {"failed": f"{died.kind}: {died.why}"[:300]}
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGSTOP)
        return found

    def stop(self) -> None:
        """End it, and what it wrote."""
        self._child.stop()
        self._scratch.cleanup()


@contextlib.contextmanager
def _alone(name: str, model: str, plan: Plan) -> Iterator[Engine]:
    engine = Engine(name, model, plan)
    try:
        yield engine
    finally:
        engine.stop()


def measure(model: str, plan: Plan) -> Row:
    """All engines on a model. Raises MlirulesError where it cannot be exported."""
    facts = plan.folder / f"{model}.json"
    if not facts.exists():
        with _alone("export", model, plan) as exporter:
            found = exporter.ask({"do": "prepare"}, plan.timeout)
        if "failed" in found:
            raise MlirulesError.at(model, f"is not exported: {found['failed']}")
    known = json.loads(facts.read_text(encoding="utf-8"))
    with _alone("limits", model, plan) as machine:
        traffic = {key: known[key] for key in ("read", "written")} if plan.alike else {}
        bounds = machine.ask({"do": "prepare"} | traffic, plan.timeout)
    if "failed" in bounds:
        raise MlirulesError.at(model, f"the machine's limits: {bounds['failed']}")
    engines: dict[str, Engine] = {}
    rows: dict[str, dict[str, Any]] = {}
    try:
        for name in plan.engines:
            engines[name] = Engine(name, model, plan)
            timeout = plan.timeout * (10 if name in SLOW else 1)
            rows[name] = engines[name].ask({"do": "prepare"}, timeout)
            if "failed" in rows[name]:
                engines.pop(name).stop()
        samples, rounds = _in_turns(engines, rows, plan)
    finally:
        for engine in engines.values():
            engine.stop()
    for name, taken in samples.items():
        rows[name] |= _summary(taken, plan.threads)
    return Row(
        model,
        plan.threads,
        _cpu(),
        known["flops"],
        known["bytes"],
        bounds["flops"],
        bounds["bytes"],
        rounds,
        {name: {k: v for k, v in row.items() if k != "call_s"} for name, row in rows.items()},
        bounds["memory"],
    )


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
