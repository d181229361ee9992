"""The language server, spoken to as an editor does: JSON-RPC over its stdin and stdout."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlirules.drivers.quality import completion, signatures, symbols
from mlirules.drivers.quality import editor as language
from mlirules.drivers.quality.check import check_rule
from mlirules.language.faults import MlirulesError
from mlirules.language.rulefiles import LIBRARY

MM = LIBRARY / "torch/to-linalg/matmul/torch-mm-to-linalg.yaml"


class Editor:
    """Just enough of a client."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlirules", "lsp"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.number = 0
        self.notes: list[dict[str, Any]] = []

    def send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        length = 0
        while (line := self.process.stdout.readline().strip()) != b"":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        found: dict[str, Any] = json.loads(self.process.stdout.read(length))
        return found

    def ask(self, method: str, **params: Any) -> Any:
        self.number += 1
        self.send(id=self.number, method=method, params=params)
        while True:
            answer = self.receive()
            if answer.get("id") == self.number and "method" not in answer:
                assert "error" not in answer, answer
                return answer["result"]
            self.notes.append(answer)

    def note(self, method: str) -> dict[str, Any]:
        while True:
            for i, found in enumerate(self.notes):
                if found.get("method") == method:
                    return dict(self.notes.pop(i)["params"])
            self.notes.append(self.receive())


@pytest.fixture(name="editor", scope="module")
def _editor() -> Iterator[Editor]:
    pytest.importorskip("pygls", reason="the language server needs the extra lsp")
    editor = Editor()
    editor.ask("initialize", processId=None, rootUri=None, capabilities={})
    editor.send(method="initialized", params={})
    yield editor
    editor.ask("shutdown")
    editor.send(method="exit")
    assert editor.process.wait(20) == 0


def open_(editor: Editor, text: str, name: str = "mm.yaml") -> str:
    uri = f"file:///rules/{name}"
    document = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
    editor.send(method="textDocument/didOpen", params={"textDocument": document})
    return uri


def at(text: str, word: str) -> dict[str, int]:
    line = next(n for n, row in enumerate(text.split("\n")) if word in row)
    return {"line": line, "character": text.split("\n")[line].index(word) + 1}


def test_faults_come_as_diagnostics_and_go_when_mended(editor: Editor) -> None:
    text = MM.read_text().replace("torch.aten.mm(", "torch.aten.mmm(")
    uri = open_(editor, text, "broken.yaml")
    found = editor.note("textDocument/publishDiagnostics")
    assert found["uri"] == uri
    first = found["diagnostics"][0]
    assert first["range"]["start"]["line"] == at(text, "torch.aten.mmm")["line"]
    assert "torch.aten.mm" in first["message"]
    assert first["source"] == "mlirules"
    change = {
        "textDocument": {"uri": uri, "version": 2},
        "contentChanges": [{"text": MM.read_text()}],
    }
    editor.send(method="textDocument/didChange", params=change)
    assert editor.note("textDocument/publishDiagnostics")["diagnostics"] == []


def test_hover_tells_of_ops_functions_and_symbols(editor: Editor) -> None:
    text = MM.read_text()
    document = {"uri": open_(editor, text)}

    def hover(word: str) -> str:
        found = editor.ask("textDocument/hover", textDocument=document, position=at(text, word))
        return str(found["contents"]["value"])

    assert "docs.pytorch.org" in hover("torch.aten.mm(")
    assert "complex element type" in hover("is_complex")
    assert "vtensor<M x K x T>" in hover("a, b)")
    assert (
        editor.ask(
            "textDocument/hover", textDocument=document, position={"line": 0, "character": 0}
        )
        is None
    )


def test_definition_and_links(editor: Editor) -> None:
    text = MM.read_text()
    document = {"uri": open_(editor, text)}
    found = editor.ask("textDocument/definition", textDocument=document, position=at(text, "a, b)"))
    assert found["range"]["start"]["line"] == at(text, "vtensor<M x K x T>")["line"]
    links = editor.ask("textDocument/documentLink", textDocument=document)
    assert any(link["target"].endswith("torch.mm.html") for link in links)


def test_the_pdll_is_previewed(editor: Editor) -> None:
    uri = open_(editor, MM.read_text())
    lens, *_ = editor.ask("textDocument/codeLens", textDocument={"uri": uri})
    said = editor.ask(
        "workspace/executeCommand",
        command=lens["command"]["command"],
        arguments=lens["command"]["arguments"],
    )
    assert "op<torch.aten.mm>" in said


