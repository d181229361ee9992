"""Types of what a rewrite makes and no line declares: the compiler says them, or a fault."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.programs import parsed, shared_context
from mlirules.drivers.apply.run import Options
from mlirules.language.faults import MlirulesError
from mlirules.language.library import LIBRARY, open_rules
from mlirules.language.loader import load_rule
from mlirules.language.notation import ast

RULE = """\
rule: mine
kind: fusion
summary: For a test.
reason: For a test.
types: {TYPES}
match:
  - y = OP(x)
rewrite:
LINES
tests:
  - {name: applies, input: 'module {}', check: 'CHECK: module'}
  - {name: refuses, unchanged: 'module {}'}
"""


def rewritten(op: str, type_: str, types: str, *lines: str) -> str:
    """The program of one op after a rule of these rewrite lines."""
    rows = "\n".join(f"  - {line}" for line in lines)
    text = RULE.replace("TYPES", types).replace("OP", op).replace("LINES", rows)
    module = parsed(
        f'func.func @f(%x: {type_}) -> {type_} {{\n%y = "{op}"(%x) : ({type_}) -> {type_}\n'
        f"return %y : {type_}\n}}"
    )
    rule = load_rule("mine.yaml", text)
    engine = Engine([rule], shared_context())
    assert engine.run(module, Options(driver="greedy")).total == 1
    return str(module)


def test_of_torch_ops() -> None:
    made = rewritten(
        "torch.aten.relu",
        "!torch.vtensor<[4,?],f32>",
        'x: "vtensor<M x N x T>"',
        "a = torch.aten.t(x)",
        "b = torch.aten.mm(x, a)",
        "s = torch.aten.view(b, [-1])",
        "n = torch.aten.size.int(s, 0)",
        "h = torch.aten.to.dtype(b, 5, false, false, none)",
        "p = torch.aten.add.Tensor(h, b, n)",
        "c = torch.aten.mm(p, x)",
        "y = torch.aten.abs(c)",
    )
    found = [line.rpartition("-> !torch.")[2] for line in made.splitlines() if "torch.aten" in line]
    assert found == [
        "vtensor<[?,4],f32>",
        "vtensor<[4,4],f32>",
        "vtensor<[16],f32>",
        "int",
        "vtensor<[4,4],f16>",
        "vtensor<[4,4],f32>",
        "vtensor<[4,?],f32>",
        "vtensor<[4,?],f32>",
    ]


def test_of_other_dialects_and_of_bodies() -> None:
    made = rewritten(
        "stablehlo.logistic",
        "tensor<4x8xf32>",
        'x: "tensor<M x N x f32>"',
        "e = stablehlo.exponential(x)",
        "t = stablehlo.transpose(e) {permutation = array(si64, [1, 0])}",
        "body: '%q = math.absf %t : tensor<$(N)x$(M)xf32>'",
        "y[i, j] = q[j, i] + 1.0",
    )
    chain = re.compile(
        r"(%\d+) = stablehlo\.exponential %arg0 .*"
        r"(%\d+) = stablehlo\.transpose \1, dims = \[1, 0\] : "
        r"\(tensor<4x8xf32>\) -> tensor<8x4xf32>.*"
        r"(%\d+) = math\.absf \2 : tensor<8x4xf32>.*ins\(\3 : tensor<8x4xf32>\)",
        re.DOTALL,
    )
    assert chain.search(made) is not None


@pytest.mark.parametrize(
    ("lines", "place", "message"),
    [
        (
            ('t = torch.operator(x) {name = "torch.mine.op"}', "y = torch.aten.abs(t)"),
            "9:9",
            "the type of 't' does not follow from torch.operator: the compiler only knows that it "
            "is a !torch.vtensor\nwrite it in `types:`, for example t: vtensor<M x N x T>",
        ),
        (
            ("t = stablehlo.reshape(x)", "y = torch.aten.abs(t)"),
            "9:9",
            "the type of 't' does not follow from stablehlo.reshape: type inference was requested",
        ),
        (
            ("body: '%t = math.absf %x : tensor<?x?xf32>'", "y[i, j] = t[i, j]"),
            "10:15",
            "declare the type of 't' in `types:`: use of value '%arg_x_tensor' expects different "
            "type than prior uses: 'tensor<?x?xf32>' vs 'tensor<4x8xf32>'",
        ),
    ],
)
def test_what_does_not_follow_is_told_with_its_place(
    lines: tuple[str, ...], place: str, message: str
) -> None:
    with pytest.raises(MlirulesError) as told:
        rewritten("torch.aten.relu", "!torch.vtensor<[4,8],f32>", 'x: "vtensor<M x N x T>"', *lines)
    (fault,) = told.value.faults
    assert f"{fault.span.line}:{fault.span.column}" == place
    assert message in fault.message


def test_what_ships_declares_the_types_of_its_ops() -> None:
    """Each that the compiler is asked for takes 0.15 s: a network has dozens of shapes."""
    undeclared = {
        (rule.name, name)
        for rule in open_rules([LIBRARY]).rules()
        for _, statement in rule.rewrite
        if isinstance(statement, ast.OpEquation)
        for name in statement.results
        if name not in rule.types
        and not any(name in pattern.equation.results for pattern in rule.match)
    }
    # Items of a list are of several types.
    assert undeclared == {("torch-quantized-cat", "ts"), ("torch-narrow-cat-turned", "ts")}


def test_a_declared_type_goes_before(monkeypatch: Any) -> None:
    from mlirules.drivers.match.inference import Inference

    def asked(*_: Any) -> None:
        raise AssertionError("the type is declared")

    monkeypatch.setattr(Inference, "op", asked)
    types = 'x: "vtensor<M x N x T>", t: "vtensor<N x M x T>"'
    made = rewritten(
        "torch.aten.relu",
        "!torch.vtensor<[4,8],f32>",
        types,
        "t = torch.aten.t(x)",
        "y = torch.aten.t(t)",
    )
    assert "-> !torch.vtensor<[8,4],f32>" in made
