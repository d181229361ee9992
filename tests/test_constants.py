"""Constant expressions are evaluated here as the compiler's own programs evaluate them."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mlirules.drivers.iree import bytecode, compiler, constants, runtime
from mlirules.drivers.iree.compiler import Job, Program
from mlirules.drivers.iree.initializers import evaluate
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import open_ops
from mlirules.drivers.pipelines.transform import compile_program

CPU = Target("cpu")
RNG = np.random.default_rng(5)


def _hex(array: np.ndarray) -> str:
    return array.tobytes().hex().upper()


def _weight(name: str, array: np.ndarray, element: str) -> tuple[str, str]:
    """A constant, and its resource."""
    type_ = f"tensor<{'x'.join(map(str, array.shape))}x{element}>"
    return f"%{name} = arith.constant dense_resource<{name}> : {type_}", (
        f'{name}: "0x40000000{_hex(array)}"'
    )


W, W_BYTES = _weight("w", RNG.standard_normal((9, 10)).astype(np.float32), "f32")
N, N_BYTES = _weight("n", RNG.integers(-9, 9, (9, 10)), "i64")
INTO = "tensor<9x10xf32>"
SAME = "affine_map<(i, j) -> (i, j)>"
ROW = "affine_map<(i, j) -> (i)>"


def _each(body: str, of: str = "%w", type_: str = INTO) -> str:
    """A program over each element of a weight."""
    return f"""
    %c = linalg.generic {{indexing_maps = [{SAME}, {SAME}],
        iterator_types = ["parallel", "parallel"]}}
        ins({of} : {type_}) outs(%e : {INTO}) {{
    ^bb0(%a: {type_.rstrip(">").split("x")[-1]}, %o: f32):
      {body}
    }} -> {INTO}"""


def _sum(op: str, zero: str) -> str:
    return f"""
    %z = arith.constant {zero} : f32
    %re = tensor.empty() : tensor<9xf32>
    %f = linalg.fill ins(%z : f32) outs(%re : tensor<9xf32>) -> tensor<9xf32>
    %r = linalg.generic {{indexing_maps = [{SAME}, {ROW}],
        iterator_types = ["parallel", "reduction"]}}
        ins(%w : {INTO}) outs(%f : tensor<9xf32>) {{
    ^bb0(%a: f32, %o: f32):
      %m = arith.mulf %a, %a : f32
      %s = {op} %o, %m : f32
      linalg.yield %s : f32
    }} -> tensor<9xf32>
    %c = linalg.generic {{indexing_maps = [{ROW}, {SAME}],
        iterator_types = ["parallel", "parallel"]}}
        ins(%r : tensor<9xf32>) outs(%e : {INTO}) {{
    ^bb0(%a: f32, %o: f32):
      linalg.yield %a : f32
    }} -> {INTO}"""


#: Each makes %c of the weights %w (f32) and %n (i64), both of 9 by 10.
EXPRESSIONS = {
    "transposed": """
    %te = tensor.empty() : tensor<10x9xf32>
    %t = linalg.transpose ins(%w : tensor<9x10xf32>) outs(%te : tensor<10x9xf32>)
        permutation = [1, 0]
    %c = tensor.collapse_shape %t [[0, 1]] : tensor<10x9xf32> into tensor<90xf32>
    %d = tensor.expand_shape %c [[0, 1]] output_shape [9, 10]
        : tensor<90xf32> into tensor<9x10xf32>""".replace("%c =", "%g =")
    .replace("%c [[", "%g [[")
    .replace("%d =", "%c ="),
    "scaled": _each(
        "%k = arith.constant 0.5 : f32\n%q = arith.addf %a, %k : f32\n%s = math.absf %q : f32\n"
        "%r = math.rsqrt %s : f32\nlinalg.yield %r : f32"
    ),
    "limited": _each(
        "%k = arith.constant 0.25 : f32\n%p = arith.cmpf ugt, %a, %k : f32\n"
        "%s = arith.select %p, %k, %a : f32\nlinalg.yield %s : f32"
    ),
    "of whole numbers": _each(
        "%k = arith.constant 3 : i64\n%d = arith.divsi %a, %k : i64\n"
        "%m = arith.remsi %a, %k : i64\n%p = arith.muli %d, %m : i64\n"
        "%u = arith.cmpi ult, %a, %k : i64\n%v = arith.extui %u : i1 to i64\n"
        "%t = arith.extsi %u : i1 to i64\n%y = arith.addi %p, %v : i64\n"
        "%h = arith.subi %y, %t : i64\n%s = arith.sitofp %h : i64 to f32\n"
        "linalg.yield %s : f32",
        "%n",
        "tensor<9x10xi64>",
    ),
    "a logarithm of nothing that is not read": _each(
        "%k = arith.constant 0.0 : f32\n%p = arith.cmpf ogt, %a, %k : f32\n"
        "%m = arith.maximumf %a, %k : f32\n%l = math.log %m : f32\n"
        "%h = arith.fptosi %l : f32 to i64\n%w0 = arith.constant 7 : i64\n"
        "%n0 = arith.minsi %h, %w0 : i64\n%s = arith.select %p, %n0, %w0 : i64\n"
        "%f = arith.sitofp %s : i64 to f32\nlinalg.yield %f : f32"
    ),
    "summed": _sum("arith.addf", "1.0"),
    "greatest": _sum("arith.maximumf", "-1.0"),
    "by place": """
    %c = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>],
        iterator_types = ["parallel", "parallel"]} outs(%e : tensor<9x10xf32>) {
    ^bb0(%o: f32):
      %i = linalg.index 0 : index
      %eight = arith.constant 8 : index
      %up = arith.subi %eight, %i : index
      %j = linalg.index 1 : index
      %g = tensor.extract %w[%up, %j] : tensor<9x10xf32>
      %q = arith.index_cast %j : index to i64
      %f = arith.sitofp %q : i64 to f32
      %s = arith.mulf %g, %f : f32
      linalg.yield %s : f32
    } -> tensor<9x10xf32>""",
    "padded parts": """
    %zero = arith.constant 2.0 : f32
    %p = tensor.extract_slice %w[1, 2] [4, 4] [2, 1] : tensor<9x10xf32> to tensor<4x4xf32>
    %c = tensor.pad %p low[2, 1] high[3, 5] {
    ^bb0(%i: index, %j: index):
      tensor.yield %zero : f32
    } : tensor<4x4xf32> to tensor<9x10xf32>""",
    "all sums": """
    %n0 = tensor.empty() : tensor<9x10xf32>
    %k = arith.constant 0.0 : f32
    %ae = tensor.empty() : tensor<9xf32>
    %acc = linalg.fill ins(%k : f32) outs(%ae : tensor<9xf32>) -> tensor<9xf32>
    %c, %last = iree_linalg_ext.scan dimension(1) inclusive(true)
        ins(%w : tensor<9x10xf32>) outs(%n0, %acc : tensor<9x10xf32>, tensor<9xf32>) {
    ^bb0(%a: f32, %b: f32):
      %s = arith.addf %a, %b : f32
      iree_linalg_ext.yield %s : f32
    } -> tensor<9x10xf32>, tensor<9xf32>""",
    "inserted": """
    %p = tensor.extract_slice %w[0, 0] [3, 10] [1, 1] : tensor<9x10xf32> to tensor<3x10xf32>
    %q = tensor.concat dim(0) %p, %p, %p
        : (tensor<3x10xf32>, tensor<3x10xf32>, tensor<3x10xf32>) -> tensor<9x10xf32>
    %c = tensor.insert_slice %p into %q[2, 0] [3, 10] [1, 1]
        : tensor<3x10xf32> into tensor<9x10xf32>""",
}


def _program(made: str) -> str:
    """The expression's result added to an input, among enough that computes."""
    rest = "\n".join(
        f"    %x{n + 1} = arith.negf %x{n} : {INTO}\n" for n in range(constants._FEW_OPS)
    )
    last = constants._FEW_OPS
    return f"""
func.func @main(%x: {INTO}) -> {INTO} {{
    {W}
    {N}
    %e = tensor.empty() : {INTO}
    {made}
    %x0 = arith.addf %x, %c : {INTO}
{rest}
    return %x{last} : {INTO}
}}
{{-# dialect_resources: {{ builtin: {{ {W_BYTES}, {N_BYTES} }} }} #-}}
"""


