"""The mutation score of the rules: do tests notice a condition that is gone or negated?

    python benchmarks/mutation.py                            # the library, to its result file
    python benchmarks/mutation.py --only 'torch/fusions/*'   # files, by their path in the library
    python benchmarks/mutation.py --finished                 # run nothing, show what is finished
    python benchmarks/mutation.py --report docs/testing.md   # and its table into that page

Every condition of a rule (a `where` line, and the lines of `types`, `match` and index equations
that a program was made against) is deleted, and each `where` line negated: a mutant. Inline tests
and the programs that are made from the rule (as `mlirules test --synthesise` does) notice it or
not. The rules of one file count once: a line is changed in all of them at once. A mutant that the
rewrite refuses all the same is equivalent; one whose line says `# survives: why` is explained. The
score is of the mutants that are not equivalent: those that are noticed.

Finished files are kept in the cache by what they, the code and the compiler say: Ctrl-C loses
nothing, and a run goes on where the last one ended. `benchmarks/results/mutation.json` is written
by a run of the whole library alone, else `--json` says where. Exit status 1: a survivor that is not
explained, a reason that is not needed, or a program made from a rule that does not behave.
"""

import argparse
import fnmatch
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache as once
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sections import renew

from mlirules.drivers.apply.session import Session
from mlirules.drivers.pipelines.transform import rule_set
from mlirules.drivers.quality.mutation import FileMutant, FileReport, measure_file
from mlirules.language.faults import (
    EXIT_CHECK_FAILED,
    EXIT_DONE,
    EXIT_INPUT_WRONG,
    MlirulesError,
)
from mlirules.language.rulefiles import LIBRARY, holds_config, rule_files
from mlirules.support import cache, files, package

BEGIN, END = "<!-- mutation: begin -->", "<!-- mutation: end -->"
RESULT = Path(__file__).resolve().parent / "results" / "mutation.json"
#: The code that the figures depend on.
SOURCES = (
    "language",
    "generator",
    "drivers/iree",
    "drivers/match",
    "drivers/apply",
    "drivers/quality/mutation.py",
    "drivers/quality/synthesis.py",
    "drivers/quality/seeds.py",
    "drivers/quality/remarks.py",
)
#: Files whose figures are kept, older ones included.
KEPT = 5000
OUTCOMES = ("noticed", "equivalent", "explained", "survivor")
COLUMNS = ("files", "rules", "conditions", "untried", "mutants", *OUTCOMES)


@dataclass(frozen=True)
class Row:
    """A finished file: its path in the library, its rules, and what was seen."""

    file: str
    rules: int
    report: FileReport
    seconds: float

    @property
    def set(self) -> str:
        """The rule set that it is counted with: at most two folders."""
        return "/".join(self.file.split("/")[:-1][:2])

    def count(self, what: str) -> int:
        """How many of one column."""
        if what in OUTCOMES:
            return sum(m.outcome == what for m in self.report.mutants)
        if what == "mutants":
            return len(self.report.mutants)
        if what == "files":
            return 1
        return int(self.rules if what == "rules" else getattr(self.report, what))


def chosen(paths: Sequence[str], only: Sequence[str] = ()) -> list[str]:
    """The files of rule sets whose names fit. Raises MlirulesError where a set is none."""
    found = dict.fromkeys(str(file) for path in paths for file in rule_files(path))
    return [
        path
        for path in found
        if (not only or any(fnmatch.fnmatchcase(name_of(path), glob) for glob in only))
        and not holds_config(Path(path))
    ]


def name_of(path: str) -> str:
    """A file's path in the library, its whole path elsewhere."""
    whole = Path(path).resolve()
    inside = whole.is_relative_to(LIBRARY)
    return str(whole.relative_to(LIBRARY)) if inside else str(whole)


@once
def _code() -> str:
    hashed = hashlib.sha256(version("iree-base-compiler").encode())
    for place in SOURCES:
        top = package.folder(place)
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                hashed.update(f"{place} {path.relative_to(top)}\0".encode() + path.read_bytes())
    return hashed.hexdigest()


def key(path: str) -> str:
    """What the figures of a file depend on."""
    return hashlib.sha256(_code().encode() + Path(path).read_bytes()).hexdigest()[:32]


def finished(path: str) -> Row | None:
    """What is kept of a file, if it is finished."""
    data = cache.kept("mutation", key(path))
    if data is None:
        return None
    entry: dict[str, Any] = json.loads(data)
    report = entry["report"]
    report["mutants"] = [FileMutant(**mutant) for mutant in report["mutants"]]
    report["needless"] = [(row, why) for row, why in report["needless"]]
    return Row(name_of(path), entry["rules"], FileReport(**report), entry["seconds"])


def work(path: str) -> Row:
    """Measure a file, and keep what was seen at once. Raises MlirulesError when it has faults."""
    started = time.process_time()
    name = key(path)  # of the content that is read next, should it change meanwhile
    with Session():  # what it keeps of programs goes with it
        rules = rule_set((path,))
        report = measure_file(rules)
    row = Row(name_of(path), len(rules), report, round(time.process_time() - started, 2))
    entry = {"rules": row.rules, "report": asdict(report), "seconds": row.seconds}
    cache.keep("mutation", name, json.dumps(entry).encode(), limit=KEPT)
    return row


