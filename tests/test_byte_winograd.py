# ruff: noqa: E501  (rows of MLIR)
"""3x3 convolutions of bytes by Winograd's form in whole numbers (AVX2): exact sums, who refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlirules.drivers.apply.programs import read_program
from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.cost import Settings
from mlirules.drivers.pipelines.transform import Pipeline, compile_program, transform

#: Of results' rounding: the program multiplies and adds in one operation of f32.
STEP = 1
#: Zero points of the image, of the results, and of what is added.
ZERO, TO, OTHER = 7, 120, 31
SCALE, OTHER_SCALE = 0.05, 0.4
KERNELS = ("kernel-byte-convolution-bare-laid", "kernel-byte-convolution-add-laid")


@pytest.fixture(scope="module")
def cpu() -> Target:
    target = Target("cpu", "x86-64-v3")
    if reason := target.available():
        pytest.skip(reason)
    return target


def program(
    image: tuple[int, ...],
    weights: np.ndarray,
    pads: tuple[int, int],
    to: float,
    *,
    onto: bool = False,
    stride: int = 1,
) -> str:
    """A convolution as PT2E quantizes it, of an image of bytes to one of bytes."""
    n, c, h, w = image
    f = weights.shape[0]
    rows, columns = ((d + 2 * p - 3) // stride + 1 for d, p in zip((h, w), pads, strict=True))
    x, y = f"[{n},{c},{h},{w}]", f"[{n},{f},{rows},{columns}]"
    held = f"!torch.vtensor<[{f},{c},3,3],si8>"
    more = f", %r: !torch.vtensor<{y},ui8>" if onto else ""
    literal = f'dense<"0x{weights.tobytes().hex()}"> : tensor<{f}x{c}x3x3xsi8>'
    asked = "!torch.float, !torch.int, !torch.int, !torch.int, !torch.int"
    added = f"""
  %so = torch.constant.float {OTHER_SCALE}
  %zo = torch.constant.int {OTHER}
  %rd = torch.quantized_decomposed.dequantize_per_tensor %r, %so, %zo, %i0, %i255, %i0, %none : !torch.vtensor<{y},ui8>, {asked}, !torch.none -> !torch.vtensor<{y},f32>
  %a = torch.aten.add.Tensor %h, %rd, %i1 : !torch.vtensor<{y},f32>, !torch.vtensor<{y},f32>, !torch.int -> !torch.vtensor<{y},f32>
"""
    return f"""
func.func @main(%x: !torch.vtensor<{x},ui8>, %sw: !torch.vtensor<[{f}],f32>, %b: !torch.vtensor<[{f}],f32>{more}) -> !torch.vtensor<{y},ui8> {{
  %i0 = torch.constant.int 0
  %i1 = torch.constant.int 1
  %i255 = torch.constant.int 255
  %im128 = torch.constant.int -128
  %i127 = torch.constant.int 127
  %none = torch.constant.none
  %false = torch.constant.bool false
  %above = torch.constant.int {pads[0]}
  %left = torch.constant.int {pads[1]}
  %step = torch.constant.int {stride}
  %ones = torch.prim.ListConstruct %i1, %i1 : (!torch.int, !torch.int) -> !torch.list<int>
  %steps = torch.prim.ListConstruct %step, %step : (!torch.int, !torch.int) -> !torch.list<int>
  %pads = torch.prim.ListConstruct %above, %left : (!torch.int, !torch.int) -> !torch.list<int>
  %nothing = torch.prim.ListConstruct : () -> !torch.list<int>
  %s = torch.constant.float {SCALE}
  %z = torch.constant.int {ZERO}
  %to = torch.constant.float {to}
  %zero = torch.constant.int {TO}
  %w = torch.vtensor.literal({literal}) : {held}
  %d = torch.quantized_decomposed.dequantize_per_tensor %x, %s, %z, %i0, %i255, %i0, %none : !torch.vtensor<{x},ui8>, {asked}, !torch.none -> !torch.vtensor<{x},f32>
  %e = torch.quantized_decomposed.dequantize_per_channel %w, %sw, %none, %i0, %im128, %i127, %i1, %none : {held}, !torch.vtensor<[{f}],f32>, !torch.none, !torch.int, !torch.int, !torch.int, !torch.int, !torch.none -> !torch.vtensor<[{f},{c},3,3],f32>
  %h = torch.aten.convolution %d, %e, %b, %steps, %pads, %ones, %false, %nothing, %i1 : !torch.vtensor<{x},f32>, !torch.vtensor<[{f},{c},3,3],f32>, !torch.vtensor<[{f}],f32>, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int -> !torch.vtensor<{y},f32>
  {added if onto else ""}
  %o = torch.quantized_decomposed.quantize_per_tensor {"%a" if onto else "%h"}, %to, %zero, %i0, %i255, %i0 : !torch.vtensor<{y},f32>, {asked} -> !torch.vtensor<{y},ui8>
  return %o : !torch.vtensor<{y},ui8>
}}
"""


def sums(image: np.ndarray, weights: np.ndarray, pads: tuple[int, int]) -> np.ndarray:
    """The sums of products of whole numbers."""
    above, left = pads
    less = image.astype(np.int64) - ZERO
    padded = np.pad(less, ((0, 0), (0, 0), (above, above), (left, left)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("ncijpq,fcpq->nfij", windows, weights.astype(np.int64), optimize=True)


def dispatches(text: str, target: Target, path: Path) -> int:
    """How many the kernels of the default pipeline are: Winograd's form has two, others one."""
    path.write_text(text)
    stages = Pipeline.load("cpu-fast").stages
    made = transform(read_program(path), stages, costs=Settings(target))
    assert sum(n for rule, n in made.outcome.counts.items() if rule in KERNELS) == 1
    return made.text.count("= flow.dispatch")


