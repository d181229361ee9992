"""Random draws by the default pipeline: of the right places, as often as they should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlirules.drivers.apply.programs import parsed
from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.compiler import Program
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program

CPU = Target.parse("cpu")


def drawn(text: str, *inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
    binary, _ = compile_program(Program(parsed(text)), CPU)
    (result,) = runtime.run(binary, list(inputs), CPU)
    return np.asarray(result)


def multinomial(
    weights: npt.NDArray[Any], count: int, again: bool, *, open_sizes: bool = False
) -> npt.NDArray[Any]:
    kind = {np.dtype("f4"): "f32", np.dtype("f8"): "f64"}[weights.dtype]
    rows = ["?" if open_sizes else str(n) for n in weights.shape]
    taken = f"!torch.vtensor<[{','.join(rows)}],{kind}>"
    given = f"!torch.vtensor<[{','.join([*rows[:-1], str(count)])}],si64>"
    return drawn(
        f"""
        func.func @main(%w: {taken}) -> {given} {{
          %n = torch.constant.int {count}
          %again = torch.constant.bool {str(again).lower()}
          %none = torch.constant.none
          %y = torch.aten.multinomial %w, %n, %again, %none
            : {taken}, !torch.int, !torch.bool, !torch.none -> {given}
          return %y : {given}
        }}""",
        weights,
    )


@pytest.mark.parametrize("kind", ["f4", "f8"])
@pytest.mark.parametrize("open_sizes", [False, True])
def test_places_are_drawn_as_often_as_their_weights_say(kind: str, open_sizes: bool) -> None:
    weights = np.array([[1, 0, 2, 5], [0, 3, 0.5, 0], [7, 0, 0, 0]], kind)
    found = multinomial(weights, 40000, True, open_sizes=open_sizes)
    for row, places in zip(weights / weights.sum(1, keepdims=True), found, strict=True):
        share = np.bincount(places, minlength=4) / 40000
        assert np.all(share[row == 0] == 0)
        assert np.all(np.abs(share - row) <= 5 * np.sqrt(row * (1 - row) / 40000))


def test_one_place_of_each_of_many_rows() -> None:
    weights = np.tile(np.array([1, 0, 2, 5], "f4"), (20000, 1))
    found = multinomial(weights, 1, False, open_sizes=True)
    share = np.bincount(found[:, 0], minlength=4) / 20000
    assert share[1] == 0
    assert np.all(np.abs(share - weights[0] / 8) <= 5 * np.sqrt(0.25 / 20000))


def test_places_without_replacement_differ() -> None:
    weights = np.tile(np.array([1, 0, 2, 5, 4], "f4"), (20000, 1))
    found = multinomial(weights, 3, False)
    assert all(len(set(row)) == 3 for row in found.tolist())
    assert not np.any(found == 1)
    # The first is drawn by the weights, the second by those that are left.
    first = np.bincount(found[:, 0], minlength=5) / 20000
    assert np.all(np.abs(first - weights[0] / 12) <= 5 * np.sqrt(0.25 / 20000))
    second = found[found[:, 0] == 3, 1]
    wanted = np.array([1, 0, 2, 0, 4]) / 7
    share = np.bincount(second, minlength=5) / len(second)
    assert np.all(np.abs(share - wanted) <= 5 * np.sqrt(0.25 / len(second)))


def test_normal_numbers_of_f64() -> None:
    type_ = "!torch.vtensor<[200,1000],f64>"
    found = drawn(
        f"""
        func.func @main() -> {type_} {{
          %rows = torch.constant.int 200
          %columns = torch.constant.int 1000
          %sizes = torch.prim.ListConstruct %rows, %columns
            : (!torch.int, !torch.int) -> !torch.list<int>
          %f64 = torch.constant.int 7
          %none = torch.constant.none
          %y = torch.aten.randn %sizes, %f64, %none, %none, %none
            : !torch.list<int>, !torch.int, !torch.none, !torch.none, !torch.none -> {type_}
          return %y : {type_}
        }}"""
    )
    moments = [np.mean(found**n) for n in range(1, 5)]
    np.testing.assert_allclose(moments, [0, 1, 0, 3], atol=0.06)
    assert abs(np.mean(np.abs(found) < 1) - 0.6827) < 0.01
    assert len(np.unique(found)) > 199000
