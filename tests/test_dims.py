"""Dims that types compute (`2*N`): solved, compared, refused, or computed in a rewrite."""

from __future__ import annotations

from typing import Any

import pytest

from mlirules.drivers.quality.check import check_rule
from mlirules.drivers.quality.ruletest import run_tests
from mlirules.generator.lowering.lower import lower
from mlirules.language.builtins import FUNCTIONS
from mlirules.language.loader import load_rule
from mlirules.language.nomatch import NoMatch
from mlirules.language.operands import Refused
from mlirules.language.unify import bind
from mlirules.language.values import DType, Dyn, Tensor

RULE = """\
rule: my-halves
kind: fusion
summary: A product by the halves of its rows.
reason: It shows dims that are computed.
types:
  a: vtensor<2*N x K x T>
  b: vtensor<K x P x T>
  low: vtensor<N x K x T>
  high: vtensor<N x K x T>
  l: vtensor<N x P x T>
  h: vtensor<(4*N) // 4 x P x T>
match: c = torch.aten.mm(a, b)
where: [N >= 4]
rewrite:
  - low = torch.aten.slice.Tensor(a, 0, 0, N, 1)
  - high = torch.aten.slice.Tensor(a, 0, N, 2 * N, 1)
  - l = torch.aten.mm(low, b)
  - h = torch.aten.mm(high, b)
  - c = torch.aten.cat([l, h], 0)
tests:
  - name: eight rows
    input: |
      func.func @f(%a: !torch.vtensor<[8,3],f32>, %b: !torch.vtensor<[3,5],f32>) -> !torch.vtensor<[8,5],f32> {
        %0 = torch.aten.mm %a, %b : !torch.vtensor<[8,3],f32>, !torch.vtensor<[3,5],f32> -> !torch.vtensor<[8,5],f32>
        return %0 : !torch.vtensor<[8,5],f32>
      }
    check: |
      CHECK-COUNT-2: torch.aten.mm %{{.*}} -> !torch.vtensor<[4,5],f32>
    run: {}
  - name: seven rows
    unchanged: |
      func.func @f(%a: !torch.vtensor<[7,3],f32>, %b: !torch.vtensor<[3,5],f32>) -> !torch.vtensor<[7,5],f32> {
        %0 = torch.aten.mm %a, %b : !torch.vtensor<[7,3],f32>, !torch.vtensor<[3,5],f32> -> !torch.vtensor<[7,5],f32>
        return %0 : !torch.vtensor<[7,5],f32>
      }
    because: vtensor<2*N x K x T>
"""  # noqa: E501 - the programs' lines


def rule(a: str = "2*N x K x T", b: str = "K x P x T") -> Any:
    text = RULE.replace("vtensor<2*N x K x T>", f"vtensor<{a}>")
    return load_rule("my-halves.yaml", text.replace("b: vtensor<K x P x T>", f"b: vtensor<{b}>"))


def tensor(name: str, *dims: Any) -> Tensor:
    return Tensor(name, dims, DType("f32"))


def test_a_rule_with_computed_dims() -> None:
    assert check_rule("my-halves.yaml", RULE) == []
    made = load_rule("my-halves.yaml", RULE)
    results = run_tests([(made, test) for test in made.doc.tests])
    assert [(r.test.name, r.problems) for r in results] == [("eight rows", []), ("seven rows", [])]


@pytest.mark.parametrize(
    ("a", "b", "sizes", "found"),
    [
        ("2*N x K x T", "K x P x T", (8, 3, 5), {"N": 4}),
        ("3 + 2*N x K x T", "K x P x T", (9, 3, 5), {"N": 3}),
        ("10 - N x K x T", "K x P x T", (4, 3, 5), {"N": 6}),
        ("(N + 1)*2 x K x T", "K x P x T", (8, 3, 5), {"N": 3}),
        # A size that a later type, or a later computed dim, gives.
        ("N*P x K x T", "K x P x T", (10, 3, 5), {"N": 2, "P": 5}),
        ("N + P x K x T", "K x 2*P x T", (10, 3, 4), {"N": 8, "P": 2}),
        # A part that is not linear in what is known.
        ("N + P // 2 x K x T", "K x P x T", (4, 3, 5), {"N": 2, "P": 5}),
    ],
)
def test_what_a_program_says_of_a_symbol(
    a: str, b: str, sizes: tuple[int, int, int], found: dict[str, int]
) -> None:
    m, k, n = sizes
    env = bind(rule(a, b), {"a": tensor("a", m, k), "b": tensor("b", k, n)})
    assert {name: env[name] for name in found} == found


