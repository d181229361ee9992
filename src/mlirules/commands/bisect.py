"""``mlirules bisect``: the first rule application that breaks a program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from mlirules.commands.common import (
    Json,
    Line,
    Only,
    Rules,
    Skip,
    cost_settings,
    out,
    pipeline_for,
    say_json,
    split,
    table,
    working,
)
from mlirules.commands.verify import stages_for
from mlirules.language.faults import MlirulesError

EXAMPLE = "mlirules bisect model.mlir --pipeline cpu --verify"


def command(
    model: Annotated[Path, typer.Argument(help="The program, MLIR text.")],
    rules: Rules = None,
    pipeline: Line = None,
    driver: Annotated[str, typer.Option(help="--rules: greedy, walk or conversion.")] = "greedy",
    only: Only = None,
    skip: Skip = None,
    check: Annotated[
        str | None,
        typer.Option(help="A command that exits with 0 for a good program; {} is its path."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Good is what computes the same numbers.")
    ] = False,
    slower: Annotated[
        float | None, typer.Option(min=0, help="Good is what takes at most so many times as long.")
    ] = None,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Instead: times with each rule left out.")
    ] = False,
    target: Annotated[str, typer.Option("--target", "-t", help="Where to run.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Find the first application that breaks a program, by binary search.

    Exits with 0 when it is found, with 1 when the check holds with all rules, or fails without any.
    """
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.pipelines.transform import read_program
    from mlirules.drivers.quality import bisect as bisecting
    from mlirules.drivers.quality.verify import Settings

    text, chosen = read_program(model), Target.parse(target)
    line = None if rules is not None else pipeline_for(pipeline, target)
    stages = stages_for(rules, line, driver, split(only), split(skip))
    costs = cost_settings(target, False, line.flags if line is not None else ())
    if sum([check is not None, verify, slower is not None, ablate]) != 1:
        raise MlirulesError.at(
            "bisect",
            "one of --check, --verify, --slower and --ablate says what to look for",
            code="arguments",
            suggestion=EXAMPLE,
        )
    if ablate:
        with working("leaving rules out"):
            found = bisecting.ablate(text, stages, chosen, path=str(model), costs=costs)
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
        good = bisecting.by_numbers(text, Settings([chosen], stop=True))
    else:
        assert slower is not None
        good = bisecting.by_time(text, chosen, slower)
    with working(f"bisecting {model}"):
        culprit = bisecting.bisect(text, stages, good, path=str(model), costs=costs)
    application = culprit.application
    if as_json:
        say_json({"application": vars(application), "total": culprit.total, "tried": culprit.tried})
        return
    out.print(
        Text(
            f"application {application.number} of {culprit.total}: {application.rule}",
            style="bold red",
        ),
        soft_wrap=True,
    )
    out.print(Text(f"  at {application.location}, {application.op}"), soft_wrap=True)
    for sign, block, style in (("-", application.before, "red"), ("+", application.after, "green")):
        for line in block.splitlines():
            out.print(Text(f"  {sign} {line[:240]}", style=style), soft_wrap=True)
    out.print(Text(f"found with {culprit.tried} programs checked"), soft_wrap=True)
