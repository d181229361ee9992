"""`torch.unique` by the default pipeline: results of run-time size."""

import numpy as np

from mlirules.drivers.iree.runtime import run
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program

CPU = Target.parse("cpu")
PROGRAM = """
func.func @main(%x: !torch.vtensor<[2,4],si64>) -> (!torch.vtensor<[?],si64>, !torch.vtensor<[2,4],si64>, !torch.vtensor<[?],si64>) {
  %b = torch.constant.bool true
  %r:3 = torch.operator "torch.aten._unique2"(%x, %b, %b, %b) : (!torch.vtensor<[2,4],si64>, !torch.bool, !torch.bool, !torch.bool) -> (!torch.vtensor<[?],si64>, !torch.vtensor<[2,4],si64>, !torch.vtensor<[?],si64>)
  return %r#0, %r#1, %r#2 : !torch.vtensor<[?],si64>, !torch.vtensor<[2,4],si64>, !torch.vtensor<[?],si64>
}
"""  # noqa: E501


def test_values_places_and_counts() -> None:
    binary, done = compile_program(PROGRAM, CPU)
    assert not done.leftover_counts
    for x in ([[5, 7, 5, 7], [-1, 5, 7, 7]], [[3, 3, 3, 3]] * 2, [[8, 7, 6, 5], [4, 3, 2, 1]]):
        given = np.array(x, dtype=np.int64)
        values, places, counts = np.unique(given, return_inverse=True, return_counts=True)
        for got, want in zip(
            run(binary, [given], CPU), (values, places.reshape(2, 4), counts), strict=True
        ):
            np.testing.assert_array_equal(got, want)
