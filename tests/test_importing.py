"""What `mlirules import` takes: files, packages, saved programs; nested inputs and results."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlirules.drivers.frontend.torch import DynamicDim, Options, import_file, import_model
from mlirules.drivers.iree import npz
from mlirules.drivers.iree.compiler import compile_module
from mlirules.drivers.iree.runtime import run
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program
from mlirules.language.faults import MlirulesError
from mlirules.support import memory

torch = pytest.importorskip("torch")

CPU = Target.parse("cpu")

NESTED = """\
import dataclasses
import torch

@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor | None = None

class Net(torch.nn.Module):
    def __init__(self, factor=2):
        super().__init__()
        self.factor = factor

    def forward(self, pair, scale, *, bias, flip=False, names=()):
        made = pair.left * scale * self.factor + bias["b"]
        if flip:
            made = -made
        return {"made": Pair(made), "size": made.shape[0], "rest": [(made.sum(), None)]}

def with_inputs(factor=3):
    return Net(factor), (Pair(torch.ones(2, 3)), 0.5), {"flip": True, "bias": {"b": torch.ones(3)}}

def only_args():
    return torch.nn.ReLU(), torch.tensor([-1.0, 2.0])
"""


def written(folder: Path, text: str) -> str:
    (folder / "model.py").write_text(text, encoding="utf-8")
    return str(folder / "model.py")


def refused(name: str, **options: Any) -> str:
    with pytest.raises(MlirulesError) as caught:
        import_model(name, Options(**options))
    return str(caught.value)


def assert_runs(mlir: Path, golden: Path, rtol: float, atol: float) -> None:
    got = run(compile_module(mlir.read_text(encoding="utf-8"), CPU), npz.load(golden), CPU)
    for have, want in zip(got, npz.load(golden, prefix="r"), strict=True):
        np.testing.assert_allclose(have, want, rtol=rtol, atol=atol)


def test_nested_inputs_and_results_and_constants(tmp_path: Path) -> None:
    file, out, golden = written(tmp_path, NESTED), tmp_path / "o.mlir", tmp_path / "o.npz"
    done = import_file(f"{file}:with_inputs", out, Options(arguments={"factor": 4}), golden=golden)
    assert [a.shape for a in done.inputs] == [(2, 3), (3,)]
    assert [r.tolist() for r in done.results] == [[[-3.0] * 3] * 2, -18.0]
    assert done.notes == ("no part of the results: result['size'] = 2",)
    assert_runs(out, golden, rtol=0.0, atol=0.0)
    assert import_model(f"{file}:only_args").results[0].tolist() == [0.0, 2.0]


def test_result_that_holds_no_tensors_is_told(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "import torch\n"
        "class Box: pass\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x): return {'box': Box()}\n"
        "example_inputs = torch.ones(2)\n",
    )
    assert "result['box'] is not a tensor" in refused(f"{file}:Net")


def test_dotted_path_with_arguments_and_inputs() -> None:
    sizes = {"in_features": 3, "out_features": 4}
    done = import_model("torch.nn:Linear", Options(arguments=sizes, inputs=["2x3xf32"]))
    assert [r.shape for r in done.results] == [(2, 4)]
    assert import_model(
        "torch.nn:modules.linear.Linear", Options(arguments=sizes, inputs=["3xf32=1"])
    )
    ids = import_model(
        "torch.nn:Embedding",
        Options(arguments={"num_embeddings": 2, "embedding_dim": 3}, inputs=["input=40xsi64"]),
    )
    assert set(ids.inputs[0].tolist()) == {0, 1}
    narrow = import_model("torch.nn:ReLU", Options(inputs=["3xbf16=-1 0 2"]))
    assert (narrow.results[0].dtype.name, narrow.results[0].tolist()) == ("bfloat16", [0, 0, 2])


def test_keyword_inputs_can_have_dynamic_dimensions() -> None:
    done = import_model(
        "torch.nn:MultiheadAttention",
        Options(
            arguments={"embed_dim": 4, "num_heads": 2, "batch_first": True},
            inputs=["1x3x4xf32", "1x5x4xf32", "value=1x5x4xf32", "need_weights=false"],
            dynamic=[DynamicDim.parse(f"a{i}[1]=N:2..9") for i in (1, 2)],
        ),
    )
    assert "%arg2: !torch.vtensor<[1,?,4],f32>" in done.text
    (got,) = run(compile_module(done.text, CPU), list(done.inputs), CPU)
    np.testing.assert_allclose(got, done.results[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mlirules_absent:Net", {}, "there is no module mlirules_absent"),
        ("torch.nn:Liner", {}, "'Linear'"),
        ("torch.nn:ReLU", {}, "give --input"),
        ("torch.nn:ReLU", {"inputs": ["x=2xf32", "2xf32"]}, "stands after inputs with names"),
        ("torch.nn:ReLU", {"inputs": ["2xf31"]}, "unknown element type"),
        ("torch.nn:Linear", {"inputs": ["2xf32"]}, "Linear() raised TypeError"),
    ],
)
def test_faults_of_dotted_paths(name: str, options: dict[str, Any], words: str) -> None:
    assert words in refused(name, **options)


def test_saved_exported_program(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    exported = torch.export.export(net, (torch.randn(2, 3),))
    path, out, golden = tmp_path / "net.pt2", tmp_path / "net.mlir", tmp_path / "net.npz"
    torch.export.save(exported, path)
    done = import_file(str(path), out, golden=golden)
    assert done.ops["torch.aten.addmm"] == 1
    assert_runs(out, golden, rtol=1e-5, atol=1e-6)
    assert "takes no --input" in refused(str(path), inputs=["2x3xf32"])


def test_bytecode_is_written_where_the_name_says_so(tmp_path: Path) -> None:
    out = tmp_path / "net.mlirbc"
    import_file("torch.nn:ReLU", out, Options(inputs=["2xf32"]))
    assert out.read_bytes()[:4] == b"ML\xefR"


DECODER = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 99,
    "pad_token_id": 0,
}
ENCODER = {k: v for k, v in DECODER.items() if k != "num_key_value_heads"}


@pytest.mark.parametrize(
    ("name", "arguments", "inputs"),
    [
        ("transformers:BertModel", ENCODER, ["input_ids=1x8xsi64", "attention_mask=1x8xsi64=1"]),
        ("transformers:LlamaForCausalLM", DECODER, ["1x8xsi64"]),
        pytest.param(
            "transformers:Qwen3Config",
            {**DECODER, "head_dim": 16},
            ["1x8xsi64"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "timm:create_model",
            {"model_name": "resnet10t", "num_classes": 3},
            ["1x3x64x64xf32"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "torchvision.models:mobilenet_v3_small",
            {"num_classes": 3},
            ["1x3x64x64xf32"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_public_packages(
    tmp_path: Path, name: str, arguments: dict[str, Any], inputs: list[str]
) -> None:
    try:
        pytest.importorskip(name.partition(":")[0])
    except RuntimeError as error:  # a torchvision that was built for another torch
        pytest.skip(str(error))
    out, golden = tmp_path / "o.mlir", tmp_path / "o.npz"
    import_file(name, out, Options(arguments=arguments, inputs=inputs), golden=golden)
    binary, _ = compile_program(out.read_text(encoding="utf-8"), CPU)
    got = run(binary, npz.load(golden), CPU)
    for have, want in zip(got, npz.load(golden, prefix="r"), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


def test_weights_beyond_what_memory_is_free_are_refused_before_they_are_made(
    tmp_path: Path,
) -> None:
    pytest.importorskip("transformers")
    if memory.available() is None:
        pytest.skip("this system does not say how much memory is free")
    large = {**DECODER, "hidden_size": 1 << 20, "intermediate_size": 1 << 22}
    options = Options(arguments=large, inputs=["1x8xsi64"])
    with pytest.raises(MlirulesError, match=r"take [\d.]+ GB, and [\d.]+ GB of memory are free"):
        import_file("transformers:LlamaForCausalLM", tmp_path / "o.mlir", options)
    assert not list(tmp_path.iterdir())


def test_memory_is_what_the_system_and_the_group_leave(tmp_path: Path) -> None:
    system = tmp_path / "meminfo"
    assert memory.available(system, tmp_path) is None
    system.write_text("MemTotal:  9000 kB\nMemAvailable:    3500 kB\nSwapFree: 500 kB\n")
    assert memory.available(system, tmp_path) == 4000 << 10
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert memory.available(system, tmp_path) == 4000 << 10
    (tmp_path / "memory.max").write_text("3000\n")
    assert memory.available(system, tmp_path) == 2000
    (tmp_path / "memory.stat").write_text("anon 300\ninactive_file 400\nactive_file 100\n")
    assert memory.available(system, tmp_path) == 2500


def test_parts_that_do_not_load_are_a_fault_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "lazy.py").write_text(
        "def __getattr__(name):\n"
        "    try:\n"
        "        raise RuntimeError('operator nms does not exist')\n"
        "    except RuntimeError as error:\n"
        "        raise ModuleNotFoundError('could not import ' + name) from error\n"
    )
    with pytest.raises(MlirulesError) as caught:
        import_file(f"{tmp_path}/lazy.py:Net", tmp_path / "net.mlir", Options(inputs=["2xf32"]))
    (fault,) = caught.value.faults
    assert fault.span.line == 5
    assert "could not import Net (after RuntimeError: operator nms" in fault.message
