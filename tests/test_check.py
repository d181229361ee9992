"""`compile --check`, and what `verify`, `bisect` and `bench` share with it: the whole pipeline."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import served
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import numerics
from mlirules.drivers.pipelines.transform import Part, Recipe, transform
from mlirules.drivers.quality import bisect as bisecting
from mlirules.drivers.quality import torch_reference
from mlirules.drivers.quality.checked import Call, check
from mlirules.drivers.quality.verify import (
    Settings,
    edge_inputs,
    op_names,
    verify,
)
from mlirules.language.faults import CheckFailed, MlirulesError
from mlirules.language.pipeline import Pipeline
from mlirules.language.rulefiles import LIBRARY
from mlirules.language.stage import Stage

CPU = Target.parse("cpu")
TYPE = "--iree-global-opt-demote-contraction-inputs-type=bf16"
BF16 = "--iree-global-opt-demote-contraction-inputs-operations=matmul"

X = "!torch.vtensor<[64,64],f32>"
PROGRAM = f"""
func.func @main(%x: {X}, %w: {X}) -> {X} {{
  %m = torch.aten.mm %x, %w : {X}, {X} -> {X}
  %r = torch.aten.relu %m : {X} -> {X}
  %n = torch.aten.neg %r : {X} -> {X}
  return %n : {X}
}}
"""
SECOND = f"""
func.func @plus(%x: {X}) -> {X} {{
  %r = torch.aten.relu %x : {X} -> {X}
  return %r : {X}
}}
func.func private @hidden(%x: {X}) -> {X} {{
  return %x : {X}
}}
func.func @minus(%x: {X}) -> {X} {{
  %r = torch.aten.neg %x : {X} -> {X}
  return %r : {X}
}}
"""


def recipe(
    program: str, *stages: Stage, flags: tuple[str, ...] = (), user: tuple[str, ...] = ()
) -> Recipe:
    line = Pipeline(pipeline="made", summary="Made.", targets=["cpu"], stages=list(stages))
    return Recipe(program, CPU, replace(line, flags=list(flags)), flags=user)


def stage(*rules: str | Path) -> Stage:
    return Stage(phase="torch", rules=[str(r) for r in rules])


def wrong(folder: Path, name: str, right: str, instead: str) -> Path:
    """A shipped rule with one thing wrong in it."""
    text = (LIBRARY / f"torch/to-linalg/elementwise/{name}.yaml").read_text()
    head, mark, tests = text.partition("\ntests:")
    assert right in head
    file = folder / f"{name}.yaml"
    file.write_text(head.replace(right, instead) + mark + tests)
    return file


RELU = "torch/to-linalg/elementwise/torch-relu-to-linalg"
NEG = "torch/to-linalg/elementwise/torch-neg-to-linalg"
MM = "torch/to-linalg/matmul/torch-mm-to-linalg"


def test_what_is_right_passes_on_all_kinds_of_inputs() -> None:
    made = recipe(PROGRAM, stage(MM, RELU, NEG))
    checked = check(made, made.compile()[0])
    assert not checked.failed
    assert not checked.skipped
    assert {c.inputs for c in checked.report.comparisons} == {
        "random",
        "zeros and denormals",
        "halves",
    }
    assert checked.report.skipped == ["NaN and infinities: the program adds up products"]


def test_a_wrong_rule_fails_and_its_application_is_named(tmp_path: Path) -> None:
    file = wrong(tmp_path, "torch-relu-to-linalg", "max(x[...], 0)", "max(x[...], 1)")
    made = recipe(PROGRAM, stage(MM, file, NEG), flags=("--iree-opt-data-tiling",))
    checked = check(made, made.compile()[0])
    assert checked.failed
    assert checked.culprit is not None
    assert checked.culprit.application is not None
    assert checked.culprit.application.rule == "torch-relu-to-linalg"
    assert "made by application" in checked.message()


@pytest.mark.parametrize("whose", ["pipeline", pytest.param("user", marks=pytest.mark.slow)])
def test_a_flag_that_changes_numbers_fails_and_is_named(whose: str) -> None:
    """Factors in bfloat16: wrong by more than sums in another order are."""
    flags = (TYPE, BF16)
    made = (
        recipe(PROGRAM, stage(MM, RELU, NEG), flags=flags)
        if whose == "pipeline"
        else recipe(PROGRAM, stage(MM, RELU, NEG), user=flags)
    )
    checked = check(made, made.compile()[0])
    assert checked.culprit is not None
    assert checked.culprit.flag == BF16
    assert f"made by the flag {BF16}" in checked.message()
    assert checked.culprit.total == 3 + 2


LATER = """rule: made-zero
kind: fusion
summary: A product becomes its first factor.
reason: To break a program after the compiler's own input conversion.
types: {a: tensor<M x K x f32>, b: tensor<K x N x f32>, c: tensor<M x N x f32>}
match: c[m, n] += a[m, k] * b[k, n]
where: [static(c)]
rewrite: c[m, n] = a[m, n]
tests:
  - {name: one, input: "module {}", check: "CHECK: module"}
  - {name: two, unchanged: "module {}"}
