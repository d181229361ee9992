"""What the commands share: where they print, progress, and reading their arguments."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from mlirules.commands.options import Argument, Option
from mlirules.language import consent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mlirules.drivers.apply.run import Outcome
    from mlirules.drivers.pipelines.cost import Settings
    from mlirules.language.pipeline import Pipeline

#: Columns of a table that goes into a file or a pipe: whoever reads it there breaks its lines.
PIPED = 4096


class Printer:
    """A console of rich, which is loaded for what is more than plain text into a file or pipe."""

    def __init__(self, *, stderr: bool) -> None:
        self._stderr = stderr

    @functools.cached_property
    def _console(self) -> Console:
        from rich.console import Console

        made = Console(stderr=self._stderr)
        if not made.is_terminal and "COLUMNS" not in os.environ:
            made.width = PIPED
        return made

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._stderr else sys.stdout

    def print(self, *things: object, **how: Any) -> None:
        """Print as rich's console does."""
        text = things[0] if len(things) == 1 else None
        short = how.get("soft_wrap") or "COLUMNS" not in os.environ
        unmarked = how.get("markup") is False or (isinstance(text, str) and "[" not in text)
        if isinstance(text, str) and short and unmarked and not self._colours:
            self._stream.write(text + "\n")
        elif things or self._colours:
            self._console.print(*things, **how)
        else:
            self._stream.write("\n")

    @property
    def _colours(self) -> bool:
        return self._stream.isatty() or any(os.environ.get(name) for name in _COLOURING)

    @property
    def is_terminal(self) -> bool:
        """Whether somebody looks at it."""
        return self._colours and self._console.is_terminal

    @property
    def width(self) -> int:
        """Columns."""
        return self._console.width

    @property
    def rich(self) -> Console:
        """The console itself."""
        return self._console


#: What makes rich colour what goes into a file.
_COLOURING = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")

#: Reports go to stdout, everything about the work itself to stderr. rich leaves colours out where
#: the stream is no terminal or NO_COLOR is set.
out = Printer(stderr=False)
err = Printer(stderr=True)

Json = Annotated[bool, Option("--json", help="Report as JSON on stdout.")]
Rules = Annotated[
    list[str] | None,
    Option("--rules", "-r", help="Rule sets: shipped names, files or folders, in order."),
]
Own = Annotated[
    list[str] | None,
    Option(
        "--rules",
        "-r",
        help="Rules of your own in the pipeline: files, folders or shipped names; each goes to "
        "the phase of its kind.",
    ),
]
Workers = Annotated[
    str, Option("--workers", help="Processes that do the work (2), or dask://HOST:PORT.")
]
Only = Annotated[
    list[str] | None,
    Option("--only", help="Only rules that fit: a glob over names, tag:TAG or kind:KIND."),
]
Measure = Annotated[
    bool,
    Option(
        "--measure",
        help="Cost stages: time both forms on the device, instead of asking "
        "the roofline model; kept in the cache.",
    ),
]
Target = Annotated[
    str, Option("--target", "-t", help="Cost stages: what for, cpu, vulkan, cuda:sm_80, ...")
]
Stages = Annotated[
    str | None,
    Option(
        "--pipeline",
        "-p",
        help="Without --rules: whose torch stages to run; default: the target's.",
    ),
]
Line = Annotated[
    str | None,
    Option(
        "--pipeline",
        "-p",
        help="A shipped pipeline's name or a file; default: the target's. With --rules: where "
        "they go; --rules without it are taken alone.",
    ),
]
Flags = Annotated[list[str] | None, Argument(help="After --: further flags for iree-compile.")]
Device = Annotated[str, Option("--target", "-t", help="cpu, vulkan, cuda:sm_80, hip:gfx942, ...")]
Parameters = Annotated[
    list[str] | None,
    Option(
        "--parameters",
        help="Weights outside the program: [SCOPE=]FILE.safetensors or .irpa; scope: model.",
    ),
]


def _trust_native(given: bool) -> bool:
    if given:
        consent.grant(native=True)
    return given


#: Takes effect where it is read: what a command does below asks :mod:`consent`.
TrustNative = Annotated[
    bool,
    Option(
        "--trust-native",
        help="Run C and kernels of rules that do not ship: machine code, in child processes "
        "with limits.",
        callback=_trust_native,
    ),
]


def _trust_python(given: bool) -> bool:
    if given:
        consent.grant(python=True)
    return given


TrustPython = Annotated[
    bool,
    Option(
        "--trust-python",
        help="Run the Python functions that rules name as `reference:`, in child processes with "
        "limits.",
        callback=_trust_python,
    ),
]
Skip = Annotated[list[str] | None, Option("--skip", help="Leave out rules that fit.")]


