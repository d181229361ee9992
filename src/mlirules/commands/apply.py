"""``mlirules apply``: rules on a program, and the rewritten program out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mlirules.commands import diff_view as diffview
from mlirules.commands.common import (
    Json,
    Measure,
    Only,
    Rules,
    Skip,
    Stages,
    Target,
    TrustNative,
    applications_table,
    cost_settings,
    decisions_as_json,
    err,
    note,
    pipeline_for,
    say,
    say_json,
    show_decisions,
    split,
    warn,
    write_bytes,
)
from mlirules.commands.explain import show_why_not, why_not_data
from mlirules.commands.options import Argument, Option
from mlirules.language.faults import CheckFailed, MlirulesError

if TYPE_CHECKING:
    from mlirules.drivers.irdiff.changes import Diff
    from mlirules.drivers.match.matcher import Matcher
    from mlirules.drivers.pipelines.transform import Transformed
    from mlirules.drivers.quality.explain import WhyNot
    from mlirules.language.pipeline import Pipeline
    from mlirules.language.stage import Stage

EXAMPLE = "mlirules apply model.mlir --rules torch/to-linalg --driver walk --diff"


class Driver(StrEnum):
    """How patterns are applied."""

    GREEDY = "greedy"
    WALK = "walk"
    CONVERSION = "conversion"
    COST = "cost"
    SATURATE = "saturate"


class Order(StrEnum):
    """The greedy driver's traversal."""

    TOP_DOWN = "top-down"
    BOTTOM_UP = "bottom-up"


def command(
    model: Annotated[Path, Argument(help="The program, MLIR text.")],
    rules: Rules = None,
    driver: Annotated[
        Driver | None, Option(help="How patterns are applied; default: greedy.")
    ] = None,
    order: Annotated[Order | None, Option(help="Greedy: the traversal.")] = None,
    full: Annotated[
        bool, Option("--full", help="Conversion: fail when an illegal op remains.")
    ] = False,
    pipeline: Stages = None,
    target: Target = "cpu",
    measure: Measure = False,
    only: Only = None,
    skip: Skip = None,
    max_rewrites: Annotated[
        int | None, Option(min=0, help="Stop after so many applications: bisection.")
    ] = None,
    bound: Annotated[
        int | None, Option(min=1, help="More applications than this are taken for a loop.")
    ] = None,
    expect: Annotated[
        int | None, Option(min=0, help="Exit with 1 unless exactly so many applied.")
    ] = None,
    expect_min: Annotated[
        int | None, Option(min=0, help="Exit with 1 unless at least so many applied.")
    ] = None,
    trace: Annotated[Path | None, Option(help="Write every application as a line of JSON.")] = None,
    why_not: Annotated[
        bool,
        Option("--why-not", help="Say of each rule that left ops alone which line refused."),
    ] = False,
    stats: Annotated[bool, Option("--stats", help="Applications and time by rule.")] = False,
    diff: Annotated[
        bool, Option("--diff", help="Show the structural difference, not the program.")
    ] = False,
    side_by_side: Annotated[
        bool, Option("--side-by-side", "-y", help="--diff: in two columns.")
    ] = False,
    html: Annotated[
        Path | None, Option(help="Write the difference as a self-contained page.")
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Write the program here, not to stdout.")
    ] = None,
    trust_native: TrustNative = False,  # noqa: ARG001 - said where it is read
    as_json: Json = False,
) -> None:
    """Apply rules to a program; without --rules the torch stages of the target's pipeline.

    Applying nothing is reported loudly on stderr; it fails only if --expect or --expect-min do.
    """
    from mlirules.drivers.apply.programs import load_program, read_program
    from mlirules.drivers.apply.run import write_trace
    from mlirules.drivers.pipelines.transform import Run, transform

    source = load_program(model)
    # The original is looked at again by these only.
    text = read_program(model) if diff or html is not None or why_not else ""
    line = None if rules is not None else pipeline_for(pipeline, target)
    stages = _stages(rules, line, _Driving(driver, order, full), split(only), split(skip))
    done = transform(
        source,
        stages,
        path=str(model),
        costs=cost_settings(target, measure, line.flags if line is not None else ()),
        run=Run(
            record=trace is not None or diff or html is not None,
            texts=trace is not None,
            max_rewrites=max_rewrites,
            bound=bound,
        ),
    )
    if trace is not None:
        write_trace(trace, done.outcome.applications, done.outcome.decisions)
    show_decisions(done.outcome.decisions)
    for said in done.notes:
        note(said)
    if output is not None:
        write_bytes(output, done.text.encode())
    reasons = _why_not(text, done, stages, model) if why_not else None
    found = _difference(text, done, model) if diff or html is not None else None
    if html is not None and found is not None:
        from mlirules.drivers.irdiff import page

        page.write(html, found, title=f"{model}: what the rules changed")
        note(f"{html} written")
    if as_json:
        data = _report(done) | ({"diff": found.as_json()} if diff and found is not None else {})
        say_json(data if reasons is None else {**data, "why_not": why_not_data(reasons, model)})
    elif diff and found is not None:
        diffview.show(found, side_by_side=side_by_side)
        diffview.summary(found)
    elif output is None:
        say(done.text)
    if stats and not as_json:
        err.print(applications_table(done.outcome))
    if reasons is not None and not as_json:
        show_why_not(reasons, model, text)
    _judge(done, model, max_rewrites, expect, expect_min)


