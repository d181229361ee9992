"""Planted mistakes, by kind: refuted by a program that runs, or undecided; none is equal."""

from __future__ import annotations

import collections
import functools
import random
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("z3")

from mlirules.drivers.prove import verdicts as kept
from mlirules.drivers.prove.meanings import Meanings
from mlirules.drivers.prove.mutants import Mutant, mutants
from mlirules.drivers.prove.prove import library, meanings, prove, refuted
from mlirules.language.rule import Rule

#: How many mistakes of one kind are planted, and how many of those in one rule.
OF_A_KIND, OF_A_RULE = 10, 2

KINDS = (
    "dropped condition",
    "maximum for sum",
    "missing cast",
    "missing sign",
    "off by one",
    "off-by-one index",
    "product for sum",
    "swapped branches",
    "swapped indices",
    "swapped items",
    "swapped operands",
    "wrong constant",
    "wrong flag",
    "wrong init",
    "wrong operator",
)

#: Kinds of which it may be that no program shows a mistake: types refuse those that are planted, or
#: the rules' programs cannot be made with them.
UNSEEN = {
    "dropped condition",
    "missing cast",
    "missing sign",
    "swapped indices",
    "swapped operands",
}

#: What changes nothing over the reals: a softmax is the same whatever is subtracted from a row.
ANY_NUMBER = {
    "minimum for maximum in `m[drop(I, d)] max= cast(x[I...], wide(T))`",
    "wrong init in `m[drop(I, d)] max= cast(x[I...], wide(T))`",
    "wrong operator in `e[I...] = exp(cast(x[I...], wide(T)) - m[drop(I, d)])`",
}


@functools.cache
def known() -> Meanings:
    return meanings()


def kind(mutant: Mutant) -> str:
    """The first words of what is said of a mistake."""
    return mutant.mistake.split(" in `")[0].split(" `")[0]


@functools.cache
def planted() -> list[Mutant]:
    """Mistakes of every kind, in rules that ship and are proven: those of others show nothing."""
    proven = {n for n, v in kept.shipped().items() if v["verdict"] == "proven"}
    rules = [r for r in library(kept.SETS) if r.name in proven]
    random.Random(17).shuffle(rules)
    out: list[Mutant] = []
    count: collections.Counter[str] = collections.Counter()
    for right in rules:
        here: collections.Counter[str] = collections.Counter()
        for mutant in mutants(right):
            of = kind(mutant)
            if right.name == "linalg-softmax-unfuse" and mutant.mistake in ANY_NUMBER:
                continue
            if count[of] < OF_A_KIND and here[of] < OF_A_RULE:
                count[of] += 1
                here[of] += 1
                out.append(mutant)
    return out


def test_a_hundred_mistakes_are_planted() -> None:
    assert {kind(m) for m in planted()} >= set(KINDS)
    assert len(planted()) >= 100


@pytest.mark.slow
@pytest.mark.parametrize("of", KINDS)
def test_no_mistake_planted_in_shipped_rules_is_proven(of: str) -> None:
    counts: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []
    for mutant in planted():
        if kind(mutant) != of:
            continue
        verdict = prove(mutant.rule, known(), timeout=4)
        equal = verdict.verdict in ("proven", "bounded")
        tried = refuted(mutant.rule, verdict)
        word: str = tried.verdict
        if equal and word != "refuted" and of == "dropped condition":
            # Not even the program that the condition refuses differs: equality is without it.
            word = "no mistake"
        elif equal and word != "refuted" and of == "missing cast" and not tried.exact:
            word = "no mistake"  # between floats alone: equal over the reals, and said to be so
        elif equal:
            wrong.append(f"{mutant.rule.name}: {mutant.mistake}: {word}, {verdict.reason}")
        counts[word] += 1
        print(f"{of:20} {word:10} {mutant.rule.name}: {mutant.mistake}", flush=True)
    print(of, dict(counts))
    assert not wrong, "\n".join(wrong)
    assert of in UNSEEN or counts["refuted"], counts


#: What is computed of si8, through a wider type that keeps the sign.
SIGNED = {
    "wide": ("torch.aten.to.dtype(x, 3, false, false, none)", "si32", "cast({x}, si32)"),
    "float": ("torch.aten.to.dtype(x, 6, false, false, none)", "f32", "cast({x}, f32)"),
    "max": ("torch.aten.maximum(x, z)", "si8", "cast(max({x}, {z}), si8)"),
    "min": ("torch.aten.minimum(x, z)", "si8", "cast(min({x}, {z}), si8)"),
    "lt": ("torch.aten.lt.Tensor(x, z)", "i1", "{x} < {z}"),
    "le": ("torch.aten.le.Tensor(x, z)", "i1", "{x} <= {z}"),
    "gt": ("torch.aten.gt.Tensor(x, z)", "i1", "{x} > {z}"),
    "ge": ("torch.aten.ge.Tensor(x, z)", "i1", "{x} >= {z}"),
    "sum": ("torch.aten.sum.dim_IntList(x, [0], false, none)", "si64", "+= cast({x}, si64)"),
}


def signed(folder: Path, name: str, between: str) -> Rule:
    """A rule over si8 that computes in another type."""
    op, result, value = SIGNED[name]
    dims, equation = ("N x ", "y[i] = ") if name != "sum" else ("", "y[] ")
    text = value.format(x=f"cast(x[i], {between})", z=f"cast(z[i], {between})")
    file = folder / f"{name}-{between}.yaml"
    second = ", z: vtensor<N x si8>" if "(x, z)" in op else ""
    lines = f"""
    rule: {name}-{between}
    kind: conversion
    summary: A rule.
    reason: It is tried.
    types: {{x: vtensor<N x si8>{second}, y: "vtensor<{dims}{result}>"}}
    match: y = {op}
    rewrite:
      - {equation}{text}
    tests:
      - {{name: another, unchanged: 'func.func @f() {{ return }}'}}
      - {{name: one, input: 'func.func @f() {{ return }}', check: 'CHECK: func'}}
    """
    file.write_text(textwrap.dedent(lines), encoding="utf-8")
    (found,) = library([str(file)])
    return found


@pytest.mark.parametrize("name", ["wide", "max", "lt"])
def test_a_sign_that_is_lost_is_not_equal(tmp_path: Path, name: str) -> None:
    right = prove(signed(tmp_path, name, "si16"), known(), timeout=20)
    assert right.verdict == "proven", right.reason
    assert prove(signed(tmp_path, name, "ui16"), known(), timeout=20).verdict == "undecided"


@pytest.mark.slow
@pytest.mark.parametrize("name", SIGNED)
def test_a_sign_that_is_lost_is_refuted(tmp_path: Path, name: str) -> None:
    right = prove(signed(tmp_path, name, "si16"), known(), timeout=20)
    assert right.verdict == "proven", right.reason
    wrong = signed(tmp_path, name, "ui16")
    found = refuted(wrong, prove(wrong, known(), timeout=20))
    assert found.verdict == "refuted", found.reason
