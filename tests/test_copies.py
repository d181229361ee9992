"""Copies of copies that IREE alone does not compile for cpu: they compile, and are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mlirules.drivers.apply.copies import guard_copies
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program, default_for
from mlirules.language.faults import MlirulesError

CPU = Target("cpu")
T = "!torch.vtensor"


def _flipped_part(step: int, count: int) -> str:
    part = f"{T}<[15,{count}],f32>"
    return f"""
func.func @part{step}(%x: {T}<[15,32],f32>) -> {part} {{
  %dim = torch.constant.int 1
  %start = torch.constant.int 4
  %end = torch.constant.int 30
  %step = torch.constant.int {step}
  %p = torch.aten.slice.Tensor %x, %dim, %start, %end, %step :
      {T}<[15,32],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> {part}
  %dims = torch.prim.ListConstruct %dim : (!torch.int) -> !torch.list<int>
  %y = torch.aten.flip %p, %dims : {part}, !torch.list<int> -> {part}
  return %y : {part}
}}
"""


#: Column 7 of a matrix, its elements in reverse.
COLUMN = f"""
func.func @column(%x: {T}<[15,32],f32>) -> {T}<[15],f32> {{
  %dim = torch.constant.int 1
  %at = torch.constant.int 7
  %zero = torch.constant.int 0
  %p = torch.aten.select.int %x, %dim, %at :
      {T}<[15,32],f32>, !torch.int, !torch.int -> {T}<[15],f32>
  %dims = torch.prim.ListConstruct %zero : (!torch.int) -> !torch.list<int>
  %y = torch.aten.flip %p, %dims : {T}<[15],f32>, !torch.list<int> -> {T}<[15],f32>
  return %y : {T}<[15],f32>
}}
"""


def _padded_twice(first: float, second: float, name: str) -> str:
    whole, once, twice = (f"{T}<[4,18,{n}],f32>" for n in (8, 9, 11))
    return f"""
func.func @{name}(%x: {whole}) -> {twice} {{
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %a = torch.constant.float {first}
  %b = torch.constant.float {second}
  %t = torch.aten.tanh %x : {whole} -> {whole}
  %left = torch.prim.ListConstruct %one, %zero : (!torch.int, !torch.int) -> !torch.list<int>
  %p = torch.aten.constant_pad_nd %t, %left, %a :
      {whole}, !torch.list<int>, !torch.float -> {once}
  %both = torch.prim.ListConstruct %one, %one : (!torch.int, !torch.int) -> !torch.list<int>
  %q = torch.aten.constant_pad_nd %p, %both, %b :
      {once}, !torch.list<int>, !torch.float -> {twice}
  return %q : {twice}
}}
"""


def test_parts_with_steps_that_are_read_by_index() -> None:
    text = _flipped_part(2, 13) + _flipped_part(3, 9) + _flipped_part(1, 26) + COLUMN
    binary, _ = compile_program(text, CPU)
    x = np.random.default_rng(0).standard_normal((15, 32), dtype=np.float32)
    for step in (1, 2, 3):
        (got,) = runtime.run(binary, [x], CPU, function=f"part{step}")
        assert np.array_equal(got, x[:, 4:30:step][:, ::-1])
    (got,) = runtime.run(binary, [x], CPU, function="column")
    assert np.array_equal(got, x[::-1, 7])


def test_what_is_padded_twice_as_it_is_computed() -> None:
    text = _padded_twice(1.5, 0.0, "two") + _padded_twice(1.5, 1.5, "one")
    binary, _ = compile_program(text, CPU)
    x = np.random.default_rng(0).standard_normal((4, 18, 8), dtype=np.float32)
    for name, outer in (("two", 0.0), ("one", 1.5)):
        (got,) = runtime.run(binary, [x], CPU, function=name)
        once = np.pad(np.tanh(x), ((0, 0), (0, 0), (1, 0)), constant_values=1.5)
        wanted = np.pad(once, ((0, 0), (0, 0), (1, 1)), constant_values=outer)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_only_such_copies_are_guarded() -> None:
    text = """