def run(todo: Sequence[str], *, fresh: bool, console: Console) -> Iterator[Row]:
    """The rows of files, finished before or now."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("mutants", total=len(todo))
        for path in todo:
            progress.update(task, description=name_of(path)[-50:])
            yield (None if fresh else finished(path)) or work(path)
            progress.advance(task)


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """The columns of the table over some files."""
    return {what: sum(row.count(what) for row in rows) for what in COLUMNS}


def score(counted: Mapping[str, int]) -> str:
    """Mutants noticed of those that are not equivalent, in percent."""
    real = counted["mutants"] - counted["equivalent"]
    return f"{100 * counted['noticed'] / real:.1f} %" if real else "-"


def table(rows: Sequence[Row]) -> list[tuple[str, dict[str, int]]]:
    """The counts of every set, in their order, and of all."""
    names = sorted({row.set for row in rows})
    parts = [(name, counts([row for row in rows if row.set == name])) for name in names]
    return [*parts, ("all", counts(rows))]


def show(rows: Sequence[Row], console: Console) -> None:
    """Print the table, and what is not as it should be."""
    shown = Table("set", *COLUMNS, "score")
    for name, counted in table(rows):
        shown.add_row(name, *map(str, counted.values()), score(counted))
    console.print(shown)
    for row in rows:
        for m in row.report.mutants:
            if m.outcome == "survivor":
                said = f"{row.file}:{m.row}:{m.column}: no test notices `{m.text}` {m.change}"
                said += f" ({m.why})" if m.why else ""
                console.print(said, markup=False, highlight=False, soft_wrap=True)
        for at, why in row.report.needless:
            said = f"{row.file}:{at}: a test notices every change, in spite of `# survives: {why}`"
            console.print(said, markup=False, highlight=False, soft_wrap=True)
        for problem in row.report.problems:
            said = f"{row.file}: {problem}"
            console.print(said, markup=False, highlight=False, soft_wrap=True)


def as_json(rows: Sequence[Row]) -> str:
    """The table, and every mutant that is not noticed."""
    return json.dumps(
        {
            "compiler": version("iree-base-compiler"),
            "seconds": round(sum(row.seconds for row in rows)),
            "sets": {name: counted | {"score": score(counted)} for name, counted in table(rows)},
            "not noticed": [
                {"file": row.file, **asdict(m)}
                for row in rows
                for m in row.report.mutants
                if m.outcome != "noticed"
            ],
        },
        indent=1,
    )


def section(sets: Mapping[str, Mapping[str, Any]]) -> str:
    """The table as a piece of a Markdown document, by the sets of a result."""
    lines = [f"| set | {' | '.join(COLUMNS)} | score |", f"|---|{'---|' * len(COLUMNS)}---|"]
    for name, counted in sets.items():
        cells = " | ".join(str(counted[what]) for what in COLUMNS)
        lines.append(f"| {f'`{name}`' if name != 'all' else name} | {cells} | {score(counted)} |")
    return "\n".join(lines)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line. Exits with 2, saying why, when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="mutation.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="*", help="rule files, folders or sets (default: all)")
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="repeatable")
    parser.add_argument("--fresh", action="store_true", help="measure again what is finished")
    parser.add_argument("--finished", action="store_true", help="run nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    parser.add_argument("--report", type=Path, metavar="FILE", help="renew the table in FILE")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    rows: list[Row] = []
    try:
        todo = chosen(options.paths or [str(LIBRARY)], options.only)
        if options.finished:
            todo = [path for path in todo if finished(path) is not None]
        if not todo:
            raise MlirulesError.at("--only", "no file has such a name, or none is finished")
        started = time.perf_counter()
        interrupted = False
        try:
            for row in run(todo, fresh=options.fresh, console=Console(stderr=True)):
                rows.append(row)  # noqa: PERF402 - those before an interruption are told
        except KeyboardInterrupt:
            interrupted = True
        show(rows, console)
        spent = sum(row.seconds for row in rows)
        console.print(
            f"{len(rows)} of {len(todo)} files, {spent:.0f} s of processor time; "
            f"{time.perf_counter() - started:.0f} s now",
            style="dim",
            highlight=False,
        )
        if interrupted:
            console.print("interrupted: the figures are of what is finished; run again to go on")
            return 130
        whole = not (options.paths or options.only or options.finished)
        written = options.json or (RESULT if whole else None)
        if written is not None:
            files.write(written, as_json(rows) + "\n")
        if options.report is not None:
            renew(options.report, BEGIN, END, section(dict(table(rows))))
    except MlirulesError as error:
        print(error, file=sys.stderr)
        return EXIT_INPUT_WRONG
    bad = any(r.count("survivor") or r.report.needless or r.report.problems for r in rows)
    return EXIT_CHECK_FAILED if bad else EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
