"""``mlirules tune``: search faster lowering configurations and write them as rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.live import Live
from rich.table import Table

from mlirules.commands.common import (
    Device,
    Flags,
    Json,
    Parameters,
    TrustNative,
    Workers,
    err,
    note,
    out,
    say_json,
    table,
    warn,
    write_bytes,
)
from mlirules.commands.options import Argument, Exit, Option
from mlirules.language.faults import MlirulesError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from mlirules.drivers.tuning.outcome import Event, Options, Outcome, Tuned
    from mlirules.drivers.tuning.space import Space

EXAMPLE = "mlirules tune model.mlir --target cpu --budget 100 --output rules/tuned"


def command(
    model: Annotated[Path, Argument(help="The program: MLIR text.")],
    extra: Flags = None,
    target: Device = "cpu",
    budget: Annotated[
        str, Option(help="Candidates for each dispatch (100), or time for all (90s, 10m).")
    ] = "64",
    workers: Workers = "2",
    seed: Annotated[int, Option(help="For inputs and random choices.")] = 0,
    order: Annotated[
        str, Option(help="random, heuristic, learned or optuna: which come first.")
    ] = "heuristic",
    space: Annotated[
        list[str] | None,
        Option("--space", help="Search spaces: shipped names, files or folders."),
    ] = None,
    only: Annotated[list[str] | None, Option("--only", help="Dispatches to tune, by name.")] = None,
    share: Annotated[
        float, Option(min=0, max=1, help="Tune what takes at least this share of the time.")
    ] = 0.05,
    state: Annotated[
        Path | None,
        Option(
            help="Where results are kept; a search goes on where it was. "
            "Default: MODEL.TARGET.tune.sqlite beside the output."
        ),
    ] = None,
    output: Annotated[
        Path, Option("--output", "-o", help="Folder for the rules and the report.")
    ] = Path("tuned"),
    pipeline: Annotated[
        str | None,
        Option("--pipeline", "-p", help="What to start from. Default: what compile uses."),
    ] = None,
    compile_only: Annotated[
        bool, Option("--compile-only", help="Compile the candidates, run none.")
    ] = False,
    no_ways: Annotated[
        bool, Option("--no-ways", help="Leave the compiler's flags and the program alone.")
    ] = False,
    no_check: Annotated[
        bool, Option("--no-check", help="Skip the check in the whole program.")
    ] = False,
    parameters: Parameters = None,
    trust_native: TrustNative = False,  # noqa: ARG001 - said where it is read
    as_json: Json = False,
) -> None:
    """Find faster configurations for what dominates a program; write rules and a report."""
    from mlirules.drivers.apply.programs import load_program
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.pipelines.transform import Pipeline, Recipe
    from mlirules.drivers.tuning import measure, outcome, report, tuner, ways, written
    from mlirules.drivers.tuning import space as spaces
    from mlirules.drivers.tuning.store import Store
    from mlirules.language.workers import workers as workers_of

    chosen = Target.parse(target)
    count, seconds = outcome.parse_budget(budget)
    known = spaces.load_spaces(space or ())
    others = [] if no_ways or compile_only else ways.load_ways(space or (), chosen.kind)
    named = Pipeline.load(pipeline) if pipeline else None
    recipe = Recipe(lambda: load_program(model), chosen, named, str(model), tuple(extra or ()))
    given, before = ways.given(recipe)
    extra = [*before.flags, *(extra or ())]
    options = outcome.Options(
        chosen,
        budget=count,
        seconds=seconds,
        seed=seed,
        order=order,
        flags=tuple(extra or ()),
        share=share,
        only=tuple(only or ()),
        check=not no_check,
        parameters=tuple(parameters or ()),
    )
    from mlirules.drivers.tuning import ordering

    ordering.check(order)  # before any work
    if compile_only:
        _compile_only(given.text, options, model, known, as_json)
        return
    kept = state or output / f"{model.stem}.{chosen.name.replace(':', '-')}.tune.sqlite"
    store = Store(kept)
    view = _View()
    try:
        with measure.Runners() as runners, workers_of(workers) as pool, view:
            done = tuner.tune(
                given,
                options,
                tuner.Means(store, pool, view.watch, runners=runners),
                path=str(model),
                spaces=known,
                alternatives=others,
            )
    finally:
        store.close()
    paths = written.write_found(done, output, model.stem, before)
    page = output / f"{model.stem}.{chosen.name.replace(':', '-')}.html"
    write_bytes(page, report.page(done).encode())
    if as_json:
        say_json(_plain(done, paths, page, kept))
    else:
        _print(done, paths, page, kept)
    if done.interrupted:
        warn("interrupted: the same command goes on where it was")
        raise Exit(130)


class _View:
    """The live view on a terminal; elsewhere a line now and then."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[Tuned, int, int]] = {}
        self._note = ""
        self._live: Live | None = None

    def __enter__(self) -> _View:
        if err.is_terminal:
            self._live = Live(self._table(), console=err.rich, refresh_per_second=4, transient=True)
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def watch(self, event: Event) -> None:
        if event.kind == "note":
            self._note = event.text
            if self._live is None:
                note(event.text)
        elif event.dispatch is not None:
            name = event.dispatch.task.dispatch.name
            self._rows[name] = (event.dispatch, event.done, event.total)
            self._note = event.result.candidate.label if event.result else ""
            if self._live is None and event.kind == "dispatch":
                again = f", {event.dispatch.resumed} known" if event.dispatch.resumed else ""
                note(
                    f"{event.dispatch.task.root.title}: {event.dispatch.candidates} "
                    f"configurations, trying {event.total}{again}"
                )
        if self._live is not None:
            self._live.update(self._table())

    def _table(self) -> Table:
        rows = []
        for tuned, done, total in self._rows.values():
            best = tuned.best
            failed = sum(m.result.state not in ("ok", "slow", "same") for m in tuned.measured)
            rows.append(
                (
                    tuned.task.root.title,
                    f"{done}/{total}",
                    f"{tuned.default_ms:.3f}",
                    f"{best.result.ratio:.2f}" if best else "-",
                    failed,
                    best.candidate.label if best else "",
                )
            )
        return table(
            ["op", "tried#", "default ms#", "best#", "failed#", "best configuration"],
            rows,
            title=f"tuning  {self._note}",
        )