func.func @f(%x: tensor<4x12xf32>, %n: index) -> (tensor<f32>, tensor<f32>, tensor<4x16xf32>) {
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %a = tensor.extract_slice %x[0, 0] [4, 6] [1, 2] : tensor<4x12xf32> to tensor<4x6xf32>
  %b = tensor.extract_slice %x[0, 0] [4, 6] [1, 1] : tensor<4x12xf32> to tensor<4x6xf32>
  %u = tensor.extract %a[%n, %n] : tensor<4x6xf32>
  %v = tensor.extract %b[%n, %n] : tensor<4x6xf32>
  %p = tensor.from_elements %u : tensor<f32>
  %q = tensor.from_elements %v : tensor<f32>
  %r = tensor.pad %x low[0, 1] high[0, 1] {
  ^bb0(%i: index, %j: index):
    tensor.yield %zero : f32
  } : tensor<4x12xf32> to tensor<4x14xf32>
  %s = tensor.pad %r low[0, 1] high[0, 1] {
  ^bb0(%i: index, %j: index):
    tensor.yield %one : f32
  } : tensor<4x14xf32> to tensor<4x16xf32>
  return %p, %q, %s : tensor<f32>, tensor<f32>, tensor<4x16xf32>
}
"""
    module = compiler.parse(text, "<string>", compiler.context())
    assert guard_copies(module) == 2
    assert module.operation.verify()
    assert guard_copies(module) == 0


#: The mean of windows of one place each, two apart, added to what a depthwise convolution gives.
STEPPED = """
#turned = affine_map<(n, c, h, w) -> (n, c, h, w)>
#read = affine_map<(n, c, h, w, i, j) -> (n, c, h * 2 + i, w * 2 + j)>
#window = affine_map<(n, c, h, w, i, j) -> (i, j)>
#made = affine_map<(n, c, h, w, i, j) -> (n, c, h, w)>
func.func @main(%x: tensor<1x6x6x96xf32>, %k: tensor<3x3x96xf32>, %z: tensor<1x96x4x4xf32>)
    -> tensor<1x96x2x2xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x2x2x96xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x2x2x96xf32>) -> tensor<1x2x2x96xf32>
  %c = linalg.depthwise_conv_2d_nhwc_hwc {dilations = dense<1> : tensor<2xi64>,
      strides = dense<2> : tensor<2xi64>}
    ins(%x, %k : tensor<1x6x6x96xf32>, tensor<3x3x96xf32>)
    outs(%f : tensor<1x2x2x96xf32>) -> tensor<1x2x2x96xf32>
  %g = tensor.empty() : tensor<1x96x2x2xf32>
  %t = linalg.transpose ins(%c : tensor<1x2x2x96xf32>) outs(%g : tensor<1x96x2x2xf32>)
    permutation = [0, 3, 1, 2]
  %s = tensor.extract_slice %z[0, 0, 0, 0] [1, 96, 3, 3] [1, 1, 1, 1]
    : tensor<1x96x4x4xf32> to tensor<1x96x3x3xf32>
  %o = tensor.empty() : tensor<1x1xf32>
  %h = linalg.fill ins(%zero : f32) outs(%g : tensor<1x96x2x2xf32>) -> tensor<1x96x2x2xf32>
  %m = linalg.generic {indexing_maps = [#read, #window, #made], iterator_types =
      ["parallel", "parallel", "parallel", "parallel", "reduction", "reduction"]}
    ins(%s, %o : tensor<1x96x3x3xf32>, tensor<1x1xf32>) outs(%h : tensor<1x96x2x2xf32>) {
  ^bb0(%a: f32, %w: f32, %b: f32):
    %n = arith.addf %b, %a : f32
    linalg.yield %n : f32
  } -> tensor<1x96x2x2xf32>
  %y = linalg.generic {indexing_maps = [#turned, #turned, #turned],
      iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
    ins(%t, %m : tensor<1x96x2x2xf32>, tensor<1x96x2x2xf32>) outs(%g : tensor<1x96x2x2xf32>) {
  ^bb0(%a: f32, %b: f32, %w: f32):
    %n = arith.addf %a, %b : f32
    linalg.yield %n : f32
  } -> tensor<1x96x2x2xf32>
  return %y : tensor<1x96x2x2xf32>
}
"""


def test_windows_of_one_place_beside_channels_last() -> None:
    draw = np.random.default_rng(0)
    shapes = ((1, 6, 6, 96), (3, 3, 96), (1, 96, 4, 4))
    x, k, z = (draw.standard_normal(shape).astype("f4") for shape in shapes)
    module = compiler.parse(STEPPED)
    assert guard_copies(module) == 1
    (found,) = runtime.run(compiler.compile_module(compiler.Program(module), CPU), [x, k, z], CPU)
    wanted = z[:, :, :3:2, :3:2].copy()
    for i in range(2):
        for j in range(2):
            part = x[0, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
            wanted[0, :, i, j] += (part * k).sum((0, 1))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(MlirulesError):  # where it starts to compile, the guard can go
        compiler.compile_module(compiler.Program(compiler.parse(STEPPED)), CPU)


BY_COLUMN = """\
func.func @main(%x: tensor<48x63xf32>, %w: tensor<63x18xf32>) -> tensor<48x1xf32> {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<48x1xf32>
  %z = linalg.fill ins(%zero : f32) outs(%e : tensor<48x1xf32>) -> tensor<48x1xf32>
  %c = tensor.extract_slice %w[0, 7] [63, 1] [1, 1] : tensor<63x18xf32> to tensor<63x1xf32>
{product}
  return %y : tensor<48x1xf32>
}}
"""
PLAIN = """\
  %y = linalg.matmul ins(%x, %c : tensor<48x63xf32>, tensor<63x1xf32>)
    outs(%z : tensor<48x1xf32>) -> tensor<48x1xf32>"""
TURNED = """\
  %f = tensor.empty() : tensor<1x63xf32>
  %t = linalg.transpose ins(%c : tensor<63x1xf32>) outs(%f : tensor<1x63xf32>) permutation = [1, 0]
  %y = linalg.generic {
    indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
                     affine_map<(m, n, k) -> (m, n)>],
    iterator_types = ["parallel", "parallel", "reduction"]}
    ins(%x, %t : tensor<48x63xf32>, tensor<1x63xf32>) outs(%z : tensor<48x1xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %r = arith.mulf %p, %q : f32
    %s = arith.addf %o, %r : f32
    linalg.yield %s : f32
  } -> tensor<48x1xf32>"""


@pytest.mark.parametrize("product", [PLAIN, TURNED], ids=["plain", "turned"])
def test_a_packed_product_reads_the_column_that_it_is_given(product: str) -> None:
    draw = np.random.default_rng(7)
    x, w = (draw.standard_normal(s).astype(np.float32) for s in ((48, 63), (63, 18)))
    packing = replace(default_for("cpu"), large_products=[])
    vmfb, _ = compile_program(BY_COLUMN.format(product=product), CPU, packing)
    (got,) = runtime.run(vmfb, [x, w], CPU)
    np.testing.assert_allclose(np.asarray(got), x @ w[:, 7:8], rtol=1e-4, atol=1e-5)
