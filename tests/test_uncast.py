"""Results that the walk leaves in their builtin types end as if each had been cast at once."""

from __future__ import annotations

import sys

import pytest
from iree.compiler.passmanager import PassManager

from mlirules.drivers.apply import uncast
from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.present import op_names
from mlirules.drivers.apply.run import Options
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.language.loader import load_rules

RULES = [
    "torch/to-linalg/matmul/torch-mm-to-linalg",
    "torch/to-linalg/elementwise/torch-relu-to-linalg",
    "torch/to-linalg/elementwise/torch-sigmoid-to-linalg",
    # Looks at more than types.
    "torch/to-linalg/elementwise/torch-add-tensor-to-linalg",
]
T = "!torch.vtensor<[4,4],f32>"
I = "!torch.vtensor<[4,4],si64>"  # noqa: E741 - a type, as T is
B = "tensor<4x4xf32>"

#: Programs, and whether the walk may leave something without its cast in them.
PROGRAMS = {
    "chain": f"""func.func @main(%a: {T}, %b: {T}) -> {T} {{
  %0 = torch.aten.mm %a, %b : {T}, {T} -> {T}
  %1 = torch.aten.relu %0 : {T} -> {T}
  %2 = torch.aten.mm %1, %1 : {T}, {T} -> {T}
  %3 = torch.aten.mm %2, %b : {T}, {T} -> {T}
  return %3 : {T}
}}""",
    "what stays reads it, twice": f"""func.func @main(%a: {T}) -> ({T}, {T}, {T}) {{
  %0 = torch.aten.relu %a : {T} -> {T}
  %1 = torch.aten.tanh %0 : {T} -> {T}
  %2 = torch.aten.mm %0, %1 : {T}, {T} -> {T}
  %3 = torch.aten.tanh %2 : {T} -> {T}
  return %0, %2, %3 : {T}, {T}, {T}
}}""",
    "a rule that looks at constants": f"""func.func @main(%a: {T}) -> {T} {{
  %one = torch.constant.int 1
  %0 = torch.aten.relu %a : {T} -> {T}
  %1 = torch.aten.add.Tensor %0, %0, %one : {T}, {T}, !torch.int -> {T}
  %2 = torch.aten.relu %1 : {T} -> {T}
  %3 = torch.aten.add.Tensor %2, %0, %one : {T}, {T}, !torch.int -> {T}
  return %3 : {T}
}}""",
    "integers": f"""func.func @main(%a: {I}, %b: {T}) -> ({I}, {T}) {{
  %0 = torch.aten.relu %a : {I} -> {I}
  %1 = torch.aten.relu %0 : {I} -> {I}
  %2 = torch.aten.relu %b : {T} -> {T}
  %3 = torch.aten.relu %2 : {T} -> {T}
  return %1, %3 : {I}, {T}
}}""",
    "an op of another dialect": f"""func.func @main(%a: {T}) -> ({T}, {B}) {{
  %0 = torch.aten.relu %a : {T} -> {T}
  %1 = torch.aten.relu %0 : {T} -> {T}
  %2 = torch_c.to_builtin_tensor %1 : {T} -> {B}
  %3 = arith.addf %2, %2 : {B}
  %4 = torch_c.from_builtin_tensor %3 : {B} -> {T}
  %5 = torch.aten.mm %4, %0 : {T}, {T} -> {T}
  %6 = torch.aten.mm %5, %1 : {T}, {T} -> {T}
  return %6, %3 : {T}, {B}
}}""",
    "builtin arguments": f"""func.func @main(%a: {T}, %b: {B}) -> ({T}, {B}) {{
  %0 = torch.aten.relu %a : {T} -> {T}
  %1 = torch.aten.relu %0 : {T} -> {T}
  return %1, %b : {T}, {B}
}}
func.func @other(%a: {T}) -> {T} {{
  %0 = torch.aten.relu %a : {T} -> {T}
  %1 = torch.aten.relu %0 : {T} -> {T}
  return %1 : {T}
}}""",
    "regions": f"""func.func @main(%a: {T}, %c: !torch.bool) -> {T} {{
  %0 = torch.aten.relu %a : {T} -> {T}
  %1 = torch.prim.If %c -> ({T}) {{
    %2 = torch.aten.mm %0, %0 : {T}, {T} -> {T}
    %3 = torch.aten.relu %2 : {T} -> {T}
    torch.prim.If.yield %3 : {T}
  }} else {{
    %4 = torch.aten.tanh %0 : {T} -> {T}
    torch.prim.If.yield %0 : {T}
  }}
  %5 = torch.aten.mm %1, %0 : {T}, {T} -> {T}
  return %5 : {T}
}}""",
    "an op of another dialect in a region": f"""func.func @main(%a: {T}, %c: !torch.bool) -> {T} {{
  %0 = torch.aten.relu %a : {T} -> {T}
  %1 = torch.prim.If %c -> ({T}) {{
    %2 = torch.aten.mm %0, %0 : {T}, {T} -> {T}
    %3 = torch_c.to_builtin_tensor %2 : {T} -> {B}
    %4 = torch_c.from_builtin_tensor %3 : {B} -> {T}
    torch.prim.If.yield %4 : {T}
  }} else {{
    %5 = torch.aten.mm %0, %0 : {T}, {T} -> {T}
    torch.prim.If.yield %5 : {T}
  }}
  %6 = torch.aten.mm %1, %0 : {T}, {T} -> {T}
  return %6 : {T}
}}""",
    "blocks": f"""func.func @main(%a: {T}, %c: i1) -> {T} {{
  %0 = torch.aten.relu %a : {T} -> {T}
  cf.cond_br %c, ^one(%0 : {T}), ^two
^two:
  %1 = torch.aten.mm %0, %0 : {T}, {T} -> {T}
  cf.br ^one(%1 : {T})
^one(%2: {T}):
  %3 = torch.aten.relu %2 : {T} -> {T}
  %4 = torch.aten.mm %3, %0 : {T}, {T} -> {T}
  return %4 : {T}
}}""",
    "a block before one that it follows": f"""func.func @before(%a: {T}) -> {T} {{
  %0 = torch.aten.relu %a : {T} -> {T}
  %1 = torch.aten.relu %0 : {T} -> {T}
  return %1 : {T}
}}
func.func @main(%a: {T}) -> {T} {{
  cf.br ^first
^second:
  %1 = torch.aten.relu %0 : {T} -> {T}
  return %1 : {T}
^first:
  %0 = torch.aten.relu %a : {T} -> {T}
  cf.br ^second
}}""",
}


