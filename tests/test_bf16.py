"""Networks in bf16: PyTorch's numbers on CPUs with operations for bf16 and without."""

from pathlib import Path

import numpy as np
import pytest

from mlirules.drivers.apply.programs import read_program
from mlirules.drivers.iree import cpu, npz, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import compile_program, rule_set

HERE = Path(__file__).parent / "bf16"
#: With AVX512-BF16, with AVX-512 alone, with AVX2.
CPUS = ("cpu:znver4", "cpu:x86-64-v4", "cpu:x86-64-v3")
#: Of 8 bits and several layers: what PyTorch rounds on the way moves its own results as far.
TOLERANCE = 2e-2


def _floats(found: np.ndarray) -> np.ndarray:
    """The file holds the bits of bf16."""
    return (found.astype(np.uint32) << 16).view(np.float32)


def test_which_cpus_have_it() -> None:
    assert [cpu.bf16_bytes(name.partition(":")[2]) for name in CPUS] == [64, 0, 0]


#: By network: the kernels of bf16 that take it where the CPU has the operation.
KERNELS = {
    "images": {
        "kernel-bf16-convolution-relu-laid": 1,
        "kernel-bf16-convolution-clamp-laid": 1,
        "kernel-bf16-convolution-add-relu-direct": 1,
        "kernel-bf16-mm-bias": 1,
    },
    "blocks": {
        "kernel-bf16-convolution-bare-laid": 1,
        "kernel-bf16-convolution-bare-direct": 3,
        "kernel-bf16-norm-turn-relu": 1,
        "kernel-bf16-norm-turn-bare": 1,
        "kernel-bf16-groups-relu-eight": 1,
        "kernel-bf16-groups-relu-four": 1,
        "kernel-bf16-groups-relu-more": 1,
    },
}


@pytest.mark.parametrize("network", KERNELS)
@pytest.mark.parametrize("name", CPUS)
def test_equals_pytorch(name: str, network: str) -> None:
    target = Target.parse(name)
    if reason := target.available():
        pytest.skip(reason)
    path, golden = HERE / f"{network}.mlir", HERE / f"{network}.npz"
    binary, done = compile_program(read_program(path), target, path=str(path), fallback=False)
    taken = done.outcome.counts
    kernels = {rule: n for rule, n in taken.items() if rule.startswith("kernel-bf16-")}
    if name == CPUS[0]:
        assert kernels == KERNELS[network]
    else:
        assert not kernels
    bits = npz.load(golden, prefix="a")
    given = [x.view(runtime.dtype_of("bf16")) for x in bits]
    found = np.asarray(runtime.run(binary, given, target)[0], dtype=np.float32)
    (wanted,) = map(_floats, npz.load(golden, prefix="r"))
    assert np.abs(found - wanted).max() <= TOLERANCE * np.abs(wanted).max()


@pytest.mark.parametrize("name", CPUS)
def test_depthwise_equals_pytorch(name: str) -> None:
    """A normalisation with limits behind it, as the rule's own test has it."""
    torch = pytest.importorskip("torch")
    target = Target.parse(name)
    if reason := target.available():
        pytest.skip(reason)
    (rule,) = (
        r
        for r in rule_set(("torch/bf16/torch-bf16-depthwise",))
        if r.name == "torch-bf16-depthwise-norm-clamp"
    )
    program = rule.tests[0].input or ""
    random = torch.Generator().manual_seed(0)
    channels = 16

    def numbers(*shape: int) -> "torch.Tensor":
        return torch.randn(shape, generator=random)

    x, w = numbers(1, channels, 7, 9).bfloat16(), numbers(channels, 1, 3, 5).bfloat16()
    m, s = numbers(channels, 1, 1), numbers(channels, 1, 1).abs() + 0.5
    g, b = numbers(channels, 1, 1).bfloat16(), numbers(channels, 1, 1).bfloat16()
    sums = torch.nn.functional.conv2d(x.float(), w.float(), None, 2, (1, 2), 1, channels)
    wanted = torch.clamp((sums - m) * s * g.float() + b.float(), -1.0, 6.0).numpy()
    given = [
        t.numpy()
        if t.dtype == torch.float32
        else t.view(torch.int16).numpy().view(runtime.dtype_of("bf16"))
        for t in (x, w, m, s, g, b)
    ]
    binary, done = compile_program(program, target, fallback=False)
    # Other CPUs compute it in f32, as they do what stands around it.
    kernel = "bf16-depthwise" if name == CPUS[0] else "depthwise-norm"
    assert done.outcome.counts[f"kernel-{kernel}-clamp"] == 1
    found = np.asarray(runtime.run(binary, given, target)[0], dtype=np.float32)
    # The sums are in f32, the result alone is rounded, to 8 bits.
    assert np.abs(found - wanted).max() <= 2**-8 * np.abs(wanted).max()
