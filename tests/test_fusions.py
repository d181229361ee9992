"""Fusions together: whole patterns through several rules, every driver, the compiler's phases."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from mlirules.drivers.apply.programs import shared_context
from mlirules.drivers.apply.run import DriverName, Options
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program, engine_for, rule_set
from mlirules.language.faults import MlirulesError
from mlirules.language.loader import load_rule
from mlirules.language.pipeline import Pipeline
from mlirules.language.stage import Stage

DRIVERS: tuple[DriverName, ...] = ("greedy", "walk", "conversion")

ATTENTION = """func.func @f(%q: !torch.vtensor<[2,4,6,8],f32>, %k: !torch.vtensor<[2,4,5,8],f32>, %v: !torch.vtensor<[2,4,5,8],f32>, %m: !torch.vtensor<[2,1,6,5],f32>) -> !torch.vtensor<[2,4,6,8],f32> {
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int3 = torch.constant.int 3
  %int-1 = torch.constant.int -1
  %int6 = torch.constant.int 6
  %none = torch.constant.none
  %false = torch.constant.bool false
  %root = torch.constant.float 2.8284271247461903
  %0 = torch.aten.transpose.int %k, %int2, %int3 : !torch.vtensor<[2,4,5,8],f32>, !torch.int, !torch.int -> !torch.vtensor<[2,4,8,5],f32>
  %1 = torch.aten.matmul %q, %0 : !torch.vtensor<[2,4,6,8],f32>, !torch.vtensor<[2,4,8,5],f32> -> !torch.vtensor<[2,4,6,5],f32>
  %2 = torch.aten.div.Scalar %1, %root : !torch.vtensor<[2,4,6,5],f32>, !torch.float -> !torch.vtensor<[2,4,6,5],f32>
  MASK
  %4 = torch.aten.softmax.int %3, %int-1, %int6 : !torch.vtensor<[2,4,6,5],f32>, !torch.int, !torch.int -> !torch.vtensor<[2,4,6,5],f32>
  %5 = torch.aten.to.dtype %4, %int6, %false, %false, %none : !torch.vtensor<[2,4,6,5],f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !torch.vtensor<[2,4,6,5],f32>
  %6 = torch.aten.matmul %5, %v : !torch.vtensor<[2,4,6,5],f32>, !torch.vtensor<[2,4,5,8],f32> -> !torch.vtensor<[2,4,6,8],f32>
  return %6 : !torch.vtensor<[2,4,6,8],f32>
}"""  # noqa: E501
MASKED = """%3 = torch.aten.add.Tensor %2, %m, %int1 : !torch.vtensor<[2,4,6,5],f32>, !torch.vtensor<[2,1,6,5],f32>, !torch.int -> !torch.vtensor<[2,4,6,5],f32>"""  # noqa: E501


def attention(*, mask: bool) -> str:
    text = ATTENTION.replace("MASK", MASKED if mask else "")
    return text if mask else text.replace("int %3", "int %2")


def applied(text: str, *sets: str, driver: DriverName = "greedy") -> str:
    module = compiler.parse(text, "program", shared_context())
    engine_for(list(rule_set(sets))).run(module, Options(driver=driver))
    assert module.operation.verify()
    return str(module)


def ops(text: str) -> list[str]:
    return re.findall(r"= (torch\.(?:aten|prims)\.[\w.]+|linalg\.\w+)", text)


@pytest.mark.parametrize("mask", [False, True], ids=["plain", "masked"])
def test_spelt_out_attention_becomes_one_op(mask: bool) -> None:
    """A decoder's attention, with the scale, the mask and the cast, through the whole set."""
    out = applied(attention(mask=mask), "torch/fusions")
    rest = [op for op in ops(out) if op != "torch.aten.view"]
    assert rest == ["torch.aten.scaled_dot_product_attention"]
    scales = [float(text) for text in re.findall(r"constant.float (\S+)", out)]
    assert any(abs(scale - 8**-0.5) < 1e-12 for scale in scales)


