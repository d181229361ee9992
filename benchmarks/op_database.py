"""How much of PyTorch's op database do the rules take, and with PyTorch's numbers?

The samples of `torch.testing._internal.common_methods_invocations.op_db`, two an op where there are
two, are exported as programs and run on cpu, each three ways in one run:

    builtin   plain iree-compile, without the rules
    fallback  the default pipeline, what `mlirules compile` does: IREE converts what is left
    rules     the default pipeline alone: no torch op is left, and the program passes

What is left out, and why, is the table `LEFT_OUT` of `op_database_export.py`. Exports are kept in a
folder outside the repository, finished work in a state file there: both are taken up again where
they ended, and a program is compiled again only when the text that the rules make of it changed.

    python benchmarks/op_database.py
    python benchmarks/op_database.py --dtype bf16,f16,i64,bool --only 'fft.*' --failures
    python benchmarks/op_database.py --dtype f16 --ops 90 --seed 11   # these alone are exported
    python benchmarks/op_database.py --dtype f32,bf16,f16,i64,bool --report docs/coverage.md
    python benchmarks/op_database.py --show special.i0e-0

Needs PyTorch, scipy and expecttest.
"""

import argparse
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import corpus
import corpus_data
import corpus_report
import op_database_export
from corpus_report import Done, Summary
from corpus_worker import Setup
from op_database_export import DTYPES
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mlirules.drivers.iree.compiler import Job
from mlirules.drivers.iree.targets import Target
from mlirules.language.faults import EXIT_CHECK_FAILED, EXIT_DONE, EXIT_INPUT_WRONG, MlirulesError
from mlirules.language.pipeline import default_for
from mlirules.language.workers import workers
from mlirules.support import files, pool

BEGIN = "<!-- op database: begin -->"
END = "<!-- op database: end -->"

#: `(rtol, atol)` of results of a narrow type: what `torch.testing.assert_close` takes for it.
TOLERANCES = {"bfloat16": (1.6e-2, 1e-5), "float16": (1e-3, 1e-5)}

#: An export worker that says nothing for so many seconds does not come back: its own limit failed.
SILENCE = 4 * op_database_export.LIMIT


@dataclass
class Exports:
    """What came of the exports of one element type.

    `entries` are the programs by name, in the index's form; `refused` says why a sample is no
    program; `ended` holds the ops that need not be looked at again.
    """

    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, log: Path) -> "Exports":
        """The state that a file of JSON lines tells; of interrupted lines nothing counts."""
        made = cls()
        for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if "entry" in said:
                made.entries[said["entry"]["name"]] = said["entry"]
            elif "refused" in said:
                made.refused[said["refused"]] = said["why"]
            elif "ended" in said:
                made.ended.add(said["ended"])
        return made

    def of(self, ops: Set[str]) -> "Exports":
        """What of it came of `ops`."""
        entries = {name: entry for name, entry in self.entries.items() if entry["area"] in ops}
        refused = {
            name: why
            for name, why in self.refused.items()
            if name in ops or name.rpartition("-")[0] in ops
        }
        return Exports(entries, refused, self.ended & ops)


