"""Kernels that use a CPU's tile registers (AMX): for which CPUs, what is refused, the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.iree import compiler, cpu, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.match.results import Around
from mlirules.drivers.pipelines.cost import Settings
from mlirules.drivers.pipelines.transform import transform
from mlirules.generator import tiles
from mlirules.language import consent
from mlirules.language.faults import MlirulesError
from mlirules.language.loader import load_rule
from mlirules.language.rule import Rule
from mlirules.language.stage import Stage

AMX = "sapphirerapids"
#: With AMX, with AVX512-BF16 and VNNI alone, with neither.
CPUS = (AMX, "znver4", "x86-64-v4")
PRODUCT = """# A product of two tiles.
rule: one-tile
kind: kernel
summary: Multiply 16 rows of 32 numbers.
reason: For tests.
types:
  x: vtensor<M x K x bf16>
  p: vtensor<K x 16 x bf16>
  c: vtensor<M x 16 x f32>
match: c = torch.aten.mm(x, p)
kernel:
  inputs: [x, p]
  variants:
    - targets: [cpu]
      grid: [1]
      tiles:
        - {rows: 16, bytes: 64}
        - {rows: M, bytes: 2 * K}
        - {rows: 16, bytes: 64}
      body: |
        %far = arith.constant 64 : i64
        llvm.call_intrinsic "llvm.x86.tilezero"(%tile0) : (i8) -> ()
        llvm.call_intrinsic "llvm.x86.tileloadd64"(%tile1, %x_pointer, %far) : (i8, !llvm.ptr, i64) -> ()
        llvm.call_intrinsic "llvm.x86.tileloadd64"(%tile2, %p_pointer, %far) : (i8, !llvm.ptr, i64) -> ()
        llvm.call_intrinsic "llvm.x86.tdpbf16ps"(%tile0, %tile1, %tile2) : (i8, i8, i8) -> ()
        llvm.call_intrinsic "llvm.x86.tilestored64"(%tile0, %c_pointer, %far) : (i8, !llvm.ptr, i64) -> ()
tests:
  - name: five rows
    cpu: sapphirerapids
    input: |
      func.func @main(%x: !torch.vtensor<[5,32],bf16>, %p: !torch.vtensor<[32,16],bf16>) -> !torch.vtensor<[5,16],f32> {
        %c = torch.aten.mm %x, %p : !torch.vtensor<[5,32],bf16>, !torch.vtensor<[32,16],bf16> -> !torch.vtensor<[5,16],f32>
        return %c : !torch.vtensor<[5,16],f32>
      }
    check: "CHECK: flow.dispatch"
  - name: eight columns
    unchanged: |
      func.func @main(%x: !torch.vtensor<[5,32],bf16>, %p: !torch.vtensor<[32,8],bf16>) -> !torch.vtensor<[5,8],f32> {
        %c = torch.aten.mm %x, %p : !torch.vtensor<[5,32],bf16>, !torch.vtensor<[32,8],bf16> -> !torch.vtensor<[5,8],f32>
        return %c : !torch.vtensor<[5,8],f32>
      }
    because: vtensor<K x 16 x bf16>
"""  # noqa: E501


@pytest.fixture(autouse=True)
def trusted() -> Iterator[None]:
    with consent.given(native=True):
        yield


def test_which_cpus_have_them() -> None:
    assert [cpu.bf16_tile_rows(name) for name in CPUS] == [16, 0, 0]
    assert [cpu.byte_tile_rows(name) for name in CPUS] == [16, 0, 0]


def test_shapes_are_laid_out_as_the_cpu_reads_them() -> None:
    """Intel's palette 1: a byte of 1, two bytes a register from byte 16 on, one from 48 on."""
    (row,) = (row for row in tiles.before([(16, 64), (5, 20)]) if "dense<" in row)
    held = [int(n) for n in row.partition("dense<[")[2].partition("]")[0].split(",")]
    assert len(held) == 64
    assert {n: byte for n, byte in enumerate(held) if byte} == {
        0: 1,
        16: 64,
        18: 20,
        48: 16,
        49: 5,
    }


def product(rows: int, depth: int, columns: int) -> str:
    """A product of bf16 by constant weights of one half."""
    x, w, y = (
        f"!torch.vtensor<[{n},{m}],bf16>"
        for n, m in ((rows, depth), (depth, columns), (rows, columns))
    )
    return f"""func.func @main(%x: {x}) -> {y} {{
  %w = torch.vtensor.literal(dense<5.000000e-01> : tensor<{depth}x{columns}xbf16>) : {w}
  %y = torch.aten.mm %x, %w : {x}, {w} -> {y}
  return %y : {y}
}}
"""


