"""What a rewrite cannot compute is said in words of the notation, never of the code."""

from __future__ import annotations

import re

import pytest

from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.programs import parsed, shared_context
from mlirules.drivers.iree import compiler
from mlirules.drivers.match.results import Refusal
from mlirules.language.loader import load_rule

RULE = """\
rule: odd
kind: fusion
summary: A rule of a test.
reason: Its rewrite makes no sense.
types: {{x: vtensor<M x N x T>, y: vtensor<M x N x T>}}
match: [y = torch.aten.relu(x)]
rewrite: ['{rewrite}']
tests:
  - {{name: positive, input: 'module {{}}', check: 'CHECK: module'}}
  - {{name: negative, unchanged: 'module {{}}'}}
"""
TENSOR = "!torch.vtensor<[2,3],f32>"
PROGRAM = f"""\
func.func @main(%x: {TENSOR}) -> {TENSOR} {{
  %y = torch.aten.relu %x : {TENSOR} -> {TENSOR}
  return %y : {TENSOR}
}}
"""


@pytest.mark.parametrize(
    ("rewrite", "said"),
    [
        ("y[m, n] = x[m, n] + dim(x, m)", "the axis is the loop index m, not a number"),
        ("y[m, n] = x[m, n] * len(m)", "value is the loop index m, not a list"),
        ("y[m, n] = x[m, n] * rank(m + n)", "computed from the loop indices m and n is not a"),
        ("y[m, n] = cast(x[m, n], m)", "the loop index m has no element type"),
        ("y[I...] = x[permute(I, I)]", "the axis is the loop index I, not a number"),
        ("y = literal(x)", f"x is {TENSOR}, not an attribute that holds elements"),
        ("y[m, n] = x[m, n] + dim(x, 2)", "the axis 2 is outside a list of 2, whose last is 1"),
        ("y[m, n] = x[m, 3]", "x is read at 3 in dim 1, and has 3 elements there"),
        ("y[m, n] = x[-1, n]", "x is read at -1 in dim 0, before its first element"),
        ("y = x[...]", "`...` stands for the indices of the left-hand side: it has none"),
        ("y[m, n] = x[m, n] + range(x[m, n])", "a number of type f32 known only at run time"),
    ],
)
def test_words_of_the_notation(rewrite: str, said: str) -> None:
    rule = load_rule("odd.yaml", RULE.format(rewrite=rewrite), ops=compiler.op_oracle)
    module = parsed(PROGRAM)
    op = module.body.operations[0].regions[0].blocks[0].operations[0].operation
    refusal = Engine([rule], shared_context()).matchers["odd"].match(op)
    assert isinstance(refusal, Refusal)
    assert said in refusal.message
    assert not re.search(r"\w+\(\w+=", refusal.message)
