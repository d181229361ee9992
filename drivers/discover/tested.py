"""A found rule with negative tests, and whether its tests pass."""

from __future__ import annotations

from mlirules.drivers.discover.written import Pair, rule_text
from mlirules.drivers.iree import compiler
from mlirules.drivers.quality.check import check_rule
from mlirules.drivers.quality.ruletest import run_tests
from mlirules.drivers.quality.synthesis import synthesise
from mlirules.language.faults import MlirulesError
from mlirules.language.format import formatted
from mlirules.language.loader import load_rule
from mlirules.language.rule import Rule

#: Programs that a rule refuses, in its file.
NEGATIVES = 3


def complete(pair: Pair, name: str) -> tuple[str, str]:
    """The rule's file with tests that pass, or what is wrong with it (an empty text: nothing)."""
    path = f"{name}.yaml"
    try:
        rule = load_rule(path, rule_text(pair, name), ops=compiler.op_oracle)
        negatives = _negatives(rule, pair, name)
        if not negatives:
            return "", "no program was made that only one of its lines refuses"
        text = formatted(path, rule_text(pair, name, negatives))
        rule = load_rule(path, text, ops=compiler.op_oracle)
        wrong = [f for f in check_rule(path, text) if f.severity == "error"]
        if wrong:
            return "", f"{wrong[0].message}"
        for result in run_tests([(rule, test) for test in rule.tests]):
            if not result.passed:
                return "", f"test {result.test.name!r}: {result.problems[0].splitlines()[0]}"
    except MlirulesError as error:
        return "", error.faults[0].message
    return text, ""


def _negatives(rule: Rule, pair: Pair, name: str) -> list[tuple[str, str]]:
    """Programs that the rule refuses, each at the line that it was made for."""
    made = [m for m in synthesise(rule).negatives if m.line is not None]
    # What the conditions refuse tells more than another op.
    made.sort(key=lambda m: m.line is None or m.line.section != "where")
    out: list[tuple[str, str]] = []
    for each in made:
        negative = (each.text, str(each.line))
        trial = load_rule(rule.path, rule_text(pair, name, [negative]), ops=compiler.op_oracle)
        # Of two lines that a swap of operands makes alike, the other one may speak first.
        (result,) = run_tests([(trial, t) for t in trial.tests if t.unchanged is not None])
        if result.passed:
            out.append(negative)
        if len(out) == NEGATIVES:
            break
    return out
