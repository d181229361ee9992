"""Stages after preprocessing: rules over ops of flow and inside dispatches, and what cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.insert import with_rules
from mlirules.drivers.pipelines.transform import Recipe, compile_program, default_for, program_at
from mlirules.language.faults import MlirulesError
from mlirules.language.pipeline import Pipeline

CPU = Target.parse("cpu")
EXAMPLE = Path(__file__).parent.parent / "examples" / "flow"
JOINED = EXAMPLE / "joined.mlir"
KERNEL = str(Path(__file__).parent / "spec_rules" / "gemm-kernel.yaml")
T = "!torch.vtensor<[4,8],f32>"
RELU = f"""func.func @main(%x: {T}) -> {T} {{
  %y = torch.aten.relu %x : {T} -> {T}
  return %y : {T}
}}
"""
NO_TESTS = """\
tests:
  - name: positive
    input: "module {}"
    check: "CHECK: module"
  - name: negative
    unchanged: "module {}"
"""
#: Shows in the numbers; its constants must be made inside of the dispatch.
FLIP = f"""\
rule: flip-maximum
kind: fusion
summary: Turn a maximum with zero into a minimum with one.
reason: A change that shows in the numbers proves that the stage took effect.
types: {{x: "tensor<M x N x f32>", y: "tensor<M x N x f32>"}}
match: ["y[i, j] = max(x[i, j], 0)"]
rewrite: ["y[i, j] = min(x[i, j], 1)"]
{NO_TESTS}"""
#: Takes another part of the tensor for the one that was written.
WRONG = f"""\
rule: wrong-part
kind: fusion
summary: Take what was written last for what is read.
reason: It is wrong, to be found.
types:
  t: tensor<_ x _ x T>
  x: tensor<M x N x T>
  u: tensor<_ x _ x T>
  y: tensor<M x N x T>
match:
  - u = flow.tensor.update(t, _, _, x)
  - y = flow.tensor.slice(u, _, _, _, _)
where: [static(x), static(y)]
rewrite: [y = x]
{NO_TESTS}"""
OUTSIDE = f"""\
rule: computes-outside
kind: fusion
summary: Copy a part by a structured op.
reason: Nothing after the phase flow compiles it.
types: {{u: "tensor<_ x _ x T>", x: "tensor<M x N x T>", y: "tensor<M x N x T>"}}
match:
  - u = flow.tensor.update(_, i, j, x)
  - y = flow.tensor.slice(u, i, j, _, _)
rewrite: ["y[m, n] = x[m, n] + x[m, n]"]
{NO_TESTS}"""


def line(folder: Path, phase: str, rule: str, **stage: object) -> Pipeline:
    """The pipeline for CPUs with a rule, by its text or by a shipped name, after a phase."""
    name = rule
    if "\n" in rule:
        (folder / "own.yaml").write_text(rule)
        name = "own.yaml"
    made = {"phase": phase, "rules": [name], **stage}
    data = {"pipeline": "later", "extends": "cpu", "summary": "More.", "stages": [made]}
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps(data))
    return Pipeline.load(path)


@pytest.mark.parametrize(
    ("phase", "driver"),
    [
        pytest.param("global-optimization", "walk", marks=pytest.mark.slow),
        ("dispatch-creation", "walk"),
        pytest.param("flow", "greedy", marks=pytest.mark.slow),
    ],
)
def test_a_stage_takes_effect_wherever_the_op_stands(
    phase: str, driver: str, tmp_path: Path
) -> None:
    rule = FLIP
    if phase != "global-optimization":  # a dispatch takes dims together that belong together
        rule = rule.replace("M x N", "M").replace("i, j", "i")
    stages = line(tmp_path, phase, rule, driver=driver, expect={"applied": 1})
    binary, done = compile_program(RELU, CPU, stages)
    assert done.applications["flip-maximum"] == 1
    x = np.linspace(-3, 3, 32, dtype=np.float32).reshape(4, 8)
    (found,) = runtime.run(binary, [x], CPU)
    np.testing.assert_array_equal(found, np.minimum(x, 1))


def test_the_example(told: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    """A rule over ops of flow, by every command that compiles, and by `explain`."""
    stages = EXAMPLE / "pipeline.yaml"
    code, said = told("compile", JOINED, "--pipeline", stages, "-o", tmp_path / "j.vmfb", "--stats")
    assert code == 0, said
    assert "flow-slice-of-update" in said
    recipe = Recipe(JOINED.read_text(), CPU, Pipeline.load(stages))
    before, after = (program_at(recipe, "flow", before=early) for early in (True, False))
    assert ("flow.tensor.slice" in before, "flow.tensor.slice" in after) == (True, False)
    code, said = told("verify", JOINED, "--pipeline", stages)
    assert code == 0, said
    assert "14 results agree" in said
    rule = EXAMPLE / "slice-of-update.yaml"
    code, said = told("explain", rule, JOINED, "--phase", "flow", "--pipeline", stages)
    assert code == 0
    assert "flow-slice-of-update applies here" in said
    code, said = told("explain", rule, JOINED)
    assert "the program has no flow.tensor.slice" in said


@pytest.mark.slow
def test_a_wrong_rule_is_found(told: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    # Both parts are equally large, and the first one is taken out again.
    text = JOINED.read_text().replace("[4,8]", "[3,8]").replace("[7,8]", "[6,8]")
    text = text.replace("int 4", "int 0").replace("int 7", "int 3")
    program = tmp_path / "model.mlir"
    program.write_text(text)
    line(tmp_path, "flow", WRONG)
    code, said = told("bisect", program, "--pipeline", tmp_path / "pipeline.yaml", "--verify")
    assert code == 0, said
    assert "wrong-part" in said


@pytest.mark.parametrize(
    ("phase", "rule", "said"),
    [
        ("flow", "torch/fusions/normalisation", "where no op of torch is left"),
        ("dispatch-creation", "kernels", "where no op of torch is left"),
        ("flow", OUTSIDE, "this makes linalg.generic outside of them"),
        ("flow", KERNEL, "would make one in one"),
    ],
)
def test_what_a_phase_does_not_allow_is_an_error(
    phase: str, rule: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(MlirulesError, match=said) as caught:
        compile_program(JOINED.read_text(), CPU, line(tmp_path, phase, rule))
    (fault,) = caught.value.faults
    assert fault.span.path.endswith(".yaml")
    assert fault.span.line


def test_a_phase_that_takes_no_stages_is_said_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(MlirulesError, match="dispatch-creation, flow, configuration, not stream"):
        line(tmp_path, "stream", FLIP)


def test_rules_over_flow_without_a_pipeline_file_go_after_it() -> None:
    made = with_rules(default_for("cpu"), [str(EXAMPLE / "slice-of-update.yaml")], CPU)
    assert made.stages[-1].phase == "flow"
