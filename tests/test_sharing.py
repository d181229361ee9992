"""Kernels whose workgroups are taken by parts, one for each core."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from kernel_programs import KERNEL, parsed
from mlirules.drivers.apply.sharing import share
from mlirules.drivers.iree import compiler, cpu, runtime
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.pipelines.transform import compile_program
from mlirules.language.pipeline import Pipeline

CPU = Target("cpu")
CALL = "flow.dispatch @add::@add({0}) : (tensor<7x64xf32>) -> tensor<7x64xf32>"


def added(times: int, rest: str = "", last: str = "", workgroups: int = 7) -> str:
    """A program that adds one so many times, one dispatch after another."""
    rows = [f"%v{n + 1} = {CALL.format(f'%v{n}')}" for n in range(times)]
    body = "\n  ".join([*rows, rest])
    return (
        KERNEL.replace("WORKGROUPS", str(workgroups))
        + "func.func @main(%v0: tensor<7x64xf32>) -> tensor<7x64xf32> {\n"
        + f"  {body}\n  return {last or f'%v{times}'} : tensor<7x64xf32>\n}}\n"
    )


def named(module: ir.Module, name: str) -> list[ir.Operation]:
    return [op.operation for op in ops_below(module.operation) if op.name == name]


def made_zero(module: ir.Module) -> list[ir.Operation]:
    """The dispatches that set counters to zero."""
    return [
        op
        for op in named(module, "flow.dispatch")
        if "counters" in str(op.attributes["entry_points"])
    ]


@pytest.mark.parametrize("times", [1, 3, 64, 65, 130])
def test_each_dispatch_has_a_slot_of_its_own(times: int) -> None:
    module = parsed(added(times))
    assert share(module, 2) == times
    module.operation.verify()
    slots = set()
    for op in named(module, "flow.dispatch"):
        if len(op.operands) == 3:
            _, counters, slot = op.operands
            slots.add((str(counters), ir.IntegerAttr(slot.owner.attributes["value"]).value))
    assert len(slots) == times
    (zeroed,) = made_zero(module)
    # What the compiler takes for constant would be made once, for all calls.
    assert zeroed.operands[0].owner.name == "util.optimization_barrier"
    assert not named(module, "stream.dispatch.workgroup.id")


CALLER = """
func.func @twice(%x: tensor<7x64xf32>) -> tensor<7x64xf32> {
  %a = func.call @main(%x) : (tensor<7x64xf32>) -> tensor<7x64xf32>
  %b = func.call @main(%x) : (tensor<7x64xf32>) -> tensor<7x64xf32>
  %sum = arith.addf %a, %b : tensor<7x64xf32>
  return %sum : tensor<7x64xf32>
}
"""


@pytest.mark.skipif(cpu.vector_bytes("") < 32, reason="a CPU with AVX2 or AVX-512")
@pytest.mark.parametrize(("then", "more"), [("%a", 9), ("%x", 6)], ids=["after", "beside"])
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_calls_of_a_function_have_counters_of_their_own(device: str, then: str, more: int) -> None:
    """Were what makes zeros of each one dispatch, kernels that share counters would never end."""
    caller = CALLER.replace("%b = func.call @main(%x)", f"%b = func.call @main({then})")
    callee = added(3).replace("func.func @main", "func.func private @added")
    module = parsed(callee + caller.replace("@main", "@added").replace("@twice", "@main"))
    assert share(module, 2) == 3
    binary = compiler.compile_module(compiler.Program(module), CPU)
    given = np.arange(448, dtype=np.float32).reshape(7, 64)
    program = runtime.Program(binary, [given], device)
    for _ in range(5):
        np.testing.assert_array_equal(program.results()[0], 2 * given + more)


@pytest.mark.skipif(cpu.vector_bytes("") < 32, reason="a CPU with AVX2 or AVX-512")
@pytest.mark.parametrize("parts", [2, 3, 5, 8])
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_numbers_are_those_of_the_program(parts: int, device: str) -> None:
    """Seven workgroups do not divide evenly; more parts than workgroups are none."""
    module = parsed(added(70))
    assert share(module, parts) == 70
    binary = compiler.compile_module(compiler.Program(module), CPU)
    given = np.arange(448, dtype=np.float32).reshape(7, 64)
    program = runtime.Program(binary, [given], device)
    for _ in range(20):
        np.testing.assert_array_equal(program.results()[0], given + 70)


@pytest.mark.skipif(cpu.vector_bytes("") < 32, reason="a CPU with AVX2 or AVX-512")
def test_calls_at_the_same_time_have_counters_of_their_own() -> None:
    module = parsed(added(40))
    share(module, 2)
    binary = compiler.compile_module(compiler.Program(module), CPU)
    wrong: list[int] = []

    def call(by: int) -> None:
        given = np.full((7, 64), by, dtype=np.float32)
        program = runtime.Program(binary, [given], "local-task")
        wrong.extend(by for _ in range(30) if (program.results()[0] != by + 40).any())

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


LOOP = """
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %all = scf.for %i = %c0 to %c3 step %c1 iter_args(%w = %v2) -> (tensor<7x64xf32>) {
    %w1 = flow.dispatch @add::@add(%w) : (tensor<7x64xf32>) -> tensor<7x64xf32>
    scf.yield %w1 : tensor<7x64xf32>
  }
