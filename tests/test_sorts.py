"""Sorts of which the places alone are read: IREE puts their values on the stack."""

from __future__ import annotations

import numpy as np
import pytest

from mlirules.drivers.apply.programs import parsed
from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.compiler import Program
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program

CPU = Target.parse("cpu")
SORT = """%v, %y = torch.aten.sort %x, %dim, %true
  : X, !torch.int, !torch.bool -> X, Y"""
TOPK = """%v, %y = torch.aten.topk %x, %count, %dim, %true, %true
  : X, !torch.int, !torch.int, !torch.bool, !torch.bool -> V, Y"""


@pytest.mark.parametrize("rows", ["2", "?"])
@pytest.mark.parametrize(("op", "count"), [(SORT, 9000), (TOPK, 50)])
def test_places_of_many_numbers(op: str, count: int, rows: str) -> None:
    types = {
        "X": f"!torch.vtensor<[{rows},9000],f32>",
        "V": f"!torch.vtensor<[{rows},{count}],f32>",
        "Y": f"!torch.vtensor<[{rows},{count}],si64>",
    }
    text = f"""func.func @main(%x: X) -> Y {{
      %dim = torch.constant.int -1
      %count = torch.constant.int {count}
      %true = torch.constant.bool true
      {op}
      return %y : Y
    }}"""
    for name, type_ in types.items():
        text = text.replace(name, type_)
    x = np.random.default_rng(0).permutation(18000).reshape(2, 9000).astype("f4")
    binary, _ = compile_program(Program(parsed(text)), CPU)
    (places,) = runtime.run(binary, [x], CPU)
    np.testing.assert_array_equal(places, np.argsort(-x, 1, kind="stable")[:, :count])
