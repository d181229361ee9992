"""What is written into a tensor that it is computed of: a copy, where IREE reads what it wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlirules.drivers.apply.overwriting import guard_overwritten
from mlirules.drivers.apply.programs import parsed
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.compiler import Program
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program

CPU = Target.parse("cpu")


def put(
    dim: int, read: tuple[int, int], first: int, *, work: str = "", open_rows: bool = False
) -> str:
    """A program of a 6x40 tensor, doubled, that puts a slice of it (with ``work``) elsewhere."""
    sizes = ["?" if open_rows else "6", "40"]
    part = [*sizes]
    part[dim] = "?" if open_rows and dim == 0 else str(read[1] - read[0])
    x = f"!torch.vtensor<[{','.join(sizes)}],f32>"
    s = f"!torch.vtensor<[{','.join(part)}],f32>"
    written = "%r" if work else "%s"
    return f"""
    func.func @main(%a: {x}) -> {x} {{
      %one = torch.constant.int 1
      %two = torch.constant.int 2
      %dim = torch.constant.int {dim}
      %from = torch.constant.int {read[0]}
      %to = torch.constant.int {read[1]}
      %first = torch.constant.int {first}
      %last = torch.constant.int {first + read[1] - read[0]}
      %x = torch.aten.mul.Scalar %a, %two : {x}, !torch.int -> {x}
      %s = torch.aten.slice.Tensor %x, %dim, %from, %to, %one
        : {x}, !torch.int, !torch.int, !torch.int, !torch.int -> {s}
      {work.format(s=s)}
      %y = torch.aten.slice_scatter %x, {written}, %dim, %first, %last, %one
        : {x}, {s}, !torch.int, !torch.int, !torch.int, !torch.int -> {x}
      return %y : {x}
    }}"""


PLUS = "%r = torch.aten.add.Scalar %s, %two, %one : {s}, !torch.int, !torch.int -> {s}"


def numbers(text: str, *inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
    binary, _ = compile_program(Program(parsed(text)), CPU)
    (result,) = runtime.run(binary, list(inputs), CPU)
    return np.asarray(result)


@pytest.mark.parametrize("open_rows", [False, True])
@pytest.mark.parametrize(
    ("dim", "read", "first", "work", "plus"),
    [
        (1, (0, 39), 1, "", 0),
        (1, (1, 40), 0, "", 0),
        (1, (5, 25), 10, "", 0),
        (0, (0, 5), 1, "", 0),
        (0, (0, 5), 1, PLUS, 2),
        (0, (1, 6), 0, PLUS, 2),
        (1, (0, 39), 1, PLUS, 2),
    ],
)
def test_a_slice_put_beside_where_it_was(
    dim: int, read: tuple[int, int], first: int, work: str, plus: float, open_rows: bool
) -> None:
    x = np.random.default_rng(0).standard_normal((6, 40)).astype("f4")
    wanted = x * 2
    part, place = [slice(None)] * 2, [slice(None)] * 2
    part[dim], place[dim] = slice(*read), slice(first, first + read[1] - read[0])
    wanted[tuple(place)] = (x * 2)[tuple(part)] + plus
    found = numbers(put(dim, read, first, work=work, open_rows=open_rows), x)
    np.testing.assert_array_equal(found, wanted)


SCATTER = """
    func.func @main(%a: !torch.vtensor<[2,500],f32>, %i: !torch.vtensor<[2,500],si64>)
        -> !torch.vtensor<[2,500],f32> {
      %one = torch.constant.int 1
      %two = torch.constant.int 2
      %x = torch.aten.mul.Scalar %a, %two
        : !torch.vtensor<[2,500],f32>, !torch.int -> !torch.vtensor<[2,500],f32>
      %y = torch.aten.scatter.src %x, %one, %i, %x : !torch.vtensor<[2,500],f32>, !torch.int,
        !torch.vtensor<[2,500],si64>, !torch.vtensor<[2,500],f32> -> !torch.vtensor<[2,500],f32>
      return %y : !torch.vtensor<[2,500],f32>
    }"""


def test_a_scatter_of_a_tensor_into_itself() -> None:
    draw = np.random.default_rng(1)
    x = draw.standard_normal((2, 500)).astype("f4")
    places = np.stack([draw.permutation(500), draw.permutation(500)])
    wanted = x * 2
    np.put_along_axis(wanted, places, x * 2, 1)
    np.testing.assert_array_equal(numbers(SCATTER, x, places), wanted)


ROW = "tensor<6x4xf32>"


@pytest.mark.parametrize(
    ("body", "copies"),
    [
        # A part of the tensor over another that has some of it.
        ("%s = tensor.extract_slice %x[0, 0] [5, 4] [1, 1] : T to tensor<5x4xf32>\n"
         "%y = tensor.insert_slice %s into %x[1, 0] [5, 4] [1, 1] : tensor<5x4xf32> into T", 1),
        # Over one that has none of it.
        ("%s = tensor.extract_slice %x[0, 0] [3, 4] [1, 1] : T to tensor<3x4xf32>\n"
         "%y = tensor.insert_slice %s into %x[3, 0] [3, 4] [1, 1] : tensor<3x4xf32> into T", 0),
        # What is no part of it.
        ("%s = tensor.extract_slice %z[0, 0] [5, 4] [1, 1] : T to tensor<5x4xf32>\n"
         "%y = tensor.insert_slice %s into %x[1, 0] [5, 4] [1, 1] : tensor<5x4xf32> into T", 0),
        # Two ops that compute the same tensor.
        ("%e = tensor.empty() : T\n"
         "%p = arith.negf %x : T\n"
         "%q = arith.negf %x : T\n"
         "%s = tensor.extract_slice %p[0, 0] [5, 4] [1, 1] : T to tensor<5x4xf32>\n"
         "%y = tensor.insert_slice %s into %q[1, 0] [5, 4] [1, 1] : tensor<5x4xf32> into T", 1),
    ],
)  # fmt: skip
def test_what_is_copied(body: str, copies: int) -> None:
    text = f"func.func @f(%x: T, %z: T) -> T {{ {body}\n return %y : T }}".replace("T", ROW)
    module = compiler.parse(text)
    assert guard_overwritten(module) == copies
    assert module.operation.verify()