"""


@pytest.mark.parametrize(
    "text", [added(2, LOOP, "%all"), added(2, workgroups=1)], ids=["in a loop", "one workgroup"]
)
def test_such_a_kernel_stays_as_it_is(text: str) -> None:
    module = parsed(text)
    before = str(module)
    assert share(module, 2) == 0
    assert str(module) == before


def test_a_grid_known_at_run_time_stays() -> None:
    text = added(2).replace("workgroups() ->", "workgroups(%many: index) ->")
    text = text.replace("    %many = arith.constant 7 : index\n", "")
    text = text.replace("flow.dispatch @add::@add(", "flow.dispatch @add::@add[%n](")
    module = parsed(text.replace("{\n  %v1", "{\n  %n = arith.constant 7 : index\n  %v1"))
    assert share(module, 2) == 0


def test_parts_are_the_cores_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "cores", lambda: 64)
    monkeypatch.setattr(cpu, "vector_bytes", lambda name: 16 if "arm" in name else 32)
    monkeypatch.setattr(cpu, "_cpuinfo", lambda: frozenset(["avx2", "rdtscp"]))
    assert (cpu.parts(""), cpu.parts("znver4"), cpu.parts("arm")) == (8, 2, 1)
    monkeypatch.setattr(cpu, "_cpuinfo", lambda: frozenset(["avx2"]))
    assert cpu.parts("") == 1


CONVOLUTION = """
func.func @main(%x: !torch.vtensor<[1,64,56,56],f32>, %w: !torch.vtensor<[64,64,1,1],f32>)
    -> !torch.vtensor<[1,64,56,56],f32> {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %c0 = torch.constant.int 0
  %c1 = torch.constant.int 1
  %one = torch.prim.ListConstruct %c1, %c1 : (!torch.int, !torch.int) -> !torch.list<int>
  %zero = torch.prim.ListConstruct %c0, %c0 : (!torch.int, !torch.int) -> !torch.list<int>
  %no = torch.prim.ListConstruct : () -> !torch.list<int>
  %y = torch.aten.convolution %x, %w, %none, %one, %zero, %one, %false, %no, %c1
      : !torch.vtensor<[1,64,56,56],f32>, !torch.vtensor<[64,64,1,1],f32>, !torch.none,
        !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>,
        !torch.int -> !torch.vtensor<[1,64,56,56],f32>
  return %y : !torch.vtensor<[1,64,56,56],f32>
}
"""


@pytest.mark.parametrize(
    ("says", "taken"),
    [("", True), ("affinity: false\n", False), ("affinity: true\n", True)],
    ids=["as cpu-fast", "off", "on"],
)
def test_a_pipeline_says_whether(says: str, taken: bool, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"pipeline: mine\nsummary: Its own.\nextends: cpu-fast\n{says}", "utf-8")
    line = Pipeline.load(path)
    flow, _ = compile_program(
        CONVOLUTION, Target("cpu", "x86-64-v3"), line, flags=["--compile-to=flow"]
    )
    assert (b"rdtscp" in flow) == taken


def test_a_function_is_recorded_once() -> None:
    """Not again in each call, which costs microseconds for each."""
    line = Pipeline.load("cpu-fast")
    flow, _ = compile_program(CONVOLUTION, Target("cpu"), line, flags=["--compile-to=hal"])
    assert b"hal.device.queue.execute.indirect" in flow
    assert b"hal.device.queue.execute<" not in flow
