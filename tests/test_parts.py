"""A part that is written into a tensor (``m[1:9, 2:7] = v``), whatever it is written into."""

from __future__ import annotations

import numpy as np
import pytest

from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import Pipeline, Recipe

CPU = Target.parse("cpu")
INT, LIST, NONE, BOOL = "!torch.int", "!torch.list<int>", "!torch.none", "!torch.bool"
V = "!torch.vtensor<[12,5],f32>"
MATRIX = "!torch.vtensor<[16,16],f32>"
#: As torch.export leaves it: a slice of a slice is taken, and each is scattered back.
SLICES = f"""\
func.func @main(%x: {{type}}, %v: {V}) -> {{type}} {{{{
  %none = torch.constant.none
  %false = torch.constant.bool false
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %2 = torch.constant.int 2
  %m2 = torch.constant.int -2
  %12 = torch.constant.int 12
  %13 = torch.constant.int 13
  %16 = torch.constant.int 16
  %value = torch.constant.float 3.0
{{base}}
  %t = torch.aten.tanh %v : {V} -> {V}
  %r = torch.aten.slice.Tensor %m, %0, {{begin}}, {{end}}, %1 :
    {{type}}, {INT}, {INT}, {INT}, {INT} -> {{part}}
  %s = torch.aten.slice_scatter %r, %t, %1, %2, %12, %2 :
    {{part}}, {V}, {INT}, {INT}, {INT}, {INT} -> {{part}}
  %n = torch.aten.slice_scatter %m, %s, %0, {{begin}}, {{end}}, %1 :
    {{type}}, {{part}}, {INT}, {INT}, {INT}, {INT} -> {{type}}
  %y = torch.aten.add.Tensor %x, %n, %1 : {{type}}, {{type}}, {INT} -> {{type}}
  return %y : {{type}}
}}}}
"""
FULL = f"""\
  %sizes = torch.prim.ListConstruct %16, %16 : ({INT}, {INT}) -> {LIST}
  %m = torch.aten.full %sizes, %value, %none, %none, %none, %false :
    {LIST}, !torch.float, {NONE}, {NONE}, {NONE}, {BOOL} -> {{type}}"""
LIKE = f"""\
  %m = torch.aten.full_like %x, %value, %none, %none, %none, %false, %none :
    {{type}}, !torch.float, {NONE}, {NONE}, {NONE}, {BOOL}, {NONE} -> {{type}}"""
FLAT = "!torch.vtensor<[256],f32>"
VIEW = f"""\
  %count = torch.constant.int 256
  %flat = torch.prim.ListConstruct %count : ({INT}) -> {LIST}
  %sizes = torch.prim.ListConstruct %16, %16 : ({INT}, {INT}) -> {LIST}
  %f = torch.aten.full %flat, %value, %none, %none, %none, %false :
    {LIST}, !torch.float, {NONE}, {NONE}, {NONE}, {BOOL} -> {FLAT}
  %m = torch.aten.view %f, %sizes : {FLAT}, {LIST} -> {{type}}"""
OTHER = "  %m = torch.aten.relu %x : {type} -> {type}"
FIXED = {"type": MATRIX, "part": "!torch.vtensor<[12,16],f32>"}
OPEN = {"type": "!torch.vtensor<[?,16],f32>", "part": "!torch.vtensor<[?,16],f32>"}


def compiled(text: str, pipeline: str) -> bytes:
    return Recipe(text, CPU, Pipeline.load(pipeline)).compile()[0]


@pytest.mark.parametrize("pipeline", ["cpu", "cpu-fast"])
@pytest.mark.parametrize(
    ("base", "types", "begin", "end"),
    [
        (FULL, FIXED, "%1", "%13"),
        (LIKE, FIXED, "%1", "%13"),
        (VIEW, FIXED, "%1", "%13"),
        (OTHER, FIXED, "%1", "%13"),
        (LIKE, OPEN, "%1", "%13"),
        # Where it ends, and so where it begins at most, is counted at run time.
        (LIKE, OPEN, "%2", "%m2"),
    ],
    ids=["full", "full_like", "view", "relu", "open sizes", "open places"],
)
def test_a_part_of_two_dims_is_written(
    base: str, types: dict[str, str], begin: str, end: str, pipeline: str
) -> None:
    text = SLICES.format(base=base.format(**types), begin=begin, end=end, **types)
    draw = np.random.default_rng(3)
    x, v = (draw.standard_normal(s).astype(np.float32) for s in ((16, 16), (12, 5)))
    (got,) = runtime.run(compiled(text, pipeline), [x, v], CPU)
    wanted = np.maximum(x, 0) if base == OTHER else np.full_like(x, 3)
    first = 2 if begin == "%2" else 1
    wanted[first : first + 12, 2:12:2] = np.tanh(v)
    np.testing.assert_allclose(np.asarray(got), x + wanted, rtol=1e-5, atol=1e-6)


