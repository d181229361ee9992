"""Attention in bf16: within what two roundings leave, on CPUs with products of bf16 and without."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.cost import Settings
from mlirules.drivers.pipelines.transform import compile_program, transform
from mlirules.language.stage import Stage

BF16 = np.dtype(ml_dtypes.bfloat16)
#: Of the largest result: the weights and the result are each rounded to 8 bits.
TOLERANCE = 2**-7


def tensor(*shape: int, element: str = "bf16") -> str:
    return f"!torch.vtensor<[{','.join(map(str, shape))}],{element}>"


def attention(
    queries: tuple[int, int, int, int],
    keys: tuple[int, int],
    values: int,
    mask: tuple[int, int, int, int] | None,
    *,
    wide: bool,
) -> str:
    """``queries``: images, heads, rows, width; ``keys``: heads and how many.

    ``wide``: conversions to f32 and back stand around it, as PyTorch decomposes it.
    """
    b, h, m, d = queries
    q, k, v = tensor(*queries), tensor(b, *keys, d), tensor(b, *keys, values)
    types = {"q": q, "k": k, "v": v}
    y = tensor(b, h, m, values)
    inside = {name: of.replace("bf16", "f32") if wide else of for name, of in types.items()}
    o = y.replace("bf16", "f32") if wide else y
    mk = tensor(*mask, element="f32" if wide else "bf16") if mask else "!torch.none"
    given = "".join(f", %{name}: {of}" for name, of in types.items())[2:]
    copied = "%none, %none, %none, %false, %none"
    types_copied = "!torch.int, !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none"
    to = [
        f"%{n}f = torch.aten._to_copy %{n}, %six, {copied} : {of}, {types_copied} -> {inside[n]}"
        for n, of in types.items()
    ]
    back = f"%y = torch.aten._to_copy %o, %fifteen, {copied} : {o}, {types_copied} -> {y}"
    names = ", ".join(f"%{n}f" if wide else f"%{n}" for n in types)
    flags = "!torch.float, !torch.bool, !torch.none, !torch.bool"
    return f"""func.func @main({given}{f", %m: {mk}" if mask else ""}) -> {y} {{
      %none = torch.constant.none
      %zero = torch.constant.float 0.0
      %six = torch.constant.int 6
      %fifteen = torch.constant.int 15
      %false = torch.constant.bool false
      %shared = torch.constant.bool {str(h != keys[0]).lower()}
      {chr(10).join(to) if wide else ""}
      %o = torch.aten.scaled_dot_product_attention {names}, {"%m" if mask else "%none"}, %zero,
        %false, %none, %shared : {", ".join(inside.values())}, {mk}, {flags} -> {o}
      {back if wide else ""}
      return {"%y" if wide else "%o"} : {y}
    }}"""


def exact(given: list[np.ndarray]) -> np.ndarray:
    """Of a row that no key may be read by the result is 0."""
    q, k, v, *mask = (x.astype(np.float64) for x in given)
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = q @ np.swapaxes(k, 2, 3) / np.sqrt(q.shape[3]) + (mask[0] if mask else 0)
    highest = scores.max(axis=3, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(highest), highest, 0))
    sums = weights.sum(axis=3, keepdims=True)
    return (weights / np.where(sums == 0, 1, sums)) @ v


CASES = [
    # Whole blocks; ViT's and DeiT's rows; Swin's windows, whose bias is one for all images.
    ((1, 2, 64, 64), (2, 64), 64, None),
    ((1, 3, 197, 64), (3, 197), 64, None),
    ((4, 3, 49, 32), (3, 49), 32, (1, 3, 49, 49)),
    # A last square of the mask that begins before the block, keys for two heads, other widths.
    ((2, 4, 47, 40), (2, 41), 48, (2, 1, 47, 41)),
    ((1, 2, 16, 128), (1, 33), 128, (1, 1, 1, 33)),
    # MobileViT's.
    ((4, 4, 64, 36), (4, 64), 36, None),
    ((2, 4, 64, 60), (4, 48), 60, (1, 4, 64, 48)),
]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("cpu", ["cpu:znver4", "cpu:x86-64-v4", "cpu:x86-64-v3"])
@pytest.mark.parametrize(("queries", "keys", "values", "mask"), CASES)
def test_numbers(
    queries: tuple[int, int, int, int],
    keys: tuple[int, int],
    values: int,
    mask: tuple[int, int, int, int] | None,
    cpu: str,
    wide: bool,
) -> None:
    target = Target.parse(cpu)
    if reason := target.available():
        pytest.skip(reason)
    program = attention(queries, keys, values, mask, wide=wide)
    binary, done = compile_program(program, target, fallback=False)
    kernel = "-".join(["wide"] * wide + ["masked"] * bool(mask)) or "bare"
    assert done.outcome.counts.get(f"kernel-bf16-attention-{kernel}", 0) == (cpu == "cpu:znver4")
    random = np.random.default_rng(queries[2])
    shapes = [queries, (queries[0], *keys, queries[3]), (queries[0], *keys, values)]
    given = [random.standard_normal(shape).astype(BF16) for shape in shapes]
    if mask:
        given.append(random.standard_normal(mask).astype(np.float32 if wide else BF16))
    found = np.asarray(runtime.run(binary, given, target)[0]).astype(np.float64)
    wanted = exact(given)
    assert np.abs(found - wanted).max() <= TOLERANCE * np.abs(wanted).max()


@pytest.mark.parametrize("wide", [False, True])
def test_rows_without_keys(wide: bool) -> None:
    """The first block of keys, all keys, all but the last ones, and by the least number."""
    target = Target.parse("cpu:znver4")
    if reason := target.available():
        pytest.skip(reason)
    program = attention((1, 1, 32, 32), (1, 72), 32, (1, 1, 32, 72), wide=wide)
    stages = [Stage(phase="torch", rules=["kernels/kernel-bf16-attention"], driver="greedy")]
    done = transform(program, stages, costs=Settings(target))
    assert done.outcome.total == 1
    random = np.random.default_rng(0)
    given = [random.standard_normal((1, 1, n, 32)).astype(BF16) for n in (32, 72, 72)]
    element = np.float32 if wide else BF16
    mask = np.zeros((1, 1, 32, 72), element)
    mask[..., 0, :40] = -np.inf
    mask[..., 1, :] = -np.inf
    mask[..., 2, :70] = -np.inf
    mask[..., 3, :] = (np.finfo(np.float32) if wide else ml_dtypes.finfo(BF16)).min
    given.append(mask)
    binary = compiler.compile_module(done.text, target)
    found = np.asarray(runtime.run(binary, given, target)[0]).astype(np.float64)
    given[3] = mask.astype(np.float64)
    wanted = exact(given)
    rows = [n for n in range(32) if n != 3]
    assert np.abs(found - wanted)[..., rows, :].max() <= TOLERANCE * np.abs(wanted).max()
    # All weights are the same where the least number leaves nothing of the scores.
    mean = given[2].astype(np.float64).mean(axis=2)[0, 0]
    assert np.abs(found[0, 0, 3] - mean).max() <= TOLERANCE
    assert not found[0, 0, 1].any()
