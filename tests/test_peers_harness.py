"""The comparison with other runtimes, without them and without PyTorch: a program is the model."""

import contextlib
import importlib
import json
import os
import shutil
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlirules.language.faults import MlirulesError

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"

RELU = """module {
  func.func @main(%a: !torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,3],f32> {
    %0 = torch.aten.relu %a : !torch.vtensor<[2,3],f32> -> !torch.vtensor<[2,3],f32>
    return %0 : !torch.vtensor<[2,3],f32>
  }
}
"""


@pytest.fixture(scope="module")
def peers() -> Any:
    """The benchmark as a module."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("peers")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which the model `tiny` is exported."""
    made = tmp_path / "models"
    made.mkdir()
    (made / "tiny.mlir").write_text(RELU, encoding="utf-8")
    (made / "tiny.json").write_text(json.dumps({"flops": 6, "bytes": 48}), encoding="utf-8")
    a = np.asarray([[1, -2, 3], [-4, 5, -6]], dtype=np.float32)
    np.savez(made / "tiny.npz", a0=a, r0=np.maximum(a, 0))
    return made


def _arguments(folder: Path, *more: str) -> list[str]:
    state = str(folder.parent / "peers.jsonl")
    words = ["--only", "tiny", "--threads", "1", "--rounds", "3", "--seconds", "0.1"]
    return [*words, "--folder", str(folder), "--state", state, *more]