def test_ops_with_a_text_of_the_compiler() -> None:
    said = language.explanation("r.yaml", "", "arith.addf")
    assert "returns one result" in said
    assert "https://mlir.llvm.org/docs/Dialects/ArithOps/#arithaddf-arithaddfop" in said
    assert language.explanation("r.yaml", "", "torch.aten.nothing_of_the_kind") == ""


def test_files_without_a_rule_are_left_alone() -> None:
    assert language.faults("ci.yaml", "jobs: [a, b\n") == []


# ---------------------------------------------------------------- while one writes

RULE = """\
rule: my-mm
kind: conversion
summary: A product.
reason: It shows what an editor does.
types:
  a: vtensor<M x K x T>
  b: vtensor<K x N x T>
  c: vtensor<M x N x T>
match:
  - c = torch.aten.mm(a, b)
where:
  - T in [f32, f64]
rewrite:
  - c[m,n] += a[m, k] * b[k, n]
tests:
  - name: positive
    input: |
      func.func @f(%a: !torch.vtensor<[2,3],f32>, %b: !torch.vtensor<[3,4],f32>) -> !torch.vtensor<[2,4],f32> {
        %c = torch.aten.mm %a, %b : !torch.vtensor<[2,3],f32>, !torch.vtensor<[3,4],f32> -> !torch.vtensor<[2,4],f32>
        return %c : !torch.vtensor<[2,4],f32>
      }
    check: |
      CHECK: linalg.matmul
  - name: integers
    unchanged: |
      func.func @f(%a: !torch.vtensor<[2,3],si64>, %b: !torch.vtensor<[3,4],si64>) -> !torch.vtensor<[2,4],si64> {
        %c = torch.aten.mm %a, %b : !torch.vtensor<[2,3],si64>, !torch.vtensor<[3,4],si64> -> !torch.vtensor<[2,4],si64>
        return %c : !torch.vtensor<[2,4],si64>
      }
    because: T in [f32, f64]
"""  # noqa: E501 - the programs' lines


def labels(text: str, before: str, path: str = "my-mm.yaml") -> dict[str, completion.Item]:
    """What can stand behind ``before``, which the text holds once."""
    at = text.index(before) + len(before)
    head = text[:at]
    line, column = head.count("\n"), len(head) - head.rfind("\n") - 1
    return {item.label: item for item in completion.complete(path, text, line, column)}


def test_the_completion_list_as_data() -> None:
    """What an editor lists: keys with what they mean, ops with their operands, symbols, words."""
    assert list(labels("", ""))[:5] == ["rule", "kind", "summary", "reason", "tags"]
    keys = labels(RULE + "be", "\nbe")
    assert list(keys) == ["benefit"]
    assert keys["benefit"].documentation == "Of several rules that match, the highest goes first."
    in_match = labels(RULE.replace("mm(a, b)", "m"), "torch.aten.m")
    assert in_match["torch.aten.mm"].detail.startswith("torch.aten.mm(")
    assert in_match["torch.aten.mm"].snippet == "torch.aten.mm(${1:a}, ${2:b})"
    assert in_match["torch.aten.mul.Tensor"].kind == "op"
    assert all(label.startswith("torch.aten.m") for label in in_match)
    assert "linalg." in labels(RULE.replace("torch.aten.mm(a, b)", "lin"), "= lin")
    where = labels(RULE.replace("T in [f32, f64]\nrewrite", "i\nrewrite"), "- i")
    assert where["is_float"].kind == "function"
    assert where["is_float"].detail.startswith("is_float(")
    names = labels(RULE, "a[m, k] * ")
    assert (names["a"].kind, names["a"].detail) == ("symbol", "vtensor<M x K x T>")
    assert names["K"].detail == "of a: vtensor<M x K x T>"
    assert "tanh" in names
    assert set(labels(RULE.replace("kind: conversion", "kind: "), "kind: ")) == {
        "conversion",
        "fusion",
        "kernel",
        "config",
    }
    tests = labels(RULE + "  - n", "\n  - n")
    assert list(tests) == ["name"]
    run = labels(RULE.replace("    check: |", "    run: {d\n    check: |"), "run: {d")
    assert list(run) == ["devices"]
    said = labels(RULE.replace("because: T in [f32, f64]", "because: "), "because: ")
    assert {"T in [f32, f64]", "vtensor<M x K x T>"} <= set(said)
    assert "vtensor<" in labels(RULE.replace("a: vtensor<M x K x T>", "a: v"), "a: v")


