"""Malformed rule files: each with the faults, and their places, that a reader must be shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlirules.drivers.iree.compiler import op_oracle
from mlirules.drivers.quality.check import check_rule
from mlirules.language.faults import EXIT_INPUT_WRONG, Fault, MlirulesError
from mlirules.language.loader import load_rule, load_rules
from mlirules.language.reading import load_yaml

CORPUS = Path(__file__).parent / "malformed"
EXPECTED: dict[str, list[dict[str, Any]]] = json.loads(
    (CORPUS / "expected.json").read_text(encoding="utf-8")
)
COMPILER_CODES = {"mlir", "filecheck", "target", "test-cannot-apply", "test-cannot-fail"}


def test_corpus_is_complete() -> None:
    assert sorted(EXPECTED) == sorted(p.name for p in CORPUS.glob("*.yaml"))
    assert len(EXPECTED) >= 200
    texts = {p.read_bytes() for p in CORPUS.glob("*.yaml")}
    assert len(texts) == len(EXPECTED), "two files are the same"
    codes = {fault["code"] for faults in EXPECTED.values() for fault in faults}
    assert len(codes) >= 30, sorted(codes)


@pytest.mark.parametrize("name", EXPECTED)
def test_faults(name: str) -> None:
    path = CORPUS / name
    found = check_rule(path)
    shown = "\n".join(f.render() for f in found)
    places = [(f.code, f.span.line, f.span.column) for f in found]
    assert places == [(w["code"], w["line"], w["column"]) for w in EXPECTED[name]], shown
    for fault, wanted in zip(found, EXPECTED[name], strict=True):
        assert wanted["message"] in fault.message, shown
        assert wanted.get("suggestion", "") in fault.suggestion, shown
        assert_rendered(fault, path)


def assert_rendered(fault: Fault, path: Path) -> None:
    """The fault shows its place, the source line and a caret under the place."""
    lines = fault.render().split("\n")
    assert lines[0] == (
        f"{path}:{fault.span.line}:{fault.span.column}: error[{fault.code}]: {fault.message}"
    )
    source, caret = lines[1], lines[2]
    start = caret.index("^")
    assert set(caret[start:]) == {"^"}
    rows = path.read_bytes().decode("utf-8", errors="replace").replace("\r\n", "\n").split("\n")
    row = rows[fault.span.line - 1]
    at = row[fault.span.column - 1 : fault.span.column + 3].replace("\t", " ")
    assert source[start:].startswith(at), "the caret stands under another character"
    if fault.suggestion:
        assert lines[-1] == f"      = help: {fault.suggestion}"


@pytest.mark.parametrize("name", EXPECTED)
def test_loading_refuses(name: str) -> None:
    """What the loader alone can see, it refuses: only the compiler's own faults may be missing."""
    wanted = [w for w in EXPECTED[name] if w["code"] not in COMPILER_CODES]
    if not wanted:
        load_rule(CORPUS / name, ops=op_oracle)
        return
    with pytest.raises(MlirulesError) as caught:
        load_rule(CORPUS / name, ops=op_oracle)
    assert [(f.code, f.span.line) for f in caught.value.faults] == [
        (w["code"], w["line"]) for w in wanted
    ]


def test_all_files_of_a_folder_are_reported() -> None:
    with pytest.raises(MlirulesError) as caught:
        load_rules([CORPUS])
    files = {Path(f.span.path).name for f in caught.value.faults}
    only_seen_by_compiler = {
        name
        for name, faults in EXPECTED.items()
        if {f["code"] for f in faults} <= COMPILER_CODES | {"unknown-op"}
    }
    assert files >= set(EXPECTED) - only_seen_by_compiler
    assert EXIT_INPUT_WRONG == 2


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    def message(path: Path) -> str:
        with pytest.raises(MlirulesError) as caught:
            load_rule(path)
        return str(caught.value)

    assert "cannot be read: No such file" in message(tmp_path / "none.yaml")
    assert "cannot be read: Is a directory" in message(tmp_path)
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    assert "the file is empty" in message(empty)
    empty.write_text("# only a comment\n")
    assert "the file is empty" in message(empty)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (1 << 20))
    assert "larger than 524288 bytes" in message(large)
    assert "larger than" in message(Path("/dev/zero"))
    assert "cannot be read" in message(Path("a\0b.yaml"))


TEXTS = """\
plain: one two three
folded plain: one
  two

  three four
single: 'it''s one'
single folded: 'one two
   three

   four'
double: "one \\t two \\u00e9 \\"three\\""
double folded: "one two
   three \\
   four"
literal: |
  one
    two

  three
literal strip: |-

  one
  two
literal indicated: |2
    one
   two
literal keep: |+
  one

folded: >
  one two
  three

  four
folded strip: >-
  one
  two
empty: ""
flow: [one two, "three four"]
"""


def test_every_character_of_a_text_has_its_place() -> None:
    """Spans of all YAML styles point at the character that gave the value's character."""
    source = load_yaml("texts.yaml", TEXTS)
    rows = TEXTS.split("\n")
    checked = 0
    for path, text in source.marks.items():
        for offset, char in enumerate(text.value):
            if char.isalpha() and char != "é":
                span = text.span(offset, 1)
                found = rows[span.line - 1][span.column - 1]
                assert found in (char, "\\"), (path, text.value, offset, span)
                checked += found == char
    assert checked > 120
    assert source.data["folded plain"] == "one two\nthree four"
    assert source.text_at(("double",)).span(6).column == TEXTS.split("\n")[10].index("two") + 1


def test_a_rule_that_nothing_refuses_needs_no_negative_test() -> None:
    head = "rule: r\nkind: conversion\nsummary: Lower it.\nreason: None.\n"
    test = """tests:
  - name: known at run time
    input: |
      func.func @f(%a: !torch.int, %b: !torch.int) -> !torch.int {
        %r = torch.aten.add.int %a, %b : !torch.int, !torch.int -> !torch.int
        return %r : !torch.int
      }
    check: |
      CHECK: arith.addi
"""
    plain = (
        "types: {a: int, b: int, r: int}\nmatch: r = torch.aten.add.int(a, b)\nrewrite: r = a + b\n"
    )
    assert check_rule("r.yaml", head + plain + test) == []
    for asking in (
        plain.replace("match", "where: a == 2\nmatch"),
        plain.replace("(a, b)", "(a, 2)").replace(" b: int,", "").replace("a + b", "a"),
        plain.replace("(a, b)", "(a, a)").replace(" b: int,", "").replace("a + b", "a"),
    ):
        found = check_rule("r.yaml", head + asking + test)
        assert [f.code for f in found] == ["no-negative-test"], asking
