"""Training: the step of examples/hello_nn_world_train by the rules alone, against PyTorch."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mlirules.drivers.iree import npz, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PROGRAMS = ["hello_nn_world_train.mlir", "hello_nn_world_train.core.mlir"]


def build(program: str, target: Target) -> bytes:
    """The step's binary. Fails when any torch op is left for IREE's own conversion."""
    path = EXAMPLES / program
    binary, done = compile_program(path.read_text(), target, path=str(path), fallback=False)
    assert done.leftovers == []
    return binary


def golden(prefix: str) -> list[NDArray[np.float32]]:
    """The arguments (``a``) or PyTorch's results (``r``) of the step."""
    return npz.load(EXAMPLES / "hello_nn_world_train.npz", prefix=prefix)


def check_step(program: str, target: Target) -> None:
    """Loss and both gradients equal PyTorch's."""
    found = runtime.run(build(program, target), golden("a"), target)
    for ours, theirs in zip(found, golden("r"), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("program", PROGRAMS)
def test_step_on_cpu(program: str) -> None:
    """Forward and backward pass by rules only, in PyTorch's own backward ops and in core ATen."""
    check_step(program, Target.parse("cpu"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_step_on_vulkan(program: str, vulkan: str) -> None:
    """The same on a GPU API."""
    check_step(program, Target.parse(vulkan))


@pytest.mark.slow
def test_descent_follows_pytorch() -> None:
    """Ten steps of gradient descent give PyTorch's losses, and end with its parameters."""
    target = Target.parse("cpu")
    binary = build(PROGRAMS[0], target)
    images, labels, weight, bias = golden("a")
    with np.load(EXAMPLES / "hello_nn_world_train_sgd.npz") as curve:
        rate, losses = curve["rate"], curve["losses"]
        last_weight, last_bias = curve["weight"], curve["bias"]
    found = []
    for _ in losses:
        loss, weight_gradient, bias_gradient = runtime.run(
            binary, [images, labels, weight, bias], target
        )
        found.append(loss)
        weight = weight - rate * weight_gradient
        bias = bias - rate * bias_gradient
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(np.stack(found), losses, rtol=1e-5)
    np.testing.assert_allclose(weight, last_weight, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(bias, last_bias, rtol=1e-4, atol=1e-6)
