"""``mlirules verify``: a program with and without rules, on inputs that include the edges."""

from __future__ import annotations

import shlex
from dataclasses import replace
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
    Workers,
    note,
    out,
    progress,
    say_json,
    split,
    table,
    warn,
    working,
)
from mlirules.commands.options import Argument, Exit, Option
from mlirules.commands.recipes import Wanted, golden_of, recipe_for
from mlirules.language import consent
from mlirules.language.faults import EXIT_CHECK_FAILED, MlirulesError

if TYPE_CHECKING:
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.pipelines.transform import Recipe
    from mlirules.drivers.quality.gate import GateResult
    from mlirules.drivers.quality.verify import Report, Settings, Tolerance

EXAMPLE = "mlirules verify model.mlir --rules torch/to-linalg --targets cpu,vulkan"


def command(
    model: Annotated[Path | None, Argument(help="The program, MLIR text or bytecode.")] = None,
    extra: Flags = None,
    rules: Rules = None,
    pipeline: Line = None,
    driver: Annotated[str, Option(help="--rules: greedy, walk, conversion, saturate.")] = "greedy",
    only: Only = None,
    skip: Skip = None,
    targets: Annotated[
        list[str] | None, Option("--targets", "-t", help="Where to run; default: cpu.")
    ] = None,
    sizes: Annotated[
        list[str] | None,
        Option(help="Values for the `?` dims in order: 1,4; repeat for several runs."),
    ] = None,
    inputs: Annotated[Path | None, Option(help="An .npz with inputs a0..: only these.")] = None,
    golden: Annotated[
        Path | None,
        Option(help="An .npz with inputs a0.. and the results r0.. to expect: only these."),
    ] = None,
    rtol: Annotated[float | None, Option(min=0, help="Relative tolerance.")] = None,
    atol: Annotated[float | None, Option(min=0, help="Absolute tolerance.")] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the inputs.")] = 0,
    parameters: Parameters = None,
    function: Annotated[
        str | None, Option(help="This function; default: all that can be called.")
    ] = None,
    reference: Annotated[
        str, Option(help="Asked first: compiler (without rules) or torch.")
    ] = "compiler",
    save: Annotated[Path, Option(help="Where a counterexample goes.")] = Path("counterexample"),
    rule_gate: Annotated[
        list[str] | None,
        Option("--rule-gate", help="No program: the tests of these rules, on edge values."),
    ] = None,
    workers: Workers = "1",
    trust_native: TrustNative = False,  # noqa: ARG001 - said where it is read
    trust_python: TrustPython = False,  # noqa: ARG001 - said where it is read
    as_json: Json = False,
) -> None:
    """Compare numbers with and without rules: random inputs, NaN, infinities, -0.0, denormals.

    Exits with 1 when a result differs; the counterexample is reduced and saved with the command
    that repeats it.
    """
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.quality import custom_ops
    from mlirules.drivers.quality.verify import Tolerance

    chosen = [Target.parse(name) for name in split(targets) or ["cpu"]]
    if rule_gate is not None:
        _gate(rule_gate, chosen, only, skip, as_json, workers)
        return
    if model is None:
        raise MlirulesError.at(
            "verify",
            "no program given",
            code="arguments",
            suggestion="give a program, or --rule-gate RULES",
        )
    if reference not in ("compiler", "torch"):
        raise MlirulesError.at(
            "--reference",
            f"unknown reference {reference!r}",
            code="reference",
            suggestion="compiler or torch",
        )
    tolerance = Tolerance(rtol, atol) if rtol is not None or atol is not None else None
    settings = _settings(chosen, sizes, inputs, tolerance, seed, reference)
    settings.function = function
    settings.parameters = parameters or ()
    recipes = {
        target: recipe_for(
            model,
            target.name,
            Wanted(
                pipeline=pipeline,
                rules=rules,
                driver=driver,
                only=split(only),
                skip=split(skip),
                flags=extra or (),
                alone=True,
                timeout=settings.timeout,
            ),
        )
        for target in chosen
    }
    if golden is not None:
        recipe = next(iter(recipes.values()))
        settings.inputs, settings.expect = golden_of(recipe, golden, function)
    for recipe in recipes.values():
        settings.functions = {**settings.functions, **custom_ops.of_recipe(recipe)}
    options = _options(rules, pipeline or "", driver, only, skip, extra)
    _verify(recipes, settings, save, as_json, options, workers)


def _settings(
    targets: list[Target],
    sizes: list[str] | None,
    inputs: Path | None,
    tolerance: Tolerance | None,
    seed: int,
    reference: str,
) -> Settings:
    from mlirules.drivers.iree import npz
    from mlirules.drivers.quality.verify import WHOLE_PROGRAMS, Settings

    try:
        given = [tuple(int(n) for n in s.split(",") if n) for s in sizes or ()]
    except ValueError:
        raise MlirulesError.at(
            "--sizes", f"not numbers: {sizes}", code="sizes", suggestion="--sizes 1,4 --sizes 7,3"
        ) from None
    arrays = npz.load(inputs) if inputs is not None else None
    return Settings(
        targets,
        given or [(), (1,), (5,)],
        tolerance or WHOLE_PROGRAMS,
        seed,
        inputs=arrays,
        first=reference,
        finite=True,
        isolated=True,
    )


