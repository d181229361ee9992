"""What tuning specs and config rules do to programs: coverage, differences, proofs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    working,
    write_bytes,
)
from mlirules.commands.options import Argument, Exit, Option
from mlirules.language.faults import EXIT_CHECK_FAILED, MlirulesError

if TYPE_CHECKING:
    from mlirules.drivers.pipelines.coverage import Covered
    from mlirules.drivers.tuning_specs.check import Source

Sources = Annotated[
    list[str],
    Argument(help="Specs (.mlir) and config rules: files, folders or shipped names."),
]
TargetOption = Annotated[
    str | None,
    Option(
        "--target", "-t", help="The target they are for: cpu, vulkan, cuda:sm_80, hip:gfx942, ..."
    ),
]


def load(paths: Sequence[str], target: str | None) -> list[Source]:
    """Specs and rule sets with their faults."""
    from mlirules.drivers.tuning_specs.check import load_sources

    sources = []
    with progress("reading", len(paths)) as step:
        for path in paths:
            step(path)
            sources += load_sources(path, target=target)
    return sources


def refuse_errors(sources: Sequence[Source], *, kept: bool = True) -> None:
    """Stop where something is wrong, and without ``kept`` where an entry is no rule."""
    errors = [f for s in sources for f in (*s.errors, *(() if kept else s.unread))]
    if errors:
        raise MlirulesError(errors)


def text_of(path: Path) -> str:
    """The text of a file. Raises :class:`MlirulesError`."""
    from mlirules.drivers.tuning_specs.check import spec_text

    return spec_text(str(path))


def models_of(paths: Sequence[Path]) -> list[Path]:
    """Programs: files, and those in folders. Raises :class:`MlirulesError` where there are none."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(f for f in path.rglob("*") if f.suffix in (".mlir", ".mlirbc"))
        else:
            found.append(path)
    if not found:
        raise MlirulesError.at(
            ", ".join(map(str, paths)), "holds no program (.mlir, .mlirbc)", code="file"
        )
    return found


def coverage(
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


def diff(
    before: Annotated[Path, Argument(help="A spec (.mlir), or config rules.")],
    after: Annotated[Path, Argument(help="Another.")],
    models: Annotated[list[Path], Argument(help="Programs, or folders of them.")],
    target: Annotated[str, Option("--target", "-t", help="The target.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Say which dispatches of models get another configuration by one spec than by another.

    Specs are compiled with as they stand. Exits with 1 when there is a difference, like diff.
    """
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.pipelines.coverage import compare

    chosen = Target.parse(target)
    texts = [_as_spec(path, target) for path in (before, after)]
    made = []
    paths = models_of(models)
    with progress("compiling", len(paths)) as step:
        for path in paths:
            step(path.name)
            made.append((path, *compare(path, chosen, *texts)))
    found = sum(len(changes) for _, _, changes in made)
    if as_json:
        say_json(
            [
                {"model": str(path), "ops": count, "changes": [c.as_json() for c in changes]}
                for path, count, changes in made
            ]
        )
    else:
        for path, count, changes in made:
            say(f"{path}: {len(changes)} of {count} ops get another configuration")
            for change in changes:
                say(str(change))
    if found:
        raise Exit(EXIT_CHECK_FAILED)


def _as_spec(path: Path, target: str) -> str:
    """A spec as it stands, or the one made of config rules."""
    from mlirules.drivers.tuning_specs.check import is_spec
    from mlirules.drivers.tuning_specs.link import link, linked_text

    if is_spec(path):
        return text_of(path)
    loaded = load([str(path)], target)
    refuse_errors(loaded)
    return linked_text(link(loaded, precedence="first"), target)


def prove(source: Source, models: Sequence[Path], target: str | None) -> list[dict[str, Any]]:
    """Each model compiled with a spec and with what is made of its rules."""
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.pipelines.coverage import compare
    from mlirules.drivers.tuning_specs.link import link, linked_text

    if target is None:
        raise MlirulesError.at(
            "--prove", "needs a target", code="target", suggestion="for example -t hip:gfx942"
        )
    chosen = Target.parse(target)
    original = text_of(Path(source.path))
    again = linked_text(link([source], precedence="first"), target)
    proofs = []
    for path in models_of(models):
        with working(f"proving with {path}"):
            count, changes = compare(path, chosen, original, again)
        proofs.append(
            {
                "model": str(path),
                "configured": count,
                "same": count - len(changes),
                "differences": [str(change) for change in changes],
            }
        )
    return proofs
