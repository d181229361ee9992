"""The zoo's harness, without PyTorch: programs that are here stand for exported models."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlirules.support.pool import Work

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"

RELU = """module {
  func.func @main(%a: !torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,3],f32> {
    %0 = torch.aten.relu %a : !torch.vtensor<[2,3],f32> -> !torch.vtensor<[2,3],f32>
    return %0 : !torch.vtensor<[2,3],f32>
  }
}
"""
UNKNOWN = RELU.replace("torch.aten.relu %a", 'torch.operator "torch.aten.nonexistent_here"(%a)')
UNKNOWN = UNKNOWN.replace(": !torch.vtensor<[2,3],f32> ->", ": (!torch.vtensor<[2,3],f32>) ->")

HANGING = """import time
from dataclasses import asdict
from zoo_worker import Row

class Doer:
    def __init__(self, given):
        pass

    def __call__(self, job, tell):
        model, modes = job
        if model == "here/relu":
            tell({"stage": "compile", "mode": "default"})
            time.sleep(600)
        for mode in modes:
            tell({"row": asdict(Row(model, mode, "compile"))})
"""


@pytest.fixture(scope="module")
def zoo() -> Any:
    """The benchmark as a module."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module("zoo")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def two(zoo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which two models are exported: one that works and one with an unknown op."""
    models = {"here/relu": None, "here/unknown": None}
    monkeypatch.setattr(zoo.zoo_models, "recipes", lambda: models)
    store = zoo.Store(tmp_path / "zoo.jsonl")
    keys = zoo.Keys("cpu", "")
    a = np.array([[-1, 0, 1], [2, -3, 4]], np.float32)
    for name, text in (("here/relu", RELU), ("here/unknown", UNKNOWN)):
        file = zoo.stem(tmp_path, name)
        file.with_suffix(".mlir").write_text(text)
        np.savez(file.with_suffix(".npz"), a0=a, r0=np.maximum(a, 0))
        store.put(zoo.Row(name, "export", "right"), "", keys.of(name, "export"))
    return tmp_path


def _outcomes(folder: Path) -> dict[tuple[str, str], str]:
    rows = [json.loads(line)["row"] for line in (folder / "zoo.jsonl").read_text().splitlines()]
    return {(row["model"], row["mode"]): row["outcome"] for row in rows}


def test_it_has_the_models_it_says(zoo: Any) -> None:
    by_package: dict[str, int] = {}
    for name in zoo.zoo_models.recipes():
        package = name.split("/")[0]
        by_package[package] = by_package.get(package, 0) + 1
    assert sum(by_package.values()) >= 150
    assert by_package["transformers"] >= 60


