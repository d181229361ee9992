"""``mlirules spec coverage``: which entries of specs and config rules hit which ops of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mlirules.commands.common import (
    Json,
    TrustNative,
    note,
    out,
    progress,
    say,
    say_json,
    table,
    warn,
    write_bytes,
)
from mlirules.commands.options import Argument, Exit, Option
from mlirules.commands.spec_models import load, models_of, refuse_errors
from mlirules.language.faults import EXIT_CHECK_FAILED

if TYPE_CHECKING:
    from mlirules.drivers.pipelines.coverage import Covered

EXAMPLE = "mlirules spec coverage models configs --target cpu"


def command(
    model: Annotated[Path, Argument(help="The program, or a folder of programs.")],
    sources: Annotated[
        list[str] | None,
        Argument(help="Specs and config rules; none: only the default configurations."),
    ] = None,
    target: Annotated[str, Option("--target", "-t", help="The target.")] = "cpu",
    pipeline: Annotated[
        str | None, Option("--pipeline", "-p", help="The pipeline that rewrites first.")
    ] = None,
    precedence: Annotated[
        Literal["first", "last"] | None, Option(help="Which source wins on overlap.")
    ] = None,
    html: Annotated[Path | None, Option("--html", help="Write the tables as a page.")] = None,
    as_json: Json = False,
    trust_native: TrustNative = False,  # noqa: ARG001 - said where it is read
) -> None:
    """Say of each dispatch of a model how it is configured by default, and which entry hits it.

    Of a folder, how many ops of each model are hit, and what each entry hits in all. Exits with 1
    when an entry hits no op of any model, or when one that should hit does not.
    """
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.pipelines.coverage import cover, page, unused
    from mlirules.drivers.pipelines.transform import Pipeline, default_for
    from mlirules.drivers.tuning_specs.compile import packs
    from mlirules.drivers.tuning_specs.link import link

    chosen = Target.parse(target)
    loaded = load(sources or [], target)
    for source in loaded:
        source.faults = [f for f in source.faults if f.code != "overlap" or not precedence]
    refuse_errors(loaded, kept=False)
    rules = link(loaded, precedence=precedence).rules if loaded else []
    line = Pipeline.load(pipeline) if pipeline else default_for(chosen.kind)
    # As `compile` does it: packed products take no configuration.
    left_out = packs(rules, chosen, line.flags)
    if left_out:
        line = replace(line, flags=[f for f in line.flags if f not in left_out])
        warn(f"compiled without {', '.join(left_out)}: packed products take no configuration")
    paths = models_of([model])
    covered = []
    with progress("configuring", len(paths)) as step:
        for path in paths:
            step(path.name)
            covered.append(cover(path, chosen, rules, line))
    idle = unused(covered, rules)
    if html is not None:
        write_bytes(html, page(covered, rules, chosen.name).encode())
    if as_json and not model.is_dir():
        rows = [row.as_json() for row in covered[0].rows]
        say_json(
            {"model": str(model), "target": chosen.name, "dispatches": rows, "hit_nothing": idle}
        )
    elif as_json:
        say_json(
            {
                "target": chosen.name,
                "models": [made.as_json() for made in covered],
                "hit_nothing": idle,
            }
        )
    elif not model.is_dir():
        shown = [(r.dispatch, r.op, r.entry or "-", r.default) for r in covered[0].rows]
        out.print(table(["dispatch", "op", "entry", "default configuration"], shown))
        say(f"{len(shown)} configured ops, {covered[0].hits} hit by entries")
    else:
        _show_folder(model, covered)
    if html is not None:
        note(f"wrote {html}")
    for made in covered:
        if made.problem and not as_json:
            warn(f"{made.model}: {made.problem}")
    if not as_json:
        for name in idle:
            warn(f"the entry {name} hits no op of {model}")
    if idle or any(made.problem for made in covered):
        raise Exit(EXIT_CHECK_FAILED)


def _show_folder(folder: Path, covered: Sequence[Covered]) -> None:
    rows = [
        (
            made.model.relative_to(folder),
            len(made.rows),
            made.hits,
            f"{made.hits / len(made.rows):.0%}" if made.rows else "-",
            ", ".join(f"{name} {count}" for name, count in made.by_entry.most_common()) or "-",
        )
        for made in covered
    ]
    out.print(table(["model", "ops#", "hit#", "share#", "entries"], rows))
    ops, hits = sum(len(m.rows) for m in covered), sum(m.hits for m in covered)
    say(f"{len(covered)} models, {ops} configured ops, {hits} hit by entries")
