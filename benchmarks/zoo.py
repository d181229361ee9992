"""Are the models that people know right when they are compiled by the shipped rules?

More than 200 models of timm, torchvision and transformers, small, with weights at random, each in
four modes:

    export    torch.export and the importer
    plain     plain iree-compile, without the rules
    default   what `mlirules compile` does
    rules     what `mlirules compile --no-fallback` does: no torch op is left to IREE

A model is right when its results are PyTorch's, apart by at most 1e-3 of the largest element.
Models run in worker processes with limits of time and memory. Finished work is kept in a file of
JSON lines: Ctrl-C loses nothing, and a run goes on where the last one ended.

    python benchmarks/zoo.py                                       # everything
    python benchmarks/zoo.py --only 'timm/conv*' --only '*bert*'
    python benchmarks/zoo.py --sample 40 --seed 1 --target vulkan
    python benchmarks/zoo.py --mode export,convert                 # which ops are left, quickly
    python benchmarks/zoo.py --keep --failed                       # what failed, after a change
    python benchmarks/zoo.py --finished --report docs/coverage.md  # the table, from finished work
"""

import argparse
import ast
import fnmatch
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import zoo_models
import zoo_report
from corpus import sources_digest
from rich.console import Console
from zoo_worker import MODES, Row, stem

from mlirules.drivers.iree.targets import Target
from mlirules.language.faults import EXIT_CHECK_FAILED, EXIT_DONE, EXIT_INPUT_WRONG, MlirulesError
from mlirules.language.workers import workers
from mlirules.support.pool import Ended, Job, Said, Work

FORMAT = 1
"""Of the file of finished work; to be raised when outcomes would be judged otherwise."""
JOBS_PER_WORKER = 25
GIB = 1 << 30


class Store:
    """Finished work: a file of JSON lines, the last line of a model, mode and target counts."""

    def __init__(self, path: Path) -> None:
        self._rows: dict[tuple[str, str, str], tuple[Row, str]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        for line in old.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # an interrupted run did not finish this line
                continue
            if entry["format"] == FORMAT:
                row = row_of(entry["row"])
                self._rows[row.model, row.mode, entry["target"]] = (row, entry["key"])
        self._file = path.open("a", encoding="utf-8")
        if old and not old.endswith("\n"):
            self._file.write("\n")

    def get(self, model: str, mode: str, target: str, key: str | None) -> Row | None:
        """The row, if it is finished under this key (under any, without one)."""
        row, under = self._rows.get((model, mode, target), (None, ""))
        return row if key is None or under == key else None

    def put(self, row: Row, target: str, key: str) -> None:
        """Keep a row, at once on disk."""
        entry = {"format": FORMAT, "target": target, "key": key, "row": asdict(row)}
        self._rows[row.model, row.mode, target] = (row, key)
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()


def row_of(entry: Mapping[str, Any]) -> Row:
    """A row as it was written."""
    return Row(**{**entry, "notes": tuple(entry["notes"])})


def described(value: Any) -> object:
    """A recipe as something that is printed the same in every process."""
    if is_dataclass(value):
        return [described(getattr(value, f.name)) for f in fields(value)]
    if callable(value):
        cells = [
            described(cell.cell_contents) for cell in getattr(value, "__closure__", None) or ()
        ]
        return [value.__code__.co_code.hex(), repr(value.__code__.co_consts[:1]), cells]
    return repr(value)


@dataclass(frozen=True)
class Keys:
    """What finished work depends on: a row under another key is not finished."""

    target: str
    sources: str

    def of(self, model: str, mode: str) -> str:
        """The key of a model in a mode."""
        parts: list[object] = [FORMAT, model]
        if mode == "export":
            recipe = zoo_models.recipes()[model]
            drawn = ast.dump(ast.parse(Path(zoo_models.__file__).read_text(encoding="utf-8")))
            parts += [described(recipe), drawn, *map(_version, ("torch", "transformers", "timm"))]
        else:
            parts += [self.of(model, "export"), self.target, _version("iree-base-compiler")]
            if mode != "plain":
                parts += [self.sources]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def chosen(models: Iterable[str], only: Sequence[str], sample: int | None, seed: int) -> list[str]:
    """The models whose name, with the package or without, a glob of `only` matches; a sample."""
    found = [
        model
        for model in models
        if not only
        or any(
            fnmatch.fnmatchcase(name, glob)
            for glob in only
            for name in (model, model.split("/")[1])
        )
    ]
    if sample is not None and sample < len(found):
        found = sorted(random.Random(seed).sample(found, sample))
    return found


class Crew:
    """Works off jobs, models with the modes that are wanted of them, with worker processes."""

    def __init__(
        self, store: Store, keys: Keys, folder: Path, options: argparse.Namespace, console: Console
    ) -> None:
        self._store, self._keys, self._folder = store, keys, folder
        self._options, self._console = options, console

    def run(self, jobs: Sequence[tuple[str, list[str]]]) -> None:
        """Do all jobs; rows are kept as they come. Raises MlirulesError for the workers."""
        options = self._options
        here = str(Path(__file__).resolve().parent)
        given = (str(self._folder), options.target, options.timeout, int(options.memory * GIB))
        # The compiler is stopped by the worker itself, which says so.
        work = Work("zoo_worker:Doer", given, 2 * options.timeout, JOBS_PER_WORKER, (here,))
        parts = [(model, list(modes)) for model, modes in jobs]
        if not parts:
            return
        with workers(options.workers) as pool:
            while parts:
                at: dict[int, dict[str, str]] = {}
                for one in pool.run(work, [Job((model, list(left))) for model, left in parts]):
                    model, left = parts[one.job]
                    done: list[str] = []
                    if isinstance(one, Said) and "row" in one.value:
                        self._keep(row_of(one.value["row"]))
                        done = [one.value["row"]["mode"]]
                    elif isinstance(one, Said):
                        at[one.job] = one.value
                    elif one.fate and left:
                        done = self._after_death(model, one, at.get(one.job), left[0])
                    left[:] = [mode for mode in left if mode not in done]
                parts = [(model, left) for model, left in parts if left]

    def _after_death(
        self, model: str, ended: Ended, at: dict[str, str] | None, first: str
    ) -> list[str]:
        """Keep what killed a worker; returns the modes that this is the outcome of."""
        lost = at or {"stage": "", "mode": first}
        kind = "timeout" if ended.fate == "timed out" else "crash"
        guilty = ["default", "rules"] if lost["mode"] == "default" else [lost["mode"]]
        for mode in guilty:
            self._keep(Row(model, mode, kind, f"{lost['stage']}: {ended.why}"))
        return guilty

    def _keep(self, row: Row) -> None:
        self._store.put(row, self._target(row.mode), self._keys.of(row.model, row.mode))
        line = f"{row.model:36} {row.mode:8} {row.outcome:8} {row.seconds:7.1f} s  {row.why[:150]}"
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _target(self, mode: str) -> str:
        return "" if mode == "export" else str(self._options.target)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line. Exits with 2, saying why, when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="zoo.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="repeatable")
    parser.add_argument("--sample", type=int, metavar="N", help="N models, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    known = ", ".join(MODES)
    parser.add_argument(
        "--mode",
        default="export,plain,default,rules",
        help=f"of {known}, by commas (default: %(default)s)",
    )
    parser.add_argument("--target", default="cpu", help="cpu, vulkan, ... (default: cpu)")
    parser.add_argument(
        "--workers", default="2", help="processes here, or dask://HOST:PORT (default: %(default)s)"
    )
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="seconds a step (default: 120)"
    )
    parser.add_argument("--memory", type=float, default=12.0, help="GiB a worker (default: 12)")
    parser.add_argument("--folder", type=Path, help="of programs and finished work")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="take finished work of other sources of mlirules, and programs exported before",
    )
    parser.add_argument("--failed", action="store_true", help="do again what was not right")
    parser.add_argument("--list", action="store_true", help="only name the models")
    parser.add_argument(
        "--finished", action="store_true", help="run nothing: only what is finished"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write the table into this document's section"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 when a model is wrong or lost to plain IREE",
    )
    parsed = parser.parse_args(arguments)
    parsed.mode = [mode for mode in parsed.mode.split(",") if mode]
    unknown = [mode for mode in parsed.mode if mode not in MODES]
    if unknown or not parsed.mode:
        parser.error(f"--mode: {unknown or 'nothing'} given, known: {', '.join(MODES)}")
    if parsed.timeout <= 0 or parsed.memory <= 0:
        parser.error("--timeout and --memory want a positive number")
    return parsed


