"""The corpus benchmark, on a corpus of a few programs that is made here."""

import importlib
import json
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"

ADD = """module {
  func.func @main(%a: !torch.vtensor<[2,3],f32>, %b: !torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,3],f32> {
    %one = torch.constant.int 1
    %0 = torch.aten.add.Tensor %a, %b, %one : !torch.vtensor<[2,3],f32>, !torch.vtensor<[2,3],f32>, !torch.int -> !torch.vtensor<[2,3],f32>
    return %0 : !torch.vtensor<[2,3],f32>
  }
}
"""  # noqa: E501
UPDATE = """module {
  func.func @main(%a: !torch.vtensor<[2],si64>) -> (!torch.vtensor<[2],si64>, !torch.int) {
    %one = torch.constant.int 1
    %0 = torch.aten.add.Scalar %a, %one, %one : !torch.vtensor<[2],si64>, !torch.int, !torch.int -> !torch.vtensor<[2],si64>
    return %0, %one : !torch.vtensor<[2],si64>, !torch.int
  }
}
"""  # noqa: E501
UNKNOWN = """module {
  func.func @main(%a: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> {
    %0 = torch.aten.nonexistent_here %a : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>
    return %0 : !torch.vtensor<[2],f32>
  }
}
"""
EMPTY_SUM = """module {
  func.func @main(%a: !torch.vtensor<[2,0],f32>, %b: !torch.vtensor<[0,3],f32>) -> !torch.vtensor<[2,3],f32> {
    %0 = torch.aten.mm %a, %b : !torch.vtensor<[2,0],f32>, !torch.vtensor<[0,3],f32> -> !torch.vtensor<[2,3],f32>
    return %0 : !torch.vtensor<[2,3],f32>
  }
}
"""  # noqa: E501


RELU = """module {
  func.func @main(%a: !torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,3],f32> {
    %0 = torch.aten.relu %a : !torch.vtensor<[2,3],f32> -> !torch.vtensor<[2,3],f32>
    return %0 : !torch.vtensor<[2,3],f32>
  }
}
"""
PIPELINE = """pipeline: only-relu
summary: One rule, so that the shipped ones cannot change what these tests see.
targets: [cpu]
stages:
  - phase: torch
    rules: [RULES]
    driver: walk
"""
RULE = """rule: only-relu
kind: conversion
summary: Lower torch.aten.relu to an elementwise linalg op.
reason: The harness needs one rule that works.
types:
  x: vtensor<... x T>
  y: vtensor<... x T>
match:
  - y = torch.aten.relu(x)
where:
  - is_float(T)
rewrite:
  - y[...] = max(x[...], 0)
tests:
  - name: static
    input: |
      func.func @relu(%x: !torch.vtensor<[3],f32>) -> !torch.vtensor<[3],f32> {
        %y = torch.aten.relu %x : !torch.vtensor<[3],f32> -> !torch.vtensor<[3],f32>
        return %y : !torch.vtensor<[3],f32>
      }
    check: |
      CHECK: linalg.
  - name: integers are left alone
    unchanged: |
      func.func @relu(%x: !torch.vtensor<[3],si32>) -> !torch.vtensor<[3],si32> {
        %y = torch.aten.relu %x : !torch.vtensor<[3],si32> -> !torch.vtensor<[3],si32>
        return %y : !torch.vtensor<[3],si32>
      }
    because: is_float(T)
"""


def _tensor(array: Any) -> dict[str, Any]:
    return {"kind": "tensor", "dtype": array.dtype.name, "shape": list(array.shape)}


