"""``mlirules bisect``: the first rule application that breaks a program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.text import Text

from mlirules.commands.common import (
    Flags,
    Json,
    Line,
    Only,
    Parameters,
    Rules,
    Skip,
    TrustNative,
    TrustPython,
    out,
    say_json,
    split,
    table,
    working,
)
from mlirules.commands.options import Argument, Option
from mlirules.commands.recipes import Wanted, recipe_for
from mlirules.language.faults import MlirulesError

if TYPE_CHECKING:
    from mlirules.drivers.quality.bisect import Culprit

EXAMPLE = "mlirules bisect model.mlir --pipeline cpu --verify"


def command(
    model: Annotated[Path, Argument(help="The program, MLIR text or bytecode.")],
    extra: Flags = None,
    rules: Rules = None,
    pipeline: Line = None,
    driver: Annotated[str, Option(help="--rules: greedy, walk, conversion, saturate.")] = "greedy",
    only: Only = None,
    skip: Skip = None,
    check: Annotated[
        str | None,
        Option(
            help="A command that exits with 0 for a good program; {} is the path of its text "
            "after the torch stages, {vmfb} of the compiled program."
        ),
    ] = None,
    verify: Annotated[
        bool, Option("--verify", help="Good is what computes the same numbers.")
    ] = False,
    slower: Annotated[
        float | None, Option(min=0, help="Good is what takes at most so many times as long.")
    ] = None,
    ablate: Annotated[
        bool, Option("--ablate", help="Instead: times with each rule left out.")
    ] = False,
    target: Annotated[str, Option("--target", "-t", help="Where to run.")] = "cpu",
    parameters: Parameters = None,
    function: Annotated[
        str | None, Option(help="--verify: this function; default: all that can be called.")
    ] = None,
    inputs: Annotated[
        Path | None, Option(help="--verify: an .npz with inputs a0..: only these.")
    ] = None,
    trust_native: TrustNative = False,  # noqa: ARG001 - said where it is read
    trust_python: TrustPython = False,  # noqa: ARG001 - said where it is read
    as_json: Json = False,
) -> None:
    """Find what breaks a program, by binary search: an application of a rule, a flag.

    The program is compiled as `compile` does, all phases and flags. Exits with 0 when it is found,
    with 1 when the check holds with all of it, or fails without any.
    """
    from mlirules.drivers.iree import npz
    from mlirules.drivers.quality import bisect as bisecting
    from mlirules.drivers.quality import custom_ops
    from mlirules.drivers.quality.verify import WHOLE_PROGRAMS, Settings

    if sum([check is not None, verify, slower is not None, ablate]) != 1:
        raise MlirulesError.at(
            "bisect",
            "one of --check, --verify, --slower and --ablate says what to look for",
            code="arguments",
            suggestion=EXAMPLE,
        )
    recipe = recipe_for(
        model,
        target,
        Wanted(
            pipeline=pipeline,
            rules=rules,
            driver=driver,
            only=split(only),
            skip=split(skip),
            flags=extra or (),
            alone=True,
        ),
    )
    if ablate:
        with working("leaving rules out"):
            found = bisecting.ablate(recipe)
        if as_json:
            say_json([vars(a) for a in found])
            return
        rows = [
            (
                a.applied,
                f"{1000 * a.compile_s:.0f}",
                f"{1000 * a.run_s:.3f}",
                a.rule or "(none)",
                a.problem,
            )
            for a in found
        ]
        out.print(table(["applied#", "compile ms#", "run ms#", "rule left out", "problem"], rows))
        return
    if check is not None:
        good = bisecting.by_command(check)
    elif verify:
        settings = Settings(
            [recipe.target],
            tolerance=WHOLE_PROGRAMS,
            stop=True,
            finite=inputs is None,
            isolated=True,
            function=function,
            parameters=parameters or (),
            functions=custom_ops.of_recipe(recipe),
            inputs=npz.load(inputs) if inputs is not None else None,
        )
        good = bisecting.by_numbers(recipe.source, settings)
    else:
        assert slower is not None
        good = bisecting.by_time(recipe.source, recipe.target, slower)
    with working(f"bisecting {model}"):
        text_only = check is not None and not bisecting.compiled(check)
        culprit = bisecting.bisect(recipe, good, text_only=text_only)
    if as_json:
        say_json(culprit.as_json())
        return
    show_culprit(culprit)


def show_culprit(culprit: Culprit) -> None:
    """Say what breaks a program, with the ops before and after where it is an application."""
    application = culprit.application
    if application is None:
        out.print(Text(f"{culprit} breaks the program", style="bold red"), soft_wrap=True)
    else:
        out.print(
            Text(
                f"application {culprit.number} of {culprit.total}: {application.rule}",
                style="bold red",
            ),
            soft_wrap=True,
        )
        out.print(Text(f"  at {application.location}, {application.op}"), soft_wrap=True)
        blocks = (("-", application.before, "red"), ("+", application.after, "green"))
        for sign, block, style in blocks:
            for line in block.splitlines():
                out.print(Text(f"  {sign} {line[:240]}", style=style), soft_wrap=True)
    out.print(Text(f"found with {culprit.tried} programs checked"), soft_wrap=True)
