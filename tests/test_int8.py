"""Quantized programs: PyTorch's numbers on several CPUs, and bytes that are multiplied as bytes."""

import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlirules.drivers.apply.programs import read_program
from mlirules.drivers.frontend.torch import Options, import_model
from mlirules.drivers.iree import npz, runtime
from mlirules.drivers.iree.compiler import ir, parse
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.pipelines import cost
from mlirules.drivers.pipelines.transform import Pipeline, compile_program, transform
from mlirules.language.faults import MlirulesError

HERE = Path(__file__).parent / "int8"
#: PT2E's quantization of a transformer layer (block.py), and what PyTorch computes of it.
BLOCK, GOLDEN = HERE / "block.mlir", HERE / "block.npz"
LAYERS = 5
#: The same of a small convolutional network (images.py).
IMAGES, IMAGES_GOLDEN = HERE / "images.mlir", HERE / "images.npz"
CONVOLUTIONS = 5
#: The same of a network of activations and gates (gates.py), and which kernels compute it.
GATES, GATES_GOLDEN = HERE / "gates.mlir", HERE / "gates.npz"
GATE_KERNELS = {
    "kernel-byte-convolution-hardswish-laid": 2,
    "kernel-byte-convolution-silu-direct": 2,
    "kernel-byte-convolution-floats-laid": 1,
    "kernel-byte-convolution-floats-silu-direct": 1,
    "kernel-byte-depthwise-silu": 1,
    "kernel-byte-depthwise-floats-hardswish": 1,
    "kernel-byte-depthwise-floats-silu": 1,
    "kernel-byte-depthwise-floats-relu": 1,
    "kernel-byte-gate": 3,
    "kernel-byte-mean-floats": 3,
}
#: With an operation for bytes alone.
GROUP_KERNELS = {"kernel-byte-groups-bare-eight": 1, "kernel-byte-groups-silu-four": 1}
#: With AVX512-VNNI, with AVX-512 alone, with AVX2.
CPUS = ("cpu:znver4", "cpu:x86-64-v4", "cpu:x86-64-v3")
#: One byte that is rounded the other way moves a result by 1e-2.
RTOL, ATOL = 1e-5, 1e-5

needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="torchao is not installed"
)


def _types(op: Any) -> tuple[str, ...]:
    """The element types of the tensors that an op reads."""
    held = [ir.ShapedType(v.type) for v in op.operands if isinstance(v.type, ir.RankedTensorType)]
    return tuple(str(shaped.element_type) for shaped in held)


def _products(text: str) -> Counter[tuple[str, ...]]:
    """Element types of the products and kernels of a program that was transformed."""
    module = parse(text)
    return Counter(
        (op.name, *_types(op))
        for op in ops_below(module.operation)
        if op.name in ("linalg.matmul", "flow.dispatch")
    )


def _taken(name: str, program: Path, golden: Path) -> Counter[str]:
    """The rules that compiled a program for a CPU, whose numbers are PyTorch's."""
    target = Target.parse(name)
    if reason := target.available():
        pytest.skip(reason)
    binary, done = compile_program(read_program(program), target, path=str(program), fallback=False)
    found = runtime.run(binary, npz.load(golden, prefix="a"), target)
    (wanted,) = npz.load(golden, prefix="r")
    np.testing.assert_allclose(found[0], wanted, rtol=RTOL, atol=ATOL)
    return Counter(done.outcome.counts)


def _sum(taken: Counter[str], start: str) -> int:
    """How often rules were taken whose names begin so."""
    return sum(n for rule, n in taken.items() if rule.startswith(start))


@pytest.mark.parametrize("name", CPUS)
def test_equals_pytorch(name: str) -> None:
    taken = _taken(name, BLOCK, GOLDEN)
    assert _sum(taken, "torch-quantized-linear-") == LAYERS
    # The last layer has ten columns, which fill no block of 16: no kernel takes it.
    assert taken["kernel-int-mm-unsigned"] == LAYERS - 1
    assert taken["torch-int-mm-unsigned-to-linalg"] == 1


