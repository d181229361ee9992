"""``mlirules discover``: search for rules among small programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mlirules.commands.common import Device, Json, err, note, out, say_json, table, warn
from mlirules.commands.options import Exit, Option
from mlirules.language.faults import MlirulesError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlirules.drivers.discover.search import Found

EXAMPLE = "mlirules discover --ops reductions --out found"


def command(
    ops: Annotated[
        str,
        Option(help="A set (see --list), or ops, comma-separated: mm,transpose.int,relu."),
    ] = "elementwise",
    size: Annotated[
        int | None, Option(min=1, max=6, help="Ops of the largest program; default: the set's.")
    ] = None,
    rank: Annotated[int, Option(min=1, max=4, help="Of the inputs, for ops that are listed.")] = 2,
    dtype: Annotated[
        str | None, Option(help="Element type of the inputs: f16, bf16, f32, f64.")
    ] = None,
    output: Annotated[
        Path, Option("--out", "-o", help="Folder for the rules and what the search keeps.")
    ] = Path("found"),
    limit: Annotated[
        str | None, Option(help="Time for everything: 90s, 10m, 2h. Default: none.")
    ] = None,
    timeout: Annotated[float, Option(min=0.1, help="Seconds for one proof.")] = 20.0,
    target: Device = "cpu",
    margin: Annotated[
        float, Option(min=0.0, help="The gain that must be exceeded: 0.03 is 3 %.")
    ] = 0.03,
    most: Annotated[int, Option(min=0, help="End after so many new rules; 0: no limit.")] = 0,
    seed: Annotated[int, Option(help="For the inputs that programs are run on.")] = 0,
    only_shipped: Annotated[
        bool,
        Option("--shipped", help="Only say which shipped rules over the ops are found again."),
    ] = False,
    listed: Annotated[bool, Option("--list", help="Print the sets that ship.")] = False,
    as_json: Json = False,
) -> None:
    """Find rules: small programs that compute the same, the cheaper one on the right side.

    All programs of a few ops are enumerated and told apart by running them; equal ones are weighed
    by the target's cost model, generalised, proven (`mlirules prove`), tested, and written as
    rule files. What shipped rules do anyway is named. An interrupted search goes on where it was.
    """
    if listed:
        _list(as_json)
        return
    try:
        import z3  # noqa: F401
    except ImportError:
        raise MlirulesError.at(
            "mlirules discover",
            "needs the solver z3, which is not installed",
            code="no-solver",
            suggestion="pip install 'mlirules[prove]'",
        ) from None
    from mlirules.drivers.discover import opsets
    from mlirules.drivers.discover.search import Search, Settings
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.prove.prove import meanings
    from mlirules.drivers.tuning.outcome import parse_budget

    seconds = 0.0
    if limit is not None:
        _, seconds = parse_budget(limit, "--limit")
        if not seconds:
            raise MlirulesError.at(
                "--limit", f"not a time: {limit!r}", code="budget", suggestion="90s, 10m or 2h"
            )
    Target.parse(target)
    known = meanings()
    chosen = opsets.opened(ops, known, size=size, rank=rank, dtype=dtype)
    settings = Settings(output, target, seconds, timeout, margin, seed, most, only_shipped)
    with _bar() as watch:
        found = Search(chosen, known, settings, watch).run()
    if as_json:
        say_json(found.data())
    else:
        _print(found, output)
    if found.stopped == "interrupted":
        warn("interrupted: the same command goes on where it was")
        raise Exit(130)
    if found.stopped:
        warn(f"{found.stopped}: the same command goes on where it was")


def _list(as_json: bool) -> None:
    from mlirules.drivers.discover import opsets

    sets = opsets.named()
    if as_json:
        say_json(sets)
        return
    rows = [(name, len(s["ops"]), s.get("size", 2), s["summary"]) for name, s in sets.items()]
    out.print(table(["set", "ops#", "size#", "what"], rows))


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    """Progress on a terminal; elsewhere a line when the stage changes."""
    if not err.is_terminal:
        stages: set[str] = set()

        def say(what: str, _n: int, _of: int) -> None:
            stage = what.split(":")[0]
            if stage not in stages:
                stages.add(stage)
                note(stage)

        yield say
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
    with Progress(*columns, console=err.rich, transient=True) as bar:
        task = bar.add_task("programs", total=None)
        yield lambda what, n, of: bar.update(task, description=what, completed=n, total=of)


def _print(found: Found, folder: Path) -> None:
    rows = [
        (
            row.verdict,
            row.left,
            row.right,
            f"{row.gain:.2f}" if row.gain else "all",
            row.rule or ", ".join(row.known) or row.reason,
        )
        for row in sorted(found.rows, key=lambda r: (r.verdict, -r.gain if r.gain else -1e9))
    ]
    if rows:
        out.print(table(["verdict", "found", "instead", "gain#", "rule, or why not"], rows))
    if found.shipped:
        again = {n: p for n, p in found.shipped.items() if p}
        out.print(
            table(
                ["shipped rule over these ops", "found as"],
                [(n, p or "not found") for n, p in found.shipped.items()],
            )
        )
        share = 100 * len(again) / len(found.shipped)
        out.print(
            f"shipped rules over these ops found again: {len(again)} of {len(found.shipped)} "
            f"({share:.0f} %)",
            highlight=False,
        )
    for op, why in found.left_out.items():
        warn(f"{op} was left out: {why}")
    out.print(
        table(
            [
                "programs#",
                "classes#",
                "pairs#",
                "no gain#",
                "implied#",
                "known#",
                "new#",
                "unproven#",
                "s#",
            ],
            [
                (
                    found.programs,
                    found.classes,
                    found.pairs,
                    found.level,
                    found.implied,
                    found.count("known"),
                    found.count("new"),
                    found.count("unproven") + found.count("untested"),
                    f"{found.seconds:.0f}",
                )
            ],
        )
    )
    if found.count("new"):
        note(f"{found.count('new')} rules in {folder / 'rules'}")
