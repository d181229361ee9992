"""``mlirules verify``: a program with and without rules, on inputs that include the edges."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from mlirules.commands.common import (
    Json,
    Line,
    Only,
    Rules,
    Skip,
    cost_settings,
    note,
    out,
    pipeline_for,
    progress,
    say_json,
    split,
    table,
    warn,
    working,
)
from mlirules.language.faults import EXIT_CHECK_FAILED, MlirulesError

if TYPE_CHECKING:
    from mlirules.drivers.quality.verify import Report, Settings

EXAMPLE = "mlirules verify model.mlir --rules torch/to-linalg --targets cpu,vulkan"


def command(
    model: Annotated[Path | None, typer.Argument(help="The program, MLIR text.")] = None,
    rules: Rules = None,
    pipeline: Line = None,
    driver: Annotated[str, typer.Option(help="--rules: greedy, walk or conversion.")] = "greedy",
    only: Only = None,
    skip: Skip = None,
    targets: Annotated[
        list[str] | None, typer.Option("--targets", "-t", help="Where to run; default: cpu.")
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(help="Values for the `?` dims in order: 1,4; repeat for several runs."),
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="An .npz with inputs a0..: only these.")
    ] = None,
    rtol: Annotated[float | None, typer.Option(min=0, help="Relative tolerance.")] = None,
    atol: Annotated[float | None, typer.Option(min=0, help="Absolute tolerance.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the inputs.")] = 0,
    reference: Annotated[
        str, typer.Option(help="Asked first: compiler (without rules) or torch.")
    ] = "compiler",
    save: Annotated[Path, typer.Option(help="Where a counterexample goes.")] = Path(
        "counterexample"
    ),
    rule_gate: Annotated[
        list[str] | None,
        typer.Option("--rule-gate", help="No program: the tests of these rules, on edge values."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare numbers with and without rules: random inputs, NaN, infinities, -0.0, denormals.

    Exits with 1 when a result differs; the counterexample is reduced and saved with the command
    that repeats it.
    """
    from mlirules.drivers.iree.targets import Target

    chosen = [Target.parse(name) for name in split(targets) or ["cpu"]]
    if rule_gate is not None:
        _gate(rule_gate, chosen, only, skip, as_json)
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
    line = None if rules is not None else pipeline_for(pipeline, chosen[0].name)
    stages = stages_for(rules, line, driver, split(only), split(skip))
    settings = _settings(chosen, sizes, inputs, rtol, atol, seed, reference)
    named = pipeline or (line.pipeline if line is not None else "")
    options = _options(rules, named, driver, only, skip)
    costs = cost_settings(chosen[0].name, False, line.flags if line is not None else ())
    _verify(model, stages, settings, save, as_json, options, costs)


def stages_for(
    rules: list[str] | None, line: Any, driver: str, only: list[str], skip: list[str]
) -> list[Any]:
    """The torch stages that rules or, without them, the pipeline ``line`` stand for."""
    from mlirules.language.pipeline import Stage

    if rules is None:
        stages = [s for s in line.stages if s.phase == "torch"]
        if not (only or skip):
            return stages
        from mlirules.commands.apply import _filtered

        return _filtered(stages, only, skip)
    if driver not in ("greedy", "walk", "conversion"):
        raise MlirulesError.at(
            "--driver",
            f"unknown driver {driver!r}",
            code="driver",
            suggestion="greedy, walk or conversion",
        )
    chosen: Any = driver
    return [Stage(phase="torch", rules=split(rules), driver=chosen, only=only, skip=skip)]


def _settings(
    targets: list[Any],
    sizes: list[str] | None,
    inputs: Path | None,
    rtol: float | None,
    atol: float | None,
    seed: int,
    reference: str,
) -> Settings:
    from mlirules.drivers.iree import runtime
    from mlirules.drivers.quality.verify import Settings, Tolerance

    try:
        given = [tuple(int(n) for n in s.split(",") if n) for s in sizes or ()]
    except ValueError:
        raise MlirulesError.at(
            "--sizes", f"not numbers: {sizes}", code="sizes", suggestion="--sizes 1,4 --sizes 7,3"
        ) from None
    arrays = runtime.load_npz(inputs) if inputs is not None else None
    return Settings(
        targets,
        given or [(), (1,), (5,)],
        Tolerance(rtol, atol),
        seed,
        inputs=arrays,
        first=reference,
    )


def _options(
    rules: list[str] | None,
    pipeline: str,
    driver: str,
    only: list[str] | None,
    skip: list[str] | None,
) -> list[str]:
    words = [w for r in rules or () for w in ("--rules", r)] or ["--pipeline", pipeline]
    if rules:
        words += ["--driver", driver]
    words += [w for g in only or () for w in ("--only", g)]
    return words + [w for g in skip or () for w in ("--skip", g)]


def _verify(
    model: Path,
    stages: list[Any],
    settings: Settings,
    save: Path,
    as_json: bool,
    options: list[str],
    costs: Any,
) -> None:
    from mlirules.drivers.measure import numerics
    from mlirules.drivers.pipelines.transform import read_program, transform
    from mlirules.drivers.quality import reduce as reducing
    from mlirules.drivers.quality.verify import verify

    text = read_program(model)
    _, arguments = numerics.signature(text)
    if not any(d is None for shape, _ in arguments for d in shape):
        settings.sizes = [()]
    done = transform(text, path=str(model), stages=stages, costs=costs)
    if not done.outcome.total:
        warn(f"NOTHING APPLIED to {model}: the program is compared with itself")
    with working(f"verifying {model}"):
        report = verify(text, done.text, settings)
    saved: list[Path] = []
    if report.counterexample is not None and settings.inputs is None:
        with working("reducing the counterexample"):
            reduced = reducing.reduce(
                report.counterexample,
                lambda t: transform(t, stages=stages, costs=costs).text,
                settings,
            )
        words = [
            "mlirules",
            "verify",
            str(save / "program.mlir"),
            *options,
            "--targets",
            report.counterexample.comparison.target,
            "--inputs",
            str(save / "inputs.npz"),
            "--reference",
            settings.first,
        ]
        saved = reducing.save(save, reduced, report.counterexample, shlex.join(words))
        if not as_json:
            note(f"reduced from {reduced.ops_before} to {reduced.ops_after} ops: {save}")
            note(f"repeat with: {shlex.join(words)}")
    if as_json:
        say_json(
            {
                "passed": report.passed,
                "applied": done.outcome.total,
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
        raise typer.Exit(EXIT_CHECK_FAILED)


def _show(report: Report) -> None:
    rows = []
    for c in report.comparisons:
        verdict = "ok" if c.passed else "differs"
        if c.passed and c.zero_signs:
            verdict = f"ok ({c.zero_signs} zeros of the other sign)"
        rows.append(
            (
                c.target,
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
            where = f"{c.target}, {c.inputs}, result {c.result}, against {c.reference}"
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
    targets: list[Any],
    only: list[str] | None,
    skip: list[str] | None,
    as_json: bool,
) -> None:
    from mlirules.drivers.apply.engine import select
    from mlirules.drivers.pipelines.transform import rule_set
    from mlirules.drivers.quality.gate import run_gate

    rules = select(list(rule_set(tuple(split(paths)))), split(only), split(skip))
    results = []
    with progress("verifying", len(rules)) as step:
        for rule in rules:
            step(rule.name)
            results.append(run_gate(rule, targets))
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
    if failed:
        raise typer.Exit(EXIT_CHECK_FAILED)
