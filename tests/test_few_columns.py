"""Products by constant weights of few columns, of little work, and of rows that no tile divides."""

from __future__ import annotations

import numpy as np
import pytest

from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program

LINEAR = """
func.func @main(%x: !torch.vtensor<[{m},{k}],f32>, %b: !torch.vtensor<[{n}],f32>)
    -> !torch.vtensor<[{m},{n}],f32> {{
  %w = torch.vtensor.literal(dense<"0x{numbers}"> : tensor<{n}x{k}xf32>)
    : !torch.vtensor<[{n},{k}],f32>
  %y = torch.aten.linear %x, %w, %b : !torch.vtensor<[{m},{k}],f32>, !torch.vtensor<[{n},{k}],f32>,
    !torch.vtensor<[{n}],f32> -> !torch.vtensor<[{m},{n}],f32>
  return %y : !torch.vtensor<[{m},{n}],f32>
}}
"""


@pytest.mark.parametrize("cpu", ["cpu", "cpu:x86-64-v4", "cpu:x86-64-v3"])
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [
        # A block of columns of which half is there, or less.
        (256, 188, 16),
        (77, 994, 10),
        # One and a half.
        (33, 250, 40),
        (128, 64, 48),
        # More than half of the last one.
        (100, 64, 50),
        # Little work, in one workgroup, and in two.
        (16, 16, 256),
        (17, 32, 144),
        (40, 40, 600),
        # Many rows, several bands of them.
        (3001, 40, 20),
        (5000, 16, 16),
    ],
)
def test_numbers(m: int, k: int, n: int, cpu: str) -> None:
    target = Target.parse(cpu)
    if reason := target.available():
        pytest.skip(reason)
    rng = np.random.default_rng(m + n)
    x, b, w = (rng.standard_normal(s, np.float32) for s in ((m, k), (n,), (n, k)))
    program = LINEAR.format(m=m, k=k, n=n, numbers=w.tobytes().hex().upper())
    binary, done = compile_program(program, target, fallback=False)
    kernel = "kernel-mm-bias" if n % 32 == 0 else "kernel-mm-bias-part"
    assert done.outcome.counts[kernel] == 1
    found = np.asarray(runtime.run(binary, [x, b], target)[0]).astype(np.float64)
    exact = x.astype(np.float64) @ w.T.astype(np.float64) + b
    assert np.abs(found - exact).max() <= 1e-6 * np.abs(exact).max()
