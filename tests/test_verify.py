"""Rules that are wrong are caught, and the application that breaks a program is found."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import served
from mlirules.drivers.apply.programs import read_program
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import Recipe, rule_set, transform
from mlirules.drivers.quality import bisect as bisecting
from mlirules.drivers.quality import reduce as reducing
from mlirules.drivers.quality import torch_reference
from mlirules.drivers.quality.gate import GateResult, run_gate
from mlirules.drivers.quality.verify import (
    Comparison,
    Settings,
    Tolerance,
    compare_results,
    ulps,
    verify,
)
from mlirules.language.faults import CheckFailed
from mlirules.language.pipeline import Pipeline
from mlirules.language.rulefiles import LIBRARY, holds_config, rule_files
from mlirules.language.stage import Stage

ROOT = Path(__file__).resolve().parent.parent
CPU = Target.parse("cpu")
TORCH = torch_reference.available()
needs_torch = pytest.mark.skipif(TORCH is not None, reason=str(TORCH))

ELEMENTWISE, REDUCTIONS, POOLING = (
    f"torch/to-linalg/{f}/" for f in ("elementwise", "reductions", "pooling")
)
#: (what is wrong, rule, what the rule says, what it says instead)
WRONG_RULES = [
    (
        "swapped operand",
        ELEMENTWISE + "torch-sub-tensor-to-linalg",
        "T(C(x[...]) - C(y[...])) if plain",
        "T(C(y[...]) - C(x[...])) if plain",
    ),
    (
        "swapped operand",
        ELEMENTWISE + "torch-div-tensor-to-linalg",
        "T(x[...]) / T(y[...])",
        "T(y[...]) / T(x[...])",
    ),
    (
        "swapped operand",
        ELEMENTWISE + "torch-where-self-to-linalg",
        "T(x[...]), T(y[...])",
        "T(y[...]), T(x[...])",
    ),
    (
        "swapped operand",
        ELEMENTWISE + "torch-rsub-scalar-to-linalg",
        "T(C(y) - C(x[...])) if plain",
        "T(C(x[...]) - C(y)) if plain",
    ),
    (
        "swapped operand",
        ELEMENTWISE + "torch-leaky-relu-to-linalg",
        "C(x[...]) > 0",
        "0 > C(x[...])",
    ),
    (
        "wrong axis",
        REDUCTIONS + "torch-max-dim-to-linalg",
        "select(hit[I...], cast(I[d], si64)",
        "select(hit[I...], cast(I[0], si64)",
    ),
    (
        "wrong axis",
        REDUCTIONS + "torch-min-dim-to-linalg",
        "select(hit[I...], cast(I[d], si64)",
        "select(hit[I...], cast(I[0], si64)",
    ),
    (
        "wrong init",
        POOLING + "torch-max-pool2d-to-linalg",
        "pad(x, low, high, lowest(T))",
        "pad(x, low, high, 0)",
    ),
    (
        "wrong init",
        POOLING + "torch-avg-pool2d-to-linalg",
        "pad(x, low, high, 0)",
        "pad(x, low, high, 1)",
    ),
    ("wrong init", REDUCTIONS + "torch-prod-to-linalg", "p[] *= cast", "p[] += cast"),
    ("wrong rounding", ELEMENTWISE + "torch-round-to-linalg", "round(x[...])", "floor(x[...])"),
    ("wrong rounding", ELEMENTWISE + "torch-floor-to-linalg", "floor(x[...])", "trunc(x[...])"),
    (
        "wrong rounding",
        ELEMENTWISE + "torch-remainder-scalar-to-linalg",
        "C(x[...]) % C(y)",
        "rem(C(x[...]), C(y))",
    ),
    ("wrong rounding", ELEMENTWISE + "torch-ceil-to-linalg", "ceil(x[...])", "trunc(x[...])"),
    ("wrong rounding", ELEMENTWISE + "torch-gelu-to-linalg", "0.7071067811865476", "0.707"),
    (
        "dropped condition",
        ELEMENTWISE + "torch-add-tensor-to-linalg",
        " and (alpha == 1 or alpha == 1.0)",
        "",
    ),
    (
        "dropped condition",
        ELEMENTWISE + "torch-sub-tensor-to-linalg",
        " and (alpha == 1 or alpha == 1.0)",
        "",
    ),
    (
        "dropped condition",
        ELEMENTWISE + "torch-relu-to-linalg",
        "max(x[...], 0)",
        "maxnum(x[...], 0)",
    ),
    (
        "dropped condition",
        "torch/to-linalg/normalisation/torch-softmax-to-linalg",
        "exp(cast(cast(x[I...], U), wide(U)) - m[drop(I, d)])",
        "exp(cast(cast(x[I...], U), wide(U)))",
    ),
    (
        "dropped condition",
        POOLING + "torch-avg-pool2d-to-linalg",
        "n if even else product(min(o * s - p + k, S + e) - max(o * s - p, -e))",
        "n",
    ),
]


def _id(case: tuple[str, str, str, str]) -> str:
    return f"{case[1].rpartition('/')[2]}, {case[0]}"


def _wrong(case: tuple[str, str, str, str], folder: Path) -> Path:
    """The shipped rule with one thing wrong in it."""
    _, name, right, wrong = case
    text = (LIBRARY / f"{name}.yaml").read_text()
    head, mark, tests = text.partition("\ntests:")
    assert right in head, f"{name} does not say {right!r} any more"
    file = folder / f"{Path(name).name}.yaml"
    file.write_text(head.replace(right, wrong) + mark + tests)
    return file


def _gate(file: Path) -> GateResult:
    (rule,) = rule_set((str(file),))
    return run_gate(rule, [CPU])


def _between_clones(text: str) -> str:
    """A program with copies before and after it: other applications for a bisection to pass."""
    module = compiler.parse(text)
    block = module.body.operations[0].operation.regions[0].blocks[0]
    operations = [o.operation for o in block.operations]

    def cloned(value: ir.Value, at: ir.Operation) -> ir.Value:
        none = ir.Operation.create(
            "torch.constant.none",
            results=[ir.Type.parse("!torch.none", module.context)],
            ip=ir.InsertionPoint(at),
            loc=ir.Location.unknown(module.context),
        )
        made = ir.Operation.create(
            "torch.aten.clone",
            results=[value.type],
            operands=[value, none.result],
            ip=ir.InsertionPoint(at),
            loc=ir.Location.unknown(module.context),
        )
        return made.result

    first, last = operations[0], operations[-1]
    for argument in block.arguments:
        if str(argument.type).startswith("!torch.vtensor"):
            users = [(use.owner.operation, use.operand_number) for use in argument.uses]
            copy = cloned(argument, first)
            for user, n in users:
                user.operands[n] = copy
    for n, value in enumerate(last.operands):
        last.operands[n] = cloned(value, last)
    return str(module)


def _recipe(program: str, stages: list[Stage], flags: tuple[str, ...] = ()) -> Recipe:
    line = Pipeline(pipeline="made", summary="Made.", targets=["cpu"], stages=stages)
    return Recipe(program, CPU, replace(line, flags=list(flags)))


def _caught_and_found(case: tuple[str, str, str, str], folder: Path) -> None:
    file = _wrong(case, folder)
    result = _gate(file)
    assert result.counterexamples, f"not caught: {result.as_json()}"
    (rule,) = rule_set((str(file),))
    example = result.counterexamples[0]
    program = _between_clones(example.text)
    stages = [
        Stage(phase="torch", rules=[str(file), "torch/to-linalg/views/torch-clone-to-linalg"])
    ]
    settings = Settings(
        [CPU], inputs=example.inputs, expect=example.expected, first="torch", stop=True
    )
    culprit = bisecting.bisect(_recipe(program, stages), bisecting.by_numbers(program, settings))
    assert culprit.application is not None
    assert culprit.application.rule == rule.name
    assert culprit.total > 1


SAMPLE = [WRONG_RULES[0], WRONG_RULES[17]]


@needs_torch
@pytest.mark.parametrize("case", SAMPLE, ids=_id)
def test_a_wrong_rule_is_caught_and_its_application_found(
    case: tuple[str, str, str, str], tmp_path: Path
) -> None:
    _caught_and_found(case, tmp_path)


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in WRONG_RULES if c not in SAMPLE], ids=_id)
def test_every_wrong_rule_is_caught_and_its_application_found(
    case: tuple[str, str, str, str], tmp_path: Path
) -> None:
    _caught_and_found(case, tmp_path)


# ---------------------------------------------------------------- the gate

FILES = [file for file in rule_files(LIBRARY) if not holds_config(file)]


def _name(file: Path) -> str:
    return str(file.relative_to(LIBRARY).with_suffix(""))


@needs_torch
@pytest.mark.parametrize(
    "name",
    [
        "torch/to-linalg/matmul/torch-mm-to-linalg",
        "torch/to-linalg/elementwise/torch-relu-to-linalg",
        "torch/to-linalg/normalisation/torch-softmax-to-linalg",
    ],
)
def test_a_sample_of_rules_passes_the_gate(name: str) -> None:
    result = _gate(LIBRARY / f"{name}.yaml")
    assert result.comparisons
    assert not result.problems, "\n".join(result.problems)


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=_name)
def test_every_rule_passes_the_gate_or_says_why_not(file: Path) -> None:
    result = _gate(file)
    assert result.passed, "\n".join(result.problems)


# ---------------------------------------------------------------- parts


def test_ulps_count_representable_numbers() -> None:
    one = np.float32(1.0)
    a = np.array([one, 0.0, -0.0, np.nan, 1e-45], np.float32)
    b = np.array([np.nextafter(one, np.float32(2)), 0.0, 0.0, np.nan, -1e-45], np.float32)
    assert ulps(a, b).tolist() == [1.0, 0.0, 0.0, 0.0, 2.0]


def test_signs_of_zeros_are_counted_and_no_fault() -> None:
    made = Comparison("cpu", "random", (), 0, "x")
    compare_results(np.array([0.0, 1.0]), np.array([-0.0, 1.0]), Tolerance(), made)
    assert (made.passed, made.zero_signs) == (True, 1)


PROGRAM = """
func.func @main(%x: !torch.vtensor<[?,3],f32>) -> !torch.vtensor<[?,3],f32> {
  %a = torch.aten.abs %x : !torch.vtensor<[?,3],f32> -> !torch.vtensor<[?,3],f32>
  %b = torch.aten.relu %a : !torch.vtensor<[?,3],f32> -> !torch.vtensor<[?,3],f32>
  %c = torch.aten.neg %b : !torch.vtensor<[?,3],f32> -> !torch.vtensor<[?,3],f32>
  return %c : !torch.vtensor<[?,3],f32>
}
"""


def _relu_is_wrong(folder: Path) -> list[Stage]:
    file = _wrong(
        ("", ELEMENTWISE + "torch-relu-to-linalg", "max(x[...], 0)", "max(x[...], 1)"), folder
    )
    rules = [str(file), ELEMENTWISE + "torch-abs-to-linalg", ELEMENTWISE + "torch-neg-to-linalg"]
    return [Stage(phase="torch", rules=rules)]


def test_sizes_of_dynamic_dims_empty_included() -> None:
    done = transform(PROGRAM, "cpu")
    report = verify(PROGRAM, done.text, Settings([CPU], sizes=[(2,), (0,)]))
    assert report.passed
    assert {c.elements for c in report.comparisons} == {0, 6}
    assert {c.inputs for c in report.comparisons} >= {"random", "one NaN", "infinities"}


@pytest.mark.slow
def test_a_counterexample_is_reduced_to_the_op_that_is_wrong(tmp_path: Path) -> None:
    stages = _relu_is_wrong(tmp_path)
    settings = Settings([CPU], sizes=[(2,)])
    report = verify(PROGRAM, transform(PROGRAM, stages).text, settings)
    assert report.counterexample is not None
    reduced = reducing.reduce(
        report.counterexample, lambda text: transform(text, stages).text, settings
    )
    assert (reduced.ops_before, reduced.ops_after) == (3, 1)
    assert "torch.aten.relu" in reduced.text
    files = reducing.save(tmp_path / "found", reduced, report.counterexample, "the command")
    assert [f.name for f in files] == ["program.mlir", "inputs.npz", "repeat.txt"]
    again = verify(
        reduced.text,
        transform(reduced.text, stages).text,
        Settings([CPU], inputs=reduced.inputs),
    )
    assert not again.passed


def test_bisection_by_a_command(tmp_path: Path) -> None:
    stages = _relu_is_wrong(tmp_path)
    finds = f"{sys.executable} -c \"import sys; sys.exit('maximumf' in open('{{}}').read())\""
    recipe = _recipe(PROGRAM, stages)
    culprit = bisecting.bisect(recipe, bisecting.by_command(finds), text_only=True)
    assert culprit.application is not None
    assert culprit.application.rule == "torch-relu-to-linalg"
    assert "torch.aten.relu" in culprit.application.before
    with pytest.raises(CheckFailed, match="holds after all 3"):
        bisecting.bisect(recipe, lambda _: True)
    with pytest.raises(CheckFailed, match="fails without any rule"):
        bisecting.bisect(recipe, lambda _: False)


def _attention(tokens: int) -> str:
    """Attention as products and a softmax, which is what runs fast on CPUs."""
    x, s = f"!torch.vtensor<[1,8,{tokens},64],f32>", f"!torch.vtensor<[1,8,{tokens},{tokens}],f32>"
    t = f"!torch.vtensor<[1,8,64,{tokens}],f32>"
    return f"""
