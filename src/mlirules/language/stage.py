"""What pipeline files say: stages, pipelines, and pipelines that extend another one.

Plain data with the meaning and the limits of every field, of which
:mod:`~mlirules.language.pipeline_file` makes the models that files are checked with. A program is
compiled without those: loading them takes longer than the pipeline does.
"""

# ruff: noqa: RUF009 - the calls make fields

from __future__ import annotations

from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from typing import Any, Literal, TypeVar

S = TypeVar("S", bound="Stages")

Phase = Literal[
    "torch",
    "input",
    "preprocessing",
    "global-optimization",
    "dispatch-creation",
    "flow",
    "configuration",
]
#: What a stage may ask of a CPU, of what kernels may (``grid.FACTS``).
Fact = Literal["dot_bytes", "bf16_bytes", "bf16_tile_rows", "byte_tile_rows"]
#: Phases of the compiler after which it stops for stages, in its order.
LATER: tuple[Phase, ...] = (
    "input",
    "preprocessing",
    "global-optimization",
    "dispatch-creation",
    "flow",
)
#: Those of them after which whatever computes stands in a dispatch.
DISPATCHED: frozenset[Phase] = frozenset(["dispatch-creation", "flow"])

_NAME = r"^[a-z0-9]+(-[a-z0-9]+)*$"


def _said(description: str, default: object = MISSING, **limits: object) -> Any:
    """A field of a file: what it means and, for :mod:`pipeline_file`, its limits."""
    said = {"description": description, **limits}
    if isinstance(default, (list, dict)):
        return field(default_factory=type(default), metadata=said)
    return field(default=default, metadata=said)


@dataclass(frozen=True, kw_only=True)
class Expect:
    """How often something must apply; compiling fails when it does not."""

    applied: int | None = _said("Exactly this many applications.", None, ge=0)
    min: int | None = _said("At least this many applications.", None, ge=0)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One rule set, applied by one driver in one phase."""

    name: str | None = _said(
        "What pipelines that extend this one call the stage.", None, pattern=_NAME
    )
    phase: Phase = _said(
        "torch: before IREE. input, preprocessing, global-optimization, "
        "dispatch-creation, flow: after that phase of IREE. configuration: config rules, where "
        "IREE chooses how each op is compiled."
    )
    rules: list[str] = _said(
        "Rule sets: paths beside the pipeline file, shipped names, or other paths.", min_length=1
    )
    driver: Literal["greedy", "walk", "conversion", "cost", "saturate"] = _said(
        "cost: greedy, where a cost model says that a rule pays. saturate: rules as "
        "equalities, of all equal programs the cheapest.",
        "greedy",
    )
    nodes: int | None = _said(
        "Saturate: end with the best so far at so many ops; default: by the size.", None, ge=1
    )
    seconds: float = _said("Saturate: end with the best so far after so many seconds.", 10.0, gt=0)
    rounds: int = _said(
        "Saturate: end with the best so far when all rules were tried so often.", 12, ge=1
    )
    megabytes: float = _said(
        "Saturate: end with the best so far when the process has grown by so much.", 2000.0, gt=0
    )
    margin: float | None = _said(
        "Cost, saturate: the gain to exceed; 0.03 is 3 %, -0.03 allows a loss of 3 %.",
        None,
        ge=-0.5,
        le=10,
    )
    yields: float | None = _said(
        "Greedy: a rule makes way where the learned model says that another form of its op is "
        "faster by more than this; 0.05 is 5 %.",
        None,
        ge=0,
        le=10,
    )
    order: Literal["top-down", "bottom-up"] = "top-down"
    full: bool = _said("Conversion: nothing illegal may remain.", False)
    needs: list[Fact] = _said(
        "Left out on a CPU that lacks one of these: bf16_bytes, an operation that multiplies bf16; "
        "dot_bytes, one for bytes; bf16_tile_rows, byte_tile_rows, tiles of them.",
        [],
    )
    unless: list[Fact] = _said("Left out on a CPU that has one of these.", [])
    configurable: bool = _said(
        "Left out where config rules would find no op without it: those of kernels take no "
        "configuration.",
        False,
    )
    only: list[str] = _said("Filters: globs, tag:TAG, kind:KIND.", [])
    skip: list[str] = _said("Filters: globs, tag:TAG, kind:KIND.", [])
    expect: Expect | None = _said("What the whole stage must do.", None)
    expect_rules: dict[str, Expect] = _said("What single rules must do, by rule name.", {})

    @classmethod
    def of(cls, data: dict[str, Any]) -> Stage:
        """A stage from what :func:`as_data` gives."""
        whole = data.get("expect")
        single = data.get("expect_rules", {})
        changed = {
            "expect": None if whole is None else Expect(**whole),
            "expect_rules": {name: Expect(**e) for name, e in single.items()},
        }
        return cls(**{**data, **changed})


@dataclass(frozen=True, kw_only=True)
class Insertion:
    """Further stages, at a named stage of the pipeline that is extended."""

    before: str | None = field(default=None, metadata={"pattern": _NAME})
    after: str | None = field(default=None, metadata={"pattern": _NAME})
    stages: list[Stage] = field(metadata={"min_length": 1})

    @property
    def at(self) -> str:
        """The stage at which they go."""
        return self.before or self.after or ""


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A pipeline said by how it differs from another."""

    pipeline: str = field(metadata={"pattern": _NAME})
    extends: str = _said("A shipped name, or the path of a pipeline beside this one.")
    summary: str = field(metadata={"min_length": 3})
    targets: list[str] = _said("As in the extended pipeline when left out.", [])
    insert: list[Insertion] = _said("Stages before or after named ones.", [])
    without: list[str] = _said("Names of stages that are left out.", [])
    stages: list[Stage] = _said("Stages after all others.", [])
    flags: list[str] = _said("Further flags, after the extended ones.", [])
    dispensable: list[str] = _said("Those of them that may be left out.", [])
    copying_weights: list[str] = _said(
        "Those of them that are left out where weights are mapped.", []
    )
    padding_vectors: list[str] = _said(
        "Those of them that are left out where a vector would be padded.", []
    )
    large_products: list[str] = _said(
        "Those of them that are left out where all products are small.", []
    )
    affinity: bool | None = _said("As in the extended pipeline when left out.", None)
    without_flags: list[str] = _said("Flags that are left out.", [])

    @classmethod
    def of(cls, data: dict[str, Any]) -> Extension:
        """An extension from what :func:`as_data` gives."""
        insert = [
            Insertion(**{**item, "stages": [Stage.of(s) for s in item["stages"]]})
            for item in data["insert"]
        ]
        stages = [Stage.of(stage) for stage in data["stages"]]
        return cls(**{**data, "insert": insert, "stages": stages})


