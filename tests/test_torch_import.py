"""Importing PyTorch models: what comes out is what PyTorch computes, and refusals say where."""

import importlib.metadata
import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlirules.drivers.frontend.named import Name
from mlirules.drivers.frontend.torch import DynamicDim, Options, import_file, import_model
from mlirules.drivers.iree import npz
from mlirules.drivers.iree.compiler import compile_module, parse
from mlirules.drivers.iree.runtime import run
from mlirules.drivers.iree.targets import Target
from mlirules.language.faults import MlirulesError

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
CPU = Target.parse("cpu")

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed (pip install 'mlirules[torch]')",
)

NET = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width="4"):
        super().__init__()
        self.linear = nn.Linear(3, int(width))

    def forward(self, x):
        return self.linear(x)

net = Net()

def example_inputs():
    return (torch.randn(2, 3),)
"""


def written(folder: Path, text: str) -> str:
    (folder / "model.py").write_text(text, encoding="utf-8")
    return str(folder / "model.py")


def torch_is(release: str) -> bool:
    return importlib.metadata.version("torch").startswith(release + ".")


def ops_of(text: str) -> Counter[str]:
    found = Counter(re.findall(r"torch\.aten\.[\w.]+", text))
    del found["torch.aten.alias"]
    return found


def refused(name: str, **options: Any) -> str:
    with pytest.raises(MlirulesError) as caught:
        import_model(name, Options(**options))
    assert len(caught.value.faults) == 1
    return str(caught.value)


def assert_runs(mlir: Path, golden: Path, rtol: float, atol: float) -> None:
    got = run(compile_module(mlir.read_text(encoding="utf-8"), CPU), npz.load(golden), CPU)
    for have, want in zip(got, npz.load(golden, prefix="r"), strict=True):
        assert have.dtype == want.dtype
        np.testing.assert_allclose(have, want, rtol=rtol, atol=atol)


# --- the committed examples, which need no torch ---------------------------------------------


@pytest.mark.parametrize(
    ("program", "golden", "atol"),
    [
        ("hello_nn_world.mlir", "hello_nn_world.npz", 1e-5),
        ("hello_nn_world.aten.mlir", "hello_nn_world.npz", 1e-5),
        ("toy_model.mlir", "toy_model.npz", 0.0),
        ("toy_model.aten.mlir", "toy_model.npz", 0.0),
        ("hello_nn_world_train.core.mlir", "hello_nn_world_train.npz", 1e-6),
    ],
)
def test_example_gives_pytorchs_results(program: str, golden: str, atol: float) -> None:
    assert_runs(EXAMPLES / program, EXAMPLES / golden, rtol=1e-5 if atol else 0.0, atol=atol)


def test_training_program_holds_the_backward_ops() -> None:
    text = (EXAMPLES / "hello_nn_world_train.mlir").read_text(encoding="utf-8")
    parse(text)
    for op in (
        "addmm",
        "relu",
        "_log_softmax",
        "nll_loss_forward",
        "nll_loss_backward",
        "_log_softmax_backward_data",
        "threshold_backward",
        "mm",
        "sum.dim_IntList",
    ):
        assert f"torch.aten.{op} " in text


def test_training_loss_curve_starts_at_the_golden_loss_and_falls() -> None:
    losses = np.load(EXAMPLES / "hello_nn_world_train_sgd.npz")["losses"]
    assert losses[0] == np.load(EXAMPLES / "hello_nn_world_train.npz")["r0"]
    assert losses.shape == (10,)
    assert np.all(np.diff(losses) < 0)


def test_compiled_training_step_repeats_pytorchs_loss_curve() -> None:
    golden = np.load(EXAMPLES / "hello_nn_world_train_sgd.npz")
    text = (EXAMPLES / "hello_nn_world_train.core.mlir").read_text(encoding="utf-8")
    program = compile_module(text, CPU)
    images, labels, weight, bias = npz.load(EXAMPLES / "hello_nn_world_train.npz")
    losses = []
    for _ in golden["losses"]:
        loss, by_weight, by_bias = run(program, [images, labels, weight, bias], CPU)
        losses.append(loss)
        weight, bias = weight - golden["rate"] * by_weight, bias - golden["rate"] * by_bias
    np.testing.assert_allclose(losses, golden["losses"], rtol=1e-5)
    np.testing.assert_allclose(weight, golden["weight"], rtol=1e-5, atol=1e-6)


# --- importing -------------------------------------------------------------------------------


@needs_torch
@pytest.mark.parametrize(
    ("file", "model", "decompose", "program", "golden"),
    [
        ("hello_nn_world.py", "HelloNNWorld", True, "hello_nn_world.mlir", "hello_nn_world.npz"),
        ("hello_nn_world.py", "HelloNNWorld", False, "hello_nn_world.aten.mlir", None),
        ("toy_model.py", "ToyModel", True, "toy_model.mlir", "toy_model.npz"),
        ("toy_model.py", "ToyModel", False, "toy_model.aten.mlir", None),
        (
            "hello_nn_world_train.py",
            "hello_nn_world_train",
            False,
            "hello_nn_world_train.mlir",
            "hello_nn_world_train.npz",
        ),
    ],
)
def test_examples_are_what_their_scripts_write(
    tmp_path: Path, file: str, model: str, decompose: bool, program: str, golden: str | None
) -> None:
    values = tmp_path / "golden.npz"
    import_file(
        f"{EXAMPLES / file}:{model}",
        tmp_path / "out.mlir",
        Options(decompose=decompose),
        golden=values,
    )
    made_text, kept_text = (tmp_path / "out.mlir").read_text(), (EXAMPLES / program).read_text()
    if torch_is("2.13"):  # whose exporter wrote them
        assert made_text == kept_text
    else:  # later ones put in more views that do nothing
        assert ops_of(made_text) == ops_of(kept_text)
    if golden is not None:
        made, kept = np.load(values), np.load(EXAMPLES / golden)
        assert made.files == kept.files
        for name in kept.files:
            # Another CPU may add up in another order.
            np.testing.assert_allclose(made[name], kept[name], rtol=1e-5, atol=1e-6)


@needs_torch
@pytest.mark.parametrize("decompose", [True, False])
@pytest.mark.parametrize("model", ["resnet18", "bert_encoder", "llama_decoder", "unet_block"])
def test_models_import_and_parse(tmp_path: Path, model: str, decompose: bool) -> None:
    imported = import_file(
        f"{EXAMPLES / 'models' / model}.py:{model}",
        tmp_path / "out.mlir",
        Options(arguments={"size": "small"}, decompose=decompose),
    )
    assert imported.foreign == {}
    parse(imported.text)
    assert ("torch.aten.linear" in imported.ops) is not decompose
    for result in imported.results:
        assert np.isfinite(result).all()
        assert result.std() > 0


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet18", "bert_encoder", "llama_decoder", "unet_block"])
def test_models_give_pytorchs_results(tmp_path: Path, model: str) -> None:
    program, golden = tmp_path / "out.mlir", tmp_path / "out.npz"
    import_file(
        f"{EXAMPLES / 'models' / model}.py:{model}",
        program,
        Options(arguments={"size": "small"}),
        golden=golden,
    )
    assert_runs(program, golden, rtol=1e-4, atol=1e-5)


@needs_torch
def test_class_instance_and_factory_with_arguments(tmp_path: Path) -> None:
    file = written(tmp_path, NET)
    by_class = import_model(f"{file}:Net")
    assert [a.shape for a in by_class.inputs] == [(2, 3)]
    assert [r.shape for r in by_class.results] == [(2, 4)]
    assert import_model(f"{file}:net").results[0].shape == (2, 4)
    wider = import_model(f"{file}:Net", Options(arguments={"width": "5"}))
    assert wider.results[0].shape == (2, 5)


@needs_torch
def test_seed_fixes_weights_and_inputs(tmp_path: Path) -> None:
    name = f"{written(tmp_path, NET)}:Net"
    first, again, other = (
        import_model(name),
        import_model(name),
        import_model(name, Options(seed=1)),
    )
    assert first.text == again.text
    np.testing.assert_array_equal(first.results[0], again.results[0])
    assert first.text != other.text


@needs_torch
def test_callers_generator_is_left_alone(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    import_model(f"{written(tmp_path, NET)}:Net")
    assert torch.equal(torch.rand(1), expected)


@needs_torch
def test_decompose_and_not(tmp_path: Path) -> None:
    name = f"{written(tmp_path, NET)}:Net"
    assert import_model(name).ops["torch.aten.addmm"] == 1
    assert import_model(name, Options(decompose=False)).ops["torch.aten.linear"] == 1


IN_PLACE = """\
import torch