def _run(binary: bytes) -> np.ndarray:
    x = np.zeros((9, 10), np.float32)
    return np.asarray(runtime.run(binary, [x], CPU)[0])


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_of_weights_is_what_the_compiler_makes_of_it(name: str) -> None:
    text = _program(EXPRESSIONS[name])
    # Nothing is left to its programs, and a flag leaves all to them.
    source = Program(compiler.parse(text), "test")
    made, job = constants.evaluated(source, Job(CPU))
    assert job.compile_from == "global-optimization"
    assert not [op for op in open_ops(made.module) if op.name == "util.initializer"]
    ours, _ = compile_program(text, CPU)
    theirs = compiler.compile_module(text, CPU)
    found, expected = _run(ours), _run(theirs)
    assert np.ptp(found) > 0
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_what_is_packed_for_a_product_is_packed_here() -> None:
    """Blocks of 16 of a matrix of 40 by 90, whose last ones are not full."""
    text = """
util.global private @packed : tensor<3x90x16x1xf32>
util.initializer {
  %w = arith.constant dense_resource<w> : tensor<40x90xf32>
  %zero = arith.constant 3.0 : f32
  %e = tensor.empty() : tensor<3x90x16x1xf32>
  %p = linalg.pack %w padding_value(%zero : f32) outer_dims_perm = [0, 1] inner_dims_pos = [0, 1]
      inner_tiles = [16, 1] into %e : tensor<40x90xf32> -> tensor<3x90x16x1xf32>
  util.global.store %p, @packed : tensor<3x90x16x1xf32>
  util.return
}
"""
    weights = RNG.standard_normal((40, 90)).astype(np.float32)
    module = compiler.parse(text)
    assert evaluate(module, {"w": memoryview(weights.tobytes())})
    [made] = [op.operation for op in module.body.operations]
    held = module.operation.get_asm(print_generic_op_form=True)
    assert "linalg.pack" not in held
    with module.context:
        alone = compiler.ir.Module.create(compiler.ir.Location.unknown())
        made.clone(compiler.ir.InsertionPoint(alone.body))
    digits = str(alone).rpartition('"0x')[2].partition('"')[0][8:]
    found = np.frombuffer(bytes.fromhex(digits), np.float32).reshape(3, 90, 16, 1)
    whole = np.full((48, 90), 3.0, np.float32)
    whole[:40] = weights
    assert (found == whole.reshape(3, 16, 90, 1).transpose(0, 2, 1, 3)).all()


