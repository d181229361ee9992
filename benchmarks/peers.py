"""Whole models by the runtimes that people would pick: mlirules beside its peers, in turns.

    pip install 'mlirules[torch,peers]' torchvision timm transformers
    python benchmarks/peers.py                                    # all models, all cores
    python benchmarks/peers.py --threads 1 --only 'mobilenet*'    # one thread, processor time
    python benchmarks/peers.py --engine max-autotune,tuned --tune 10m
    python benchmarks/peers.py --only '*-bf16'                    # in bf16
    python benchmarks/peers.py --only bert-int8 --only gpt2-int8  # products of bytes (torchao)
    python benchmarks/peers.py --only '*-x8' --only '*-512'       # batches of 8; 512 tokens
    python benchmarks/peers.py --drawn 12 --seed 1                # models of timm that nobody chose
    python benchmarks/peers.py --only timm:ghostnet_100           # one of timm's models
    python benchmarks/peers.py --finished --report docs/peers.md

Engines: PyTorch eager, Inductor with frozen weights (and with max-autotune), ONNX Runtime,
OpenVINO, stock iree-compile for this CPU, mlirules by default (and after `mlirules tune`). All in
f32, or in bf16 where the model's name ends so (OpenVINO by its hint; ONNX Runtime has none), or
with linear layers that PT2E quantized (ONNX Runtime quantizes the model itself). Each
has a process of its own, which is stopped (SIGSTOP) while others run: threads that spin disturb
nobody. With --together several models are prepared side by side on cores of their own, and all
stand still while one of them is measured. Round by round each takes a sample, every other round
backwards, after a call that is not timed. Of one thread the least processor time counts, of more
the median of the clock.

Errors are those of the results against PyTorch's in f32, over the largest result. The limit is the
longer of FLOP over the machine's speed in a large product (of f32) and of the bytes of weights,
inputs and results over its speed in a large copy, both measured beside the model. Finished models
are kept in a file of JSON lines, with programs and ONNX files in a folder beside: a run goes on
where the last ended.
"""

import argparse
import fnmatch
import os
import signal
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from peers_models import BF16, ENDS, INT8, MODELS, TIMM, UNLISTED, drawn, recipe
from sections import parts, renew
from turns import NOTHING, OURS, SLOW, Plan, Row, Store, cell, line, measured, ratio

from mlirules.language.faults import EXIT_CHECK_FAILED, EXIT_DONE, EXIT_INPUT_WRONG, MlirulesError

#: In the order of the tables; those of SLOW run where they are named alone.
ENGINES = ("eager", "inductor", "onnxruntime", "openvino", "stock", "mlirules")
TOLERANCE = 1e-3
#: In bf16, whose numbers are apart by 4e-3.
BF16_TOLERANCE = 3e-2
#: In bytes, of which 256 span all that an activation may be.
INT8_TOLERANCE = 1e-1
BEGIN = "<!-- written by benchmarks/peers.py --report -->"
END = "<!-- end of peers -->"


def _tolerance(model: str) -> float:
    """The largest error that a model's results may have, over the largest of them."""
    if model.endswith(INT8):
        return INT8_TOLERANCE
    return BF16_TOLERANCE if model.endswith(BF16) else TOLERANCE


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
        engines = [n for n in (*ENGINES, *SLOW) if any(n in row.engines for row in here)]
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
            *_found(here),
            *_costs(here, engines),
            "",
        ]
    return "\n".join(lines).rstrip()


def _times(rows: Sequence[Row], engines: Sequence[str]) -> list[str]:
    heads = ["model", *engines, "limit", "times Inductor", "times the best peer", "error"]
    lines = [line(heads), line(["---"] * len(heads))]
    for row in rows:
        cells = [row.model]
        for name in engines:
            ms, failed = row.ms(name), "failed" in row.engines.get(name, {})
            cells.append(f"{ms:.2f}" if ms is not None else "fails" if failed else "")
        ours, error = row.ms("mlirules"), row.engines.get("mlirules", {}).get("error")
        cells += [
            f"{row.limit_ms:.2f}",
            ratio(row.ms("inductor"), ours),
            ratio(row.best_peer, ours),
            "" if error is None else f"{error:.0e}",
        ]
        lines.append(line(cells))
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