def tolerances(entry: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """`TOLERANCES` of the types that the results of an index entry have."""
    types = {str(result["dtype"]) for result in entry["results"]}
    return {name: TOLERANCES[name] for name in sorted(types & TOLERANCES.keys())}


def export(folder: Path, dtype: str, options: argparse.Namespace, console: Console) -> Exports:
    """Export what is not exported yet, by the workers of `options`, and write the index.

    With their `ops`, so many of them, chosen by their `seed`: the result holds these alone. Raises
    MlirulesError where workers cannot be had.
    """
    for name in ("core", "data"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    log = folder / "exports.jsonl"
    wanted = op_database_export.names(dtype)
    if options.ops is not None and options.ops < len(wanted):
        wanted = random.Random(options.seed).sample(wanted, options.ops)
    known = Exports.read(log).ended
    left = [name for name in wanted if name not in known]
    if left:
        console.print(f"{dtype}: exporting {len(left)} ops", style="dim")
        export_ops(log, exporting(folder, dtype), left, options.workers)
    made = Exports.read(log).of(set(wanted))
    index = folder / "index.json"
    fresh = index.with_suffix(".new")
    entries = [{**entry, "tolerances": tolerances(entry)} for entry in made.entries.values()]
    fresh.write_text(json.dumps(entries, indent=0), encoding="utf-8")
    fresh.replace(index)
    return made


def exporting(folder: Path, dtype: str) -> pool.Work:
    """What export workers do."""
    here = str(Path(__file__).resolve().parent)
    setup = (folder.resolve(), dtype)
    return pool.Work("op_database_export:Exporter", setup, SILENCE, path=(here,))


def export_ops(log: Path, work: pool.Work, ops: Sequence[str], spec: str) -> None:
    """Let workers export `ops`; what they say is in `log` as it comes.

    An op that a worker dies of, or does not come back from, is refused. Raises MlirulesError.
    """
    with log.open("a", encoding="utf-8") as lines, workers(spec) as given:

        def tell(message: Mapping[str, Any]) -> None:
            lines.write(json.dumps(message) + "\n")
            lines.flush()

        for one in given.run(work, [pool.Job(name) for name in ops]):
            if isinstance(one, pool.Said):
                tell(one.value)
                continue
            name = ops[one.job]
            if one.fate:
                tell({"refused": name, "area": name, "why": one.why})
            tell({"ended": name})


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line. Exits with 2, saying why, when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="op_database.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dtype", default="f32", help=f"of {','.join(DTYPES)}, by commas")
    parser.add_argument("--mode", default=",".join(corpus.MODES), help="of %(default)s, by commas")
    parser.add_argument("--convert-only", action="store_true", help="only apply the rules")
    parser.add_argument(
        "--only", action="append", default=[], metavar="GLOB", help="ops or programs; repeatable"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="N programs, chosen by --seed")
    parser.add_argument("--ops", type=int, metavar="N", help="N ops alone, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pipeline", help="name or path of a pipeline (default: the default)")
    parser.add_argument(
        "--workers", default="2", help="processes here, or dask://HOST:PORT (default: %(default)s)"
    )
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds a stage (default: 60)")
    parser.add_argument("--cache", type=Path, help="folder of exports and finished work")
    parser.add_argument("--failures", action="store_true", help="list every failure, not the first")
    parser.add_argument("--leftovers", type=int, default=25, help="ops to list (default: 25)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row and the summary")
    parser.add_argument("--report", type=Path, metavar="FILE", help="renew the section in FILE")
    parser.add_argument("--cpu", default="", help="what --report says of the machine")
    parser.add_argument("--show", metavar="NAME", help="one program: IR before and after, why")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 when the rules break a program"
    )
    parsed = parser.parse_args(arguments)
    for option, known in (("dtype", tuple(DTYPES)), ("mode", corpus.MODES)):
        chosen = [word for word in getattr(parsed, option).split(",") if word]
        unknown = [word for word in chosen if word not in known]
        if unknown or not chosen:
            parser.error(f"--{option}: {unknown or 'nothing'} given, known: {', '.join(known)}")
        setattr(parsed, option, [word for word in known if word in chosen])
    if parsed.timeout <= 0 or (parsed.sample is not None and parsed.sample < 1):
        parser.error("--sample and --timeout want a positive number")
    if parsed.convert_only:
        parsed.mode = ["convert"]
    return parsed


def _cache(given: Path | None) -> Path:
    if given is not None:
        return given.resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mlirules" / "op-database"


@dataclass
class Measured:
    """One element type: its exports, its programs' rows and their figures."""

    dtype: str
    exports: Exports
    done: list[Done]

    @property
    def summary(self) -> Summary:
        """The figures; of no program, zeros."""
        return corpus_report.summarise(self.done).get("core", Summary())


