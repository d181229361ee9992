"""Programs and inputs on which a rule's two sides differ: found by running both.

The programs are those of the rule's own tests, and one that is made to match. Each is compiled
as it is and rewritten, and both are run on the CPU on the inputs of ``verify``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlirules.language.faults import MlirulesError
from mlirules.language.rule import Rule

if TYPE_CHECKING:
    from mlirules.drivers.apply.session import Session

#: Programs of one rule that are run.
PROGRAMS = 3


@dataclass
class Trial:
    """What running a rule's programs showed."""

    #: How many programs were run, before and after.
    ran: int = 0
    #: The program, the inputs and what differs, on ordinary numbers; None: nothing.
    refuted: dict[str, Any] | None = None
    #: What differs on NaN, infinities, signed zeros or extreme numbers alone.
    special: str | None = None


def tried(rule: Rule, *, seconds: float = 60.0, session: Session | None = None) -> Trial:
    """Run a rule's programs with and without it. ``seconds``: for one compilation or run.

    Without ``session`` it is that of this thread.
    """
    from mlirules.drivers.apply.session import current
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.quality.verify import Settings, Tolerance, verify

    out = Trial()
    cpu = Target.parse("cpu")
    for text, after, run in _programs(rule, session or current()):
        settings = Settings(
            [cpu],
            tolerance=Tolerance(run.rtol, run.atol) if run is not None else Tolerance(),
            seed=run.seed if run is not None else 0,
            low=run.low if run is not None else -2.0,
            high=run.high if run is not None else 2.0,
            sizes=run.sizes if run is not None and run.sizes else ((),),
            timeout=seconds,
            isolated=True,
        )
        try:
            report = verify(text, after, settings)
        except MlirulesError:
            continue  # it does not compile: nothing was computed that could differ
        out.ran += bool(report.comparisons)
        wrong = [c for c in report.comparisons if not c.passed and c.elements]
        plain = [c for c in wrong if c.inputs == _random()]
        if plain:
            found = report.counterexample
            assert found is not None
            out.refuted = {
                "program": text,
                "inputs": [a.tolist() for a in found.inputs] if _small(found.inputs) else None,
                "difference": plain[0].message,
            }
            return out
        if wrong and out.special is None:
            out.special = f"differ on {wrong[0].inputs}: {wrong[0].message}"
    return out


def _random() -> str:
    from mlirules.drivers.quality.verify import RANDOM

    return RANDOM


def _small(inputs: list[Any]) -> bool:
    return bool(sum(a.size for a in inputs) <= 1000)


def _programs(rule: Rule, session: Session) -> Iterator[tuple[str, str, Any]]:
    """Programs that the rule applies to, rewritten, and how their tests compare them.

    Those that its tests say it must leave come first: it applies to them by mistake.
    """
    count = 0
    runs = [t.run for t in rule.tests if t.run is not None and "cpu" in t.run.devices]
    left = [(t.unchanged, runs[0] if runs else None) for t in rule.tests if t.unchanged]
    right = [(t.input, t.run) for t in rule.tests if t.input and t.run in runs]
    for text, run in (*left, *right):
        after = _rewritten(rule, text, session)
        if after is not None:
            yield text, after, run
            count += 1
            if count >= PROGRAMS:
                return
    if count:
        return
    from mlirules.drivers.quality.synthesis import synthesise

    made = synthesise(rule)
    if made.positive is not None:
        after = _rewritten(rule, made.positive.text, session)
        if after is not None:
            yield made.positive.text, after, None


def _rewritten(rule: Rule, text: str, session: Session) -> str | None:
    """What the rule makes of a program; None where it makes nothing that is one."""
    from mlirules.drivers.apply.engine import Engine
    from mlirules.drivers.apply.programs import parsed
    from mlirules.drivers.apply.run import Options

    try:
        module = parsed(text, rule.path, session)
        # An engine of its own: a rule with a planted mistake has the name and the file of another.
        engine = Engine([rule], session.context)
        if not engine.run(module, Options(driver="greedy", fold=False)).total:
            return None
        return str(module) if module.operation.verify() else None
    except MlirulesError:
        return None
