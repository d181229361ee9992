"""Every spelling of attention ends, through ``cpu-fast``, on one kernel or loop over heads.

The programs in ``tests/attention`` are what PyTorch exports, before (``aten``) and after (``core``)
its decompositions; ``tests/attention/spellings.py`` made them.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlirules.drivers.apply.programs import shared_context
from mlirules.drivers.apply.run import Options
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import numerics
from mlirules.drivers.pipelines import transform as pipeline

PROGRAMS = Path(__file__).parent / "attention"

#: The form that each spelling ends on, and the applications of ``torch/fusions/attention`` that
#: take it there, from ``aten`` and from ``core``.
FORMS = {
    "sdpa": ("plain", 0, 16),
    "scores_divided": ("plain", 4, 14),
    "scores_multiplied": ("plain", 4, 14),
    "queries_scaled": ("plain", 3, 13),
    "both_scaled": ("plain", 4, 14),
    "scale_in_a_tensor": ("plain", 3, 13),
    "three_dimensional": ("plain", 6, 8),
    "scaled_by_baddbmm": ("plain", 7, 8),
    "dropout_at_inference": ("plain", 5, 15),
    "sdpa_mask": ("mask", 0, 16),
    "sdpa_bool_mask": ("mask", 0, 16),
    "llama": ("mask", 8, 19),
    "llama_type_as": ("mask", 7, 19),
    "causal_added": ("causal", 6, 22),
    "causal_filled": ("causal", 6, 20),
    "causal_filled_bool": ("causal", 6, 19),
    "filled": ("mask", 5, 16),
    "filled_least": ("mask", 5, 16),
    "where": ("mask", 5, 16),
    "where_not": ("mask", 5, 16),
    "where_full": ("mask", 6, 15),
    "bert": ("mask", 4, 14),
    "sdpa_causal": ("causal", 0, 19),
    "sdpa_gqa": ("causal", 0, 24),
    "sdpa_interleaved": ("causal", 1, 24),
    "sdpa_expanded": ("causal", 3, 24),
}
#: What takes attention of whole blocks of queries, and what leaves it to the loop over heads.
KERNELS = {
    "plain": "kernel-flash-attention",
    "causal": "kernel-flash-attention-causal",
    "mask": "kernel-flash-attention-masked",
}
BY_HEADS = {
    "plain": "torch-attention-by-heads",
    "mask": "torch-attention-mask-by-heads",
    "causal": "torch-attention-causal-by-heads",
}
EACH = [(name, stage) for name in FORMS for stage in ("aten", "core")]


@cache
def made(name: str, stage: str) -> pipeline.Transformed:
    """A program where no kernel takes attention."""
    text = (PROGRAMS / f"{name}.{stage}.mlir").read_text(encoding="utf-8")
    line = pipeline.Pipeline.load("cpu-fast")
    line = replace(line, stages=[s for s in line.stages if s.name != "flash"])
    return pipeline.transform(text, line, path=f"{name}.{stage}.mlir")


def loop(text: str) -> str:
    """The loop over heads, its values numbered by their first mention."""
    found = re.search(r"scf\.for .*?\n    }\n", text, re.DOTALL)
    assert found is not None
    maps = dict(re.findall(r"^(#map\d*) = (.*)$", text, re.MULTILINE))
    body = re.sub(r"#map\d*", lambda m: str(maps[m[0]]), found[0])
    numbers: dict[str, str] = {}
    return re.sub(r"%[\w.]+(?:#\d+)?", lambda m: numbers.setdefault(m[0], f"%{len(numbers)}"), body)


def test_every_program_is_listed() -> None:
    there = {path.name for path in PROGRAMS.glob("*.mlir")}
    assert there == {f"{name}.{stage}.mlir" for name, stage in EACH}


@pytest.mark.parametrize(("name", "stage"), EACH)
def test_a_spelling_ends_on_the_loop_over_heads(name: str, stage: str) -> None:
    done = made(name, stage)
    applied = done.applications
    kind = FORMS[name][0]
    assert {r: n for r, n in applied.items() if r.endswith("-by-heads")} == {BY_HEADS[kind]: 1}
    fusions = {r.name for r in pipeline.rule_set(("torch/fusions/attention",))}
    taken = sum(n for r, n in applied.items() if r in fusions)
    assert taken == FORMS[name][1 if stage == "aten" else 2]
    assert not done.leftovers
    shared = "tensor<2x64x512xf32>" in loop(done.text)
    like = next(
        n
        for n, s in EACH
        if s == stage
        and FORMS[n][0] == kind
        and ("tensor<2x64x512xf32>" in loop(made(n, s).text)) == shared
    )
    assert loop(done.text) == loop(made(like, stage).text)


@pytest.mark.parametrize("kind", KERNELS)
def test_spellings_end_on_a_kernel(kind: str) -> None:
    for name, stage in EACH:
        # Those two have no dim for heads.
        if FORMS[name][0] == kind and name not in ("three_dimensional", "scaled_by_baddbmm"):
            text = (PROGRAMS / f"{name}.{stage}.mlir").read_text(encoding="utf-8")
            done = pipeline.transform(text, "cpu-fast", path=f"{name}.{stage}.mlir")
            taken = {
                rule: count
                for rule, count in done.applications.items()
                if rule.startswith("kernel-flash") or rule.endswith("-by-heads")
            }
            assert taken == {KERNELS[kind]: 1}, (name, stage)


def test_shared_keys_are_not_repeated() -> None:
    """Grouped heads read the keys and values of their group where they are."""
    for name, stage in EACH:
        if name.startswith(("llama", "sdpa_gqa", "sdpa_int", "sdpa_exp", "causal_added")):
            assert "tensor<2x64x512xf32>" in loop(made(name, stage).text), (name, stage)


def test_beside_all_other_fusions_attention_is_found() -> None:
    """Views that are merged and products that become layers do not hide it."""
    engine = pipeline.engine_for(list(pipeline.rule_set(("torch/fusions",))))
    for name, stage in EACH:
        text = (PROGRAMS / f"{name}.{stage}.mlir").read_text(encoding="utf-8")
        module = compiler.parse(text, name, shared_context())
        engine.run(module, Options(driver="greedy"))
        assert str(module).count("= torch.aten.scaled_dot_product_attention") == 1, (name, stage)


def expected(inputs: list[Any], kind: str) -> Any:
    q, k, v, *mask = (np.asarray(x) for x in inputs)
    if k.shape[1] != q.shape[1]:
        k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    scores = q.astype("f8") @ k.astype("f8").swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if mask:
        scores = np.where(mask[0], scores, -np.inf) if mask[0].dtype == bool else scores + mask[0]
    elif kind == "causal":
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stage"), EACH)
def test_a_spelling_computes_attention(name: str, stage: str) -> None:
    cpu = Target.parse("cpu")
    text = (PROGRAMS / f"{name}.{stage}.mlir").read_text(encoding="utf-8")
    binary, _ = pipeline.compile_program(text, cpu, pipeline.Pipeline.load("cpu-fast"))
    inputs = list(numerics.random_inputs(numerics.signature(text)[1], low=-1.0, high=1.0))
    if inputs[-1].dtype == bool:
        inputs[-1] = np.tri(*inputs[-1].shape) > 0
    (found,) = runtime.run(binary, inputs, cpu, "main")
    np.testing.assert_allclose(found, expected(inputs, FORMS[name][0]), rtol=1e-4, atol=1e-5)


MASKED = """func.func @main(%q: !torch.vtensor<[2,4,3,8],f32>, %k: !torch.vtensor<[2,2,5,8],f32>, %v: !torch.vtensor<[2,2,5,8],f32>, %m: MASK) -> !torch.vtensor<[2,4,3,8],f32> {
  %p = torch.constant.float 0.0
  %no = torch.constant.bool false
  %yes = torch.constant.bool true
  %none = torch.constant.none
  %y = torch.aten.scaled_dot_product_attention %q, %k, %v, %m, %p, %no, %none, %yes : !torch.vtensor<[2,4,3,8],f32>, !torch.vtensor<[2,2,5,8],f32>, !torch.vtensor<[2,2,5,8],f32>, MASK, !torch.float, !torch.bool, !torch.none, !torch.bool -> !torch.vtensor<[2,4,3,8],f32>
  return %y : !torch.vtensor<[2,4,3,8],f32>
}"""  # noqa: E501


@pytest.mark.slow
@pytest.mark.parametrize(
    "mask", ["2,1,1,5],f32", "1,4,3,1],f32", "2,4,1,5],i1", "4,1,5],f32", "5],f32", "3,5],i1"]
)
def test_masks_are_broadcast_as_in_pytorch(mask: str) -> None:
    """Over batches, heads, queries or keys."""
    text = MASKED.replace("MASK", f"!torch.vtensor<[{mask}>")
    module = compiler.parse(text, "masked", shared_context())
    applied = pipeline.engine_for(list(pipeline.rule_set(("torch/cpu",)))).run(module, Options())
    assert applied.counts == {BY_HEADS["mask"]: 1}
    cpu = Target.parse("cpu")
    binary, _ = pipeline.compile_program(str(module), cpu, pipeline.Pipeline.load("cpu"))
    inputs = list(numerics.random_inputs(numerics.signature(text)[1], low=-1.0, high=1.0))
    if inputs[3].dtype == bool:
        inputs[3] = np.broadcast_to(np.arange(5) < 4, inputs[3].shape).copy()
    (found,) = runtime.run(binary, inputs, cpu, "main")
    np.testing.assert_allclose(found, expected(inputs, "mask"), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_programs_are_what_pytorch_exports() -> None:
    pytest.importorskip("torch")
    from mlirules.drivers.frontend.torch import Options, import_model

    for name in ("sdpa_gqa", "llama", "where_full"):
        for stage in ("aten", "core"):
            found = import_model(
                f"{PROGRAMS / 'spellings.py'}:{name}", Options(decompose=stage == "core")
            )
            text = (PROGRAMS / f"{name}.{stage}.mlir").read_text(encoding="utf-8")
            # Names of values differ between versions; ops do not.
            assert found.ops == type(found)(text, (), ()).ops