def measure(dtype: str, options: argparse.Namespace, console: Console) -> Measured:
    """Export, then compile and run what is not done yet. Raises MlirulesError."""
    folder = _cache(options.cache) / dtype
    exports = export(folder, dtype, options, console)
    target = Target("cpu")
    pipeline = options.pipeline or default_for(target.kind).pipeline
    setup = Setup(folder=str(folder), target=target.name, pipeline=pipeline)
    programs = corpus_data.choose(
        corpus_data.load(folder), options.only, options.sample, options.seed
    )
    state = corpus.State(folder / "state.jsonl", options.timeout)
    sources = corpus.sources_digest()
    jobs = [
        corpus.Job(program, "core", corpus.keys(program, "core", options.mode, setup, sources))
        for program in programs
    ]
    todo = [
        (job, waiting)
        for job in jobs
        if (waiting := [mode for mode, key in job.keys.items() if state.get(key) is None])
    ]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    if todo:
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            corpus.work_off(setup, state, options, todo, progress)
    rows = [
        Done(job.program, "core", row)
        for job in jobs
        for key in job.keys.values()
        if (row := state.get(key)) is not None
    ]
    return Measured(dtype, exports, rows)


def section(measured: Sequence[Measured], cpu: str) -> str:
    """The figures as a section of Markdown, between the marks that the next run looks for."""
    command = f"--dtype {','.join(m.dtype for m in measured)}"
    lines = [
        BEGIN,
        "## PyTorch's op database",
        f"`python benchmarks/op_database.py {command}`{f', {cpu}' if cpu else ''}: the samples of",
        "PyTorch's own operator tests, at most two an op, exported as programs and held against",
        "eager PyTorch. *Rules alone* is the default pipeline with no torch op left.",
        "",
        "| type | programs | plain iree-compile | default pipeline | rules alone "
        "| lost to plain IREE | not exported |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in measured:
        figures = one.summary
        passed = (
            f"{figures.passes[mode]} ({figures.passes[mode] / max(1, figures.programs):.1%})"
            for mode in corpus.MODES
        )
        lines.append(
            f"| {one.dtype} | {figures.programs} | {' | '.join(passed)} "
            f"| {len(figures.regressions)} | {len(one.exports.refused)} |"
        )
    reasons: dict[str, list[str]] = {}
    for glob, why in op_database_export.LEFT_OUT.items():
        reasons.setdefault(why, []).append(f"`{glob}`")
    lines += ["", "Left out:", ""]
    lines += [f"- {why}: {', '.join(globs)}." for why, globs in reasons.items()]
    for one in measured:
        left = one.summary.blocked
        if left:
            ops = ", ".join(f"`{op}` {len(names)}" for op, names in list(left.items())[:40])
            lines += ["", f"Ops that the rules leave in {one.dtype}, with their programs: {ops}."]
        kinds = Counter(why.partition(":")[0] for why in one.exports.refused.values())
        if kinds:
            told = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
            lines += ["", f"Not exported in {one.dtype}, by PyTorch's exception: {told}."]
    return "\n".join([*lines, END]) + "\n"


def renew(path: Path, text: str) -> None:
    """Put `text` in place of the section in `path`, or at its end where there is none.

    Raises MlirulesError when one of the marks is missing.
    """
    page = path.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if bool(begin) != bool(end):
        raise MlirulesError.at(str(path), f"one of the marks {BEGIN} and {END} is missing")
    new = f"{before}{text}{after.lstrip(chr(10))}" if begin else f"{page.rstrip()}\n\n{text}"
    files.write(path, new)


def _show(options: argparse.Namespace, console: Console) -> int:
    folder = _cache(options.cache) / options.dtype[0]
    return corpus_report.show_program(
        console,
        corpus_data.load(folder),
        options.show,
        "core",
        Job(Target("cpu"), timeout=options.timeout),
        options.pipeline or default_for("cpu").pipeline,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        if options.show:
            return _show(options, console)
        measured = [measure(dtype, options, console) for dtype in options.dtype]
    except MlirulesError as error:
        print(error, file=sys.stderr)
        return EXIT_INPUT_WRONG
    except KeyboardInterrupt:
        console.print("interrupted: what is finished is kept; run again to go on")
        return 130
    summaries = {one.dtype: one.summary for one in measured}
    corpus_report.show(
        console, summaries, "cpu", all_failures=options.failures, ops=options.leftovers
    )
    if options.json is not None:
        done = [row for one in measured for row in one.done]
        options.json.write_text(corpus_report.as_json(summaries, done, "cpu"), encoding="utf-8")
    if options.report is not None:
        renew(options.report, section(measured, options.cpu))
    broken = any(summary.regressions for summary in summaries.values())
    return EXIT_CHECK_FAILED if options.check and broken else EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
