"""Custom ops: a function or numbers say what they compute, and rules are held to it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from mlirules.drivers.quality.check import check_rule

ROOT = Path(__file__).resolve().parent.parent
TENSOR = "!torch.vtensor<[2,3],f32>"
PROGRAM = (
    f"func.func @f(%x: {TENSOR}) -> {TENSOR} {{\n"
    f'  %y = torch.operator "torch.my.twice"(%x) : ({TENSOR}) -> {TENSOR}\n'
    f"  return %y : {TENSOR}\n}}\n"
)
RULE = """\
rule: my-twice-to-linalg
kind: conversion
summary: Lower my::twice to one linalg.generic.
reason: No compiler knows the op.
types: {x: vtensor<M x N x f32>, y: vtensor<M x N x f32>}
match: ['y = torch.operator(x) {name = "torch.my.twice"}']
rewrite: ['y[m, n] = x[m, n] + x[m, n]']
reference: ops.py:twice
tests:
  - name: a matrix
    input: |
      PROGRAM
    run: {devices: [cpu]}
  - name: a vector stays
    unchanged: |
      func.func @f(%x: !torch.vtensor<[3],f32>) -> !torch.vtensor<[3],f32> {
        %y = torch.operator "torch.my.twice"(%x)
          : (!torch.vtensor<[3],f32>) -> !torch.vtensor<[3],f32>
        return %y : !torch.vtensor<[3],f32>
      }
    because: vtensor<M x N x f32>