def _folder(given: Path | None) -> Path:
    if given is not None:
        return given.resolve()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "mlirules" / "zoo"


def _measure(options: argparse.Namespace, console: Console) -> int:
    target = Target.parse(options.target)
    folder = _folder(options.folder)
    store = Store(folder / "zoo.jsonl")
    keys = Keys(target.name, sources_digest())
    models = chosen(zoo_models.recipes(), options.only, options.sample, options.seed)
    if not models:
        raise MlirulesError.at("--only", "no model has such a name", code="only")

    def finished(model: str, mode: str) -> Row | None:
        exporting = mode == "export"
        key = None if options.keep else keys.of(model, mode)
        row = store.get(model, mode, "" if exporting else target.name, key)
        if exporting and row is not None and row.outcome == "right":
            return row if stem(folder, model).with_suffix(".npz").exists() else None
        again = options.failed and row is not None and row.outcome not in ("right", "left")
        return None if again and mode in options.mode else row

    def rows() -> list[Row]:
        return [
            row
            for model in models
            for mode in MODES
            if (row := store.get(model, mode, "" if mode == "export" else target.name, None))
        ]

    if options.list:
        console.print("\n".join(models))
        return EXIT_DONE
    started = time.perf_counter()
    interrupted = False
    try:
        if "export" in options.mode and not options.finished:
            jobs = [(model, ["export"]) for model in models if finished(model, "export") is None]
            Crew(store, keys, folder, options, console).run(jobs)
        jobs = []
        for model in () if options.finished else models:
            exported = finished(model, "export")
            if exported is None:
                console.print(f"{model}: not exported yet, which --mode export does", style="dim")
            elif exported.outcome == "right":
                modes = [m for m in MODES[1:] if m in options.mode and finished(model, m) is None]
                jobs += [(model, modes)] if modes else []
        Crew(store, keys, folder, options, console).run(jobs)
    except KeyboardInterrupt:
        interrupted = True
    figures = zoo_report.Figures.of(rows(), target.name)
    zoo_report.show(console, figures)
    console.print(f"{time.perf_counter() - started:.0f} s", style="dim")
    if interrupted:
        console.print("interrupted: the figures are of what is finished; run again to go on")
        return 130
    if options.report is not None:
        zoo_report.write(options.report, figures, len(zoo_models.recipes()))
    broken = figures.wrong or figures.lost
    return EXIT_CHECK_FAILED if options.check and broken else EXIT_DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        return _measure(options, console)
    except MlirulesError as error:
        print(error, file=sys.stderr)
        return EXIT_INPUT_WRONG


if __name__ == "__main__":
    sys.exit(main())
