"""What `mlirules studio` shows of a rule and a program while they are typed.

Both are untrusted text. They are judged in a child process with limits, which is started anew when
it dies or takes too long. No file is written, and code that needs consent is neither compiled nor
run: nobody can agree to it here.
"""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.programs import parsed
from mlirules.drivers.apply.run import Options
from mlirules.drivers.apply.session import current
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.quality.check import check_rule, mlir_faults
from mlirules.drivers.quality.explain import diagnoses
from mlirules.drivers.quality.verify import Settings, verify
from mlirules.language import consent
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.loader import kind_of, rules_of
from mlirules.language.native import native
from mlirules.language.reading import load_yaml
from mlirules.language.rule import Rule
from mlirules.language.source import SourceFile, Text
from mlirules.support import children, pages
from mlirules.support.limits import Limits, limited

__all__ = ["Studio", "judge", "page"]

#: Characters of a rule and of a program together.
MAX_TEXT = 256 * 1024
#: Seconds for faults, matches and the diff, and for numbers.
SECONDS, NUMBERS_SECONDS = 20.0, 60.0
#: The child ends after so much processor time, and is started anew.
_LIMITS = Limits(cpu_s=600, memory=16 << 30)
_RULE, _PROGRAM = "rule.yaml", "program.mlir"
_BOUND = 1000
_PAGE = Path(__file__).with_name("studio.html.j2")


class Studio:
    """Judges texts in a child process, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: children.Child | None = None

    def judge(self, rule: str, program: str, *, numbers: bool = False) -> dict[str, object]:
        """What :func:`judge` says. A child that died or took too long is told as ``failed``."""
        if len(rule) + len(program) > MAX_TEXT:
            return {"failed": f"more than {MAX_TEXT} characters"}
        asked = {"rule": rule, "program": program, "numbers": numbers}
        with self._lock:
            if self._child is None or not self._child.alive:
                self.stop()
                command = children.python("mlirules.drivers.quality.studio:_serve")
                self._child = children.Child(limited(command, _LIMITS))
            try:
                return self._child.ask(asked, NUMBERS_SECONDS if numbers else SECONDS)
            except children.Died as died:
                self.stop()
                return {"failed": f"the child process {died.why}"}

    def stop(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.stop()
            self._child = None


def _serve() -> None:
    children.serve(_answers)


def _answers(asked: dict[str, Any]) -> Iterator[dict[str, object]]:
    try:
        yield judge(asked["rule"], asked["program"], numbers=asked["numbers"])
    except MlirulesError as error:
        yield {"faults": [fault.as_json() for fault in error.faults]}
    except Exception as error:  # noqa: BLE001 - the page must hear of it, and go on
        yield {"failed": f"internal error: {type(error).__name__}: {error}"[:500]}


def judge(rule: str, program: str, *, numbers: bool = False) -> dict[str, object]:
    """What a rule does to a program, as plain data.

    ``faults`` of both texts; ``applied``: every application; ``refused``: why not, the nearest
    first; ``diff``: the rows of the rewritten program; ``numbers``: what was compared.
    """
    out: dict[str, Any] = {"faults": [], "applied": [], "refused": [], "diff": [], "numbers": []}
    faults = check_rule(_RULE, rule) if rule.strip() else []
    wrong = _program_faults(program)
    out["faults"] = [fault.as_json() for fault in (*faults, *wrong)]
    if not rule.strip() or any(f.severity == "error" for f in (*faults, *wrong)):
        return out
    source = load_yaml(_RULE, rule)
    if kind_of(source) == "config":
        out["note"] = "a config rule rewrites nothing: `mlirules test` shows what it configures"
        return out
    rules = rules_of(source, ops=compiler.op_oracle)
    needs = [need for need in map(native, rules) if need is not None]
    if needs:
        fault = consent.missing(needs[0])
        out["faults"].append(Fault(fault.span, fault.code, fault.message).as_json())
        return out
    if not program.strip():
        return out
    return _applied(rules, program, out, numbers=numbers)


def _program_faults(program: str) -> list[Fault]:
    if not program.strip():
        return []
    source = SourceFile(_PROGRAM, program)
    return mlir_faults(Text(program, source, 1, 1, block=True))


def _applied(
    rules: list[Rule], program: str, out: dict[str, Any], *, numbers: bool
) -> dict[str, object]:
    session = current()  # of the process that answers
    before = str(parsed(program, _PROGRAM, session))
    module = parsed(program, _PROGRAM, session)
    engine = Engine(rules, session.context)
    for rule in rules:
        for found in diagnoses(engine.matchers[rule.name], module):
            if found.applies:
                continue
            out["refused"].append(
                {
                    "rule": rule.name,
                    "op": str(found.op.name) if found.op is not None else "",
                    "passed": found.passed,
                    "total": found.total,
                    "why": [refusal.fault(rule).as_json() for refusal in found.refusals],
                }
            )
    options = Options(driver="greedy", bound=_BOUND, fold=False, record=True)
    done = engine.run(module, options)
    after = str(module)
    out["applied"] = [
        {"rule": a.rule, "op": a.op, "place": re.sub(r"^-(?=:)", _PROGRAM, a.location)}
        for a in done.applications[:200]
    ]
    out["refused"] = out["refused"][:50]
    rows = difflib.unified_diff(before.splitlines(), after.splitlines(), n=1000, lineterm="")
    out["diff"] = list(rows)[2:] if before != after else []
    if numbers and done.total:
        settings = Settings([Target.parse("cpu")], timeout=NUMBERS_SECONDS / 2)
        try:
            report = verify(program, after, settings)
        except MlirulesError as error:
            out["note"] = f"numbers: {error.faults[0].message}"[:500]
            return out
        out["numbers"] = [asdict(c) | {"passed": c.passed} for c in report.comparisons]
        out["skipped"] = report.skipped
    return out


def page(rule: str = "", program: str = "", nonce: str = "") -> str:
    """The page, with texts to begin with. ``nonce`` lets its own script and style run."""
    return pages.render(_PAGE, rule=rule, program=program, nonce=nonce)