@pytest.mark.slow
def test_engines_run_in_turns_and_are_kept(
    peers: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "peers.md"
    report.write_text(f"# Peers\n{peers.BEGIN}\n{peers.END}\nThe end.\n", encoding="utf-8")
    arguments = _arguments(folder, "--engine", "mlirules,onnxruntime", "--report", str(report))
    # There is no ONNX file: that engine's fault fails nobody else.
    assert peers.main(arguments) == 0
    first = capsys.readouterr().out
    assert "onnxruntime: " in first
    row = peers.Store(folder.parent / "peers.jsonl").rows["tiny", 1]
    ours = row.engines["mlirules"]
    assert 0 < ours["cpu_ms"] < 100
    assert ours["error"] == 0
    assert ours["mb"] > 10
    assert row.limit_ms > 0
    assert "failed" in row.engines["onnxruntime"]
    text = report.read_text(encoding="utf-8")
    assert "| tiny |" in text
    assert text.endswith("The end.\n")
    assert peers.main(arguments) == 0
    assert capsys.readouterr().out == ""  # finished: nothing is measured again


def test_wrong_numbers_end_with_1(
    peers: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = np.load(folder / "tiny.npz")
    np.savez(folder / "tiny.npz", a0=golden["a0"], r0=golden["a0"])
    assert peers.main(_arguments(folder, "--engine", "mlirules")) == 1
    assert "mlirules: wrong numbers" in capsys.readouterr().out


def _workers() -> dict[int, str]:
    """The engines' processes that this one started, with their states."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if b"peers_worker" in (stat.parent / "cmdline").read_bytes():
                state, parent = stat.read_text(encoding="utf-8").rpartition(")")[2].split()[:2]
                if int(parent) == os.getpid():
                    found[int(stat.parent.name)] = state
    return found


@pytest.mark.usefixtures("peers")
def test_a_run_that_is_left_leaves_no_engine(folder: Path) -> None:
    turns = sys.modules["turns"]
    plan = turns.Plan(folder, ("mlirules", "stock"), 1, rounds=3, seconds=0.1)
    workshop = turns._Workshop(plan, set(), turns.Turn())
    prepared: list[object] = []

    def prepare() -> None:
        try:
            prepared.append(workshop.prepare("tiny"))
        except MlirulesError as error:
            prepared.append(error)

    thread = threading.Thread(target=prepare)
    thread.start()
    while not workshop._engines:
        time.sleep(0.01)
    workshop.interrupt()  # while its first engine prepares
    thread.join()
    assert "interrupted" in str(prepared[0])
    assert not _workers()


@pytest.mark.usefixtures("peers")
def test_a_search_ends_with_the_run_that_is_left(folder: Path) -> None:
    turns = sys.modules["turns"]
    plan = turns.Plan(folder, ("tuned",), 1, tune="10m", rounds=3, seconds=0.1)
    workshop = turns._Workshop(plan, set(), turns.Turn())

    def prepare() -> None:
        with contextlib.suppress(MlirulesError):
            workshop.prepare("tiny")

    thread = threading.Thread(target=prepare)
    thread.start()
    searches: list[int] = []
    while not searches:
        time.sleep(0.05)
        searches = [one for engine in workshop._engines for one in turns._children(engine.process)]
    workshop.interrupt()
    thread.join()
    assert not any(Path(f"/proc/{one}").exists() for one in searches)


@pytest.mark.usefixtures("peers")
def test_models_that_are_prepared_side_by_side_are_measured_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = sys.modules["turns"]
    names = ["tiny", "other", "gone"]
    for suffix in (".mlir", ".json", ".npz"):
        shutil.copy(folder / f"tiny{suffix}", folder / f"other{suffix}")
    shutil.copy(folder / "tiny.json", folder / "gone.json")  # its program was lost
    # On a machine of one core, too.
    monkeypatch.setattr(turns, "groups", lambda _, models: [set() for _ in range(models)])
    preparing: list[dict[int, str]] = []
    sampled = turns._in_turns

    def watched(engines: Any, *more: Any) -> Any:
        preparing.append(_workers())
        return sampled(engines, *more)

    monkeypatch.setattr(turns, "_in_turns", watched)
    plan = turns.Plan(folder, ("mlirules", "stock"), 1, rounds=3, seconds=0.1)
    found = dict(turns.measured(names, plan, 2))
    assert set(found) == set(names)
    for name in names[:2]:
        assert {"ms", "error"} <= set(found[name].engines["mlirules"])
        assert {"ms", "error"} <= set(found[name].engines["stock"])
    assert "failed" in found["gone"].engines["stock"]
    # Every worker that was there stood still; what fails or comes last has none beside it.
    assert any(preparing)
    assert {state for others in preparing for state in others.values()} <= {"T", "Z"}


def test_models_side_by_side_have_cores_of_their_own(
    peers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = sys.modules["turns"]
    monkeypatch.setattr(turns.os, "sched_getaffinity", lambda _: {*range(8)})
    monkeypatch.setattr(turns.cpu, "core_of", lambda cpu: f"core {cpu % 4}")
    assert turns.groups(2, 2) == [{0, 4, 1, 5}, {2, 6, 3, 7}]
    assert turns.groups(2, 1) == [{0, 4, 1, 5}]
    assert turns.groups(4, 1) == turns.groups(8, 1) == [set()]
    assert turns.groups(4, 2) == [set(), set()]  # they share all
    with pytest.raises(peers.MlirulesError, match=r"3 models of 2 threads need 6 cores; .* 4"):
        turns.groups(2, 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "tvm"], "tvm given; known: eager"),
        (["--engine", "tuned"], "needs a budget"),
        (["--only", "nothing-*"], "no such model"),
        (["--threads", "0"], "--threads: at least 1"),
        (["--together", "0"], "--together: at least 1"),
        (["--drawn", "-1"], "--drawn: at least 0"),
    ],
)
def test_what_is_wrong_is_said(
    peers: Any, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        peers.parse_arguments(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_models_of_timm_are_named_or_drawn(peers: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("timm")
    assert peers.parse_arguments(["--only", "timm:resnet10t"]).models == ["timm:resnet10t"]
    with pytest.raises(SystemExit):
        peers.parse_arguments(["--only", "timm:resnet11t"])
    assert "timm has no such model: resnet11t" in capsys.readouterr().err
    words = ["--drawn", "2", "--seed", "3"]
    names = peers.parse_arguments(words).models
    assert len({*names}) == 2
    assert all(name.startswith("timm:") for name in names)
    assert peers.parse_arguments(words).models == names
    assert peers.parse_arguments([*words, "--only", "tiny"]).models == ["tiny", *names]


def test_a_report_is_looked_for_before_anything_runs(
    peers: Any, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "peers.md"
    arguments = _arguments(folder, "--engine", "mlirules", "--report", str(report))
    assert peers.main(arguments) == 2
    report.write_text("# Peers\n", encoding="utf-8")
    assert peers.main(arguments) == 2
    told = capsys.readouterr()
    assert "there is no such file" in told.err
    assert "has no section" in told.err
    assert told.out == ""


def test_what_tuning_found_stands_beside_the_best_peer(peers: Any) -> None:
    def row(name: str, tuned: float, note: str) -> Any:
        took = {"onnxruntime": 2.0, "openvino": 3.0, "mlirules": 2.5, "tuned": tuned}
        engines = {engine: {"ms": ms, "error": 0.0} for engine, ms in took.items()}
        engines["tuned"]["note"] = note
        return peers.Row(name, 2, "a CPU", 6, 48, 1e11, 1e10, 3, engines)

    rows = [row("one", 2.0, "all-at-once, 1.25 times"), row("two", 2.5, peers.NOTHING)]
    text = peers.section(rows)
    assert "at least as fast as the best peer on 1 of 2. It left the default" in text
    assert "same, on 1.\n- one: all-at-once, 1.25 times\n\n" in text
    assert "After `mlirules tune`" not in peers.section([replace(rows[0], engines={})])


def test_there_are_models_of_every_kind(peers: Any) -> None:
    names = peers.parse_arguments([]).models
    assert len(names) >= 24
    assert "tiny" not in names


@pytest.mark.slow
def test_every_engine_that_is_here_runs(peers: Any, tmp_path: Path) -> None:
    for package in ("torch", "torchvision", "timm", "onnx", "onnxruntime", "openvino"):
        pytest.importorskip(package)
    folder = tmp_path / "models"
    assert peers.main(_arguments(folder)) == 0
    row = peers.Store(tmp_path / "peers.jsonl").rows["tiny", 1]
    assert {name: of.get("failed") for name, of in row.engines.items()} == dict.fromkeys(
        peers.ENGINES
    )
    assert max(of["error"] for of in row.engines.values()) < 1e-4


def test_models_of_other_sizes_are_named_by_how_they_end(peers: Any) -> None:
    assert "bert-x8" not in peers.parse_arguments([]).models
    assert "bert-512" not in peers.parse_arguments(["--only", "bert*"]).models
    longer = peers.parse_arguments(["--only", "*bert-512"]).models
    assert longer == ["bert-512", "distilbert-512", "albert-512"]
    steps = peers.parse_arguments(["--only", "*-step"]).models
    assert steps == ["gpt2-step", "opt-step", "llama-step", "qwen2-step"]
    # One token is no text that could be longer.
    assert "gpt2-1-512" not in peers.parse_arguments(["--only", "*-512"]).models