def rewritten(text: str, *, driver: str, one_by_one: bool) -> tuple[str, dict[str, int]]:
    """A program after a driver, duplicates joined, and how often rules applied."""
    context = compiler.context()
    module = compiler.parse(text, "test", context)
    engine = Engine(load_rules(RULES, ops=compiler.op_oracle), context)
    outcome = engine.run(module, Options(driver=driver, record=one_by_one))  # type: ignore[arg-type]
    assert module.operation.verify()
    PassManager.parse("builtin.module(cse)", context).run(module.operation)
    return str(module), dict(outcome.counts)


@pytest.mark.parametrize("driver", ["walk", "conversion"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_is_that_of_applications_one_by_one(name: str, driver: str) -> None:
    text = PROGRAMS[name]
    quick, counts = rewritten(text, driver=driver, one_by_one=False)
    slow, expected = rewritten(text, driver=driver, one_by_one=True)
    assert counts == expected
    assert sorted(op_names(compiler.parse(quick)).items()) == sorted(
        op_names(compiler.parse(slow)).items()
    )
    assert quick == slow


def test_nothing_is_cast_back_between_what_is_converted() -> None:
    quick, counts = rewritten(PROGRAMS["chain"], driver="walk", one_by_one=False)
    assert sum(counts.values()) == 4
    assert quick.count("torch_c.from_builtin_tensor") == 1
    assert quick.count("torch_c.to_builtin_tensor") == 2


TWO_SUMS = """
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %x, %x : tensor<4xf32>
  %1 = arith.addf %0, %x : tensor<4xf32>
  return %1 : tensor<4xf32>
}
"""


def test_what_waits_to_be_put_into_the_program_stands_nowhere() -> None:
    """What has no parent has no block: the bindings would let go of what is not theirs."""
    context = compiler.context()
    module, waiting = (ir.Module.parse(TWO_SUMS, context) for _ in range(2))
    block = module.body.operations[0].regions[0].blocks[0]
    first, second, _ = (view.operation for view in block.operations)
    inside = waiting.body.operations[0].regions[0].blocks[0].operations[0].operation
    known = sys.getrefcount(ir.Operation)
    for _ in range(1000):
        assert not uncast._stays(inside, block, first)
        assert not uncast._stays(waiting.operation, block, first)
    assert sys.getrefcount(ir.Operation) >= known
    assert uncast._stays(second, block, first)
    assert not uncast._stays(first, block, second)
