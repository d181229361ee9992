"""The rule model: what a rule file holds, typed, and its JSON Schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, StringConstraints

RuleName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=100)]
Words = Annotated[str, StringConstraints(min_length=3, max_length=4000)]
Symbol = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=60)]
Equation = Annotated[str, StringConstraints(min_length=1, max_length=4000)]
Size = Annotated[int, Field(ge=0, le=1 << 40)]


class Strict(BaseModel):
    """What a rule file holds: no unknown keys, no converted values, nothing to change."""

    # Deferred: most commands read few kinds of files, and each kind takes milliseconds.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class RunDoc(Strict):
    """How a test's numbers are checked: against the same program without the rule."""

    devices: list[Literal["cpu", "vulkan", "cuda"]] = Field(
        default=["cpu"],
        description="Targets to run on.",
        min_length=1,
        examples=[["cpu", "vulkan"]],
    )
    rtol: FiniteFloat = Field(
        default=1e-5, ge=0, le=0.1, description="Relative tolerance.", examples=[1.0e-5]
    )
    atol: FiniteFloat = Field(
        default=1e-6, ge=0, le=0.1, description="Absolute tolerance.", examples=[1.0e-6]
    )
    seed: int = Field(
        default=0, ge=0, le=(1 << 32) - 1, description="Seed of the random inputs.", examples=[7]
    )
    low: FiniteFloat = Field(default=-2.0, description="Smallest random input.", examples=[0.0])
    high: FiniteFloat = Field(default=2.0, description="Largest random input.", examples=[1.0])
    sizes: list[list[Size]] = Field(
        default=[],
        description="For programs with dynamic dims: a list of values for the `?` dims, in the "
        "order in which they stand in the signature, one list per run.",
        examples=[[[1, 4], [7, 3]]],
    )
    expect: list[Any] | None = Field(
        default=None,
        description="Expected results as nested lists, instead of the unrewritten program's.",
        examples=[[[0.0, 1.5]]],
    )
    inputs: list[Any] | None = Field(
        default=None,
        description="Inputs as nested lists, instead of random ones.",
        examples=[[[-1.0, 1.5]]],
    )


class Test(Strict):
    """One inline test: a program that the rule rewrites (`input`) or must leave (`unchanged`)."""

    name: Words = Field(description="What the test shows.", examples=["static f32"])
    input: str | None = Field(
        default=None,
        description="MLIR that the rule must rewrite.",
        examples=["func.func @f(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> { ... }"],
    )
    unchanged: str | None = Field(
        default=None,
        description="MLIR that the rule must leave alone.",
        examples=["func.func @f(%x: !torch.vtensor<[4],i1>) -> !torch.vtensor<[4],i1> { ... }"],
    )
    because: str | None = Field(
        default=None,
        description="The `where`, `types` or `match` line that must have refused `unchanged`, "
        "spelt as in the rule.",
        examples=["T in [f16, bf16, f32, f64]"],
    )
    check: str | None = Field(
        default=None,
        description="FileCheck lines for the rewritten IR.",
        examples=["CHECK: linalg.matmul\nCHECK-NOT: torch.aten\n"],
    )
    run: RunDoc | None = Field(
        default=None,
        description="Compile, run and compare numbers.",
        examples=[{"devices": ["cpu", "vulkan"], "rtol": 1.0e-5}],
    )
    applied: int | None = Field(
        default=None,
        ge=0,
        description="How many times the rule must apply to `input`.",
        examples=[1],
    )
    cpu: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9][a-z0-9_-]*$",
        description="The CPU that a kernel of the test is made for, as `--target cpu:` names it; "
        "without it this machine's. A machine that cannot run it compares no numbers.",
        examples=["znver4"],
    )


class Body(Strict):
    """Raw MLIR over the rule's symbols."""

    body: str = Field(
        min_length=1,
        max_length=20000,
        description="MLIR operations. %a is operand a, $a its type, $T an element type, "
        "$M a dim, $(expr) any constant expression.",
        examples=["%empty = tensor.empty() : $y\n"],
    )


class RuleDoc(Strict):
    """One rewrite rule: what it matches, under which conditions, and what it puts there."""

    rule: RuleName = Field(
        description="The rule's name: lower-case words joined by '-'.",
        examples=["torch-mm-to-linalg"],
    )
    kind: Literal["conversion", "fusion", "kernel"] = Field(
        description="conversion: op to op across dialects. fusion: DAG to DAG. kernel: DAG to a "
        "kernel written by hand.",
        examples=["conversion"],
    )
    summary: Words = Field(
        description="One sentence: what the rule does.",
        examples=["Lower torch.aten.mm to a zero-filled linalg.matmul."],
    )
    reason: Words = Field(
        description="Why the rule exists: what it makes possible or faster.",
        examples=["IREE tiles linalg.matmul; it does not know torch.aten.mm."],
    )
    tags: list[RuleName] = Field(
        max_length=50, default=[], description="Words to select rules by.", examples=[["matmul"]]
    )
    benefit: int = Field(
        default=1,
        ge=0,
        le=65535,
        description="Of several rules that match, the highest goes first.",
        examples=[2],
    )
    overlaps: list[RuleName] = Field(
        max_length=50,
        default=[],
        description="Rules of the same set that match some of the same programs, on purpose: "
        "`mlirules check` does not report the pair.",
        examples=[["torch-matmul-to-linalg"]],
    )
    targets: list[str] = Field(
        max_length=50,
        default=[],
        description="Targets it is meant for; empty: all.",
        examples=[["cpu", "cuda:sm_80"]],
    )
    commutative: list[str] = Field(
        max_length=64,
        default=[],
        description="Ops whose first two operands may stand in either order.",
        examples=[["torch.aten.add.Tensor"]],
    )
    types: dict[Symbol, str] = Field(
        max_length=200,
        default={},
        description="Types of the symbols. A dim or element type that stands twice must be equal.",
        examples=[{"a": "vtensor<M x K x T>", "alpha": "constant int"}],
    )
    match: list[Equation] = Field(
        min_length=1,
        max_length=64,
        description="The ops to find, in the order of the IR; the last is the root.",
        examples=[["c = torch.aten.mm(a, b)"]],
    )
    let: dict[Symbol, str | int | FiniteFloat | bool] = Field(
        max_length=200,
        default={},
        description="Names for expressions, evaluated before `where`.",
        examples=[{"half": "K // 2"}],
    )
    where: list[Equation] = Field(
        max_length=200,
        default=[],
        description="Conditions that must hold.",
        examples=[["T in [f16, f32]", "one_use(c)"]],
    )
    rewrite: list[Equation | Body] = Field(
        min_length=1,
        max_length=200,
        description="The equations that define the root's results.",
        examples=[["c[m, n] += a[m, k] * b[k, n]"]],
    )
    tests: list[Test] = Field(
        max_length=200, min_length=1, description="At least one positive and one negative."
    )
    reference: (
        Annotated[
            str,
            StringConstraints(
                pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\.py:[A-Za-z_][A-Za-z0-9_]*$", max_length=200
            ),
        ]
        | None
    ) = Field(
        default=None,
        description="A Python function, beside the rule file, that computes what the root op does: "
        "what the numbers of a custom op are held against. Executed with `--trust-python` only.",
        examples=["twice.py:twice"],
    )
    notes: str = Field(default="", description="Anything else worth knowing (Markdown).")
    tolerance: str = Field(
        default="", description="Why the numbers may differ from the unrewritten program's."
    )


class DraftDoc(RuleDoc):
    """A rule that is no file yet, as those written in Python: its tests are still to be made."""

    tests: list[Test] = Field(default=[], max_length=200)