def test_the_transcript_of_completions(editor: Editor) -> None:
    """docs/completion.json is what the server answers: the list that an editor shows, as data."""
    page = Path(__file__).parent.parent / "docs" / "completion.json"
    for number, asked in enumerate(json.loads(page.read_text(encoding="utf-8"))):
        text = RULE.replace(asked["old"], asked["new"], 1)
        document = {"uri": open_(editor, text, f"completed-{number}.yaml")}
        answer = editor.ask(
            "textDocument/completion", textDocument=document, position=asked["position"]
        )
        assert answer == asked["result"], asked["what"]


def test_completion_in_pipelines(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my-mm.yaml").write_text(RULE)
    file = str(tmp_path / "line.yaml")
    text = "pipeline: mine\nextends: \nsummary: A line.\n"
    assert "cpu-fast" in labels(text, "extends: ", file)
    text = "pipeline: mine\nstages:\n  - phase: \n    rules: [m]\n    driver: \n"
    assert set(labels(text, "phase: ", file)) == {
        "torch",
        "input",
        "preprocessing",
        "global-optimization",
        "dispatch-creation",
        "flow",
        "configuration",
    }
    assert "cost" in labels(text, "driver: ", file)
    assert "mine" in labels(text, "rules: [m", file)
    text = "pipeline: x\nstages:\n  - phase: torch\n    r"
    assert list(labels(text, "torch\n    r", file)) == ["rules", "rounds"]
    assert labels("jobs:\n  a", "  a", "ci.yaml") == {}


def test_rules_are_renamed_everywhere(tmp_path: Path) -> None:
    file, other, line = (tmp_path / n for n in ("my-mm.yaml", "other.yaml", "line.yaml"))
    file.write_text(RULE)
    other.write_text("rule: other\noverlaps: [my-mm, my-mm-too]\n")
    line.write_text("pipeline: x\nstages:\n  - {only: [my-mm], expect_rules: {my-mm: {min: 1}}}\n")
    edits = symbols.rename(file, RULE, "my-mm", "my-product", tmp_path)
    places = [(Path(e.path).name, e.part.line, e.part.start) for e in edits]
    assert places == [
        ("my-mm.yaml", 0, 6),
        ("line.yaml", 2, 12),
        ("line.yaml", 2, 35),
        ("other.yaml", 1, 11),
    ]
    with pytest.raises(MlirulesError, match="lower-case words"):
        symbols.rename(file, RULE, "my-mm", "My_Product", tmp_path)


def test_a_symbol_is_renamed_where_it_is_meant() -> None:
    text = RULE
    for edit in reversed(symbols.rename("my-mm.yaml", text, "T", "E")):
        rows = text.split("\n")
        row = rows[edit.part.line]
        rows[edit.part.line] = row[: edit.part.start] + edit.text + row[edit.part.end :]
        text = "\n".join(rows)
    assert check_rule("my-mm.yaml", text) == []
    assert text.count("E in [f32, f64]") == 2
    assert "vtensor<M x K x E>" in text
    with pytest.raises(MlirulesError, match="has a meaning already"):
        symbols.rename("my-mm.yaml", RULE, "a", "b")
    with pytest.raises(MlirulesError, match="is no name"):
        symbols.rename("my-mm.yaml", RULE, "a", "f32")


@pytest.mark.parametrize(
    ("old", "new", "title", "after"),
    [
        ("torch.aten.mm(", "torch.aten.mmm(", "Write torch.aten.mm", "torch.aten.mm("),
        ("c[m,n] +=", "c[m,n] =", "Sum: write +=", "c[m,n] +="),
        ("a[m, k]", "a[[m], k]", "Write m", "a[m, k]"),
        ("where:\n", "let: {}\nwheree:\n", "Write where", "where:\n"),
        ("b[k, n]", "b[n, k]", "Say N == K in where", "where:\n  - N == K\n"),
    ],
)
def test_a_fault_is_mended_by_what_it_suggests(old: str, new: str, title: str, after: str) -> None:
    text = RULE.replace(old, new, 1)
    offered = {
        said: edits
        for fault in check_rule("my-mm.yaml", text)
        for said, edits in symbols.fixes(fault, text)
    }
    rows = text.split("\n")
    for edit in offered[title]:
        row = rows[edit.part.line]
        rows[edit.part.line] = row[: edit.part.start] + edit.text + row[edit.part.end :]
    assert after in "\n".join(rows)


def test_a_library_that_is_edited_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server lives for days; a release, or its user, changes rules meanwhile."""
    for module in (completion, signatures):
        monkeypatch.setattr(module, "LIBRARY", tmp_path)
    rule = tmp_path / "one.yaml"
    for names in ("left, right", "lhs, rhs"):
        rule.write_text(f"rule: one\nmatch:\n  - c = torch.aten.mm({names})\nrewrite:\n")
        found = signatures.of_op("torch.aten.mm", signatures.operand_names())
        assert str(found) == f"torch.aten.mm({names})"
        assert completion.signature("  - c = torch.aten.mm(", 0, 23) == (found, 0)
    assert completion.rule_names(tmp_path / "none" / "mine.yaml") == ["one"]
    rule.rename(tmp_path / "two.yaml")
    assert completion.rule_names(tmp_path / "none" / "mine.yaml") == ["two"]


def test_writing_as_a_transcript(editor: Editor) -> None:
    """What goes over stdin and stdout while a rule is written."""
    document = {"uri": open_(editor, RULE, "my-mm.yaml")}
    ask = {"textDocument": document}
    found = editor.ask("textDocument/completion", **ask, position=at(RULE, "orch.aten.mm("))
    assert {"torch.", "tosa."} <= {item["label"] for item in found["items"]}
    near = at(RULE, "mm(a, b)")
    found = editor.ask("textDocument/completion", **ask, position=near)
    first = next(item for item in found["items"] if item["label"] == "torch.aten.mm")
    assert first["textEdit"]["newText"] == "torch.aten.mm(${1:a}, ${2:b})"
    assert first["textEdit"]["range"]["start"]["character"] == RULE.split("\n")[9].index("torch")
    inside = {"line": 9, "character": RULE.split("\n")[9].index(", b)") + 2}
    found = editor.ask("textDocument/signatureHelp", **ask, position=inside)
    assert found["signatures"][0]["label"] == "torch.aten.mm(a, b)"
    assert found["activeParameter"] == 1
    used = editor.ask(
        "textDocument/references",
        **ask,
        position=at(RULE, "vtensor<M x K") | {"character": 2},
        context={"includeDeclaration": True},
    )
    assert [place["range"]["start"]["line"] for place in used] == [5, 9, 13]
    renamed = editor.ask(
        "textDocument/rename", **ask, position={"line": 5, "character": 2}, newName="left"
    )
    assert [e["newText"] for e in renamed["changes"][document["uri"]]] == ["left"] * 3
    outline = editor.ask("textDocument/documentSymbol", **ask)
    assert [s["name"] for s in outline] == ["rule", "types", "match", "where", "rewrite", "tests"]
    assert [s["name"] for s in outline[-1]["children"]] == ["positive", "integers"]
    (edit,) = editor.ask(
        "textDocument/formatting", **ask, options={"tabSize": 2, "insertSpaces": True}
    )
    assert "  - c[m, n] += a[m, k] * b[k, n]\n" in edit["newText"]
    lenses = editor.ask("textDocument/codeLens", **ask)
    assert [found["command"]["title"] for found in lenses] == [
        "Preview PDLL",
        "Run this test",
        "Run this test",
    ]
    done = editor.ask("workspace/executeCommand", **lenses[1]["command"] | {"title": None})
    assert done == {"passed": True, "problems": [], "skipped": []}
    broken = RULE.replace("+=", "=")
    document = {"uri": open_(editor, broken, "broken.yaml")}
    row = {"line": 13, "character": 0}
    (action,) = editor.ask(
        "textDocument/codeAction",
        textDocument=document,
        range={"start": row, "end": row},
        context={"diagnostics": []},
    )
    assert action["title"] == "Sum: write +="
    assert action["edit"]["changes"][document["uri"]][0]["newText"] == "+="
