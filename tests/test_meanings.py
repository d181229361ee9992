"""What a rule says that can mean nothing is told by `check`, with its place and what to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mlirules.drivers.iree import compiler
from mlirules.drivers.quality.check import check_rule
from mlirules.drivers.quality.mutation import fitting_sizes
from mlirules.language.loader import load_rule

SUM = "c[m, n] += a[m, k] * b[k, n]"
RULE = """\
rule: my-mm
kind: conversion
summary: A product.
reason: It shows what check tells.
types: {a: vtensor<M x K x T>, b: vtensor<K x N x T>, c: vtensor<M x N x T>}
match: ['c = torch.aten.mm(a, b)']
let: {half: K // 2}
where:
  - T in [f32, f64]
  - half >= 0
rewrite:
  - c[m, n] += a[m, k] * b[k, n]
tests:
  - name: positive
    input: |
      func.func @f(%a: !torch.vtensor<[2,3],f32>, %b: !torch.vtensor<[3,4],f32>) -> !torch.vtensor<[2,4],f32> {
        %c = torch.aten.mm %a, %b : !torch.vtensor<[2,3],f32>, !torch.vtensor<[3,4],f32> -> !torch.vtensor<[2,4],f32>
        return %c : !torch.vtensor<[2,4],f32>
      }
    check: |
      CHECK: linalg.matmul
    run: {devices: [cpu]}
  - name: negative
    unchanged: |
      func.func @f(%a: !torch.vtensor<[2,3],si64>, %b: !torch.vtensor<[3,4],si64>) -> !torch.vtensor<[2,4],si64> {
        %c = torch.aten.mm %a, %b : !torch.vtensor<[2,3],si64>, !torch.vtensor<[3,4],si64> -> !torch.vtensor<[2,4],si64>
        return %c : !torch.vtensor<[2,4],si64>
      }
    because: T in [f32, f64]
"""  # noqa: E501 - the programs' lines


def told(old: str, new: str) -> list[tuple[str, str, str]]:
    """Place and code, message, suggestion of each fault of the rule with a change."""
    assert old in RULE
    found = check_rule("my-mm.yaml", RULE.replace(old, new))
    return [(f"{f.span.line}:{f.span.column} {f.code}", f.message, f.suggestion) for f in found]


def test_nothing_is_told_of_a_rule_that_means_something() -> None:
    assert told(SUM, SUM) == []


@pytest.mark.parametrize(
    ("rewrite", "place", "message", "hint"),
    [
        (
            "c[m] += a[m, k] * b[k, n]",
            "12:5 wrong-rank",
            "c has 2 dims, vtensor<M x N x T>: 1 index stands here",
            "give every dim an index, or write `...` for the others",
        ),
        (
            "c[m, n] += a[m, k, n] * b[k, n]",
            "12:16 wrong-rank",
            "a has 2 dims, vtensor<M x K x T>: 3 indices stand here",
            "remove an index, or declare the tensor with as many dims",
        ),
        (
            "c[m, n] = a[m, k] * b[k, n]",
            "12:20 not-summed",
            "c has no index k: `=` says one value for each of its elements",
            "write += to sum over k (max=, min=, *= likewise), or give c the index",
        ),
        (
            "c[m, n] = a[E...]",
            "12:17 not-summed",
            "c has no index E: `=` says one value for each of its elements",
            "write += to sum over E (max=, min=, *= likewise), or give c the index",
        ),
        (
            "c[m, n] += cast(a[m, k], a) * b[k, n]",
            "12:30 not-a-type",
            "cast makes numbers of an element type, and the tensor a is none",
            "for example cast(x[i], f32), or a symbol of `types:` such as T",
        ),
        (
            "c[m, n] += cast(a[m, k], 3) * b[k, n]",
            "12:30 not-a-type",
            "cast makes numbers of an element type, and 3 is none",
            "for example cast(x[i], f32), or a symbol of `types:` such as T",
        ),
        (
            f"{SUM} for k < a",
            "12:42 not-a-size",
            "k runs up to a whole number, and the tensor a is none",
            "for example a dim of `types:`, a constant, or dim(x, 0)",
        ),
        (
            f"{SUM} for k... < K",
            "12:45 not-a-size",
            "k... runs up to a list, and K is one size",
            "write k < K, or k... < [K]",
        ),
        (
            f"{SUM} for j < K",
            "12:38 unused-index",
            "j runs over K, and nothing in the equation depends on it",
            "remove the bound, or use the index",
        ),
        (
            "c[m, n] += a[[m], k] * b[k, n]",
            "12:18 not-an-index",
            "a list cannot be an index",
            "write m, without its brackets",
        ),
        (
            "c[m, n] += a[a, k] * b[k, n]",
            "12:18 not-an-index",
            "the whole tensor a cannot be an index",
            "an element of it is read as x[i, j]",
        ),
        (
            "c[m, n] += a[m, 1.5] * b[k, n]",
            "12:21 not-an-index",
            "a float cannot be an index",
            "write a loop index or a whole number",
        ),
        (
            "c[m+1, n] += a[m, k] * b[k, n]",
            "12:7 not-an-index",
            "a result is written at loop indices, not at m+1",
            "write the index alone, and compute with it on the right-hand side",
        ),
        (
            "c[m, n] += (a[m, k] in [m]) * b[k, n]",
            "12:17 not-known",
            "`in` asks about what is known before the program runs, and elements of tensors are "
            "not",
            "compare them one by one: x[i] == a or x[i] == b",
        ),
        (
            "c[m, n] += a * b[k, n]",
            "12:16 not-an-element",
            "a is a whole tensor, vtensor<M x K x T>: an equation computes elements",
            "write a[i, j], or a[...]",
        ),
        (
            "c[m, n] += [a[m, k]] * b[k, n]",
            "12:16 not-an-element",
            "[a[m, k]] is no number: an equation computes elements",
            "write a number, an element of a tensor, or a function of them",
        ),
        (
            "c[m, n] += M(a[m, k]) * b[k, n]",
            "12:16 unknown-function",
            "M is a size, not a function",
            "write M * (...), or cast(..., T)",
        ),
    ],
)
def test_an_equation_that_means_nothing(rewrite: str, place: str, message: str, hint: str) -> None:
    assert told(SUM, rewrite) == [(place, message, hint)]


@pytest.mark.parametrize(
    ("condition", "place", "message"),
    [
        (
            "a[0, 0] in [M]",
            "10:5 not-known",
            "an element of a is not known before the program runs",
        ),
        ("M + a > 1", "10:9 no-number", "the tensor a is no number: `+` takes numbers"),
        ("T > 1", "10:5 no-number", "the element type T is no number: `>` takes numbers"),
        ("M + 1", "10:5 no-condition", "this is neither true nor false"),
    ],
)
def test_a_condition_that_means_nothing(condition: str, place: str, message: str) -> None:
    found = told("half >= 0", condition)
    assert (place, message) in [row[:2] for row in found]


def test_a_let_that_nothing_reads() -> None:
    ((place, message, hint),) = told("half >= 0", "M >= 0")
    assert (place, message) == ("7:7 unused", "nothing reads 'half'")
    assert hint == "remove it, or use it in a condition or in the rewrite"


def test_check_lines_that_never_match(tmp_path: Path, told: Callable[..., tuple[int, str]]) -> None:
    file = tmp_path / "my-mm.yaml"
    file.write_text(RULE)
    assert told("check", file)[0] == 0
    file.write_text(
        RULE.replace("CHECK: linalg.matmul", "CHECK: func\n      CHECK: linalg.matmull")
    )
    code, said = told("check", file)
    assert code == 2
    assert f"{file}:22:7: error[check-never-matches]: the rewritten program of 'positive'" in said
    assert 'does not fit this line: Couldn\'t match "linalg.matmull"' in said
    # What the rewrite refuses of its own test's program is told at the rewrite's line.
    file.write_text(RULE.replace(SUM, "c[m, n] += a[m, k] * b[k, n] + dim(a, 7)"))
    code, said = told("check", file)
    assert code == 2
    assert f"{file}:12:5: error[no-match]: " in said


def test_dynamic_sizes_that_must_be_equal_to_others() -> None:
    rule = load_rule("my-mm.yaml", RULE, ops=compiler.op_oracle)
    a, b, c = (f"!torch.vtensor<[{s}],f32>" for s in ("?,?", "5,?", "?,?"))
    text = (
        f"func.func @f(%a: {a}, %b: {b}) -> {c} {{\n"
        f"  %c = torch.aten.mm %a, %b : {a}, {b} -> {c}\n  return %c : {c}\n}}\n"
    )
    assert fitting_sizes(rule, text) == [3, 5, 3]