def _compile_only(
    text: str, options: Options, model: Path, known: Sequence[Space], as_json: bool
) -> None:
    from mlirules.drivers.tuning import tuner

    made = tuner.compile_only(text, options, path=str(model), spaces=known)
    if not made:
        raise MlirulesError.at(
            str(model), f"no dispatch has a search space on {options.target}", code="tuning"
        )
    if as_json:
        say_json(
            {
                name: [{**c.as_json(), "state": r.state, "note": r.note} for c, r in rows]
                for name, rows in made.items()
            }
        )
        return
    rows = [
        (
            len(found),
            sum(r.state == "ok" for _, r in found),
            len({r.binary for _, r in found}),
            name,
        )
        for name, found in made.items()
    ]
    out.print(table(["candidates#", "compile#", "binaries#", "dispatch"], rows))


def _plain(done: Outcome, paths: list[Path], page: Path, kept: Path) -> dict[str, object]:
    whole = done.whole
    return {
        "model": done.model,
        "target": done.target.name,
        "flags": list(done.flags),
        "interrupted": done.interrupted,
        "state": str(kept),
        "report": str(page),
        "rules": [str(p) for p in paths],
        "dropped": done.dropped,
        "skipped": done.skipped,
        "ways": [
            {
                "way": t.way.name,
                "flags": list(t.way.flags),
                "rules": list(t.way.rules),
                "state": t.state,
                "ratio": t.ratio,
                "note": t.note,
            }
            for t in done.ways
        ],
        "choice": None if done.choice is None else done.choice.name,
        "choices": [
            {
                "name": c.name,
                "ratio": c.whole.ratio,
                "default_ms": c.whole.default_ms,
                "tuned_ms": c.whole.tuned_ms,
                "difference": c.whole.difference,
            }
            for c in done.choices
        ],
        "whole": None
        if whole is None
        else {
            "default_ms": whole.default_ms,
            "tuned_ms": whole.tuned_ms,
            "ratio": whole.ratio,
            "spread": whole.spread,
        },
        "dispatches": [
            {
                "name": t.task.dispatch.name,
                "op": t.task.root.title,
                "share": t.share,
                "candidates": t.candidates,
                "tried": len(t.measured),
                "resumed": t.resumed,
                "default_ms": t.default_ms,
                "noise": t.noise,
                "drift": t.drift,
                "winner": None
                if t.winner is None
                else {
                    "settings": t.winner.settings.model_dump(mode="json", exclude_defaults=True),
                    "default_ms": t.winner.default_ms,
                    "tuned_ms": t.winner.tuned_ms,
                    "ratio": t.winner.speedup,
                    "spread": t.winner.spread,
                },
                "why_not": t.why_not,
            }
            for t in done.tuned
        ],
    }


def _print(done: Outcome, paths: list[Path], page: Path, kept: Path) -> None:
    rows = []
    for t in done.tuned:
        name = t.task.dispatch.name
        verdict = done.dropped.get(name) or (t.why_not if t.winner is None else "kept")
        rows.append(
            (
                f"{t.share:.1%}",
                f"{t.default_ms:.3f}",
                f"{t.winner.tuned_ms:.3f}" if t.winner else "-",
                f"{t.winner.speedup:.2f}" if t.winner else "-",
                f"{t.noise:.1%}",
                f"{t.drift:.3f}",
                f"{len(t.measured)}/{t.candidates}",
                t.task.root.title,
                verdict,
            )
        )
    out.print(
        table(
            [
                "share#",
                "default ms#",
                "tuned ms#",
                "times as fast#",
                "noise#",
                "drift#",
                "tried#",
                "op",
                "verdict",
            ],
            rows,
        )
    )
    for t in done.tuned:
        if abs(t.drift - 1) > max(0.1, 3 * t.noise):
            warn(
                f"{t.task.root.title}: the default took {t.drift:.2f} times as long at the end "
                "as at the start; what it shares the machine with has changed"
            )
    for name, why in done.skipped.items():
        note(f"not tuned: {name}: {why}")
    if done.ways:
        out.print(
            table(
                ["way", "verdict", "times as fast#", "why"],
                [
                    (t.way.name, t.state, f"{t.ratio:.2f}" if t.ratio else "-", t.note)
                    for t in done.ways
                ],
            )
        )
        for name, why in done.unfit.items():
            note(f"{name}: {why}")
        for c in done.choices:
            mark = "chosen: " if c == done.choice else ""
            note(
                f"{mark}{c.name}: {c.whole.ratio:.2f} times as fast "
                f"({c.whole.default_ms:.3f} ms, {c.whole.tuned_ms:.3f} ms)"
            )
    if done.whole is not None:
        note(
            f"the whole program: {done.whole.default_ms:.3f} ms before, "
            f"{done.whole.tuned_ms:.3f} ms tuned, {done.whole.ratio:.2f} times as fast"
        )
    for path in paths:
        note(f"wrote {path}")
    note(f"report: {page}; results: {kept}")
