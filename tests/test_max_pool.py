"""The kernel of max pooling: PyTorch's numbers, exactly, with AVX-512 and with AVX2."""

import numpy as np
import pytest

from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.cost import Settings
from mlirules.drivers.pipelines.transform import compile_program, transform
from mlirules.language.stage import Stage

torch = pytest.importorskip("torch")

#: With AVX-512, with AVX2.
CPUS = ("cpu:x86-64-v4", "cpu:x86-64-v3")
RULES = ["torch/fusions/pooling", "kernels/kernel-max-pool"]

#: An image, then kernel, stride, padding, dilation, ceil_mode as PyTorch takes them.
FORMS = {
    "squeezenet": ((1, 5, 111, 111), [3, 3], [2, 2], [0, 0], [1, 1], True),
    "resnet": ((1, 3, 112, 112), [3, 3], [2, 2], [1, 1], [1, 1], False),
    "vgg": ((2, 3, 56, 56), [2, 2], [], [0, 0], [1, 1], False),
    "inception": ((1, 3, 28, 28), [3], [1], [1], [1], True),
    "odd rows, a window over all": ((1, 4, 13, 13), [13, 13], [1, 1], [6, 6], [1, 1], False),
    "a row": ((3, 2, 1, 100), [1, 4], [1, 2], [0, 2], [1, 3], False),
    "rows that step by three": ((1, 2, 31, 47), [2, 3], [3, 1], [1, 0], [4, 5], True),
    "wide": ((1, 2, 7, 1000), [5, 2], [1, 2], [2, 1], [1, 1], True),
}


def _program(shape: tuple[int, ...], result: tuple[int, ...], lists: list[list[int]]) -> str:
    """As torch.export writes it: with places, which nobody reads. The last list is ceil_mode's."""
    image, largest, places = (
        f"!torch.vtensor<[{','.join(map(str, sizes))}],{element}>"
        for sizes, element in ((shape, "f32"), (result, "f32"), (result, "si64"))
    )
    lines = []
    for n, items in enumerate(lists[:-1]):
        lines += [f"%i{n}_{m} = torch.constant.int {item}" for m, item in enumerate(items)]
        names = ", ".join(f"%i{n}_{m}" for m in range(len(items)))
        types = ", ".join("!torch.int" for _ in items)
        lines.append(f"%l{n} = torch.prim.ListConstruct {names} : ({types}) -> !torch.list<int>")
    lines += [
        f"%ceil = torch.constant.bool {'true' if lists[-1][0] else 'false'}",
        "%y, %at = torch.aten.max_pool2d_with_indices %x, %l0, %l1, %l2, %l3, %ceil : "
        f"{image}, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.list<int>, "
        f"!torch.bool -> {largest}, {places}",
        f"return %y : {largest}",
    ]
    return f"func.func @main(%x: {image}) -> {largest} {{\n" + "\n".join(lines) + "\n}\n"


def _example(form: str) -> tuple[str, np.ndarray, np.ndarray]:
    """The program, an image with NaN and infinities, and what PyTorch gives."""
    shape, *lists, ceil = FORMS[form]
    random = np.random.default_rng(0)
    image = random.standard_normal(shape, dtype=np.float32)
    # Windows of nothing but minus infinity are among them.
    image[random.random(shape) < 0.02] = np.nan
    image[random.random(shape) < 0.02] = np.inf
    image[:, 0, : shape[2] // 2] = -np.inf
    kernel, stride, padding, dilation = lists
    wanted = torch.nn.functional.max_pool2d(
        torch.from_numpy(image), kernel, stride or None, padding, dilation, ceil_mode=ceil
    ).numpy()
    return _program(shape, wanted.shape, [*lists, [int(ceil)]]), image, wanted


@pytest.mark.parametrize("name", CPUS)
@pytest.mark.parametrize("form", FORMS)
def test_equals_pytorch(form: str, name: str) -> None:
    target = Target.parse(name)
    if reason := target.available():
        pytest.skip(reason)
    program, image, wanted = _example(form)
    stages = [Stage(phase="torch", rules=RULES, driver="greedy")]
    done = transform(program, stages, costs=Settings(target))
    assert done.outcome.counts == {"torch-max-pool2d-name-fuse": 1, "kernel-max-pool": 1}
    (found,) = runtime.run(compiler.compile_module(done.text, target), [image], target)
    np.testing.assert_array_equal(found, wanted)


def test_the_default_pipeline_takes_it() -> None:
    program, image, wanted = _example("squeezenet")
    binary, done = compile_program(program, Target("cpu"), fallback=False)
    assert done.outcome.counts["kernel-max-pool"] == 1
    (found,) = runtime.run(binary, [image], Target("cpu"))
    np.testing.assert_array_equal(found, wanted)
