"""`mlirules studio`: what the page is told, who is told nothing, and the page in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlirules.drivers.quality.studio import MAX_TEXT, Studio, judge, page

RULE = """\
rule: my-mm
kind: conversion
summary: A product.
reason: It is typed into the studio.
types: {a: vtensor<M x K x T>, b: vtensor<K x N x T>, c: vtensor<M x N x T>}
match: ['c = torch.aten.mm(a, b)']
where: ['T in [f32, f64]']
rewrite: ['c[m, n] += a[m, k] * b[k, n]']
tests:
  - {name: positive, input: FLOATS, check: 'CHECK: linalg'}
  - {name: negative, unchanged: INTEGERS, because: 'T in [f32, f64]'}
"""


def mm(element: str) -> str:
    a, b, c = (f"!torch.vtensor<[{s}],{element}>" for s in ("2,3", "3,4", "2,4"))
    return f"%c = torch.aten.mm %a, %b : {a}, {b} -> {c}"


def program(*elements: str) -> str:
    out = []
    for n, element in enumerate(elements):
        a, b, c = (f"!torch.vtensor<[{s}],{element}>" for s in ("2,3", "3,4", "2,4"))
        out.append(
            f"func.func @f{n}(%a: {a}, %b: {b}) -> {c} {{\n  {mm(element)}\n  return %c : {c}\n}}\n"
        )
    return "".join(out)


RULE = RULE.replace("FLOATS", json.dumps(program("f32")))
RULE = RULE.replace("INTEGERS", json.dumps(program("si64")))
KERNEL = Path(__file__).parent / "kernel_rules" / "matvec.yaml"


def test_what_the_page_is_told() -> None:
    found = judge(RULE, program("f32", "si64"))
    assert found["faults"] == []
    assert [(a["rule"], a["op"]) for a in found["applied"]] == [("my-mm", "torch.aten.mm")]
    (refused,) = found["refused"]
    assert refused["why"][0]["message"].startswith("T is si64, not one of")
    assert refused["why"][0]["line"] == 7
    assert any(row.startswith("-") and "torch.aten.mm" in row for row in found["diff"])
    assert any(row.startswith("+") and "linalg.matmul" in row for row in found["diff"])
    assert found["numbers"] == []
    wrong = judge(RULE.replace("+=", "="), "func.func @f( {")
    assert {(f["path"], f["code"]) for f in wrong["faults"]} == {
        ("rule.yaml", "not-summed"),
        ("program.mlir", "mlir"),
    }
    assert wrong["diff"] == []
    assert judge("", "")["faults"] == []


def test_code_that_needs_consent_is_not_run() -> None:
    found = judge(KERNEL.read_text(), program("f32"))
    (fault,) = (f for f in found["faults"] if f["code"] == "consent")
    assert "compiles and runs the C of matvec.c" in fault["message"]
    assert found["applied"] == found["diff"] == []


def test_a_child_that_dies_is_told_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    studio = Studio()
    try:
        assert "failed" in studio.judge("x" * (MAX_TEXT + 1), "")
        monkeypatch.setattr("mlirules.drivers.quality.studio.SECONDS", 0.01)
        assert "stopped after" in studio.judge(RULE, program("f32"))["failed"]
        monkeypatch.undo()
        assert studio.judge(RULE, program("f32"))["applied"]
    finally:
        studio.stop()


def test_the_page_holds_texts_as_text() -> None:
    made = page("</textarea><script>alert(1)</script>", "{{ 7 * 7 }}", "abc")
    assert "<script>alert" not in made
    assert "{{ 7 * 7 }}" in made
    assert not re.search(r"(src|href)=|innerHTML|@import|url\(", made)


class Server:
    """A studio on a port of its own."""

    def __init__(self, folder: Path, *files: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlirules", "studio", *map(str, files)],
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
        assert self.process.stderr is not None
        said = re.match(r"(http://127\.0\.0\.1:\d+)(/[\w-]{32,}/) ", self.process.stderr.readline())
        assert said is not None
        self.host, self.path = said.groups()

    def ask(self, path: str, data: bytes | None = None, **headers: str) -> tuple[int, str]:
        made = urllib.request.Request(self.host + path, data=data, headers=headers)
        try:
            with urllib.request.urlopen(made, timeout=100) as answer:
                self.headers = dict(answer.headers)
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def judge(self, **asked: Any) -> tuple[int, str]:
        headers = {"Content-Type": "application/json"}
        return self.ask(f"{self.path}judge", json.dumps(asked).encode(), **headers)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("starlette", reason="the studio needs the extra studio")
    pytest.importorskip("uvicorn", reason="the studio needs the extra studio")
    folder = tmp_path_factory.mktemp("studio")
    (folder / "my-mm.yaml").write_text(RULE)
    (folder / "model.mlir").write_text(program("f32", "si64"))
    before = sorted(folder.iterdir())
    made = Server(folder, folder / "my-mm.yaml", folder / "model.mlir")
    yield made
    made.process.terminate()
    made.process.wait(20)
    assert sorted(folder.iterdir()) == before


def test_who_gets_what(server: Server) -> None:
    status, text = server.ask(server.path)
    assert status == 200
    assert "rule: my-mm" in text
    assert "default-src 'none'" in server.headers["content-security-policy"]
    assert server.ask("/")[0] == 404
    assert server.ask("/" + "x" * 32 + "/")[0] == 404
    assert server.ask(server.path, Host="evil.example")[0] == 404
    asked = {"rule": "", "program": "", "numbers": False}
    assert server.judge(**asked)[0] == 200
    data, kind = json.dumps(asked).encode(), "application/json"
    judge_ = f"{server.path}judge"
    assert server.ask(judge_, data, **{"Content-Type": "text/plain"})[0] == 415
    foreign = {"Content-Type": kind, "Origin": "http://evil.example"}
    assert server.ask(judge_, data, **foreign)[0] == 403
    assert server.ask(judge_, b"[" * 1000, **{"Content-Type": kind})[0] == 400
    assert server.judge(rule=1, program="", numbers=False)[0] == 400
    assert server.judge(rule="x" * (1 << 20), program="", numbers=False)[0] == 413


def test_numbers_over_http(server: Server) -> None:
    status, text = server.judge(rule=RULE, program=program("f32"), numbers=True)
    assert status == 200
    found = json.loads(text)
    assert found["numbers"], found
    assert all(c["passed"] for c in found["numbers"])


def test_the_page_in_a_browser(server: Server, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=15000"]
    done = subprocess.run(
        [*command, server.host + server.path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "up to date" in done.stdout, done.stdout
    assert "my-mm at torch.aten.mm" in done.stdout
    assert "T is si64, not one of" in done.stdout
    assert re.search(r'<span class="add">\+ +%\d+ = linalg\.matmul', done.stdout)
    assert "Refused to" not in done.stderr