def _initialised(text: str, **given: np.ndarray) -> np.ndarray:
    """What a program's last initializer stores, of f32."""
    module = compiler.parse(text)
    blobs = {n: memoryview(a.astype(np.float32).tobytes()) for n, a in given.items()}
    assert evaluate(module, blobs)
    assert "util.initializer" not in str(module)
    return np.array(json.loads(str(module).rpartition("dense<")[2].partition(">")[0]), np.float32)


TIMES = """
    %p = arith.mulf {a}, {b} : f32
    %s = arith.addf {c}, {d} : f32
"""


@pytest.mark.parametrize(
    ("first", "second", "made", "turned"),
    [
        # A matrix along a dimension in the middle, as Winograd's filters have it twice; and first.
        ("a, b, k, c", "d, k", "a, b, d, c", False),
        ("d, k", "a, k, b, c", "b, d, c, a", True),
        # Two loops that are summed over; none that stays of one factor; one that both keep, and
        # one that only one factor is summed over, which are no products of matrices.
        ("a, k, l", "l, b, k", "b, a", True),
        ("k, l", "k, l", "", False),
        ("a, k", "a, k", "a", False),
        ("a, k, l", "b, k", "a, b", False),
    ],
)
def test_sums_of_products_of_weights(first: str, second: str, made: str, turned: bool) -> None:
    sizes = {"a": 3, "b": 4, "c": 2, "d": 3, "k": 5, "l": 7}
    loops = sorted({*first, *second} & set(sizes))
    shapes = {n: [sizes[d] for d in n.split(", ") if d] for n in (first, second, made)}
    types = {n: f"tensor<{'x'.join(map(str, [*shape, 'f32']))}>" for n, shape in shapes.items()}
    maps = [f"affine_map<({', '.join(loops)}) -> ({n})>" for n in (first, second, made)]
    kinds = ['"parallel"' if d in made else '"reduction"' for d in loops]
    body = TIMES.format(
        **dict(zip("ab", ("%y", "%x") if turned else ("%x", "%y"), strict=True)),
        **dict(zip("cd", ("%p", "%o") if turned else ("%o", "%p"), strict=True)),
    )
    text = f"""
util.global private @made : {types[made]}
util.initializer {{
  %l = arith.constant dense_resource<l> : {types[first]}
  %r = arith.constant dense_resource<r> : {types[second]}
  %e = arith.constant dense<0.5> : {types[made]}
  %m = linalg.generic {{indexing_maps = [{", ".join(maps)}], iterator_types = [{", ".join(kinds)}]}}
      ins(%l, %r : {types[first]}, {types[second]}) outs(%e : {types[made]}) {{
  ^bb0(%x: f32, %y: f32, %o: f32):
    {body}
    linalg.yield %s : f32
  }} -> {types[made]}
  util.global.store %m, @made : {types[made]}
  util.return
}}
"""
    given = [RNG.standard_normal(shapes[n]).astype(np.float32) for n in (first, second)]
    letters = [n.replace(", ", "") for n in (first, second, made)]
    expected = 0.5 + np.einsum(
        f"{letters[0]},{letters[1]}->{letters[2]}", *(array.astype(np.float64) for array in given)
    )
    found = _initialised(text, l=given[0], r=given[1])
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_sums_of_narrow_products_stay_narrow(element: str) -> None:
    """Numpy multiplies matrices of bf16 in f32, and gives that."""
    text = f"""
util.global private @made : tensor<2x3x{element}>
util.initializer {{
  %l = arith.constant dense<[[1.0, 2.0], [3.0, 4.0]]> : tensor<2x2x{element}>
  %r = arith.constant dense<[[1.0, 2.0], [0.5, 4.0], [2.0, 1.0]]> : tensor<3x2x{element}>
  %e = arith.constant dense<1.0> : tensor<2x3x{element}>
  %m = linalg.generic {{indexing_maps = [affine_map<(a, b, k) -> (a, k)>,
      affine_map<(a, b, k) -> (b, k)>, affine_map<(a, b, k) -> (a, b)>],
      iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%l, %r : tensor<2x2x{element}>, tensor<3x2x{element}>) outs(%e : tensor<2x3x{element}>) {{
  ^bb0(%x: {element}, %y: {element}, %o: {element}):
    {TIMES.format(a="%x", b="%y", c="%o", d="%p").replace("f32", element)}
    linalg.yield %s : {element}
  }} -> tensor<2x3x{element}>
  util.global.store %m, @made : tensor<2x3x{element}>
  util.return
}}
"""
    module = compiler.parse(text)
    assert evaluate(module, {})
    module.operation.verify()
    held = str(module)
    if element == "bf16":  # a resource: an alignment, then the numbers
        digits = bytes.fromhex(held.rpartition('"0x')[2].partition('"')[0])[4:]
        found = np.frombuffer(digits, ml_dtypes.bfloat16).astype(np.float32)
    else:
        found = np.array(json.loads(held.rpartition("dense<")[2].partition(">")[0])).ravel()
    assert found.tolist() == [6.0, 9.5, 5.0, 12.0, 18.5, 11.0]


