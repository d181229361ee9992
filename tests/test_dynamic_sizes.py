"""Sizes known only at run time: right, or an error with a message; never what lies beside a tensor.

The compiler's own conversion of such programs reads past the end of the smaller operand.
"""

from typing import Any

import numpy as np
import pytest

from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import transform
from mlirules.language.faults import MlirulesError
from mlirules.language.pipeline import Pipeline

CPU = Target.parse("cpu")


def binary(name: str, op: str, left: str, right: str, result: str, more: str = "") -> str:
    tensors = [f"!torch.vtensor<[{shape}],f32>" for shape in (left, right, result)]
    a, b, r = tensors
    said = ", !torch.int" if more else ""
    return f"""
func.func @{name}(%a: {a}, %b: {b}) -> {r} {{
  %one = torch.constant.int 1
  %r = torch.aten.{op} %a, %b{more} : {a}, {b}{said} -> {r}
  return %r : {r}
}}
"""


PROGRAM = "".join(
    [
        binary("add", "add.Tensor", "?,3", "?,3", "?,3", ", %one"),
        binary("written", "mul.Tensor", "?,?", "1,?", "?,?"),
        binary("fixed", "mul.Tensor", "?,3", "4,3", "4,3"),
        binary("product", "mm", "?,?", "?,?", "?,?"),
    ]
)


@pytest.fixture(scope="module")
def vmfb() -> bytes:
    done = transform(PROGRAM, Pipeline.load("cpu"))
    return compiler.compile_here(done.text, CPU)


@pytest.mark.parametrize(
    ("function", "left", "right"),
    [
        ("add", (4, 3), (4, 3)),
        ("add", (1, 3), (1, 3)),
        ("written", (4, 3), (1, 3)),
        ("fixed", (4, 3), (4, 3)),
        ("product", (4, 3), (3, 5)),
        ("product", (1, 1), (1, 1)),
    ],
)
def test_sizes_that_agree(vmfb: bytes, function: str, left: Any, right: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in (left, right))
    (found,) = runtime.run(vmfb, [a, b], CPU, function)
    exact = {"add": np.add, "product": np.matmul}.get(function, np.multiply)(a, b)
    assert np.allclose(found, exact, rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "left", "right", "rule"),
    [
        ("add", (4, 3), (1, 3), "torch-add-tensor-to-linalg"),
        ("add", (1, 3), (4, 3), "torch-add-tensor-to-linalg"),
        ("add", (3, 3), (4, 3), "torch-add-tensor-to-linalg"),
        ("written", (4, 3), (1, 1), "torch-mul-tensor-to-linalg"),
        ("product", (4, 3), (2, 5), "torch-mm-to-linalg"),
    ],
)
def test_sizes_that_differ_are_an_error(
    vmfb: bytes, function: str, left: Any, right: Any, rule: str
) -> None:
    with pytest.raises(MlirulesError) as failed:
        runtime.run(vmfb, [np.ones(left, np.float32), np.ones(right, np.float32)], CPU, function)
    assert f"{rule}: " in str(failed.value)
    assert "differ in a size that is known only at run time" in str(failed.value)


def test_a_size_that_the_other_operand_fixes(vmfb: bytes) -> None:
    with pytest.raises(MlirulesError, match="mismatch; expected 4 but have 1"):
        runtime.run(vmfb, [np.ones((1, 3), np.float32), np.ones((4, 3), np.float32)], CPU, "fixed")


def test_sizes_that_are_known_are_not_checked_again() -> None:
    text = binary("main", "add.Tensor", "4,3", "3", "4,3", ", %one")
    assert "cf.assert" not in transform(text, Pipeline.load("cpu")).text
