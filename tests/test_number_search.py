"""Right numbers under the shipped pipelines: what the search has found, and the search itself.

The search is slow: ``pytest -m slow tests/test_number_search.py``, or for longer, and to go on
where it stopped, ``python benchmarks/number_search.py --seconds 3600 --store FILE``.
"""

import importlib.util
import itertools
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program, default_for
from mlirules.language.pipeline import Pipeline

CPU = Target.parse("cpu")
#: A batch of rows, each divided by its sum, times a batch of matrices: what is left of attention.
NORMALISED_ROWS = """
#all = affine_map<(b, i, j) -> (b, i, j)>
#row = affine_map<(b, i, j) -> (b, i)>
func.func @main(%s: tensor<4xMxKxf32>, %v: tensor<4xKx16xf32>) -> tensor<4xMx16xf32> {
  %z = arith.constant 0.0 : f32
  %e2 = tensor.empty() : tensor<4xMxf32>
  %f2 = linalg.fill ins(%z : f32) outs(%e2 : tensor<4xMxf32>) -> tensor<4xMxf32>
  %sum = linalg.generic
    {indexing_maps = [#all, #row], iterator_types = ["parallel", "parallel", "reduction"]}
    ins(%s : tensor<4xMxKxf32>) outs(%f2 : tensor<4xMxf32>) {
  ^bb0(%a: f32, %o: f32):
    %r = arith.addf %o, %a : f32
    linalg.yield %r : f32
  } -> tensor<4xMxf32>
  %e3 = tensor.empty() : tensor<4xMxKxf32>
  %d = linalg.generic
    {indexing_maps = [#all, #row, #all], iterator_types = ["parallel", "parallel", "parallel"]}
    ins(%s, %sum : tensor<4xMxKxf32>, tensor<4xMxf32>) outs(%e3 : tensor<4xMxKxf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %r = arith.divf %a, %b : f32
    linalg.yield %r : f32
  } -> tensor<4xMxKxf32>
  %eo = tensor.empty() : tensor<4xMx16xf32>
  %fo = linalg.fill ins(%z : f32) outs(%eo : tensor<4xMx16xf32>) -> tensor<4xMx16xf32>
  %p = linalg.batch_matmul ins(%d, %v : tensor<4xMxKxf32>, tensor<4xKx16xf32>)
                           outs(%fo : tensor<4xMx16xf32>) -> tensor<4xMx16xf32>
  return %p : tensor<4xMx16xf32>
}
"""


@pytest.mark.parametrize(("m", "k"), [(79, 79), pytest.param(7, 64, marks=pytest.mark.slow)])
def test_batches_of_normalised_rows_that_fill_no_block(m: int, k: int) -> None:
    """Packed late, all batches but the first were garbage: wav2vec2, every attention like it."""
    text = NORMALISED_ROWS.replace("M", str(m)).replace("K", str(k))
    rng = np.random.default_rng(0)
    rows = rng.uniform(0.5, 1, (4, m, k)).astype(np.float32)
    values = rng.uniform(-1, 1, (4, k, 16)).astype(np.float32)
    packing = replace(default_for("cpu"), large_products=[])
    vmfb, _ = compile_program(text, CPU, packing)
    (found,) = runtime.run(vmfb, [rows, values], CPU)
    exact = (rows / rows.sum(-1, keepdims=True)) @ values
    assert np.allclose(found, exact, rtol=0, atol=2e-6)


def _search() -> ModuleType:
    pytest.importorskip("torch")
    path = Path(__file__).resolve().parent.parent / "benchmarks" / "number_search.py"
    spec = importlib.util.spec_from_file_location("number_search", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", ["cpu-fast", "cpu"])
def test_made_up_programs_are_right(pipeline: str) -> None:
    search = _search()
    until = time.monotonic() + 240
    shipped = Pipeline.load(pipeline)
    found = [
        f"{case.number}: {case.words}: {said}"
        for case, said in search.search(itertools.count(), CPU, shipped, until)
        if said
    ]
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.vulkan
def test_made_up_programs_are_right_on_vulkan(vulkan: str) -> None:
    search = _search()
    until = time.monotonic() + 240
    target = Target.parse(vulkan)
    found = [
        f"{case.number}: {case.words}: {said}"
        for case, said in search.search(itertools.count(), target, default_for("vulkan"), until)
        if said.startswith("wrong")
    ]
    assert not found, "\n".join(found)