@pytest.mark.slow
def test_attention_there_and_back_computes_the_same() -> None:
    text = attention(mask=True)
    fused = applied(text, "torch/fusions")
    parts = applied(fused, "torch/unfuse")
    assert "scaled_dot_product_attention" not in parts
    cpu = Target.parse("cpu")
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal(shape).astype("f4")
        for shape in ((2, 4, 6, 8), (2, 4, 5, 8), (2, 4, 5, 8), (2, 1, 6, 5))
    ]
    (before,), (after,) = (
        runtime.run(compiler.compile_module(t, cpu), inputs, cpu, "f") for t in (text, parts)
    )
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    "name",
    [
        "linalg/matmul/linalg-transposed-a-matmul",
        "linalg/matmul/linalg-transpose-b-into-matmul",
        "linalg/im2col/linalg-im2col-nchw",
        "linalg/convolution/linalg-one-by-one-nhwc",
        "linalg/fusions/linalg-softmax-five-fuse",
        "linalg/matmul/linalg-pad-matmul",
        "linalg/fusions/linalg-softmax-third-last-fuse",
        "linalg/fusions/linalg-softmax-dynamic-fuse",
        "linalg/fusions/linalg-product-sum-fuse",
        "linalg/fusions/linalg-bias-relu-fuse",
        "torch/fusions/matmul/torch-three-linear-fuse",
        "torch/fusions/matmul/torch-two-mm-fuse",
        "torch/fusions/matmul/torch-three-mm-fuse",  # ops side by side, which go at once
        "torch/fusions/activations/torch-silu-fuse",  # asks how often a value is used
        "torch/fusions/views/torch-reshape-none-fuse",  # what MLIR would fold
        "torch/unfuse/torch-attention-unfuse",
    ],
)
def test_a_rule_applies_under_every_driver(name: str, driver: DriverName) -> None:
    """Meaning, chains of equations and several roots are found whichever driver asks."""
    (rule,) = rule_set((name,))
    program = next(test.input for test in rule.tests if test.input)
    module = compiler.parse(program, "program", shared_context())
    outcome = engine_for([rule]).run(module, Options(driver=driver))
    assert outcome.counts == {rule.name: 1}
    assert module.operation.verify()
    assert "unrealized_conversion_cast" not in str(module)


def test_a_rule_whose_result_has_its_own_name_applies_under_conversion() -> None:
    rules = rule_set(("torch/layout",))
    program = next(t.input for t in rules[-1].tests if t.input)
    assert rules[-1].name.endswith("-elementwise-sink")
    module = compiler.parse(program, "program", shared_context())
    assert engine_for(rules).run(module, Options(driver="conversion")).total == 1
    assert module.operation.verify()


def test_conversion_counts_what_reads_a_value_through_its_casts() -> None:
    """``one_use`` holds of a value that one op reads, and not of one that another reads as well."""
    tanh = "torch/to-linalg/elementwise/torch-tanh-to-linalg"
    rules = rule_set(("torch/fusions/activations/torch-silu-fuse", tanh))
    t = "!torch.vtensor<[4],f32>"

    def fused(read: str) -> int:
        program = f"""func.func @f(%x: {t}) -> ({t}, {t}) {{
          %s = torch.aten.sigmoid %x : {t} -> {t}
          %z = torch.aten.tanh {read} : {t} -> {t}
          %y = torch.aten.mul.Tensor %x, %s : {t}, {t} -> {t}
          return %y, %z : {t}, {t}
        }}"""
        module = compiler.parse(program, "program", shared_context())
        done = engine_for(rules).run(module, Options(driver="conversion"))
        assert module.operation.verify()
        assert done.counts[tanh.rpartition("/")[2]] == 1
        return done.counts["torch-silu-fuse"]

    assert fused("%x") == 1
    assert fused("%s") == 0


CONVOLUTION = """func.func @f(%x: tensor<1x3x8x8xf32>, %w: tensor<4x3x1x1xf32>) -> tensor<1x4x8x8xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x4x8x8xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
  %y = linalg.conv_2d_nchw_fchw {dilations = dense<1> : tensor<2xi64>, strides = dense<1> : tensor<2xi64>} ins(%x, %w : tensor<1x3x8x8xf32>, tensor<4x3x1x1xf32>) outs(%f : tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32>
  return %y : tensor<1x4x8x8xf32>
}"""  # noqa: E501


@pytest.mark.parametrize("phase", ["input", "preprocessing"])
def test_linalg_rules_between_the_phases_of_the_compiler(phase: str) -> None:
    stage = Stage.of(
        {
            "phase": phase,
            "rules": ["linalg/convolution"],
            "driver": "greedy",
            "expect": {"applied": 1},
        }
    )
    pipeline = Pipeline(
        pipeline="between", summary="A rule between two phases.", targets=["cpu"], stages=[stage]
    )
    cpu = Target.parse("cpu")
    binary, _ = compile_program(CONVOLUTION, cpu, pipeline)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s).astype("f4") for s in ((1, 3, 8, 8), (4, 3, 1, 1))]
    (found,) = runtime.run(binary, inputs, cpu, "f")
    np.testing.assert_allclose(
        found, np.einsum("nchw,fc->nfhw", inputs[0], inputs[1][:, :, 0, 0]), rtol=1e-4, atol=1e-5
    )