@pytest.mark.parametrize(
    ("image", "filters", "pads", "onto"),
    [
        # The last tiles reach beyond the image both ways; filters that fill no block of 16.
        ((1, 32, 9, 11), 40, (1, 1), False),
        # Two images, no border above, channels that fill no vector, what is added.
        ((2, 20, 8, 7), 48, (0, 1), True),
        # 49 tiles, five at a time, in three blocks; a border that is wider than the window needs.
        ((1, 64, 13, 13), 64, (1, 1), False),
        ((1, 36, 11, 12), 44, (2, 1), True),
        # Four tiles; results of filters stored with a mask.
        ((1, 16, 4, 4), 20, (1, 1), False),
        # Filters in parts.
        ((1, 272, 6, 5), 72, (1, 0), False),
    ],
)
@pytest.mark.parametrize("numbers", ["any", "ends"])
def test_numbers(
    image: tuple[int, ...],
    filters: int,
    pads: tuple[int, int],
    onto: bool,
    numbers: str,
    cpu: Target,
    tmp_path: Path,
) -> None:
    """Sums are exact: what is rounded from them is what numpy rounds, also at bytes' ends."""
    rng = np.random.default_rng(5)
    held = (filters, image[1], 3, 3)
    if numbers == "any":
        x = rng.integers(0, 256, image, dtype=np.uint8)
        weights = rng.integers(-128, 128, held).astype(np.int8)
    else:
        x = rng.choice(np.array([0, 255], np.uint8), image)
        weights = np.broadcast_to(
            np.where(rng.random((filters, 1, 3, 3)) < 0.5, -128, 127), held
        ).astype(np.int8)
    each = (rng.uniform(0.5, 1.5, filters) / 128).astype(np.float32)
    bias = rng.standard_normal(filters).astype(np.float32)
    exact = sums(x, weights, pads) * (each.astype(np.float64) * SCALE)[:, None, None]
    exact += bias[:, None, None]
    to = float(np.abs(exact).max() / 150)
    given = [x, each, bias]
    if onto:
        given.append(rng.integers(0, 256, exact.shape, dtype=np.uint8))
        exact += (given[-1].astype(np.float64) - OTHER) * OTHER_SCALE
    text = program(image, weights, pads, to, onto=onto)
    path = tmp_path / "convolution.mlir"
    assert dispatches(text, cpu, path) == 2
    binary, _ = compile_program(read_program(path), cpu, path=str(path), fallback=False)
    (found,) = runtime.run(binary, given, cpu, "main")
    wanted = np.clip(np.rint(exact / to) + TO, 0, 255)
    apart = np.abs(found.view(np.uint8).astype(int) - wanted)
    assert apart.max() <= STEP
    assert (apart > 0).mean() < 1e-3
    assert len(np.unique(wanted)) > 16


@pytest.mark.parametrize(
    ("image", "filters", "stride", "name", "takes"),
    [
        ((1, 32, 9, 11), 40, 1, "x86-64-v3", 2),
        ((1, 32, 9, 11), 40, 1, "x86-64-v4", 2),
        ((1, 32, 9, 11), 40, 2, "x86-64-v3", 1),
        # Rows of windows that four channels do not divide; few channels; few tiles.
        ((1, 18, 9, 11), 40, 1, "x86-64-v3", 1),
        ((1, 12, 9, 11), 40, 1, "x86-64-v3", 1),
        ((1, 32, 3, 2), 40, 1, "x86-64-v3", 1),
        # The operation for products of bytes does four at once.
        ((1, 32, 9, 11), 40, 1, "znver4", 1),
    ],
)
def test_who_takes_it(
    image: tuple[int, ...], filters: int, stride: int, name: str, takes: int, tmp_path: Path
) -> None:
    weights = np.ones((filters, image[1], 3, 3), np.int8)
    text = program(image, weights, (1, 1), 1.0, stride=stride)
    assert dispatches(text, Target("cpu", name), tmp_path / "convolution.mlir") == takes
