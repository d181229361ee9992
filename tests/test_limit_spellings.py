"""Every spelling of a limited activation ends, through ``cpu-fast``, in the convolution's kernel.

PyTorch's own decompositions write them as one op or as several, by its version.
"""

from __future__ import annotations

import pytest

from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines import cost
from mlirules.drivers.pipelines.transform import transform
from mlirules.language.pipeline import Pipeline

T = "!torch.vtensor<[1,8,12,12],f32>"


def _clamp(result: str, value: str, low: str, high: str) -> str:
    kinds = ["!torch.none" if limit == "%none" else "!torch.int" for limit in (low, high)]
    return f"{result} = torch.aten.clamp {value}, {low}, {high} : {T}, {', '.join(kinds)} -> {T}"


def _relu(result: str, value: str) -> str:
    return f"{result} = torch.aten.relu {value} : {T} -> {T}"


#: What is done to ``%h``, whose places are limited to 0 and 6 in ``%l``.
LIMITS = {
    "hardtanh": [
        f"%l = torch.aten.hardtanh {{h}}, %zero, %six : {T}, !torch.int, !torch.int -> {T}"
    ],
    "clamp": [_clamp("%l", "{h}", "%zero", "%six")],
    "two clamps": [_clamp("%k", "{h}", "%zero", "%none"), _clamp("%l", "%k", "%none", "%six")],
    "the upper limit first": [
        _clamp("%k", "{h}", "%none", "%six"),
        _clamp("%l", "%k", "%zero", "%none"),
    ],
    "a relu and a clamp": [_relu("%k", "{h}"), _clamp("%l", "%k", "%none", "%six")],
}
SWISH = [
    f"%m = torch.aten.mul.Tensor %h, %l : {T}, {T} -> {T}",
    f"%y = torch.aten.div.Scalar %m, %six : {T}, !torch.int -> {T}",
]
CONVOLUTION = (
    "!torch.vtensor<[1,3,14,14],f32>, !torch.vtensor<[8,3,3,3],f32>, !torch.none, "
    "!torch.list<int>, "
    "!torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>, !torch.int"
)
PROGRAM = """
func.func @main(%x: !torch.vtensor<[1,3,14,14],f32>, %w: !torch.vtensor<[8,3,3,3],f32>) -> {T} {{
  %none = torch.constant.none
  %false = torch.constant.bool false
  %zero = torch.constant.int 0
  %one = torch.constant.int 1
  %three = torch.constant.int 3
  %six = torch.constant.int 6
  %pads = torch.prim.ListConstruct %zero, %zero : (!torch.int, !torch.int) -> !torch.list<int>
  %ones = torch.prim.ListConstruct %one, %one : (!torch.int, !torch.int) -> !torch.list<int>
  %e = torch.prim.ListConstruct : () -> !torch.list<int>
  %h = torch.aten.convolution %x, %w, %none, %ones, %pads, %ones, %false, %e, %one
    : {types} -> {T}
  {rows}
  return {result} : {T}
}}
"""


def _program(spelling: str, swish: bool) -> str:
    rows = [row.format(h="%h3" if swish else "%h") for row in LIMITS[spelling]]
    if swish:
        first = f"%h3 = torch.aten.add.Scalar %h, %three, %one : {T}, !torch.int, !torch.int -> {T}"
        rows = [first, *rows, *SWISH]
    result = "%y" if swish else "%l"
    return PROGRAM.format(T=T, types=CONVOLUTION, rows="\n  ".join(rows), result=result)


@pytest.mark.parametrize("spelling", LIMITS)
@pytest.mark.parametrize(("swish", "form"), [(False, "clamp"), (True, "hardswish")])
def test_a_spelling_ends_in_the_kernel(spelling: str, swish: bool, form: str) -> None:
    costs = cost.Settings(Target.parse("cpu:x86-64-v3"))
    stages = Pipeline.load("cpu-fast").stages
    done = transform(_program(spelling, swish), stages, costs=costs)
    taken = done.outcome.counts
    assert {name for name in taken if not name.startswith("torch-clamps-")} == {
        f"kernel-convolution-bare-{form}"
    }, taken
