"""What is told of a program before its rules are: its ops, and the types of its elements."""

from __future__ import annotations

from mlirules.drivers.apply.present import Present
from mlirules.drivers.iree import compiler

PROGRAM = """\
func.func @main(%x: !torch.vtensor<[4],bf16>, %n: !torch.int) -> !torch.vtensor<[4],f32> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %int6 = torch.constant.int 6
  %y = torch.aten.to.dtype %x, %int6, %false, %false, %none : !torch.vtensor<[4],bf16>,
    !torch.int, !torch.bool, !torch.bool, !torch.none -> !torch.vtensor<[4],f32>
  %z = torch.aten.abs %y : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
  return %z : !torch.vtensor<[4],f32>
}
"""


def elements(text: str) -> set[str]:
    return set(Present(compiler.parse(text)).elements)


def test_elements_are_those_of_arguments_and_results() -> None:
    assert elements(PROGRAM) == {"bf16", "f32"}
    there = Present(compiler.parse(PROGRAM))
    assert there.ops["torch.aten.abs"] == 1
    assert there.ops["torch.aten.mm"] == 0


def test_integers_stand_by_their_width() -> None:
    text = "func.func @main(%x: !torch.vtensor<[4],%s>) { return }"
    assert elements(text.replace("%s", "si8")) == elements(text.replace("%s", "ui8")) == {"i8"}
    assert elements("func.func @main(%x: tensor<4x?xi8>) { return }") == {"i8"}


def test_what_a_block_takes_counts_and_what_is_no_tensor_does_not() -> None:
    text = """\
    func.func @main(%n: index, %x: tensor<4xf32>) -> tensor<4xf32> {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %half = arith.constant dense<1.0> : tensor<4xf16>
      %y:2 = scf.for %i = %c0 to %n step %c1 iter_args(%a = %x, %b = %half)
          -> (tensor<4xf32>, tensor<4xf16>) {
        scf.yield %a, %b : tensor<4xf32>, tensor<4xf16>
      }
      return %y#0 : tensor<4xf32>
    }
    """
    assert elements(text) == {"f32", "f16"}
    assert elements("func.func @main(%x: !torch.vtensor, %n: !torch.int) { return }") == set()