""".replace("      PROGRAM", "".join(f"      {row}\n" for row in PROGRAM.splitlines()).rstrip())
TWICE = "def twice(x):\n    return 2.0 * x\n"
Told = Callable[..., tuple[int, str]]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with the rule of a custom op and its reference, and a program beside it."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "twice.yaml").write_text(RULE)
    (folder / "ops.py").write_text(TWICE)
    (tmp_path / "model.mlir").write_text(PROGRAM)
    return folder


def test_nothing_is_executed_without_consent(own: Path, told: Told) -> None:
    ran = own.parent / "ran"
    (own / "ops.py").write_text(f"open({str(ran)!r}, 'w').close()\n{TWICE}")
    commands: list[list[object]] = [
        ["check", own],
        ["test", own],
        ["verify", own.parent / "model.mlir", "--rules", own],
        ["verify", "--rule-gate", own],
    ]
    for command in commands:
        code, said = told(*command)
        if command[0] == "check":
            assert code == 0, said
        else:
            assert code in (1, 2), said
            assert "which runs as it is written" in said
            assert "it needs your consent" in said
    assert not ran.exists()


@pytest.mark.slow
def test_what_executes_nothing_asks_for_nothing(own: Path, told: Told) -> None:
    out = own.parent / "model.vmfb"
    model = own.parent / "model.mlir"
    assert told("compile", model, "--rules", own, "-o", out)[0] == 0
    code, said = told("compile", model, "--rules", own, "--check", "-o", out)
    assert code == 2
    assert "twice.yaml:8:12: error[consent]" in said
    (own / "ops.py").write_text(TWICE.replace("2.0", "2.5"))
    code, said = told("compile", model, "--rules", own, "--check", "--trust-python")
    assert code == 1, said
    assert "made by application 1 of" in said
    saved = own.parent / "counterexample"
    code, said = told("verify", model, "--rules", own, "--trust-python", "--save", saved)
    assert code == 1, said
    assert "--trust-python" in (saved / "repeat.txt").read_text()


@pytest.mark.slow
def test_numbers_are_held_against_the_function(own: Path, told: Told) -> None:
    assert told("test", own, "--trust-python")[0] == 0
    model = own.parent / "model.mlir"
    code, said = told("verify", model, "--rules", own, "--trust-python")
    assert code == 0, said
    assert "held against: torch.my.twice by ops.py:twice" in said
    code, said = told("verify", "--rule-gate", own, "--trust-python", "--json")
    assert code == 0, said
    (gate,) = json.loads(said)
    assert gate["references"] == ["torch.my.twice by ops.py:twice"]
    assert gate["comparisons"] >= 4
    # A rule that computes something else is found by all of them.
    (own / "ops.py").write_text(TWICE.replace("2.0", "2.5"))
    assert "elements differ" in told("test", own, "--trust-python")[1]
    assert told("verify", "--rule-gate", own, "--trust-python")[0] == 1


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def twice(x):\n    raise ValueError('no')\n", "raised ValueError: no (ops.py, line 2)"),
        ("def twice(x):\n    return x[0]\n", f"gave the shape [3], the program says {TENSOR}"),
        ("def twice(x):\n    return x, x\n", "gave 2 results, the op has 1"),
        ("def twice(x):\n    return x + 1j\n", f"gave complex64, the program says {TENSOR}"),
        ("import none_such\ndef twice(x): ...\n", "cannot be loaded: ModuleNotFoundError"),
        ("import os\ndef twice(x):\n    os._exit(3)\n", "the process of the reference ended"),
    ],
    ids=["raises", "shape", "results", "kind", "import", "exits"],
)
def test_a_function_that_fails_is_told_at_its_line(
    code: str, message: str, own: Path, told: Told
) -> None:
    (own / "ops.py").write_text(code)
    status, said = told("test", own, "--trust-python")
    assert status == 1
    assert f"{own / 'twice.yaml'}:8:12: error[reference]" in said
    assert message in said


def faults(own: Path, old: str, new: str) -> list[str]:
    file = own / "twice.yaml"
    file.write_text(RULE.replace(old, new))
    return [f"{f.span.line}:{f.span.column} {f.code}: {f.message}" for f in check_rule(file)]


def test_check_reads_what_is_there(own: Path) -> None:
    assert faults(own, "", "") == []
    assert faults(own, "ops.py:", "op.py:") == [
        "8:12 reference: there is no file 'op.py' beside the rule"
    ]
    assert faults(own, ":twice", ":thrice") == ["8:12 reference: ops.py defines no 'thrice'"]
    assert faults(own, "reference: ops.py:twice\n", "") == [
        "15:5 no-reference: nothing says what torch.my.twice computes: the compiler does not know "
        "custom ops"
    ]
    (own / "ops.py").write_text("def twice(x:\n")
    assert faults(own, "", "")[0].startswith("8:12 reference: ops.py is no Python, line 1")
    assert faults(own, "ops.py:", "../ops.py:")[0].startswith("8:12 ")


def test_a_file_elsewhere_is_not_trusted_by_the_rules_folder(
    own: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = own.parent / "config" / "mlirules"
    config.mkdir(parents=True)
    (config / "config.yaml").write_text(f"trusted: [{json.dumps(str(own))}]\n")
    (config / "config.yaml").chmod(0o600)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config.parent))
    assert told("test", own)[0] == 0
    (own / "ops.py").rename(own.parent / "ops.py")
    (own / "ops.py").symlink_to(own.parent / "ops.py")
    assert "error[consent]" in told("test", own)[1]


@pytest.mark.slow
def test_the_page_about_custom_ops(
    tmp_path: Path, pasted: Callable[[str, Path], CompletedProcess[str]]
) -> None:
    pytest.importorskip("torch")
    text = (ROOT / "docs" / "custom-ops.md").read_text(encoding="utf-8")
    example = ROOT / "examples" / "custom-op"
    (registration,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    model = (example / "model.py").read_text()
    assert all(row in model for row in registration.splitlines())
    rule = (example / "soft-clip-to-linalg.yaml").read_text()
    (shown,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert shown in rule
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    assert blocks.count("mlirules ") == 7
    blocks = blocks.replace("examples/custom-op", str(example))
    blocks = re.sub(r"(?<= )model\.", f"{tmp_path}/model.", blocks)
    done = pasted(blocks, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "held against: torch.mylib.soft_clip by model.py:soft_clip\n" in done.stdout
    assert "3 results agree" in done.stdout
    assert "3 passed, 0 failed: 1 rules" in done.stdout
    assert "1 rules pass, 0 fail" in done.stdout
