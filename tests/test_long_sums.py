"""Sums of very many elements are as good as PyTorch's, which adds up partial sums as well."""

from __future__ import annotations

import numpy as np
import pytest

from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program, transform
from mlirules.language.pipeline import Pipeline


def program(shape: tuple[int, ...], dims: tuple[int, ...], element: str = "f32") -> str:
    """The sum of a tensor of that shape along dims."""
    sizes = ",".join(map(str, shape))
    kept = ",".join(str(s) for i, s in enumerate(shape) if i not in dims)
    x, y = f"!torch.vtensor<[{sizes}],{element}>", f"!torch.vtensor<[{kept}],{element}>"
    ints = "".join(f"  %i{d} = torch.constant.int {d}\n" for d in dims)
    types = ", ".join(["!torch.int"] * len(dims))
    return f"""func.func @main(%x: {x}) -> {y} {{
  %none = torch.constant.none
  %false = torch.constant.bool false
{ints}  %l = torch.prim.ListConstruct {", ".join(f"%i{d}" for d in dims)} : ({types}) -> !torch.list<int>
  %y = torch.aten.sum.dim_IntList %x, %l, %false, %none : {x}, !torch.list<int>, !torch.bool, !torch.none -> {y}
  return %y : {y}
}}
"""  # noqa: E501 - a program's lines


def stages(shape: tuple[int, ...], dims: tuple[int, ...], element: str = "f32") -> int:
    """How many sums there are after the rules."""
    done = transform(program(shape, dims, element), Pipeline.load("cpu"))
    return done.text.count("linalg.yield")


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        pytest.param((1 << 25,), (0,), marks=pytest.mark.slow),
        pytest.param((8, 64, 256, 256), (0, 1, 2, 3), marks=pytest.mark.slow),
        ((4, 3, 1 << 20), (0, 2)),
        pytest.param((1 << 22, 3), (0,), marks=pytest.mark.slow),
        ((2, 4000037), (1,)),  # a prime
    ],
)
def test_nothing_is_lost_in_long_sums(shape: tuple[int, ...], dims: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.random(shape, dtype=np.float32)
    target = Target.parse("cpu")
    binary, _ = compile_program(program(shape, dims), target, Pipeline.load("cpu"))
    (made,) = runtime.run(binary, [x], target)
    wanted = x.sum(axis=dims, dtype=np.float64)
    assert np.abs(made - wanted).max() < 3e-6 * np.abs(wanted).max()


def test_short_sums_other_reductions_and_wide_ones_are_one_op() -> None:
    assert stages((128, 256), (0, 1)) == 1
    assert stages((1 << 15,), (0,)) == 1
    assert stages((1 << 20,), (0,), "f64") == 1
    assert stages((1 << 20,), (0,)) == 2
    assert stages((32771,), (0,)) == 1
    assert stages((40009,), (0,)) == 3
    assert stages((1 << 20,), (0,), "si64") == 1
