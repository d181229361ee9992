"""The language server, spoken to as an editor does: JSON-RPC over its stdin and stdout."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mlirules.drivers.quality import editor as language
from mlirules.language.loader import LIBRARY

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
    (lens,) = editor.ask("textDocument/codeLens", textDocument={"uri": uri})
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
