"""Whole models by the runtimes that people would pick: mlirules beside its peers, in turns.

    pip install 'mlirules[torch,peers]' torchvision timm transformers
    python benchmarks/peers.py                                    # all models, all cores
    python benchmarks/peers.py --threads 1 --only 'mobilenet*'    # one thread, processor time
    python benchmarks/peers.py --engine max-autotune,tuned --tune 10m
    python benchmarks/peers.py --only '*-bf16'                    # in bf16
    python benchmarks/peers.py --only bert-int8 --only gpt2-int8  # products of bytes (torchao)
    python benchmarks/peers.py --finished --report docs/peers.md

Engines: PyTorch eager, Inductor with frozen weights (and with max-autotune), ONNX Runtime,
OpenVINO, stock iree-compile for this CPU, mlirules by default (and after `mlirules tune`). All in
f32, or in bf16 where the model's name ends so (OpenVINO by its hint; ONNX Runtime has none), or
with linear layers that PT2E quantized (ONNX Runtime quantizes the model itself). Each
has a process of its own, which is stopped (SIGSTOP) while others run: threads that spin disturb
nobody. Round by round each takes a sample, every other round backwards, after a call that is not
timed. Of one thread the least processor time counts, of more the median of the clock.

Errors are those of the results against PyTorch's in f32, over the largest result. The limit is the
longer of FLOP over the machine's speed in a large product (of f32) and of the bytes of weights,
inputs and results over its speed in a large copy, both measured beside the model. Finished models
are kept in a file of JSON lines, with programs and ONNX files in a folder beside: a run goes on
where the last ended.
"""

import argparse
import contextlib
import fnmatch
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

from peers_models import BF16, INT8, MODELS, UNLISTED
from sections import renew

import mlirules
from mlirules.language.faults import EXIT_CHECK_FAILED, EXIT_DONE, EXIT_INPUT_WRONG, MlirulesError
from mlirules.support.children import Child, Died

#: In the order of the tables; those after the bar run where they are named alone.
ENGINES = ("eager", "inductor", "onnxruntime", "openvino", "stock", "mlirules")
FURTHER = ("max-autotune", "tuned")
OURS = ("mlirules", "tuned")
#: What is no peer: nobody chooses between those.
NO_PEERS = ("stock", *OURS)
TOLERANCE = 1e-3
#: In bf16, whose numbers are apart by 4e-3.
BF16_TOLERANCE = 3e-2
#: In bytes, of which 256 span all that an activation may be.
INT8_TOLERANCE = 1e-1
#: A sample is calls that last this long together.
SAMPLE_S = 0.05
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
BEGIN = "<!-- written by benchmarks/peers.py --report -->"
END = "<!-- end of peers -->"


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

    @property
    def limit_ms(self) -> float:
        """No engine can be faster, but for algorithms that need fewer operations."""
        return 1e3 * max(self.flops / self.peak, self.bytes / self.bandwidth)

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
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):  # an interrupted run did not finish the line
                row = Row(**json.loads(line))
                self.rows[row.model, row.threads] = row

    def put(self, row: Row) -> None:
        """Keep a row, at once on disk."""
        self.rows[row.model, row.threads] = row
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")


class Engine:
    """An engine in its process, which stands still but for the time of an order."""

    def __init__(self, name: str, model: str, options: argparse.Namespace) -> None:
        self.name = name
        self._scratch = tempfile.TemporaryDirectory(prefix="peers-")
        package = Path(mlirules.__file__).parent.parent
        path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
        words = [
            *(name, model, options.folder.absolute()),
            *(self._scratch.name, options.threads, options.tune),
        ]
        worker = Path(__file__).with_name("peers_worker.py")
        environment = {"PYTHONPATH": path} | dict.fromkeys(THREADS, str(options.threads))
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
def _alone(name: str, model: str, options: argparse.Namespace) -> Iterator[Engine]:
    engine = Engine(name, model, options)
    try:
        yield engine
    finally:
        engine.stop()


def measure(model: str, options: argparse.Namespace) -> Row:
    """All engines on a model. Raises MlirulesError where it cannot be exported."""
    facts = options.folder / f"{model}.json"
    if not facts.exists():
        with _alone("export", model, options) as exporter:
            found = exporter.ask({"do": "prepare"}, options.timeout)
        if "failed" in found:
            raise MlirulesError.at(model, f"is not exported: {found['failed']}")
    known = json.loads(facts.read_text(encoding="utf-8"))
    with _alone("limits", model, options) as machine:
        bounds = machine.ask({"do": "prepare"}, options.timeout)
    if "failed" in bounds:
        raise MlirulesError.at(model, f"the machine's limits: {bounds['failed']}")
    engines: dict[str, Engine] = {}
    rows: dict[str, dict[str, Any]] = {}
    try:
        for name in options.engine:
            engines[name] = Engine(name, model, options)
            timeout = options.timeout * (10 if name in FURTHER else 1)
            rows[name] = engines[name].ask({"do": "prepare"}, timeout)
            if "failed" in rows[name]:
                engines.pop(name).stop()
        samples, rounds = _in_turns(engines, rows, options)
    finally:
        for engine in engines.values():
            engine.stop()
    for name, taken in samples.items():
        rows[name] |= _summary(taken, options.threads)
    return Row(
        model,
        options.threads,
        _cpu(),
        known["flops"],
        known["bytes"],
        bounds["flops"],
        bounds["bytes"],
        rounds,
        {name: {k: v for k, v in row.items() if k != "call_s"} for name, row in rows.items()},
    )


