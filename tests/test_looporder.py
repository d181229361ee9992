"""Reductions whose loops make their result in another order than its dims: right on Vulkan."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mlirules.drivers.apply.looporder import order_loops
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program

SIZES = (6, 4, 10, 3)
ORDERS = list(itertools.permutations(range(3)))
#: Channels and sizes of images by 3x3 windows: IREE alone is wrong in all but the last two.
IMAGES = [(2, 4, 4), (4, 4, 4), (12, 8, 8), (30, 6, 4), (28, 5, 4), (30, 5, 5), (8, 4, 4)]


def _dims(numbers: tuple[int, ...] | list[int]) -> str:
    return ", ".join(f"d{n}" for n in numbers)


def _sum(order: tuple[int, ...], name: str) -> str:
    """A function that weighs numbers by a loop's number and adds them up along the last dim."""
    out = f"tensor<{''.join(f'{SIZES[n]}x' for n in order)}f32>"
    whole = f"tensor<{''.join(f'{n}x' for n in SIZES)}f32>"
    loops = _dims((0, 1, 2, 3))
    return f"""
func.func @{name}(%x: {whole}) -> {out} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : {out}
  %z = linalg.fill ins(%zero : f32) outs(%e : {out}) -> {out}
  %s = linalg.generic {{indexing_maps = [affine_map<({loops}) -> ({loops})>,
      affine_map<({loops}) -> ({_dims(order)})>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}}
      ins(%x : {whole}) outs(%z : {out}) {{
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 2 : index
    %n = arith.index_cast %i : index to i32
    %f = arith.sitofp %n : i32 to f32
    %m = arith.mulf %a, %f : f32
    %b = arith.addf %m, %o : f32
    linalg.yield %b : f32
  }} -> {out}
  return %s : {out}
}}
"""


def _depthwise(channels: int, height: int, width: int, name: str) -> str:
    x = f"tensor<1x{channels}x{height + 2}x{width + 2}xf32>"
    w, y = f"tensor<{channels}x3x3xf32>", f"tensor<1x{channels}x{height}x{width}xf32>"
    return f"""
func.func @{name}(%x: {x}, %w: {w}) -> {y} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : {y}
  %z = linalg.fill ins(%zero : f32) outs(%e : {y}) -> {y}
  %c = linalg.depthwise_conv_2d_nchw_chw ins(%x, %w : {x}, {w}) outs(%z : {y}) -> {y}
  return %c : {y}
}}
"""


@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_sums_and_depthwise_convolutions_are_right(
    device: str, request: pytest.FixtureRequest
) -> None:
    if device == "vulkan":
        request.getfixturevalue("vulkan")
    text = "".join(_sum(order, f"sum{n}") for n, order in enumerate(ORDERS))
    text += "".join(_depthwise(*image, f"image{n}") for n, image in enumerate(IMAGES))
    if device == "cpu":  # the meaning stays, wherever it is compiled for
        module = compiler.parse(text, "<string>", compiler.context())
        assert order_loops(module) == len(ORDERS) - 1 + len(IMAGES)
        assert order_loops(module) == 0
        binary = compiler.compile_module(module, Target(device))
    else:
        binary, _ = compile_program(text, Target(device))
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal(SIZES, dtype=np.float32)
    sums = (numbers * np.arange(SIZES[2], dtype=np.float32)[:, None]).sum(-1)
    calls, expected = [], []
    for n, order in enumerate(ORDERS):
        calls.append((f"sum{n}", [numbers]))
        expected.append(sums.transpose(order))
    for n, (channels, height, width) in enumerate(IMAGES):
        x = rng.standard_normal((1, channels, height + 2, width + 2), dtype=np.float32)
        w = rng.standard_normal((channels, 3, 3), dtype=np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
        calls.append((f"image{n}", [x, w]))
        expected.append(np.einsum("nchwpq,cpq->nchw", windows, w))
    for (name, _), got, wanted in zip(
        calls, runtime.run_each(binary, calls, Target(device)), expected, strict=True
    ):
        assert isinstance(got, list), got
        np.testing.assert_allclose(got[0], wanted, rtol=1e-4, atol=1e-4, err_msg=name)


def test_results_in_several_orders_are_filled_before() -> None:
    text = """
func.func @f(%x: tensor<4x6x3xf32>) -> (tensor<4x6xf32>, tensor<6x4xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x6xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<4x6xf32>) -> tensor<4x6xf32>
  %g = tensor.empty() : tensor<6x4xf32>
  %y = linalg.fill ins(%zero : f32) outs(%g : tensor<6x4xf32>) -> tensor<6x4xf32>
  %s:2 = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>,
      affine_map<(d0, d1, d2) -> (d0, d1)>, affine_map<(d0, d1, d2) -> (d1, d0)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x : tensor<4x6x3xf32>) outs(%z, %y : tensor<4x6xf32>, tensor<6x4xf32>) {
  ^bb0(%a: f32, %o: f32, %p: f32):
    %b = arith.addf %a, %o : f32
    %c = arith.maximumf %a, %p : f32
    linalg.yield %b, %c : f32, f32
  } -> (tensor<4x6xf32>, tensor<6x4xf32>)
  return %s#0, %s#1 : tensor<4x6xf32>, tensor<6x4xf32>
}
"""
    module = compiler.parse(text, "<string>", compiler.context())
    assert order_loops(module) == 1
    assert str(module).count("compute_barrier.start") == 2
