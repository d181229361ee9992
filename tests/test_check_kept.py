"""What `check` found is found once, and again when anything that it depends on changes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlirules.commands import check, verdicts
from mlirules.language.faults import Fault
from mlirules.support import package

RULE = package.RULES / "torch" / "to-linalg"


@pytest.fixture
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLIRULES_CACHE_DIR", str(tmp_path / "cache"))
    shipped = next(iter(sorted(RULE.rglob("*relu*.yaml"))))
    return Path(shutil.copy(shipped, tmp_path))


def test_found_once_and_again_when_the_file_changes(
    rule: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[list[str]] = []
    real = check._check

    def counted(paths: list[str], alone: bool) -> tuple[list[Fault], int]:
        called.append(paths)
        return real(paths, alone)

    monkeypatch.setattr(check, "_check", counted)

    def said() -> str:
        try:
            check.command([str(rule)])
        except check.Exit as done:
            print(f"exit {done.exit_code}")
        return capsys.readouterr().out

    first = said()
    assert "1 files, no faults" in first
    assert said() == first
    assert len(called) == 1
    rule.write_text(rule.read_text().replace("reason:", "raison:"))
    broken = said()
    assert "raison" in broken
    assert "exit 2" in broken
    assert said() == broken
    assert len(called) == 2
    monkeypatch.setattr(package, "code", lambda: "another version")
    assert said() == broken
    assert len(called) == 3


def test_what_depends_on_more_is_not_kept(rule: Path) -> None:
    plain = verdicts.key([str(rule)], alone=False)
    assert plain is not None
    assert plain != verdicts.key([str(rule)], alone=True)
    assert verdicts.key([], alone=False) is None
    assert verdicts.key([str(rule.parent)], alone=False) is None
    rule.write_text(rule.read_text() + "# kind: kernel\n")
    assert verdicts.key([str(rule)], alone=False) is None


def test_the_answer_needs_no_compiler(rule: Path) -> None:
    code = (
        "import sys, json\nfrom mlirules.cli import main\n"
        f"sys.argv = ['mlirules', 'check', {str(rule)!r}]\n"
        "try: main()\nexcept SystemExit: pass\n"
        "names = {m.partition('.')[0] for m in sys.modules}\n"
        "print(json.dumps(sorted(names & {'iree', 'pydantic', 'typer', 'rich', 'yaml'})))"
    )
    # Without it lines are as long as they are.
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment
        )
    *said, loaded = done.stdout.splitlines()
    assert json.loads(loaded) == []
    assert said == ["1 files, no faults"]


def test_a_compile_needs_no_model_of_rules_that_were_read(tmp_path: Path) -> None:
    program = Path(__file__).parent.parent / "examples" / "hello_nn_world.mlir"
    code = (
        "import sys, json\nfrom mlirules.cli import main\n"
        f"words = ['compile', {str(program)!r}, '-p', 'cpu', '-o', {str(tmp_path / 'x.vmfb')!r}]\n"
        "try: main(words)\nexcept SystemExit as done: assert not done.code\n"
        "names = {m.partition('.')[0] for m in sys.modules}\n"
        "print(json.dumps(sorted(names & {'pydantic', 'typer', 'yaml'})))"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (tmp_path / "x.vmfb").exists()
    assert json.loads(done.stdout.splitlines()[-1]) == []
