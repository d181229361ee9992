"""Families: several rules in one file, each with its name, its lines and their places."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mlirules.drivers.iree import compiler
from mlirules.language import library
from mlirules.language.family import MAX_MEMBERS
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.loader import load_rules, rules_of
from mlirules.language.source import load_yaml
from mlirules.support import cache

RULE = """\
rule: roots-*-fuse
kind: fusion
summary: A reciprocal of $article $root.
reason: For the tests of families.
with:
  root: [sqrt, abs]
  article: {sqrt: a, abs: an}
types: {x: "vtensor<S... x T>"}
match:
  - a = torch.aten.$root(x)
  - any:
      (whole): y = torch.aten.reciprocal(a)
      negated:
        - b = torch.aten.neg(a)
        - y = torch.aten.reciprocal(b)
where:
  - T in [f32]
  - any: {negated: one_use(b)}
rewrite:
  - any:
      (whole): "y[...] = 1.0 / $root(x[...])"
      negated: "y[...] = -1.0 / $root(x[...])"
tests:
  - name: it applies
    input:
      - "func.func @f(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {"
      - "  %a = torch.aten.$root %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>"
      - any:
          (whole): "  %y = torch.aten.reciprocal %a : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>"
          negated: |
            %b = torch.aten.neg %a : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
            %y = torch.aten.reciprocal %b : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
      - "  return %y : !torch.vtensor<[4],f32>"
      - "}"
    check: "CHECK: linalg.generic"
  - name: nothing to do
    unchanged: "module {}"
  - name: a test for some
    for: [abs, negated]
    unchanged: "module { }"
