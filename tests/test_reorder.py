"""Inputs of kernels that lie in another order: what is refused, when it is done, the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.cost import Settings
from mlirules.drivers.pipelines.transform import transform
from mlirules.language import consent
from mlirules.language.stage import Stage
from rule_texts import changed, faults
from torch_programs import convolution, product

RULE = """rule: turned-product
kind: kernel
summary: Multiply by weights that lie column by column.
reason: For tests.
types:
  x: vtensor<M x K x f32>
  w: vtensor<K x N x f32>
  c: vtensor<M x N x f32>
match: c = torch.aten.mm(x, w)
kernel:
  inputs: [x, w]
  variants:
    - targets: [cpu]
      grid: [M]
      reorder:
        w: {when: fixed(w), view: [K, N], permute: [1, 0]}
      let: {known: fixed(w)}
      body: |
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %zero = arith.constant 0.0 : f32
        %known = arith.constant $(known)
        %ws = memref.reinterpret_cast %w_base to offset: [%w_offset], sizes: [$(K * N)], strides: [1] : memref<f32> to memref<$(K * N)xf32, strided<[1], offset: ?>>
        scf.for %n = %c0 to %N step %c1 {
          %sum = scf.for %k = %c0 to %K step %c1 iter_args(%s = %zero) -> (f32) {
            %down = arith.muli %n, %K : index
            %turned = arith.addi %down, %k : index
            %across = arith.muli %k, %N : index
            %plain = arith.addi %across, %n : index
            %at = arith.select %known, %turned, %plain : index
            %b = memref.load %ws[%at] : memref<$(K * N)xf32, strided<[1], offset: ?>>
            %a = memref.load %x[%block_x, %k] : $x
            %p = arith.mulf %a, %b : f32
            %t = arith.addf %s, %p : f32
            scf.yield %t : f32
          }
          memref.store %sum, %c[%block_x, %n] : $c
        }
tests:
  - name: brought by the call
    input: |
      func.func @main(%x: !torch.vtensor<[5,3],f32>, %w: !torch.vtensor<[3,4],f32>) -> !torch.vtensor<[5,4],f32> {
        %c = torch.aten.mm %x, %w : !torch.vtensor<[5,3],f32>, !torch.vtensor<[3,4],f32> -> !torch.vtensor<[5,4],f32>
        return %c : !torch.vtensor<[5,4],f32>
      }
    check: "CHECK: flow.dispatch"
    run: {devices: [cpu]}
  - name: integers
    unchanged: |
      func.func @main(%x: !torch.vtensor<[5,3],si32>, %w: !torch.vtensor<[3,4],si32>) -> !torch.vtensor<[5,4],si32> {
        %c = torch.aten.mm %x, %w : !torch.vtensor<[5,3],si32>, !torch.vtensor<[3,4],si32> -> !torch.vtensor<[5,4],si32>
        return %c : !torch.vtensor<[5,4],si32>
      }
    because: vtensor<M x K x f32>
