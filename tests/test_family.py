"""Families: several rules in one file, each with its name, its lines and their places."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mlirules.drivers.iree import compiler
from mlirules.drivers.quality import checklines, completion, editor, symbols
from mlirules.language import library, loader
from mlirules.language.family import MAX_MEMBERS
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.loader import load_rule, load_rules, rules_of
from mlirules.language.reading import load_yaml
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
    monkeypatch.setattr(loader, "rules_of", lambda *_a, **_k: pytest.fail("read again"))
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


UPDATED = """\
rule: signs-*-fuse
kind: fusion
summary: A sign in front of $op goes.
reason: For the tests of families.
with:
  op: {abs: torch.aten.abs, relu: torch.aten.relu}
types: {x: "vtensor<S... x T>"}
match:
  - a = torch.aten.neg(x)
  - y = $op(a)
where:
  - T in [f32]
rewrite:
  - y = a
tests:
  - name: it applies
    input: |
      func.func @f(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
        %a = torch.aten.neg %x : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
        %y = $op %a : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
        %z = torch.aten.exp %y : !torch.vtensor<[4],f32> -> !torch.vtensor<[4],f32>
        return %z : !torch.vtensor<[4],f32>
      }
  - name: another type
    unchanged: |
      func.func @f(%x: !torch.vtensor<[4],f16>) -> !torch.vtensor<[4],f16> {
        %a = torch.aten.neg %x : !torch.vtensor<[4],f16> -> !torch.vtensor<[4],f16>
        %y = $op %a : !torch.vtensor<[4],f16> -> !torch.vtensor<[4],f16>
        return %y : !torch.vtensor<[4],f16>
      }
"""


def test_update_writes_what_holds_for_every_member(tmp_path: Path) -> None:
    file = tmp_path / "signs-fuse.yaml"
    file.write_text(
        UPDATED.replace("- y = a", "- b = torch.aten.log(a)\n  - y = torch.aten.sin(b)")
    )
    assert len(checklines.update(file)) == 2
    tests = load_yaml(file).data["tests"]
    assert "CHECK: %[[LOG:.+]] = torch.aten.log" in tests[0]["check"]
    assert tests[1]["because"] == "T in [f32]"
    assert checklines.update(file) == []


def test_update_says_where_members_differ(tmp_path: Path) -> None:
    file = tmp_path / "signs-fuse.yaml"
    ways = "- any: {abs: y = torch.aten.sin(x), relu: y = torch.aten.log(x)}"
    file.write_text(UPDATED.replace("- y = a", ways))
    before = file.read_text()
    with pytest.raises(MlirulesError) as told:
        checklines.update(file)
    (fault,) = told.value.faults
    assert (fault.span.line, fault.message[:42]) == (
        16,
        "no CHECK lines hold for all 2 rules that h",
    )
    assert "signs-abs-fuse: " in fault.message
    parts = "check: ['CHECK: return', {any: {abs: 'CHECK: torch.aten.x', relu: ''}}]\n"
    file.write_text(before.replace("  - name: another", f"    {parts}  - name: another"))
    with pytest.raises(MlirulesError, match="these CHECK lines are written in parts"):
        checklines.update(file)


def test_an_editor_knows_families() -> None:
    text = UPDATED.replace("check: ''", "check: 'CHECK: torch'")
    path = "signs-fuse.yaml"
    assert editor.explanation(path, RULE, "root") == "**$root**: `sqrt`: `sqrt`, `abs`: `abs`"
    assert editor.definition(path, RULE, "root") == editor.Part(5, 2, 6)
    # A symbol of the last members alone.
    place = editor.definition(path, RULE, "b")
    assert place is not None
    assert RULE.split("\n")[place.line][place.start : place.end] == "b = torch.aten.neg(a)"
    sections = {s.name: s.below for s in symbols.outline(path, RULE)}
    assert [s.name for s in sections["with"]] == ["root", "article"]
    assert [s.name for s in sections["match"][1].below] == ["(whole)", "negated"]
    edits = symbols.rename(path, text, "op", "fn")
    assert [(e.part.line, e.part.start) for e in edits][:4] == [(2, 29), (5, 2), (9, 9), (19, 14)]
    rows = text.split("\n")
    for edit in reversed(edits):
        row = rows[edit.part.line]
        rows[edit.part.line] = row[: edit.part.start] + edit.text + row[edit.part.end :]
    assert read("\n".join(rows).replace("    input", "    check: 'CHECK: x'\n    input"))
    with pytest.raises(MlirulesError, match="line 1: 'signs-\\*-fuse' names several rules"):
        symbols.rename(path, text, "signs-*-fuse", "other")
    row = "  - c = $o"
    asked = text.replace("rewrite:", f"{row}\nrewrite:")
    line = asked.split("\n").index(row)
    found = completion.complete(path, asked, line, len(row))
    assert [item.label for item in found] == ["op"]
    keys = [i.label for i in completion.complete(path, text + "  - fo", text.count("\n"), 6)]
    assert "for" in keys


def test_explain_asks_which_member(tmp_path: Path, told: Callable[..., tuple[int, str]]) -> None:
    text = UPDATED.replace("    unch", "    because: T in [f32]\n    unch")
    text = text.replace("    input:", "    check: 'CHECK: torch'\n    input:")
    (tmp_path / "signs-fuse.yaml").write_text(text)
    model = tmp_path / "model.mlir"
    model.write_text(str(load_rule("signs.yaml", text).tests[1].unchanged))
    code, said = told("explain", tmp_path / "signs-fuse.yaml", model)
    assert code == 2
    assert "signs-fuse.yaml:1:7: error[several-rules]: the file holds 2 rules: signs-abs" in said
    code, said = told("explain", tmp_path / "signs-abs-fuse", model)
    assert (code, "T in [f32]" in said) == (0, True)