def _found(rows: Sequence[Row]) -> list[str]:
    """What ``mlirules tune`` comes to beside the best peer, and where it found something."""
    known = [row for row in rows if row.ms("tuned") is not None]
    if not known:
        return []
    beside = [
        (row, best / took)
        for row in known
        if (best := row.best_peer) is not None and (took := row.ms("tuned")) is not None
    ]
    ahead = sum(times >= 1 for _, times in beside)
    gained = {
        row.model: note
        for row in known
        if (note := row.engines["tuned"].get("note", "")) and not note.startswith(NOTHING)
    }
    said = f"After `mlirules tune`: at least as fast as the best peer on {ahead} of {len(beside)}. "
    said += f"It left the default, whose program is then the same, on {len(known) - len(gained)}."
    return [said, *(f"- {model}: {cell(note)}" for model, note in gained.items()), ""]


def _costs(rows: Sequence[Row], engines: Sequence[str]) -> list[str]:
    """Processor seconds of compiling and megabytes while running; what failed, and why."""
    lines = [
        line(["model: s to compile / MB at run time", *engines]),
        line(["---"] * (len(engines) + 1)),
    ]
    failures = []
    for row in rows:
        cells = [row.model]
        for name in engines:
            of = row.engines.get(name, {})
            held = "compile_cpu_s" in of and "mb" in of
            cells.append(f"{of['compile_cpu_s']:.1f} / {of['mb']}" if held else "")
            if "failed" in of:
                failures.append(f"- {row.model}, {name}: {cell(of['failed'])}")
        lines.append(line(cells))
    return [*lines, *([""] if failures else []), *failures]


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
    parser.add_argument("--drawn", type=int, default=0, metavar="N", help="as many models of timm")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of what is drawn")
    parser.add_argument("--engine", metavar="NAMES", help=f"by commas: {', '.join(ENGINES)}")
    parser.add_argument("--max-autotune", action="store_true", help="Inductor with it, too")
    parser.add_argument("--tune", metavar="BUDGET", default="", help="mlirules after it, too: 10m")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument(
        "--together", type=int, default=1, metavar="N", help="models to prepare side by side"
    )
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
    # What is not listed is named whole, or by the end that says so: '*-bf16', '*-x8'.
    names_of = {
        glob: [name for name in (*MODELS, *UNLISTED) if fnmatch.fnmatchcase(name, glob)]
        if glob in UNLISTED or glob.endswith(ENDS)
        else [name for name in MODELS if fnmatch.fnmatchcase(name, glob)]
        for glob in parsed.only
        if not glob.startswith(TIMM)
    }
    theirs = [name for name in parsed.only if name.startswith(TIMM)]
    if nothing := [glob for glob, found in names_of.items() if not found]:
        parser.error(f"--only: no such model: {', '.join(nothing)}; known: {', '.join(MODELS)}")
    for name in theirs:
        try:
            recipe(name)
        except KeyError:
            parser.error(f"--only: timm has no such model: {name.removeprefix(TIMM)}")
    if parsed.drawn < 0:
        parser.error("--drawn: at least 0")
    theirs += drawn(parsed.drawn, parsed.seed) if parsed.drawn else []
    wanted = {name for found in names_of.values() for name in found}
    if not theirs and not parsed.only:
        wanted = {*MODELS}
    parsed.models = [name for name in (*MODELS, *UNLISTED) if name in wanted] + theirs
    names = list(ENGINES) if parsed.engine is None else parsed.engine.split(",")
    if unknown := [name for name in names if name not in (*ENGINES, *SLOW)]:
        parser.error(f"--engine: {', '.join(unknown)} given; known: {', '.join(ENGINES + SLOW)}")
    names += ["max-autotune"] * (parsed.max_autotune and "max-autotune" not in names)
    names += ["tuned"] * (bool(parsed.tune) and "tuned" not in names)
    if "tuned" in names and not parsed.tune:
        parser.error("--engine tuned needs a budget: --tune 10m")
    for name in ("threads", "together"):
        if getattr(parsed, name) < 1:
            parser.error(f"--{name}: at least 1")
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
        if options.report is not None:
            parts(options.report, BEGIN, END)
        store = Store(options.state)
        options.folder.mkdir(parents=True, exist_ok=True)
        plan = Plan(
            options.folder,
            tuple(options.engine),
            options.threads,
            options.tune,
            options.rounds,
            options.seconds,
            options.timeout,
        )
        unfinished = [
            model
            for model in options.models
            if (old := store.rows.get((model, options.threads))) is None
            or options.again
            or not set(options.engine) <= set(old.engines)
        ]
        for model, row in measured([] if options.finished else unfinished, plan, options.together):
            if isinstance(row, MlirulesError):
                print(row, file=sys.stderr)
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
