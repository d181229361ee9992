"""Whole models: the shipped rules convert them without leftovers, to PyTorch's numbers."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from mlirules.drivers.frontend.torch import Options, import_model
from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.compiler import compile_module
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import transform

MODELS = Path(__file__).resolve().parents[1] / "examples" / "models"
NAMES = ("resnet18", "bert_encoder", "llama_decoder", "unet_block")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="torch is not installed (pip install 'mlirules[torch]')",
    ),
]


@pytest.mark.parametrize("decompose", [True, False], ids=["core", "aten"])
@pytest.mark.parametrize("name", NAMES)
def test_a_model_converts_and_gives_pytorchs_numbers(name: str, decompose: bool) -> None:
    cpu = Target.parse("cpu")
    model = import_model(
        f"{MODELS / name}.py:{name}", Options(arguments={"size": "small"}, decompose=decompose)
    )
    done = transform(model.text, "cpu", path=name)
    assert done.leftovers == []
    found = runtime.run(compile_module(done.text, cpu), list(model.inputs), cpu)
    assert len(found) == len(model.results)
    for mine, golden in zip(found, model.results, strict=True):
        np.testing.assert_allclose(mine, golden, rtol=1e-3, atol=1e-4)