"""


@pytest.mark.slow
def test_an_application_of_a_later_phase_is_found(tmp_path: Path) -> None:
    (tmp_path / "made-zero.yaml").write_text(LATER)
    later = Stage(phase="input", rules=[str(tmp_path / "made-zero.yaml")])
    made = recipe(PROGRAM, stage(RELU, NEG), later)
    checked = check(made, made.compile()[0])
    assert checked.culprit is not None
    assert checked.culprit.application is not None
    assert checked.culprit.application.rule == "made-zero"
    assert checked.culprit.number == 3


def test_a_part_of_a_pipeline_is_compiled_by_that_part() -> None:
    made = recipe(PROGRAM, stage(MM, RELU, NEG), flags=("--iree-opt-data-tiling",))
    whole = made.compile()[1]
    assert (whole.outcome.total, whole.flags) == (3, ("--iree-opt-data-tiling",))
    part = made.compile(Part(1, ()))[1]
    assert (part.outcome.total, part.flags) == (1, ())


def test_a_golden_result_is_held_against() -> None:
    made = recipe(PROGRAM, stage(MM, RELU, NEG))
    binary = made.compile()[0]
    inputs = numerics.random_inputs(numerics.signature(PROGRAM)[1])
    right = -np.maximum(inputs[0] @ inputs[1], 0)
    assert not check(made, binary, call=Call(inputs, [right])).failed
    checked = check(made, binary, call=Call(inputs, [right + 1]))
    assert checked.failed
    assert "fails without any rule and flag" in checked.message()


def test_what_breaks_the_compilation_is_found() -> None:
    made = recipe(PROGRAM, stage(MM), flags=("--iree-opt-data-tiling", "--no-such-flag"))
    settings = Settings([CPU], stop=True)
    culprit = bisecting.bisect(made, bisecting.by_numbers(PROGRAM, settings))
    assert culprit.flag == "--no-such-flag"


def test_all_public_functions_are_seen() -> None:
    assert list(numerics.functions(SECOND)) == ["plus", "minus"]
    done = transform(SECOND, [stage(RELU, NEG)])
    report = verify(SECOND, done.text, Settings([CPU], isolated=True))
    assert report.passed
    assert {c.function for c in report.comparisons} == {"plus", "minus"}
    one = verify(SECOND, done.text, Settings([CPU], function="minus"))
    assert len(one.comparisons) * 2 == len(report.comparisons)
    with pytest.raises(MlirulesError, match="no function 'minsu'"):
        verify(SECOND, done.text, Settings([CPU], function="minsu"))
    with pytest.raises(MlirulesError, match="one of the functions plus, minus"):
        verify(SECOND, done.text, Settings([CPU], inputs=[np.zeros((64, 64), np.float32)]))


@pytest.mark.slow
def test_a_difference_in_the_second_function_alone_is_a_difference(tmp_path: Path) -> None:
    file = wrong(tmp_path, "torch-neg-to-linalg", "-x[...]", "x[...]")
    made = recipe(SECOND, stage(RELU, file))
    checked = check(made, made.compile()[0])
    assert checked.failed
    assert {c.function for c in checked.report.comparisons if not c.passed} == {"minus"}


ROUND = """
func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %e = tensor.empty() : tensor<64xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
    iterator_types = ["parallel"]} ins(%x : tensor<64xf32>) outs(%e : tensor<64xf32>) {
  ^bb0(%a: f32, %o: f32):
    %v = math.roundeven %a : f32
    linalg.yield %v : f32
  } -> tensor<64xf32>
  return %r : tensor<64xf32>
}
"""


def swapped(text: str, element: str, first: str, second: str) -> str:
    return f"""
