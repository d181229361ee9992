"""What a verdict says beside its word: conditions, integers, special values, constants."""

from __future__ import annotations

import functools
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("z3")

from mlirules.drivers.prove.meanings import Meanings
from mlirules.drivers.prove.prove import Verdict, library, meanings, prove, refuted, unneeded
from mlirules.language.rule import Rule


@functools.cache
def known() -> Meanings:
    return meanings()


def rule(folder: Path, text: str) -> Rule:
    """A rule of these lines."""
    file = folder / "mine.yaml"
    head = "rule: mine\nkind: fusion\nsummary: A rule.\nreason: It is tried.\n"
    lines = textwrap.dedent(text)
    if "tests:" not in lines:
        lines += "tests:\n"
    # Only files with a positive and a negative test are read; these are not run.
    lines += "  - {name: another, unchanged: 'func.func @f() { return }'}\n"
    lines += "  - {name: one, input: 'func.func @f() { return }', check: 'CHECK: func'}\n"
    file.write_text(head + lines, encoding="utf-8")
    (found,) = library([str(file)])
    return found


def verdict(folder: Path, text: str) -> Verdict:
    return prove(rule(folder, text), known(), timeout=20)


def test_a_condition_that_is_not_needed_and_the_weakest_that_would_do(tmp_path: Path) -> None:
    found = rule(
        tmp_path,
        """
        types: {x: vtensor<N x T>, n: constant int}
        match: y = torch.aten.slice.Tensor(x, 0, 0, n, 1)
        where:
          - N % 4 == 0
          - n == N
        rewrite: y = x
        """,
    )
    assert prove(found, known(), timeout=20).verdict == "proven"
    assert unneeded(found, known(), timeout=20) == (
        "`N % 4 == 0` is not needed for equality",
        "instead of `n == N`, `n >= N` would do for equality",
    )


SIXTEEN_TWICE = """
    types: {{x: vtensor<N x {t}>, y: vtensor<N x {t}>}}
    match:
      - a = torch.aten.mul.Scalar(x, 16)
      - y = torch.aten.mul.Scalar(a, 16)
    rewrite: y = torch.aten.mul.Scalar(x, 0)
"""


@pytest.mark.parametrize(
    ("element", "word"), [("si8", "proven"), ("ui8", "proven"), ("si16", "undecided")]
)
def test_integers_wrap_at_their_width(tmp_path: Path, element: str, word: str) -> None:
    found = verdict(tmp_path, SIXTEEN_TWICE.format(t=element))
    assert found.verdict == word, found.reason
    # Nothing of integers rounds: equal is equal bit for bit.
    assert found.exact == (word == "proven")


@pytest.mark.parametrize(("wide", "word"), [("si8", "proven"), ("si16", "undecided")])
def test_a_sign_that_is_lost_is_seen(tmp_path: Path, wide: str, word: str) -> None:
    code = {"si8": 1, "si16": 2}[wide]
    found = verdict(
        tmp_path,
        f"""
        types: {{x: vtensor<N x si8>, u: vtensor<N x ui8>, y: vtensor<N x {wide}>}}
        match:
          - u = torch.aten.to.dtype(x, 0, false, false, none)
          - y = torch.aten.to.dtype(u, {code}, false, false, none)
        rewrite: y = torch.aten.to.dtype(x, {code}, false, false, none)
        """,
    )
    assert found.verdict == word, found.reason


VALUE = "!torch.vtensor<[4],f32>"
DIFFERENCE = f"""
    types: {{x: vtensor<N x f32>, y: vtensor<N x f32>}}
    match: y = torch.aten.sub.Tensor(x, x, 1)
    rewrite: y = torch.aten.zeros_like(x, none, none, none, none, none)
    tests:
      - name: zero
        input: |
          func.func @f(%x: {VALUE}) -> {VALUE} {{
            %i1 = torch.constant.int 1
            %y = torch.aten.sub.Tensor %x, %x, %i1 : {VALUE}, {VALUE}, !torch.int -> {VALUE}
            return %y : {VALUE}
          }}
        run: {{devices: [cpu]}}
"""