@pytest.mark.parametrize(
    ("a", "rows", "message"),
    [
        ("2*N x K x T", 7, "a dim of a is 7: no N gives 2*N"),
        ("N + 9 x K x T", 7, "a dim of a is 7: no N gives N + 9"),
        ("2*N x N x T", 7, "a dim of a is 7, not 2*N = 6"),
        ("N - 9 x N x T", 7, "the dim would be -6"),
        ("P // (N - 3) x N x T", 7, "division by zero"),
        ("2*N x K x T", Dyn("dim", ("a", 0)), "known only at run time, so N cannot be told"),
    ],
)
def test_sizes_that_do_not_fit(a: str, rows: Any, message: str) -> None:
    with pytest.raises(NoMatch) as no:
        bind(rule(a), {"a": tensor("a", rows, 3), "b": tensor("b", 3, 5)})
    assert message in no.value.message
    assert no.value.line is not None
    assert no.value.line.span.line == 6


@pytest.mark.parametrize(
    ("a", "code", "message"),
    [
        ("N*Q x K x T", "unsolvable", "a program does not say what N and Q is"),
        ("N // 2 x K x T", "unsolvable", "a program does not say what N is"),
        ("N*N x K x T", "unsolvable", "a program does not say what N is"),
        ("2*b x N x T", "wrong-type", "'b' is a vtensor, not a number"),
        ("2*T x N x T", "wrong-type", "'T' is an element type, not a number"),
        ("half(P) x N x T", "unknown-function", "unknown function 'half'"),
        ("N / 2 x K x T", "syntax", "a dim is a whole number"),
    ],
)
def test_dims_that_cannot_be_told(a: str, code: str, message: str) -> None:
    faults = check_rule("my-halves.yaml", RULE.replace("2*N x K x T>\n  b", f"{a}>\n  b"))
    found = [f for f in faults if f.code == code]
    assert found
    assert message in found[0].message
    assert found[0].span.line == 6


def test_what_the_rewrite_makes_reads_what_is_bound() -> None:
    faults = check_rule("my-halves.yaml", RULE.replace("(4*N) // 4", "2*Q"))
    assert [(f.code, f.span.line) for f in faults] == [("unbound-name", 11)]


def test_a_size_of_the_result_is_computed_at_run_time() -> None:
    head, tail = RULE.index("types:"), RULE.index("tests:")
    twice = """\
types: {x: vtensor<N x T>, y: vtensor<2*N x T>}
match: "y = torch.aten.cat([x, x], 0)"
rewrite: ["y[i] = x[i % N]"]
"""
    made = load_rule("my-halves.yaml", RULE[:head] + twice + RULE[tail:].replace("2*N x K", "N"))
    x = tensor("x", Dyn("dim", ("x", 0)))
    y = tensor("y", Dyn("result", ("y", 0)))
    lowered = lower(made, bind(made, {"x": x, "y": y}), [("y", y, "!torch.vtensor<[?],f32>")])
    assert "arith.muli" in lowered.text


N, P = Dyn("dim", ("x", 0)), Dyn("dim", ("y", 1))


@pytest.mark.parametrize(
    ("shapes", "common"),
    [
        ([(1, 3, 5, 5), (4, 1, 5, 5)], [4, 3, 5, 5]),
        ([(5,), (4, 1)], [4, 5]),
        ([(), (2, 1), (1, 3)], [2, 3]),
        ([(1,), (1, 1)], [1, 1]),
        ([(0, 1), (1, 2)], [0, 2]),
        ([(N, 3), (1, 3)], [N, 3]),
        ([(N, 3), (N, 1)], [N, 3]),
        ([(N, 3), (4, 3)], [4, 3]),
        ([(2, 3), (2, 4)], None),
        ([(N,), (P,)], None),
    ],
)
def test_the_shape_that_tensors_are_broadcast_to(shapes: Any, common: Any) -> None:
    tensors = [tensor(f"t{i}", *dims) for i, dims in enumerate(shapes)]
    function = FUNCTIONS["broadcast_shape"].impl
    assert function is not None
    if common is not None:
        assert function(*tensors) == common
        return
    with pytest.raises(Refused, match="have no shape in common"):
        function(*tensors)
