"""``mlirules test``: the rules' inline tests."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape

from mlirules.commands.common import Json, Only, Skip, out, progress, say_json, split
from mlirules.rules.faults import EXIT_CHECK_FAILED, MlirulesError

EXAMPLE = "mlirules test torch/to-linalg --only 'torch-mm-*' --devices cpu"


def command(
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Rule files, folders or shipped rule sets; default: all that ships."),
    ] = None,
    only: Only = None,
    skip: Skip = None,
    devices: Annotated[
        list[str] | None,
        typer.Option(help="Compare numbers on these only: cpu, vulkan, cuda; none: nowhere."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List what passed.")] = False,
    as_json: Json = False,
) -> None:
    """Run the inline tests: FileCheck, unchanged because, numbers.

    A device that is not here is skipped, and the summary says so. Exits with 1 when a test fails.
    """
    results = _run(paths or [""], only, skip, devices)
    failed = [r for r in results if not r.passed]
    if as_json:
        say_json([_as_json(r) for r in results])
    else:
        for result in results:
            _show(result, verbose)
        _summary(results, len(failed))
    if failed:
        raise typer.Exit(EXIT_CHECK_FAILED)


def _run(
    paths: list[str], only: list[str] | None, skip: list[str] | None, devices: list[str] | None
) -> list[Any]:
    from mlirules.drivers.configtest import any_rules, run_any_test
    from mlirules.drivers.engine import select

    wanted = None if devices is None else _devices(split(devices))
    rules = select(any_rules([p or _library() for p in paths]), split(only), split(skip))
    results = []
    with progress("testing", sum(len(rule.tests) for rule in rules)) as step:
        for rule in rules:
            for test in rule.tests:
                step(rule.name)
                results.append(run_any_test(rule, test, devices=wanted))
    return results


def _library() -> str:
    from mlirules.rules.loader import LIBRARY

    return str(LIBRARY)


def _devices(names: list[str]) -> list[str]:
    known = ("cpu", "vulkan", "cuda", "none")
    for name in names:
        if name not in known:
            raise MlirulesError.at(
                "--devices", f"unknown device {name!r}", code="device",
                suggestion="known: " + ", ".join(known),
            )  # fmt: skip
    return [name for name in names if name != "none"]


def _as_json(result: Any) -> dict[str, object]:
    return {
        "rule": result.rule.name, "path": result.rule.path, "test": result.test.name,
        "passed": result.passed, "problems": result.problems, "skipped": result.skipped,
    }  # fmt: skip


def _show(result: Any, verbose: bool) -> None:
    name = escape(f"{result.rule.name}: {result.test.name}")
    if result.passed:
        if verbose:
            skips = escape(f"  (skipped {'; '.join(result.skipped)})") if result.skipped else ""
            out.print(f"[green]ok  [/] {name}{skips}", highlight=False, soft_wrap=True)
        return
    out.print(f"[bold red]FAIL[/] {name}", highlight=False, soft_wrap=True)
    for problem in result.problems:
        for line in problem.splitlines():
            out.print("     " + line, markup=False, highlight=False, soft_wrap=True)


def _summary(results: list[Any], failed: int) -> None:
    skipped = sorted({s for r in results for s in r.skipped})
    rules = len({r.rule.name for r in results})
    style = "bold red" if failed else "green"
    out.print(f"{len(results) - failed} passed, {failed} failed: {rules} rules", style=style,
              highlight=False)  # fmt: skip
    for reason in skipped:
        count = sum(reason in r.skipped for r in results)
        out.print(f"skipped in {count} tests: {reason}", style="yellow", markup=False,
                  highlight=False, soft_wrap=True)  # fmt: skip
