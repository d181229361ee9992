"""The lit suite under pytest: one test a file, so that pytest-xdist shares them out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import served

SUITE = Path(__file__).resolve().parent.parent / "lit_tests"
SUFFIXES = {".mlir", ".yaml", ".test"}
NOT_TESTS = {"Inputs", "Output", "rules"}

FILES = sorted(
    path
    for path in SUITE.rglob("*")
    if path.suffix in SUFFIXES and not NOT_TESTS & set(path.relative_to(SUITE).parts)
)


def _lit(*arguments: str) -> subprocess.CompletedProcess[str]:
    # Not `-m lit.main`: that module has no __main__ guard, so it would do nothing, with rc 0.
    program = "from lit.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(SUITE)) for path in FILES])
def test_lit(path: Path, tmp_path: Path) -> None:
    # -a shows the script and what it printed; one worker, for pytest-xdist is the parallel one.
    given = (f"exec_root={tmp_path}", f"server={os.environ[served.ADDRESS]}")
    parameters = (word for one in given for word in ("--param", one))
    done = _lit("-a", "-j1", *parameters, str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    # A file that lit did not execute (UNSUPPORTED, no RUN line) has tested nothing.
    assert f"PASS: mlirules :: {path.relative_to(SUITE)}" in done.stdout, done.stdout


def test_every_lit_file_is_run(tmp_path: Path) -> None:
    listed = _lit("--show-tests", "--param", f"exec_root={tmp_path}", str(SUITE))
    assert listed.returncode == 0, listed.stdout + listed.stderr
    names = {line.split(" :: ")[1].strip() for line in listed.stdout.splitlines() if " :: " in line}
    assert names == {str(path.relative_to(SUITE)) for path in FILES}
