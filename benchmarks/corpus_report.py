"""The figures of a corpus run, as tables, as JSON, and for one program in full."""

import difflib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace

from corpus_data import Program
from corpus_worker import Judged, Row, judge, signature_flags, transform
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlirules.drivers.iree.compiler import Job
from mlirules.language.faults import (
    EXIT_CHECK_FAILED,
    EXIT_DONE,
    MlirulesError,
    did_you_mean,
)

SOME_FAILURES = 15


@dataclass(frozen=True)
class Done:
    """A finished row with the program it is about."""

    program: Program
    variant: str
    row: Row


@dataclass
class Summary:
    """The figures of one variant. `passes` counts by mode; lists hold program names, sorted."""

    programs: int = 0
    passes: Counter[str] = field(default_factory=Counter)
    measured: Counter[str] = field(default_factory=Counter)
    known_passes: int = 0
    unlike_index: list[str] = field(default_factory=list)
    converted: int = 0
    conversions: int = 0
    regressions: list[str] = field(default_factory=list)
    gains: list[str] = field(default_factory=list)
    blocked: dict[str, list[str]] = field(default_factory=dict)
    alone: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, Row]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def seconds_each(self, mode: str) -> float:
        """The mean over the programs, in seconds of one worker."""
        return self.seconds[mode] / max(1, self.measured[mode])


def summarise(done: Iterable[Done]) -> dict[str, Summary]:
    """The figures by variant."""
    by_program: dict[str, dict[str, list[Done]]] = defaultdict(lambda: defaultdict(list))
    for item in done:
        by_program[item.variant][item.program.name].append(item)
    summaries = {}
    for variant, programs in by_program.items():
        summary = summaries[variant] = Summary(programs=len(programs))
        for name, items in sorted(programs.items()):
            _count(summary, name, variant, items)
        summary.blocked = dict(sorted(summary.blocked.items(), key=lambda b: (-len(b[1]), b[0])))
    return summaries


def _count(summary: Summary, name: str, variant: str, items: Sequence[Done]) -> None:
    rows = {item.row.mode: item.row for item in items}
    for mode, row in rows.items():
        summary.measured[mode] += 1
        summary.seconds[mode] += row.seconds
        if row.outcome == "pass":
            summary.passes[mode] += 1
        elif row.outcome not in ("leftover", "converted"):
            summary.failures.append((name, row))
    converting = rows.get("rules") or rows.get("convert")
    if converting is not None:
        summary.conversions += 1
        if converting.outcome == "leftover":
            blockers = _blockers(converting.leftovers)
            for op in blockers:
                summary.blocked.setdefault(op, []).append(name)
            if len(blockers) == 1:
                summary.alone[blockers[0]] += 1
        elif converting.outcome != "transform":
            summary.converted += 1
    builtin, fallback = rows.get("builtin"), rows.get("fallback")
    known = items[0].program.variants[variant].known
    summary.known_passes += known == "pass"
    if builtin is not None and known and (builtin.outcome == "pass") != (known == "pass"):
        summary.unlike_index.append(name)
    if builtin is not None and fallback is not None:
        if builtin.outcome == "pass" and fallback.outcome != "pass":
            summary.regressions.append(name)
        elif fallback.outcome == "pass" and builtin.outcome != "pass":
            summary.gains.append(name)


def _blockers(leftovers: Sequence[str]) -> list[str]:
    """The ops among `leftovers` that need a rule: constants and lists stay while a user stays."""
    carried = ("torch.constant.", "torch.prim.ListConstruct")
    return [op for op in leftovers if not op.startswith(carried)] or list(leftovers)


def show(
    console: Console, summaries: dict[str, Summary], target: str, *, all_failures: bool, ops: int
) -> None:
    """Print the tables: figures by variant, ops that are left, failures."""
    table = Table(title=f"torch corpus on {target}")
    table.add_column("variant")
    for heading in (
        "programs",
        "builtin pass",
        "fallback pass",
        "rules pass",
        "converted by rules",
        "regressions",
        "gains",
        "seconds each",
    ):
        table.add_column(heading, justify="right")
    for variant, s in summaries.items():
        both = s.measured["builtin"] and s.measured["fallback"]
        table.add_row(
            variant,
            str(s.programs),
            *(_of(s.passes[mode], s.measured[mode]) for mode in ("builtin", "fallback", "rules")),
            _of(s.converted, s.conversions),
            str(len(s.regressions)) if both else "-",
            str(len(s.gains)) if both else "-",
            "\n".join(f"{mode} {s.seconds_each(mode):.2f}" for mode in sorted(s.measured)),
        )
    console.print(table)
    for variant, s in summaries.items():
        if s.unlike_index and target == "cpu":  # what the index says is of llvm-cpu
            console.print(
                f"{variant}: builtin unlike the index: {', '.join(s.unlike_index[:20])}"
                + (" ..." if len(s.unlike_index) > 20 else "")
            )
        for what, names in (("regressions", s.regressions), ("gains", s.gains)):
            if names:
                console.print(f"[bold]{variant}: {what}[/]: {', '.join(names)}", highlight=False)
        _show_ops(console, variant, s, ops)
        _show_failures(console, variant, s, all_failures)


def _of(count: int, total: int) -> str:
    return f"{count} ({count / total:.1%})" if total else "-"