@pytest.mark.parametrize("name", CPUS)
def test_images_equal_pytorch(name: str) -> None:
    taken = _taken(name, IMAGES, IMAGES_GOLDEN)
    # Kernels: five convolutions, one depthwise, the pooling, the mean.
    assert _sum(taken, "torch-quantized-convolution-") == CONVOLUTIONS
    assert _sum(taken, "kernel-byte-") == 8
    for part in ("depthwise-bare", "max-pool", "cat"):
        assert taken[f"torch-quantized-{part}"] == 1, part


@pytest.mark.parametrize("name", CPUS)
def test_gates_equal_pytorch(name: str) -> None:
    """Activations, floats that are gated or added to, a convolution without a bias."""
    taken = _taken(name, GATES, GATES_GOLDEN)
    groups = GROUP_KERNELS if name == "cpu:znver4" else {}
    wanted = GATE_KERNELS | groups
    assert {rule: taken[rule] for rule in wanted} == wanted
    assert _sum(taken, "kernel-byte-groups-") == sum(groups.values())


@pytest.mark.parametrize("name", CPUS)
def test_layers_hand_on_bytes(name: str) -> None:
    """Between kernels nothing is turned, and nothing but the image and its mean is a float."""
    stages = Pipeline.load("cpu-fast").stages
    last = next(n for n, stage in enumerate(stages) if stage.name == "narrow-turns")
    costs = cost.Settings(Target.parse(name))
    module = parse(transform(read_program(IMAGES), stages[: last + 1], costs=costs).text)
    counts = Counter(op.name for op in ops_below(module.operation))
    assert counts["torch.quantized_decomposed.quantize_per_tensor"] == 2
    assert counts["torch.quantized_decomposed.dequantize_per_tensor"] == 0
    # The image that comes in; the others are of weights.
    turned = [
        op
        for op in ops_below(module.operation)
        if op.name == "torch.aten.permute" and "ui8" in str(op.results[0].type)
    ]
    assert len(turned) == 1, turned


def _without(*names: str) -> Counter[tuple[str, ...]]:
    """The products of the layer by cpu-fast without some of its stages."""
    stages = [stage for stage in Pipeline.load("cpu-fast").stages if stage.name not in names]
    costs = cost.Settings(Target.parse("cpu"))
    return _products(transform(read_program(BLOCK), stages, costs=costs).text)


def test_bytes_are_multiplied() -> None:
    """Where no kernel takes a layer it is a product of bytes, and none of floats is left of it."""
    products = _without("integer-kernels", "row-kernels", "bytes")
    assert products["linalg.matmul", "i8", "i8", "i32"] == LAYERS
    assert not any("f32" in types for _, *types in products), products
    # The same without the rules: what is counted above is theirs.
    products = _without("integers", "integer-kernels", "bytes")
    assert not any("i8" in types for _, *types in products), products


@needs_torchao
def test_import_leaves_out_zero_points_of_zeros() -> None:
    imported = import_model(f"{HERE / 'block.py'}:make")
    module = parse(imported.text)
    layers = [
        op
        for op in ops_below(module.operation)
        if op.name == "torch.quantized_decomposed.dequantize_per_channel"
    ]
    assert [str(op.operands[2].type) for op in layers] == ["!torch.none"] * LAYERS
    (wanted,) = npz.load(GOLDEN, prefix="r")
    np.testing.assert_allclose(imported.results[0], wanted, rtol=1e-3, atol=1e-3)


@needs_torchao
def test_import_of_a_file(tmp_path: Path) -> None:
    """A program that was saved: its ops are known before it is read."""
    made = tmp_path / "block.pt2"
    script = (
        f"import sys, torch; sys.path.insert(0, {str(HERE)!r}); import block\n"
        f"model, inputs = block.make()\ntorch.export.save(torch.export.export(model, inputs), "
        f"{str(made)!r})\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    out = tmp_path / "block.mlir"
    words = ["-m", "mlirules", "import", str(made), "-o", str(out)]
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    counts = Counter(op.name for op in ops_below(parse(out.read_text()).operation))
    assert counts["torch.quantized_decomposed.dequantize_per_channel"] == LAYERS


@needs_torchao
def test_what_was_exported_cannot_be_trained() -> None:
    with pytest.raises(MlirulesError, match="keeps the mode"):
        import_model(f"{HERE / 'block.py'}:make", Options(train=True))
