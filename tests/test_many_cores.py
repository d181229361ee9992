"""Kernels whose work is divided among many cores: workgroups for all, and the same numbers."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from mlirules.drivers.iree import compiler, cpu, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.cost import Settings
from mlirules.drivers.pipelines.transform import transform
from mlirules.language.stage import Stage
from torch_programs import convolution

STAGES = [
    Stage(
        phase="torch",
        rules=["kernels/kernel-depthwise", "kernels/kernel-convolution"],
        driver="greedy",
    )
]
MANY = 16
#: Images, filters, groups and strides of layers that two cores take as a few workgroups.
LAYERS = [
    pytest.param((1, 256, 14, 14), (256, 256, 1, 1), 1, 1, id="few places"),
    pytest.param((1, 512, 7, 7), (256, 512, 1, 1), 1, 1, id="one tile"),
    pytest.param((1, 128, 28, 28), (64, 128, 1, 1), 1, 1, id="some places"),
    pytest.param((2, 64, 14, 14), (64, 64, 3, 3), 1, 2, id="two images"),
    pytest.param((1, 64, 28, 28), (64, 16, 3, 3), 4, 1, id="groups"),
    pytest.param((1, 64, 28, 28), (64, 64, 3, 3), 1, 1, id="winograd"),
    pytest.param((1, 80, 28, 28), (128, 80, 3, 3), 1, 1, id="winograd of many filters"),
    pytest.param((1, 96, 28, 28), (96, 1, 3, 3), 96, 1, id="depthwise"),
]


def workgroups(text: str) -> list[int]:
    """How many workgroups each kernel of a program has."""
    found = []
    exports = r"stream\.executable\.export.*?stream\.return [^\n]*"
    for region in re.findall(exports, text, re.DOTALL):
        sizes = dict(re.findall(r"(%\S+) = arith\.constant (\d+) : index", region))
        names = region.rpartition("stream.return ")[2].partition(" :")[0].split(", ")
        found.append(math.prod(int(sizes[name]) for name in names))
    return found


@pytest.fixture(params=["x86-64-v3", "x86-64-v4"])
def target(request: pytest.FixtureRequest) -> Target:
    """A named CPU, for which the work is divided among two cores."""
    named = Target("cpu", str(request.param))
    if reason := named.available():
        pytest.skip(reason)
    return named


@pytest.mark.parametrize(("images", "filters", "groups", "stride"), LAYERS)
def test_every_core_has_a_workgroup(
    images: tuple[int, int, int, int],
    filters: tuple[int, int, int, int],
    groups: int,
    stride: int,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(5)
    image, held = (rng.standard_normal(dims).astype(np.float32) for dims in (images, filters))
    program = convolution(images, held, groups=groups, stride=stride)
    numbers, counts = [], []
    for many in (2, MANY):
        monkeypatch.setattr(cpu, "divided", lambda _, many=many: many)
        text = transform(program, STAGES, costs=Settings(target)).text
        counts.append(workgroups(text))
        numbers.append(runtime.run(compiler.compile_module(text, target), [image], target, "f")[0])
    np.testing.assert_array_equal(*numbers)
    few, enough = counts
    assert len(few) == len(enough) > 0
    assert min(few) < MANY
    # Layers of one tile have a workgroup for each 32 filters, which may be half of the cores.
    assert all(count >= MANY // 2 for count in enough)
    assert sum(enough) > sum(few)


def test_work_is_divided_among_the_cores_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, said in ((1, 2), (6, 6), (200, 64)):
        monkeypatch.setattr(cpu, "cores", lambda has=has: has)
        assert cpu.divided("") == said
        assert cpu.divided("znver4") == 2


@pytest.mark.parametrize(("channels", "filters", "one"), [(16, 128, True), (96, 320, False)])
def test_little_work_is_not_divided(channels: int, filters: int, one: bool) -> None:
    """Of 7x7 places; a second workgroup costs as much as half of the smaller one's work."""
    target = Target("cpu", "x86-64-v3")
    if reason := target.available():
        pytest.skip(reason)
    held = np.ones((filters, channels, 1, 1), np.float32)
    program = convolution((1, channels, 7, 7), held, pads=(0, 0))
    [count] = workgroups(transform(program, STAGES, costs=Settings(target)).text)
    assert (count == 1) == one
