"""Kernels of several dispatches, and weights multiplied by matrices: faults, and the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import rule_set, transform
from mlirules.drivers.quality.ruletest import run_test
from mlirules.language import consent
from mlirules.language.stage import Stage
from rule_texts import changed, faults
from torch_programs import product

#: Sums of each row, and a product by weights that were mixed row by row.
RULE = """rule: mixed-product
kind: kernel
summary: Multiply by weights whose rows are mixed, and scale by what was summed before.
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
      where: [K == 3]
      reorder:
        w: {view: [K, N], permute: [1, 0], multiply: [{along: [0], by: [[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.5, -1.0]]}]}
      first:
        turned:
          dims: [K, M]
          grid: [M]
          body: |
            %c0 = arith.constant 0 : index
            %c1 = arith.constant 1 : index
            scf.for %k = %c0 to %K step %c1 {
              %a = memref.load %x[%block_x, %k] : $x
              memref.store %a, %turned[%k, %block_x] : $turned
            }
        sums:
          dims: [M]
          grid: [M]
          body: |
            %c0 = arith.constant 0 : index
            %c1 = arith.constant 1 : index
            %zero = arith.constant 0.0 : f32
            %sum = scf.for %k = %c0 to %K step %c1 iter_args(%s = %zero) -> (f32) {
              %a = memref.load %turned[%k, %block_x] : $turned
              %t = arith.addf %s, %a : f32
              scf.yield %t : f32
            }
            memref.store %sum, %sums[%block_x] : $sums
      grid: [M]
      body: |
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %zero = arith.constant 0.0 : f32
        %by = memref.load %sums[%block_x] : $sums
        scf.for %n = %c0 to %N step %c1 {
          %sum = scf.for %k = %c0 to %K step %c1 iter_args(%s = %zero) -> (f32) {
            %b = memref.load %w[%n, %k] : $w
            %a = memref.load %turned[%k, %block_x] : $turned
            %p = arith.mulf %a, %b : f32
            %t = arith.addf %s, %p : f32
            scf.yield %t : f32
          }
          %scaled = arith.mulf %sum, %by : f32
          memref.store %scaled, %c[%block_x, %n] : $c
        }
tests:
  - name: three
    input: |
      func.func @main(%x: !torch.vtensor<[5,3],f32>, %w: !torch.vtensor<[3,4],f32>) -> !torch.vtensor<[5,4],f32> {
        %c = torch.aten.mm %x, %w : !torch.vtensor<[5,3],f32>, !torch.vtensor<[3,4],f32> -> !torch.vtensor<[5,4],f32>
        return %c : !torch.vtensor<[5,4],f32>
      }
    check: "CHECK-COUNT-3: flow.dispatch @"
  - name: four
    unchanged: |
      func.func @main(%x: !torch.vtensor<[5,4],f32>, %w: !torch.vtensor<[4,4],f32>) -> !torch.vtensor<[5,4],f32> {
        %c = torch.aten.mm %x, %w : !torch.vtensor<[5,4],f32>, !torch.vtensor<[4,4],f32> -> !torch.vtensor<[5,4],f32>
        return %c : !torch.vtensor<[5,4],f32>
      }
    because: K == 3
