"""What config rules set, as views of the compiler's attributes: templates say what these look like.

A view holds sizes by the loops' order, names and numbers; how the compiler spells them stands in
``configuration.mlir.j2``, which a user's templates can take the place of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mlirules.generator.render import shipped
from mlirules.language.config.model import (
    Basis,
    MmaKind,
    Settings,
    SubConfig,
    basis_counts,
    levels_of,
    mma_name,
)
from mlirules.language.config.op import ConfigRule, index_names

__all__ = [
    "Annotation",
    "Compilation",
    "Decomposition",
    "Lowering",
    "Name",
    "Translation",
    "Ukernel",
    "Value",
    "attention_roles",
    "decomposition",
    "lowering",
    "of_loops",
    "spelt",
    "translation",
]

TEMPLATE = "configuration.mlir.j2"


@dataclass(frozen=True)
class Numbers:
    """A setting that is a list of numbers: the tiles of a level, operands, padding."""

    name: str
    numbers: list[int]
    form: str = "numbers"


@dataclass(frozen=True)
class Instruction:
    """The matrix instruction; ``virtual``: one that stands for several of the hardware's."""

    name: str
    virtual: bool
    col_major: bool
    form: str = "instruction"


@dataclass(frozen=True)
class Layout:
    """Subgroups or lanes along every loop, and the places of the loops that the op has."""

    name: str
    counts: list[int]
    over: list[int]
    form: str = "basis"


@dataclass(frozen=True)
class Promotion:
    """How each promoted operand gets into shared memory."""

    ways: list[str]
    form: str = "promotion"


@dataclass(frozen=True)
class Transpose:
    """From which counts of workgroups on their order is transposed."""

    first: int
    second: int
    form: str = "transpose"


@dataclass(frozen=True)
class Switch:
    """A setting without a value: that it stands there says all."""

    name: str
    form: str = "switch"


Setting: TypeAlias = Numbers | Instruction | Layout | Promotion | Transpose | Switch


@dataclass(frozen=True)
class Lowering:
    """A lowering config of a dialect: iree_cpu, iree_gpu, or iree_codegen, which has lists."""

    dialect: str
    settings: list[Setting]
    form: str = "lowering"


@dataclass(frozen=True)
class PipelineOptions:
    """Options of a GPU pipeline: numbers, truth values and names of strategies."""

    options: list[tuple[str, int | bool | str]]
    form: str = "pipeline"


@dataclass(frozen=True)
class FunctionAttributes:
    """LLVM's attributes of functions, with their values."""

    attributes: list[tuple[str, str]]
    form: str = "functions"


@dataclass(frozen=True)
class Denormal:
    """What becomes of denormal f32 numbers."""

    mode: str
    form: str = "denormal"


@dataclass(frozen=True)
class Number:
    """An option that is a number."""

    name: str
    number: int
    form: str = "number"


Option: TypeAlias = PipelineOptions | FunctionAttributes | Denormal | Number


@dataclass(frozen=True)
class Translation:
    """The pipeline for a kind of target, the sizes of workgroup and subgroup, and options."""

    kind: str
    pipeline: str
    workgroup_size: list[int] | None
    subgroup_size: int | None
    options: list[Option]
    form: str = "translation"


@dataclass(frozen=True)
class Compilation:
    """All that a rule sets of an op's compilation."""

    lowering: Lowering
    translation: Translation
    form: str = "compilation"


@dataclass(frozen=True)
class Decomposition:
    """How an attention's products are compiled: ``qk`` and ``pv``, those that the rule says."""

    parts: list[tuple[str, Lowering]]
    form: str = "decomposition"


@dataclass(frozen=True)
class Ukernel:
    """A kernel written by hand."""

    name: str
    kind: str
    form: str = "ukernel"


@dataclass(frozen=True)
class Name:
    """The name of a rule, which it leaves on the op."""

    name: str
    form: str = "rule"


@dataclass(frozen=True)
class Annotation:
    """An attribute as the rule spells it."""

    text: str
    form: str = "annotation"


#: What an attribute of a configured op may be.
Value: TypeAlias = (
    Compilation | Lowering | Translation | Decomposition | Ukernel | Name | Annotation
)


def spelt(value: Value) -> str:
    """A value as the compiler's attribute, by the template that ships."""
    return shipped().call(TEMPLATE, "attribute", value)


# ---- from rules to views -----------------------------------------------------------------------


def lowering(rule: ConfigRule, kind: str) -> Lowering:
    """The tile sizes of a rule and what goes with them."""
    if kind == "vulkan":
        return of_loops(rule.settings, rule.loops, kind)
    return _of_gpu_or_cpu(rule.tile_loops, rule.settings, kind, own=rule.loops)


def of_loops(settings: Settings, loops: Sequence[str], kind: str) -> Lowering:
    """The tile sizes of an op with these loops, and what goes with them."""
    if kind != "vulkan":
        return _of_gpu_or_cpu(loops, settings, kind)
    levels = levels_of(kind, settings.pipeline)
    tiles: list[Setting] = [
        Numbers(level, _sizes(loops, settings.tiles.get(level, {}))) for level in levels
    ]
    return Lowering("iree_codegen", tiles)


