"""Convolutions of 3x3 windows by Winograd's form: the numbers, in every form, and who refuses."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mlirules.drivers.apply.programs import parsed
from mlirules.drivers.apply.run import Options
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.cost import Settings
from mlirules.drivers.pipelines.transform import engine_for, rule_set, transform
from mlirules.drivers.quality.bounds import Checked, with_checks
from mlirules.language.stage import Stage
from torch_programs import convolution

STAGES = [Stage(phase="torch", rules=["kernels/kernel-convolution"], driver="greedy")]
#: What follows a convolution, as rows of a program and as numbers.
RELU = ["%y = torch.aten.relu %c : {y} -> {y}"]
CLAMP = [
    "%low = torch.constant.int -1",
    "%high = torch.constant.float 1.5",
    "%y = torch.aten.clamp %c, %low, %high : {y}, !torch.int, !torch.float -> {y}",
]
SILU = [
    "%part = torch.aten.sigmoid %c : {y} -> {y}",
    "%y = torch.aten.mul.Tensor %c, %part : {y}, {y} -> {y}",
]
HARDSWISH = [
    "%three = torch.constant.int 3",
    "%six = torch.constant.int 6",
    "%zero = torch.constant.int 0",
    "%h3 = torch.aten.add.Scalar %c, %three, %one : {y}, !torch.int, !torch.int -> {y}",
    "%h6 = torch.aten.clamp %h3, %zero, %six : {y}, !torch.int, !torch.int -> {y}",
    "%hh = torch.aten.mul.Tensor %c, %h6 : {y}, {y} -> {y}",
    "%y = torch.aten.div.Scalar %hh, %six : {y}, !torch.int -> {y}",
]
ONTO = ["%y = torch.aten.add.Tensor %r, %c, %one : {y}, {y}, !torch.int -> {y}"]
ADD_RELU = [
    "%sum = torch.aten.add.Tensor %c, %r, %one : {y}, {y}, !torch.int -> {y}",
    "%y = torch.aten.relu %sum : {y} -> {y}",
]
NORM_RELU = [
    "%cm = torch.aten.sub.Tensor %c, %m, %one : {y}, {f}, !torch.int -> {y}",
    "%cs = torch.aten.mul.Tensor %cm, %s : {y}, {f} -> {y}",
    "%cg = torch.aten.mul.Tensor %cs, %g : {y}, {f} -> {y}",
    "%cb = torch.aten.add.Tensor %cg, %b, %one : {y}, {f}, !torch.int -> {y}",
    "%y = torch.aten.relu %cb : {y} -> {y}",
]


def exact(image: np.ndarray, filters: np.ndarray, pads: tuple[int, int]) -> np.ndarray:
    """The convolution in f64."""
    above, left = pads
    padded = np.pad(image.astype(np.float64), ((0, 0), (0, 0), (above, above), (left, left)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("ncijpq,fcpq->nfij", windows, filters.astype(np.float64), optimize=True)


def compiled(program: str, target: Target, dispatches: int = 2) -> bytes:
    text = transform(program, STAGES, costs=Settings(target)).text
    assert text.count("= flow.dispatch") == dispatches
    assert ("linalg.generic" in text) == (dispatches == 2)
    return compiler.compile_module(text, target)


def drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.fixture(params=["x86-64-v3", "x86-64-v4"])
def cpu(request: pytest.FixtureRequest) -> Target:
    target = Target("cpu", str(request.param))
    if reason := target.available():
        pytest.skip(reason)
    return target


@pytest.mark.parametrize(
    ("images", "filters", "pads"),
    [
        # Two blocks of a row's tiles; the last tiles reach beyond the image both ways.
        ((1, 32, 30, 51), 64, (1, 1)),
        # Rows together, the last of which are beyond the image; two images.
        ((2, 64, 14, 13), 96, (1, 1)),
        # One vector of filters for AVX-512.
        ((1, 64, 15, 18), 80, (1, 1)),
        # No padding; more than the window needs; of one side.
        ((1, 33, 36, 26), 64, (0, 0)),
        ((1, 32, 28, 24), 64, (2, 2)),
        ((1, 32, 31, 24), 64, (0, 2)),
        # Filters that go by before tiles.
        ((1, 96, 20, 20), 64, (1, 1)),
    ],
)
def test_numbers(
    images: tuple[int, int, int, int], filters: int, pads: tuple[int, int], cpu: Target
) -> None:
    image, held = drawn(images, (filters, images[1], 3, 3))
    binary = compiled(convolution(images, held, pads=pads), cpu)
    (found,) = runtime.run(binary, [image], cpu, "f")
    expected = exact(image, held, pads)
    assert np.abs(found - expected).max() <= 4e-6 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("images", "filters", "groups"),
    [
        ((1, 96, 27, 30), 192, 3),  # 32 channels by 64 filters each
        ((2, 128, 18, 15), 64, 2),  # 64 by 32, of two images
        ((1, 160, 20, 20), 160, 5),  # filters that go by before tiles
    ],
)
def test_groups_read_their_own_channels(
    images: tuple[int, int, int, int], filters: int, groups: int, cpu: Target
) -> None:
    image, held = drawn(images, (filters, images[1] // groups, 3, 3))
    binary = compiled(convolution(images, held, groups=groups), cpu)
    (found,) = runtime.run(binary, [image], cpu, "f")
    parts = zip(np.split(image, groups, axis=1), np.split(held, groups), strict=True)
    expected = np.concatenate([exact(x, w, (1, 1)) for x, w in parts], axis=1)
    assert np.abs(found - expected).max() <= 4e-6 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("images", "filters", "groups"),
    [
        ((1, 128, 28, 28), 32, 1),  # few filters: one vector of them
        ((1, 64, 14, 14), 64, 1),
        ((2, 48, 12, 11), 48, 1),  # nine tiles
        ((1, 128, 8, 8), 128, 1),  # four, none beyond the image
        ((1, 512, 7, 7), 512, 1),  # four that are, of large filters
        ((1, 64, 28, 28), 64, 4),  # groups of one vector
    ],
)
def test_vectors_in_halves_go_this_way_as_soon_as_with_avx2(
    images: tuple[int, int, int, int], filters: int, groups: int
) -> None:
    """What the direct form keeps where a CPU takes whole vectors at once."""
    target, whole = Target("cpu", "znver4"), Target("cpu", "x86-64-v4")
    image, held = drawn(images, (filters, images[1] // groups, 3, 3))
    program = convolution(images, held, groups=groups)
    assert transform(program, STAGES, costs=Settings(whole)).text.count("= flow.dispatch") == 1
    binary = compiled(program, target)
    if reason := target.available():
        pytest.skip(reason)
    (found,) = runtime.run(binary, [image], target, "f")
    parts = zip(np.split(image, groups, axis=1), np.split(held, groups), strict=True)
    expected = np.concatenate([exact(x, w, (1, 1)) for x, w in parts], axis=1)
    assert np.abs(found - expected).max() <= 4e-6 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("size", "width", "dispatches"), [(28, 16, 2), (14, 24, 1), (14, 32, 2), (28, 8, 1)]
)
def test_narrow_groups_of_large_images_gain_with_avx2(
    size: int, width: int, dispatches: int
) -> None:
    images = (1, 8 * width, size, size)
    _, held = drawn(images, (8 * width, width, 3, 3))
    program = convolution(images, held, groups=8)
    text = transform(program, STAGES, costs=Settings(Target("cpu", "x86-64-v3"))).text
    assert text.count("= flow.dispatch") == dispatches


def test_one_vector_of_filters_with_avx2() -> None:
    target = Target("cpu", "x86-64-v3")
    if reason := target.available():
        pytest.skip(reason)
    image, held = drawn((1, 40, 19, 21), (72, 40, 3, 3))
    binary = compiled(convolution(image.shape, held), target)
    (found,) = runtime.run(binary, [image], target, "f")
    expected = exact(image, held, (1, 1))
    assert np.abs(found - expected).max() <= 4e-6 * np.abs(expected).max()


@pytest.mark.parametrize("form", ["clamp", "silu", "hardswish", "onto", "add-relu", "norm-relu"])
def test_what_follows(form: str, cpu: Target) -> None:
    images, filters, pads = (1, 32, 27, 25), 64, (1, 1)
    each = (filters, 1, 1)
    result = (1, filters, 27, 25)
    takes: dict[str, list[tuple[str, tuple[int, ...]]]] = {
        "clamp": [("b", (filters,))],
        "silu": [],
        "hardswish": [("b", (filters,))],
        "onto": [("r", result)],
        "add-relu": [("b", (filters,)), ("r", result)],
        "norm-relu": [("m", each), ("s", each), ("g", each), ("b", each)],
    }
    then = {
        "clamp": CLAMP,
        "silu": SILU,
        "hardswish": HARDSWISH,
        "onto": ONTO,
        "add-relu": ADD_RELU,
        "norm-relu": [
            row.replace("{f}", f"!torch.vtensor<[{filters},1,1],f32>") for row in NORM_RELU
        ],
    }[form]
    image, held, *more = drawn(
        images, (filters, images[1], 3, 3), *(dims for _, dims in takes[form])
    )
    given = {
        name: array.astype(np.float64) for (name, _), array in zip(takes[form], more, strict=True)
    }
    c = exact(image, held, pads)
    if form == "norm-relu":
        c = np.maximum((c - given["m"]) * given["s"] * given["g"] + given["b"], 0)
    elif "b" in given:
        c = c + given["b"][:, None, None]
    expected = {
        "clamp": lambda: np.clip(c, -1, 1.5),
        "silu": lambda: c / (1 + np.exp(-c)),
        "hardswish": lambda: c * np.clip(c + 3, 0, 6) / 6,
        "onto": lambda: c + given["r"],
        "add-relu": lambda: np.maximum(c + given["r"], 0),
        "norm-relu": lambda: c,
    }[form]()
    program = convolution(images, held, pads=pads, takes=takes[form], then=then)
    (found,) = runtime.run(compiled(program, cpu), [image, *more], cpu, "f")
    assert np.abs(found - expected).max() <= 4e-6 * np.abs(c).max()


@pytest.mark.parametrize(
    ("images", "filters", "known", "only"),
    [
        ((1, 32, 28, 28), 64, False, ""),  # filters that a call brings
        ((1, 32, 28, 28), 60, True, ""),  # that no vectors take
        ((1, 8, 56, 56), 64, True, ""),  # few channels
        ((1, 144, 28, 28), 32, True, "x86-64-v4"),  # few filters for what is transformed
        ((1, 400, 9, 9), 24, True, "x86-64-v3"),
        ((1, 64, 12, 12), 64, True, "x86-64-v4"),  # few tiles
        ((1, 128, 4, 8), 64, True, "x86-64-v3"),
        ((1, 64, 14, 14), 64, True, "x86-64-v4"),  # little work
        ((1, 64, 6, 6), 64, True, "x86-64-v3"),
    ],
)
def test_what_it_leaves_to_the_direct_form(
    images: tuple[int, int, int, int], filters: int, known: bool, only: str, cpu: Target
) -> None:
    if only and cpu.architecture != only:
        pytest.skip(f"the limit of {only}")
    image, held = drawn(images, (filters, images[1], 3, 3))
    program = convolution(images, held if known else held.shape)
    binary = compiled(program, cpu, dispatches=1)
    (found,) = runtime.run(binary, [image] if known else [image, held], cpu, "f")
    expected = exact(image, held, (1, 1))
    assert np.abs(found - expected).max() <= 3e-6 * np.abs(expected).max()


@pytest.mark.parametrize(("name", "dispatches"), [("x86-64-v3", 2), ("x86-64-v4", 1)])
def test_few_filters_of_many_channels_gain_with_avx2(name: str, dispatches: int) -> None:
    """Three times as many channels as filters: with AVX-512 the direct form is as fast."""
    _, held = drawn((1, 96, 28, 28), (32, 96, 3, 3))
    program = convolution((1, 96, 28, 28), held)
    text = transform(program, STAGES, costs=Settings(Target("cpu", name))).text
    assert text.count("= flow.dispatch") == dispatches


@pytest.mark.parametrize("images", [(1, 32, 30, 27), (2, 64, 14, 13)])
def test_every_access_is_checked(images: tuple[int, int, int, int]) -> None:
    """Of both dispatches: within their buffers, also what is written beside whole tiles."""
    _, held = drawn(images, (96, images[1], 3, 3))
    module = parsed(convolution(images, held), "<test>")
    (rule,) = (
        r for r in rule_set(("kernels/kernel-convolution",)) if r.name == "kernel-convolution-bare"
    )
    engine_for([rule]).run(module, Options(driver="greedy", fold=False, target="cpu", cpu="znver4"))
    checks = with_checks(module, rule)
    assert isinstance(checks, Checked)
    assert not checks.unchecked
    variant = rule.variants[0]
    ops = r"\b(?:memref|vector)\.(?:load|store|masked\w+)\b"
    bodies = [made.body.text.value for made in variant.first.values()]
    assert variant.body is not None
    bodies.append(variant.body.text.value)
    for rows, body in zip(checks.rows, bodies, strict=True):
        assert len({(row.span.line, row.span.column) for row in rows}) == len(re.findall(ops, body))
    assert module.operation.verify()