def kernel_of(program: str, name: str) -> str:
    stages = [
        Stage(phase="torch", rules=["torch/bf16/torch-bf16-mm-pack"], driver="greedy"),
        Stage(phase="torch", rules=["kernels/kernel-bf16-mm"], driver="greedy"),
    ]
    return transform(program, stages, costs=Settings(Target.parse(f"cpu:{name}"))).text


def test_each_cpu_gets_its_kernel_and_asks_the_system_first() -> None:
    """On every machine: nothing runs."""
    rows = kernel_of(product(40, 64, 64), AMX).splitlines()
    at = {
        word: next(n for n, row in enumerate(rows) if word in row)
        for word in ("syscall", "ldtilecfg", "tdpbf16ps", "tilerelease")
    }
    assert list(at.values()) == sorted(at.values())
    other = kernel_of(product(40, 64, 64), "znver4")
    assert "dpbf16ps.512" in other
    assert "tdpbf16ps" not in other
    assert "stream.executable" not in kernel_of(product(40, 64, 64), "x86-64-v4")


@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    # Fewer rows than a tile has; a depth that is less than a tile, or leaves some over.
    [(8, 2, 16), (16, 32, 32), (17, 30, 40), (33, 96, 48), (300, 70, 100)],
)
def test_numbers(rows: int, depth: int, columns: int) -> None:
    target = Target.parse(f"cpu:{AMX}")
    if reason := target.available():
        pytest.skip(reason)
    rng = np.random.default_rng(0)
    bf16 = runtime.dtype_of("bf16")
    x = rng.standard_normal((rows, depth)).astype(bf16)
    text = kernel_of(product(rows, depth, columns), AMX)
    assert "tdpbf16ps" in text
    (found,) = runtime.run(compiler.compile_module(text, target), [x], target)
    wanted = x.astype(np.float32).sum(1, keepdims=True) / 2 * np.ones((1, columns))
    assert np.abs(np.asarray(found, np.float32) - wanted).max() <= 2**-8 * np.abs(wanted).max()


def loaded(tmp_path: Path, old: str = "", new: str = "") -> Rule:
    assert old in PRODUCT
    path = tmp_path / "one-tile.yaml"
    path.write_text(PRODUCT.replace(old, new, 1) if old else PRODUCT)
    return load_rule(path, ops=compiler.op_oracle)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{rows: M, bytes: 2 * K}", "{rows: 17, bytes: 64}", "from 1 to 16 rows"),
        ("{rows: M, bytes: 2 * K}", "{rows: M, bytes: 65}", "from 1 to 64 bytes"),
        ("{rows: M, bytes: 2 * K}", "{rows: M, bytes: 2 * Q}", "'Q' stands nowhere"),
        ("%tile0) : (i8) -> ()", "%tile3) : (i8) -> ()", "%tile3"),
        ("targets: [cpu]", "targets: [vulkan]", "only CPUs have tile registers"),
        ("        - {rows: 16, bytes: 64}\n", "        - {rows: 16, bytes: 64}\n" * 7, "8"),
    ],
)
def test_faults_in_the_file(old: str, new: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(MlirulesError) as caught:
        loaded(tmp_path, old, new)
    found = [fault for fault in caught.value.faults if said in fault.message]
    assert found, caught.value
    assert found[0].span.line > 1


@pytest.mark.parametrize(
    ("rows", "name", "line", "said"),
    [
        ("16", "znver4", "16", "which this CPU does not have"),
        ("17", AMX, "M", "from 1 to 16 rows"),
        ("?", AMX, "M", "known only at run time"),
    ],
)
def test_programs_that_are_refused(
    rows: str, name: str, line: str, said: str, tmp_path: Path
) -> None:
    x, c = f"!torch.vtensor<[{rows},32],bf16>", f"!torch.vtensor<[{rows},16],f32>"
    p = "!torch.vtensor<[32,16],bf16>"
    module = compiler.parse(
        f"func.func @main(%x: {x}, %p: {p}) -> {c} {{\n"
        f"  %c = torch.aten.mm %x, %p : {x}, {p} -> {c}\n  return %c : {c}\n}}\n"
    )
    rule = loaded(tmp_path)
    engine = Engine([rule], module.context)
    (op,) = (op for op in ops_below(module.operation) if op.name == "torch.aten.mm")
    refusal = engine.explain(rule, op, Around("cpu", cpu=name))
    assert refusal is not None
    assert (str(refusal.line), said in refusal.message) == (line, True), refusal.message
