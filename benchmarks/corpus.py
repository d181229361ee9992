"""How many programs of the corpus do the rules convert, and do they still give PyTorch's numbers?

For every program and variant, up to three figures in one run, on the same target:

    builtin   plain iree-compile, without the rules
    fallback  the rules, and what they leave is converted by IREE
    rules     the rules alone: no torch op is left but the casts at the border, and it passes

A program passes when it compiles, runs and gives PyTorch's results. Programs run in worker
processes; a crash or a time-out costs one program. Finished work is kept in a state file, so
Ctrl-C loses nothing and only what changed is done again: a program is compiled again only when
the text that the rules make of it has changed.

    python benchmarks/corpus.py FOLDER                                # all, the three figures
    python benchmarks/corpus.py FOLDER --variant core --mode rules --only 'Elementwise*'
    python benchmarks/corpus.py FOLDER --convert-only                 # which ops are left, quickly
    python benchmarks/corpus.py FOLDER --show ElementwiseAddModule_basic
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import corpus_data
import corpus_report
from corpus_data import VARIANTS, Program
from corpus_report import Done
from corpus_worker import FORMAT, Row, Setup
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.targets import Target
from mlirules.language.faults import EXIT_CHECK_FAILED, EXIT_DONE, EXIT_INPUT_WRONG, MlirulesError
from mlirules.language.workers import workers
from mlirules.support import package
from mlirules.support.pool import Ended, Work
from mlirules.support.pool import Job as PoolJob

MODES = ("builtin", "fallback", "rules")
#: Seconds that an isolated step may take besides its own limit.
START_LIMIT = 120.0
JOBS_PER_WORKER = 250  # the compiler's context grows with every program
SOURCES = ("rules", "specs", "generator", "drivers")


@dataclass(frozen=True)
class Job:
    """One program in one variant, with the modes that are wanted of it and their state keys."""

    program: Program
    variant: str
    keys: dict[str, str]


def sources_digest() -> str:
    """A hash of everything of mlirules that a transformation depends on."""
    hashed = hashlib.sha256()
    for place in SOURCES:
        folder = package.folder(place)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                hashed.update(str(path.relative_to(folder)).encode())
                hashed.update(path.read_bytes())
    return hashed.hexdigest()[:20]


class State:
    """Finished work: a file of JSON lines, the last line of a key counts."""

    def __init__(self, path: Path, timeout: float) -> None:
        self.path = path
        self._rows: dict[str, Row] = {}
        if path.exists():
            for entry in self._entries():
                row = entry["row"]
                # More time may help what was stopped after less.
                if row["outcome"] == "timeout" and entry["timeout"] < timeout:
                    continue
                self._rows[entry["key"]] = _row(row)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._timeout = timeout
        self._file = path.open("a", encoding="utf-8")
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            self._file.write("\n")  # the line that an interrupted run did not finish stays alone

    def _entries(self) -> Iterator[dict[str, Any]]:
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # an interrupted run did not finish this line
                continue
            if entry.get("format") == FORMAT:
                yield entry

    def get(self, key: str) -> Row | None:
        """The row of finished work, if it is finished."""
        return self._rows.get(key)

    def put(self, job: Job, row: Row, target: str) -> None:
        """Keep a row, at once on disk."""
        key = job.keys[row.mode]
        entry = {
            "format": FORMAT,
            "key": key,
            "program": job.program.name,
            "variant": job.variant,
            "mode": row.mode,
            "target": target,
            "timeout": self._timeout,
            "row": asdict(row),
        }
        self._rows[key] = row
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()


def keys(
    program: Program, variant: str, modes: Iterable[str], setup: Setup, sources: str
) -> dict[str, str]:
    """The state key of each mode. The rules' sources do not matter to the built-in conversion."""
    found = {}
    digest = program.digest(variant)
    for mode in modes:
        parts = [FORMAT, program.name, variant, mode, digest, version("iree-base-compiler")]
        if mode != "convert":
            parts += [setup.target, version("iree-base-runtime"), *setup.flags]
        if mode != "builtin":
            parts += [setup.pipeline, sources]
        found[mode] = hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
    return found


