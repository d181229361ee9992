"""``mlirules demo``: a BERT through the shipped rules, compiled, run, compared, timed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from rich.panel import Panel
from rich.text import Text

from mlirules.commands.common import Json, out, say_json, table, warn, working
from mlirules.commands.options import Exit, Option
from mlirules.commands.run import compare
from mlirules.language.faults import CheckFailed
from mlirules.support import package

EXAMPLE = "mlirules demo"

RTOL, ATOL = 1e-4, 1e-5

#: Rules that are listed by name; the rest in one line.
_LISTED = 9


def demo_file(name: str) -> Path:
    """One of the demo's files, which ship with the package."""
    return package.SPECS / "demo" / name


def command(
    targets: Annotated[
        list[str] | None,
        Option("--target", "-t", help="Targets; default: cpu, and vulkan where it is here."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile and run a small BERT with the shipped rules.

    Shows what the rules did, the results against PyTorch's, and the time beside what plain
    iree-compile makes of the same program.
    """
    from mlirules.drivers.iree.targets import Target

    chosen, absent = _targets(targets)
    runs = [_run(Target.parse(name)) for name in chosen]
    problems = [f"{run['target']}: {p}" for run in runs for p in run["problems"]]
    if as_json:
        say_json({"runs": runs, "skipped": absent})
        if problems:
            raise Exit(1)
        return
    said = "A BERT of two layers (BERT-tiny's shape, random weights), as PyTorch exports it"
    out.print(Panel(Text(said), expand=False))
    _head("1. What the shipped rules did")
    _show_rules(runs[0])
    _head("2. Compiled, compared with PyTorch's results, timed in turns with stock IREE's")
    rows = [
        (
            run["target"],
            "differs" if run["problems"] else "equal",
            f"{run['largest_difference']:.1g}",
            run["bytes"],
            *(("-", "-", run["untimed"]) if "untimed" in run else _times(run)),
        )
        for run in runs
    ]
    columns = ["target", "results", "apart#", "bytes#", "ms#", "stock ms#", "times as fast"]
    out.print(table(columns, rows))
    for reason in absent:
        out.print(Text(f"skipped: {reason}", style="yellow"))
    if problems:
        raise CheckFailed("\n".join(problems))
    out.print(Text(f"equal to PyTorch within rtol {RTOL:g}, atol {ATOL:g}", style="bold green"))


def _times(run: dict[str, Any]) -> tuple[str, str, str]:
    return f"{run['ms']:.3f}", f"{run['stock_ms']:.3f}", run["ratio"]


def _show_rules(run: dict[str, Any]) -> None:
    counts = sorted(run["applications"].items(), key=lambda item: -item[1])
    rows: list[tuple[object, str]] = [(n, rule) for rule, n in counts[:_LISTED]]
    rest = counts[_LISTED:]
    if rest:
        rows.append((sum(n for _, n in rest), f"by {len(rest)} other rules"))
    out.print(table(["applied#", "rule"], rows))
    left = ", ".join(run["leftovers"]) or "none"
    out.print(Text(f"{run['ops']} torch ops before; left to IREE: {left}"))


def _head(text: str) -> None:
    out.print()
    out.print(Text(text, style="bold cyan"))


def _targets(given: list[str] | None) -> tuple[list[str], list[str]]:
    from mlirules.drivers.iree.targets import Target

    if given:
        return given, []
    reason = Target.parse("vulkan").available()
    return (["cpu", "vulkan"], []) if reason is None else (["cpu"], [reason])


def _run(target: Any) -> dict[str, Any]:
    from mlirules.drivers.apply.engine import leftovers
    from mlirules.drivers.apply.programs import load_program
    from mlirules.drivers.iree import compiler, npz, runtime
    from mlirules.drivers.measure import child
    from mlirules.drivers.pipelines.transform import compile_program

    model, golden = demo_file("bert.mlirbc"), demo_file("bert.npz")
    inputs = npz.load(golden)
    source = load_program(model)
    ops = sum(leftovers(source.module).values())
    with working(f"compiling for {target}"):
        binary, done = compile_program(source, target, path=model.name, fallback=False)
    for said in done.notes:
        warn(said)
    with working(f"running on {target}"):
        results = runtime.run(binary, inputs, target)
    expected = npz.load(golden, prefix="r")
    report: dict[str, object] = {
        "target": target.name,
        "ops": ops,
        "applications": dict(done.applications),
        "leftovers": done.leftovers,
        "bytes": len(binary),
        "largest_difference": max(
            (float(abs(a - b).max()) for a, b in zip(results, expected, strict=False)),
            default=0.0,
        ),
        "problems": compare(golden, results, RTOL, ATOL),
    }
    try:
        with working(f"compiling for {target} by plain iree-compile"):
            stock = compiler.compile_module(load_program(model), target, path=model.name)
    except compiler.CompileError as error:
        report["untimed"] = f"stock IREE does not compile it: {error.faults[0].message:.60}"
        return report
    with working(f"timing on {target}"):
        found = child.compare(
            {"stock": stock, "rules": binary}, inputs, target, child.Budget(seconds=3.0)
        )
    timings = found.comparison.timings
    report["ms"], report["stock_ms"] = (1e3 * timings[n].median for n in ("rules", "stock"))
    report["ratio"] = str(found.comparison.ratio("rules"))
    return report