#: A part of 3x4 numbers into eight rows of nine, all a number, and these into such a matrix.
FILLS = """\
func.func @main(%v: tensor<3x4xf32>) -> tensor<20x30xf32> {{
  %c = arith.constant 3.0 : f32
  %e = tensor.empty() : tensor<8x9xf32>
  %n = linalg.fill ins(%c : f32) outs(%e : tensor<8x9xf32>) -> tensor<8x9xf32>
  %f = tensor.empty() : tensor<20x30xf32>
  %m = linalg.fill ins(%c : f32) outs(%f : tensor<20x30xf32>) -> tensor<20x30xf32>
  %g = tensor.empty() : tensor<3x4xf32>
  %t = linalg.map {{ math.exp }} ins(%v : tensor<3x4xf32>) outs(%g : tensor<3x4xf32>)
  %i = tensor.insert_slice %t into %n[1, 1] [3, 4] [{s}, {t}]
    : tensor<3x4xf32> into tensor<8x9xf32>
  {into}
  return %y : tensor<20x30xf32>
}}
"""
PUT = (
    "%y = tensor.insert_slice %i into %m[2, 3] [8, 9] [{}, {}] "
    ": tensor<8x9xf32> into tensor<20x30xf32>"
)
PAD = """%y = tensor.pad %i low[2, 3] high[10, 18] {
  ^bb0(%a: index, %b: index):
    tensor.yield %c : f32
  } : tensor<8x9xf32> to tensor<20x30xf32>"""


@pytest.mark.parametrize("outer", [(1, 1), (1, 2), (2, 2), None])
@pytest.mark.parametrize("inner", [(1, 1), (1, 2), (2, 1)])
def test_a_fill_within_a_fill_of_the_same_number(
    inner: tuple[int, int], outer: tuple[int, int] | None
) -> None:
    said = PUT.format(*outer) if outer else PAD
    outer = outer or (1, 1)
    text = FILLS.format(s=inner[0], t=inner[1], into=said)
    v = np.random.default_rng(4).standard_normal((3, 4)).astype(np.float32)
    (got,) = runtime.run(compiled(text, "cpu"), [v], CPU)
    part = np.full((8, 9), 3, np.float32)
    part[1 : 1 + 3 * inner[0] : inner[0], 1 : 1 + 4 * inner[1] : inner[1]] = np.exp(v)
    wanted = np.full((20, 30), 3, np.float32)
    wanted[2 : 2 + 8 * outer[0] : outer[0], 3 : 3 + 9 * outer[1] : outer[1]] = part
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-5, atol=1e-6)


SORTED = """\
func.func @main(%x: tensor<4x6xf32>) -> {type} {{
  %c = arith.constant 3.0 : f32
  %s = iree_linalg_ext.sort dimension(0) outs(%x : tensor<4x6xf32>) {{
  ^bb0(%a: f32, %b: f32):
    %l = arith.cmpf olt, %a, %b : f32
    iree_linalg_ext.yield %l : i1
  }} -> tensor<4x6xf32>
  {then}
  return %y : {type}
}}
"""
PADDED = """%y = tensor.pad %s low[1, 2] high[0, 1] {
  ^bb0(%a: index, %b: index):
    tensor.yield %c : f32
  } : tensor<4x6xf32> to tensor<5x9xf32>"""
PLACED = """%e = tensor.empty() : tensor<5x9xf32>
  %f = linalg.fill ins(%c : f32) outs(%e : tensor<5x9xf32>) -> tensor<5x9xf32>
  %y = tensor.insert_slice %s into %f[1, 2] [4, 6] [1, 1] : tensor<4x6xf32> into tensor<5x9xf32>"""
AGAIN = """%t = tensor.extract_slice %s[1, 0] [3, 6] [1, 1] : tensor<4x6xf32> to tensor<3x6xf32>
  %y = iree_linalg_ext.sort dimension(1) outs(%t : tensor<3x6xf32>) {
  ^bb0(%a: f32, %b: f32):
    %l = arith.cmpf olt, %a, %b : f32
    iree_linalg_ext.yield %l : i1
  } -> tensor<3x6xf32>"""


#: Of as many columns as a call brings.
COUNTED = """\
  %1 = arith.constant 1 : index
  %n = tensor.dim %x, %1 : tensor<4x?xf32>
"""
OPEN_AGAIN = (
    SORTED.format(type="tensor<3x6xf32>", then=f"{COUNTED}  {AGAIN}")
    .replace("x6xf32", "x?xf32")
    .replace("[3, 6] [1, 1]", "[3, %n] [1, 1]")
)


def test_what_is_sorted_is_sorted_again_whatever_its_size() -> None:
    x = np.random.default_rng(5).standard_normal((4, 6)).astype(np.float32)
    (got,) = runtime.run(compiled(OPEN_AGAIN, "cpu"), [x], CPU)
    np.testing.assert_array_equal(np.asarray(got), np.sort(np.sort(x, 0)[1:], 1))


@pytest.mark.parametrize("then", [PADDED, PLACED, AGAIN], ids=["padded", "placed", "again"])
def test_what_is_sorted_goes_somewhere(then: str) -> None:
    type_ = "tensor<3x6xf32>" if then == AGAIN else "tensor<5x9xf32>"
    x = np.random.default_rng(5).standard_normal((4, 6)).astype(np.float32)
    (got,) = runtime.run(compiled(SORTED.format(type=type_, then=then), "cpu"), [x], CPU)
    ordered = np.sort(x, 0)
    wanted = np.full((5, 9), 3, np.float32)
    wanted[1:, 2:8] = ordered
    if then == AGAIN:
        wanted = np.sort(ordered[1:], 1)
    np.testing.assert_array_equal(np.asarray(got), wanted)
