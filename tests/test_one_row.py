"""Products of one row by constant weights: in order, in blocks, turned."""

from __future__ import annotations

import numpy as np
import pytest

from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program

TURN = """
  %0 = torch.constant.int 0
  %order = torch.prim.ListConstruct %1, %0 : (!torch.int, !torch.int) -> !torch.list<int>
  %t = torch.aten.permute %w, %order : !torch.vtensor<[{n},{k}],f32>, !torch.list<int>
    -> !torch.vtensor<[{k},{n}],f32>
"""
LAYER = """
func.func @main(%x: !torch.vtensor<[1,{k}],f32>, %b: !torch.vtensor<[{n}],f32>)
    -> !torch.vtensor<[1,{n}],f32> {{
  %w = torch.vtensor.literal(dense<{numbers}> : tensor<{rows}x{columns}xf32>)
    : !torch.vtensor<[{rows},{columns}],f32>
  %1 = torch.constant.int 1{turn}
  %y = torch.aten.addmm %b, %x, {factor}, %1, %1 : !torch.vtensor<[{n}],f32>,
    !torch.vtensor<[1,{k}],f32>, !torch.vtensor<[{k},{n}],f32>, !torch.int, !torch.int
    -> !torch.vtensor<[1,{n}],f32>
  return %y : !torch.vtensor<[1,{n}],f32>
}}
"""


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize(
    ("k", "n"),
    [(512, 64), (640, 40), (20, 24), (131, 61), (64, 2104)],
)
def test_numbers(k: int, n: int, turned: bool) -> None:
    """In blocks where eight divides the columns and a vector a short row, else as rows lie."""
    target = Target.parse("cpu")
    rng = np.random.default_rng(k + n)
    x, b = rng.standard_normal((1, k), np.float32), rng.standard_normal(n, np.float32)
    w = rng.standard_normal((n, k) if turned else (k, n), np.float32)
    program = LAYER.format(
        k=k,
        n=n,
        rows=w.shape[0],
        columns=w.shape[1],
        numbers=f'"0x{w.tobytes().hex().upper()}"',
        turn=TURN.format(k=k, n=n) if turned else "",
        factor="%t" if turned else "%w",
    )
    binary, done = compile_program(program, target, fallback=False)
    assert done.outcome.counts["kernel-mv-bias"] == 1
    assert done.outcome.counts.get("torch-mm-row-turned-addmm", 0) == int(not turned)
    found = np.asarray(runtime.run(binary, [x, b], target)[0])
    exact = x.astype(np.float64) @ (w.T if turned else w) + b
    assert np.abs(found - exact).max() <= 1e-5 * np.abs(exact).max()
