"""Ops that IREE gets wrong on NVIDIA devices and that nothing mends: they are named."""

import pytest

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import Pipeline, Recipe

ATTENTION = """
!q = tensor<2x8x{0}xf32>
!k = tensor<2x16x{0}xf32>
!v = tensor<2x16x4xf32>
!o = tensor<2x8x4xf32>
#q = affine_map<(h, m, n, k, t) -> (h, m, k)>
#k = affine_map<(h, m, n, k, t) -> (h, t, k)>
#v = affine_map<(h, m, n, k, t) -> (h, t, n)>
#s = affine_map<(h, m, n, k, t) -> ()>
#o = affine_map<(h, m, n, k, t) -> (h, m, n)>
func.func @main(%q: !q, %k: !k, %v: !v) -> !o {{
  %f = arith.constant 0.25 : f32
  %e = tensor.empty() : !o
  %o = iree_linalg_ext.attention <indexing_maps = [#q, #k, #v, #s, #o]>
      ins(%q, %k, %v, %f : !q, !k, !v, f32)
      outs(%e : !o) {{
  ^bb0(%score: f32):
    iree_linalg_ext.yield %score : f32
  }} -> !o
  return %o : !o
}}
"""


@pytest.mark.parametrize(
    ("target", "keys", "said"),
    [("cuda:sm_80", "129", True), ("cuda:sm_80", "128", False), ("cpu", "129", False)],
)
def test_attention_of_long_keys_is_told(target: str, keys: str, said: bool) -> None:
    aimed = Target.parse(target)
    text = ATTENTION.format(keys)
    assert compiler.parse(text)
    _, done = Recipe(text, aimed, Pipeline.load(aimed.kind), path="a.mlir").compile()
    told = [note for note in done.notes if "attention with keys of 129 numbers" in note]
    assert len(told) == said
    assert all(note.startswith("a.mlir:14:8: ") for note in told)
