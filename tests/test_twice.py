"""Reductions that one op reads along different loops come out right."""

from __future__ import annotations

import numpy as np
import pytest

from mlirules.drivers.apply.rereading import guard_reductions
from mlirules.drivers.apply.twice import guard_twice_read
from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import Pipeline, Recipe

CPU = Target.parse("cpu")
X = np.random.default_rng(6).standard_normal((3, 5, 5, 7)).astype(np.float32)
#: The sums of the last dim, and a softmax of their rows by parts.
PROGRAM = """\
#all = affine_map<(a, b, c) -> (a, b, c)>
#rows = affine_map<(a, b, c) -> (a, b)>
#turned = affine_map<(a, b, c) -> (a, c, b)>
#first = affine_map<(a, b, c, d) -> (a, 0, c, d)>
#second = affine_map<(a, b, c, d) -> (a, b, 0, d)>
#whole = affine_map<(a, b, c, d) -> (a, b, c, d)>
#three = affine_map<(a, b, c, d) -> (a, b, c)>
func.func @main(%x: tensor<3x5x5x7xf32>) -> {type} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x5x5xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<3x5x5xf32>) -> tensor<3x5x5xf32>
  %y = linalg.generic {{indexing_maps = [#whole, #three],
    iterator_types = ["parallel", "parallel", "parallel", "reduction"]}}
    ins(%x : tensor<3x5x5x7xf32>) outs(%z : tensor<3x5x5xf32>) {{
  ^bb0(%p: f32, %o: f32):
    %r = arith.addf %o, %p : f32
    linalg.yield %r : f32
  }} -> tensor<3x5x5xf32>
{then}
  return %out : {type}
}}
"""
SUM = """\
    ^bb0(%p: f32, %q: f32, %o: f32):
    %r = arith.subf %p, %q : f32
    linalg.yield %r : f32
  }"""
PAIRS = f"""\
  %i = tensor.expand_shape %y [[0, 1], [2], [3]] output_shape [3, 1, 5, 5]
    : tensor<3x5x5xf32> into tensor<3x1x5x5xf32>
  %j = tensor.expand_shape %y [[0], [1, 2], [3]] output_shape [3, 5, 1, 5]
    : tensor<3x5x5xf32> into tensor<3x5x1x5xf32>
  %f = tensor.empty() : tensor<3x5x5x5xf32>
  %out = linalg.generic {{indexing_maps = [#first, #second, #whole],
    iterator_types = ["parallel", "parallel", "parallel", "parallel"]}}
    ins(%i, %j : tensor<3x1x5x5xf32>, tensor<3x5x1x5xf32>) outs(%f : tensor<3x5x5x5xf32>) {{
{SUM} -> tensor<3x5x5x5xf32>"""
ROWS = """\
  %g = tensor.empty() : tensor<3x5xf32>
  %w = linalg.fill ins(%zero : f32) outs(%g : tensor<3x5xf32>) -> tensor<3x5xf32>
  %s = linalg.generic {indexing_maps = [#all, #rows],
    iterator_types = ["parallel", "parallel", "reduction"]}
    ins(%y : tensor<3x5x5xf32>) outs(%w : tensor<3x5xf32>) {
  ^bb0(%p: f32, %o: f32):
    %q = math.exp %p : f32
    %r = arith.addf %o, %q : f32
    linalg.yield %r : f32
  } -> tensor<3x5xf32>
  %m = linalg.generic {indexing_maps = [#all, #rows, #all],
    iterator_types = ["parallel", "parallel", "parallel"]}
    ins(%y, %s : tensor<3x5x5xf32>, tensor<3x5xf32>) outs(%e : tensor<3x5x5xf32>) {
  ^bb0(%p: f32, %n: f32, %o: f32):
    %q = math.exp %p : f32
    %r = arith.divf %q, %n : f32
    linalg.yield %r : f32
  } -> tensor<3x5x5xf32>"""
TURNED = f"""\
{ROWS}
  %out = linalg.generic {{indexing_maps = [#all, #turned, #all],
    iterator_types = ["parallel", "parallel", "parallel"]}}
    ins(%m, %m : tensor<3x5x5xf32>, tensor<3x5x5xf32>) outs(%e : tensor<3x5x5xf32>) {{
{SUM} -> tensor<3x5x5xf32>"""
PLAIN = f"""\
{ROWS}
  %out = linalg.generic {{indexing_maps = [#all, #all, #all],
    iterator_types = ["parallel", "parallel", "parallel"]}}
    ins(%m, %y : tensor<3x5x5xf32>, tensor<3x5x5xf32>) outs(%e : tensor<3x5x5xf32>) {{
{SUM} -> tensor<3x5x5xf32>"""
Y = X.sum(-1)
M = np.exp(Y) / np.exp(Y).sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("then", "wanted", "guarded"),
    [
        (PAIRS, Y[:, None] - Y[:, :, None], 2),
        (TURNED, M - M.swapaxes(1, 2), 2),
        # Read along the loops that they have: one dispatch as before.
        (PLAIN, M - Y, 0),
    ],
    ids=["pairs", "turned", "plain"],
)
def test_a_reduction_is_read_along_two_loops(then: str, wanted: np.ndarray, guarded: int) -> None:
    text = PROGRAM.format(type=f"tensor<{'x'.join(map(str, wanted.shape))}xf32>", then=then)
    with ir.Context():
        module = ir.Module.parse(text)
        assert guard_twice_read(module) == guarded
        # What stands behind a barrier is in memory.
        assert guard_twice_read(module) == 0
    (got,) = runtime.run(Recipe(text, CPU, Pipeline.load("cpu")).compile()[0], [X], CPU)
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=2e-5, atol=2e-5)


ONE = """\
func.func @main(%x: tensor<1x1x7xf32>) -> tensor<1xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x1xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<1x1xf32>) -> tensor<1x1xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(a, b, c) -> (a, b, c)>,
      affine_map<(a, b, c) -> (a, b)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x : tensor<1x1x7xf32>) outs(%z : tensor<1x1xf32>) {
  ^bb0(%p: f32, %o: f32):
    %r = arith.addf %o, %p : f32
    linalg.yield %r : f32
  } -> tensor<1x1xf32>
  %s = tensor.collapse_shape %y [] : tensor<1x1xf32> into tensor<f32>
  %t = tensor.expand_shape %s [] output_shape [1] : tensor<f32> into tensor<1xf32>
  %f = tensor.empty() : tensor<1xf32>
  %out = linalg.generic {indexing_maps = [affine_map<(a) -> ()>, affine_map<(a) -> (a)>,
      affine_map<(a) -> (a)>], iterator_types = ["parallel"]}
      ins(%s, %t : tensor<f32>, tensor<1xf32>) outs(%f : tensor<1xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %r = arith.addf %p, %q : f32
    linalg.yield %r : f32
  } -> tensor<1xf32>
  return %out : tensor<1xf32>
}
"""


def test_a_sum_that_becomes_a_single_number() -> None:
    """Its reshape has no groups of dims: a program with one did not compile."""
    given = X[:1, :1, 0]
    with ir.Context():
        module = ir.Module.parse(ONE)
        assert (guard_twice_read(module), guard_reductions(module)) == (0, 0)
    (got,) = runtime.run(Recipe(ONE, CPU, Pipeline.load("cpu")).compile()[0], [given], CPU)
    np.testing.assert_allclose(np.asarray(got), [2 * given.sum()], rtol=1e-5)
