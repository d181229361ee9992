"""The model of ``kind: config`` rules: an op by what it computes, and how it is to be compiled.

Python API, for tools that write such rules:

- :class:`ConfigDoc` is the file; ``ConfigDoc.model_validate(plain data)`` checks its shape.
- :func:`mlirules.language.config_loader.load_config` (a file) and ``load_configs`` (rule sets)
  read, check and locate; ``load_config(path, text)`` checks text that is not written yet. They give
  :class:`~mlirules.language.config.op.ConfigRule`, or raise ``MlirulesError`` with every fault.
- :func:`mlirules.language.config_loader.write_config` writes a :class:`ConfigDoc` as YAML.
- :func:`mlirules.generator.emit.tuning_spec.tuning_spec` writes the tuning spec.
- :func:`mlirules.drivers.tuning_specs.compile.compile_with` compiles with them, proven.

A rule in short::

    rule: mm-512-f32-cpu
    kind: config
    summary: A 512x512x512 matmul on cpu.
    reason: Measured faster than the default tiles.
    targets: [cpu]
    match:
      op: contraction
      compute: c[m, n] += a[m, k] * b[k, n]
      types: {a: f32, b: f32, c: f32}
      dims: {m: 512, n: {multiple_of: 64}, k: {min: 64, max: 4096}}
    set:
      pipeline: DoubleTilingExpert
      tiles:
        distribution: {m: 64, n: 64}
        vector_common_parallel: {m: 8, n: 32}
        vector_reduction: {k: 16}
    tests: [...]

The vocabulary of each kind of target (pipelines, tile levels, keys) stands here too: it is the
compiler's, and what is not in it is refused before the compiler, which would ignore it in silence.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StringConstraints

from mlirules.language.model import RuleName, RunDoc, Symbol, Words

__all__ = [
    "CPU_LEVELS",
    "GPU_LEVELS",
    "KEYS",
    "PIPELINES",
    "ConfigDoc",
    "ConfigTest",
    "DimRange",
    "Match",
    "Measured",
    "MmaKind",
    "OperandLimit",
    "Settings",
    "SubConfig",
    "Ukernel",
    "levels_of",
]

CPU_LEVELS = (
    "distribution",
    "cache_parallel",
    "cache_reduction",
    "vector_common_parallel",
    "vector_reduction",
    "vector_inner_parallel",
)
GPU_LEVELS = (
    "workgroup",
    "partial_reduction",
    "reduction",
    "serial",
    "thread",
    "subgroup",
    "lane",
)

#: Lowering pipelines by kind of target.
PIPELINES: dict[str, tuple[str, ...]] = {
    "cpu": (
        "Default",
        "DoubleTilingExpert",
        "ConvTileAndDecomposeExpert",
        "Mmt4dTilingExpert",
        "BufferOpsTileAndVectorize",
        "DataTiling",
        "LinalgExtTileAndVectorize",
    ),
    "cuda": ("TileAndFuse", "VectorDistribute", "BaseLowering", "Distribute", "Vectorize"),
    "hip": (
        "TileAndFuse",
        "VectorDistribute",
        "BaseLowering",
        "Distribute",
        "Vectorize",
        "WinogradVectorize",
    ),
    "vulkan": (
        "BaseLowering",
        "BaseDistribute",
        "BaseVectorize",
        "SubgroupReduce",
        "MatmulPromoteVectorize",
        "CooperativeMatrixVectorize",
        "WinogradVectorize",
    ),
}

#: SPIR-V tile lists have no names: the pipeline says what the first, second, third one is.
SPIRV_LEVELS: dict[str, tuple[str, ...]] = {
    "BaseLowering": (),
    "BaseDistribute": ("workgroup", "thread", "reduction"),
    "BaseVectorize": ("workgroup", "thread", "reduction"),
    "MatmulPromoteVectorize": ("block",),  # parallel dims and summed ones together
    "SubgroupReduce": ("workgroup", "reduction"),
    "CooperativeMatrixVectorize": ("workgroup", "subgroup", "reduction", "vector"),
    "WinogradVectorize": ("workgroup", "thread"),
}

_EVERYWHERE = frozenset({"ukernel", "annotations"})
#: Keys of ``set`` that each kind of target knows, besides ``pipeline`` and ``tiles``.
KEYS: dict[str, frozenset[str]] = {
    "cpu": frozenset({"decomposition"}) | _EVERYWHERE,
    "vulkan": frozenset({"workgroup_size", "subgroup_size", "pipeline_depth", "store_stage"})
    | _EVERYWHERE,
    "cuda": frozenset(
        {
            "workgroup_size",
            "subgroup_size",
            "mma_kind",
            "promote_operands",
            "subgroup_basis",
            "lane_basis",
            "convert_acc_gemm",
            "prefetch_stages",
            "pipeline_options",
            "function_attributes",
            "denormal_f32",
            "decomposition",
            "padding",
            "padding_conv",
            "promotion_types",
            "workgroup_reordering",
        }
    )
    | _EVERYWHERE,
}
KEYS["hip"] = KEYS["cuda"]


def levels_of(kind: str, pipeline: str) -> tuple[str, ...]:
    """The tile levels of a kind of target (``cpu``, ``cuda``, ...), in the order they are written.

    On vulkan they depend on the pipeline.
    """
    if kind == "cpu":
        return CPU_LEVELS
    if kind == "vulkan":
        return SPIRV_LEVELS.get(pipeline, ())
    return GPU_LEVELS


#: The loop that all sums of a convolution become where it is computed as a matrix product.
PRODUCT_LOOP = "k"

#: How operands may get into shared memory.
PromotionType = Literal["derived_thread_config", "use_global_load_dma"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Tile = Annotated[int, Field(ge=0, le=1 << 24)]
Extent = Annotated[int, Field(ge=1, le=1 << 40)]
TargetName = Annotated[str, StringConstraints(min_length=2, max_length=60)]
Tiles = dict[Symbol, Tile]


class DimRange(_Strict):
    """Sizes that a dim may have. What is left out does not limit it."""

    min: Extent | None = Field(default=None, description="The smallest size.", examples=[64])
    max: Extent | None = Field(default=None, description="The largest size.", examples=[8192])
    multiple_of: Extent | None = Field(
        default=None, description="What divides the size; the dim must be static.", examples=[64]
    )


class OperandLimit(_Strict):
    """Sizes that one dim of an operand may have."""

    operand: int = Field(ge=0, le=64, description="The operand, by position.")
    dim: int = Field(ge=0, le=64, description="Its dim, by position.")
    min: Extent | None = Field(default=None, description="The smallest size.")
    max: Extent | None = Field(default=None, description="The largest size.")
    multiple_of: Extent | None = Field(
        default=None, description="What divides the size; the dim must be static."
    )


class Match(_Strict):
    """The ops to configure, by what they compute."""

    op: Literal["contraction", "convolution", "attention", "generic", "operation"] = Field(
        description="The class of op. generic: any linalg op that computes the equation. "
        "operation: by name and operand types only.",
        examples=["contraction"],
    )
    compute: str | None = Field(
        default=None,
        max_length=4000,
        description="The computation as an index equation; it names operands and dims. Loops are "
        "in the order of their first use, the result's first, unless `loops` says otherwise.",
        examples=[
            "c[m, n] += a[m, k] * b[n, k]",
            "o[n, f, i, j] += x[n, c, i*2 + u, j*2 + v] * w[f, c, u, v]",
            "o[b, h, m, n] = attention(q[b, h, m, d], k[b, h, s, d], v[b, h, s, n])",
        ],
    )
    loops: list[Symbol] = Field(
        default=[],
        max_length=24,
        description="The op's loops, outermost first, where the order is not that of first use; "
        "for `op: operation`, their names.",
        examples=[["m", "n", "k"]],
    )
    types: dict[Symbol, str] = Field(
        default={},
        max_length=24,
        description="The element type of each operand named in `compute`. Attention may have "
        "`scale`, `max` and `sum` as well.",
        examples=[{"a": "f16", "b": "f16", "c": "f32"}],
    )
    dims: dict[Symbol, Extent | DimRange] = Field(
        default={},
        max_length=24,
        description="Sizes of the dims: exact, or `{min, max, multiple_of}`. A dim that is not "
        "named may have any size.",
        examples=[{"m": 2048, "n": {"multiple_of": 64}}],
    )
    name: str | None = Field(
        default=None,
        max_length=100,
        description="The op's name: what `op: operation` goes by. Beside `compute:` it leaves out "
        "ops of the class that have another name.",
        examples=["iree_linalg_ext.online_attention"],
    )
    operands: list[str | None] = Field(
        default=[],
        max_length=24,
        description="`op: operation`: operand types by position; `?` is any size, null any type.",
        examples=[["tensor<?x?x?x?xf16>"]],
    )
    limits: list[OperandLimit] = Field(
        default=[],
        max_length=64,
        description="`op: operation`: sizes that single dims of the operands may have.",
        examples=[[{"operand": 0, "dim": 1, "multiple_of": 64}]],
    )
    program: str | None = Field(
        default=None,
        max_length=100_000,
        description="`op: operation`: the ops that lead to this one, which is the last, as the "
        "body of a block in MLIR. Attributes and bodies are compared exactly; of types, `?` is any "
        "size.",
        examples=["^bb0(%a: tensor<?x64xf16>, %b: tensor<64x?xf16>):\n  ..."],
    )
    configured: bool = Field(
        default=False,
        description="Take also ops that have a configuration already, and replace it.",
    )


class MmaKind(_Strict):
    """A matrix instruction."""

    name: str = Field(description="Its name.", examples=["MFMA_F32_16x16x16_F16"])
    col_major: bool = Field(default=False, description="Results are held column by column.")


class Basis(_Strict):
    """How subgroups (or lanes) are laid out over the loops."""

    counts: dict[Symbol, Extent] = Field(
        description="How many along a loop; 1 along the others.", examples=[{"m": 2, "n": 2}]
    )
    over: list[Symbol] = Field(
        default=[], description="The loops that the op has, in their order in the basis."
    )


class SubConfig(_Strict):
    """How one of the two products inside an attention is compiled."""

    over: list[Symbol] = Field(
        default=[],
        max_length=24,
        description="The product's loops, for `op: operation`; otherwise they follow from "
        "`compute`.",
    )
    tiles: dict[Symbol, Tiles] = Field(
        default={}, max_length=10, description="Tile sizes by level, then by dim."
    )
    mma_kind: str | MmaKind | None = Field(default=None, description="The matrix instruction.")
    subgroup_basis: Basis | dict[Symbol, Extent] | None = Field(
        default=None, description="Subgroups along each loop."
    )
    lane_basis: Basis | dict[Symbol, Extent] | None = Field(
        default=None, description="Lanes along each loop."
    )
    promote_operands: list[int] = Field(
        default=[], max_length=8, description="Operands held in shared memory, by position."
    )


class Decomposition(_Strict):
    """The two products inside an attention."""

    qk: SubConfig | None = Field(default=None, description="Queries times keys.")
    pv: SubConfig | None = Field(default=None, description="Weights times values.")


class Ukernel(_Strict):
    """A kernel written by hand that computes the op."""

    name: str = Field(
        min_length=1,
        max_length=200,
        pattern=r'^[^"\\\n]*$',
        description="Its name.",
        examples=["pingpong_large_f16"],
    )
    kind: Literal["tensor", "bitcode"] = Field(
        description="tensor: a function over tensors, as the ping-pong kernels are; bitcode: one "
        "that is linked in."
    )


class PipelineOptions(_Strict):
    """Options of the GPU pipelines."""

    no_reduce_shared_memory_bank_conflicts: bool | None = Field(
        default=None, description="Leave shared memory unpadded."
    )
    use_igemm_convolution: bool | None = Field(
        default=None, description="Convolutions as matrix products."
    )
    reorder_workgroups: Literal["None", "Transpose"] | None = Field(
        default=None, description="The order of the workgroups."
    )


class Settings(_Strict):
    """How the op is to be compiled."""

    pipeline: str = Field(description="The lowering pipeline.", examples=["DoubleTilingExpert"])
    tiles: dict[Symbol, Tiles] = Field(
        default={},
        max_length=10,
        description="Tile sizes by level, then by dim name; 0 or left out: not tiled. cpu: "
        + ", ".join(CPU_LEVELS)
        + ". cuda, hip: "
        + ", ".join(GPU_LEVELS)
        + ". vulkan: workgroup, thread, reduction; "
        "MatmulPromoteVectorize has one list for all, block.",
        examples=[{"distribution": {"m": 64, "n": 64}, "vector_reduction": {"k": 16}}],
    )
    workgroup_size: list[Annotated[int, Field(ge=1, le=1024)]] | None = Field(
        default=None,
        min_length=1,
        max_length=3,
        description="Threads along x, y, z.",
        examples=[[256, 1, 1]],
    )
    subgroup_size: Literal[8, 16, 32, 64, 128] | None = Field(
        default=None, description="Threads in a subgroup.", examples=[64]
    )
    mma_kind: str | MmaKind | None = Field(
        default=None,
        description="The matrix instruction; one that the target has.",
        examples=["MFMA_F32_16x16x16_F16"],
    )
    promote_operands: list[int] = Field(
        default=[],
        max_length=8,
        description="Operands held in shared memory, by position.",
        examples=[[0, 1]],
    )
    promotion_types: list[PromotionType] = Field(
        default=[],
        max_length=8,
        description="How each promoted operand gets into shared memory, in their order.",
        examples=[["derived_thread_config", "use_global_load_dma"]],
    )
    padding: Tiles = Field(
        default={},
        max_length=24,
        description="What tiles are padded to, by dim name; 0 or left out: not padded.",
        examples=[{"m": 64, "n": 64, "k": 64}],
    )
    padding_conv: Tiles = Field(
        default={},
        max_length=24,
        description="A convolution as a matrix product: what its own dims are padded to.",
        examples=[{"i": 4, "j": 32}],
    )
    subgroup_basis: Basis | dict[Symbol, Extent] | None = Field(
        default=None, description="Subgroups along each loop.", examples=[{"m": 2, "n": 2}]
    )
    lane_basis: Basis | dict[Symbol, Extent] | None = Field(
        default=None, description="Lanes along each loop."
    )
    convert_acc_gemm: bool = Field(
        default=False, description="Accumulate in the instruction's type, then convert."
    )
    prefetch_stages: int | None = Field(
        default=None, ge=0, le=8, description="Stages of prefetching into shared memory."
    )
    denormal_f32: Literal["ieee", "preserve-sign", "positive-zero"] | None = Field(
        default=None, description="What becomes of denormal f32 numbers."
    )
    pipeline_depth: int | None = Field(
        default=None, ge=0, le=8, description="vulkan: stages of software pipelining."
    )
    store_stage: int | None = Field(
        default=None, ge=0, le=1, description="vulkan: the stage that stores."
    )
    pipeline_options: PipelineOptions | None = Field(
        default=None, description="Options of the GPU pipelines."
    )
    function_attributes: dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$", max_length=60)],
        Annotated[str, StringConstraints(pattern=r'^[^"\\\n]*$', max_length=100)],
    ] = Field(
        default={},
        max_length=20,
        description="LLVM function attributes.",
        examples=[{"amdgpu-waves-per-eu": "2"}],
    )
    decomposition: Decomposition | None = Field(
        default=None, description="Attention: how its two products are compiled."
    )
    workgroup_reordering: list[Extent] | None = Field(
        default=None,
        min_length=2,
        max_length=2,
        description="cuda, hip: transpose the order of the workgroups, from these counts on.",
        examples=[[8, 38]],
    )
    ukernel: Ukernel | None = Field(
        default=None, description="The kernel that computes the op, a ping-pong kernel for example."
    )
    annotations: dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.$-]*$", max_length=100)],
        Annotated[str, StringConstraints(max_length=10_000)],
    ] = Field(
        default={},
        max_length=20,
        description="Further attributes that the op gets, as the compiler spells them; empty for "
        "one without a value.",
        examples=[{"__tuning_spec_applied__": ""}],
    )


class Measured(_Strict):
    """What was measured when the rule was made."""

    device: Words = Field(description="The device.", examples=["Xeon, 2 cores, AVX-512"])
    compiler: str = Field(description="The compiler's version.", examples=["3.13.0"])
    default_ms: FiniteFloat = Field(gt=0, description="Milliseconds with the default config.")
    tuned_ms: FiniteFloat = Field(gt=0, description="Milliseconds with this one.")
    spread: FiniteFloat = Field(
        ge=0, description="Relative spread of the repeats: (worst - best) / best."
    )
    runs: int | None = Field(default=None, ge=1, description="Repeats.")

    @property
    def speedup(self) -> float:
        """How many times faster than the default."""
        return self.default_ms / self.tuned_ms


class ConfigTest(_Strict):
    """One inline test: a program with an op that the entry hits, or one that it must not hit."""

    name: Words = Field(description="What the test shows.", examples=["the shape itself"])
    input: str | None = Field(
        default=None,
        description="MLIR with an op that the entry must hit.",
        examples=["func.func @f(%a: tensor<512x512xf32>, ...) { ... }"],
    )
    unchanged: str | None = Field(
        default=None,
        description="MLIR whose ops the entry must not hit.",
    )
    because: str | None = Field(
        default=None,
        description="What of `match` refuses `unchanged`: `op`, `compute`, `types.NAME`, "
        "`dims.NAME`, `name` or `operands.POSITION`.",
        examples=["dims.k"],
    )
    target: TargetName | None = Field(
        default=None,
        description="The target to compile for; default: the rule's first.",
        examples=["cpu"],
    )
    check: str | None = Field(
        default=None, description="FileCheck lines for the dumped configuration."
    )
    hits: int | None = Field(default=None, ge=1, description="How many ops the entry must hit.")
    run: RunDoc | None = Field(
        default=None, description="Run with and without the rule, and compare numbers."
    )


class ConfigDoc(_Strict):
    """A lowering configuration: which op, on which targets, and how it is compiled."""

    rule: RuleName = Field(
        description="The rule's name: lower-case words joined by '-'.",
        examples=["mmt-2048x1280x5120-f16-gfx942"],
    )
    kind: Literal["config"] = Field(description="config: an op and how it is compiled.")
    summary: Words = Field(description="One sentence: what is configured.")
    reason: Words = Field(description="Why the default is not good enough.")
    tags: list[RuleName] = Field(max_length=50, default=[], description="Words to select by.")
    targets: list[TargetName] = Field(
        min_length=1,
        max_length=50,
        description="Targets it is for: `cpu`, `cuda:sm_80`; `hip` means every hip target.",
        examples=[["cpu"]],
    )
    match: Match = Field(description="Which ops: what they compute, with which types and sizes.")
    set: Settings = Field(description="How they are compiled.")
    measured: Measured | None = Field(
        default=None, description="What was measured when the rule was made."
    )
    tests: list[ConfigTest] = Field(
        max_length=200, description="At least one positive and one negative."
    )
    notes: str = Field(default="", description="Anything else worth knowing (Markdown).")


def basis_counts(basis: Basis | dict[str, int]) -> dict[str, int]:
    """The counts of a basis in either of its spellings."""
    return dict(basis.counts if isinstance(basis, Basis) else basis)


def mma_name(kind: str | MmaKind) -> str:
    """The name of a matrix instruction in either of its spellings."""
    return kind if isinstance(kind, str) else kind.name


def plain(doc: ConfigDoc) -> dict[str, object]:
    """A rule as plain data in the order of the model, without what is not set."""
    return doc.model_dump(mode="python", exclude_defaults=True)