def example_inputs():
    return (torch.randn(4, 8),)

class Activation(torch.nn.Module):
    def forward(self, x):
        return (x * 2).relu_().add_(1)

class Left(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        torch.nn.functional.dropout(y, 0.5, False, True)
        return torch.nn.functional.linear(y, y)

class Slice(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        y[:, 1:3].mul_(5)
        y[:, 0] = 3
        return y
"""


@needs_torch
@pytest.mark.parametrize("model", ["Activation", "Left", "Slice"])
def test_in_place_ops_become_values_without_decompositions(tmp_path: Path, model: str) -> None:
    name = f"{written(tmp_path, IN_PLACE)}:{model}"
    mlir, golden = tmp_path / "m.mlir", tmp_path / "m.npz"
    imported = import_file(name, mlir, Options(decompose=False), golden=golden)
    assert not [op for op in imported.ops if re.search(r"[a-z]_(\.\w+)?$", op)]
    assert imported.ops["torch.aten.linear"] == (model == "Left")
    assert_runs(mlir, golden, rtol=1e-5, atol=1e-6)


@needs_torch
def test_function_name(tmp_path: Path) -> None:
    text = import_model(f"{written(tmp_path, NET)}:Net", Options(function="forward")).text
    assert "func.func @forward(" in text


@needs_torch
def test_dynamic_dimension_runs_at_another_size(tmp_path: Path) -> None:
    name = f"{written(tmp_path, NET)}:Net"
    imported = import_model(name, Options(dynamic=[DynamicDim.parse("a0[0]=N:2..64")]))
    assert "!torch.vtensor<[?,3],f32>" in imported.text
    program = compile_module(imported.text, CPU)
    rows = np.concatenate([imported.inputs[0]] * 3)
    (got,) = run(program, [rows], CPU)
    np.testing.assert_allclose(got, np.concatenate([imported.results[0]] * 3), rtol=1e-5, atol=1e-6)


@needs_torch
def test_dimension_that_the_model_fixes_cannot_be_dynamic(tmp_path: Path) -> None:
    name = f"{written(tmp_path, NET)}:Net"
    message = refused(name, dynamic=[DynamicDim.parse("a0[1]=K")])
    assert "torch.export" in message


@needs_torch
def test_dynamic_dimension_that_is_not_there(tmp_path: Path) -> None:
    name = f"{written(tmp_path, NET)}:Net"
    message = refused(name, dynamic=[DynamicDim.parse("a1[0]=N")])
    assert "there is no dimension a1[0]" in message
    assert "a0: [2, 3]" in message


@pytest.mark.parametrize("text", ["N", "a0=N", "a[0]=N", "a0[0]=2", "a0[0]=N:3"])
def test_dynamic_syntax(text: str) -> None:
    with pytest.raises(MlirulesError, match="does not name a dimension"):
        DynamicDim.parse(text)


@needs_torch
def test_bfloat16_is_saved_as_its_bits_and_read_as_itself(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x): return x + x\n"
        "    def example_inputs(self): return torch.ones(3, dtype=torch.bfloat16)\n",
    )
    import_file(f"{file}:Net", tmp_path / "o.mlir", golden=tmp_path / "o.npz")
    golden = np.load(tmp_path / "o.npz")
    assert golden["a0"].dtype == np.uint16
    assert golden["r0"].tolist() == [0x4000] * 3
    for prefix, value in (("a", 1), ("r", 2)):
        (array,) = npz.load(tmp_path / "o.npz", prefix=prefix)
        assert (array.dtype.name, array.tolist()) == ("bfloat16", [value] * 3)
    assert "vtensor<[3],bf16>" in (tmp_path / "o.mlir").read_text()


@needs_torch
def test_updated_buffers_come_before_the_result(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('count', torch.zeros(2))\n"
        "    def forward(self, x):\n"
        "        self.count.add_(x)\n"
        "        return self.count * 10\n"
        "def example_inputs(): return torch.ones(2)\n",
    )
    imported = import_model(f"{file}:Net")
    assert [r.tolist() for r in imported.results] == [[1.0, 1.0], [10.0, 10.0]]
    got = run(compile_module(imported.text, CPU), list(imported.inputs), CPU)
    assert [r.tolist() for r in got] == [[1.0, 1.0], [10.0, 10.0]]


@needs_torch
def test_keyword_inputs_and_neighbour_modules(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("FACTOR = 3.0\n", encoding="utf-8")
    file = written(
        tmp_path,
        "import torch\n"
        "from neighbour import FACTOR\n"
        "print('said while importing')\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x, *, y): return x * FACTOR + y\n"
        "    def example_inputs(self): return {'x': torch.ones(2), 'y': torch.ones(2)}\n",
    )
    path = list(sys.path)
    imported = import_model(f"{file}:Net")
    assert imported.results[0].tolist() == [4.0, 4.0]
    assert sys.path == path
    assert "neighbour" not in sys.modules
    assert not (tmp_path / "__pycache__").exists()


# --- refusals --------------------------------------------------------------------------------


def test_without_torch_the_fault_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    message = refused(f"{written(tmp_path, NET)}:Net")
    assert "[torch-missing]" in message
    assert "pip install 'mlirules[torch]'" in message


@pytest.mark.parametrize("name", ["model.py", "model.py:", ":Net", "model.py:a b"])
def test_a_name_of_no_model(name: str) -> None:
    with pytest.raises(MlirulesError, match=r"error\[model-name\][^\0]*write FILE\.py:MODEL"):
        Name.parse(name)


def test_missing_file(tmp_path: Path) -> None:
    assert "there is no such file" in refused(f"{tmp_path / 'none.py'}:Net")


@needs_torch
def test_model_of_a_module_further_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "zoo_of_nets"
    package.mkdir()
    (package / "__init__.py").write_text("from . import models\n")
    (package / "models.py").write_text(NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    message = refused("zoo_of_nets:Net")
    assert "defines no 'Net'" in message
    assert "zoo_of_nets.models does: zoo_of_nets.models:Net" in message


@needs_torch
def test_misspelt_model(tmp_path: Path) -> None:
    message = refused(f"{written(tmp_path, NET)}:Nett")
    assert "defines no 'Nett'" in message
    assert "'Net'" in message


@needs_torch
@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("x = 1\nclass Net(:\n", "model.py:2:", "not Python"),
        ("x = 1\nraise SystemExit('no')\n", "model.py:2:1", "SystemExit: no"),
        ("import mlirules_absent\n", "model.py:1:1", "install 'mlirules_absent'"),
        ("def Net():\n    return 1 / 0\n", "model.py:2:5", "Net() raised ZeroDivisionError"),
        ("def Net():\n    return 3\n", "model.py", "neither an nn.Module nor"),
        ("import torch\nNet = torch.nn.ReLU()\n", "model.py", "define example_inputs()"),
        (
            "import torch\nNet = torch.nn.ReLU()\ndef example_inputs(): return ({2},)\n",
            "model.py:Net",
            "input [0][0] is not a tensor: {2}",
        ),
        (
            "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
            "        return x if x.sum() > 0 else -x\ndef example_inputs(): return torch.ones(2)\n",
            "model.py",
            "torch.export raised",
        ),
    ],
)
def test_faults_of_the_file_are_located(tmp_path: Path, text: str, place: str, words: str) -> None:
    message = refused(f"{written(tmp_path, text)}:Net")
    assert place in message
    assert words in message


@needs_torch
def test_program_that_froze_its_inputs_is_refused(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.func.grad(lambda y: (y * y).sum())(x)\n"
        "def example_inputs(): return torch.ones(3)\n",
    )
    message = refused(f"{file}:Net", decompose=False)
    assert "[frozen-input]" in message
    assert "make_fx" in message


@needs_torch
def test_failing_import_leaves_the_old_file(tmp_path: Path) -> None:
    output = tmp_path / "out.mlir"
    output.write_text("old", encoding="utf-8")
    file = written(tmp_path, "raise ValueError\n")
    with pytest.raises(MlirulesError):
        import_file(f"{file}:Net", output)
    assert output.read_text(encoding="utf-8") == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.py", "out.mlir"]


@needs_torch
def test_unwritable_output(tmp_path: Path) -> None:
    with pytest.raises(MlirulesError, match="cannot be written"):
        import_file(f"{written(tmp_path, NET)}:Net", tmp_path / "absent" / "out.mlir")


TABLES = """\
import torch
from torch import nn

class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rotary", torch.arange(12.0).reshape(4, 3), persistent=False)
        self.register_buffer("positions", torch.tensor([2, 0, 1]), persistent=False)
        self.register_buffer("upper", torch.ones(3, 3).triu().bool(), persistent=False)
        self.register_buffer("scale", torch.tensor(0.5))
        self.weight = nn.Parameter(torch.arange(15.0).reshape(5, 3))
        self.tied = self.weight

    def forward(self, x):
        rows = x[:, self.positions]  # an index list of None and a table
        masked = torch.where(self.upper, rows, -1.0)
        return torch.cat([self.rotary, masked[0] * self.scale]), self.weight @ self.tied.T

tables = Tables()
example_inputs = torch.arange(18.0).reshape(2, 3, 3)
"""


@needs_torch
def test_buffers_that_are_not_persistent_and_lists_of_none_and_tables(tmp_path: Path) -> None:
    out, golden = tmp_path / "out.mlir", tmp_path / "golden.npz"
    import_file(written(tmp_path, TABLES) + ":tables", out, golden=golden)
    assert out.read_text().count("torch_tensor_5_3_torch.float32:") == 1  # tied: held once
    assert_runs(out, golden, rtol=1e-6, atol=0.0)


STRIDES = """\
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        y = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        y = y.transpose(1, 2).reshape(2, 5, 12).contiguous()
        return y.view(-1, 12) * 2

def example_inputs():
    return (torch.randn(2, 3, 5, 4),)
"""


@needs_torch
def test_a_view_survives_a_decomposition_with_other_strides(tmp_path: Path) -> None:
    module = import_file(
        written(tmp_path, STRIDES) + ":Net", tmp_path / "net.mlir", golden=tmp_path / "net.npz"
    )
    assert module.results[0].shape == (10, 12)
