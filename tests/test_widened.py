"""Programs of bf16 and f16 on CPUs without operations for them: computed in f32, by its kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program, transform
from mlirules.language.pipeline import Pipeline
from mlirules.language.stage import Stage

if TYPE_CHECKING:
    from pathlib import Path

AVX2, BF16 = "cpu:x86-64-v3", "cpu:znver4"
#: Of 8 and 11 bits.
ERRORS = {"bf16": 2**-7, "f16": 2**-10}

LAYER = """
func.func @main(%x: !torch.vtensor<[{m},{k}],{t}>, %b: !torch.vtensor<[{n}],{t}>)
    -> !torch.vtensor<[{m},{n}],{t}> {{
  %w = torch.vtensor.literal(dense<{w}> : tensor<{n}x{k}x{t}>) : !torch.vtensor<[{n},{k}],{t}>
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %order = torch.prim.ListConstruct %1, %0 : (!torch.int, !torch.int) -> !torch.list<int>
  %t = torch.aten.permute %w, %order : !torch.vtensor<[{n},{k}],{t}>, !torch.list<int>
    -> !torch.vtensor<[{k},{n}],{t}>
  %y = torch.aten.addmm %b, %x, %t, %1, %1 : !torch.vtensor<[{n}],{t}>,
    !torch.vtensor<[{m},{k}],{t}>, !torch.vtensor<[{k},{n}],{t}>, !torch.int, !torch.int
    -> !torch.vtensor<[{m},{n}],{t}>
  %r = torch.aten.relu %y : !torch.vtensor<[{m},{n}],{t}> -> !torch.vtensor<[{m},{n}],{t}>
  return %r : !torch.vtensor<[{m},{n}],{t}>
}}
"""


def numbers(*shape: int, dtype: str, seed: int) -> np.ndarray:
    found = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return found.astype(runtime.dtype_of(dtype))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(
    ("rows", "kernel"), [(128, "kernel-mm-bias-part"), (1, "kernel-narrow-mv-bias"), (3, None)]
)
def test_a_layer_is_a_kernel_of_f32(dtype: str, rows: int, kernel: str | None) -> None:
    target = Target.parse(AVX2)
    if reason := target.available():
        pytest.skip(reason)
    n, k = 70, 160
    w = numbers(n, k, dtype=dtype, seed=1)
    said = f'"0x{w.tobytes().hex().upper()}"'
    program = LAYER.format(m=rows, n=n, k=k, t=dtype, w=said)
    binary, done = compile_program(program, target, fallback=False)
    kernels = {name for name in done.outcome.counts if name.startswith("kernel-")}
    assert kernels == ({kernel} if kernel else set())
    x, b = numbers(rows, k, dtype=dtype, seed=2), numbers(n, dtype=dtype, seed=3)
    found = np.asarray(runtime.run(binary, [x, b], target)[0], dtype=np.float32)
    exact = x.astype(np.float32) @ w.astype(np.float32).T + b.astype(np.float32)
    wanted = np.maximum(exact, 0)
    assert np.abs(found - wanted).max() <= ERRORS[dtype] * np.abs(wanted).max()


@pytest.mark.parametrize(("target", "widened"), [(AVX2, 1), ("cpu:x86-64-v4", 1), (BF16, 0)])
def test_products_are_widened_where_the_cpu_has_no_operation(target: str, widened: int) -> None:
    program = LAYER.format(m=3, n=8, k=6, t="bf16", w="0.5")
    _, done = compile_program(program, Target.parse(target), fallback=False)
    assert done.outcome.counts["torch-product-widened-addmm"] == widened


def test_a_rounding_that_the_program_asks_for_stays() -> None:
    target = Target.parse(AVX2)
    if reason := target.available():
        pytest.skip(reason)
    wide, narrow = "!torch.vtensor<[64],f32>", "!torch.vtensor<[64],bf16>"
    more = "!torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none"
    program = f"""
    func.func @main(%x: {wide}) -> {wide} {{
      %15 = torch.constant.int 15
      %6 = torch.constant.int 6
      %n = torch.constant.none
      %f = torch.constant.bool false
      %u = torch.aten._to_copy %x, %15, %n, %n, %n, %f, %n : {wide}, {more} -> {narrow}
      %r = torch.aten.relu %u : {narrow} -> {narrow}
      %y = torch.aten._to_copy %r, %6, %n, %n, %n, %f, %n : {narrow}, {more} -> {wide}
      return %y : {wide}
    }}"""
    binary, _ = compile_program(program, target, fallback=False)
    x = np.linspace(-3, 5, 64, dtype=np.float32)
    (found,) = runtime.run(binary, [x], target)
    wanted = np.maximum(x, 0).astype(runtime.dtype_of("bf16")).astype(np.float32)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("said", "applies"),
    [
        ({}, {AVX2: 1, BF16: 1, "vulkan": 1}),
        ({"needs": ["bf16_bytes"]}, {AVX2: 0, BF16: 1, "vulkan": 1}),
        ({"needs": ["bf16_bytes", "byte_tile_rows"]}, {AVX2: 0, BF16: 0, "vulkan": 1}),
        ({"unless": ["dot_bytes"]}, {AVX2: 1, BF16: 0, "vulkan": 1}),
        ({"unless": ["byte_tile_rows", "bf16_tile_rows"]}, {AVX2: 1, BF16: 1, "vulkan": 1}),
    ],
)
def test_stages_are_for_some_cpus(said: dict[str, list[str]], applies: dict[str, int]) -> None:
    from mlirules.drivers.apply.session import Session
    from mlirules.drivers.pipelines.transform import Run

    stage = Stage(phase="torch", rules=["torch/widened/torch-product-widened"], **said)
    program = LAYER.format(m=3, n=8, k=6, t="bf16", w="0.5")
    for target, wanted in applies.items():
        kind, _, name = target.partition(":")
        done = transform(program, [stage], kind=kind, run=Run(Session(), cpu=name))
        assert done.outcome.counts["torch-product-widened-addmm"] == wanted, target


def test_what_no_cpu_has_is_told(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "pipeline: mine\nsummary: For some CPUs.\ntargets: [cpu]\nstages:\n"
        "  - {phase: torch, rules: [torch/to-linalg], driver: walk, needs: [bf16_byte]}\n"
    )
    with pytest.raises(Exception, match="bf16_byte") as told:
        Pipeline.load(path)
    assert "bf16_bytes" in str(told.value)
