# ruff: noqa: E501 - IR is not wrapped
"""The cost driver: decisions by the model and by timing, what they rest on, and where they show."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import context
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import child as measuring
from mlirules.drivers.measure import roofline
from mlirules.drivers.pipelines import cost
from mlirules.drivers.pipelines import transform as pipeline
from mlirules.language.faults import MlirulesError
from mlirules.language.pipeline import Pipeline
from mlirules.language.rule import Rule
from mlirules.language.stage import Stage
from mlirules.support import cache

CPU = Target.parse("cpu")

FLOW = """
module {
  flow.executable private @e {
    flow.executable.export public @work workgroups() -> (index, index, index) {
      %x, %y, %z = iree_tensor_ext.dispatch.workgroup_count_from_slice()
      flow.return %x, %y, %z : index, index, index
    }
    builtin.module {
      func.func @work(%arg0: !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x4xf32>>, %arg1: !iree_tensor_ext.dispatch.tensor<readonly:tensor<4x16xf32>>, %arg2: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<8x16xf32>>) {
        %cst = arith.constant 0.000000e+00 : f32
        %0 = iree_tensor_ext.dispatch.tensor.load %arg0, offsets = [0, 0], sizes = [8, 4], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<8x4xf32>> -> tensor<8x4xf32>
        %1 = iree_tensor_ext.dispatch.tensor.load %arg1, offsets = [0, 0], sizes = [4, 16], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<4x16xf32>> -> tensor<4x16xf32>
        %2 = tensor.empty() : tensor<8x16xf32>
        %3 = linalg.fill ins(%cst : f32) outs(%2 : tensor<8x16xf32>) -> tensor<8x16xf32>
        %4 = linalg.matmul ins(%0, %1 : tensor<8x4xf32>, tensor<4x16xf32>) outs(%3 : tensor<8x16xf32>) -> tensor<8x16xf32>
        iree_tensor_ext.dispatch.tensor.store %4, %arg2, offsets = [0, 0], sizes = [8, 16], strides = [1, 1] : tensor<8x16xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<8x16xf32>>
        return
      }
    }
  }
  util.func public @main(%a: tensor<8x4xf32>, %b: tensor<4x16xf32>) -> tensor<8x16xf32> {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c5 = arith.constant 5 : index
    %first = flow.dispatch @e::@work(%a, %b) : (tensor<8x4xf32>, tensor<4x16xf32>) -> tensor<8x16xf32>
    %r = scf.for %i = %c0 to %c5 step %c1 iter_args(%c = %first) -> (tensor<8x16xf32>) {
      %d = flow.dispatch @e::@work(%a, %b) : (tensor<8x4xf32>, tensor<4x16xf32>) -> tensor<8x16xf32>
      scf.yield %d : tensor<8x16xf32>
    }
    util.return %r : tensor<8x16xf32>
  }
}
"""

ATTENTION = """
func.func @main(%q: !torch.vtensor<[1,{H},{L},16],f32>, %k: !torch.vtensor<[1,{H},{L},16],f32>) -> !torch.vtensor<[1,{H},{L},16],f32> {
  %none = torch.constant.none
  %p = torch.constant.float 0.0
  %false = torch.constant.bool false
  %y = torch.aten.scaled_dot_product_attention %q, %k, %k, %none, %p, %false, %none, %false : !torch.vtensor<[1,{H},{L},16],f32>, !torch.vtensor<[1,{H},{L},16],f32>, !torch.vtensor<[1,{H},{L},16],f32>, !torch.none, !torch.float, !torch.bool, !torch.none, !torch.bool -> !torch.vtensor<[1,{H},{L},16],f32>
  return %y : !torch.vtensor<[1,{H},{L},16],f32>
}
"""


def attention(heads: int, length: Any) -> str:
    return ATTENTION.replace("{H}", str(heads)).replace("{L}", str(length))


def convolution(channels: int, filters: int, *, size: int) -> str:
    """A square window over 16x16 pixels."""
    x, w = f"tensor<1x{channels}x16x16xf32>", f"tensor<{filters}x{channels}x{size}x{size}xf32>"
    y = f"tensor<1x{filters}x{17 - size}x{17 - size}xf32>"
    return f"""func.func @main(%x: {x}, %w: {w}) -> {y} {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : {y}
  %init = linalg.fill ins(%zero : f32) outs(%empty : {y}) -> {y}
  %y = linalg.conv_2d_nchw_fchw
    {{dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>}}
    ins(%x, %w : {x}, {w}) outs(%init : {y}) -> {y}
  return %y : {y}
}}"""


def stages() -> list[Stage]:
    return [Stage(phase="torch", rules=["torch/unfuse"], driver="cost")]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = cache.directory()
    monkeypatch.setattr(cache, "directory", lambda: tmp_path / "cache")
    # Compiled patterns have nothing to do with decisions: keep those.
    if (shared / "pdl").exists():
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / "pdl").symlink_to(shared / "pdl")


def test_work_is_counted_from_the_compilers_output() -> None:
    known = roofline.parameters("cpu")
    found = roofline.of_flow(FLOW, CPU, known)
    (work,) = found.dispatches
    assert work.flops == 2 * 8 * 16 * 4
    assert work.bytes == 4 * (8 * 4 + 4 * 16 + 8 * 16)
    assert work.kind == "contraction"
    assert work.launches == 6  # one, and five turns of a loop
    assert found.flops == 6 * work.flops
    assert found.seconds == pytest.approx(6 * work.seconds)
    assert work.seconds > 1e-6 * known.launch_us


def test_the_order_of_factors_counts() -> None:
    known = roofline.parameters("cpu")
    assert known.efficiency["swapped-contraction"] < known.efficiency["contraction"] / 2
    text = convolution(32, 64, size=1)
    # IREE makes a product with the image as its first factor of it; the rule puts the filter first.
    done = pipeline.transform(
        text, [Stage(phase="torch", rules=["linalg/convolution"], driver="greedy")]
    )
    kinds = [
        [d.kind for d in roofline.estimate(form, CPU).dispatches] for form in (text, done.text)
    ]
    assert kinds == [["swapped-contraction"], ["contraction"]]


def test_large_results_are_new_memory() -> None:
    known = roofline.parameters("cpu")
    assert known.fresh_mb is not None
    size = 2e6 * known.fresh_mb
    assert known.memory(size, [size]) > 5 * known.memory(size, [size / 4] * 4)


def test_parameters_are_located_where_they_are_wrong(tmp_path: Path) -> None:
    text = (roofline.PARAMETERS / "cpu.yaml").read_text()
    (tmp_path / "cpu.yaml").write_text(text.replace("launch_us: 6.0", "launch_us: -1"))
    with pytest.raises(MlirulesError) as caught:
        roofline.parameters("cpu", tmp_path)
    assert "launch_us" in caught.value.faults[0].span.source_line


def test_parameters_that_were_edited_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "cpu.yaml"
    text = (roofline.PARAMETERS / "cpu.yaml").read_text()
    for new in (6.0, 7.5):
        file.write_text(text.replace("launch_us: 6.0", f"launch_us: {new}"))
        os.utime(file, ns=(1, 1))
        assert roofline.parameters("cpu", tmp_path).launch_us == new
        assert roofline.parameters("cpu", tmp_path) is roofline.parameters("cpu", tmp_path)


def test_the_model_takes_attention_apart_where_it_pays() -> None:
    done = pipeline.transform(attention(4, 256), stages(), costs=cost.Settings(CPU))
    (decision,) = done.outcome.decisions
    assert done.outcome.total == 1
    assert decision.applies
    assert decision.model == "roofline"
    assert decision.before_ms > decision.after_ms > 0
    assert decision.before["launches"] == 1 < decision.after["launches"]
    assert "scaled_dot_product" not in done.text


def test_a_gain_below_the_margin_is_none() -> None:
    settings = cost.Settings(CPU, margin=1e6)
    done = pipeline.transform(attention(4, 256), stages(), costs=settings)
    (decision,) = done.outcome.decisions
    assert not decision.applies
    assert done.outcome.total == 0
    assert "does not gain" in str(decision)


def test_dynamic_sizes_are_left_alone_and_said() -> None:
    done = pipeline.transform(attention(4, "?"), stages(), costs=cost.Settings(CPU))
    (decision,) = done.outcome.decisions
    assert not decision.applies
    assert "only when the program runs" in decision.reason
    assert done.outcome.total == 0


def test_without_a_target_nothing_can_be_decided() -> None:
    with pytest.raises(MlirulesError, match="depends on the target"):
        pipeline.transform(attention(4, 256), stages())


@pytest.mark.slow
def test_measured_once_and_kept(tmp_path: Path) -> None:
    settings = cost.Settings(CPU, measure=True, seconds=0.2)
    text = attention(2, 64)
    first = pipeline.transform(text, stages(), costs=settings).outcome.decisions[0]
    assert first.model == "measured"
    assert not first.cached
    assert first.rounds >= 3
    assert first.applies == (first.ratio > 1.03 and first.ratio_low > 1)
    (kept,) = (tmp_path / "cache" / "cost").iterdir()
    assert json.loads(kept.read_text())["ratio"] == first.ratio
    again = pipeline.transform(text, stages(), costs=settings).outcome.decisions[0]
    assert again.cached
    assert (again.ratio, again.key) == (first.ratio, first.key)


def test_decisions_stand_in_the_trace(tmp_path: Path) -> None:
    from mlirules.drivers.apply.run import write_trace

    asked: list[str] = []
    settings = cost.Settings(CPU, progress=asked.append)
    done = pipeline.transform(
        attention(4, 256),
        stages(),
        costs=settings,
        path="model.mlir",
        run=pipeline.Run(record=True),
    )
    write_trace(tmp_path / "t.jsonl", done.outcome.applications, done.outcome.decisions)
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert lines[0]["rule"] == "torch-attention-unfuse"
    assert lines[0]["driver"] == "cost"
    decision = lines[1]["decision"]
    assert decision["rule"] == "torch-attention-unfuse"
    assert decision["ratio"] > 1
    assert decision["before"]["flops"] > 0
    assert decision["location"] == lines[0]["location"] == "model.mlir:6:8"
    assert asked == ["torch-attention-unfuse at model.mlir:6:8"]


def test_pieces_that_differ_by_weights_alone_are_one() -> None:
    elided = "%w = arith.constant dense_resource<piece_0> : tensor<4x2xf32>"
    text = f"func.func @main() -> tensor<4x2xf32> {{\n{elided}\nreturn %w : tensor<4x2xf32>\n}}"
    whole = cost.filled(text)
    module = compiler.parse(whole, "<piece>", context())
    assert module.operation.verify()
    assert cost.filled(whole.replace("piece_", "other_")).count("piece_") == 0


def test_other_values_do_for_large_floats_alone() -> None:
    """Integers are mostly indices, for which values that are made up would not do."""
    literals = "\n".join(
        f"%{t} = torch.vtensor.literal(dense_resource<{t}> : tensor<2x{t}>) : !torch.vtensor<[2],{t}>"
        for t in ("f32", "si64")
    )
    text = f"func.func @f() {{\n{literals}\nreturn\n}}"
    module = compiler.parse(text)
    function = module.body.operations[0].operation
    ops = [view.operation for view in function.regions[0].blocks[0].operations]
    assert [cost._is_constant(op) for op in ops] == [True, False, False]


def test_errors_are_relative_to_the_largest() -> None:
    import numpy as np

    wanted = np.array([1.0, 100.0, np.nan])
    assert measuring.relative_error(wanted + np.array([0, 1, 0]), wanted) == pytest.approx(0.01)
    assert measuring.relative_error(np.array([1.0, np.nan, 100.0]), wanted) == float("inf")
    assert measuring.relative_error(np.zeros(2), wanted) == float("inf")


@pytest.mark.parametrize("kind", ["cpu", "vulkan", "cuda", "hip"])
def test_every_kind_of_target_has_parameters(kind: str) -> None:
    known = roofline.parameters(kind)
    assert known.target == kind
    # On cpu the compiler's attention op is slower than its parts by far; on a GPU it is not.
    assert (known.efficiency["attention"] > 0.1) == (kind in ("cuda", "hip"))


@pytest.mark.vulkan
def test_measured_on_vulkan(vulkan: str) -> None:
    """Both forms are compiled for the device, run there, and held against each other."""
    stage = Stage(
        phase="torch", rules=["linalg/im2col/linalg-im2col-nchw"], driver="cost", margin=0.0
    )
    settings = cost.Settings(Target.parse(vulkan), measure=True, seconds=0.5)
    found = pipeline.transform(convolution(16, 16, size=3), [stage], costs=settings)
    (decision,) = found.outcome.decisions
    assert (decision.model, decision.target) == ("measured", "vulkan")
    assert decision.rounds >= 3
    assert decision.applies == (decision.ratio > 1 and decision.ratio_low > 1)
    assert found.outcome.total == decision.applies
    again = pipeline.transform(convolution(16, 16, size=3), [stage], costs=settings)
    assert again.outcome.decisions[0].cached


def test_the_model_unrolls_windows_on_vulkan() -> None:
    """llvmpipe runs products many times as fast as convolutions; so the parameters say."""
    settings = cost.Settings(Target("vulkan", "baseline"))
    stage = Stage(phase="torch", rules=["linalg/im2col/linalg-im2col-nchw"], driver="cost")
    found = pipeline.transform(convolution(16, 16, size=3), [stage], costs=settings).outcome
    assert found.total == 1
    assert found.decisions[0].ratio > 2


def test_a_piece_has_all_roots_of_its_rule() -> None:
    """Layers of one input: what the rule replaces together is weighed together."""
    t = "!torch.vtensor<[2,8],f32>"
    w = "!torch.vtensor<[8,8],f32>"
    linear = f"torch.aten.linear %x, %{{}}, %none : {t}, {w}, !torch.none -> {t}"
    text = f"""func.func @main(%x: {t}, %a: {w}, %b: {w}) -> ({t}, {t}) {{
      %none = torch.constant.none
      %0 = {linear.format("a")}
      %1 = {linear.format("b")}
      return %0, %1 : {t}, {t}
    }}"""
    stage = Stage(
        phase="torch", rules=["torch/fusions/matmul/torch-two-linear-fuse"], driver="cost"
    )
    found = pipeline.transform(text, [stage], costs=cost.Settings(CPU)).outcome
    assert {d.model for d in found.decisions} == {"roofline"}


@pytest.mark.parametrize("target", ["cuda:sm_80", "hip:gfx942"])
def test_attention_on_gpus_ends_on_the_fused_op(target: str) -> None:
    done = pipeline.transform(
        attention(4, 256), kind=target.partition(":")[0], costs=cost.Settings(Target.parse(target))
    )
    (decision,) = done.outcome.decisions
    assert decision.rule == "torch-attention-to-fused"
    assert decision.applies
    assert "iree_linalg_ext.attention" in done.text
    assert "scaled_dot_product_attention" not in done.text


def test_kernels_are_timed_not_modelled() -> None:
    stage = Stage(phase="torch", rules=["kernels/kernel-flash-attention"], driver="cost")
    text = attention(2, 64)
    (left,) = pipeline.transform(text, [stage], costs=cost.Settings(CPU)).outcome.decisions
    assert (left.applies, left.model) == (False, "none")
    assert "--measure" in left.reason
    timed = cost.Settings(CPU, measure=True, seconds=0.2)
    (decision,) = pipeline.transform(text, [stage], costs=timed).outcome.decisions
    assert decision.model == "measured"


def test_what_was_weighed_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one = pipeline.transform(attention(4, 256), stages(), costs=cost.Settings(CPU))
    made: list[str] = []
    rewritten = cost.Judge._rewritten

    def counted(judge: cost.Judge, before: str, rule: Rule) -> str:
        made.append(before)
        return rewritten(judge, before, rule)

    monkeypatch.setattr(cost.Judge, "_rewritten", counted)
    again = pipeline.transform(attention(4, 256), stages(), costs=cost.Settings(CPU))
    assert not made
    (first,), (second,) = one.outcome.decisions, again.outcome.decisions
    assert not first.cached
    assert second.cached
    assert (first.applies, first.ratio, first.key) == (second.applies, second.ratio, second.key)
    # Another margin decides by the same numbers; other code or flags weigh anew.
    wide = pipeline.transform(attention(4, 256), stages(), costs=cost.Settings(CPU, margin=1e6))
    assert not made
    assert not wide.outcome.decisions[0].applies
    monkeypatch.setattr(cost.package, "code", lambda: "another version")
    pipeline.transform(attention(4, 256), stages(), costs=cost.Settings(CPU))
    assert len(made) == 1


def depthwise(channels: int, size: int, stride: int) -> str:
    """A padded 3x3 window of torch over square images."""
    result = (size + 2 - 3) // stride + 1
    x = f"!torch.vtensor<[1,{channels},{size},{size}],f32>"
    w = f"!torch.vtensor<[{channels},1,3,3],f32>"
    y = f"!torch.vtensor<[1,{channels},{result},{result}],f32>"
    ints = "!torch.list<int>"
    return f"""func.func @main(%x: {x}, %w: {w}) -> {y} {{
  %b = torch.constant.none
  %false = torch.constant.bool false
  %one = torch.constant.int 1
  %step = torch.constant.int {stride}
  %groups = torch.constant.int {channels}
  %s = torch.prim.ListConstruct %step, %step : (!torch.int, !torch.int) -> {ints}
  %p = torch.prim.ListConstruct %one, %one : (!torch.int, !torch.int) -> {ints}
  %n = torch.prim.ListConstruct : () -> {ints}
  %y = torch.aten.convolution %x, %w, %b, %s, %p, %p, %false, %n, %groups
      : {x}, {w}, !torch.none, {ints}, {ints}, {ints}, !torch.bool, {ints}, !torch.int -> {y}
  return %y : {y}
}}"""


@pytest.mark.parametrize(
    ("size", "stride", "kernel", "rule"),
    [
        (14, 1, "kernel-depthwise-bare", "linalg-depthwise-by-places-3x3"),
        (28, 2, "kernel-depthwise-bare", "torch-depthwise-channels-last"),
    ],
)
def test_depthwise_convolutions_run_in_vectors_by_default(
    size: int, stride: int, kernel: str, rule: str
) -> None:
    program = depthwise(96, size, stride)
    costs = cost.Settings(CPU)
    found = pipeline.transform(program, kind="cpu", costs=costs)
    assert found.outcome.counts == {kernel: 1}
    # What no kernel takes, such as windows with gaps, has forms of its own.
    stages = [
        stage
        for stage in Pipeline.load("cpu-fast").stages
        if not (stage.name or "").endswith("kernels")
    ]
    found = pipeline.transform(program, stages, costs=costs)
    applied = [d for d in found.outcome.decisions if d.applies]
    assert [d.rule for d in applied] == [rule]
    assert applied[0].ratio > 2


def test_rows_that_no_part_fills_slow_a_convolution_down() -> None:
    """IREE computes up to 8 places of a row at once, and only a divisor of the row's length."""
    known = roofline.parameters("cpu")
    assert known.of_rows(56) == 1
    assert known.of_rows(13) < known.of_rows(26) < known.of_rows(27) < known.of_rows(28)
    assert roofline.parameters("vulkan").of_rows(13) == 1
    stage = Stage(phase="torch", rules=["linalg/im2col/linalg-im2col-nchw"], driver="cost")
    for size, applies in ((3, False), (4, True)):  # rows of 14 and of 13
        found = pipeline.transform(
            convolution(32, 64, size=size), [stage], costs=cost.Settings(CPU)
        )
        (decision,) = found.outcome.decisions
        assert decision.applies == applies, decision


def test_overlapping_slices_come_from_memory_once() -> None:
    stage = Stage(phase="torch", rules=["linalg/depthwise"], driver="greedy")
    text = pipeline.transform(depthwise(16, 28, 1), [*_lowering(), stage]).text
    found = roofline.estimate(text, CPU)
    places = found.dispatches[-1]
    assert places.kind == "elementwise"
    image, filters, result = 16 * 30 * 30, 16 * 3 * 3, 16 * 28 * 28
    assert places.bytes == 4 * (image + filters + result)


def _lowering() -> list[Stage]:
    return [Stage(phase="torch", rules=["torch/to-linalg"], driver="walk")]