"""  # noqa: E501


@pytest.fixture(autouse=True)
def trusted() -> Iterator[None]:
    with consent.given(native=True):
        yield


@pytest.mark.parametrize("known", [True, False])
def test_dispatches_before_the_kernels_own(known: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((5, 3), (3, 4)))
    stages = [Stage(phase="torch", rules=[str(changed(RULE, tmp_path))], driver="greedy")]
    text = transform(product(weights=w if known else None), stages).text
    assert text.count("= flow.dispatch") == 3
    target = Target("cpu")
    (found,) = runtime.run(compiler.compile_module(text, target), [x] if known else [x, w], target)
    mixed = np.stack([w[0] + w[1] / 2, w[1], w[2]])
    np.testing.assert_allclose(found, x @ mixed * x.sum(1)[:, None], rtol=1e-5, atol=1e-5)


def test_what_two_rules_of_a_file_dispatch_first_is_one(tmp_path: Path) -> None:
    """Its name is the file's and the tensor's; layers of one size share it."""
    x, w, c = (f"!torch.vtensor<[{dims}],f32>" for dims in ("5,3", "3,4", "5,4"))
    both = (
        f"func.func @main(%x: {x}, %y: {x}, %w: {w}) -> ({c}, {c}) {{\n"
        f"  %c = torch.aten.mm %x, %w : {x}, {w} -> {c}\n"
        f"  %d = torch.aten.mm %y, %w : {x}, {w} -> {c}\n  return %c, %d : {c}, {c}\n}}\n"
    )
    stages = [Stage(phase="torch", rules=[str(changed(RULE, tmp_path))], driver="greedy")]
    text = transform(both, stages).text
    assert text.count("= flow.dispatch") == 6
    assert text.count("stream.executable private @mlirules_mixed_product_turned_") == 1
    assert text.count("stream.executable private") == 3


def test_accesses_beyond_what_lies_between_are_told(tmp_path: Path) -> None:
    path = changed(RULE, tmp_path, ("dims: [K, M]", "dims: [K, M - 1]"))
    text = path.read_text().replace(
        '@"\n  - name: four', '@"\n    run: {devices: [cpu]}\n  - name: four'
    )
    path.write_text(text)
    (made,) = rule_set((str(path),))
    found = {fault.message for fault in run_test(made, made.tests[0], devices=["cpu"]).faults}
    assert found == {
        "memref.store writes index 4 of dim 1 of turned, whose extent is 4",
        "memref.load reads index 4 of dim 1 of turned, whose extent is 4",
    }


def test_what_a_file_cannot_say(tmp_path: Path) -> None:
    (said, *_) = faults(RULE, tmp_path, ("        sums:\n", "        w:\n"))
    assert said == "'w' already has a meaning"
    (said,) = faults(
        RULE,
        tmp_path,
        ("memref.store %sum, %sums[%block_x] : $sums", "%unused = arith.addf %sum, %sum : f32"),
    )
    assert said == "sums is not written: %sums is its buffer"
    (said,) = faults(
        RULE,
        tmp_path,
        ("%by = memref.load %sums[%block_x] : $sums", "%by = arith.constant 1.0 : f32"),
    )
    assert said == "sums is not read: %sums is its buffer"
    (said,) = faults(RULE, tmp_path, ("dims: [K, M]", "dims: [K, L]"))
    assert said == "'L' stands nowhere in the match"
    (said,) = faults(RULE, tmp_path, ("          grid: [M]\n", "          grid: [0]\n"))
    assert said == "from 1 to 2147483647 workgroups can stand here"
    (said,) = faults(
        RULE,
        tmp_path,
        ("          grid: [M]\n", "          grid: [M]\n          workgroup: [32]\n"),
    )
    assert said == "a CPU has no threads in a workgroup, a GPU says how many"
    # What is written later is not there yet.
    late = faults(
        RULE, tmp_path, ("%a = memref.load %x[%block_x, %k]", "%a = memref.load %sums[%k]")
    )
    assert late[0] == "%sums is neither defined in this body nor a value of the match"


def test_what_a_matrix_cannot_be(tmp_path: Path) -> None:
    assert faults(RULE, tmp_path, ("along: [0]", "along: [2]")) == ["the view has no dim 2"]
    assert faults(RULE, tmp_path, ("along: [0]", "along: [0, 0]")) == [
        "two matrices go along dim 0"
    ]
    assert faults(RULE, tmp_path, ("[0.0, 1.0, 0.0]", "[0.0, 1.0]")) == [
        "the rows of a matrix differ in length"
    ]


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ([("along: [0]", "along: [1]")], "5"),  # three columns for a dim of four
        ([], "?"),  # what lies between has dims known only at run time
    ],
)
def test_who_refuses(changes: list[tuple[str, str]], rows: str, tmp_path: Path) -> None:
    stages = [Stage(phase="torch", rules=[str(changed(RULE, tmp_path, *changes))], driver="greedy")]
    assert transform(product(rows), stages).outcome.total == 0
