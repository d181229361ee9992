"""Pipelines: stages in every phase, expectations, fallback, resources, what compiles and runs."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlirules.drivers.apply.programs import load_program, parsed
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.pipelines.transform import (
    ExpectationError,
    LeftoverError,
    compile_program,
    default_for,
    transform,
)
from mlirules.language import pipeline_file
from mlirules.language.faults import CheckFailed, MlirulesError
from mlirules.language.pipeline import PIPELINES, Pipeline
from mlirules.language.reading import load_yaml
from mlirules.language.stage import OF_FLAGS, Expect, Stages, as_data

T = "!torch.vtensor<[4,8],f32>"
RELU = f"""func.func @main(%x: {T}) -> {T} {{
  %y = torch.aten.relu %x : {T} -> {T}
  return %y : {T}
}}"""

FLIP = """\
rule: flip-maximum
kind: fusion
summary: Turn a maximum with zero into a minimum with one.
reason: A change that shows in the numbers proves that the stage took effect.
types: {{x: "tensor<M x N x f32>", y: "tensor<M x N x f32>"}}
match: ["y[i, j] = max(x[i, j], 0)"]
rewrite: ["y[i, j] = min(x[i, j], 1)"]
{more}tests:
  - name: positive
    input: "module {{}}"
    check: "CHECK: module"
  - name: negative
    unchanged: "module {{}}"
"""

PIPELINE = """\
pipeline: of-a-test
summary: Torch rules, then one more stage.
targets: [cpu]
stages:
  - phase: torch
    rules: [torch/to-linalg/elementwise/torch-relu-to-linalg]
    driver: walk
  - phase: {phase}
    rules: [{rule}]
    expect: {expect}
