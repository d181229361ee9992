"""Complex numbers made where a sum is read: they compile for Vulkan, which IREE alone does not."""

from __future__ import annotations

import numpy as np

from mlirules.drivers.apply.complexes import guard_complex
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program

#: Rows less their mean, and the same as complex numbers, whose imaginary parts are added up again.
TEXT = """
#all = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
func.func @main(%x: tensor<12x64xf32>) -> (tensor<12x64xf32>, tensor<12x64xf32>) {
  %zero = arith.constant 0.0 : f32
  %n = arith.constant 64.0 : f32
  %e = tensor.empty() : tensor<12x64xf32>
  %c = tensor.empty() : tensor<12x64xcomplex<f32>>
  %r = tensor.empty() : tensor<12xf32>
  %z = linalg.fill ins(%zero : f32) outs(%r : tensor<12xf32>) -> tensor<12xf32>
  %s = linalg.generic {indexing_maps = [#all, #row], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<12x64xf32>) outs(%z : tensor<12xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<12xf32>
  %d = linalg.generic {indexing_maps = [#all, #row, #all],
      iterator_types = ["parallel", "parallel"]}
      ins(%x, %s : tensor<12x64xf32>, tensor<12xf32>) outs(%e : tensor<12x64xf32>) {
  ^bb0(%a: f32, %m: f32, %o: f32):
    %q = arith.divf %m, %n : f32
    %b = arith.subf %a, %q : f32
    linalg.yield %b : f32
  } -> tensor<12x64xf32>
  %w = linalg.generic {indexing_maps = [#all, #all], iterator_types = ["parallel", "parallel"]}
      ins(%d : tensor<12x64xf32>) outs(%c : tensor<12x64xcomplex<f32>>) {
  ^bb0(%a: f32, %o: complex<f32>):
    %b = complex.create %a, %a : complex<f32>
    linalg.yield %b : complex<f32>
  } -> tensor<12x64xcomplex<f32>>
  %k = iree_tensor_ext.compute_barrier.start %w
      : tensor<12x64xcomplex<f32>> -> tensor<12x64xcomplex<f32>>
  %y = linalg.generic {indexing_maps = [#all, #all], iterator_types = ["parallel", "parallel"]}
      ins(%k : tensor<12x64xcomplex<f32>>) outs(%e : tensor<12x64xf32>) {
  ^bb0(%a: complex<f32>, %o: f32):
    %re = complex.re %a : complex<f32>
    %im = complex.im %a : complex<f32>
    %b = arith.addf %re, %im : f32
    linalg.yield %b : f32
  } -> tensor<12x64xf32>
  return %d, %y : tensor<12x64xf32>, tensor<12x64xf32>
}
"""


def test_what_complex_numbers_are_made_of_is_written_first() -> None:
    module = compiler.parse(TEXT)
    assert guard_complex(module) == 1
    assert module.operation.verify()


def test_complex_numbers_of_normalised_rows_on_vulkan(vulkan: str) -> None:
    target = Target.parse(vulkan)
    binary, _ = compile_program(TEXT, target)
    x = np.random.default_rng(0).standard_normal((12, 64), dtype=np.float32)
    less, twice = runtime.run(binary, [x], target)
    wanted = x - x.mean(1, keepdims=True)
    np.testing.assert_allclose(less, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(twice, 2 * wanted, rtol=1e-5, atol=1e-5)
