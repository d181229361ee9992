"""`mlirules fmt`: one spelling, comments kept, the same meaning, the second time nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mlirules.language.format import _meaning as meaning
from mlirules.language.format import formatted
from mlirules.language.loader import rules_of
from mlirules.language.reading import load_yaml
from mlirules.language.rulefiles import LIBRARY

AFTER = """\
# a comment at the top
rule: my-mm
kind: fusion
summary: A product.
reason: It shows how rules are written.
types: {a: vtensor<M x K x T>, b: vtensor<K x N x T>, cc: vtensor<M x N x T>, s: vtensor<M x N x T>}
match:
  - cc = torch.aten.mm(a, b)
  - s  = torch.operator(cc) {name = "my.op"}
where:
  # why it must be
  - T in [f32, f64]   # floats
  - M>1
rewrite:
  - cc[m, n]   += a[m, k]*b[k, n]
  - s[m, n]  max= max(cc[m, n], 0.0)  # relu

  - body: |
      %x  =  tensor.empty() : $s
tests:
  - name: positive
    input: module {}
    check: 'CHECK: module'
  - name: negative
    unchanged: module {}
    because: cc = torch.aten.mm(a, b)
"""
SPELT = {
    "A product.": "A product.   ",
    """\
match:
  - cc = torch.aten.mm(a, b)
  - s  = torch.operator(cc) {name = "my.op"}
""": """\
match: ['(cc)  =  torch.aten.mm(a,b)', 's = torch.operator{name="my.op"}( cc )']
""",
    "- T in [f32, f64]": "- 'T  in [f32,f64]'",
    "cc[m, n]   += a[m, k]*b[k, n]": "cc[m,n]+=a[m,k]*b[k,n]",
    "s[m, n]  max= max(cc[m, n], 0.0)": "s[m, n]  max= max(cc[ m, n ], 0.0)",
    "because: cc = torch.aten.mm(a, b)": "because: (cc)  =  torch.aten.mm(a,b)",
}
"""What is written one way after, and how somebody wrote it before."""


def _before() -> str:
    text = AFTER
    for after, before in SPELT.items():
        assert text.count(after) == 1
        text = text.replace(after, before)
    return text


BEFORE = _before()


def test_one_spelling() -> None:
    assert formatted("my-mm.yaml", BEFORE) == AFTER
    assert formatted("my-mm.yaml", AFTER) == AFTER


@pytest.mark.parametrize(
    "text",
    [
        "pipeline: x\nstages: [ a,b ]\n",
        "rule: x\nmatch: [a  = b,  # why\n  c]\n",
        "rule: x\nmatch:\n  - a = = b\n  - |\n    y  = torch.aten.relu(x)\n",
        "rule: x\nrewrite:\n  - y[i] = f(\n      x[i])\n  - z = y\n",
        "rule: x\nmatch:\n  any:\n    one: [a  = b.c()]\nwhere: {any: [M  > 1, N > 1]}\n",
    ],
    ids=["no rule", "comment within", "unreadable", "several rows", "alternatives"],
)
def test_what_is_left_alone(text: str) -> None:
    assert formatted("x.yaml", text) == text


FAMILY = """\
rule: roots-*
with:
  root: [sqrt, rsqrt]
match:
  - 'a  =  torch.aten.$root( x )'
  - any:
      one:
        - 'bb  = torch.aten.neg(a)'   # kept
        - y= torch.aten.neg( bb )
      two: 'y =  torch.aten.abs( a )'
where:
  any:
    one: T  in [f32]
    two: 'T in [ f16 ]'
rewrite:
  - any:
      - y[ i ]  = f( a[i] )
      - body: y  = torch.aten.left( a )
tests:
  - unchanged: module {}
    because: 'y =  torch.aten.abs( a )'
"""


def test_families_are_written_alternative_by_alternative() -> None:
    after = formatted("roots.yaml", FAMILY)
    assert (
        after
        == """\
rule: roots-*
with:
  root: [sqrt, rsqrt]
match:
  - a = torch.aten.$root(x)
  - any:
      one:
        - bb = torch.aten.neg(a)   # kept
        - y  = torch.aten.neg(bb)
      two: y = torch.aten.abs(a)
where:
  any:
    one: T in [f32]
    two: T in [f16]
rewrite:
  - any:
      - y[i] = f(a[i])
      - body: y  = torch.aten.left( a )
tests:
  - unchanged: module {}
    because: y = torch.aten.abs(a)
"""
    )
    assert formatted("roots.yaml", after) == after


def test_the_command(tmp_path: Path, told: Callable[..., tuple[int, str]]) -> None:
    file = tmp_path / "my-mm.yaml"
    file.write_text(BEFORE)
    assert told("fmt", tmp_path, "--check")[0] == 1
    assert file.read_text() == BEFORE
    code, said = told("fmt", tmp_path, "--diff")
    assert code == 0
    assert "+  - cc = torch.aten.mm(a, b)" in said
    assert told("fmt", tmp_path) == (0, f"{file}: written anew\n1 files, 1 changed\n")
    assert file.read_text() == AFTER
    assert told("fmt", tmp_path, "--check")[0] == 0


def test_shipped_rules_mean_the_same() -> None:
    folder = LIBRARY / "torch" / "fusions"
    files = sorted(folder.rglob("*.yaml"))
    assert len(files) > 20
    for file in files[::3]:
        after = formatted(file)
        assert formatted(file, after) == after
        before, changed = rules_of(load_yaml(file)), rules_of(load_yaml(file, after))
        for was, now in zip(before, changed, strict=True):
            for part in ("where", "rewrite"):
                lines = [line for _, line in getattr(was, part)]
                assert meaning([line for _, line in getattr(now, part)]) == meaning(lines)
            equations = [p.equation for p in was.match]
            assert meaning([p.equation for p in now.match]) == meaning(equations)


def test_a_condition_among_the_ops_is_no_assignment() -> None:
    text = AFTER.replace(
        '  - s  = torch.operator(cc) {name = "my.op"}\n', "  - K == 1\n  - N >= 1\n"
    )
    once = formatted("my-mm.yaml", text)
    assert "  - K == 1\n" in once
    assert formatted("my-mm.yaml", once) == once