func.func @main(%x: tensor<64x{element}>, %y: tensor<64x{element}>) -> tensor<64x{element}> {{
  %e = tensor.empty() : tensor<64x{element}>
  %r = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>,
    affine_map<(i) -> (i)>], iterator_types = ["parallel"]}}
    ins(%x, %y : tensor<64x{element}>, tensor<64x{element}>) outs(%e : tensor<64x{element}>) {{
  ^bb0(%a: {element}, %b: {element}, %o: {element}):
    {text.format(first, second)}
    linalg.yield %v : {element}
  }} -> tensor<64x{element}>
  return %r : tensor<64x{element}>
}}"""


LARGER = "%c = arith.cmpf ogt, %a, %b : f32\n    %v = arith.select %c, {0}, {1} : f32"


@pytest.mark.parametrize(
    ("before", "after", "inputs"),
    [
        (ROUND, ROUND.replace("roundeven", "round"), {"halves"}),
        # NaN in one operand alone tells the order of operands.
        (
            swapped(LARGER, "f32", "%a", "%b"),
            swapped(LARGER, "f32", "%a", "%b").replace("ogt", "ugt"),
            {"a NaN in operand 0", "a NaN in operand 1"},
        ),
        (
            swapped("%v = arith.maxsi %a, %b : i8", "i8", "", ""),
            swapped("%v = arith.maxui %a, %b : i8", "i8", "", ""),
            {"random", "extremes"},
        ),
        (
            swapped("%v = arith.shrsi %a, %k : i8", "i8", "", "").replace(
                "  %e =", "  %k = arith.constant 1 : i8\n  %e =", 1
            ),
            swapped("%v = arith.shrui %a, %k : i8", "i8", "", "").replace(
                "  %e =", "  %k = arith.constant 1 : i8\n  %e =", 1
            ),
            {"random"},
        ),
    ],
    ids=["halves", "nan", "signs", "shifts"],
)
def test_edge_values_tell_ops_apart(before: str, after: str, inputs: set[str]) -> None:
    report = verify(before, after, Settings([CPU]))
    assert {c.inputs for c in report.comparisons if not c.passed} >= inputs


def test_extremes_of_integers_are_read_as_signed_and_unsigned() -> None:
    made = dict(edge_inputs([([64], "ui8"), ([64], "si8")], (), "arith.maxui"))["extremes"]
    assert {0, 255, 127, 128} <= set(made[0].tolist())
    assert {-128, 127, -1, 0} <= set(made[1].tolist())


@pytest.mark.skipif(torch_reference.available() is not None, reason="needs torch")
def test_what_pytorch_contradicts_fails_though_the_compiler_agrees() -> None:
    """IREE without rules says the same wrong thing: its own program is held against PyTorch."""
    x = "!torch.vtensor<[4],f32>"
    text = f"""func.func @main(%x: {x}) -> {x} {{
      %r = torch.aten.relu %x : {x} -> {x}
      return %r : {x}
    }}"""
    # What stands for the compiler and the rules alike: a relu that is an absolute value.
    both = text.replace("torch.aten.relu", "torch.aten.abs")
    binary = compiler.compile_module(both, CPU)

    settings = Settings([CPU], first="torch")
    report = verify(text, lambda _: binary, settings)
    assert not report.passed
    assert not report.compiler_wrong
    assert {c.reference for c in report.comparisons} == {"PyTorch"}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*served.command(), *words], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_command_writes_nothing_that_is_wrong(tmp_path: Path) -> None:
    model, out = tmp_path / "model.mlir", tmp_path / "model.vmfb"
    model.write_text(PROGRAM)
    good = run("compile", str(model), "--check", "--json", "-o", str(out))
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["check"]["passed"]
    out.unlink()
    bad = run("compile", str(model), "--check", "-o", str(out), "--", TYPE, BF16)
    assert bad.returncode == 1
    assert f"made by the flag {BF16}" in bad.stderr
    assert not out.exists()
    elsewhere = run("compile", str(model), "--check", "--target", "hip:gfx942", "-o", str(out))
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert "NOT CHECKED" in elsewhere.stderr


def test_names_of_ops_are_what_decides_on_inputs() -> None:
    module = compiler.parse(swapped("%v = arith.maxsi %a, %b : i8", "i8", "", ""))
    assert "arith.maxsi" in op_names(module).split()
    with pytest.raises(CheckFailed, match="nothing to bisect"):
        bisecting.bisect(recipe(ROUND), lambda _: True)


def test_integers_that_are_looked_up_in_a_table_stay_inside_it() -> None:
    arguments: list[tuple[list[int | None], str]] = [([3, 40], "si64"), ([4], "f32")]
    for ops, negative in (("torch.aten.embedding torch.aten.mm", False), ("torch.aten.mm", True)):
        ints = [made[0] for _, made in edge_inputs(arguments, (), ops)]
        assert any(bool((a < 0).any()) for a in ints) == negative
        assert all(a.max() >= 1 for a in ints)


def test_integers_are_equal_or_differ() -> None:
    """As float64 these two would be one number."""
    large = np.array([2**60, 3])
    assert not numerics.difference(large, large.copy(), 0.0, 0.0)
    assert numerics.difference(large, large + np.array([1, 0]), 0.0, 0.0).startswith(
        "1 of 2 elements differ"
    )
