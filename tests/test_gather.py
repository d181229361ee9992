"""Kernels that are compiled as one executable."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_programs import KERNEL, parsed
from mlirules.drivers.apply.kernels import TOGETHER, gather
from mlirules.drivers.apply.sharing import share
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.program import entry_points
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import ops_below

CPU = Target("cpu")
#: Each adds a number of its own.
OF_ITS_OWN = (
    KERNEL.replace("@add", "@add_N").replace("dense<1.0>", "dense<N.0>").replace("WORKGROUPS", "7")
)
TENSOR = "tensor<7x64xf32>"


def added(count: int, kernel: str = OF_ITS_OWN) -> str:
    """A program that adds 0, 1, 2 and so on by kernels of their own."""
    calls = "".join(
        f"  %v{n + 1} = flow.dispatch @add_{n}::@add_{n}(%v{n}) : ({TENSOR}) -> {TENSOR}\n"
        for n in range(count)
    )
    body = f"{calls}  return %v{count} : {TENSOR}\n"
    kernels = "".join(
        kernel.replace("_N", f"_{n}").replace("<N.0>", f"<{n}.0>") for n in range(count)
    )
    return f"{kernels}func.func @main(%v0: {TENSOR}) -> {TENSOR} {{\n{body}}}\n"


def executables(module: ir.Module) -> list[list[str]]:
    """The kernels of each executable, in order."""
    return [
        [
            ir.StringAttr(part.operation.attributes["sym_name"]).value
            for part in op.operation.regions[0].blocks[0].operations
            if part.operation.name == "stream.executable.export"
        ]
        for op in module.body.operations
        if op.operation.name == "stream.executable"
    ]


@pytest.mark.parametrize("count", [1, 2, TOGETHER, TOGETHER + 1, 3 * TOGETHER])
def test_kernels_share_executables(count: int) -> None:
    module = parsed(added(count))
    wanted = -(-count // TOGETHER)
    assert gather(module) == count - wanted
    assert module.operation.verify()
    found = executables(module)
    assert len(found) == wanted
    assert max(map(len, found)) <= TOGETHER
    assert sorted(name for names in found for name in names) == sorted(
        f"add_{n}" for n in range(count)
    )
    binary = compiler.compile_module(compiler.Program(module), CPU)
    given = np.arange(448, dtype=np.float32).reshape(7, 64)
    (got,) = runtime.run(binary, [given], CPU)
    np.testing.assert_array_equal(got, given + sum(range(count)))


def test_workgroups_that_are_shared_are_so_in_one_executable() -> None:
    module = parsed(added(5))
    assert share(module, 2) == 5
    assert gather(module) == 5  # and what sets the counters to zero
    binary = compiler.compile_module(compiler.Program(module), CPU)
    given = np.ones((7, 64), np.float32)
    program = runtime.Program(binary, [given], "local-task")
    for _ in range(5):
        np.testing.assert_array_equal(program.results()[0], given + 10)


def test_a_dispatch_of_one_of_several_is_found() -> None:
    module = parsed(added(3))
    gather(module)
    (first, *_) = executables(module)
    dispatches = [op for op in ops_below(module.operation) if op.name == "flow.dispatch"]
    assert [entry_points(op) for op in dispatches] == [[["add_0", f"add_{n}"]] for n in range(3)]
    assert len(first) == 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('mlirules.target = "cpu"', 'mlirules.target = "vulkan"'),
        ('attributes {mlirules.target = "cpu"}', ""),
        ('{mlirules.target = "cpu"}', '{mlirules.target = "cpu", a.note}'),
        ("builtin.module {", "builtin.module {\n    func.func private @sqrtf(f32) -> f32"),
        ("builtin.module {", "builtin.module attributes {a.note} {"),
    ],
    ids=["vulkan", "no kernel of ours", "an attribute", "a further function", "of its module"],
)
def test_what_is_more_than_a_kernel_stays_alone(old: str, new: str) -> None:
    module = parsed(added(3, OF_ITS_OWN.replace(old, new)))
    before = str(module)
    assert gather(module) == 0
    assert str(module) == before
