"""Sums of what does not vary: right, though the compiler alone counts vectors, not elements."""

from __future__ import annotations

import numpy as np
import pytest

from mlirules.drivers.apply.invariant import guard_sums
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program

SUM = """
func.func @main(%x: tensor<?x?xf32>, %v: tensor<f32>) -> tensor<?xf32> {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %d0 = tensor.dim %x, %c0 : tensor<?x?xf32>
  %d1 = tensor.dim %x, %c1 : tensor<?x?xf32>
  %value = tensor.extract %v[] : tensor<f32>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty(%d0, %d1) : tensor<?x?xf32>
  %f = linalg.fill ins(%value : f32) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  %p = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>,
      affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}}
      ins({operand} : tensor<?x?xf32>) outs(%e : tensor<?x?xf32>) {{
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %a : f32
    linalg.yield %b : f32
  }} -> tensor<?x?xf32>
  %r = tensor.empty(%d0) : tensor<?xf32>
  %z = linalg.fill ins(%zero : f32) outs(%r : tensor<?xf32>) -> tensor<?xf32>
  %s = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}}
      ins(%p : tensor<?x?xf32>) outs(%z : tensor<?xf32>) {{
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  }} -> tensor<?xf32>
  return %s : tensor<?xf32>
}}
"""


@pytest.mark.parametrize(("operand", "guarded"), [("%f", 1), ("%x", 0)])
def test_only_what_does_not_vary_is_guarded(operand: str, guarded: int) -> None:
    module = compiler.parse(SUM.format(operand=operand))
    assert guard_sums(module) == guarded
    assert str(module).count("compute_barrier") == guarded
    assert guard_sums(module) == 0
    assert module.operation.verify()


def test_a_sum_of_one_number_counts_elements() -> None:
    cpu = Target.parse("cpu")
    binary, _ = compile_program(SUM.format(operand="%f"), cpu)
    x, three = np.zeros((2, 125), np.float32), np.array(3, np.float32)
    (found,) = runtime.run(binary, [x, three], cpu)
    assert found.tolist() == [750, 750]
