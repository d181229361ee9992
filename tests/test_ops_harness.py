"""The benchmark of single ops, without other runtimes and without PyTorch: a program is the op."""

import argparse
import importlib
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import Pipeline, Recipe

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
NAME = "gelu-tanh-1x3072"

RELU = """module {
  func.func @main(%a: !torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,3],f32> {
    %0 = torch.aten.relu %a : !torch.vtensor<[2,3],f32> -> !torch.vtensor<[2,3],f32>
    return %0 : !torch.vtensor<[2,3],f32>
  }
}
"""


def _module(name: str) -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def ops() -> Any:
    """The benchmark as a module."""
    return _module("ops")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which an op is exported: as one that is quickly done."""
    made = tmp_path / "ops"
    made.mkdir()
    (made / f"{NAME}.mlir").write_text(RELU, encoding="utf-8")
    facts = {"flops": 6, "bytes": 48, "read": 24, "written": 24}
    (made / f"{NAME}.json").write_text(json.dumps(facts), encoding="utf-8")
    a = np.asarray([[1, -2, 3], [-4, 5, -6]], dtype=np.float32)
    np.savez(made / f"{NAME}.npz", a0=a, r0=np.maximum(a, 0))
    return made


def _arguments(folder: Path, *more: str) -> list[str]:
    state = str(folder.parent / "ops.jsonl")
    words = ["--only", NAME, "--seconds", "0.05", "--folder", str(folder), "--state", state]
    return [*words, *more]


def test_an_op_is_measured_kept_and_reported(
    ops: Any,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "openvino" else found(name, *more),
    )
    report, kept = tmp_path / "models.md", tmp_path / "ops.json"
    report.write_text(f"# Ops\n{ops.BEGIN}\nold\n{ops.END}\nThe end.\n", encoding="utf-8")
    kept.write_text(json.dumps({"another": {}}), encoding="utf-8")
    arguments = _arguments(folder, "--engine", "openvino,mlirules")
    arguments += ["--report", str(report), "--json", str(kept)]
    assert ops.main(arguments) == 0
    said = capsys.readouterr().out
    assert "openvino is not installed, and left out" in said
    rows = json.loads(kept.read_text(encoding="utf-8"))
    assert list(rows) == ["another", NAME]
    assert list(rows[NAME]["engines"]) == ["mlirules"]
    assert rows[NAME]["engines"]["mlirules"]["error"] == 0
    # The speed is that of 48 bytes, of which numpy's call is most: not that of a large copy.
    assert 0 < rows[NAME]["bandwidth"] < 5e9
    text = report.read_text(encoding="utf-8")
    assert f"| {NAME} |" in text
    assert "| GELU | 1 |" in text
    assert "old" not in text
    assert text.endswith("The end.\n")
    assert ops.main(arguments) == 0
    assert NAME not in capsys.readouterr().out  # finished: nothing is measured again


def test_wrong_numbers_end_with_1(
    ops: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = np.load(folder / f"{NAME}.npz")
    np.savez(folder / f"{NAME}.npz", a0=golden["a0"], r0=golden["a0"])
    assert ops.main(_arguments(folder, "--engine", "mlirules")) == 1
    assert "mlirules: wrong numbers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "tvm"], "tvm given; known: eager"),
        (["--only", "nothing-*"], "no such op: nothing-*"),
        (["--forms", "--report", "models.md"], "of engines, not of forms"),
    ],
)
def test_what_is_wrong_is_said(
    ops: Any, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        ops.parse_arguments(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_report_needs_ops_and_its_file(
    ops: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = _arguments(folder, "--finished", "--report", "nowhere.md")
    assert ops.main(arguments) == 2
    assert "none of these ops is finished" in capsys.readouterr().err
    turns = _module("turns")
    row = turns.Row(NAME, 1, "a CPU", 6, 48, 1e11, 1e10, 3, {"eager": {"ms": 1.0, "error": 0.0}})
    turns.Store(folder.parent / "ops.jsonl").put(row)
    assert ops.main(arguments) == 2
    assert "nowhere.md: error[file]: there is no such file" in capsys.readouterr().err


def test_there_are_ops_of_every_kind(ops: Any) -> None:
    shapes = _module("ops_shapes")
    assert ops.parse_arguments([]).ops == [op.name for op in shapes.OPS]
    kinds = [op.kind for op in shapes.by_name().values()]
    assert len(kinds) == len(shapes.OPS) >= 30  # no name twice
    assert {kind for kind in kinds if kinds.count(kind) < 4} == set()
    assert set(ops.BY_BYTES) < set(kinds)


def test_the_tables_hold_all_beside_the_best(ops: Any) -> None:
    turns = _module("turns")

    def row(name: str, flops: float, **ms: float) -> Any:
        engines = {engine: {"ms": took, "error": 1e-7} for engine, took in ms.items()}
        return turns.Row(name, 1, "a CPU", flops, 8e6, 1e11, 1e10, 3, engines, 5e9)

    slow = row("gelu-128x3072", 0, eager=4.0, openvino=2.0, mlirules=4.0)
    fast = row("gelu-197x3072", 0, eager=2.0, openvino=9.0, mlirules=1.0)
    broken = row("product-128x768x768", 1e9, eager=1.0)
    broken.engines["mlirules"] = {"failed": "no <way>"}
    text = ops.section([slow, fast, broken], "About.")
    assert text.startswith("About.\n")
    # The best was 0.5 and 2 times ours; the limit, 0.8 ms, is 0.2 and 0.8 of ours, memory's 1.6 ms
    # twice that.
    assert "| GELU | 2 | 1.00 | 0.50 (gelu-128x3072) | 0.40 | 0.80, at least 0.40 |" in text
    assert (
        "| gelu-128x3072 | 4.0000 | 2.0000 | 4.0000 | 0.8000 | 0.50 | 0.20 | 0.40 | 1e-07 |" in text
    )
    assert "| product-128x768x768 | 1.0000 |  | fails | 10.0000 |  |  |  | 1e-07 |" in text
    assert "- product-128x768x768, mlirules: no &lt;way>" in text


def test_shapes_at_random_are_those_of_their_seed() -> None:
    forms = _module("ops_forms")
    drawn = forms.drawn(8, seed=1)
    assert drawn == forms.drawn(8, seed=1) != forms.drawn(8, seed=2)
    assert [forms.kind_of(op) for op in drawn].count("product") == 2


def test_kernels_that_are_measured_make_way_for_nothing() -> None:
    forms = _module("ops_forms")
    base = Pipeline.load("cpu-fast")
    assert any(stage.yields is not None for stage in base.stages)
    made = forms.pipeline_with(base, forms.FORMS["kernel"]).stages
    assert {stage.yields for stage in made} == {None}
    assert {"kernels", "products"} <= {stage.name for stage in made}
    assert "depthwise" not in {stage.name for stage in made}


@pytest.mark.slow
def test_the_forms_of_an_op_are_compared(
    ops: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in _module("ops_forms").THREADS:
        monkeypatch.setenv(name, "1")
    kept = tmp_path / "forms.json"
    assert ops.main(["--random", "1", "--seconds", "0.01", "--json", str(kept)]) == 0
    (row,) = json.loads(kept.read_text(encoding="utf-8")).values()
    assert {"default", "kernel", "plain", "one-by-one"} <= set(row["ms"])
    assert "| all | 1 |" in capsys.readouterr().out


@pytest.mark.slow
def test_every_engine_that_is_here_runs(ops: Any, tmp_path: Path) -> None:
    packages = ("torch", "torchvision", "timm", "transformers", "onnx", "onnxruntime", "openvino")
    for package in packages:
        pytest.importorskip(package)
    kept = tmp_path / "ops.json"
    words = ["--only", "attention-12x1x*", "--seconds", "0.1", "--json", str(kept)]
    words += ["--folder", str(tmp_path / "ops"), "--state", str(tmp_path / "ops.jsonl")]
    assert ops.main(words) == 0
    (row,) = json.loads(kept.read_text(encoding="utf-8")).values()
    assert {name: of.get("failed") for name, of in row["engines"].items()} == dict.fromkeys(
        ops.ENGINES
    )
    assert max(of["error"] for of in row["engines"].values()) < 1e-4
    # Scores and their product with the values, of 12 heads of 128 keys.
    assert row["flops"] == 4 * 12 * 128 * 64


def test_a_model_says_of_each_kind_that_was_measured_again_at_which_commit(tmp_path: Path) -> None:
    renewed = _module("cost_model").renewed
    path = tmp_path / "model.json"
    same = {"machine": "m", "target": "cpu", "features": [], "flags": 1, "cold": ["product"]}
    held = {"shapes": 2}
    kinds = {"1x1 convolution": 1, "product": 2}
    said = {**same, "kinds": kinds, "held_out": dict.fromkeys(kinds, held), "commit": "one"}
    for kind, commit in (("product", "two"), ("1x1", "three"), ("product", "four")):
        path.write_text(json.dumps(said))
        said = renewed(path, {**said, "commit": commit, "cold": list(kinds)}, kind)
    assert said["commit"] == "one; product: four; 1x1 convolution: three"
    assert said["samples"] == 4
    assert said["cold"] == sorted(kinds)


class Layer:
    """A program that says when it is called."""

    def __init__(self, name: str, said: list[str], seconds: float = 0) -> None:
        self.name, self._said, self._seconds = name, said, seconds

    def __call__(self) -> None:
        self._said.append(self.name)
        end = time.thread_time() + self._seconds
        while time.thread_time() < end:
            pass


def test_each_call_is_one_of_a_layer_in_a_network() -> None:
    forms = _module("ops_forms")
    said: list[str] = []
    layers = {name: Layer(name, said, 0.002 * n) for n, name in enumerate("ab")}

    def network(layer: Layer) -> None:
        said.append(f"before {layer.name}")
        # None of this is timed.
        end = time.thread_time() + 0.001
        while time.thread_time() < end:
            pass

    times = forms.cold_race(layers, network, 0)
    assert said[:2] == ["a", "b"]
    assert said[2::2] == [f"before {name}" for name in said[3::2]]
    assert said[3::2] == [*"aaabbb", *"ab" * 8]
    assert times["a"] < 0.001
    assert 0.002 <= times["b"] < 0.003
    said.clear()
    layers = {"b": layers["b"], "c": Layer("c", said, 0.02)}
    forms.cold_race(layers, network, 0, hopeless=4)
    assert (said.count("b"), said.count("c")) == (12, 4)


def test_one_call_that_was_held_up_leaves_no_form_out() -> None:
    forms = _module("ops_forms")
    calls: list[str] = []

    def held_up() -> None:
        calls.append("held up")
        end = time.thread_time() + (0.02 if len(calls) == 2 else 0.0005)
        while time.thread_time() < end:
            pass

    layers = {"held up": held_up, "b": Layer("b", [], 0.001)}
    assert forms.cold_race(layers, lambda _: None, 0, hopeless=4)["held up"] < 0.001
    calls.clear()
    assert forms.race(layers, 0, hopeless=4)["held up"] < 0.001


def test_before_a_layer_other_memory_is_read_and_its_image() -> None:
    forms, shapes, caches = _module("ops_forms"), _module("ops_shapes"), _module("caches")
    target = Target.parse("cpu")
    op = shapes.Product(2, 5, 3)
    rows, weights, bias = arrays = op.arrays()
    text = forms.program({"main": (op, arrays)})
    binary, _ = Recipe(text, target, Pipeline.load("cpu-fast")).compile()
    layer = runtime.Program(binary, [rows], forms.DEVICE)
    network = forms.Network(target)
    network(layer)
    assert np.allclose(layer.results()[0], rows @ weights.T + bias, atol=1e-5)
    memory = network._away._memory
    assert memory.nbytes >= max(caches.AWAY, 4 * (caches.second_cache() or 0))
    # Pages that nobody wrote would all be one.
    assert memory.min() == 1


def test_the_second_cache_is_as_linux_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caches = _module("caches")
    monkeypatch.setattr(caches, "_SECOND", tmp_path / "size")
    assert caches.second_cache() is None
    (tmp_path / "size").write_text("2048K\n")
    assert caches.second_cache() == 2 << 20


def test_samples_with_weights_in_the_caches_are_left_out_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = _module("cost_model")
    path = tmp_path / "samples.jsonl"
    old, new = {"op": "a", "ms": {}}, {"op": "b", "ms": {}, "cold": True}
    path.write_text("".join(json.dumps(sample) + "\n" for sample in (old, new)))
    console = Console(width=300)
    assert model.cold(model.read_samples(path), path, console) == [new]
    assert "1 samples were measured with their weights in the caches" in capsys.readouterr().out
    # Measured again: the last line of an op counts.
    with path.open("a") as file:
        file.write(json.dumps({**old, "cold": True}) + "\n")
    assert len(model.cold(model.read_samples(path), path, console)) == 2
    assert not capsys.readouterr().out
    # Of warm ones alone nothing is made.
    rows = [{**old, "op": str(n)} for n in range(2 * model.LEAST_SAMPLES)]
    path.write_text("".join(json.dumps(sample) + "\n" for sample in rows))
    options = argparse.Namespace(samples=path, target="cpu")
    assert model.fit(options, console) == 1
    said = capsys.readouterr().out
    assert "200 samples were measured with their weights in the caches" in said
    assert "0 samples are too few" in said


def test_what_ships_is_written_to_the_file_of_this_machine(tmp_path: Path) -> None:
    model = _module("cost_model")
    here, target = model.machine.machine(), Target.parse("cpu:x86-64-v4")
    own = tmp_path / "avx512-x86-64-v4.json"
    family, other = tmp_path / "avx512-sapphirerapids.json", tmp_path / "avx512-znver5.json"
    other.write_text(json.dumps({"machine": "another", "target": target.name}))
    assert model.shipped(target, tmp_path) == own
    family.write_text(json.dumps({"machine": here, "target": target.name}))
    assert model.shipped(target, tmp_path) == family
    own.write_text("{}")
    assert model.shipped(target, tmp_path) == own