def test_what_only_initializers_read_is_not_kept() -> None:
    """An expression in parts, as the compiler takes it out of functions."""
    text = """
util.global private @part : tensor<3xf32>
util.global private @read : tensor<3xf32>
util.global @shown : tensor<3xf32>
util.global private @whole : tensor<3xf32>
util.initializer {
  %c = arith.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
  %n = arith.negf %c : tensor<3xf32>
  util.global.store %n, @part : tensor<3xf32>
  util.global.store %n, @read : tensor<3xf32>
  util.global.store %n, @shown : tensor<3xf32>
  util.return
}
util.initializer {
  %p = util.global.load @part : tensor<3xf32>
  %r = util.global.load @read : tensor<3xf32>
  %s = util.global.load @shown : tensor<3xf32>
  %a = arith.addf %p, %r : tensor<3xf32>
  %b = arith.addf %a, %s : tensor<3xf32>
  util.global.store %b, @whole : tensor<3xf32>
  util.return
}
util.func public @main() -> (tensor<3xf32>, tensor<3xf32>) {
  %w = util.global.load @whole : tensor<3xf32>
  %r = util.global.load @read : tensor<3xf32>
  util.return %w, %r : tensor<3xf32>, tensor<3xf32>
}
"""
    module = compiler.parse(text)
    assert evaluate(module, {})
    held = str(module)
    assert "@part" not in held
    assert "private @read = dense<[-1.000000e+00" in held
    assert "@shown = dense<[-1.000000e+00" in held
    assert "private @whole = dense<[-3.000000e+00" in held


