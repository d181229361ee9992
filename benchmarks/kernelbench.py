"""KernelBench's problems through torch.compile: by this backend and by Inductor, against eager.

    git clone https://github.com/ScalingIntelligence/KernelBench
    python benchmarks/kernelbench.py KernelBench/KernelBench                  # levels 1 to 3
    python benchmarks/kernelbench.py KernelBench/KernelBench --only 'level3/*' --backend mlirules
    python benchmarks/kernelbench.py KernelBench/KernelBench --finished --report docs/kernelbench.md

Sizes are reduced until a problem fits a small machine (kernelbench_sizes.py); each row says how. A
problem is right when results and buffers are eager's, apart by at most 1e-3 of the largest element.
Problems run in worker processes with limits of time and memory. Finished work is kept in a file of
JSON lines: Ctrl-C loses nothing, and a run goes on where the last one ended.
"""

import argparse
import fnmatch
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from kernelbench_worker import BACKENDS, GIB, Row
from rich.console import Console
from sections import renew

from mlirules.language.faults import EXIT_DONE, EXIT_INPUT_WRONG, MlirulesError
from mlirules.language.workers import workers
from mlirules.support.pool import Job, Said, Work

LEVELS = (1, 2, 3)
JOBS_PER_WORKER = 20
BEGIN = "<!-- written by benchmarks/kernelbench.py --report -->"
END = "<!-- end of kernelbench -->"


class Store:
    """Finished work: a file of JSON lines, the last line of a problem and backend counts."""

    def __init__(self, path: Path) -> None:
        self._rows: dict[tuple[str, str], Row] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        for line in old.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # an interrupted run did not finish this line
                continue
            row = row_of(entry)
            self._rows[row.problem, row.backend] = row
        self._file = path.open("a", encoding="utf-8")
        if old and not old.endswith("\n"):
            self._file.write("\n")

    def get(self, problem: str, backend: str) -> Row | None:
        """The row, if it is finished."""
        return self._rows.get((problem, backend))

    def put(self, row: Row) -> None:
        """Keep a row, at once on disk."""
        self._rows[row.problem, row.backend] = row
        self._file.write(json.dumps(asdict(row)) + "\n")
        self._file.flush()


def row_of(entry: dict[str, Any]) -> Row:
    """A row as it was written."""
    return Row(**{**entry, "eager": tuple(entry["eager"])})


def problems(folder: Path, only: Sequence[str]) -> list[Path]:
    """The problems of the three levels, in their order. Raises MlirulesError without any."""
    found = [
        path
        for level in LEVELS
        for path in sorted((folder / f"level{level}").glob("*.py"), key=_number)
        if not only or any(fnmatch.fnmatchcase(_name(path), glob) for glob in only)
    ]
    if not found:
        raise MlirulesError.at(str(folder), "holds no problems level1/*.py to level3/*.py")
    return found


def _number(path: Path) -> int:
    found = re.match(r"\d+", path.name)
    return int(found[0]) if found else 0


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def work(
    todo: Sequence[tuple[Path, list[str]]], store: Store, options: Any, console: Console
) -> None:
    """Do what is not finished; rows are kept as they come."""
    here = str(Path(__file__).resolve().parent)
    memory = int(options.memory * GIB)
    work = Work("kernelbench_worker:Doer", memory, options.timeout, JOBS_PER_WORKER, (here,))
    parts = [(path, list(backends)) for path, backends in todo]
    with workers(options.workers) as pool:
        while parts:
            at: dict[int, dict[str, str]] = {}
            jobs = [Job((str(path.resolve()), list(left))) for path, left in parts]
            for one in pool.run(work, jobs):
                path, left = parts[one.job]
                if isinstance(one, Said) and "row" in one.value:
                    row = row_of(one.value["row"])
                elif isinstance(one, Said):
                    at[one.job] = one.value
                    continue
                elif one.fate and left:
                    lost = at.get(one.job, {"stage": left[0], "sizes": ""})
                    kind = "timeout" if one.fate == "timed out" else "crash"
                    row = Row(_name(path), lost["stage"], kind, one.why, lost["sizes"])
                else:
                    continue
                left.remove(row.backend)
                _keep(store, row, console)
            parts = [(path, left) for path, left in parts if left]


