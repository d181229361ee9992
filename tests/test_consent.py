"""Code of others runs as it is only where the user said so, and then in a child with limits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mlirules.drivers.apply.session import Session
from mlirules.drivers.iree import compiler
from mlirules.language import consent
from mlirules.language.loader import load_rule
from mlirules.language.native import native
from mlirules.language.pipeline import Pipeline
from mlirules.support import cache, package
from mlirules.support.limits import Limits, limited

HERE = Path(__file__).parent
A, X, Y = (f"!torch.vtensor<[{sizes}],f32>" for sizes in ("5,7", "7", "5"))
PROGRAM = f"""\
func.func @main(%a: {A}, %x: {X}) -> {Y} {{
  %y = torch.aten.mv %a, %x : {A}, {X} -> {Y}
  return %y : {Y}
}}
"""


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A folder with a rule in C, a pipeline that applies it, and a program."""
    folder = tmp_path / "set"
    shutil.copytree(HERE / "kernel_rules", folder)
    source = folder / "matvec.c"
    source.write_text(source.read_text() + f"/* {tmp_path} */\n")  # never compiled before
    (folder / "model.mlir").write_text(PROGRAM)
    (tmp_path / "mine.yaml").write_text(
        "pipeline: mine\nsummary: With C.\ntargets: [cpu]\nstages:\n"
        "  - {phase: torch, rules: [set], driver: greedy}\n"
    )
    return folder


def objects() -> set[str]:
    return {p.name for p in (cache.directory() / "objects").glob("*")}


@pytest.mark.parametrize(
    "command",
    [
        ["apply", "MODEL", "--rules", "RULE"],
        ["compile", "MODEL", "--pipeline", "LINE"],
        ["run", "MODEL", "--pipeline", "LINE"],
        ["bench", "MODEL", "--pipeline", "LINE"],
        ["verify", "MODEL", "--pipeline", "LINE"],
        ["profile", "MODEL", "--pipeline", "LINE"],
    ],
    ids=lambda c: c[0],
)
def test_c_of_others_is_not_even_compiled(
    command: list[str], stranger: Path, told: Callable[..., tuple[int, str]]
) -> None:
    rule = stranger / "matvec.yaml"
    known = {"MODEL": stranger / "model.mlir", "RULE": rule, "LINE": stranger.parent / "mine.yaml"}
    before = objects()
    code, said = told(*(known.get(word, word) for word in command))
    assert code == 2, said
    assert f"{rule}:18:17: error[consent]: the rule compiles and runs the C of matvec.c" in said
    assert "give --trust-native, or name its folder under `trusted:` in" in said
    assert objects() == before


def test_with_consent_it_runs_in_a_child(
    stranger: Path, told: Callable[..., tuple[int, str]]
) -> None:
    line = stranger.parent / "mine.yaml"
    inputs = ["--input", "5x7xf32=1", "--input", "7xf32=2"]
    command = ["run", stranger / "model.mlir", "--pipeline", line, *inputs, "--trust-native"]
    code, said = told(*command)
    assert code == 0, said
    assert "[14. 14. 14. 14. 14.]" in said
    # This process is none the worse for C that ends its own.
    source = stranger / "matvec.c"
    source.write_text(
        source.read_text().replace("float sum = 0.0f;", "__builtin_trap(); float sum = 0;")
    )
    with Session():
        code, said = told(*command)
    assert code == 2, said
    assert "crashed on local-task" in said
    # Nor does it hold for the next command.
    code, said = told(*command[:-1])
    assert "error[consent]" in said


def test_inline_tests_ask_as_well(stranger: Path, told: Callable[..., tuple[int, str]]) -> None:
    rule = stranger / "matvec.yaml"
    code, said = told("test", rule)
    assert code == 1
    assert f"{rule}:18:17: error[consent]" in said
    assert told("test", rule, "--trust-native", "--devices", "none")[0] == 0