def say(text: str) -> None:
    """Print plain text on stdout: no wrapping, no markup."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def say_json(value: object) -> None:
    """Print a report as JSON on stdout."""
    say(json.dumps(value, indent=2, ensure_ascii=False))


def warn(text: str) -> None:
    """A warning on stderr that is hard to overlook."""
    err.print(
        f"warning: {text}", style="bold yellow", markup=False, highlight=False, soft_wrap=True
    )


def note(text: str) -> None:
    """A remark about the work on stderr."""
    err.print(text, markup=False, highlight=False, soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> Table:
    """A plain table; columns whose name ends in ``#`` are numbers."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for name in columns:
        number = name.endswith("#")
        made.add_column(name.rstrip("#"), justify="right" if number else "left", no_wrap=number)
    for row in rows:
        # What stands in brackets is text, not markup.
        made.add_row(*(Text(str(cell)) for cell in row))
    return made


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr; the value is called after each step. Nothing when no terminal."""
    if not err.is_terminal:
        yield lambda _name="": None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=err.rich, transient=True)
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda name="": bar.update(task, advance=1, description=name or what)


#: Seconds after which it is said in a file or pipe that something still goes on, and again after
#: twice as many.
STILL = 30.0


@contextmanager
def working(what: str) -> Iterator[None]:
    """Tell on stderr that something takes long: a spinner with the time, or a line now and then."""
    if not err.is_terminal:
        with _ticking(STILL, 2.0, lambda s: note(f"{what}: {s} s so far; Ctrl-C ends it")):
            yield
        return
    with err.rich.status(what) as status:  # noqa: SIM117 - the second needs the first
        with _ticking(5.0, 1.0, lambda s: status.update(f"{what}: {s} s, Ctrl-C ends it")):
            yield


@contextmanager
def _ticking(first: float, growth: float, say: Callable[[int], None]) -> Iterator[None]:
    done, started = threading.Event(), time.monotonic()

    def tick() -> None:
        wait = first
        while not done.wait(wait):
            say(round(time.monotonic() - started))
            wait *= growth

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def stoppable() -> Iterator[None]:
    """Let an interrupt end the process while it computes in C, where Python would not hear it.

    Not around what starts processes or writes files: nothing is put in order then.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def split(values: Sequence[str] | None) -> list[str]:
    """Values of an option that may be repeated or separated by commas."""
    return [part for value in values or () for part in value.split(",") if part]


def applications_table(outcome: Outcome) -> Table:
    """Applications and milliseconds by rule, the most frequent first."""
    rows = [
        (count, f"{1000 * outcome.seconds_by_rule[name]:.2f}", name)
        for name, count in outcome.counts.most_common()
    ]
    rows.append((outcome.total, f"{1000 * outcome.seconds:.2f}", "in all (time: with matching)"))
    return table(["applied#", "ms#", "rule"], rows)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. Raises MlirulesError."""
    from mlirules.language import outputs

    outputs.write(path, data)


def pipeline_for(name: str | None, target: str) -> Pipeline:
    """The pipeline of that name, or the one for the target. Raises MlirulesError."""
    from mlirules.drivers.iree.targets import Target
    from mlirules.language.pipeline import Pipeline, default_for

    return Pipeline.load(name) if name else default_for(Target.parse(target).kind)


def cost_settings(target: str, measure: bool, flags: Sequence[str] = ()) -> Settings:
    """What cost stages decide by; says on stderr what is being weighed."""
    from mlirules.drivers.iree import targets
    from mlirules.drivers.pipelines import cost

    def progress(what: str) -> None:
        if err.is_terminal:
            note(f"weighing {what}")

    return cost.Settings(
        targets.Target.parse(target), tuple(flags), measure=measure, progress=progress
    )


def say_unapplied(rules: Sequence[str] | None, applied: Collection[str]) -> None:
    """Warn of the user's own rules that applied nowhere."""
    if not rules:
        return
    from mlirules.drivers.pipelines.insert import unapplied

    for fault in unapplied(split(rules), applied):
        err.print(fault.render(), style="yellow", markup=False, highlight=False, soft_wrap=True)


def show_decisions(decisions: Sequence[object]) -> None:
    """Say on stderr where cost stages applied rules and where not, with the numbers."""
    for decision in decisions:
        note(str(decision))


def decisions_as_json(decisions: Sequence[object]) -> dict[str, object]:
    """The decisions for a report; nothing where there was nothing to decide."""
    return {"decisions": [vars(d) for d in decisions]} if decisions else {}