def _in_turns(
    engines: dict[str, Engine], rows: dict[str, dict[str, Any]], options: argparse.Namespace
) -> tuple[dict[str, list[dict[str, Any]]], int]:
    """Samples of each engine, round by round; one that fails meanwhile is left out."""
    calls = {name: max(1, round(SAMPLE_S / max(rows[name]["call_s"], 1e-6))) for name in engines}
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    end = time.monotonic() + options.seconds * len(engines)
    rounds = 0
    while engines and rounds < options.rounds and (rounds < 3 or time.monotonic() < end):
        for name in list(engines)[:: 1 if rounds % 2 else -1]:
            order = {"do": "sample", "calls": calls[name]}
            found = engines[name].ask(order, options.timeout)
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
    low, median, high = statistics.quantiles(wall, n=4)
    cpu = 1e3 * min(sample["cpu"] for sample in samples)
    return {
        "ms": cpu if threads == 1 else median,
        "cpu_ms": cpu,
        "wall_ms": median,
        "low_ms": low,
        "high_ms": high,
        "mb": max(sample["mb"] for sample in samples),
    }


def _tolerance(model: str) -> float:
    """The largest error that a model's results may have, over the largest of them."""
    if model.endswith(INT8):
        return INT8_TOLERANCE
    return BF16_TOLERANCE if model.endswith(BF16) else TOLERANCE


def _cpu() -> str:
    """The processor's name and the number of cores."""
    name = platform.processor()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {os.cpu_count()} cores"


# ---------------------------------------------------------------- tables


def shown(row: Row) -> str:
    """A row for the terminal."""
    times = (
        f"{name} {ms:.2f}" if (ms := row.ms(name)) is not None else f"{name} -"
        for name in row.engines
    )
    return f"{row.model:20} {'  '.join(times)}  limit {row.limit_ms:.2f} ms"


def section(rows: Sequence[Row]) -> str:
    """The figures as a piece of a Markdown document: three tables for each number of threads."""
    lines: list[str] = []
    for threads in sorted({row.threads for row in rows}):
        here = [row for row in rows if row.threads == threads]
        engines = [n for n in (*ENGINES, *FURTHER) if any(n in row.engines for row in here)]
        counted = "least processor time" if threads == 1 else "median of the clock"
        peaks = f"{min(r.peak for r in here) / 1e9:.0f} to {max(r.peak for r in here) / 1e9:.0f}"
        wide = [row.bandwidth / 1e9 for row in here]
        lines += [
            f"### {threads} thread{'s'[: threads > 1]}: milliseconds a call, {counted}",
            f"{'; '.join(sorted({row.cpu for row in here}))}; {peaks} GFLOP/s in a product, "
            f"{min(wide):.0f} to {max(wide):.0f} GB/s in a copy.",
            "",
            *_times(here, engines),
            "",
            *_means(here),
            "",
            *_costs(here, engines),
            "",
        ]
    return "\n".join(lines).rstrip()