def _options(
    rules: list[str] | None,
    pipeline: str,
    driver: str,
    only: list[str] | None,
    skip: list[str] | None,
    extra: list[str] | None,
) -> list[str]:
    words = [w for r in rules or () for w in ("--rules", r)]
    words += ["--pipeline", pipeline] if pipeline else []
    if rules:
        words += ["--driver", driver]
    words += [w for g in only or () for w in ("--only", g)]
    words += [w for g in skip or () for w in ("--skip", g)]
    said = consent.current()
    words += ["--trust-native"] if said.native else []
    words += ["--trust-python"] if said.python else []
    return words + (["--", *extra] if extra else [])


def _verify(
    recipes: dict[Target, Recipe],
    settings: Settings,
    save: Path,
    as_json: bool,
    options: list[str],
    workers: str,
) -> None:
    from mlirules.drivers.quality import reduce as reducing
    from mlirules.drivers.quality.apart import verify_recipes

    recipe = next(iter(recipes.values()))
    model = recipe.path
    with working(f"verifying {model}"):
        report, applied, notes = verify_recipes(recipes, settings, workers)
    for said in notes:
        warn(said)
    for target, count in applied.items():
        if not count:
            warn(f"NOTHING APPLIED to {model} for {target}: only flags differ, if any")
    saved: list[Path] = []
    example = report.counterexample
    if example is not None and settings.inputs is None:
        words = ["mlirules", "verify", str(save / "program.mlir")]
        words += ["--targets", example.comparison.target, "--inputs", str(save / "inputs.npz")]
        words += ["--reference", settings.first, "--function", example.function, *options]
        with working("reducing the counterexample"):
            reduced = reducing.reduce(
                example,
                lambda t: lambda target: replace(recipes[target], source=t).compile()[0],
                settings,
            )
        saved = reducing.save(save, reduced, example, shlex.join(words))
        if not as_json:
            note(f"reduced from {reduced.ops_before} to {reduced.ops_after} ops: {save}")
            note(f"repeat with: {shlex.join(words)}")
    if as_json:
        say_json(
            {
                "passed": report.passed,
                "applied": sum(applied.values()),
                "applied_by_target": applied,
                "references": report.references,
                "skipped": report.skipped,
                "compiler_wrong": report.compiler_wrong,
                "saved": [str(p) for p in saved],
                "comparisons": [c.as_json() for c in report.comparisons],
            }
        )
    else:
        _show(report)
    if not report.passed:
        raise Exit(EXIT_CHECK_FAILED)


def _show(report: Report) -> None:
    rows = []
    for c in report.comparisons:
        verdict = "ok" if c.passed else "differs"
        if c.passed and c.zero_signs:
            verdict = f"ok ({c.zero_signs} zeros of the other sign)"
        rows.append(
            (
                c.target + (f" @{c.function}" if c.function else ""),
                c.inputs,
                ",".join(map(str, c.sizes)),
                c.result,
                f"{c.max_ulp:g}",
                f"{c.max_relative:.2g}",
                verdict,
            )
        )
    if rows:
        names = ["target", "inputs", "sizes", "result#", "ulp#", "relative#", "verdict"]
        out.print(table(names, rows))
    for c in report.comparisons:
        if not c.passed:
            called = f"{c.target}, @{c.function}" if c.function else c.target
            where = f"{called}, {c.inputs}, result {c.result}, against {c.reference}"
            out.print(Text(f"{where}: {c.message}", style="red"), soft_wrap=True)
    for line in report.compiler_wrong:
        out.print(Text(line, style="yellow"), soft_wrap=True)
    for line in report.skipped:
        out.print(Text(f"skipped: {line}", style="yellow"), soft_wrap=True)
    if report.references:
        out.print(Text(f"held against: {'; '.join(report.references)}"), soft_wrap=True)
    failed = sum(not c.passed for c in report.comparisons)
    if not report.comparisons:
        out.print(Text("nothing was compared", style="bold red"))
    elif failed:
        out.print(Text(f"{failed} of {len(report.comparisons)} results differ", style="bold red"))
    else:
        out.print(Text(f"{len(report.comparisons)} results agree", style="green"))


def _gate(
    paths: list[str],
    targets: list[Target],
    only: list[str] | None,
    skip: list[str] | None,
    as_json: bool,
    workers: str,
) -> None:
    from mlirules.drivers.apply.engine import select
    from mlirules.drivers.pipelines.transform import rule_set
    from mlirules.drivers.quality.apart import run_gates

    sets = split(paths)
    rules = select(list(rule_set(tuple(sets))), split(only), split(skip))
    results: list[GateResult] = []
    interrupted = False
    with progress("verifying", len(rules)) as step:
        try:
            results.extend(run_gates(sets, rules, targets, workers, step))
        except KeyboardInterrupt:  # what is done is told
            interrupted = True
    failed = [r for r in results if not r.passed]
    if as_json:
        say_json([r.as_json() for r in results])
    else:
        for result in results:
            for problem in result.problems:
                style = "yellow" if result.stated else "red"
                out.print(Text(f"{result.rule.name}: {problem}", style=style), soft_wrap=True)
            if result.problems and result.stated:
                out.print(Text(f"  stated: {result.stated}"), soft_wrap=True)
            for line in result.compiler_wrong:
                out.print(Text(f"{result.rule.name}: {line}", style="dim"), soft_wrap=True)
            for line in result.skipped:
                out.print(Text(f"{result.rule.name}: skipped: {line}", style="dim"), soft_wrap=True)
        said = f"{len(results) - len(failed)} rules pass, {len(failed)} fail"
        out.print(Text(said, style="bold red" if failed else "green"))
    if interrupted:
        note(f"interrupted after {len(results)} of {len(rules)} rules")
        raise KeyboardInterrupt
    if failed:
        raise Exit(EXIT_CHECK_FAILED)