def _row(entry: dict[str, Any]) -> Row:
    return Row(**{**entry, "leftovers": tuple(entry["leftovers"])})


@dataclass(frozen=True)
class Part:
    """Modes of a job that are to be done at once; `isolated`: each step in its own process."""

    job: Job
    modes: list[str]
    isolated: bool = False

    def order(self, timeout: float) -> PoolJob:
        """What a worker is told."""
        order = {
            "name": self.job.program.name,
            "variant": self.job.variant,
            "modes": self.modes,
            "isolated": self.isolated,
            "timeout": timeout,
        }
        # A step in a process of its own says itself when it reached the limit.
        return PoolJob(order, timeout + (START_LIMIT if self.isolated else 0))


def work_off(
    setup: Setup,
    state: State,
    options: argparse.Namespace,
    todo: Sequence[tuple[Job, list[str]]],
    progress: Progress,
) -> None:
    """Do all jobs by the workers of `options`; their rows are in the state as they come.

    Raises MlirulesError when the run as a whole makes no sense: a wrong rule, an unknown pipeline.
    """
    bar = progress.add_task("programs", total=len(todo))
    given = (setup, str(state.path.resolve()), options.timeout)
    here = str(Path(__file__).resolve().parent)
    work = Work("corpus_worker:Doer", given, options.timeout, JOBS_PER_WORKER, (here,))
    parts = [Part(job, modes) for job, modes in todo]
    first = True
    with workers(options.workers) as pool:
        while parts:
            left = [list(part.modes) for part in parts]
            at: dict[int, dict[str, str]] = {}
            again: list[Part] = []
            for one in pool.run(work, [part.order(options.timeout) for part in parts]):
                part = parts[one.job]
                if isinstance(one, Ended):
                    if one.fate:
                        lost = at.get(one.job, {"stage": "", "mode": "", "artefact": ""})
                        again += _after_death(state, setup, part, left[one.job], one, lost)
                    if first:
                        progress.advance(bar)
                elif "row" in one.value:
                    row = _row(one.value["row"])
                    at.pop(one.job, None)
                    state.put(part.job, row, setup.target)
                    left[one.job].remove(row.mode)
                else:
                    at[one.job] = one.value
            parts, first = again, False


def _after_death(
    state: State, setup: Setup, part: Part, left: list[str], ended: Ended, at: dict[str, str]
) -> list[Part]:
    """Settle what killed a worker; returns what is still to be done, and how."""
    kind = "timeout" if ended.fate == "timed out" else "crash"
    guilty = [at["mode"]] if at["mode"] else left
    rest = [mode for mode in left if mode not in guilty]
    again = [Part(part.job, rest)] if rest else []
    if kind == "crash" and at["stage"] in ("compile", "run") and not part.isolated:
        # Once more in processes of their own: which of them it was, and where it died.
        return [Part(part.job, guilty, True), *again]
    why = f"{at['stage']}: {ended.why}" if at["stage"] else ended.why
    for mode in guilty:
        state.put(part.job, Row(mode, kind, why, artefact=at["artefact"]), setup.target)
    return again


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line. Exits with 2, saying why, when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="corpus.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, help="the corpus: a folder or its archive")
    parser.add_argument("--variant", default=",".join(VARIANTS), help="of %(default)s, by commas")
    parser.add_argument("--mode", default=",".join(MODES), help="of %(default)s, by commas")
    parser.add_argument("--convert-only", action="store_true", help="only apply the rules")
    parser.add_argument(
        "--only", action="append", default=[], metavar="GLOB", help="names or areas; repeatable"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="N programs, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="cpu", help="cpu, vulkan, ... (default: cpu)")
    parser.add_argument("--pipeline", help="name or path of a pipeline (default: the target's)")
    parser.add_argument(
        "--flag", action="append", default=[], help="for the compiler, in every mode; repeatable"
    )
    parser.add_argument(
        "--workers", default="2", help="processes here, or dask://HOST:PORT (default: %(default)s)"
    )
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds a stage (default: 60)")
    parser.add_argument("--state", type=Path, help="file of finished work")
    parser.add_argument("--fresh", action="store_true", help="forget the state file first")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row and the summary")
    parser.add_argument("--failures", action="store_true", help="list every failure, not the first")
    parser.add_argument("--leftovers", type=int, default=25, help="ops to list (default: 25)")
    parser.add_argument("--show", metavar="NAME", help="one program: IR before and after, why")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 when the rules break a program"
    )
    parsed = parser.parse_args(arguments)
    for option, known in (("variant", VARIANTS), ("mode", MODES)):
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


