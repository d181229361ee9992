"""``mlirules explain SET MODEL --driver saturate``: the chain of rules to what was chosen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from mlirules.commands.common import cost_settings, out, say_json, show_decisions, split
from mlirules.commands.common import note as say_note
from mlirules.language.stage import Stage

if TYPE_CHECKING:
    from mlirules.drivers.apply.run import Application


def explain(rules: str, model: Path, target: str, limit: int, as_json: bool) -> None:
    """Show the steps from the program to the cheapest one that the rules come to."""
    from mlirules.drivers.apply.programs import load_program
    from mlirules.drivers.pipelines.transform import Run, transform

    stage = Stage(phase="torch", rules=split([rules]), driver="saturate")
    done = transform(
        load_program(model),
        [stage],
        path=str(model),
        costs=cost_settings(target, False, ()),
        run=Run(record=True),
    )
    steps = done.outcome.applications
    for said in done.notes:
        say_note(said)
    if as_json:
        decisions = [vars(d) for d in done.outcome.decisions]
        say_json({"steps": [vars(step) for step in steps], "decisions": decisions})
        return
    show_decisions(done.outcome.decisions)
    if not steps:
        out.print("No equal program that these rules come to is cheaper: it stays as it is.")
        return
    for step in steps[:limit]:
        _show(step)
    if len(steps) > limit:
        out.print(Text(f"... {len(steps) - limit} more steps (--limit)"))


def _show(step: Application) -> None:
    on = f", on what {', '.join(map(str, step.builds_on))} made" if step.builds_on else ""
    out.print(Text(f"{step.number}. {step.rule}", style="bold"), soft_wrap=True)
    out.print(Text(f"   at {step.location}, {step.op}{on}"), soft_wrap=True)
    for sign, block, style in (("-", step.before, "red"), ("+", step.after, "green")):
        lines = [line.strip() for line in block.splitlines()]
        for line in (line for line in lines if line.startswith("%")):
            out.print(Text(f"   {sign} {line[:240]}", style=style), soft_wrap=True)
