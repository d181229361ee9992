"""The rule model: what a rule file holds, typed, and its JSON Schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

RuleName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=100)]
Words = Annotated[str, StringConstraints(min_length=3, max_length=4000)]
Symbol = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=60)]
Equation = Annotated[str, StringConstraints(min_length=1, max_length=4000)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class RunSpec(_Strict):
    """How a test's numbers are checked: against the same program without the rule."""

    devices: list[Literal["cpu", "vulkan", "cuda"]] = Field(
        default=["cpu"], description="Targets to run on.", min_length=1
    )
    rtol: float = Field(default=1e-5, ge=0, le=0.1, description="Relative tolerance.")
    atol: float = Field(default=1e-6, ge=0, le=0.1, description="Absolute tolerance.")
    seed: int = Field(default=0, ge=0, description="Seed of the random inputs.")
    low: float = Field(default=-2.0, description="Smallest random input.")
    high: float = Field(default=2.0, description="Largest random input.")
    sizes: list[list[int]] = Field(
        default=[],
        description="For programs with dynamic dims: a list of values for the `?` dims, in the "
        "order in which they stand in the signature, one list per run.",
    )
    expect: list[Any] | None = Field(
        default=None,
        description="Expected results as nested lists, instead of the unrewritten program's.",
    )
    inputs: list[Any] | None = Field(
        default=None, description="Inputs as nested lists, instead of random ones."
    )


class Test(_Strict):
    """One inline test: a program that the rule rewrites (`input`) or must leave (`unchanged`)."""

    name: Words = Field(description="What the test shows.")
    input: str | None = Field(default=None, description="MLIR that the rule must rewrite.")
    unchanged: str | None = Field(default=None, description="MLIR that the rule must leave alone.")
    because: str | None = Field(
        default=None,
        description="The `where`, `types` or `match` line that must have refused `unchanged`, "
        "spelt as in the rule.",
    )
    check: str | None = Field(default=None, description="FileCheck lines for the rewritten IR.")
    run: RunSpec | None = Field(default=None, description="Compile, run and compare numbers.")
    applied: int | None = Field(
        default=None, ge=0, description="How many times the rule must apply to `input`."
    )


class Body(_Strict):
    """Raw MLIR over the rule's symbols."""

    body: str = Field(
        min_length=1,
        max_length=20000,
        description="MLIR operations. %a is operand a, $a its type, $T an element type, "
        "$M a dim, $(expr) any constant expression.",
    )


class RuleDoc(_Strict):
    """One rewrite rule: what it matches, under which conditions, and what it puts there."""

    rule: RuleName = Field(description="The rule's name: lower-case words joined by '-'.")
    kind: Literal["conversion", "fusion"] = Field(
        description="conversion: op to op across dialects. fusion: DAG to DAG."
    )
    summary: Words = Field(description="One sentence: what the rule does.")
    reason: Words = Field(description="Why the rule exists: what it makes possible or faster.")
    tags: list[RuleName] = Field(default=[], description="Words to select rules by.")
    benefit: int = Field(
        default=1, ge=0, le=65535, description="Of several rules that match, the highest goes first."
    )
    targets: list[str] = Field(default=[], description="Targets it is meant for; empty: all.")
    commutative: list[str] = Field(
        default=[], description="Ops whose first two operands may stand in either order."
    )
    types: dict[Symbol, str] = Field(
        default={}, description="Types of the symbols, e.g. `vtensor<M x K x T>`."
    )
    match: list[Equation] = Field(
        min_length=1, max_length=64, description="The ops to find, in IR order; the last is the root."
    )
    let: dict[Symbol, str | int | float | bool] = Field(
        default={}, description="Names for expressions, evaluated before `where`."
    )
    where: list[Equation] = Field(default=[], description="Conditions that must hold.")
    rewrite: list[Equation | Body] = Field(
        min_length=1, max_length=200, description="The equations that define the root's results."
    )
    tests: list[Test] = Field(min_length=1, description="At least one positive and one negative.")
    notes: str = Field(default="", description="Anything else worth knowing (Markdown).")
    tolerance: str = Field(
        default="", description="Why the numbers may differ from the unrewritten program's."
    )