def test_what_is_not_known_stays_with_what_reads_it_where_a_part_is_asked_for() -> None:
    text = """
util.global private @other : tensor<2xf32>
util.global private @of_other : tensor<2xf32>
util.global private @known : tensor<2xf32>
util.func private @unknown(%x: tensor<2xf32>) -> tensor<2xf32>
util.initializer {
  %c = arith.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %u = util.call @unknown(%c) : (tensor<2xf32>) -> tensor<2xf32>
  util.global.store %u, @other : tensor<2xf32>
  util.return
}
util.initializer {
  %o = util.global.load @other : tensor<2xf32>
  %n = arith.negf %o : tensor<2xf32>
  util.global.store %n, @of_other : tensor<2xf32>
  util.return
}
util.initializer {
  %c = arith.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %n = arith.negf %c : tensor<2xf32>
  util.global.store %n, @known : tensor<2xf32>
  util.return
}
"""
    module = compiler.parse(text)
    given = str(module)
    assert not evaluate(module, {})
    assert str(module) == given
    assert evaluate(module, {}, partly=True)
    held = str(module)
    assert held.count("util.initializer") == 2
    assert "@known = dense<[-1.000000e+00, -2.000000e+00]>" in held
    assert "@of_other : tensor<2xf32>" in held


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_what_was_packed_is_unpacked_here(order: list[int]) -> None:
    """Blocks of 4 by 3 of a matrix of 7 by 8, whose last ones are not full."""
    given = RNG.standard_normal((7, 8)).astype(np.float32)
    blocks = np.zeros((8, 9), np.float32)
    blocks[:7, :8] = given
    blocks = blocks.reshape(2, 4, 3, 3).transpose([[0, 2][d] for d in order] + [1, 3])
    type_ = f"tensor<{'x'.join(map(str, blocks.shape))}xf32>"
    found = _initialised(
        f"""
util.global private @made : tensor<7x8xf32>
util.initializer {{
  %p = arith.constant dense_resource<p> : {type_}
  %e = tensor.empty() : tensor<7x8xf32>
  %u = linalg.unpack %p outer_dims_perm = {order} inner_dims_pos = [0, 1] inner_tiles = [4, 3]
      into %e : {type_} -> tensor<7x8xf32>
  util.global.store %u, @made : tensor<7x8xf32>
  util.return
}}
""",
        p=blocks,
    )
    assert (found == given).all()


