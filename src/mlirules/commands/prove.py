"""``mlirules prove``: whether both sides of a rule are equal for all sizes."""

from __future__ import annotations

from typing import Annotated, Any

from rich.text import Text

from mlirules.commands.common import Json, out, progress, say_json
from mlirules.commands.options import Argument, Exit, Option
from mlirules.language.faults import EXIT_CHECK_FAILED, MlirulesError

EXAMPLE = "mlirules prove torch/fusions/matmul"

_STYLES = {"proven": "green", "bounded": "cyan", "undecided": "yellow"}


def command(
    paths: Annotated[
        list[str],
        Argument(help="Rule files, folders or shipped rule sets."),
    ],
    timeout: Annotated[
        float, Option(min=0.1, help="Seconds for one rule; then what is proven is the bound.")
    ] = 30.0,
    as_json: Json = False,
) -> None:
    """Prove rules: both sides as equations over indices, equal for all sizes and ranks to 6.

    What the ops mean is said by the conversion rules that ship. Floats are computed with as real
    numbers, integers modulo two to the power of their width. A verdict is proven, bounded (for the
    ranks, sizes or cases that it names) or undecided (with the line and the reason): what is not
    modelled never makes a proof. Exits with 1 where a rule is undecided.
    """
    proof = _proof()
    rules = [r for r in proof.library(paths) if r.kind != "kernel"]
    meanings = proof.meanings()
    found: list[Any] = []
    with progress("proving", len(rules)) as step:
        for rule in rules:
            verdict = proof.prove(rule, meanings, timeout=timeout)
            found.append(verdict)
            step(rule.name)
            if not as_json:
                _show(verdict)
    if as_json:
        say_json([v.data() for v in found])
    else:
        counts = {w: sum(v.verdict == w for v in found) for w in _STYLES}
        out.print(", ".join(f"{n} {w}" for w, n in counts.items() if n), highlight=False)
    if any(v.verdict == "undecided" for v in found):
        raise Exit(EXIT_CHECK_FAILED)


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


def _show(verdict: Any) -> None:
    said = "" if verdict.verdict == "proven" else f": {verdict.reason}"
    where = f"\n  at {verdict.line.span}" if verdict.line is not None and said else ""
    how = ""
    if verdict.verdict != "undecided":
        how = " (bit for bit)" if verdict.exact else " (over the reals)"
    text = Text(verdict.verdict, style=_STYLES[verdict.verdict])
    text.append(f" {verdict.rule}{how}{said}{where}", style="default")
    out.print(text, soft_wrap=True)