def test_equal_over_the_reals_says_nothing_of_special_values(tmp_path: Path) -> None:
    found = verdict(tmp_path, DIFFERENCE)
    assert (found.verdict, found.exact) == ("proven", False), found.reason
    assert found.data()["arithmetic"] == "over the reals"
    assert found.data()["special_values"] == "not decided"


@pytest.mark.slow
def test_special_values_that_differ_are_told(tmp_path: Path) -> None:
    right = rule(tmp_path, DIFFERENCE)
    found = refuted(right, prove(right, known(), timeout=20))
    assert found.verdict == "proven"
    assert found.special.startswith("differ on"), found.special


ROOT_OF_TWO = """
    types: {{x: vtensor<N x f64>, c: constant number}}
    match: y = torch.aten.mul.Scalar(x, c)
    where:
      - {condition}
    rewrite: y = torch.aten.mul.Scalar(x, 1.4142135623730951)
"""


def test_a_constant_within_a_tolerance_is_the_number_it_stands_for(tmp_path: Path) -> None:
    found = verdict(tmp_path, ROOT_OF_TWO.format(condition="c > 0 and abs(c * c - 2) < 1.0e-6"))
    assert found.verdict == "bounded"
    assert "c = 1.41421" in found.reason
    # The other root is accepted, too: it is no number for which both sides are equal.
    found = verdict(tmp_path, ROOT_OF_TWO.format(condition="abs(c * c - 2) < 1.0e-6"))
    assert found.verdict == "undecided"


SAFE = """
    types: {{x: vtensor<N x f32>, m: vtensor<N x i1>, z: vtensor<N x f32>, y: vtensor<N x f32>}}
    match:
      - z = torch.aten.where.ScalarOther(m, x, {fill})
      - y = torch.aten._safe_softmax(z, 0, none)
    rewrite: y = torch.aten.softmax.int(z, 0, none)
"""


@pytest.mark.parametrize(("fill", "word"), [("1.0", "proven"), ("c", "undecided")])
def test_a_row_that_is_masked_throughout_is_a_case_of_its_own(
    tmp_path: Path, fill: str, word: str
) -> None:
    text = textwrap.dedent(SAFE.format(fill=fill))
    if fill == "c":
        # Minus infinity: where nothing is seen, one is 0 and the other one NaN.
        text = text.replace("y: vtensor<N x f32>", "y: vtensor<N x f32>, c: constant float")
        text = text.replace("rewrite:", "where: c == lowest(f32)\nrewrite:")
    found = verdict(tmp_path, text)
    assert found.verdict == word, found.reason


def test_a_letter_in_two_rules_says_nothing_about_its_two_values() -> None:
    from mlirules.drivers.prove.binding import given
    from mlirules.drivers.prove.world import Limits, World
    from mlirules.language.notation.parser import parse_type

    world = World(Limits(deadline=float("inf")))
    decl = parse_type("vtensor<E x T>")
    own = given(world, "x", decl, {})
    other = given(world, "q", decl, {}, scope="q:")
    assert not world.same(own.shape[0], other.shape[0])
    assert own.dtype.symbol != other.dtype.symbol


def test_commuting_operands_are_no_mistake(tmp_path: Path) -> None:
    from mlirules.drivers.prove.mutants import mutants

    found = rule(
        tmp_path,
        """
        types: {x: vtensor<N x f32>, z: vtensor<N x f32>, y: vtensor<N x f32>}
        match: y = torch.aten.sub.Tensor(x, z, 1)
        rewrite:
          - n = torch.aten.mul.Tensor(x, z)
          - y = torch.aten.sub.Tensor(n, z, 1)
        """,
    )
    assert [m.mistake for m in mutants(found)] == [
        "swapped operands in `y = torch.aten.sub.Tensor(n, z, 1)`",
        "off by one in `y = torch.aten.sub.Tensor(n, z, 1)`",
    ]
