"""``mlirules test``: the rules' inline tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape

from mlirules.commands.common import (
    Json,
    Only,
    Skip,
    TrustNative,
    TrustPython,
    Workers,
    note,
    out,
    progress,
    say_json,
    split,
)
from mlirules.commands.options import Argument, BadParameter, Exit, Option
from mlirules.language.faults import EXIT_CHECK_FAILED, MlirulesError

if TYPE_CHECKING:
    from mlirules.drivers.quality.mutation import Mutant, Report
    from mlirules.drivers.quality.ruletest import TestResult
    from mlirules.language.config.op import ConfigRule
    from mlirules.language.rule import Rule

EXAMPLE = "mlirules test torch/to-linalg --only 'torch-mm-*' --devices cpu"


def command(
    paths: Annotated[
        list[str] | None,
        Argument(help="Rule files, folders or shipped rule sets; default: all that ships."),
    ] = None,
    only: Only = None,
    skip: Skip = None,
    devices: Annotated[
        list[str] | None,
        Option(help="Compare numbers on these only: cpu, cpu:znver4, vulkan, cuda; none: nowhere."),
    ] = None,
    no_bounds: Annotated[
        bool,
        Option(
            "--no-bounds",
            help="Do not compare every access of a kernel with the buffer that it goes to.",
        ),
    ] = False,
    verbose: Annotated[bool, Option("--verbose", "-v", help="List what passed.")] = False,
    synthesise: Annotated[
        bool,
        Option(
            "--synthesise",
            help="Make programs from the rules and run them as well: one "
            "that must match, one for each condition; report coverage and mutants.",
        ),
    ] = False,
    update: Annotated[
        bool,
        Option(
            "--update",
            "-u",
            help="Write CHECK lines and reasons that are missing, or no "
            "longer hold, into the rule files.",
        ),
    ] = False,
    workers: Workers = "1",
    trust_native: TrustNative = False,  # noqa: ARG001 - said where it is read
    trust_python: TrustPython = False,  # noqa: ARG001 - said where it is read
    as_json: Json = False,
) -> None:
    """Run the inline tests: FileCheck, unchanged because, numbers.

    They run in processes of their own: one that crashes the compiler or the runtime fails alone. A
    device that is not here is skipped, and the summary says so. Exits with 1 when a test fails.
    """
    if workers != "1" and update:
        raise BadParameter("--workers runs tests, and -u writes them")
    if update:
        _update(paths or [], only, skip)
    sets = [p or _library() for p in paths or [""]]
    if synthesise:
        _synthesise(sets, _chosen(sets, only, skip), devices, workers, verbose, as_json)
        return
    results: list[TestResult] = []
    interrupted = False
    try:
        chosen = _chosen(sets, only, skip)
        results.extend(_run(sets, chosen, devices, not no_bounds, workers))
    except KeyboardInterrupt:  # what is done is told
        interrupted = True
    failed = [r for r in results if not r.passed]
    if as_json:
        say_json([_as_json(r) for r in results])
    else:
        for result in results:
            _show(result, verbose)
        _summary(results, len(failed))
    if interrupted:
        note(f"interrupted after {len(results)} tests")
        raise KeyboardInterrupt
    if failed:
        raise Exit(EXIT_CHECK_FAILED)


def _chosen(
    sets: list[str], only: list[str] | None, skip: list[str] | None
) -> list[Rule | ConfigRule]:
    from mlirules.drivers.apply.engine import select
    from mlirules.drivers.quality.config_test import any_rules

    return select(any_rules(sets), split(only), split(skip))


def _run(
    sets: list[str],
    rules: list[Rule | ConfigRule],
    devices: list[str] | None,
    bounds: bool,
    workers: str,
) -> Iterator[TestResult]:
    from mlirules.drivers.quality.isolated import Setup, run_apart

    wanted = None if devices is None else _devices(split(devices))
    with progress("testing", sum(len(rule.tests) for rule in rules)) as step:
        setup = Setup(tuple(sets), None if wanted is None else tuple(wanted), bounds)
        yield from run_apart(setup, rules, step=step, workers=workers)


def _update(paths: list[str], only: list[str] | None, skip: list[str] | None) -> None:
    from mlirules.drivers.quality.checklines import update
    from mlirules.language.rulefiles import rule_files

    if not paths:
        raise BadParameter("-u changes rule files: say which")
    if only or skip:
        raise BadParameter("-u takes rule files, not --only and --skip")
    for path in paths:
        for file in rule_files(path):
            for said in update(file):
                note(said)


def _synthesise(
    sets: list[str],
    chosen: list[Rule | ConfigRule],
    devices: list[str] | None,
    workers: str,
    verbose: bool,
    as_json: bool,
) -> None:
    from mlirules.drivers.quality.apart import run_mutants
    from mlirules.language.rule import Rule

    rules = [r for r in chosen if isinstance(r, Rule)]
    numbers = devices is None or any(d.startswith("cpu") for d in _devices(split(devices)))
    reports: list[Report] = []
    interrupted = False
    with progress("making programs", len(rules)) as step:
        try:
            for report in run_mutants(sets, rules, numbers, workers, step):
                reports.append(report)
                if not as_json:
                    _show_report(report, verbose)
        except KeyboardInterrupt:  # what is done is told
            interrupted = True
    if as_json:
        say_json([_report(r) for r in reports])
    else:
        _sum_up(reports, len(chosen) - len(rules))
    if interrupted:
        note(f"interrupted after {len(reports)} of {len(rules)} rules")
        raise KeyboardInterrupt
    if any(r.problems for r in reports):
        raise Exit(EXIT_CHECK_FAILED)


def _report(report: Report) -> dict[str, object]:
    made = report.synthesis
    noticed, mutants = report.score
    return {
        "rule": report.rule.name,
        "path": report.rule.path,
        "source": made.source,
        "positive": made.positive and made.positive.text,
        "negatives": [
            {"line": str(n.line), "place": str(n.line.span), "program": n.text}
            for n in made.negatives
            if n.line is not None
        ],
        "missing": [
            {"line": line and str(line), "place": line and str(line.span), "reason": reason}
            for line, reason in made.missing
        ],
        "problems": report.problems,
        "numbers": report.numbers or "compared on cpu",
        "coverage": [
            {"line": str(c.line), "place": str(c.line.span), "true": c.true, "false": c.false}
            for c in report.covered
        ],
        "mutation": {
            "noticed": noticed,
            "mutants": mutants,
            "survivors": [
                {"line": str(m.line), "place": str(m.line.span), "change": m.change}
                | ({"reason": reason} if reason else {})
                for m, reason in _survivors(report)
            ],
        },
    }


def _survivors(report: Report) -> list[tuple[Mutant, str]]:
    """Changes that no test notices, and why none can; empty where the rule does not say."""
    from mlirules.drivers.quality.mutation import reasons

    said = reasons(report.rule.source.text)
    return [
        (m, said.get(m.line.span.line, ""))
        for m in report.mutants
        if m.noticed is None and not m.equivalent
    ]


def _show_report(report: Report, verbose: bool) -> None:
    made = report.synthesis
    noticed, mutants = report.score
    both = sum(bool(c.true and c.false) for c in report.covered)
    bad = report.problems
    head = "[bold red]FAIL[/]" if bad else "[green]ok  [/]"
    out.print(
        f"{head} {escape(report.rule.name)}: {int(made.positive is not None)} program that matches "
        f"(from {made.source or 'nothing'}), {len(made.negatives)} that one condition refuses; "
        f"where lines seen both ways: {both} of {len(report.covered)}; mutants noticed: {noticed} "
        f"of {mutants}",
        highlight=False,
        soft_wrap=True,
    )
    rows = [f"problem: {p}" for p in bad]
    for c in report.covered:
        if not (c.true and c.false):
            never = "true" if not c.true else "false"
            rows.append(f"{c.line.span}: `{c.line}` was never seen {never}")
    rows += [
        f"{m.line.span}: no test notices `{m.line}` {m.change}"
        for m, reason in _survivors(report)
        if not reason
    ]
    if verbose:
        rows += [
            f"{m.line.span}: no test notices `{m.line}` {m.change}: {reason}"
            for m, reason in _survivors(report)
            if reason
        ]
        rows += [
            f"{m.line.span}: `{m.line}` {m.change} makes no difference: the rewrite refuses "
            "the same"
            for m in report.mutants
            if m.equivalent
        ]
        rows += [
            f"{line.span if line else report.rule.path}: no program: {reason}"
            for line, reason in made.missing
        ]
        if report.numbers:
            rows.append(f"numbers not compared: {report.numbers}")
        programs = [made.positive] if made.positive else []
        for program in [*programs, *made.negatives]:
            what = "must match" if program.line is None else f"refused by `{program.line}`"
            rows += [what, *("  " + row for row in program.text.splitlines())]
    for row in rows:
        for line in row.splitlines():
            out.print("     " + line, markup=False, highlight=False, soft_wrap=True)


def _sum_up(reports: list[Report], left_out: int) -> None:
    noticed = sum(r.score[0] for r in reports)
    mutants = sum(r.score[1] for r in reports)
    covered = [c for r in reports for c in r.covered]
    both = sum(bool(c.true and c.false) for c in covered)
    programs = sum(len(r.synthesis.negatives) + (r.synthesis.positive is not None) for r in reports)
    unmade = sum(len(r.synthesis.missing) for r in reports)
    failed = sum(bool(r.problems) for r in reports)
    out.print(
        f"{len(reports)} rules, {failed} failed: {programs} programs made, {unmade} could not be "
        f"(-v says why); {both} of {len(covered)} where lines seen both ways; {noticed} of "
        f"{mutants} mutants noticed",
        style="bold red" if failed else "green",
        highlight=False,
        soft_wrap=True,
    )
    if left_out:
        out.print(f"{left_out} config rules left out: they rewrite nothing", style="yellow")


def _library() -> str:
    from mlirules.language.rulefiles import LIBRARY

    return str(LIBRARY)


def _devices(names: list[str]) -> list[str]:
    from mlirules.drivers.iree.targets import CPU_ARCHITECTURES

    known = ("cpu", *(f"cpu:{name}" for name in CPU_ARCHITECTURES), "vulkan", "cuda", "none")
    for name in names:
        if name not in known:
            raise MlirulesError.at(
                "--devices",
                f"unknown device {name!r}",
                code="device",
                suggestion="known: " + ", ".join(known),
            )
    return [name for name in names if name != "none"]


def _as_json(result: TestResult) -> dict[str, object]:
    return {
        "rule": result.rule.name,
        "path": result.rule.path,
        "test": result.test.name,
        "passed": result.passed,
        "problems": result.problems,
        "skipped": result.skipped,
    }


def _show(result: TestResult, verbose: bool) -> None:
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


def _summary(results: list[TestResult], failed: int) -> None:
    skipped = sorted({s for r in results for s in r.skipped})
    rules = len({r.rule.name for r in results})
    style = "bold red" if failed else "green"
    out.print(
        f"{len(results) - failed} passed, {failed} failed: {rules} rules",
        style=style,
        highlight=False,
    )
    for reason in skipped:
        count = sum(reason in r.skipped for r in results)
        out.print(
            f"skipped in {count} tests: {reason}",
            style="yellow",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