def _difference(text: str, done: Transformed, model: Path) -> Diff:
    from mlirules.drivers.irdiff.changes import compare
    from mlirules.drivers.irdiff.provenance import Provenance

    return compare(
        text,
        done.text,
        names=(f"{model} (before)", f"{model} (after)"),
        provenance=Provenance.of(vars(a) for a in done.outcome.applications),
    )


def _why_not(text: str, done: Transformed, stages: list[Stage], model: Path) -> list[WhyNot]:
    from mlirules.drivers.apply.programs import parsed
    from mlirules.drivers.pipelines.transform import engine_for, stage_rules
    from mlirules.drivers.quality.explain import why_not

    before = parsed(text, str(model))
    after = parsed(done.text, str(model))
    matchers: dict[str, Matcher] = {}
    for stage in stages:
        matchers |= engine_for(stage_rules(stage)).matchers
    return why_not(list(matchers.values()), before, after, done.outcome)


@dataclass(frozen=True)
class _Driving:
    """How rules are driven over a program, as far as the command line says."""

    driver: Driver | None
    order: Order | None
    full: bool


def _stages(
    rules: list[str] | None,
    line: Pipeline | None,
    driving: _Driving,
    only: list[str],
    skip: list[str],
) -> list[Stage]:
    """The stages of the rules, or the torch stages of the pipeline ``line`` without any."""
    from mlirules.language.stage import Stage

    driver, order, full = driving.driver, driving.order, driving.full
    chosen = driver or Driver.GREEDY
    if order is not None and chosen is not Driver.GREEDY:
        raise MlirulesError.at(
            "--order",
            f"the {chosen} driver has one order: that of the program",
            code="order",
            suggestion="leave --order out, or use --driver greedy",
        )
    if full and chosen is not Driver.CONVERSION:
        raise MlirulesError.at(
            "--full",
            f"the {chosen} driver has no illegal ops",
            code="full",
            suggestion="use --driver conversion",
        )
    if rules is not None or line is None:
        return [
            Stage(
                phase="torch",
                rules=split(rules),
                driver=chosen.value,
                order=(order or Order.TOP_DOWN).value,
                full=full,
                only=only,
                skip=skip,
            )
        ]
    stages = [s for s in line.stages if s.phase == "torch"]
    changes: dict[str, Any] = {}
    if driver is not None:
        changes["driver"] = driver.value
    if order is not None:
        changes["order"] = order.value
    return _filtered([replace(s, **changes) for s in stages], only, skip)


def _filtered(stages: list[Stage], only: list[str], skip: list[str]) -> list[Stage]:
    """Filters over several stages: each must fit a rule of some stage, not of every one."""
    from mlirules.drivers.apply.engine import select
    from mlirules.drivers.pipelines.transform import stage_rules

    if not only and not skip:
        return stages
    sets = [stage_rules(stage) for stage in stages]
    chosen = {r.name for r in select([r for rules in sets for r in rules], only, skip)}
    kept = []
    for stage, rules in zip(stages, sets, strict=True):
        names = [rule.name for rule in rules if rule.name in chosen]
        if names:
            kept.append(replace(stage, only=names, skip=[]))
    return kept


def _report(done: Transformed) -> dict[str, object]:
    return {
        "applied": done.outcome.total,
        "applications": dict(done.applications),
        "seconds": done.outcome.seconds,
        "stopped": done.outcome.stopped,
        "leftovers": dict(done.leftover_counts),
        **({"notes": done.notes} if done.notes else {}),
        **decisions_as_json(done.outcome.decisions),
    }


def _judge(
    done: Transformed,
    model: Path,
    max_rewrites: int | None,
    expect: int | None,
    expect_min: int | None,
) -> None:
    total = done.outcome.total
    if expect is not None and total != expect:
        raise CheckFailed(f"{model}: {total} applications, {expect} expected")
    if expect_min is not None and total < expect_min:
        raise CheckFailed(f"{model}: {total} applications, at least {expect_min} expected")
    if done.outcome.stopped:
        note(f"stopped after {total} applications (--max-rewrites)")
    elif not total and max_rewrites != 0 and expect is None:
        warn(
            f"NOTHING APPLIED: no rule matched anything in {model} "
            "(`mlirules explain RULE MODEL` says why)"
        )
