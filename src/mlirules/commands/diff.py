"""``mlirules diff``: the structural difference between two programs."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.text import Text

from mlirules.commands import diff_view as diffview
from mlirules.commands.common import (
    Json,
    TrustNative,
    note,
    out,
    progress,
    say,
    say_json,
    split,
    table,
    working,
)
from mlirules.commands.options import Argument, Exit, Option
from mlirules.language.faults import EXIT_CHECK_FAILED, MlirulesError

if TYPE_CHECKING:
    from mlirules.drivers.irdiff.changes import Diff
    from mlirules.drivers.irdiff.provenance import Provenance

EXAMPLE = "mlirules diff before.mlir after.mlir --html diff.html"


def command(
    paths: Annotated[
        list[str],
        Argument(help="Two programs; one with --phases; two folders with --of-diffs."),
    ],
    phases: Annotated[
        str | None,
        Option(
            help="Two phases of one compile: source, torch, input, "
            "preprocessing, flow, ... as FROM,TO."
        ),
    ] = None,
    target: Annotated[str, Option("--target", "-t", help="--phases: what for.")] = "cpu",
    pipeline: Annotated[
        str | None, Option("--pipeline", "-p", help="--phases: a pipeline's name or file.")
    ] = None,
    trace: Annotated[
        Path | None,
        Option(help="The trace of the `apply` that made B from A: ties changes to rules."),
    ] = None,
    of_diffs: Annotated[
        bool, Option("--of-diffs", help="Two folders: what changed over all programs.")
    ] = False,
    base: Annotated[
        Path | None, Option(help="--of-diffs: the folder of programs that both came from.")
    ] = None,
    side_by_side: Annotated[
        bool, Option("--side-by-side", "-y", help="Two columns instead of one.")
    ] = False,
    context: Annotated[
        int, Option("--context", "-U", min=0, help="Unchanged lines around changes.")
    ] = 2,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Only the exit code.")] = False,
    html: Annotated[Path | None, Option(help="Write a self-contained page to this file.")] = None,
    git_driver: Annotated[
        bool, Option("--git-driver", help="Called by git with its seven arguments.")
    ] = False,
    trust_native: TrustNative = False,  # noqa: ARG001 - said where it is read
    as_json: Json = False,
) -> None:
    """Compare programs by what they are: names, aliases, locations and order do not count.

    Exits with 0 when there is no difference, 1 when there is one.
    """
    if git_driver:
        _git(paths, context)
        return
    if of_diffs or base is not None:
        _folders(_two(paths, "--of-diffs"), base, as_json)
        return
    found = _difference(paths, phases, target, pipeline, trace)
    if html is not None:
        from mlirules.drivers.irdiff import page

        page.write(html, found, title=f"{found.before.path} - {found.after.path}")
        note(f"{html} written")
    if as_json:
        say_json(found.as_json())
    elif not quiet:
        diffview.show(found, side_by_side=side_by_side, context=context)
        diffview.summary(found)
    if found.changes:
        raise Exit(EXIT_CHECK_FAILED)


def _two(paths: list[str], what: str) -> tuple[Path, Path]:
    if len(paths) != 2:
        raise MlirulesError.at(
            what,
            f"takes two paths, {len(paths)} given",
            code="arguments",
            suggestion="mlirules diff A B",
        )
    return Path(paths[0]), Path(paths[1])


def _difference(
    paths: list[str], phases: str | None, target: str, pipeline: str | None, trace: Path | None
) -> Diff:
    from mlirules.drivers.irdiff.changes import compare_files
    from mlirules.drivers.irdiff.provenance import Provenance

    if phases is not None:
        return _phases(paths, phases, target, pipeline)
    a, b = _two(paths, "diff")
    if a.is_dir() or b.is_dir():
        raise MlirulesError.at(
            f"{a}, {b}", "are folders", code="folders", suggestion="add --of-diffs"
        )
    known: Provenance | None = Provenance.load(trace) if trace is not None else None
    return compare_files(a, b, known)


def _phases(paths: list[str], phases: str, target: str, pipeline: str | None) -> Diff:
    from mlirules.drivers.apply.programs import read_program
    from mlirules.drivers.irdiff.changes import compare
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.pipelines.transform import Pipeline, Recipe, program_at

    names = split([phases])
    if len(names) != 2 or len(paths) != 1:
        raise MlirulesError.at(
            "--phases",
            "takes two phases and one program",
            code="arguments",
            suggestion="mlirules diff model.mlir --phases torch,preprocessing",
        )
    path = Path(paths[0])
    text, chosen = read_program(path), Target.parse(target)
    line = Pipeline.load(pipeline) if pipeline else None
    programs = []
    for name in names:
        with working(f"{path} at {name}"):
            programs.append(program_at(Recipe(text, chosen, line, str(path)), name))
    return compare(programs[0], programs[1], names=(f"{path} ({names[0]})", f"{path} ({names[1]})"))


def _folders(paths: tuple[Path, Path], base: Path | None, as_json: bool) -> None:
    from mlirules.drivers.irdiff.folders import compare_folders

    count = sum(1 for path in paths if path.is_dir() for _ in path.rglob("*.mlir"))
    with progress("comparing", count // 2) as step:
        report = compare_folders(*paths, base, step)
    if as_json:
        say_json(report.as_json())
    else:
        rows = [
            (a, b, len(names), change, ", ".join(names[:3]) + (" ..." if len(names) > 3 else ""))
            for change, a, b, names in report.signatures()
        ]
        if rows:
            out.print(table(["only A#", "only B#", "programs#", "change", "for example"], rows))
        for program in report.programs:
            if program.status not in ("same", "differs"):
                out.print(Text(f"{program.name}: {program.status}", style="yellow"), soft_wrap=True)
        differ = sum(p.status != "same" for p in report.programs)
        out.print(Text(f"{len(report.programs)} programs, {differ} differ", style="bold"))
    if not report.same:
        raise Exit(EXIT_CHECK_FAILED)


def _git(given: list[str], context: int) -> None:
    """What git asks of an external diff: it must not fail, whatever the files hold."""
    from mlirules.drivers.irdiff.changes import compare

    if len(given) not in (1, 7, 9):
        raise MlirulesError.at(
            "--git-driver",
            "is for git: path, old file, hex, mode, new file, hex, mode",
            code="arguments",
            suggestion="git config diff.mlir.command 'mlirules diff --git-driver'",
        )
    say(f"diff --mlirules a/{given[0]} b/{given[0]}")
    if len(given) == 1:
        say("(unmerged)")
        return
    old, new = given[1], given[4]
    texts = [
        "" if name == "/dev/null" else Path(name).read_text("utf-8", "replace")
        for name in (old, new)
    ]
    names = (f"a/{given[0]}", f"b/{given[0]}")
    try:
        found = compare(texts[0], texts[1], names=names)
    except MlirulesError as error:
        note(f"{error.faults[0].render()}\n(compared as text)")
        lines = difflib.unified_diff(
            texts[0].splitlines(), texts[1].splitlines(), *names, lineterm="", n=context
        )
        say("\n".join(lines))
        return
    diffview.show(found, context=context)
    diffview.summary(found)
