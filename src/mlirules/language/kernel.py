"""Kernel rules: a match that becomes the dispatch of a kernel written by hand.

The kernel is a function of one workgroup over buffers, as MLIR text over the rule's symbols, once
for each kind of target that it is written for. How many workgroups there are, how many threads each
has, and the sizes of tiles are expressions over the shapes of the match.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

from mlirules.language.grid import TILES
from mlirules.language.model import Body, Equation, RuleDoc, Strict, Symbol

#: A row of a matrix.
Row = Annotated[list[FiniteFloat], Field(min_length=1, max_length=64)]
#: The sizes of a product by libxsmm, in the order in which its generator takes them.
SIZES = ("m", "n", "k", "lda", "ldb", "ldc")


class Microkernel(Strict):
    """A product of fixed size, c = a b + beta c, of matrices of f32 that lie column by column."""

    m: Equation | int = Field(description="The rows of a and c.", examples=[32])
    n: Equation | int = Field(description="The columns of b and c.", examples=["BM"])
    k: Equation | int = Field(description="The columns of a, the rows of b.", examples=["K"])
    lda: Equation | int = Field(description="How far columns of a stand apart.", examples=[32])
    ldb: Equation | int = Field(description="How far columns of b stand apart.", examples=["K"])
    ldc: Equation | int = Field(description="How far columns of c stand apart.", examples=["N"])
    beta: Literal[0, 1] = Field(description="1: what c holds is added to.", examples=[0])


class KernelObject(Strict):
    """Machine code that is linked into the kernel's executable; CPUs only."""

    source: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\.c$",
        max_length=200,
        description="The C file, beside the rule file. It has no libc: arithmetic alone.",
        examples=["softmax.c"],
    )
    functions: dict[Symbol, Equation] = Field(
        default={},
        max_length=50,
        description="The functions of the C file that the body calls, with the types they take. A "
        "memref of rank 0 is a pointer (then pass the offset as well), index is size_t.",
        examples=[{"rows": "(memref<f32>, index, memref<f32>, index, index)"}],
    )
    xsmm: dict[Symbol, Microkernel] = Field(
        default={},
        max_length=16,
        description="Products that libxsmm writes the code of, for the CPU that is compiled for. "
        "The body calls them like functions that take a, b and c, each as a pointer and an offset. "
        "Without libxsmm the rule refuses.",
        examples=[
            {"tile": {"m": 32, "n": 6, "k": "K", "lda": 32, "ldb": "K", "ldc": "N", "beta": 0}}
        ],
    )


class Tile(Strict):
    """The shape of a tile register of the CPU (AMX)."""

    rows: Equation | int = Field(description="Its rows, at most 16.", examples=[16])
    bytes: Equation | int = Field(description="The bytes of a row, at most 64.", examples=["2 * K"])