func.func @main(%q: {x}, %k: {x}, %v: {x}) -> {x} {{
  %last = torch.constant.int -1
  %before = torch.constant.int -2
  %none = torch.constant.none
  %eight = torch.constant.float 8.0
  %r = torch.aten.relu %q : {x} -> {x}
  %kt = torch.aten.transpose.int %k, %before, %last : {x}, !torch.int, !torch.int -> {t}
  %m = torch.aten.matmul %r, %kt : {x}, {t} -> {s}
  %d = torch.aten.div.Scalar %m, %eight : {s}, !torch.float -> {s}
  %w = torch.aten.softmax.int %d, %last, %none : {s}, !torch.int, !torch.none -> {s}
  %o = torch.aten.matmul %w, %v : {s}, {x} -> {x}
  return %o : {x}
}}
"""


@pytest.mark.slow
def test_bisection_by_time() -> None:
    """The fused attention op is several times as slow on the CPU as its parts."""
    rules = ["torch/fusions/attention", ELEMENTWISE + "torch-relu-to-linalg"]
    program = _attention(512)
    stages = [Stage(phase="torch", rules=rules)]
    culprit = bisecting.bisect(_recipe(program, stages), bisecting.by_time(program, CPU, 1.5))
    assert culprit.application.rule == "torch-attention-fuse"
    assert culprit.total > 1


@pytest.mark.slow
def test_ablation_leaves_out_each_rule() -> None:
    text = read_program(ROOT / "examples" / "toy_model.mlir")
    stages = [Stage(phase="torch", rules=["torch/to-linalg/elementwise"])]
    found = bisecting.ablate(_recipe(text, stages), repeat=1)
    assert [a.rule for a in found[:1]] == [""]
    assert all(a.applied < found[0].applied and a.compile_s > 0 for a in found[1:])
    assert not [a.problem for a in found if a.problem]


@needs_torch
def test_torch_computes_a_program() -> None:
    x = np.array([[-1.0, 2.0, np.nan]], np.float32)
    (found,) = torch_reference.evaluate(PROGRAM, [x])
    np.testing.assert_array_equal(found, -np.maximum(np.abs(x), 0))


@pytest.mark.slow
def test_the_commands(tmp_path: Path) -> None:
    def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
        command = [*served.command(), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    program = tmp_path / "p.mlir"
    program.write_text(re.sub(r"\?", "2", PROGRAM))
    rules = _relu_is_wrong(tmp_path)[0].rules
    options = [word for rule in rules for word in ("--rules", rule)]
    done = run("verify", program, *options, "--save", "found")
    assert done.returncode == 1
    assert "held against: IREE without the rules, on cpu" in done.stdout
    repeat = (tmp_path / "found" / "repeat.txt").read_text().splitlines()[0].split()
    assert run(*repeat[1:]).returncode == 1
    done = run("bisect", program, *options, "--verify")
    assert done.returncode == 0
    assert "torch-relu-to-linalg" in done.stdout


def test_bisection_goes_by_the_pipeline_that_a_config_rule_takes_effect_in() -> None:
    """By default a kernel takes the product: kernels make way, for the whole and for its parts."""
    folder = ROOT / "lit_tests" / "spec"
    text = (folder / "configured-torch-program.mlir").read_text()
    recipe = Recipe(text, CPU, configs=(folder / "Inputs" / "mm.yaml",))
    _, done = recipe.compile()
    assert done.pipeline is not None
    assert "computed-products" not in [stage.name for stage in done.pipeline.stages]

    def untouched(candidate: bisecting.Candidate) -> bool:
        return not candidate.compiled[1].applications["torch-mm-to-linalg"]

    culprit = bisecting.bisect(recipe, untouched)
    assert culprit.application is not None
    assert culprit.application.rule == "torch-mm-to-linalg"
