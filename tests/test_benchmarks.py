"""The benchmarks still run, on programs too small to measure anything."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def _rewriting(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "rewriting.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("engine", ["cpp", "xdsl"])
def test_rewriting_lowers_the_whole_program(engine: str, tmp_path: Path) -> None:
    if engine == "xdsl":
        pytest.importorskip("xdsl", reason="xDSL is not installed (extra: bench)")
    out = tmp_path / "timings.json"
    wanted = ["--engines", engine, "--base", engine, "--ops", "20", "--repeat", "1"]
    done = _rewriting(*wanted, "--json", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    (timing,) = json.loads(out.read_text(encoding="utf-8"))
    assert (timing["engine"], timing["ops"]) == (engine, 20)
    assert timing["parse"] > 0
    assert timing["rewrite"] > 0


def test_rewriting_growth_reports_every_size() -> None:
    done = _rewriting("--growth", "--engines", "cpp", "--sizes", "10,20", "--repeat", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["ops", "10", "20"]


def test_rewriting_refuses_an_engine_it_does_not_know() -> None:
    done = _rewriting("--engines", "cpp,fast")
    assert done.returncode == 2
    assert "unknown engine fast" in done.stderr