"""


def write(folder: Path, phase: str, expect: str = "{applied: 1}", more: str = "") -> Pipeline:
    rule = folder / "flip.yaml"
    rule.write_text(FLIP.format(more=more), encoding="utf-8")
    path = folder / "pipeline.yaml"
    path.write_text(PIPELINE.format(phase=phase, rule=rule, expect=expect), encoding="utf-8")
    return Pipeline.load(path)


@pytest.mark.parametrize("phase", ["torch", "input", "preprocessing"])
def test_a_stage_takes_effect_in_every_phase(phase: str, tmp_path: Path) -> None:
    target = Target.parse("cpu")
    binary, done = compile_program(RELU, target, write(tmp_path, phase), fallback=False)
    assert done.outcome.counts["flip-maximum"] == 1
    x = np.linspace(-3, 3, 32, dtype=np.float32).reshape(4, 8)
    (found,) = runtime.run(binary, [x], target)
    np.testing.assert_array_equal(found, np.minimum(x, 1))


def test_an_expectation_that_is_not_met_fails_the_compile(tmp_path: Path) -> None:
    pipeline = write(tmp_path, "preprocessing", "{min: 2}")
    with pytest.raises(ExpectationError, match=r"at least 2 times, but applied 1 times"):
        compile_program(RELU, Target.parse("cpu"), pipeline)
    pipeline = write(tmp_path, "torch", "{applied: 0}")
    with pytest.raises(ExpectationError, match=r"must apply 0 times, but applied 1"):
        transform(RELU, pipeline)


def test_no_fallback_lists_what_is_left() -> None:
    text = RELU.replace("torch.aten.relu", "torch.aten.tanh")
    pipeline = Pipeline.of(
        {
            "pipeline": "small",
            "summary": "relu alone",
            "targets": ["cpu"],
            "stages": [
                {"phase": "torch", "rules": ["torch/to-linalg/elementwise/torch-relu-to-linalg"]}
            ],
        }
    )
    with pytest.raises(LeftoverError, match=r"1 x torch\.aten\.tanh"):
        compile_program(text, Target.parse("cpu"), pipeline, fallback=False)
    binary, done = compile_program(text, Target.parse("cpu"), pipeline)
    assert done.leftovers == ["torch.aten.tanh"]
    x = np.linspace(-3, 3, 32, dtype=np.float32).reshape(4, 8)
    (found,) = runtime.run(binary, [x], Target.parse("cpu"))
    np.testing.assert_allclose(found, np.tanh(x), rtol=1e-5)


def test_a_pipeline_for_another_target_is_refused() -> None:
    with pytest.raises(MlirulesError, match="the pipeline is for cpu, not vulkan"):
        compile_program(RELU, Target.parse("vulkan"), default_for("cpu"))


def test_every_target_kind_has_a_shipped_pipeline() -> None:
    for kind in ("cpu", "vulkan", "cuda", "hip"):
        assert kind in default_for(kind).targets
    assert default_for("cpu").pipeline == "cpu-fast"


def test_functions_begin_at_lines_of_the_cache() -> None:
    binary, _ = compile_program(RELU, Target.parse("cpu"), default_for("cpu"))
    assert _code_alignment(binary) == 64
    assert _code_alignment(compiler.compile_module(RELU, Target.parse("cpu"))) < 64


def _code_alignment(binary: bytes) -> int:
    """The most that sections of machine code ask for, in bytes: those of the first ELF file."""
    elf = binary[binary.index(b"\x7fELF") :]
    (headers,) = struct.unpack_from("<Q", elf, 0x28)
    size, count = struct.unpack_from("<HH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, headers + n * size) for n in range(count)]
    runs = 4
    return max(section[8] for section in sections if section[2] & runs)


@pytest.mark.slow
def test_a_flag_that_does_not_compile_makes_way_and_says_so() -> None:
    flag = "--iree-llvmcpu-target-triple=no-such-machine"
    cpu = Target.parse("cpu")
    line = replace(default_for("cpu"), flags=[flag], dispensable=[flag])
    binary, done = compile_program(RELU, cpu, line)
    assert binary
    (said,) = done.notes
    assert flag in said
    with pytest.raises(compiler.CompileError):
        compile_program(RELU, cpu, line, flags=[flag])  # what the user gives stays
    with pytest.raises(compiler.CompileError):
        compile_program(RELU, cpu, replace(line, dispensable=[]))


def test_what_is_compiled_by_default_propagates_nan() -> None:
    """Flags that are faster because they treat NaN otherwise are no part of a default."""
    t, one = "!torch.vtensor<[37],f32>", "!torch.vtensor<[],f32>"
    text = f"""func.func @main(%x: {t}, %y: {t}) -> ({t}, {one}) {{
      %a = torch.aten.maximum %x, %y : {t}, {t} -> {t}
      %b = torch.aten.max %x : {t} -> {one}
      return %a, %b : {t}, {one}
    }}"""
    x = np.arange(37, dtype="f4")
    y = x[::-1].copy()
    x[5] = y[12] = y[30] = np.nan
    cpu = Target.parse("cpu")
    larger, largest = runtime.run(compile_program(text, cpu)[0], [x, y], cpu)
    assert np.flatnonzero(np.isnan(larger)).tolist() == [5, 12, 30]
    assert np.isnan(largest)


def test_faults_of_a_pipeline_file_are_located(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "pipeline: bad\nsummary: not good\ntargets: [cpu]\nstages:\n"
        "  - phase: torch\n    rulez: [a]\n",
        encoding="utf-8",
    )
    with pytest.raises(MlirulesError) as caught:
        Pipeline.load(path)
    spans = {(f.span.line, f.span.column) for f in caught.value.faults}
    assert (6, 5) in spans
    assert "did you mean 'rules'" in str(caught.value)


def test_integer_resources_become_literals_and_others_stay() -> None:
    text = """func.func @f() -> (!torch.vtensor<[2],si64>, !torch.vtensor<[1],f32>) {
  %a = torch.vtensor.literal(dense_resource<ints> : tensor<2xsi64>) : !torch.vtensor<[2],si64>
  %b = torch.vtensor.literal(dense_resource<floats> : tensor<1xf32>) : !torch.vtensor<[1],f32>
  return %a, %b : !torch.vtensor<[2],si64>, !torch.vtensor<[1],f32>
}
{-#
  dialect_resources: { builtin: {
      ints: "0x0800000007000000000000000900000000000000",
      floats: "0x040000000000803F"
  } }
#-}
"""
    inlined = str(parsed(text, "program"))
    assert "dense_resource<floats>" in inlined
    assert "dense_resource<ints>" not in inlined
    assert "dense<[7, 9]>" in inlined
    done = transform(text, "cpu")
    assert not done.leftovers
    assert "dense<[7, 9]> : tensor<2xi64>" in done.text
    assert "0000803F" in done.text


def test_a_program_of_bytecode_is_compiled_as_its_text(tmp_path: Path) -> None:
    text, bytecode = tmp_path / "relu.mlir", tmp_path / "relu.mlirbc"
    text.write_text(RELU, encoding="utf-8")
    with bytecode.open("wb") as file:
        compiler.parse(RELU).operation.write_bytecode(file)
    binaries = [
        compile_program(load_program(path), Target.parse("cpu"), path="relu", fallback=False)[0]
        for path in (text, bytecode)
    ]
    assert binaries[0] == binaries[1]


def test_the_compiler_s_errors_are_at_the_line_of_the_program(tmp_path: Path) -> None:
    path = tmp_path / "odd.mlir"
    path.write_text(
        "// comments move lines\n\n"
        "func.func @main(%a: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> {\n"
        '  %r = torch.operator "torch.aten.odd"(%a) : '
        "(!torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32>\n"
        "  return %r : !torch.vtensor<[2],f32>\n}\n",
        encoding="utf-8",
    )
    with pytest.raises(compiler.CompileError) as caught:
        compile_program(load_program(path), Target.parse("cpu"), path=str(path))
    span = caught.value.faults[0].span
    assert (span.path, span.line) == (str(path), 4)
    assert "torch.aten.odd" in span.source_line


def test_an_error_about_what_a_rule_made_is_at_the_rule() -> None:
    done = transform(RELU, "cpu")
    made = [op.location for op in ops_below(done.program.module.operation)]
    assert any("torch-relu-to-linalg.yaml" in str(place) for place in made)


FOREIGN = """\
func.func @main(%x: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> {
  %y = torch.aten.sigmoid %x : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>
  %z = torch.operator "torch.aten.of_tomorrow"(%y)
    : (!torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32>LOC
  return %z : !torch.vtensor<[2],f32>
}
"""


@pytest.mark.parametrize("fallback", [True, False])
def test_op_that_the_torch_dialect_lacks_is_told_by_its_name(fallback: bool) -> None:
    with pytest.raises((MlirulesError, CheckFailed)) as caught:
        compile_program(
            FOREIGN.replace("LOC", ""), Target.parse("cpu"), path="net.mlir", fallback=fallback
        )
    message = str(caught.value)
    assert "net.mlir:3:8" in message
    assert "no rule for torch.aten.of_tomorrow" in message
    assert "1 x torch.operator" not in message


def test_op_that_the_torch_dialect_lacks_is_told_at_the_line_of_the_model(tmp_path: Path) -> None:
    model = tmp_path / "net.py"
    model.write_text("import torch\n\nasdf = torch.of_tomorrow(x)\n", encoding="utf-8")
    inner = '"/x/lib/site-packages/torch/nn/modules/linear.py":125:0'
    place = f' loc(callsite({inner} at "{model}":3:0))'
    with pytest.raises(MlirulesError) as caught:
        compile_program(FOREIGN.replace("LOC", place), Target.parse("cpu"), path="net.mlir")
    assert f"{model}:3:1: error[no-rule]: no rule for torch.aten.of_tomorrow" in str(caught.value)


def test_what_is_kept_of_a_pipeline_is_what_its_file_says(tmp_path: Path) -> None:
    for file in (*PIPELINES.glob("*.yaml"),):
        said = Pipeline.load(file)  # read, or kept by another test
        assert Pipeline.load(file) == said
        read = pipeline_file.read(load_yaml(file))
        if isinstance(read, Stages):
            assert Pipeline.of(as_data(read)) == replace(said, stages=read.stages)
        assert type(said).of(json.loads(json.dumps(as_data(said)))) == said
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE.format(phase="input", rule="linalg", expect="{applied: 1}"))
    assert Pipeline.load(path).stages[1].expect == Expect(applied=1)
    path.write_text(PIPELINE.format(phase="input", rule="linalg", expect="{applied: 2}"))
    assert Pipeline.load(path).stages[1].expect == Expect(applied=2)
    path.write_text(PIPELINE.format(phase="input", rule="linalg", expect="{applied: no}"))
    for _ in range(2):  # nothing is kept of a file with a fault
        with pytest.raises(MlirulesError, match="applied"):
            Pipeline.load(path)


@pytest.mark.parametrize("key", OF_FLAGS)
def test_what_is_said_of_flags_is_said_of_flags_that_are_there(key: str, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    said = "pipeline: made\nsummary: Made.\ntargets: [cpu]\nflags: [--iree-opt-level=O1]\n"
    path.write_text(f"{said}{key}: [--iree-opt-level=O2]\n", encoding="utf-8")
    with pytest.raises(MlirulesError, match="O2 is not among the flags"):
        Pipeline.load(path)
    path.write_text(f"{said}{key}: [--iree-opt-level=O1]\n", encoding="utf-8")
    assert getattr(Pipeline.load(path), key) == ["--iree-opt-level=O1"]
