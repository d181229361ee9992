"""``mlirules prove``: whether both sides of a rule are equal for all sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from rich.text import Text

from mlirules.commands.common import Json, out, progress, say, say_json
from mlirules.commands.options import Argument, Exit, Option
from mlirules.language.faults import EXIT_CHECK_FAILED, Fault, MlirulesError, Span

EXAMPLE = "mlirules prove torch/fusions/matmul"

#: Seconds for one rule where none are given.
SECONDS = 60.0

_STYLES = {"proven": "green", "bounded": "cyan", "refuted": "red", "undecided": "yellow"}


def command(
    paths: Annotated[
        list[str],
        Argument(help="Rule files, folders or shipped rule sets."),
    ],
    timeout: Annotated[
        float, Option(min=0.1, help="Seconds for one rule; then what is proven is the bound.")
    ] = SECONDS,
    fresh: Annotated[
        bool, Option("--fresh", help="Prove again what nothing has changed of.")
    ] = False,
    store: Annotated[
        bool, Option("--store", help="Write the verdicts to those that ship with the rules.")
    ] = False,
    run: Annotated[
        bool, Option("--run", help="Run all that is not bit for bit equal: special values, too.")
    ] = False,
    no_run: Annotated[
        bool, Option("--no-run", help="Compile nothing, not even where the forms differ.")
    ] = False,
    conditions: Annotated[
        bool, Option("--conditions", help="Prove without each condition: which is needed?")
    ] = False,
    as_json: Json = False,
) -> None:
    """Prove rules: both sides as equations over indices, equal for all sizes and ranks to 6.

    What the ops mean is said by the conversion rules that ship. Floats are computed with as real
    numbers, integers modulo two to the power of their width. A verdict is proven, bounded (for the
    ranks, sizes or cases that it names) or undecided (with the line and the reason): what is not
    modelled never makes a proof. Verdicts are kept; one is taken again as long as neither the rule
    nor what says what its ops mean has changed. Exits with 1 where a rule is undecided.
    """
    found: list[dict[str, object]] = []
    for verdict in verdicts(
        paths, timeout, fresh=fresh, run=run, no_run=no_run, conditions=conditions
    ):
        found.append(verdict)
        if not as_json:
            _show(verdict)
    if store:
        from mlirules.drivers.prove import verdicts as kept
        from mlirules.drivers.prove.prove import library
        from mlirules.language.rulefiles import LIBRARY

        kept.ship(found, [r.name for r in library([str(LIBRARY)])])
    if as_json:
        say_json([{k: v for k, v in f.items() if k not in ("own", "full")} for f in found])
    else:
        counts = {w: sum(v["verdict"] == w for v in found) for w in _STYLES}
        out.print(", ".join(f"{n} {w}" for w, n in counts.items() if n), highlight=False)
        if store:
            say(f"{len(found)} verdicts written to {kept.FILE}")
    if any(v["verdict"] in ("undecided", "refuted") for v in found):
        raise Exit(EXIT_CHECK_FAILED)


def verdicts(
    paths: list[str],
    timeout: float,
    *,
    fresh: bool = False,
    run: bool = False,
    no_run: bool = False,
    conditions: bool = False,
) -> Iterator[dict[str, Any]]:
    """The verdict on each rule, as data with its hashes, one after the other."""
    proof = _proof()
    from mlirules.drivers.prove import verdicts as kept

    rules = [r for r in proof.library(paths) if r.kind != "kernel"]
    meanings = proof.meanings()
    hashes = kept.Hashes.of(meanings)
    shipped = {} if fresh else kept.shipped()
    with progress("proving", len(rules)) as step:
        for rule in rules:
            full = hashes.full(rule)
            entry = shipped.get(rule.name)
            data = None
            if entry is not None and entry["full"] == full and entry["verdict"] == "proven":
                data = {"rule": rule.name, **entry, "seconds": 0.0}
            if run or conditions:
                data = None
            elif data is None and not fresh:
                data = kept.recalled(full, timeout)
            if data is None:
                verdict = proof.prove(rule, meanings, timeout=timeout)
                if not no_run and (verdict.different or (run and not verdict.exact)):
                    verdict = proof.refuted(rule, verdict)
                if conditions and verdict.verdict == "proven":
                    verdict.unneeded = proof.unneeded(rule, meanings, timeout=timeout)
                data = verdict.data()
                data |= {"own": kept.own_hash(rule), "full": full}
                kept.keep(full, data, timeout)
            data.pop("timeout", None)
            step(rule.name)
            yield data


def faults(paths: list[str], timeout: float = SECONDS) -> list[Fault]:
    """For ``check --prove``: rules that are refuted, and those that nothing is known of."""
    return [
        Fault(
            _span(verdict),
            f"not-{'equal' if verdict['verdict'] == 'refuted' else 'proven'}",
            verdict["reason"],
            severity="error" if verdict["verdict"] == "refuted" else "note",
        )
        for verdict in verdicts(paths, timeout)
        if verdict["verdict"] in ("refuted", "undecided")
    ]


def _span(verdict: dict[str, Any]) -> Span:
    """Where a verdict stands."""
    path, line, column = [*str(verdict.get("line", "")).rsplit(":", 2), "", ""][:3]
    if line.isdigit() and column.isdigit():
        return Span(path, int(line), int(column))
    return Span(verdict["rule"])


def _proof() -> Any:
    try:
        import z3  # noqa: F401
    except ImportError:
        raise MlirulesError.at(
            "mlirules prove",
            "needs the solver z3, which is not installed",
            code="no-solver",
            suggestion="pip install 'mlirules[prove]'",
        ) from None
    from mlirules.drivers.prove import prove

    return prove


def _show(verdict: dict[str, Any]) -> None:
    word = verdict["verdict"]
    said = "" if word == "proven" else f": {verdict['reason']}"
    where = f"\n  at {verdict['line']}" if "line" in verdict and said else ""
    how = f" ({verdict['arithmetic']})" if word in ("proven", "bounded") else ""
    text = Text(word, style=_STYLES[word])
    text.append(f" {verdict['rule']}{how}{said}{where}", style="default")
    out.print(text, soft_wrap=True)
    for condition in verdict.get("unneeded", ()):
        out.print(Text(f"  not needed for equality: {condition}"), soft_wrap=True)