def _entry(
    folder: Path,
    name: str,
    text: str,
    args: list[Any],
    results: list[Any],
    *,
    outputs: tuple[int, ...] = (0,),
    count: int = 1,
    random: bool = False,
    known: str = "pass",
) -> dict[str, Any]:
    (folder / "core").mkdir(parents=True, exist_ok=True)
    (folder / "data").mkdir(exist_ok=True)
    (folder / "core" / f"{name}.mlir").write_text(text)
    tensors = {f"r{i}": r for i, r in enumerate(results) if not isinstance(r, int)}
    inputs = {f"a{i}": a for i, a in enumerate(args)}
    np.savez(folder / "data" / f"{name}.npz", **inputs, **tensors)
    return {
        "name": name,
        "area": "test",
        "args": [_tensor(a) for a in args],
        "results": [
            {"kind": "int", "value": r} if isinstance(r, int) else _tensor(r) for r in results
        ],
        "random": random,
        "variants": {"core": {"result_index": list(outputs), "n_results": count, "builtin": known}},
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    a, b = np.full((2, 3), 2, np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    v = np.array([1, 2])
    z, w = np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)
    one = np.ones(2, np.float32)
    entries = [
        _entry(folder, "Add", ADD, [a, b], [a + b]),
        _entry(folder, "Random", ADD, [a, b], [a - b], random=True),
        _entry(folder, "Wrong", ADD, [a, b], [a + b + 1]),
        _entry(folder, "WrongType", ADD, [a, b], [(a + b).astype(np.float64)]),
        _entry(folder, "Update", UPDATE, [v], [1], outputs=(1,), count=2),
        _entry(folder, "Unknown", UNKNOWN, [one], [one], known="fail_compile"),
        _entry(folder, "EmptySum", EMPTY_SUM, [z, w], [z @ w], known="crash"),
        _entry(folder, "Relu", RELU, [b - 2], [np.maximum(b - 2, 0)]),
        _entry(folder, "Differs", ADD, [a, b], [a]) | {"golden_differs": "a reason"},
    ]
    (folder / "index.json").write_text(json.dumps(entries))
    return folder


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "corpus.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _rows(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    return {(r["program"], r["mode"]): r for r in json.loads(path.read_text())["rows"]}


@pytest.mark.slow
def test_builtin_outcomes_and_resuming(corpus: Path, tmp_path: Path) -> None:
    out, state = tmp_path / "out.json", tmp_path / "state.jsonl"
    wanted = [corpus, "--mode", "builtin", "--state", state, "--json", out]
    done = _run(*wanted)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = _rows(out)
    assert {name: row["outcome"] for (name, _), row in rows.items()} == {
        "Add": "pass",
        "Random": "pass",
        "Update": "pass",
        "Wrong": "numerics",
        "WrongType": "numerics",
        "Unknown": "compile",
        "EmptySum": "crash",
        "Relu": "pass",
    }
    assert "6 of 6 elements differ" in rows["Wrong", "builtin"]["why"]
    assert "dtype float32, golden float64" in rows["WrongType", "builtin"]["why"]
    assert "unknown" in rows["Unknown", "builtin"]["why"]
    assert "iree-compile crashed (SIGFPE)" in rows["EmptySum", "builtin"]["why"]
    assert "builtin unlike the index: Wrong, WrongType" in done.stdout

    assert "0 of 8 programs done now" in _run(*wanted).stdout
    # What an interrupted run left half written is no finished work.
    state.write_text(state.read_text()[:-20])
    assert "1 of 8 programs done now" in _run(*wanted).stdout
    (corpus / "core" / "Add.mlir").write_text(ADD + "// changed\n")
    assert "1 of 8 programs done now" in _run(*wanted).stdout
    (corpus / "core" / "Add.mlir").write_text(ADD)


@pytest.fixture
def only_relu(tmp_path: Path) -> Path:
    path = tmp_path / "only-relu.yaml"
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "only-relu.yaml").write_text(RULE)
    path.write_text(PIPELINE.replace("RULES", str(tmp_path / "rules")))
    return path


@pytest.mark.slow
def test_rules_alone_and_with_the_rest_by_iree(
    corpus: Path, tmp_path: Path, only_relu: Path
) -> None:
    out, state = tmp_path / "out.json", tmp_path / "state.jsonl"
    wanted = [corpus, "--pipeline", only_relu, "--state", state, "--json", out, "--check"]
    for program in ("Relu", "Update", "EmptySum"):
        wanted += ["--only", program]
    done = _run(*wanted)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = _rows(out)
    assert {key: row["outcome"] for key, row in rows.items()} == {
        ("EmptySum", "builtin"): "crash",
        ("EmptySum", "fallback"): "crash",
        ("EmptySum", "rules"): "leftover",
        ("Relu", "builtin"): "pass",
        ("Relu", "fallback"): "pass",
        ("Relu", "rules"): "pass",
        ("Update", "builtin"): "pass",
        ("Update", "fallback"): "pass",
        ("Update", "rules"): "leftover",
    }
    left = {"torch.aten.add.Scalar", "torch.constant.int"}
    assert set(rows["Update", "rules"]["leftovers"]) == left
    figures = json.loads(out.read_text())["variants"]["core"]
    assert figures["converted"] == 1
    assert figures["leftovers"] == {"torch.aten.add.Scalar": 1, "torch.aten.mm": 1}

    only = _run(*wanted, "--convert-only")
    assert only.returncode == 0, only.stdout + only.stderr
    outcomes = {name: row["outcome"] for (name, _), row in _rows(out).items()}
    assert outcomes == {"EmptySum": "leftover", "Relu": "converted", "Update": "leftover"}