@dataclass(frozen=True, kw_only=True)
class Stages:
    """An ordered list of stages for some targets."""

    pipeline: str = field(metadata={"pattern": _NAME})
    summary: str = field(metadata={"min_length": 3})
    targets: list[str] = _said("Target kinds: cpu, vulkan, cuda, hip.", min_length=1)
    stages: list[Stage] = field(default_factory=list)
    flags: list[str] = _said("Further flags for iree-compile.", [])
    dispensable: list[str] = _said(
        "Those of the flags that some programs do not compile with: such a program is "
        "compiled without them, and a warning says so.",
        [],
    )
    copying_weights: list[str] = _said(
        "Those of the flags with which weights are laid out anew: left out where a "
        "program maps its weights from an archive, which would be read and copied at every start.",
        [],
    )
    padding_vectors: list[str] = _said(
        "Those of the flags with which a product that gives a vector of a length known "
        "only at run time is wrong: left out where a program has one.",
        [],
    )
    large_products: list[str] = _said(
        "Those of the flags that make a compile longer and pay for large products: "
        "left out where packing does not pay by the learned model, or, where it does not know all "
        "products of a program, where these together multiply fewer than 262,144 pairs.",
        [],
    )
    affinity: bool = _said(
        "Whether the workgroups of kernels are divided among the cores, so that a core goes on "
        "with what it has in its caches (x86-64 with AVX2 or more).",
        False,
    )

    @classmethod
    def of(cls: type[S], data: dict[str, Any]) -> S:
        """A pipeline from what :func:`as_data` gives."""
        return cls(**{**data, "stages": [Stage.of(stage) for stage in data["stages"]]})


#: What a pipeline says of its flags, each a list of some of them.
OF_FLAGS = ("dispensable", "copying_weights", "padding_vectors", "large_products")


def as_data(said: Stages | Extension | Stage, *, defaults: bool = True) -> dict[str, object]:
    """What a file says as plain data; without ``defaults`` only what differs from them."""
    data = asdict(said)
    return data if defaults else _without_defaults(data, type(said))


def _without_defaults(data: dict[str, Any], what: type[Any]) -> dict[str, object]:
    known: tuple[Field[object], ...] = fields(what)
    out = {}
    for found in known:
        made = found.default_factory
        default = found.default if made is MISSING else made()
        value = data[found.name]
        if value == default:
            continue
        if found.name == "stages":
            value = [_without_defaults(stage, Stage) for stage in value]
        elif found.name == "expect":
            value = _without_defaults(value, Expect)
        elif found.name == "expect_rules":
            value = {name: _without_defaults(e, Expect) for name, e in value.items()}
        out[found.name] = value
    return out
