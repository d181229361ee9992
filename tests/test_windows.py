"""Reductions over windows for NVIDIA and AMD: a thread an element, and what is left to IREE."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from mlirules.drivers.apply.windows import configure_windows, has_windows
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program

TARGETS = ["cuda:sm_80", "hip:gfx942"]


@dataclass(frozen=True)
class Sum:
    """Products of two tensors, added up along the last loops."""

    loops: int
    made: str
    read: str
    weights: str
    sizes: tuple[str, str, str]

    def text(self) -> str:
        x, w, y = (f"tensor<{size}xf32>" for size in self.sizes)
        loops = ", ".join(f"d{n}" for n in range(self.loops))
        parallel = self.made.count("d")
        kinds = ", ".join(['"parallel"'] * parallel + ['"reduction"'] * (self.loops - parallel))
        maps = ", ".join(
            f"affine_map<({loops}) -> ({one})>" for one in (self.read, self.weights, self.made)
        )
        return f"""
func.func @main(%x: {x}, %w: {w}) -> {y} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : {y}
  %f = linalg.fill ins(%zero : f32) outs(%e : {y}) -> {y}
  %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}}
      ins(%x, %w : {x}, {w}) outs(%f : {y}) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  }} -> {y}
  return %r : {y}
}}
"""


#: What plain IREE gets wrong in ResNet-50, and what it makes itself as it should.
STEPS = Sum(4, "d0, d1, d2", "d3, d1 * 2, d2 * 2", "d0, d3", ("64x14x14", "32x64", "32x7x7"))
CONVOLUTION = Sum(
    6,
    "d0, d1, d2",
    "d3, d1 + d4, d2 + d5",
    "d0, d3, d4, d5",
    ("64x9x9", "32x64x3x3", "32x7x7"),
)
PRODUCT = Sum(3, "d0, d1", "d0, d2", "d1, d2", ("64x64", "32x64", "64x32"))


@pytest.mark.parametrize(
    ("op", "configured"), [(STEPS, True), (CONVOLUTION, False), (PRODUCT, False)]
)
def test_what_is_configured(op: Sum, configured: bool) -> None:
    module = ir.Module.parse(op.text(), compiler.context())
    assert has_windows(module) is configured
    assert configure_windows(module, "cuda") == int(configured)
    assert ("compilation_info" in str(module)) is configured
    assert not has_windows(module)


@pytest.mark.parametrize(("kind", "threads"), [("cuda", 32), ("hip", 64)])
def test_a_thread_makes_an_element(kind: str, threads: int) -> None:
    module = ir.Module.parse(STEPS.text(), compiler.context())
    configure_windows(module, kind)
    text = str(module)
    assert f"workgroup = [1, 1, {threads}, 0]" in text
    assert "thread = [1, 1, 1, 0]" in text
    assert f"workgroup_size = [{threads}, 1, 1] subgroup_size = {threads}" in text


def _dumped(text: str, target: str, folder: Path) -> str:
    flag = f"--iree-hal-dump-executable-files-to={folder}"
    compile_program(text, Target.parse(target), flags=[flag])
    return "".join(path.read_text() for path in sorted(folder.glob("configured_*.mlir")))


def _pool() -> str:
    """The example of the corpus whose places plain rules did not find on an H100."""
    x, y, j = (
        "!torch.vtensor<[2,4,16,16],f32>",
        "!torch.vtensor<[2,4,17,17],f32>",
        "!torch.vtensor<[2,4,17,17],si64>",
    )
    ints = "!torch.list<int>"
    return f"""
func.func @main(%x: {x}) -> ({y}, {j}) {{
  %one = torch.constant.int 1
  %two = torch.constant.int 2
  %four = torch.constant.int 4
  %eight = torch.constant.int 8
  %false = torch.constant.bool false
  %k = torch.prim.ListConstruct %four, %eight : (!torch.int, !torch.int) -> {ints}
  %s = torch.prim.ListConstruct %one, %one : (!torch.int, !torch.int) -> {ints}
  %p = torch.prim.ListConstruct %two, %four : (!torch.int, !torch.int) -> {ints}
  %y, %j = torch.aten.max_pool2d_with_indices %x, %k, %s, %p, %s, %false
      : {x}, {ints}, {ints}, {ints}, {ints}, !torch.bool -> {y}, {j}
  return %y, %j : {y}, {j}
}}
"""


@pytest.mark.parametrize("target", TARGETS)
def test_no_window_is_shared_among_threads(target: str, tmp_path: Path) -> None:
    for name, text in (("steps", STEPS.text()), ("pool", _pool())):
        dumped = _dumped(text, target, tmp_path / name)
        assert "TileAndFuse" in dumped
        assert "VectorDistribute" not in dumped


def test_a_reduction_that_iree_cannot_share_is_compiled_otherwise() -> None:
    # A product of rows with a number for each: IREE 3.13 says "failed to distribute".
    rows = Sum(2, "d0", "d0, d1", "d0", ("6x64", "6", "6"))
    binary, done = compile_program(rows.text(), Target.parse("cuda:sm_80"))
    assert binary
    (note,) = [note for note in done.notes if "failed to distribute" in note]
    flag = "--iree-codegen-llvmgpu-use-reduction-vector-distribution=false"
    assert note.startswith(f"compiled with {flag}, since otherwise")
    assert flag in done.flags
    # What the user says last stays, and the failure is told.
    with pytest.raises(compiler.CompileError, match="failed to distribute"):
        compile_program(
            rows.text(), Target.parse("cuda:sm_80"), flags=[flag.replace("false", "true")]
        )
