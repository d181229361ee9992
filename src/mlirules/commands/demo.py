"""``mlirules demo``: a network through the shipped rules, compiled, run, compared with PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.panel import Panel
from rich.text import Text

from mlirules.commands import diff_view as diffview
from mlirules.commands.common import Json, applications_table, out, say_json, table, working
from mlirules.commands.run import compare
from mlirules.language.faults import CheckFailed

EXAMPLE = "mlirules demo"

RTOL, ATOL = 1e-5, 1e-6


def demo_file(name: str) -> Path:
    """One of the demo's files, which ship with the package."""
    from mlirules.language import pipeline

    return Path(pipeline.__file__).resolve().parent / "demo" / name


def command(
    targets: Annotated[
        list[str] | None,
        typer.Option("--target", "-t", help="Targets; default: cpu, and vulkan where it is here."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile and run HelloNNWorld (flatten, linear, relu) with the shipped rules.

    Shows which rules fired, what became of the program, and the results against PyTorch's.
    """
    from mlirules.drivers.irdiff.changes import compare as compare_programs
    from mlirules.drivers.irdiff.provenance import Provenance
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.pipelines.transform import read_program, transform

    model, golden = demo_file("hello_nn_world.mlir"), demo_file("hello_nn_world.npz")
    text = read_program(model)
    done = transform(text, path=model.name, record=True, texts=False)
    found = compare_programs(
        text,
        done.text,
        names=(f"{model.name} (before)", f"{model.name} (after)"),
        provenance=Provenance.of(vars(a) for a in done.outcome.applications),
    )
    chosen, absent = _targets(targets)
    runs = [_run(text, Target.parse(name), golden) for name in chosen]
    problems = [f"{run['target']}: {p}" for run in runs for p in run["problems"]]
    if as_json:
        say_json(
            {
                "applications": dict(done.applications),
                "leftovers": dict(done.leftover_counts),
                "runs": runs,
                "skipped": absent,
                "diff": diffview.plain(found),
            }
        )
        if problems:
            raise typer.Exit(1)
        return
    out.print(
        Panel(
            Text("HelloNNWorld: flatten, linear 784 -> 10, relu, as PyTorch exports it"),
            expand=False,
        )
    )
    _head("1. The shipped rules rewrite it")
    out.print(applications_table(done.outcome))
    left = ", ".join(done.leftovers) or "none"
    out.print(Text(f"torch ops that no rule converts: {left}"))
    _head("2. What became of the program")
    diffview.show(found, limit=60)
    _head("3. Compiled by IREE without its own torch conversion, run, compared with PyTorch")
    rows = [
        (
            run["target"],
            run["bytes"],
            f"{run['largest_difference']:.2g}",
            "differs" if run["problems"] else "equal",
        )
        for run in runs
    ]
    out.print(table(["target", "bytes#", "largest difference#", "verdict"], rows))
    for reason in absent:
        out.print(Text(f"skipped: {reason}", style="yellow"))
    if problems:
        raise CheckFailed("\n".join(problems))
    out.print(Text(f"equal to PyTorch within rtol {RTOL:g}, atol {ATOL:g}", style="bold green"))


def _head(text: str) -> None:
    out.print()
    out.print(Text(text, style="bold cyan"))


def _targets(given: list[str] | None) -> tuple[list[str], list[str]]:
    from mlirules.drivers.iree.targets import Target

    if given:
        return given, []
    reason = Target.parse("vulkan").available()
    return (["cpu", "vulkan"], []) if reason is None else (["cpu"], [reason])


def _run(text: str, target: Any, golden: Path) -> dict[str, Any]:
    from mlirules.drivers.iree import runtime
    from mlirules.drivers.pipelines.transform import compile_program

    with working(f"compiling and running for {target}"):
        binary, _ = compile_program(text, target, path="hello_nn_world.mlir", fallback=False)
        results = runtime.run(binary, runtime.load_npz(golden), target)
    expected = runtime.load_npz(golden, prefix="r")
    worst = max(
        (float(np.max(np.abs(a - b))) for a, b in zip(results, expected, strict=False)), default=0.0
    )
    return {
        "target": target.name,
        "bytes": len(binary),
        "largest_difference": worst,
        "problems": compare(golden, results, RTOL, ATOL),
    }
