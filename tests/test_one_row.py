"""Products of one row by constant weights: in order, in blocks, turned."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.cost import Settings
from mlirules.drivers.pipelines.transform import compile_program, transform
from mlirules.language.stage import Stage

TURN = """
  %0 = torch.constant.int 0
  %order = torch.prim.ListConstruct %1, %0 : (!torch.int, !torch.int) -> !torch.list<int>
  %t = torch.aten.permute %w, %order : !torch.vtensor<[{n},{k}],{t}>, !torch.list<int>
    -> !torch.vtensor<[{k},{n}],{t}>
"""
LAYER = """
func.func @main(%x: !torch.vtensor<[1,{k}],{t}>, %b: !torch.vtensor<[{n}],{t}>)
    -> !torch.vtensor<[1,{n}],{t}> {{
  %w = torch.vtensor.literal(dense<{numbers}> : tensor<{rows}x{columns}x{t}>)
    : !torch.vtensor<[{rows},{columns}],{t}>
  %1 = torch.constant.int 1{turn}
  %y = torch.aten.addmm %b, %x, {factor}, %1, %1 : !torch.vtensor<[{n}],{t}>,
    !torch.vtensor<[1,{k}],{t}>, !torch.vtensor<[{k},{n}],{t}>, !torch.int, !torch.int
    -> !torch.vtensor<[1,{n}],{t}>
  return %y : !torch.vtensor<[1,{n}],{t}>
}}
"""


@pytest.mark.parametrize(
    ("cpu", "dtype", "kernel", "width", "bound"),
    [
        # This one, whatever its vectors are; CPUs with an operation for bf16 take that.
        ("cpu", "f32", "kernel-mv", "wide", 1e-5),
        ("cpu:x86-64-v3", "bf16", "kernel-narrow-mv", "narrow", 2**-7),
    ],
)
@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize(
    ("k", "n"),
    [(512, 64), (640, 40), (20, 104), (131, 61), (64, 2104), (256, 8), (257, 9), (300, 15)],
)
def test_numbers(
    k: int, n: int, turned: bool, cpu: str, dtype: str, kernel: str, width: str, bound: float
) -> None:
    """In blocks of one vector of columns, or of two, whose last ones may be zeros."""
    target = Target.parse(cpu)
    if reason := target.available():
        pytest.skip(reason)
    rng = np.random.default_rng(k + n)
    shapes = (1, k), (n,), (n, k) if turned else (k, n)
    narrow = np.dtype(np.float32) if dtype == "f32" else runtime.dtype_of(dtype)
    x, b, w = (rng.standard_normal(s, np.float32).astype(narrow) for s in shapes)
    program = LAYER.format(
        t=dtype,
        k=k,
        n=n,
        rows=w.shape[0],
        columns=w.shape[1],
        numbers=f'"0x{w.tobytes().hex().upper()}"',
        turn=TURN.format(k=k, n=n, t=dtype) if turned else "",
        factor="%t" if turned else "%w",
    )
    binary, done = compile_program(program, target, fallback=False)
    assert done.outcome.counts[f"{kernel}-bias"] == 1
    assert done.outcome.counts[f"torch-mm-row-turned-{width}-addmm"] == int(not turned)
    found = np.asarray(runtime.run(binary, [x, b], target)[0]).astype(np.float64)
    exact = x.astype(np.float64) @ (w.T if turned else w).astype(np.float64)
    exact += b.astype(np.float64)
    assert np.abs(found - exact).max() <= bound * np.abs(exact).max()


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(("cpu", "k"), [("znver4", 1024), ("x86-64-v3", 512)])
def test_weights_that_are_mapped_stay_where_they_lie(cpu: str, k: int, mapped: bool) -> None:
    """In blocks they would be copied at every start."""
    n = 64
    program = LAYER.format(
        t="f32",
        k=k,
        n=n,
        rows=n,
        columns=k,
        numbers="1.0",
        turn=TURN.format(k=k, n=n, t="f32"),
        factor="%t",
    )
    if mapped:
        literal = re.search(r"  %w = torch\.vtensor\.literal[^:]+: [^:]+: (\S+)\n", program)
        assert literal is not None
        held = f"tensor<{n}x{k}xf32>"
        loaded = f"  %u = util.global.load @w : {held}\n"
        loaded += f"  %w = torch_c.from_builtin_tensor %u : {held} -> {literal[1]}\n"
        program = program.replace(literal[0], loaded)
        program = (
            f'util.global private @w = #stream.parameter.named<"model"::"w"> : {held}\n{program}'
        )
    stages = [Stage(phase="torch", rules=["kernels/kernel-mv"], driver="greedy")]
    text = transform(program, stages, costs=Settings(Target("cpu", cpu))).text
    assert "flow.dispatch" in text
    assert ("linalg.transpose" in text) != mapped