def _keep(store: Store, row: Row, console: Console) -> None:
    store.put(row)
    partly = f"  eager: {'; '.join(row.eager)}" if row.eager else ""
    line = f"{row.problem:60} {row.backend:9} {row.outcome:8} {row.seconds:6.1f} s  {row.why[:150]}"
    console.print(line + partly[:150], highlight=False, markup=False, soft_wrap=True)


def section(rows: dict[str, dict[str, Row]]) -> str:
    """The figures as a piece of a Markdown document."""
    lines = [
        "| | problems | " + " | ".join(BACKENDS) + " | nothing eager |",
        "|---|---|---|---|---|",
    ]
    for level in (*(f"level{n}" for n in LEVELS), ""):
        here = {name: found for name, found in rows.items() if name.startswith(level)}
        right = {
            b: (sum(f[b].outcome == "right" for f in here.values() if b in f), _done(here, b))
            for b in BACKENDS
        }
        whole = sum(
            f["mlirules"].outcome == "right" and not f["mlirules"].eager
            for f in here.values()
            if "mlirules" in f
        )
        cells = [f"{n} of {of}" if of else "-" for n, of in right.values()]
        lines.append(f"| {level or 'all'} | {len(here)} | {' | '.join(cells)} | {whole} |")
    lines += ["", "| not right, or partly eager | backend | outcome | why |", "|---|---|---|---|"]
    for name, found in rows.items():
        for backend, row in found.items():
            why = row.why or "; ".join(f"eager: {one}" for one in row.eager)
            if row.outcome != "right" or row.eager:
                lines.append(f"| {name} | {backend} | {row.outcome} | {_cell(why)} |")
    lines += ["", "| sizes | reduced to |", "|---|---|"]
    for name, found in rows.items():
        sizes = next(iter(found.values())).sizes
        lines.append(f"| {name} | {_cell(sizes) if sizes else 'as they are'} |")
    return "\n".join(lines)


def _done(rows: dict[str, dict[str, Row]], backend: str) -> int:
    return sum(backend in found for found in rows.values())


def _cell(text: str) -> str:
    return " ".join(text.split())[:200].replace("|", "\\|").replace("<", "&lt;")


def write(path: Path, rows: dict[str, dict[str, Row]]) -> None:
    """Put the section between its marks in the document. Raises MlirulesError without them."""
    renew(path, BEGIN, END, section(rows))


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line. Exits with 2, saying why, when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="kernelbench.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder", type=Path, help="KernelBench's folder with level1, level2, level3"
    )
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="repeatable")
    parser.add_argument("--backend", default=",".join(BACKENDS), help="by commas")
    parser.add_argument(
        "--workers", default="1", help="processes here, or dask://HOST:PORT (default: %(default)s)"
    )
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds a problem")
    parser.add_argument("--memory", type=float, default=12.0, help="GiB a worker (default: 12)")
    parser.add_argument("--state", type=Path, default=Path("kernelbench.jsonl"))
    parser.add_argument("--failed", action="store_true", help="do again what was not right")
    parser.add_argument("--finished", action="store_true", help="run nothing")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the tables into FILE")
    parsed = parser.parse_args(arguments)
    parsed.backend = parsed.backend.split(",")
    if unknown := set(parsed.backend) - set(BACKENDS):
        parser.error(f"--backend: {', '.join(unknown)} given, known: {', '.join(BACKENDS)}")
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    started = time.perf_counter()
    try:
        found = problems(options.folder, options.only)
        store = Store(options.state)

        def wanted(path: Path, backend: str) -> bool:
            row = store.get(_name(path), backend)
            return row is None or (options.failed and row.outcome != "right")

        todo = [(p, [b for b in options.backend if wanted(p, b)]) for p in found]
        interrupted = False
        try:
            if not options.finished:
                work([(p, b) for p, b in todo if b], store, options, console)
        except KeyboardInterrupt:
            interrupted = True
        rows = {
            _name(p): {b: row for b in BACKENDS if (row := store.get(_name(p), b))} for p in found
        }
        rows = {name: of for name, of in rows.items() if of}
        for backend in BACKENDS:
            outcomes = Counter(of[backend].outcome for of in rows.values() if backend in of)
            console.print(backend, dict(outcomes), highlight=False)
        console.print(f"PyTorch {torch.__version__}, {time.perf_counter() - started:.0f} s")
        if interrupted:
            console.print("interrupted: run again to go on")
            return 130
        if options.report is not None:
            write(options.report, rows)
    except MlirulesError as error:
        print(error, file=sys.stderr)
        return EXIT_INPUT_WRONG
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