def test_check_says_it_and_tries_nothing(
    stranger: Path, told: Callable[..., tuple[int, str]]
) -> None:
    before = objects()
    code, said = told("check", stranger / "matvec.yaml")
    assert code == 0
    assert "matvec.yaml:18:17: warning[consent]" in said
    assert objects() == before


def configured(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    file = consent.configuration()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o600)
    return file


@pytest.mark.skipif(sys.platform != "linux", reason="where the file lies is told by XDG there")
def test_a_folder_that_the_users_configuration_trusts(
    stranger: Path, told: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["apply", stranger / "model.mlir", "--rules", stranger / "matvec.yaml"]
    trusted = f"trusted: [{json.dumps(str(stranger))}]\n"
    file = configured(stranger.parent, trusted, monkeypatch)
    assert told(*command)[0] == 0
    # A rule is where its file is, not where a link to it is.
    rule, outside = stranger / "matvec.yaml", stranger.parent / "matvec.yaml"
    rule.rename(outside)
    rule.symlink_to(outside)
    assert "error[consent]" in told(*command)[1]
    rule.unlink()
    outside.rename(rule)
    file.chmod(0o666)
    code, said = told(*command)
    assert code == 2
    assert "others can write this file" in said
    file.chmod(0o600)
    file.write_text("trusted: [kernels]\n")
    code, said = told(*command)
    assert f"{file}:1:11: error[configuration]: `trusted:` lists folders" in said


PEEK = """\
rule: peek
kind: conversion
summary: Read what lies at an address.
reason: A body is MLIR of any dialect.
types: {x: vtensor<N x f32>, y: vtensor<N x f32>}
match: [y = torch.aten.relu(x)]
rewrite:
  - body: |
      %p = llvm.mlir.zero : !llvm.ptr
      %v = llvm.load %p : !llvm.ptr -> f32
      %y = tensor.splat %v : $y
tests:
  - {name: positive, input: "module {}", check: "CHECK: module"}
  - {name: negative, unchanged: "module {}"}
"""


def test_a_body_that_addresses_memory(tmp_path: Path) -> None:
    need = native(load_rule(tmp_path / "peek.yaml", PEEK, ops=compiler.op_oracle))
    assert need is not None
    assert need.span.line == 9
    assert need.what.startswith("writes llvm.mlir")


@pytest.mark.parametrize(
    "flag",
    [
        "--iree-llvmcpu-system-linker-path=./ld.sh",
        "-iree-hal-preprocess-executables-with=./x.sh",
        "--load=./evil.so",
        "--iree-hal-substitute-executable-object=a=b.o",
        "@flags.txt",
    ],
)
def test_flags_of_a_pipeline_that_run_programs(
    flag: str, tmp_path: Path, told: Callable[..., tuple[int, str]]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"pipeline: mine\nextends: cpu\nsummary: With a flag.\nflags: [--mlir-timing, '{flag}']\n"
    )
    code, said = told("check", file)
    assert code == 2
    assert f"{file}:4:" in said
    assert "lets the compiler run or link files of the pipeline's choice" in said
    with consent.given(native=True):
        assert Pipeline.load(file).flags[-1] == flag


def test_what_ships_needs_none() -> None:
    with consent.given():
        assert not consent.current().native
        file = package.RULES / "kernels" / "kernel-softmax.yaml"
        assert native(load_rule(file, ops=compiler.op_oracle)) is None


@pytest.mark.skipif(os.name != "posix", reason="limits of processes are POSIX's")
@pytest.mark.parametrize(
    ("code", "limits", "said"),
    [
        ("while True: pass", Limits(cpu_s=1), ""),
        ("x = bytearray(3 << 30)", Limits(memory=1 << 30), "MemoryError"),
    ],
)
def test_limits_hold(code: str, limits: Limits, said: str) -> None:
    command = limited([sys.executable, "-c", code], limits)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode
    assert said in done.stderr