class Multiply(Strict):
    """A matrix that a tensor is multiplied by along some of its dims."""

    along: list[int] = Field(
        min_length=1, max_length=8, description="The dims of the view.", examples=[[3, 4]]
    )
    by: list[Row] = Field(
        min_length=1,
        max_length=64,
        description="The matrix's rows, each with a number for each place of the dim, which then "
        "has a place for each row.",
        examples=[[[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]],
    )


class Reorder(Strict):
    """The order in which the kernel reads a tensor that the program knows."""

    when: Equation | bool = Field(
        default=True,
        description="Whether it is put in this order; else the kernel reads it as it is.",
        examples=["fixed(w) and divisible(F, 8)"],
    )
    pad: list[Equation | int] = Field(
        max_length=8,
        default=[],
        description="How many zeros follow along each of its own dims, before anything else.",
        examples=[["-N % 8", 0]],
    )
    view: list[Equation | int] = Field(
        min_length=1,
        max_length=8,
        description="Its numbers as they then lie, with these dims.",
        examples=[["F // 8", 8, "K"]],
    )
    permute: list[int] = Field(
        min_length=1,
        max_length=8,
        description="Of these the dims in the order in which they lie for the kernel.",
        examples=[[0, 2, 1]],
    )
    multiply: list[Multiply] = Field(
        max_length=8,
        default=[],
        description="What its numbers are multiplied by along dims of the view: f32, or si8 by "
        "whole numbers, which become si16.",
        examples=[[{"along": [2], "by": [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]}]],
    )


class Scratch(Strict):
    """A tensor that lies between two dispatches: one of its own writes it."""

    dims: list[Equation | int] = Field(
        min_length=1,
        max_length=8,
        description="Its dims, known when the kernel is compiled.",
        examples=[["TB", 36, "C", 8]],
    )
    element: Literal["f32", "f16", "bf16", "i8", "i16", "i32"] = Field(
        default="f32", description="What it holds."
    )
    grid: list[Equation | int] = Field(
        min_length=1,
        max_length=3,
        description="Workgroups along x, y and z of the dispatch that writes it.",
        examples=[["C", "TB"]],
    )
    workgroup: list[Equation | int] = Field(
        max_length=3,
        default=[],
        description="Threads along x, y and z (GPUs only).",
        examples=[["W", 1, 1]],
    )
    body: str = Field(
        min_length=1,
        max_length=60000,
        description="MLIR of one workgroup, as in the kernel's own body: it reads inputs and what "
        "was written before it, and writes this tensor.",
        examples=["memref.store %sum, %v[%block_x] : $v\n"],
    )


class KernelVariant(Strict):
    """The kernel for some kinds of target. The first variant whose conditions hold is taken."""

    targets: list[Literal["cpu", "vulkan", "cuda", "hip"]] = Field(
        min_length=1,
        max_length=4,
        description="The kinds of target it is for.",
        examples=[["vulkan", "cuda", "hip"]],
    )
    let: dict[Symbol, str | int | FiniteFloat | bool] = Field(
        max_length=200,
        default={},
        description="Sizes of tiles, and other names for expressions.",
        examples=[{"TM": 4, "steps": "K // 16"}],
    )
    where: list[Equation] = Field(
        max_length=200,
        default=[],
        description="Conditions for this variant: divisibility and bounds.",
        examples=[["divisible(M, TM)"]],
    )
    grid: list[Equation | int] = Field(
        min_length=1,
        max_length=3,
        description="Workgroups along x, y and z.",
        examples=[["ceildiv(M, TM)", "N // TN"]],
    )
    workgroup: list[Equation | int] = Field(
        max_length=3,
        default=[],
        description="Threads along x, y and z (GPUs only).",
        examples=[["W", 1, 1]],
    )
    object: KernelObject | None = Field(
        default=None,
        description="A C file to link in, or products by libxsmm.",
        examples=[{"source": "softmax.c", "functions": {"rows": "(memref<f32>, index)"}}],
    )
    tiles: list[Tile] = Field(
        max_length=TILES,
        default=[],
        description="The shapes of the tile registers (AMX), which the body names %tile0, %tile1, "
        "...; CPUs only. They are set up before the body and given up behind it.",
        examples=[[{"rows": 16, "bytes": 64}]],
    )
    reorder: dict[Symbol, Reorder] = Field(
        max_length=16,
        default={},
        description="Inputs that lie in another order for the kernel: %w and $w are then what they "
        "become. What the program knows (`fixed(w)`) is put in order when it is compiled, anything "
        "else by every call.",
        examples=[{"w": {"when": "fixed(w)", "view": ["F // 8", 8, "K"], "permute": [0, 2, 1]}}],
    )
    first: dict[Symbol, Scratch] = Field(
        max_length=8,
        default={},
        description="Tensors that dispatches before the kernel's own write, in this order, for it "
        "to read: %v is the buffer of v.",
        examples=[{"v": {"dims": ["M"], "grid": ["M"], "body": "memref.store %s, %v[%i] : $v\n"}}],
    )
    body: str = Field(
        min_length=1,
        max_length=60000,
        description="MLIR of one workgroup: %a is the buffer (memref) of tensor a, $a its type, "
        "%M and $M a size, %block_x the workgroup's place, %thread_x the thread's.",
        examples=["%v = memref.load %x[%block_x] : $x\n"],
    )


class Kernel(Strict):
    """What stands in place of the match: a dispatch of a kernel over its tensors."""

    inputs: list[Symbol] = Field(
        min_length=1,
        max_length=16,
        description="The tensors of the match that the kernel reads, in order; what it writes are "
        "the results of the root.",
        examples=[["a", "b"]],
    )
    variants: list[KernelVariant] = Field(
        min_length=1, max_length=16, description="The kernel for each kind of target."
    )


class KernelDoc(RuleDoc):
    """A rule whose match becomes the dispatch of a kernel."""

    rewrite: list[Equation | Body] = Field(
        max_length=0, default=[], description="A kernel rule has none: `kernel:` stands for it."
    )
    kernel: Kernel = Field(description="The kernel that takes the place of the match.")