def decomposition(rule: ConfigRule, kind: str) -> Decomposition | None:
    """How an attention's two products are compiled, if a rule says so."""
    given = rule.settings.decomposition
    if given is None:
        return None
    parts = []
    for name, part in (("qk", given.qk), ("pv", given.pv)):
        if part is not None:
            over = _part_loops(rule, name, part)
            parts.append((name, _of_gpu_or_cpu(rule.loops, part, kind, over=over)))
    return Decomposition(parts)


def translation(settings: Settings, kind: str) -> Translation:
    """The pipeline, workgroup and options that settings say."""
    size = settings.workgroup_size
    return Translation(kind, settings.pipeline, size, settings.subgroup_size, _options(settings))


def attention_roles(rule: ConfigRule) -> dict[str, list[str]]:
    """The loops of an attention by what they do: batch, m, n, k1, k2."""
    query, key, value = rule.operands[:3]
    out = rule.operands[-1]
    reads = {
        name: {n for i in o.indices for n in index_names(i)}
        for name, o in (("q", query), ("k", key), ("v", value), ("o", out))
    }
    roles: dict[str, list[str]] = {"batch": [], "m": [], "n": [], "k1": [], "k2": []}
    for loop in rule.loops:
        held = "".join(name for name in "qkvo" if loop in reads[name])
        role = {"qkvo": "batch", "qo": "m", "vo": "n", "qk": "k1", "kv": "k2"}.get(held)
        if role is not None:
            roles[role].append(loop)
    return roles


def _sizes(loops: Sequence[str], sizes: dict[str, int]) -> list[int]:
    """Sizes by name as the compiler's list: one number a loop, 0 for those not tiled."""
    return [sizes.get(loop, 0) for loop in loops]


def _part_loops(rule: ConfigRule, name: str, part: SubConfig) -> list[str]:
    """The loops of one of an attention's two products: all but the other's own ones."""
    if part.over:
        return list(part.over)
    if not rule.operands:
        return list(rule.loops)
    other = attention_roles(rule)["n" if name == "qk" else "k1"]
    return [loop for loop in rule.loops if loop not in other]


def _of_gpu_or_cpu(
    loops: Sequence[str],
    part: Settings | SubConfig,
    kind: str,
    *,
    over: Sequence[str] | None = None,
    own: Sequence[str] = (),
) -> Lowering:
    """A lowering config for cpu, cuda or hip; ``over``: the loops that the op has, if not all.

    ``own``: a convolution's loops, where ``loops`` are those of the product that it becomes.
    """
    over = loops if over is None else over
    items: list[Setting] = [
        Numbers(level, _sizes(over, part.tiles[level]))
        for level in levels_of(kind, "")
        if level in part.tiles
    ]
    if kind == "cpu":
        return Lowering("iree_cpu", items)
    if part.promote_operands:
        items.append(Numbers("promote_operands", list(part.promote_operands)))
    if part.mma_kind is not None:
        items.append(_instruction(part.mma_kind))
    for name, given in (("subgroup_basis", part.subgroup_basis), ("lane_basis", part.lane_basis)):
        if given is not None:
            items.append(_layout(name, loops, given, over))
    if isinstance(part, Settings):
        if part.promotion_types:
            items.append(Promotion(list(part.promotion_types)))
        if part.padding:
            items.append(Numbers("padding", _sizes(loops, part.padding)))
        if part.padding_conv:
            items.append(Numbers("padding_conv", _sizes(own or loops, part.padding_conv)))
        if part.workgroup_reordering:
            first, second = part.workgroup_reordering
            items.append(Transpose(first, second))
        if part.convert_acc_gemm:
            items.append(Switch("convert_acc_gemm"))
    return Lowering("iree_gpu", items)


def _instruction(kind: str | MmaKind) -> Instruction:
    name = mma_name(kind)
    col_major = isinstance(kind, MmaKind) and kind.col_major
    return Instruction(name, name.startswith(("VMFMA_", "VDMFMA_")), col_major)


def _layout(
    name: str, loops: Sequence[str], given: Basis | dict[str, int], over: Sequence[str]
) -> Layout:
    counts = basis_counts(given)
    over = given.over if isinstance(given, Basis) and given.over else over or loops
    places = [loops.index(loop) for loop in over]
    return Layout(name, [counts.get(loop, 1) for loop in loops], places)


def _options(settings: Settings) -> list[Option]:
    pipeline: list[tuple[str, int | bool | str]] = []
    if settings.prefetch_stages is not None:
        pipeline.append(("prefetch_num_stages", settings.prefetch_stages))
    given = settings.pipeline_options
    if given is not None:
        said: dict[str, bool | str | None] = {
            "no_reduce_shared_memory_bank_conflicts": given.no_reduce_shared_memory_bank_conflicts,
            "use_igemm_convolution": given.use_igemm_convolution,
            "reorder_workgroups_strategy": given.reorder_workgroups,
        }
        pipeline += [(name, value) for name, value in said.items() if value is not None]
    out: list[Option] = [PipelineOptions(pipeline)] if pipeline else []
    if settings.function_attributes:
        out.append(FunctionAttributes(list(settings.function_attributes.items())))
    if settings.denormal_f32 is not None:
        out.append(Denormal(settings.denormal_f32))
    for name, number in (
        ("pipeline_depth", settings.pipeline_depth),
        ("store_stage", settings.store_stage),
    ):
        if number is not None:
            out.append(Number(name, number))
    return out