RULE = """rule: made
kind: fusion
summary: A rule that is made for a test.
reason: To see what the loader says of it.
types: {{x: "{kind}<... x T>"}}
match: {match}
rewrite: {rewrite}
tests:
  - {{name: one, input: "module {{}}", check: "CHECK: module"}}
  - {{name: two, unchanged: "module {{}}"}}
"""


@pytest.mark.parametrize(
    ("kind", "match", "rewrite", "code"),
    [
        (
            "tensor",
            "['m[i] += x[i, j]', 'y[i, j] = exp(x[i, j])']",
            "['y[...] = x[...]']",
            "unconnected",
        ),
        (
            "tensor",
            "['m[i] += x[i, j]', 'm[i] = exp(m[i])']",
            "['m[...] = m[...]']",
            "duplicate-name",
        ),
        ("vtensor", "['t[i] = exp(x[i])', 'y = torch.aten.relu(x)']", "['y = x']", "match"),
        (
            "vtensor",
            "['s = torch.aten.exp(z)', 'y = torch.aten.relu(x)']",
            "['y = x', 's = z']",
            "unconnected",
        ),
    ],
    ids=["equation-read-by-none", "equation-twice", "both-notations", "root-beside-nothing"],
)
def test_matches_that_do_not_hang_together(kind: str, match: str, rewrite: str, code: str) -> None:
    with pytest.raises(MlirulesError) as caught:
        load_rule("made.yaml", RULE.format(kind=kind, match=match, rewrite=rewrite))
    assert code in {fault.code for fault in caught.value.faults}


LAYERS = """func.func @f(%x: !torch.vtensor<[2,8],f32>, %a: !torch.vtensor<[3,8],f32>, %b: !torch.vtensor<[3,8],f32>, %c: !torch.vtensor<[3,8],f32>, %d: !torch.vtensor<[3,8],f32>) -> (!torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32>) {
  %none = torch.constant.none
  %0 = torch.aten.linear %x, %a, %none : !torch.vtensor<[2,8],f32>, !torch.vtensor<[3,8],f32>, !torch.none -> !torch.vtensor<[2,3],f32>
  %1 = torch.aten.linear %x, %b, %none : !torch.vtensor<[2,8],f32>, !torch.vtensor<[3,8],f32>, !torch.none -> !torch.vtensor<[2,3],f32>
  %2 = torch.aten.linear %x, %c, %none : !torch.vtensor<[2,8],f32>, !torch.vtensor<[3,8],f32>, !torch.none -> !torch.vtensor<[2,3],f32>
  %3 = torch.aten.linear %x, %d, %none : !torch.vtensor<[2,8],f32>, !torch.vtensor<[3,8],f32>, !torch.none -> !torch.vtensor<[2,3],f32>
  return %0, %1, %2, %3 : !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32>
}"""  # noqa: E501


def test_layers_of_one_input_merge_until_one_is_left() -> None:
    """Results keep their places although any of the layers may be found first."""
    merged = applied(
        LAYERS,
        "torch/fusions/matmul/torch-three-linear-fuse.yaml",
        "torch/fusions/matmul/torch-two-linear-fuse.yaml",
    )
    assert ops(merged).count("torch.aten.linear") == 1
    cpu = Target.parse("cpu")
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s).astype("f4") for s in ((2, 8), *([(3, 8)] * 4))]
    found = runtime.run(compiler.compile_module(merged, cpu), inputs, cpu, "f")
    for weight, result in zip(inputs[1:], found, strict=True):
        np.testing.assert_allclose(result, inputs[0] @ weight.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
def test_cross_entropy_through_to_linalg(device: str) -> None:
    target = Target.parse(device)
    if reason := target.available():
        pytest.skip(reason)
    (rule,) = rule_set(("torch/fusions/losses/torch-cross-entropy-fuse.yaml",))
    program = applied(str(rule.tests[0].input), "torch/fusions/losses")
    program = applied(program, "torch/to-linalg", driver="walk")
    assert "torch.aten" not in program
    scores = np.array([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]], dtype="f4")
    (loss,) = runtime.run(
        compiler.compile_module(program, target), [scores, np.array([2, -100])], target, "f"
    )
    np.testing.assert_allclose(loss, np.log(np.exp(scores[0]).sum()) - scores[0, 2], rtol=1e-5)


def test_the_counts_of_the_page() -> None:
    page = (Path(__file__).parent.parent / "docs" / "fusions.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+)` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert len(rows) == page.split("## Tested")[1].count("\n| `") >= 5
    for name, *counts in rows:
        rules = rule_set((name,))
        tests = [test for rule in rules for test in rule.tests]
        runs = [test.run for test in tests if test.run is not None]
        vulkan = [run for run in runs if "vulkan" in run.devices]
        assert [len(rules), len(tests), len(runs), len(vulkan)] == [int(n) for n in counts], name
