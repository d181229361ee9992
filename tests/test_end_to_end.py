"""The example networks, as PyTorch exports them, through the rules alone, to PyTorch's numbers."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlirules.drivers.apply.programs import read_program
from mlirules.drivers.iree import npz, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program, transform

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
# HelloNNWorld is f32. ToyModel multiplies in f16 and adds up 2048 of the products in f32: PyTorch
# and IREE round the products to f16 after adding them up in different orders.
TOLERANCE = {"hello_nn_world": (1e-5, 1e-6), "toy_model": (1e-3, 1e-1)}
PROGRAMS = ["hello_nn_world.mlir", "hello_nn_world.aten.mlir", "toy_model.mlir"]
PROGRAMS += ["toy_model.aten.mlir"]


def _golden(program: str) -> Path:
    return EXAMPLES / f"{program.partition('.')[0]}.npz"


def _equals_golden(program: str, target: Target) -> None:
    path = EXAMPLES / program
    binary, done = compile_program(read_program(path), target, path=str(path), fallback=False)
    assert done.outcome.total > 0
    results = runtime.run(binary, npz.load(_golden(program)), target)
    expected = npz.load(_golden(program), prefix="r")
    rtol, atol = TOLERANCE[program.partition(".")[0]]
    assert len(results) == len(expected)
    for found, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


@pytest.mark.parametrize("program", PROGRAMS)
def test_cpu_equals_pytorch(program: str) -> None:
    _equals_golden(program, Target.parse("cpu"))


# llvmpipe compiles the product of ToyModel into blocks whose instructions LLVM orders in quadratic
# time where it orders them at all: 160 seconds on a Zen 4.
ON_VULKAN = [
    pytest.param(program, marks=[pytest.mark.slow] if program.startswith("toy") else [])
    for program in PROGRAMS
]


@pytest.mark.vulkan
@pytest.mark.parametrize("program", ON_VULKAN)
def test_vulkan_equals_pytorch(program: str, vulkan: str) -> None:
    _equals_golden(program, Target.parse(vulkan))


@pytest.mark.gpu
@pytest.mark.parametrize("program", PROGRAMS)
def test_cuda_equals_pytorch(program: str, cuda: str) -> None:
    _equals_golden(program, Target.parse(f"{cuda}:sm_80"))


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942"])
@pytest.mark.parametrize("program", ["hello_nn_world.mlir", "toy_model.mlir"])
def test_gpu_targets_compile(program: str, target: str) -> None:
    path = EXAMPLES / program
    binary, _ = compile_program(
        read_program(path), Target.parse(target), path=str(path), fallback=False
    )
    assert [entry.name for entry in runtime.entries(binary)] == ["main"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_torch_op_is_left(program: str) -> None:
    done = transform(read_program(EXAMPLES / program), "cpu", path=program)
    assert done.leftovers == []


@pytest.mark.slow
def test_gpu_run_compares_with_the_golden(tmp_path: Path) -> None:
    """The script for GPU machines, on the CPU's device: it agrees, and it notices a difference."""
    program = EXAMPLES / "hello_nn_world.mlir"
    binary, _ = compile_program(read_program(program), Target.parse("cpu"), path=str(program))
    (tmp_path / "hello.vmfb").write_bytes(binary)
    (tmp_path / "hello.npz").write_bytes(_golden(program.name).read_bytes())

    def run() -> "subprocess.CompletedProcess[str]":
        script = ROOT / "benchmarks" / "gpu_run.py"
        command = [sys.executable, str(script), str(tmp_path), "--device=local-task", "--repeat=2"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ok")
    with np.load(tmp_path / "hello.npz") as data:
        arrays = {name: data[name] for name in data.files}
    arrays["r0"] = arrays["r0"] + 1
    np.savez(tmp_path / "hello.npz", **arrays)
    done = run()
    assert done.returncode == 1
    assert "FAIL" in done.stdout