def _show_ops(console: Console, variant: str, summary: Summary, ops: int) -> None:
    if not summary.blocked:
        return
    table = Table(title=f"{variant}: ops that the rules leave ({len(summary.blocked)} in all)")
    table.add_column("op")
    table.add_column("programs", justify="right")
    table.add_column("alone", justify="right")
    table.add_column("for example")
    for op, names in list(summary.blocked.items())[:ops]:
        table.add_row(op, str(len(names)), str(summary.alone[op]), ", ".join(names[:2]))
    console.print(table)


def _show_failures(console: Console, variant: str, summary: Summary, everything: bool) -> None:
    if not summary.failures:
        return
    # Failures that only the rules have come first: they are the ones to mend.
    order = {"rules": 0, "convert": 0, "fallback": 1, "builtin": 2}
    merged: dict[tuple[str, str, str], list[str]] = {}
    for name, row in sorted(summary.failures, key=lambda f: (order[f[1].mode], f[0])):
        merged.setdefault((name, row.outcome, row.why), []).append(row.mode)
    shown = list(merged.items())
    table = Table(title=f"{variant}: failures ({len(shown)})")
    for heading in ("program", "mode", "outcome", "why"):
        table.add_column(heading, overflow="fold")
    for (name, outcome, why), modes in shown if everything else shown[:SOME_FAILURES]:
        table.add_row(name, ",".join(modes), outcome, Text(why[:300]))
    console.print(table)
    if not everything and len(shown) > SOME_FAILURES:
        console.print(f"... and {len(shown) - SOME_FAILURES} more: --failures lists them all")


def as_json(summaries: dict[str, Summary], done: Iterable[Done], target: str) -> str:
    """The figures and every row as JSON text."""
    figures = {}
    for variant, s in summaries.items():
        figures[variant] = {
            "programs": s.programs,
            "pass": dict(s.passes),
            "measured": dict(s.measured),
            "converted": s.converted,
            "regressions": s.regressions,
            "gains": s.gains,
            "leftovers": {op: len(names) for op, names in s.blocked.items()},
            "seconds": {mode: round(s.seconds_each(mode), 4) for mode in s.measured},
        }
    rows = [{"program": d.program.name, "variant": d.variant, **asdict(d.row)} for d in done]
    return json.dumps({"target": target, "variants": figures, "rows": rows}, indent=1) + "\n"


def show_program(
    console: Console,
    programs: Sequence[Program],
    name: str,
    variant: str,
    job: Job,
    pipeline: str | None,
) -> int:
    """Print everything about one program, compiled as the job says; returns the exit code."""
    target = job.target
    by_name = {program.name: program for program in programs}
    if name not in by_name:
        raise MlirulesError.at(
            "--show", f"no program {name!r}", code="only", suggestion=did_you_mean(name, by_name)
        )
    program = by_name[name]
    if variant not in program.variants:
        raise MlirulesError.at("--show", f"{name!r} has no variant {variant!r}", code="only")
    text = program.text(variant)
    _section(console, f"{variant}/{name}: before", _short(text))
    job = replace(job, flags=(*job.flags, *signature_flags(target, text)))
    outcomes = [_section_judged(console, program, variant, "builtin", text, job)]
    try:
        done = transform(text, pipeline or target.kind, str(program.path(variant)), target)
    except MlirulesError as error:
        _section(console, "the rules fail", str(error))
        return EXIT_CHECK_FAILED
    _section(console, "after the rules", _short(done.text))
    _section(console, "torch ops left", "\n".join(done.leftovers) or "none: converted by rules")
    mode = "fallback" if done.leftovers else "rules"
    job = replace(job, flags=(*done.flags, *job.flags))
    outcomes.append(_section_judged(console, program, variant, mode, done.text, job))
    return EXIT_DONE if outcomes[-1].outcome == "pass" else EXIT_CHECK_FAILED


def _section(console: Console, title: str, body: str) -> None:
    console.rule(title)
    console.print(Text(body), soft_wrap=True)


def _short(text: str) -> str:
    body, found, resources = text.partition("\n{-#")
    return body + (f"\n... {len(resources)} characters of resources" if found else "")


def _section_judged(
    console: Console, program: Program, variant: str, mode: str, text: str, job: Job
) -> Judged:
    verdict = judge(program, variant, text, job, isolated=True)
    body = verdict.outcome + (f": {verdict.why}" if verdict.why else "")
    if verdict.detail:
        body += "\n" + verdict.detail[:4000]
    if verdict.outcome == "numerics":
        body += "\n" + _numbers(program, variant, verdict)
    _section(console, mode, body)
    return verdict


def _numbers(program: Program, variant: str, verdict: Judged) -> str:
    """The golden results and those that came, as a diff."""
    lines: list[str] = []
    indexes = program.variants[variant].result_index
    for number, (index, want) in enumerate(zip(indexes, program.golden(), strict=True)):
        if index < len(verdict.results):
            got = verdict.results[index]
            lines += difflib.unified_diff(
                f"{want.dtype}{list(want.shape)}\n{want}".splitlines(),
                f"{got.dtype}{list(got.shape)}\n{got}".splitlines(),
                f"golden {number}",
                f"result {number}",
                lineterm="",
                n=1,
            )
    return "\n".join(lines[:80])