def _times(rows: Sequence[Row], engines: Sequence[str]) -> list[str]:
    heads = ["model", *engines, "limit", "times Inductor", "times the best peer", "error"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for row in rows:
        cells = [row.model]
        for name in engines:
            ms, failed = row.ms(name), "failed" in row.engines.get(name, {})
            cells.append(f"{ms:.2f}" if ms is not None else "fails" if failed else "")
        ours, error = row.ms("mlirules"), row.engines.get("mlirules", {}).get("error")
        cells += [
            f"{row.limit_ms:.2f}",
            _ratio(row.ms("inductor"), ours),
            _ratio(row.best_peer, ours),
            "" if error is None else f"{error:.0e}",
        ]
        lines.append(_line(cells))
    return lines


def _means(rows: Sequence[Row]) -> list[str]:
    """Geometric means of how many times as fast mlirules is by default."""
    said = []
    for over in ("eager", "inductor", "onnxruntime", "openvino", "stock"):
        ratios = [
            theirs / ours
            for row in rows
            if (theirs := row.ms(over)) is not None and (ours := row.ms("mlirules")) is not None
        ]
        if ratios:
            said.append(f"{over} {statistics.geometric_mean(ratios):.2f} ({len(ratios)} models)")
    return (
        [f"Geometric means of how many times as fast mlirules is as {', '.join(said)}."]
        if said
        else []
    )


def _costs(rows: Sequence[Row], engines: Sequence[str]) -> list[str]:
    """Processor seconds of compiling and megabytes while running; what failed, and why."""
    lines = [
        _line(["model: s to compile / MB at run time", *engines]),
        _line(["---"] * (len(engines) + 1)),
    ]
    failures = []
    for row in rows:
        cells = [row.model]
        for name in engines:
            of = row.engines.get(name, {})
            held = "compile_cpu_s" in of and "mb" in of
            cells.append(f"{of['compile_cpu_s']:.1f} / {of['mb']}" if held else "")
            if "failed" in of:
                failures.append(f"- {row.model}, {name}: {_cell(of['failed'])}")
        lines.append(_line(cells))
    return [*lines, *([""] if failures else []), *failures]


def _ratio(theirs: float | None, ours: float | None) -> str:
    return "" if theirs is None or ours is None else f"{theirs / ours:.2f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return " ".join(text.split())[:200].replace("|", "\\|").replace("<", "&lt;")


def write(path: Path, rows: Sequence[Row]) -> None:
    """Put the section between its marks in the document. Raises MlirulesError without them."""
    renew(path, BEGIN, END, section(rows))


# ---------------------------------------------------------------- command line


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line. Exits with 2, saying why, when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="peers.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="repeatable")
    parser.add_argument("--engine", metavar="NAMES", help=f"by commas: {', '.join(ENGINES)}")
    parser.add_argument("--max-autotune", action="store_true", help="Inductor with it, too")
    parser.add_argument("--tune", metavar="BUDGET", default="", help="mlirules after it, too: 10m")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--rounds", type=int, default=40, metavar="N", help="at most")
    parser.add_argument("--seconds", type=float, default=4, metavar="S", help="for each engine")
    parser.add_argument("--timeout", type=float, default=900, metavar="S", help="to compile")
    parser.add_argument("--folder", type=Path, default=Path("peers"), help="exported models")
    parser.add_argument("--state", type=Path, default=Path("peers.jsonl"))
    parser.add_argument("--again", action="store_true", help="also what is finished")
    parser.add_argument("--finished", action="store_true", help="run nothing")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the tables into FILE")
    parser.add_argument("--list", action="store_true", help="the names of the models")
    parsed = parser.parse_args(arguments)
    # What is not listed is named whole, or by the end that says so: '*-bf16'.
    names_of = {
        glob: [name for name in (*MODELS, *UNLISTED) if fnmatch.fnmatchcase(name, glob)]
        if glob in UNLISTED or glob.endswith((BF16, INT8))
        else [name for name in MODELS if fnmatch.fnmatchcase(name, glob)]
        for glob in parsed.only
    }
    if nothing := [glob for glob, found in names_of.items() if not found]:
        parser.error(f"--only: no such model: {', '.join(nothing)}; known: {', '.join(MODELS)}")
    wanted = {name for found in names_of.values() for name in found} if parsed.only else {*MODELS}
    parsed.models = [name for name in (*MODELS, *UNLISTED) if name in wanted]
    names = list(ENGINES) if parsed.engine is None else parsed.engine.split(",")
    if unknown := [name for name in names if name not in (*ENGINES, *FURTHER)]:
        parser.error(f"--engine: {', '.join(unknown)} given; known: {', '.join(ENGINES + FURTHER)}")
    names += ["max-autotune"] * (parsed.max_autotune and "max-autotune" not in names)
    names += ["tuned"] * (bool(parsed.tune) and "tuned" not in names)
    if "tuned" in names and not parsed.tune:
        parser.error("--engine tuned needs a budget: --tune 10m")
    if parsed.threads < 1:
        parser.error("--threads: at least 1")
    parsed.engine = names
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 1 where mlirules fails or is wrong."""
    options = parse_arguments(arguments)
    if options.list:
        print("\n".join(options.models))
        return EXIT_DONE
    good = True
    try:
        store = Store(options.state)
        options.folder.mkdir(parents=True, exist_ok=True)
        for model in () if options.finished else options.models:
            old = store.rows.get((model, options.threads))
            if old is not None and not options.again and set(options.engine) <= set(old.engines):
                continue
            try:
                row = measure(model, options)
            except MlirulesError as error:
                print(error, file=sys.stderr)
                good = False
                continue
            store.put(row)
            print(shown(row), flush=True)
            most = _tolerance(model)
            for name, of in row.engines.items():
                why = of.get("failed") or ("" if of["error"] <= most else "wrong numbers")
                if why:
                    print(f"  {name}: {why}")
                    good &= name not in OURS
        if options.report is not None:
            write(
                options.report, [row for row in store.rows.values() if row.model in options.models]
            )
    except MlirulesError as error:
        print(error, file=sys.stderr)
        return EXIT_INPUT_WRONG
    except KeyboardInterrupt:
        print("interrupted: run again to go on", file=sys.stderr)
        return 130
    return EXIT_DONE if good else EXIT_CHECK_FAILED


if __name__ == "__main__":
    # Ended from outside, too, it ends its processes: those that stand still would stay for ever.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