"""  # noqa: E501


@pytest.fixture(autouse=True)
def trusted() -> Iterator[None]:
    with consent.given(native=True):
        yield


def test_what_a_file_cannot_say(tmp_path: Path) -> None:
    assert faults(RULE, tmp_path, ("        w: {when", "        v: {when")) == [
        "'v' is no input of the kernel"
    ]
    (said,) = faults(RULE, tmp_path, ("permute: [1, 0]", "permute: [1, 1]"))
    assert said == "the 2 dims of the view stand once each in `permute:`, as 0 to 1"
    (said,) = faults(RULE, tmp_path, ("view: [K, N]", "view: [K, L]"))
    assert said == "'L' stands nowhere in the match"


@pytest.mark.parametrize("known", [True, False])
def test_what_the_program_knows_is_put_in_order(known: bool, tmp_path: Path) -> None:
    """Weights that a call brings are read as they are."""
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((5, 3), (3, 4)))
    stages = [Stage(phase="torch", rules=[str(changed(RULE, tmp_path))], driver="greedy")]
    text = transform(product(weights=w if known else None), stages).text
    assert ("linalg.transpose" in text) == known
    target = Target("cpu")
    (found,) = runtime.run(compiler.compile_module(text, target), [x] if known else [x, w], target)
    np.testing.assert_allclose(found, x @ w, rtol=1e-5, atol=1e-5)


#: The sizes that the tensor has with zeros behind, and what of the body goes by them.
PADDED = (
    ("view: [K, N]", "pad: [1, -N % 8], view: [deep, wide]"),
    ("let: {known: fixed(w)}", 'let: {known: fixed(w), deep: K + 1, wide: "8 * ceildiv(N, 8)"}'),
    ("sizes: [$(K * N)]", "sizes: [$(deep * wide)]"),
    ("memref<f32> to memref<$(K * N)x", "memref<f32> to memref<$(deep * wide)x"),
    ("%ws[%at] : memref<$(K * N)x", "%ws[%at] : memref<$(deep * wide)x"),
    (
        "%down = arith.muli %n, %K : index",
        "%pitch = arith.constant $(deep) : index\n"
        "            %down = arith.muli %n, %pitch : index",
    ),
)


def test_zeros_follow_before_it_is_put_in_order(tmp_path: Path) -> None:
    """Three rows of four numbers are four of eight for the kernel."""
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((5, 3), (3, 4)))
    path = changed(RULE, tmp_path, *PADDED)
    stages = [Stage(phase="torch", rules=[str(path)], driver="greedy")]
    text = transform(product(weights=w), stages).text
    assert "tensor.pad" in text
    target = Target("cpu")
    (found,) = runtime.run(compiler.compile_module(text, target), [x], target)
    np.testing.assert_allclose(found, x @ w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pad", ["[1]", "[1, -1]", "[0, 3]"])
def test_zeros_that_do_not_fit_are_refused(pad: str, tmp_path: Path) -> None:
    """Of one dim alone, fewer than none, more than the view has."""
    path = changed(RULE, tmp_path, *PADDED, ("pad: [1, -N % 8]", f"pad: {pad}"))
    stages = [Stage(phase="torch", rules=[str(path)], driver="greedy")]
    made = transform(product(weights=np.ones((3, 4), np.float32)), stages)
    assert made.outcome.total == 0


def test_a_view_of_more_numbers_than_the_tensor_has_is_refused(tmp_path: Path) -> None:
    path = changed(RULE, tmp_path, ("view: [K, N]", "view: [K, N + 1]"))
    stages = [Stage(phase="torch", rules=[str(path)], driver="greedy")]
    made = transform(product(weights=np.ones((3, 4), np.float32)), stages)
    assert made.outcome.total == 0


@pytest.mark.parametrize("cpu", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    ("images", "filters", "groups", "stride"),
    [
        # Whole vectors, several parts of the channels; four places over, in steps of two as well;
        # one place and three vectors; a half and more; two groups; eleven filters fill no blocks.
        ((1, 64, 16, 16), (48, 64, 3, 3), 1, 1),
        ((1, 48, 14, 14), (48, 48, 1, 1), 1, 1),
        ((2, 32, 28, 28), (48, 32, 3, 3), 1, 2),
        ((1, 64, 7, 7), (48, 64, 3, 3), 1, 1),
        ((1, 224, 7, 7), (48, 224, 1, 1), 1, 1),
        ((1, 32, 13, 13), (48, 32, 3, 3), 1, 1),
        ((2, 12, 13, 13), (16, 6, 3, 3), 2, 1),
        ((1, 16, 13, 13), (11, 16, 3, 3), 1, 1),
    ],
)
def test_convolutions_by_filters_in_blocks(
    cpu: str,
    images: tuple[int, ...],
    filters: tuple[int, ...],
    groups: int,
    stride: int,
) -> None:
    """The numbers are those of filters that each call brings, which stay as they are."""
    target = Target("cpu", cpu)
    if reason := target.available():
        pytest.skip(reason)
    rng = np.random.default_rng(2)
    image, held = (rng.standard_normal(s).astype(np.float32) for s in (images, filters))
    found = []
    stages = [Stage(phase="torch", rules=["kernels/kernel-convolution"], driver="greedy")]
    for known in (True, False):
        program = convolution(images, held if known else filters, groups=groups, stride=stride)
        text = transform(program, stages, costs=Settings(target)).text
        assert "flow.dispatch" in text
        # With AVX-512 a place beyond three vectors is summed along the filters' rows.
        rows = filters[0] == 11 or (images[2] == 7 and cpu == "x86-64-v4")
        assert ("linalg.transpose" in text) == (known and not rows)
        arguments = [image] if known else [image, held]
        binary = compiler.compile_module(text, target)
        found += runtime.run(binary, arguments, target, "f")
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)