@pytest.mark.parametrize(
    ("op", "left", "right", "sum_"),
    [
        ("linalg.matmul", (5, 3), (3, 4), "ik,kj->ij"),
        ("linalg.matmul indexing_maps = [#left, #turned, #made]", (5, 3), (4, 3), "ik,jk->ij"),
        ("linalg.batch_matmul", (2, 5, 3), (2, 3, 4), "bik,bkj->bij"),
    ],
)
def test_products_of_weights(
    op: str, left: tuple[int, ...], right: tuple[int, ...], sum_: str
) -> None:
    a, b = (RNG.standard_normal(shape).astype(np.float32) for shape in (left, right))
    expected = np.einsum(sum_, a, b) + 1
    types = [f"tensor<{'x'.join(map(str, each.shape))}xf32>" for each in (a, b, expected)]
    found = _initialised(
        f"""
#left = affine_map<(i, j, k) -> (i, k)>
#turned = affine_map<(i, j, k) -> (j, k)>
#made = affine_map<(i, j, k) -> (i, j)>
util.global private @made : {types[2]}
util.initializer {{
  %l = arith.constant dense_resource<l> : {types[0]}
  %r = arith.constant dense_resource<r> : {types[1]}
  %one = arith.constant dense<1.0> : {types[2]}
  %p = {op} ins(%l, %r : {types[0]}, {types[1]}) outs(%one : {types[2]}) -> {types[2]}
  util.global.store %p, @made : {types[2]}
  util.return
}}
""",
        l=a,
        r=b,
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


MASK = """
func.func @main(%x: !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[16,16],f32> {
  %n0 = torch.constant.int 0
  %n1 = torch.constant.int 1
  %n6 = torch.constant.int 6
  %n12 = torch.constant.int 12
  %n16 = torch.constant.int 16
  %none = torch.constant.none
  %false = torch.constant.bool false
  %size = torch.prim.ListConstruct %n16, %n16 : (!torch.int, !torch.int) -> !torch.list<int>
  %m = torch.aten.full %size, %n0, %n6, %none, %none, %false : !torch.list<int>, !torch.int, !torch.int, !torch.none, !torch.none, !torch.bool -> !torch.vtensor<[16,16],f32>
  %v = torch.vtensor.literal(dense<2.0> : tensor<f32>) : !torch.vtensor<[],f32>
  %r = torch.aten.slice.Tensor %m, %n0, %n0, %n12, %n1 : !torch.vtensor<[16,16],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[12,16],f32>
  %c = torch.aten.slice.Tensor %r, %n1, %n0, %n12, %n1 : !torch.vtensor<[12,16],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[12,12],f32>
  %w = torch.aten.copy %c, %v, %false : !torch.vtensor<[12,12],f32>, !torch.vtensor<[],f32>, !torch.bool -> !torch.vtensor<[12,12],f32>
  %s = torch.aten.slice_scatter %r, %w, %n1, %n0, %n12, %n1 : !torch.vtensor<[12,16],f32>, !torch.vtensor<[12,12],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[12,16],f32>
  %n = torch.aten.slice_scatter %m, %s, %n0, %n0, %n12, %n1 : !torch.vtensor<[16,16],f32>, !torch.vtensor<[12,16],f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !torch.vtensor<[16,16],f32>
  %z = torch.aten.add.Tensor %x, %n, %n1 : !torch.vtensor<[16,16],f32>, !torch.vtensor<[16,16],f32>, !torch.int -> !torch.vtensor<[16,16],f32>
  return %z : !torch.vtensor<[16,16],f32>
}
"""  # noqa: E501


@pytest.mark.parametrize("flags", [[], ["--iree-opt-const-eval=true"]])
def test_a_mask_that_is_written_part_by_part(flags: list[str]) -> None:
    """``m[:12, :12] = 2``, as torch.export has it: evaluated here or by IREE."""
    binary, _ = compile_program(MASK, CPU, flags=flags)
    (found,) = runtime.run(binary, [np.zeros((16, 16), np.float32)], CPU)
    expected = np.zeros((16, 16), np.float32)
    expected[:12, :12] = 2
    assert (np.asarray(found) == expected).all()


def test_a_product_in_blocks() -> None:
    shapes = {"l": (2, 3, 4, 1), "r": (3, 3, 5, 1)}
    given = {name: RNG.standard_normal(shape) for name, shape in shapes.items()}
    types = {n: f"tensor<{'x'.join(map(str, shape))}xf32>" for n, shape in shapes.items()}
    text = f"""
util.global private @made : tensor<2x3x4x5xf32>
util.initializer {{
  %l = arith.constant dense_resource<l> : {types["l"]}
  %r = arith.constant dense_resource<r> : {types["r"]}
  %k = arith.constant dense<1.0> : tensor<2x3x4x5xf32>
  %p = linalg.mmt4d ins(%l, %r : {types["l"]}, {types["r"]}) outs(%k : tensor<2x3x4x5xf32>)
      -> tensor<2x3x4x5xf32>
  util.global.store %p, @made : tensor<2x3x4x5xf32>
  util.return
}}
"""
    module = compiler.parse(text)
    blobs = {n: memoryview(array.astype(np.float32).tobytes()) for n, array in given.items()}
    assert evaluate(module, blobs)
    digits = str(module).rpartition("dense<")[2]
    left = given["l"].transpose(0, 2, 1, 3).reshape(8, 3)
    right = given["r"].transpose(0, 2, 1, 3).reshape(15, 3)
    product = (left @ right.T + 1).reshape(2, 4, 3, 5).transpose(0, 2, 1, 3)
    literal = digits.partition(">")[0].strip('"').removeprefix("0x")
    found = np.frombuffer(bytes.fromhex(literal), np.float32).reshape(2, 3, 4, 5)
    np.testing.assert_allclose(found, product, rtol=1e-5, atol=1e-5)


def test_narrow_floats_are_as_narrow_here() -> None:
    text = """
util.global private @sum : tensor<3xf32>
util.initializer {
  %w = arith.constant dense_resource<w> : tensor<3xbf16>
  %s = arith.addf %w, %w : tensor<3xbf16>
  %k = arith.constant dense<0.00390625> : tensor<3xbf16>
  %t = arith.addf %s, %k : tensor<3xbf16>
  %f = arith.extf %t : tensor<3xbf16> to tensor<3xf32>
  util.global.store %f, @sum : tensor<3xf32>
  util.return
}
"""
    module = compiler.parse(text)
    halves = np.array([0x3F80, 0x4000, 0xBF80], np.uint16)  # 1, 2 and -1
    assert evaluate(module, {"w": memoryview(halves.tobytes())})
    # Of 2 + 1/256 and 4 + 1/256 bf16 keeps what has eight bits.
    assert "dense<[2.000000e+00, 4.000000e+00, -2.000000e+00]>" in str(module)


@pytest.mark.parametrize("count", [3, 300])
def test_narrow_floats_are_read_where_they_stand(count: int) -> None:
    """Few are written as decimals, many by their bits."""
    given = [0x3F80 + n % 7 for n in range(count - 1)] + [0xFFC0]  # near 1, and a NaN
    digits = "".join(f"{bits & 255:02X}{bits >> 8:02X}" for bits in given)
    text = f"""
util.global private @wide : tensor<{count}xf32>
util.initializer {{
  %w = arith.constant dense<"0x{digits}"> : tensor<{count}xbf16>
  %f = arith.extf %w : tensor<{count}xbf16> to tensor<{count}xf32>
  util.global.store %f, @wide : tensor<{count}xf32>
  util.return
}}
"""
    module = compiler.parse(text)
    assert evaluate(module, {})
    found = str(module).rpartition('"0x')[2].partition('"')[0]
    if count == 3:
        assert "@wide = dense<[1.000000e+00, 1.0078125, 0xFFC00000]>" in str(module)
    else:
        values = np.frombuffer(bytes.fromhex(found)[4:], np.uint32)
        assert list(values >> 16) == given
        assert not (values & 0xFFFF).any()


@pytest.mark.parametrize(("bits", "known"), [(64, True), (32, True), (16, False), (8, False)])
def test_numbers_that_do_not_fit_are_the_least_ones(bits: int, known: bool) -> None:
    text = f"""
util.global private @whole : tensor<4xi{bits}>
util.initializer {{
  %w = arith.constant dense<[2.9, 0x7F800000, 1.0e+30, -3.5]> : tensor<4xf32>
  %h = arith.fptosi %w : tensor<4xf32> to tensor<4xi{bits}>
  util.global.store %h, @whole : tensor<4xi{bits}>
  util.return
}}
"""
    module = compiler.parse(text)
    assert evaluate(module, {}) == known
    least = -(1 << bits - 1)
    assert (f"@whole = dense<[2, {least}, {least}, -3]>" in str(module)) == known


UNKNOWN = """
util.global private @one : tensor<2xf32>
util.global private @two : tensor<2xf32>
util.initializer {
  %w = arith.constant dense<[1.0, 2.0]> : tensor<2xf32>
  util.global.store %w, @one : tensor<2xf32>
  util.return
}
util.initializer {
  %w = util.global.load immutable @one : tensor<2xf32>
  %e = util.optimization_barrier %w : tensor<2xf32>
  util.global.store %e, @two : tensor<2xf32>
  util.return
}
"""


def test_what_is_not_known_leaves_the_module_as_it_was() -> None:
    module = compiler.parse(UNKNOWN)
    before = str(module)
    assert not evaluate(module, {})
    assert str(module) == before


def test_weights_of_an_archive_are_loaded_when_the_program_runs() -> None:
    text = """
util.global private @w = #stream.parameter.named<"model"::"w"> : tensor<2xf32>
util.global private @two : tensor<2xf32>
util.global private @three : tensor<2xf32>
util.initializer {
  %w = util.global.load immutable @w : tensor<2xf32>
  %d = arith.addf %w, %w : tensor<2xf32>
  util.global.store %d, @two : tensor<2xf32>
  util.return
}
util.initializer {
  %w = arith.constant dense<[1.0, 2.0]> : tensor<2xf32>
  %d = arith.addf %w, %w : tensor<2xf32>
  util.global.store %d, @three : tensor<2xf32>
  util.return
}
"""
    module = compiler.parse(text)
    assert evaluate(module, {})
    assert str(module).count("util.initializer") == 1
    assert "@three = dense<[2.000000e+00, 4.000000e+00]>" in str(module)


def test_small_programs_do_not_start_the_compiler_twice() -> None:
    text = f"func.func @f(%x: {INTO}) -> {INTO} {{ {W}\n %y = arith.addf %x, %w : {INTO}\n"
    text += f"return %y : {INTO} }}\n{{-# dialect_resources: {{ builtin: {{ {W_BYTES} }} }} #-}}"
    job = Job(CPU)
    source = Program(compiler.parse(text), "test")
    assert constants.evaluated(source, job) == (source, job)


def test_a_file_s_resources_are_read_by_name(tmp_path: Path) -> None:
    first, second = np.arange(200, dtype=np.float32), np.arange(7, dtype=np.int64)
    odd = '"an odd name"'
    text = f"""
func.func @f() -> (tensor<200xf32>, tensor<7xi64>) {{
  %a = arith.constant dense_resource<a> : tensor<200xf32>
  %b = arith.constant dense_resource<{odd}> : tensor<7xi64>
  return %a, %b : tensor<200xf32>, tensor<7xi64>
}}
{{-# dialect_resources: {{ builtin: {{
  a: "0x40000000{_hex(first)}", {odd}: "0x40000000{_hex(second)}" }} }} #-}}
"""
    module = compiler.parse(text)
    path = tmp_path / "module.mlirbc"
    with path.open("wb") as file:
        module.operation.write_bytecode(file)
    found = bytecode.resources(path)
    assert set(found) == {"a", "an odd name"}
    assert (np.frombuffer(found["a"], np.float32) == first).all()
    assert (np.frombuffer(found["an odd name"], np.int64) == second).all()
    names = [str(op.attributes["value"]) for op in open_ops(module) if "value" in op.attributes]
    assert [bytecode.resource_name(n) for n in names] == ["a", "an odd name"]
    path.write_bytes(path.read_bytes()[:60])
    assert bytecode.resources(path) == {}
