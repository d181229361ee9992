"""``mlirules bench``: a program as stock iree-compile makes it against a pipeline's, in turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mlirules.commands.common import (
    Device,
    Json,
    Measure,
    Own,
    Parameters,
    TrustNative,
    note,
    out,
    say_json,
    say_unapplied,
    show_decisions,
    table,
    warn,
    working,
    write_bytes,
)
from mlirules.commands.options import Argument, Option
from mlirules.commands.recipes import Wanted, recipe_for
from mlirules.language.faults import CheckFailed, MlirulesError

if TYPE_CHECKING:
    from mlirules.drivers.iree.program import Program
    from mlirules.drivers.iree.runtime import Array
    from mlirules.drivers.measure.timing import Comparison
    from mlirules.drivers.pipelines.transform import Recipe, Transformed

EXAMPLE = "mlirules bench model.mlir --pipeline cpu-fast --target cpu --json"


def command(
    model: Annotated[Path, Argument(help="The program, MLIR text.")],
    extra: Annotated[list[str] | None, Argument(help="After --: further flags for both.")] = None,
    pipeline: Annotated[
        list[str] | None,
        Option(
            "--pipeline",
            "-p",
            help="A shipped pipeline's name or a file, or several; default: the target's.",
        ),
    ] = None,
    rules: Own = None,
    target: Device = "cpu",
    parameters: Parameters = None,
    golden: Annotated[
        Path | None, Option(help="An .npz with inputs a0..; default: random ones.")
    ] = None,
    function: Annotated[str | None, Option(help="The function to call.")] = None,
    rounds: Annotated[int, Option(min=3, help="Rounds at most; each runs both.")] = 30,
    seconds: Annotated[float, Option(min=0, help="No new round after so long, but three.")] = 20.0,
    rtol: Annotated[
        float, Option(min=0, help="How far results may be apart, of the largest.")
    ] = 1e-3,
    at_least: Annotated[
        float | None, Option(min=0, help="Exit with 1 unless so many times as fast.")
    ] = None,
    measure: Measure = False,
    output: Annotated[
        Path | None, Option("--output", "-o", help="Write the report as JSON here, too.")
    ] = None,
    timeout: Annotated[float | None, Option(help="Seconds that a step may take.")] = 600,
    trust_native: TrustNative = False,  # noqa: ARG001 - said where it is read
    as_json: Json = False,
) -> None:
    """Time a program as stock iree-compile makes it against what pipelines make of it.

    All run in turns in one process on the same inputs; ratios are taken round by round. With
    --rules, the pipelines without them take part as well. Where stock iree-compile cannot compile
    the program, the first form that compiles is what the others are compared with. Exits with 1
    when the results are apart, or --at-least is not reached by the last.
    """
    from mlirules.drivers.measure import child as measuring

    def recipe_of(name: str | None, own: list[str] | None) -> Recipe:
        return recipe_for(
            model,
            target,
            Wanted(pipeline=name, rules=own, flags=extra or (), measure=measure, timeout=timeout),
        )

    recipes = {}
    names: list[str | None] = [*(pipeline or ())]
    for given in names or [None]:
        recipe = recipe_of(given, None)
        assert recipe.pipeline is not None  # the target's, at least
        recipes[recipe.pipeline.pipeline] = recipe
        if rules:
            recipes[f"{recipe.pipeline.pipeline} with rules"] = recipe_of(given, rules)
    chosen, last = recipe.target, next(reversed(recipes))
    name, inputs = _inputs(recipe.program(), golden, function)
    with working(f"compiling {model} for {chosen}"):
        forms, done = _compiled(recipes, last, extra or [])
    show_decisions(done.outcome.decisions)
    for said in done.notes:
        warn(said)
    say_unapplied(rules, done.applications)
    with working(f"timing {model} on {chosen}"):
        found = measuring.compare(
            forms,
            inputs,
            chosen,
            measuring.Budget(rounds, seconds, timeout),
            function=name,
            parameters=parameters or (),
        )
    report = {
        "model": str(model),
        "target": chosen.name,
        "pipeline": last,
        **found.comparison.as_json(),
        "errors": found.errors,
        "decisions": [vars(d) for d in done.outcome.decisions],
    }
    if output is not None:
        write_bytes(output, (json.dumps(report, indent=1) + "\n").encode())
    if as_json:
        say_json(report)
    else:
        _show(found.comparison)
    if found.error > rtol:
        raise CheckFailed(f"{model}: results are apart by {found.error:.2g} of the largest")
    ratio = found.comparison.ratio(last)
    if at_least is not None and ratio.median < at_least:
        raise CheckFailed(f"{model}: {ratio} times as fast, {at_least:g} expected")


def _compiled(
    recipes: dict[str, Recipe], last: str, extra: list[str]
) -> tuple[dict[str, bytes], Transformed]:
    """The forms that compile, stock first, and what the last pipeline did.

    Only the last must compile; of the others it is said why they do not take part.
    """
    from mlirules.drivers.iree import compiler

    made = recipes[last]
    forms: dict[str, bytes] = {}
    try:
        forms["stock"] = compiler.compile_module(
            made.program(), made.target, flags=extra, path=made.path, timeout=made.timeout
        )
    except compiler.CompileError as error:
        warn(f"stock iree-compile does not compile it: {error.faults[0].message.splitlines()[0]}")
    done = None
    for name, recipe in recipes.items():
        try:
            forms[name], done = recipe.compile()
        except (compiler.CompileError, CheckFailed) as error:
            if name == last:
                raise
            said = error.faults[0].message if isinstance(error, MlirulesError) else str(error)
            warn(f"{name} does not compile it: {said.splitlines()[0]}")
    if len(forms) == 1:
        warn(f"nothing else compiles: the times of {last} stand alone")
    assert done is not None  # the last compiles, or it was raised
    return forms, done


def _inputs(
    source: str | Program, golden: Path | None, function: str | None
) -> tuple[str, list[Array]]:
    from mlirules.drivers.iree import npz
    from mlirules.drivers.measure import numerics

    functions = numerics.functions(source, function)
    name, arguments = next(iter(functions.items()))
    if len(functions) > 1:
        warn(f"of the functions {', '.join(functions)} only {name} is timed: --function picks one")
    if golden is not None:
        return name, npz.load(golden, [element for _, element in arguments])
    if any(size is None for shape, _ in arguments for size in shape):
        raise MlirulesError.at(
            "--golden",
            "the program has dynamic sizes: which to time is not known",
            code="inputs",
            suggestion="give inputs with --golden FILE.npz",
        )
    return name, numerics.random_inputs(arguments, low=0.0, high=2.0)


def _show(found: Comparison) -> None:
    rows = [
        (
            name,
            f"{1e3 * t.median:.3f}",
            f"{1e3 * t.fastest:.3f}",
            f"{100 * t.spread:.1f} %",
            found.ratio(name),
            len(t.samples),
        )
        for name, t in found.timings.items()
    ]
    columns = ["form", "median ms#", "min ms#", "spread#", "times as fast (quartiles)", "rounds#"]
    out.print(table(columns, rows))
    if abs(found.drift - 1) > 0.1:
        warn(f"the baseline drifted by a factor of {found.drift:.2f} while timing")
    note("ratios are medians over the rounds, in each of which both forms ran")