@pytest.mark.slow
def test_everything_about_one_program(corpus: Path, only_relu: Path) -> None:
    shown = _run(corpus, "--pipeline", only_relu, "--show", "Relu")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for text in ("torch.aten.relu", "linalg.", "none: converted by rules", "pass"):
        assert text in shown.stdout
    wrong = _run(corpus, "--pipeline", only_relu, "--show", "Wrong")
    assert wrong.returncode == 1
    assert "torch.aten.add.Tensor" in wrong.stdout
    assert "golden 0" in wrong.stdout


def test_a_pipeline_that_cannot_work_ends_the_run(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(PIPELINE.replace("driver: walk", "driver: run"))
    done = _run(corpus, "--pipeline", path, "--convert-only", "--state", tmp_path / "s")
    assert done.returncode == 2, done.stdout
    assert "wrong.yaml" in done.stderr


def test_regressions_and_gains(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    data = importlib.import_module("corpus_data")
    report = importlib.import_module("corpus_report")
    row = importlib.import_module("corpus_worker").Row
    first, second, *_ = data.load(corpus)
    done = [
        report.Done(first, "core", row("builtin", "pass")),
        report.Done(first, "core", row("fallback", "numerics", "result 0")),
        report.Done(second, "core", row("builtin", "crash")),
        report.Done(second, "core", row("fallback", "pass")),
    ]
    summary = report.summarise(done)["core"]
    assert (summary.regressions, summary.gains) == ([first.name], [second.name])


def test_interrupted_work_is_kept(corpus: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    arguments = ["--mode", "builtin", "--workers", "1", "--state", str(state)]
    # On a loaded machine a run may end before the interrupt reaches it: that shows nothing, so it
    # is tried again; at least one of the tries must be interrupted. What a shell starts in the
    # background ignores interrupts, and so do its children unless told otherwise.
    for _ in range(5):
        state.unlink(missing_ok=True)
        running = subprocess.Popen(
            [sys.executable, str(BENCHMARKS / "corpus.py"), str(corpus), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        deadline = time.monotonic() + 60
        while not (state.exists() and state.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        said = running.communicate(timeout=30)[0]
        if running.returncode != 0:
            break
    assert running.returncode == 130, said
    assert "run again to go on" in said
    finished = [json.loads(line)["program"] for line in state.read_text().splitlines()]
    assert "Add" in finished
    assert len(finished) < 8


def test_timeout_ends_a_program(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    limits = ["--timeout", "0.001", "--only", "Add", "--state", tmp_path / "s", "--json", out]
    done = _run(corpus, "--mode", "builtin", *limits)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _rows(out)["Add", "builtin"]["outcome"] == "timeout"
    more = _run(corpus, "--mode", "builtin", "--only", "Add", "--state", tmp_path / "s")
    assert "1 of 1 programs done now" in more.stdout


def test_archive_and_choice(corpus: Path, tmp_path: Path) -> None:
    archive = tmp_path / "torch-e2e.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(corpus, "torch-e2e")
    chosen = ["--mode", "builtin", "--only", "Add", "--only", "Wrong*", "--sample", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path))
        done = _run(tmp_path, *chosen, "--seed", "1", "--state", tmp_path / "s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 programs done now" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mode", "magic"], "known: builtin, fallback, rules"),
        (["--only", "Nothing*"], "no program has such a name or area"),
        (["--show", "Ad"], "did you mean 'Add'"),
        (["--target", "cpo"], "unknown target"),
    ],
)
def test_wrong_input_is_refused(corpus: Path, arguments: list[str], said: str) -> None:
    done = _run(corpus, *arguments)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr


def test_no_corpus_is_refused(tmp_path: Path) -> None:
    done = _run(tmp_path)
    assert done.returncode == 2
    assert "torch-e2e.tar.xz" in done.stderr
