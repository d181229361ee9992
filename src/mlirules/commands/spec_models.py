"""What tuning specs and config rules do to programs: differences, proofs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mlirules.commands.common import (
    Json,
    progress,
    say,
    say_json,
    working,
)
from mlirules.commands.options import Argument, Exit, Option
from mlirules.language.faults import EXIT_CHECK_FAILED, MlirulesError

if TYPE_CHECKING:
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