def test_modes_are_judged_and_finished_work_is_not_done_again(
    zoo: Any, two: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    modes = "export,convert,plain,default,rules"
    options = ["--folder", str(two), "--workers", "1", "--mode", modes]
    assert zoo.main([*options, "--check"]) == 0
    assert _outcomes(two) == {
        ("here/relu", "export"): "right",
        ("here/unknown", "export"): "right",
        ("here/relu", "convert"): "right",
        ("here/unknown", "convert"): "left",
        ("here/relu", "plain"): "right",
        ("here/relu", "default"): "right",
        ("here/relu", "rules"): "right",
        ("here/unknown", "plain"): "compile",
        ("here/unknown", "default"): "compile",
        ("here/unknown", "rules"): "compile",
    }
    lines = (two / "zoo.jsonl").read_text()
    assert zoo.main([*options, "--check"]) == 0
    assert (two / "zoo.jsonl").read_text() == lines
    assert "here/unknown" in capsys.readouterr().out


@pytest.mark.slow
def test_wrong_numbers_are_told(zoo: Any, two: Path) -> None:
    relu = zoo.stem(two, "here/relu").with_suffix(".npz")
    with np.load(relu) as values:
        a, r = values["a0"], values["r0"]
    np.savez(relu, a0=a, r0=r + 1)
    options = ["--folder", str(two), "--workers", "1", "--only", "relu", "--mode", "export,default"]
    assert zoo.main([*options, "--check"]) == 1
    assert _outcomes(two)["here/relu", "default"] == "wrong"


def test_a_worker_that_hangs_costs_one_model(
    zoo: Any, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (two / "hanging.py").write_text(HANGING)

    def hanging(_: str, given: Any, _limit: float, most: int, path: tuple[str, ...]) -> Work:
        return Work("hanging:Doer", given, 2.0, most, (*path, str(two)))

    monkeypatch.setattr(zoo, "Work", hanging)
    options = ["--folder", str(two), "--workers", "1", "--mode", "default,rules"]
    assert zoo.main(options) == 0
    assert _outcomes(two)["here/relu", "rules"] == "timeout"
    assert _outcomes(two)["here/unknown", "rules"] == "compile"


def test_the_report_goes_between_its_marks(zoo: Any, two: Path) -> None:
    document = two / "coverage.md"
    begin, end = (mark.format("cpu") for mark in (zoo.zoo_report.BEGIN, zoo.zoo_report.END))
    document.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    store = zoo.Store(two / "zoo.jsonl")
    keys = zoo.Keys("cpu", zoo.sources_digest())
    for model, left in (("here/relu", {}), ("here/unknown", {"torch.aten.x": 2})):
        for mode in ("default", "rules"):
            outcome = "left" if left and mode == "rules" else "right"
            row = zoo.Row(model, mode, outcome, left=left)
            store.put(row, "cpu", keys.of(model, mode))
    options = ["--folder", str(two), "--workers", "1", "--mode", "export,default,rules"]
    assert zoo.main([*options, "--report", str(document)]) == 0
    text = document.read_text()
    assert text.startswith(f"before\n{begin}\nOf 2 models 2 have been exported")
    assert "| here/relu | - | right | right | - | 0.0 | 0 |" in text
    assert "| here/unknown | - | right | left | - | 0.0 | 2 |" in text
    assert text.endswith(f"{end}\nafter\n")
    assert "old" not in text
    document.write_text("no marks\n")
    assert zoo.main([*options, "--report", str(document)]) == 2


def test_an_interrupted_line_is_ignored(zoo: Any, tmp_path: Path) -> None:
    path = tmp_path / "zoo.jsonl"
    zoo.Store(path).put(zoo.Row("a/b", "export", "right"), "", "key")
    with path.open("a") as file:
        file.write('{"format": 1, "row"')
    again = zoo.Store(path)
    again.put(zoo.Row("a/c", "export", "right"), "", "key")
    assert zoo.Store(path).get("a/b", "export", "", "key").outcome == "right"
    assert zoo.Store(path).get("a/c", "export", "", "key").outcome == "right"
    assert zoo.Store(path).get("a/b", "export", "", "other") is None


@pytest.mark.parametrize(
    ("got", "want", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([np.nan, np.inf], [np.nan, np.inf], 0.0),
        ([np.nan, 1.0], [1.0, 1.0], np.inf),
        ([np.inf, 1.0], [-np.inf, 1.0], np.inf),
        ([0.0], [0.0], 0.0),
    ],
)
def test_errors_are_relative_to_the_largest(
    zoo: Any, got: list[float], want: list[float], error: float
) -> None:
    judged = sys.modules["zoo_worker"]
    assert zoo.zoo_report.Row is judged.Row
    assert judged.relative_error([np.array(got)], [np.array(want)]) == error


class Recipe:
    """A recipe of a module that is made of a function."""

    def __init__(self, forward: Any) -> None:
        self.forward = forward

    def make(self) -> Any:
        torch = pytest.importorskip("torch")
        forward = self.forward

        class Made(torch.nn.Module):  # type: ignore[misc,name-defined]
            def forward(self, a: Any) -> Any:
                return forward(a)

        return Made(), (torch.linspace(-1, 1, 12).reshape(3, 4),), {}


@pytest.mark.parametrize(
    ("forward", "certain"),
    [(lambda a: a * 2, True), (lambda a: (a + 1e4) - 1e4, False), (lambda a: a / 0 * 0, False)],
)
def test_weights_that_rounding_decides_are_refused(
    zoo: Any, monkeypatch: pytest.MonkeyPatch, forward: Any, certain: bool
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(zoo.zoo_models, "recipes", lambda: {"here/made": Recipe(forward)})
    if certain:
        model, (argument,), _ = zoo.zoo_models.made("here/made")
        assert model(argument).equal(argument * 2)
        return
    with pytest.raises(ValueError, match="no verdict on a compiler"):
        zoo.zoo_models.made("here/made")


def test_a_channel_that_hardly_varies_is_not_blown_up(zoo: Any) -> None:
    torch = pytest.importorskip("torch")
    norm = torch.nn.BatchNorm2d(2).eval()
    seen = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    seen[:, 1] = 5 + 1e-4 * seen[:, 1]
    zoo.zoo_models.draw(norm, (seen,), {})
    assert norm(seen)[:, 1].std() < 1e-3
    assert norm.running_var.min() > 0.5
