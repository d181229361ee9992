"""Small programs are compiled and run together, and what is wrong is said of the one it is in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlirules.drivers.apply.session import Session
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure.together import Calls, Uncompiled
from mlirules.language.faults import MlirulesError

CPU = Target.parse("cpu")
ROW = "tensor<?xf32>"
SUM = f"""
func.func @f(%a: {ROW}, %b: {ROW}) -> ({ROW}, {ROW}) {{
  %s = "tosa.add"(%a, %b) : ({ROW}, {ROW}) -> {ROW}
  return %s, %a : {ROW}, {ROW}
}}
"""
NEGATED = """
func.func @f(%a: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> {
  %n = torch.aten.neg %a : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>
  return %n : !torch.vtensor<[2],f32>
}
"""
RELU = NEGATED.replace("torch.aten.neg", "torch.aten.relu")
# Fails when it is run, wherever it is run.
ASSERTED = """
func.func @f(%a: tensor<2xf32>) -> tensor<2xf32> {
  %c0 = arith.constant 0 : index
  %x = tensor.extract %a[%c0] : tensor<2xf32>
  %zero = arith.constant 0.0 : f32
  %negative = arith.cmpf olt, %x, %zero : f32
  cf.assert %negative, "it must be negative"
  return %a : tensor<2xf32>
}
"""
# No conversion of the compiler's.
UNKNOWN = NEGATED.replace(
    "torch.aten.neg %a : !torch.vtensor<[2],f32>",
    'torch.operator "torch.made.up"(%a) : (!torch.vtensor<[2],f32>)',
)


def row(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was compiled."""
    seen: list[object] = []
    real = compiler.compile_module

    def counted(source: Any, *arguments: Any, **named: Any) -> bytes:
        seen.append(source)
        return real(source, *arguments, **named)

    monkeypatch.setattr(compiler, "compile_module", counted)
    return seen


def test_one_compilation_for_all_and_for_all_inputs(compilations: list[object]) -> None:
    with Session():
        calls = Calls(CPU)
        inputs = ([row(1, -2)], [row(-3, 4)])
        numbers = [calls.add(text, given) for text in (NEGATED, RELU) for given in inputs]
        results = [calls.result(number)[0].tolist() for number in numbers]
        later = Calls(CPU)
        other = later.add(RELU, [row(5, -6)])  # what was compiled is kept
        results.append(later.result(other)[0].tolist())
    assert results == [[-1, 2], [3, -4], [1, 0], [0, 4], [5, 0]]
    assert len(compilations) == 1


def test_programs_that_are_called_more_often_share_the_module(compilations: list[object]) -> None:
    with Session():
        calls = Calls(CPU)
        once = calls.add(RELU, [row(5, -6)])
        twice = [calls.add(NEGATED, [row(at, 1)]) for at in (2, 3)]
        results = [calls.result(number)[0].tolist() for number in (once, *twice)]
    assert results == [[5, 0], [-2, -1], [-3, -1]]
    assert len(compilations) == 1


def test_the_program_that_fails_is_told_and_the_others_have_results() -> None:
    with Session():
        calls = Calls(CPU)
        sums = [calls.add(SUM, [row(*range(n)), row(*range(n))]) for n in (1, 3)]
        failing = calls.add(ASSERTED, [row(1, 1)])
        unknown = calls.add(UNKNOWN, [row(1, 1)])
        fine = calls.add(NEGATED, [row(1, 2)])
        assert [[a.tolist() for a in calls.result(n)] for n in sums] == [
            [[0], [0]],
            [[0, 2, 4], [0, 1, 2]],
        ]
        wrong = calls.result(failing)
        assert isinstance(wrong, MlirulesError)
        assert "it must be negative" in str(wrong)
        uncompiled = calls.result(unknown)
        assert isinstance(uncompiled, Uncompiled)
        assert "torch.made.up" in str(uncompiled.error)
        assert [a.tolist() for a in calls.result(fine)] == [[-1, -2]]
