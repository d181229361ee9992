"""Every condition of a fusion has a program that it alone refuses, and every fusion has numbers."""

from __future__ import annotations

from collections.abc import Iterator

from mlirules.drivers.pipelines.transform import rule_set
from mlirules.language.loader import load_rule
from mlirules.language.notation import ast
from mlirules.language.rule import Rule

SETS = ("torch/fusions", "torch/unfuse", "torch/cpu", "torch/depthwise", "torch/algebra", "linalg")

#: Rules whose numbers stand in another test, because the compiler converts neither side.
ELSEWHERE = {"torch-cross-entropy-fuse": "tests/test_fusions.py"}


def without(rule: Rule) -> Iterator[str]:
    """What a rule's inline tests lack, one line each."""
    refused = {test.because.strip() for test in rule.tests if test.because}
    for line, condition in rule.where:
        if isinstance(condition, ast.Binary) and condition.op == "and":
            yield f"{line.span}: two conditions in one line: {line}"
        elif str(line).strip() not in refused:
            yield f"{line.span}: no program is refused because of: {line}"
    if not any(test.input for test in rule.tests):
        yield f"{rule.span}: no program that {rule.name} applies to"
    if not any(test.run for test in rule.tests) and rule.name not in ELSEWHERE:
        yield f"{rule.span}: no numbers for {rule.name}"


def test_every_condition_has_a_program_that_it_refuses() -> None:
    rules = rule_set(SETS)
    assert sum(len(rule.where) for rule in rules) > 350
    lacking = [problem for rule in rules for problem in without(rule)]
    assert not lacking, "\n".join(lacking)


RULE = """rule: made
kind: fusion
summary: A rule that is made for a test.
reason: To see what is missed.
types: {x: vtensor<M x N x T>}
match: y = torch.aten.relu(x)
where: [is_float(T), static(x) and M == N, N > 1]
rewrite: y = x
tests:
  - {name: one, input: "module {}", check: "CHECK: module"}
  - {name: two, unchanged: "module {}", because: is_float(T)}
"""


def test_what_is_lacking_is_found() -> None:
    said = [line.split(": ", 1)[1] for line in without(load_rule("made.yaml", RULE))]
    assert said == [
        "two conditions in one line: static(x) and M == N",
        "no program is refused because of: N > 1",
        "no numbers for made",
    ]