def _state_path(given: Path | None) -> Path:
    if given is not None:
        return given
    cache = os.environ.get("XDG_CACHE_HOME")
    base = Path(cache) if cache else Path.home() / ".cache"
    return base / "mlirules" / "corpus.jsonl"


def _measure(options: argparse.Namespace, console: Console) -> int:
    folder = corpus_data.unpacked(options.source)
    target = Target.parse(options.target)
    setup = Setup(
        folder=str(folder.resolve()),
        target=target.name,
        pipeline=options.pipeline or target.kind,
        flags=tuple(options.flag),
    )
    programs = corpus_data.choose(corpus_data.load(folder), options.only)
    programs = [p for p in programs if any(v in p.variants for v in options.variant)]
    programs = corpus_data.choose(programs, (), options.sample, options.seed)
    if not programs:
        raise MlirulesError.at("--only", "no program has such a name or area", code="only")
    path = _state_path(options.state)
    if options.fresh:
        path.unlink(missing_ok=True)
    state = State(path, options.timeout)
    sources = sources_digest()
    jobs = [
        Job(program, variant, keys(program, variant, options.mode, setup, sources))
        for variant in options.variant
        for program in programs
        if variant in program.variants
    ]
    todo = [
        (job, waiting)
        for job in jobs
        if (waiting := [mode for mode, key in job.keys.items() if state.get(key) is None])
    ]
    started = time.perf_counter()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    interrupted = False
    if todo:
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            try:
                work_off(setup, state, options, todo, progress)
            except KeyboardInterrupt:
                interrupted = True
    seconds = time.perf_counter() - started
    done = [
        Done(job.program, job.variant, row)
        for job in jobs
        for key in job.keys.values()
        if (row := state.get(key)) is not None
    ]
    summary = corpus_report.summarise(done)
    corpus_report.show(
        console, summary, target.name, all_failures=options.failures, ops=options.leftovers
    )
    console.print(
        f"{len(todo)} of {len(jobs)} programs done now in {seconds:.1f} s, "
        f"the others were in {path}",
        style="dim",
        highlight=False,
    )
    if options.json is not None:
        options.json.write_text(corpus_report.as_json(summary, done, target.name), encoding="utf-8")
    if interrupted:
        console.print("interrupted: the figures are of what is finished; run again to go on")
        return 130
    broken = any(variant.regressions for variant in summary.values())
    return EXIT_CHECK_FAILED if options.check and broken else EXIT_DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        if options.show:
            return corpus_report.show_program(
                console,
                corpus_data.load(corpus_data.unpacked(options.source)),
                options.show,
                options.variant[0],
                compiler.Job(Target.parse(options.target), tuple(options.flag), options.timeout),
                options.pipeline,
            )
        return _measure(options, console)
    except MlirulesError as error:
        print(error, file=sys.stderr)
        return EXIT_INPUT_WRONG


if __name__ == "__main__":
    sys.exit(main())
