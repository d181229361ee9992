"""Flags that make way: where a packed product's padding would be read, products are not packed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.makeway import SMALL, for_products, multiplied, open_vectors
from mlirules.drivers.pipelines.transform import compile_program
from mlirules.language.pipeline import Pipeline

PACKS = "--iree-global-opt-data-tiling"

PRODUCT = """
func.func @main(%a: {a}, %b: {b}, %o: {o}) -> {o} {{
  %r = linalg.{op} ins(%a, %b : {a}, {b}) outs(%o : {o}) -> {o}
  return %r : {o}
}}
"""

#: The exponentials of a product of a matrix and a vector, added up.
EXPONENTIALS = """
func.func @main(%a: !torch.vtensor<[?,?],f32>, %b: !torch.vtensor<[?],f32>)
    -> !torch.vtensor<[],f32> {
  %none = torch.constant.none
  %r = torch.aten.mv %a, %b : !torch.vtensor<[?,?],f32>, !torch.vtensor<[?],f32>
    -> !torch.vtensor<[?],f32>
  %e = torch.aten.exp %r : !torch.vtensor<[?],f32> -> !torch.vtensor<[?],f32>
  %s = torch.aten.sum %e, %none : !torch.vtensor<[?],f32>, !torch.none -> !torch.vtensor<[],f32>
  return %s : !torch.vtensor<[],f32>
}
"""


@pytest.mark.parametrize(
    ("op", "a", "b", "o", "found"),
    [
        ("matmul", "1x?", "?x?", "1x?", 1),
        ("matmul", "?x3", "3x1", "?x1", 1),
        ("vecmat", "3", "3x?", "?", 1),
        ("matvec", "?x?", "?", "?", 1),
        ("batch_matmul", "1x1x?", "1x?x?", "1x1x?", 1),
        ("matmul", "1x?", "?x5", "1x5", 0),  # the length is known
        ("matmul", "7x?", "?x?", "7x?", 0),
        ("matmul", "?x?", "?x?", "?x?", 0),  # packed as a matrix, whatever it is at run time
        ("batch_matmul", "?x1x?", "?x?x?", "?x1x?", 0),
    ],
)
def test_vectors_of_unknown_length(op: str, a: str, b: str, o: str, found: int) -> None:
    types = {name: f"tensor<{dims}xf32>" for name, dims in (("a", a), ("b", b), ("o", o))}
    module = compiler.parse(PRODUCT.format(op=op, **types))
    assert len(list(open_vectors(module))) == found
    pipeline, notes = for_products(Pipeline.load("cpu-fast"), module)
    assert (PACKS not in pipeline.flags) == bool(found) == bool(notes)


@pytest.mark.parametrize(
    ("op", "a", "b", "o", "pairs"),
    [
        ("matmul", "64x64", "64x64", "64x64", 64**3),
        ("matmul", "128x128", "128x64", "128x64", 1 << 20),
        ("batch_matmul", "4x8x16", "4x16x32", "4x8x32", 4**1.5 * 8 * 16 * 32),
        ("matmul", "?x64", "64x64", "?x64", math.inf),
        # Of few columns: their rows would be packed in each call.
        ("matmul", "512x4096", "4096x8", "512x8", 0),
        ("matmul", "8x4096", "4096x512", "8x512", 1 << 24),
    ],
)
def test_small_products_are_not_packed(op: str, a: str, b: str, o: str, pairs: float) -> None:
    types = {name: f"tensor<{dims}xf32>" for name, dims in (("a", a), ("b", b), ("o", o))}
    module = compiler.parse(PRODUCT.format(op=op, **types))
    assert multiplied(module) == pairs
    pipeline, _ = for_products(Pipeline.load("cpu-fast"), module)
    assert (PACKS in pipeline.flags) == (pairs >= SMALL)


def test_products_that_no_rule_converted_are_not_small() -> None:
    assert multiplied(compiler.parse(EXPONENTIALS)) == math.inf


def test_products_that_no_rule_converted_count() -> None:
    assert [op.name for op in open_vectors(compiler.parse(EXPONENTIALS))] == ["torch.aten.mv"]


def test_the_padding_of_a_vector_is_not_added_up() -> None:
    cpu = Target.parse("cpu")
    binary, done = compile_program(EXPONENTIALS, cpu)
    assert PACKS not in done.flags
    assert any("known only at run time" in note for note in done.notes)
    generator = np.random.default_rng(1)
    a, b = (generator.standard_normal(shape, np.float32) for shape in ((5, 3), (3,)))
    (found,) = runtime.run(binary, [a, b], cpu)
    # Packed, eleven ones were added for the padding.
    np.testing.assert_allclose(found, np.exp(a @ b).sum(), rtol=1e-5)
    assert PACKS in compile_program(EXPONENTIALS, cpu, flags=(PACKS,))[1].flags
