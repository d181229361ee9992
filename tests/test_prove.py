"""Proofs of rules: what is proven, and that no planted mistake is."""

from __future__ import annotations

import functools
import json

import pytest

pytest.importorskip("z3")

from mlirules.drivers.prove.meanings import Meanings
from mlirules.drivers.prove.mutants import mutants
from mlirules.drivers.prove.prove import library, meanings, prove
from mlirules.language.rule import Rule

FUSIONS = "torch/fusions/matmul"


@functools.cache
def known() -> Meanings:
    return meanings()


def rule(name: str) -> Rule:
    (found,) = library([name])
    return found


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        (f"{FUSIONS}/torch-mm-t-fuse", True),
        (f"{FUSIONS}/torch-addmm-t-fuse", False),
        ("torch/decompose/torch-fliplr-decompose", True),
        ("torch/decompose/torch-norm-scalar-decompose", True),
        ("linalg/matmul/linalg-transpose-a-into-matmul", True),
    ],
)
def test_equal_for_all_sizes(name: str, exact: bool) -> None:
    verdict = prove(rule(name), known(), timeout=60)
    assert (verdict.verdict, verdict.exact) == ("proven", exact), verdict.reason
    assert verdict.cases > 0


def test_a_condition_that_is_needed() -> None:
    right = rule("torch/fusions/views/torch-transpose-transpose-fuse")
    for at in range(len(right.where)):
        # Without it the second transpose need not undo the first.
        assert prove(right, known(), timeout=60, dropped=at).verdict == "undecided"


@pytest.mark.parametrize(
    "name", [f"{FUSIONS}/torch-mm-t-fuse", "torch/decompose/torch-fliplr-decompose"]
)
def test_no_planted_mistake_is_proven(name: str) -> None:
    right = rule(name)
    planted = list(mutants(right))
    assert planted
    for mutant in planted:
        verdict = prove(mutant.rule, known(), timeout=20)
        assert verdict.verdict == "undecided", f"{mutant.mistake}: {verdict.reason}"


@pytest.mark.slow
def test_no_mistake_planted_in_shipped_rules_is_proven() -> None:
    planted = 0
    for right in library([FUSIONS, "torch/decompose", "linalg/matmul", "torch/fusions/casts"]):
        for mutant in mutants(right):
            verdict = prove(mutant.rule, known(), timeout=2)
            assert verdict.verdict == "undecided", f"{right.name}: {mutant.mistake}"
            planted += 1
    assert planted >= 100


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    from mlirules.cli import main

    with pytest.raises(SystemExit) as left:
        main(["prove", f"{FUSIONS}/torch-t-mm-fuse", "linalg/linalg-transposed-matmul", "--json"])
    assert left.value.code == 1
    proven, undecided = json.loads(capsys.readouterr().out)
    assert (proven["rule"], proven["verdict"]) == ("torch-t-mm-fuse", "proven")
    assert undecided["verdict"] == "undecided"
    assert "raw MLIR" in undecided["reason"]
    assert "linalg-transposed-matmul.yaml:" in undecided["line"]