"""  # noqa: E501


def read(text: str = RULE) -> list[str]:
    return [rule.name for rule in rules_of(load_yaml("family.yaml", text))]


def faults(text: str) -> list[Fault]:
    with pytest.raises(MlirulesError) as told:
        rules_of(load_yaml("family.yaml", text))
    return told.value.faults


def test_members_have_their_names_and_lines() -> None:
    rules = rules_of(load_yaml("family.yaml", RULE), ops=compiler.op_oracle)
    assert [rule.name for rule in rules] == [
        "roots-sqrt-fuse",
        "roots-sqrt-negated-fuse",
        "roots-abs-fuse",
        "roots-abs-negated-fuse",
    ]
    plain, _, _, last = rules
    assert plain.doc.summary == "A reciprocal of a sqrt."
    assert [str(p.line) for p in plain.match] == [
        "a = torch.aten.sqrt(x)",
        "y = torch.aten.reciprocal(a)",
    ]
    assert [str(p.line) for p in last.match][1:] == [
        "b = torch.aten.neg(a)",
        "y = torch.aten.reciprocal(b)",
    ]
    assert [str(line) for line, _ in last.where] == ["T in [f32]", "one_use(b)"]
    assert str(last.rewrite[0][0]) == "y[...] = -1.0 / abs(x[...])"
    assert [t.name for t in plain.tests] == ["it applies", "nothing to do"]
    assert len(last.tests) == 3
    program = last.tests[0].input
    assert program is not None
    assert [line.split()[2] for line in program.split("\n")[1:4]] == [
        "torch.aten.abs",
        "torch.aten.neg",
        "torch.aten.reciprocal",
    ]


def test_lines_keep_their_places() -> None:
    rows = RULE.split("\n")
    *_, last = rules_of(load_yaml("family.yaml", RULE))
    span = last.match[1].line.span
    assert rows[span.line - 1][span.column - 1 :].startswith("b = torch.aten.neg(a)")
    # What a word stands for is where it is spelt, what stands around it where that is.
    text = last.match[0].line.text
    spelt, around = text.span(text.value.index("abs")), text.span(text.value.index("(x)"))
    assert rows[spelt.line - 1][spelt.column - 1 :].startswith("abs]")
    assert rows[around.line - 1][around.column - 1 :] == "(x)"


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("torch.aten.neg(a)", "torch.aten.neg(a", 14, "in sqrt negated, abs negated"),
        (
            "one_use(b)}",
            "one_use(c)}",
            18,
            "'c' stands nowhere in the match (in sqrt negated, abs negated)",
        ),
        ("[sqrt, abs]", "[sqrt, a,]", 7, "'abs' is none of the alternatives of line 6: sqrt, a"),
        ("any: {negated: one_use", "any: {negatted: one_use", 18, "one alternative is none"),
        (
            "  article: {sqrt: a, abs: an}",
            "  article: {sqrt: a}",
            3,
            "$article has no spelling for",
        ),
        ("A reciprocal of $article $root", "A reciprocal", 7, "no line says $article"),
        ("for: [abs, negated]", "for: [abs, minus]", 39, "'minus' is no alternative"),
        (
            "rule: roots-*-fuse",
            "rule: roots-*-fuse\nbenefit: {any: {abs: x, sqrt: 1}}",
            2,
            "benefit",
        ),
    ],
)
def test_faults_stand_where_they_are(old: str, new: str, line: int, message: str) -> None:
    assert old in RULE
    found = faults(RULE.replace(old, new))
    assert any(message in f.message and f.span.line == line for f in found), [
        f.render() for f in found
    ]


def test_a_word_without_a_spelling_for_a_member() -> None:
    text = RULE.replace("  article: {sqrt: a, abs: an}", "  article: {sqrt: a, '(whole)': an}")
    assert any("'(whole)' is none of the alternatives" in f.message for f in faults(text))
    text = RULE.replace("(whole): y = torch", "(whole), rest: y = torch").replace(
        "summary: A", "summary: A $kind"
    )
    text = text.replace("with:\n", "with:\n  kind: {(whole): x, negated: y}\n")
    assert any("'rest' is none of" in f.message for f in faults(text))


def test_too_many_members() -> None:
    many = "".join(f"  w{n}: [a{n}, b{n}]\n" for n in range(7))
    assert MAX_MEMBERS < 2**7
    assert any("combine to" in f.message for f in faults(RULE.replace("with:\n", "with:\n" + many)))


def test_a_family_of_none() -> None:
    text = re.sub(r"(?s)with:.*?types", "types", RULE).replace("$root", "abs")
    plain = text.replace("$article ", "")
    one = re.sub(r"(?s)  - any:\n      \(whole\): (y = .*?)\n.*?where", r"  - \1\nwhere", plain)
    assert "any: {negated" in one
    assert any(f.message == "one alternative is none" for f in faults(one))


def test_every_member_needs_its_tests() -> None:
    text = RULE.replace("  - name: nothing to do\n    unchanged", "  - name: none\n    unchanged")
    text = text.replace(
        'none\n    unchanged: "module {}"', 'none\n    for: [abs]\n    unchanged: "module {}"'
    )
    (fault,) = faults(text)
    assert fault.code == "no-negative-test"
    assert fault.message.endswith("(in sqrt (whole), sqrt negated)")


def test_a_symbol_may_be_called_any() -> None:
    text = RULE.replace(
        'types: {x: "vtensor<S... x T>"}', 'types: {x: "vtensor<S... x T>", any: int}'
    )
    assert len(faults(text)) >= 1  # it is in no line, which is told
    assert all("alternative" not in f.message for f in faults(text))


def test_kept_members_are_those_that_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "directory", lambda: tmp_path / "cache")
    file = tmp_path / "roots-fuse.yaml"
    file.write_text(RULE)
    folder = load_rules([tmp_path])
    library.open_rules([tmp_path])
    monkeypatch.setattr(library, "rules_of", lambda *_a, **_k: pytest.fail("read again"))
    kept = library.open_rules([tmp_path]).rules()
    assert [r.name for r in kept] == [r.name for r in folder]
    assert [r.origin for r in kept] == [r.origin for r in folder]
    assert kept[0].origin == str(tmp_path / "roots-sqrt-fuse")
    for one, other in zip(kept, folder, strict=True):
        assert [p.line.span for p in one.match] == [p.line.span for p in other.match]
        assert one.doc == other.doc
    monkeypatch.undo()
    monkeypatch.setattr(cache, "directory", lambda: tmp_path / "cache")
    (alone,) = library.open_rules([tmp_path / "roots-abs-negated-fuse"]).rules()
    assert alone.name == "roots-abs-negated-fuse"
    (alone,) = load_rules([tmp_path / "roots-sqrt-fuse"])
    assert alone.name == "roots-sqrt-fuse"
