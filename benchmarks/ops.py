"""Single ops on cpu, one thread: mlirules beside PyTorch, ONNX Runtime, OpenVINO and the limit.

    pip install 'mlirules[torch,peers]' torchvision timm transformers
    python benchmarks/ops.py                                     # all: half an hour
    python benchmarks/ops.py --only 'depthwise*' --json ops.json
    python benchmarks/ops.py --finished --report docs/models.md
    python benchmarks/ops.py --forms --only 'conv*'              # the forms that it chose from
    python benchmarks/ops.py --random 80 --seed 1                # shapes nothing was tuned on

Convolutions and depthwise ones (with bias and relu), products, attention, normalisations, softmax
and GELU in the sizes of public networks, each as a model of its own in f32 with constant weights:
processes, turns and errors are those of `peers.py`. Times are the least processor time; each sample
is many calls after one that is not timed, so that what stays in the caches stays there for all.

The limit is the longer of FLOP over the machine's speed in a large product and the time in which
numpy reads and writes as many bytes as the op does, again and again: where an op's operands stay
in the caches, so do these. Memory's speed is that of its bytes in a copy that no cache holds, which
is what they take in a network, behind other layers. What a call costs is no part of either, and
most of what the smallest take.
An engine that is not installed is told and left out.

With ``--forms`` convolutions and products alone run in this process, as each form that the default
pipeline chooses from; with ``--random`` a table sums up what its choices lose on such shapes.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.metadata
import importlib.util
import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import ops_forms
from ops_shapes import by_name
from sections import parts, renew
from turns import Plan, Row, Store, cell, line, measure, ratio

from mlirules.language.faults import EXIT_CHECK_FAILED, EXIT_DONE, EXIT_INPUT_WRONG, MlirulesError
from mlirules.support import files

#: In the order of the tables, with the package that each is.
ENGINES: Mapping[str, str] = {
    "eager": "torch",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "mlirules": "mlirules",
}
TOLERANCE = 1e-4
#: Calls of this long are a sample, so often at most.
SAMPLE_S, ROUNDS = 0.01, 100
#: Kinds whose bytes take longer than their FLOP: for them the limit is memory's speed.
BY_BYTES = ("depthwise convolution", "product of one row", "normalisation", "softmax", "GELU")
BEGIN = "<!-- written by benchmarks/ops.py --report -->"
END = "<!-- end of single ops -->"


def shown(row: Row) -> str:
    """A row for the terminal."""
    times = (
        f"{name} {ms:.4f}" if (ms := row.ms(name)) is not None else f"{name} -"
        for name in row.engines
    )
    best = ratio(row.best_peer, row.ms("mlirules"))
    return f"{row.model:34} {'  '.join(times)}  limit {row.limit_ms:.4f} ms  {best} of the best"


# ---------------------------------------------------------------- tables


def section(rows: Sequence[Row], about: str) -> str:
    """The figures as a piece of a Markdown document: kinds, then each op."""
    engines = [name for name in ENGINES if any(name in row.engines for row in rows)]
    return "\n".join([about, "", *_kinds(rows), "", *_times(rows, engines), *_failures(rows)])


def _kinds(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each kind of op: what mlirules takes beside the best peer, and the limit."""
    heads = ["kind", "ops", "times the best peer", "the least", "of the limit", "of memory's speed"]
    yield line(heads)
    yield line(["---"] * len(heads))
    kinds = {name: op.kind for name, op in by_name().items()}
    for kind in dict.fromkeys(kinds.values()):
        here = [row for row in rows if kinds.get(row.model) == kind]
        known = [(row, took) for row in here if (took := row.ms("mlirules")) is not None]
        if not known:
            continue
        beside = {row.model: row.best_peer / took for row, took in known if row.best_peer}
        worst = min(beside, key=lambda name: beside[name], default="")
        share = statistics.geometric_mean(row.limit_ms / took for row, took in known)
        # Bytes at the speed of a large copy: an op whose operands lie in the caches is faster.
        memory = {row.model: at / took for row, took in known if (at := row.memory_ms) is not None}
        slowest = min(memory, key=lambda name: memory[name], default="")
        yield line(
            [
                *(kind, str(len(here))),
                f"{statistics.geometric_mean(beside.values()):.2f}" if beside else "",
                f"{beside[worst]:.2f} ({worst})" if beside else "",
                f"{share:.2f}",
                f"{statistics.geometric_mean(memory.values()):.2f}, at least {memory[slowest]:.2f}"
                if kind in BY_BYTES and memory
                else "",
            ]
        )


def _times(rows: Sequence[Row], engines: Sequence[str]) -> Iterator[str]:
    heads = ["op", *(f"{name}, ms" for name in engines), "limit, ms"]
    heads += ["times the best peer", "of the limit", "of memory's speed", "error"]
    yield line(heads)
    yield line(["---"] * len(heads))
    for row in rows:
        ours = row.ms("mlirules")
        cells = [row.model]
        for name in engines:
            ms, failed = row.ms(name), "failed" in row.engines.get(name, {})
            cells.append(f"{ms:.4f}" if ms is not None else "fails" if failed else "")
        errors = [of["error"] for of in row.engines.values() if "error" in of]
        cells += [
            f"{row.limit_ms:.4f}",
            ratio(row.best_peer, ours),
            ratio(row.limit_ms, ours),
            ratio(row.memory_ms, ours),
            f"{max(errors):.0e}" if errors else "",
        ]
        yield line(cells)


