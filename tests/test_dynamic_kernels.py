"""Kernels over sizes known only at run time: one compiled program, many sizes, no unchecked one.

The numbers of each rule of ``dynamic_kernels`` on cpu and vulkan are checked by its inline tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.run import Options
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.match.results import Around
from mlirules.drivers.pipelines.transform import rule_set, transform
from mlirules.drivers.quality.ruletest import run_test
from mlirules.generator import objects
from mlirules.language import consent
from mlirules.language.faults import MlirulesError
from mlirules.language.rule import Rule
from mlirules.language.stage import Stage

CPU = Target.parse("cpu")
RULES = Path(__file__).parent / "dynamic_kernels"
MM = "!torch.vtensor<[?,?],f32>"
NONE = "!torch.none, !torch.none"
V = "!torch.vtensor<[?],f32>"
PROGRAM = f"""
func.func @mm(%a: {MM}, %b: {MM}) -> {MM} {{
  %c = torch.aten.mm %a, %b : {MM}, {MM} -> {MM}
  return %c : {MM}
}}
func.func @half(%a: {MM}, %b: !torch.vtensor<[6,?],f32>) -> {MM} {{
  %c = torch.aten.mm %a, %b : {MM}, !torch.vtensor<[6,?],f32> -> {MM}
  return %c : {MM}
}}
func.func @pairs(%x: {V}) -> {V} {{
  %two = torch.constant.int 2
  %none = torch.constant.none
  %y = torch.aten.repeat_interleave.self_int %x, %two, %none, %none : {V}, !torch.int, {NONE} -> {V}
  return %y : {V}
}}
"""
MV = f"""
func.func @mv(%a: {MM}, %x: {V}) -> {V} {{
  %y = torch.aten.mv %a, %x : {MM}, {V} -> {V}
  return %y : {V}
}}
"""


@pytest.fixture(autouse=True)
def trusted() -> Iterator[None]:
    with consent.given(native=True):
        yield


@pytest.fixture(scope="module")
def binary() -> bytes:
    c = objects.c_compiler() is not None
    rules = [
        str(RULES / f"{name}.yaml") for name in ("product", "pairs", *(["matvec"] if c else []))
    ]
    stages = [Stage(phase="torch", rules=rules, driver="greedy")]
    done = transform(PROGRAM + (MV if c else ""), stages)
    assert done.outcome.total == 3 + c
    # The two products differ in a size that is known: two executables.
    assert len(re.findall("stream.executable private @mlirules_product", done.text)) == 2
    return compiler.compile_module(done.text, CPU)


def values(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize(
    ("m", "k", "n"), [(8, 5, 32), (7, 3, 17), (1, 1, 1), (5, 33, 50), (3, 0, 4), (0, 2, 5)]
)
def test_one_program_for_every_size(binary: bytes, m: int, k: int, n: int) -> None:
    a, b = values(m, k), values(k, n)
    (found,) = runtime.run(binary, [a, b], CPU, "mm")
    np.testing.assert_allclose(found, a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 64, 65])
def test_a_result_whose_size_is_computed(binary: bytes, n: int) -> None:
    (found,) = runtime.run(binary, [values(n)], CPU, "pairs")
    np.testing.assert_array_equal(found, np.repeat(values(n), 2))


@pytest.mark.skipif(objects.c_compiler() is None, reason="no C compiler is here")
@pytest.mark.parametrize(("m", "k"), [(5, 7), (1, 1), (33, 20)])
def test_sizes_are_arguments_of_functions_in_c(binary: bytes, m: int, k: int) -> None:
    a, x = values(m, k), values(k)
    (found,) = runtime.run(binary, [a, x], CPU, "mv")
    np.testing.assert_allclose(found, a @ x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("function", "a", "b"), [("mm", (4, 3), (2, 5)), ("half", (4, 5), (6, 5))])
def test_operands_that_do_not_fit_are_an_error(
    binary: bytes, function: str, a: tuple[int, int], b: tuple[int, int]
) -> None:
    said = r"is not what vtensor<. x . x f32> says|expected 6 but"
    with pytest.raises(MlirulesError, match=said):
        runtime.run(binary, [values(*a), values(*b)], CPU, function)


def changed(tmp_path: Path, *replaced: tuple[str, str]) -> Rule:
    text = (RULES / "product.yaml").read_text()
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / "changed.yaml"
    path.write_text(text)
    (rule,) = rule_set((str(path),))
    return rule


def test_a_grid_out_of_range_is_an_error(tmp_path: Path) -> None:
    rule = changed(tmp_path, ('"ceildiv(M, TM)"', "M // TM"))
    (result,) = [run_test(rule, rule.tests[0], devices=["cpu"])]
    assert "M // TM is not from 1 to 65535 workgroups" in str(result.problems)


@pytest.mark.parametrize(
    ("old", "new", "kind", "line", "said"),
    [
        ("V: 16}", "V: N}", "cpu", None, "$(V) is a number known only at run time"),
        ("T: 8}", "T: N}", "vulkan", "T", "the threads of a workgroup are fixed"),
        ("V: 16}", "V: 16 if N % 16 == 0 else 4}", "cpu", "16 if N", "known only at run time"),
        (
            "targets: [cpu]",
            "targets: [cpu]\n      where: ['divisible(N, 16)']",
            "cpu",
            "divisible",
            "is not constant",
        ),
        (
            "c: vtensor<M x N x f32>",
            "c: vtensor<M x _ x f32>",
            "cpu",
            "vtensor<M x _",
            "nothing in the match gives its size",
        ),
    ],
)
def test_what_cannot_be_dynamic_is_said_at_its_line(
    tmp_path: Path, old: str, new: str, kind: str, line: str | None, said: str
) -> None:
    rule = changed(tmp_path, (old, new))
    module = compiler.parse(rule.tests[0].input or "")
    engine = Engine([rule], module.context)
    assert engine.run(module, Options(target=kind)).total == 0
    op = module.body.operations[0].regions[0].blocks[0].operations[0].operation
    refusal = engine.explain(rule, op, Around(kind))
    assert refusal is not None
    assert said.replace("$(V)", "$V") in refusal.message
    assert line is None or str(refusal.line).startswith(line)
    assert refusal.fault(rule).span.line
