"""Products whose factors are read by a computed index compile for Vulkan, whatever their sizes."""

from __future__ import annotations

import numpy as np

from mlirules.drivers.apply.gathers import configure_gathers
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program

#: Rows, what is summed, columns.
SIZES = ((24, 64, 192), (24, 192, 64), (1, 16, 16), (5, 32, 100))


def experts(rows: int, depth: int, columns: int, name: str) -> str:
    """Rows times the factor, one of four, that a number picks for each."""
    x, w = f"tensor<{rows}x{depth}xf32>", f"tensor<4x{depth}x{columns}xf32>"
    n, y = f"tensor<{rows}xi64>", f"tensor<{rows}x{columns}xf32>"
    return f"""
func.func @{name}(%x: {x}, %w: {w}, %n: {n}) -> {y} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : {y}
  %z = linalg.fill ins(%zero : f32) outs(%e : {y}) -> {y}
  %p = linalg.generic {{indexing_maps = [affine_map<(i, j, k) -> (i, k)>,
      affine_map<(i, j, k) -> (i)>, affine_map<(i, j, k) -> (i, j)>],
      iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%x, %n : {x}, {n}) outs(%z : {y}) {{
  ^bb0(%a: f32, %m: i64, %o: f32):
    %at = arith.index_cast %m : i64 to index
    %j = linalg.index 1 : index
    %k = linalg.index 2 : index
    %b = tensor.extract %w[%at, %k, %j] : {w}
    %c = arith.mulf %a, %b : f32
    %d = arith.addf %o, %c : f32
    linalg.yield %d : f32
  }} -> {y}
  return %p : {y}
}}
"""


def test_only_reductions_that_read_tensors_are_configured() -> None:
    module = compiler.parse(experts(24, 64, 192, "main"))
    assert configure_gathers(module) == 1
    assert "tile_sizes = [[1, 64, 0], [1, 1, 0]]" in str(module)
    assert configure_gathers(module) == 0
    plain = experts(4, 8, 8, "main").replace(
        "%b = tensor.extract %w[%at, %k, %j] : tensor<4x8x8xf32>", "%b = arith.addf %a, %a : f32"
    )
    assert configure_gathers(compiler.parse(plain)) == 0


def test_numbers_on_vulkan(vulkan: str) -> None:
    target = Target.parse(vulkan)
    text = "".join(experts(*sizes, f"f{n}") for n, sizes in enumerate(SIZES))
    binary, _ = compile_program(text, target)
    draw = np.random.default_rng(0)
    for n, (rows, depth, columns) in enumerate(SIZES):
        x = draw.standard_normal((rows, depth), np.float32)
        w = draw.standard_normal((4, depth, columns), np.float32)
        picked = draw.integers(0, 4, rows)
        (found,) = runtime.run(binary, [x, w, picked], target, function=f"f{n}")
        expected = np.einsum("ik,ikj->ij", x, w[picked])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_what_is_read_by_index_is_written_before_it_is_summed() -> None:
    text = """
func.func @main(%x: tensor<16x64xf32>) -> tensor<64xf32> {
  %zero = arith.constant 0.0 : f32
  %c63 = arith.constant 63 : index
  %e = tensor.empty() : tensor<16x64xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} outs(%e : tensor<16x64xf32>) {
  ^bb0(%o: f32):
    %i = linalg.index 0 : index
    %j = linalg.index 1 : index
    %k = arith.subi %c63, %j : index
    %v = tensor.extract %x[%i, %k] : tensor<16x64xf32>
    linalg.yield %v : f32
  } -> tensor<16x64xf32>
  %r = tensor.empty() : tensor<64xf32>
  %z = linalg.fill ins(%zero : f32) outs(%r : tensor<64xf32>) -> tensor<64xf32>
  %s = linalg.generic {indexing_maps = [affine_map<(j, i) -> (i, j)>, affine_map<(j, i) -> (j)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%y : tensor<16x64xf32>) outs(%z : tensor<64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %b = arith.addf %a, %o : f32
    linalg.yield %b : f32
  } -> tensor<64xf32>
  return %s : tensor<64xf32>
}
"""
    module = compiler.parse(text)
    assert configure_gathers(module) == 1
    assert str(module).count("compute_barrier.start") == 1
    assert configure_gathers(module) == 0
    assert module.operation.verify()