def _failures(rows: Sequence[Row]) -> list[str]:
    failures = [
        f"- {row.model}, {name}: {cell(of['failed'])}"
        for row in rows
        for name, of in row.engines.items()
        if "failed" in of
    ]
    return ["", *failures] if failures else []


def about(rows: Sequence[Row]) -> str:
    """What was measured, where, by which command."""
    peaks = [row.peak / 1e9 for row in rows]
    releases = ", ".join(f"{name} {found}" for name, found in _releases().items())
    return (
        f"`python benchmarks/ops.py --report FILE`, {'; '.join(sorted({r.cpu for r in rows}))}, "
        f"commit `{_commit()}`; {releases}; {min(peaks):.0f} to {max(peaks):.0f} GFLOP/s in a "
        "large product."
    )


def _releases() -> dict[str, str]:
    found = {}
    for package in ("torch", "onnxruntime", "openvino"):
        if importlib.util.find_spec(package) is not None:
            found[package] = importlib.metadata.version(package)
    return found


def _commit() -> str:
    """The commit that is checked out, with a mark where files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=7"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return done.stdout.strip() or "unknown"


# ---------------------------------------------------------------- command line


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line. Exits with 2, saying why, when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="ops.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", action="append", default=[], metavar="GLOB", help="repeatable")
    add("--engine", metavar="NAMES", help=f"by commas: {', '.join(ENGINES)}")
    add("--seconds", type=float, metavar="S", help="for each engine or form")
    add("--timeout", type=float, default=300, metavar="S", help="to compile")
    add("--folder", type=Path, default=Path("ops"), help="exported ops")
    add("--state", type=Path, default=Path("ops.jsonl"), help="finished ops")
    add("--again", action="store_true", help="also what is finished")
    add("--finished", action="store_true", help="run nothing")
    add("--report", type=Path, metavar="FILE", help="write the tables into FILE")
    add("--json", type=Path, metavar="FILE", help="rows are added to it")
    add("--list", action="store_true", help="the names of the ops")
    add("--forms", action="store_true", help="the forms of convolutions and products instead")
    add("--random", type=int, metavar="N", help="those of N ops of random sizes")
    add("--seed", type=int, default=0, help="of those")
    add("--pipeline", default="cpu-fast", help="of forms")
    add("--target", default="cpu", help="of forms")
    parsed = parser.parse_args(arguments)
    parsed.forms |= parsed.random is not None
    if parsed.seconds is None:
        parsed.seconds = 0.3 if parsed.forms else 0.6
    names = list(by_name())
    if parsed.random is None:
        for glob in parsed.only:
            if not fnmatch.filter(names, glob):
                parser.error(f"--only: no such op: {glob}; known: {', '.join(names)}")
    parsed.ops = [
        name
        for name in names
        if not parsed.only or any(fnmatch.fnmatchcase(name, glob) for glob in parsed.only)
    ]
    wanted = list(ENGINES) if parsed.engine is None else parsed.engine.split(",")
    if unknown := [name for name in wanted if name not in ENGINES]:
        parser.error(f"--engine: {', '.join(unknown)} given; known: {', '.join(ENGINES)}")
    parsed.engine = wanted
    if parsed.forms and parsed.report:
        parser.error("--report: of engines, not of forms")
    return parsed


def installed(engines: Sequence[str]) -> tuple[str, ...]:
    """Those engines that are here; the others are told."""
    missing = [name for name in engines if importlib.util.find_spec(ENGINES[name]) is None]
    for name in missing:
        print(f"{name} is not installed, and left out: pip install 'mlirules[torch,peers]'")
    return tuple(name for name in engines if name not in missing)


def run(options: argparse.Namespace) -> bool:
    """Measure ops by engines; whether mlirules ran all of them and gave their numbers."""
    if options.report is not None and not options.finished:
        parts(options.report, BEGIN, END)
    store, good = Store(options.state), True
    options.folder.mkdir(parents=True, exist_ok=True)
    engines = () if options.finished else installed(options.engine)
    plan = Plan(
        options.folder,
        engines,
        rounds=ROUNDS,
        seconds=options.seconds,
        timeout=options.timeout,
        sample_s=SAMPLE_S,
        alike=True,
    )
    for name in () if options.finished else options.ops:
        old = store.rows.get((name, 1))
        if old is not None and not options.again and set(engines) <= set(old.engines):
            continue
        try:
            row = measure(name, plan)
        except MlirulesError as error:
            print(error, file=sys.stderr)
            good = False
            continue
        store.put(row)
        print(shown(row), flush=True)
        for engine, of in row.engines.items():
            if why := of.get("failed") or ("" if of["error"] <= TOLERANCE else "wrong numbers"):
                print(f"  {engine}: {why}")
                good &= engine != "mlirules"
    rows = [store.rows[name, 1] for name in options.ops if (name, 1) in store.rows]
    if not rows:
        raise MlirulesError.at(str(options.state), "none of these ops is finished", code="ops")
    if options.json is not None:
        old = json.loads(options.json.read_text("utf-8")) if options.json.exists() else {}
        files.write(
            options.json, json.dumps(old | {r.model: asdict(r) for r in rows}, indent=1) + "\n"
        )
    for text in _kinds(rows):
        print(text)
    if options.report is not None:
        renew(options.report, BEGIN, END, section(rows, about(rows)))
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 1 where mlirules fails or is wrong."""
    options = parse_arguments(arguments)
    if options.list:
        print("\n".join(options.ops))
        return EXIT_DONE
    try:
        good = ops_forms.run(options) if options.forms else run(options)
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
