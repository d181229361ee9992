"""Proofs of rules: what is proven, and that no planted mistake is."""

from __future__ import annotations

import collections
import functools
import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("z3")

from mlirules.drivers.prove import verdicts as kept
from mlirules.drivers.prove.meanings import Meanings
from mlirules.drivers.prove.mutants import mutants
from mlirules.drivers.prove.prove import library, meanings, prove, refuted
from mlirules.language.notation.parser import parse_expression
from mlirules.language.rule import Rule

RAW = "linalg/layout/linalg-convolution-nchw-to-nhwc"
FUSIONS = "torch/fusions/matmul"
SLICES = "torch/algebra/slices"


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
        ("torch/fusions/attention/torch-tril-of-where-fuse", False),
        ("torch/fusions/views/torch-permute-none-fuse", True),
    ],
)
def test_equal_for_all_sizes(name: str, exact: bool) -> None:
    verdict = prove(rule(name), known(), timeout=60)
    assert (verdict.verdict, verdict.exact) == ("proven", exact), verdict.reason
    assert verdict.cases > 0


@pytest.mark.parametrize(
    "name",
    [
        "torch/algebra/products/torch-product-of-first-two",
        f"{SLICES}/torch-slice-of-elementwise",
        f"{SLICES}/torch-slice-of-slice",
    ],
)
def test_rules_over_slices_and_listed_ops(name: str) -> None:
    right = rule(name)
    assert prove(right, known(), timeout=60).verdict == "proven"
    for at, (line, _) in enumerate(right.where):
        if str(line).startswith("Op in"):
            # Nothing is known of an op of any name.
            assert prove(right, known(), timeout=60, dropped=at).verdict == "undecided"


def test_every_listed_op_must_be_right() -> None:
    right = rule(f"{SLICES}/torch-slice-of-elementwise")
    ((line, _),) = right.where
    listed = parse_expression("Op in [torch.aten.relu, torch.aten.exp, torch.aten.t]")
    wrong = replace(right, let=[], where=[(line, listed)])
    verdict = prove(wrong, known(), timeout=20)
    assert verdict.verdict == "undecided"
    assert verdict.reason.startswith("Op = torch.aten.t: ")


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        (f"{SLICES}/torch-slice-of-addmm", "axis(d, t) == 0"),
        (f"{SLICES}/torch-slice-of-cat", "rank(a) == rank(b)"),
    ],
)
def test_a_slice_along_another_axis(name: str, needed: str) -> None:
    right = rule(name)
    (at,) = [n for n, (line, _) in enumerate(right.where) if str(line) == needed]
    assert prove(right, known(), timeout=60, dropped=at).verdict == "undecided"


def test_a_condition_that_is_needed() -> None:
    right = rule("torch/fusions/views/torch-transpose-transpose-fuse")
    for at in range(len(right.where)):
        # Without it the second transpose need not undo the first.
        assert prove(right, known(), timeout=60, dropped=at).verdict == "undecided"


@pytest.mark.parametrize(
    "name",
    [
        f"{FUSIONS}/torch-mm-t-fuse",
        "torch/decompose/torch-fliplr-decompose",
        f"{SLICES}/torch-slice-of-addmm",
    ],
)
def test_no_planted_mistake_is_proven(name: str) -> None:
    right = rule(name)
    # A condition may be one that equality is without: tests/test_prove_mutants.py tells.
    planted = [m for m in mutants(right) if not m.mistake.startswith("dropped condition")]
    assert planted
    for mutant in planted:
        verdict = prove(mutant.rule, known(), timeout=20)
        assert verdict.verdict == "undecided", f"{mutant.mistake}: {verdict.reason}"


def test_a_part_of_an_image_is_no_whole_one() -> None:
    right = rule("linalg/convolution/linalg-one-by-one-nchw")
    assert prove(right, known(), timeout=60).verdict == "proven"
    (at,) = [n for n, (line, _) in enumerate(right.where) if str(line) == "H == I"]
    assert prove(right, known(), timeout=60, dropped=at).verdict == "undecided"


@pytest.mark.slow
def test_a_mistake_is_refuted_by_a_program_that_differs() -> None:
    right = rule(f"{FUSIONS}/torch-mm-t-fuse")
    (wrong, *_) = mutants(right)
    found = refuted(wrong.rule, prove(wrong.rule, known(), timeout=20))
    assert found.verdict == "refuted", found.reason
    assert found.refutation is not None
    assert "torch.aten.mm" in found.refutation["program"]
    # The rule itself is run just so, and nothing differs.
    kept = refuted(right, prove(right, known(), timeout=20))
    assert kept.verdict == "proven"


def test_conditions_for_cost_are_told() -> None:
    verdict = prove(rule("linalg/matmul/linalg-transpose-a-into-matmul"), known(), timeout=60)
    assert all("is for cost" in line for line in verdict.unneeded)


@pytest.mark.usefixtures("own_cache")
def test_a_verdict_is_kept_until_the_rule_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlirules.commands.prove import verdicts
    from mlirules.drivers.prove import prove as proof

    name = "linalg/matmul/linalg-transpose-a-into-matmul"
    text = Path(rule(name).path).read_text(encoding="utf-8")
    file = tmp_path / "mine.yaml"
    file.write_text(
        text.replace("rule: linalg-transpose-a-into-matmul", "rule: mine"), encoding="utf-8"
    )
    (first,) = verdicts([str(file)], 20)
    assert first["verdict"] == "proven"
    asked: list[str] = []
    real = proof.prove

    def counted(rule: Rule, known: Meanings, *, timeout: float) -> proof.Verdict:
        asked.append(rule.name)
        return real(rule, known, timeout=timeout)

    monkeypatch.setattr(proof, "prove", counted)
    (second,) = verdicts([str(file)], 20)
    assert (second, asked) == (first, [])
    # A comment changes nothing; a condition does.
    file.write_text("# mine\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    list(verdicts([str(file)], 20))
    assert asked == []
    changed = file.read_text(encoding="utf-8").replace("rule: mine", "rule: yours")
    file.write_text(changed, encoding="utf-8")
    list(verdicts([str(file)], 20))
    assert asked == ["yours"]
    (loaded,) = library([str(file)])
    assert kept.badge(loaded, {"yours": {**first, "own": "another"}}) is None
    said = kept.badge(loaded, {"yours": {**first, "own": kept.own_hash(loaded)}})
    assert said is not None
    assert said.startswith("proven equal")


def test_the_verdicts_that_ship() -> None:
    found = kept.shipped()
    counts = collections.Counter(v["verdict"] for v in found.values())
    assert set(counts) <= {"proven", "bounded", "undecided"}
    assert counts["proven"] >= 0.66 * counts.total() > 0
    rules = [r for r in library(kept.SETS) if r.kind != "kernel"]
    # Edits make verdicts stale one by one; a badge is shown of none of those.
    stale = kept.stale(rules)
    assert len(stale) <= len(rules) // 10, f"renew with `{kept.RENEW}`: {', '.join(stale)}"
    assert all(kept.badge(r, found) is None for r in rules if r.name in stale)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    from mlirules.cli import main

    with pytest.raises(SystemExit) as left:
        main(["prove", f"{FUSIONS}/torch-t-mm-fuse", RAW, "--json"])
    assert left.value.code == 1
    proven, undecided = json.loads(capsys.readouterr().out)
    assert (proven["rule"], proven["verdict"]) == ("torch-t-mm-fuse", "proven")
    assert undecided["verdict"] == "undecided"
    assert "raw MLIR" in undecided["reason"]
    assert "linalg-convolution-nchw-to-nhwc.yaml:" in undecided["line"]
