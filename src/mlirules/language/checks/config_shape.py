"""Faults of a config rule's shape: what the model refuses, at its place in the file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pydantic

from mlirules.language.checks.shape import model_fault
from mlirules.language.config.model import (
    Basis,
    ConfigDoc,
    ConfigTest,
    Decomposition,
    DimRange,
    Match,
    Measured,
    MmaKind,
    OperandLimit,
    PipelineOptions,
    Settings,
    SubConfig,
    Ukernel,
)
from mlirules.language.faults import Fault
from mlirules.language.model import RunDoc
from mlirules.language.source import Path_, SourceFile

_MODELS: dict[tuple[str, ...], type[pydantic.BaseModel]] = {
    (): ConfigDoc,
    ("match",): Match,
    ("match", "limits"): OperandLimit,
    ("set",): Settings,
    ("set", "ukernel"): Ukernel,
    ("set", "mma_kind"): MmaKind,
    ("set", "subgroup_basis"): Basis,
    ("set", "lane_basis"): Basis,
    ("set", "pipeline_options"): PipelineOptions,
    ("set", "decomposition"): Decomposition,
    ("set", "decomposition", "qk"): SubConfig,
    ("set", "decomposition", "pv"): SubConfig,
    ("measured",): Measured,
    ("tests",): ConfigTest,
    ("tests", "run"): RunDoc,
}


def _keys_at(loc: Path_) -> list[str]:
    names = tuple(p for p in loc if isinstance(p, str))
    if names[:2] == ("match", "dims"):
        return list(DimRange.model_fields)
    model = _MODELS.get(names)
    return list(model.model_fields) if model is not None else []


# What pydantic adds to a place to tell the branches of a union apart.
_BRANCH = re.compile(r"^(constrained-.*|dict\[.*|str|int|MmaKind|Basis|DimRange|function-.*)$")


def shape_faults(source: SourceFile, error: Any) -> list[Fault]:
    """What one error of the model means. A union reports each branch: keep the one written."""
    raw = tuple(error["loc"])
    branches = [p for p in raw if isinstance(p, str) and _BRANCH.match(p)]
    key = raw[-1:] == ("[key]",)
    loc = tuple(p for p in raw if p == "[key]" or p not in branches)
    loc = tuple(p for p in loc if p != "[key]")
    if branches:
        value: Any = source.data
        holder = raw[: raw.index(branches[0])]
        for part in holder:
            value = value[part]
        wants_mapping = not branches[0].startswith(("constrained-int", "str", "int"))
        if isinstance(value, dict) != wants_mapping:
            if not isinstance(value, (dict, int, str)) and not wants_mapping:
                return [
                    Fault(
                        source.span_at(holder),
                        "wrong-type",
                        f"{_dotted(holder)}: {error['msg'].lower()}",
                    )
                ]
            return []
        if isinstance(value, dict) and branches[0] == "Basis" and "counts" not in value:
            return []
        if isinstance(value, dict) and branches[0].startswith("dict[") and "counts" in value:
            return []
    if key:
        span = source.span_at(loc, key=True)
        return [
            Fault(
                span,
                "bad-name",
                f"{str(loc[-1])[:60]!r} is not a name",
                "up to 60 letters, digits and _, not starting with a digit",
            )
        ]
    return model_fault(source, error, loc=loc, keys=_keys_at(loc[:-1]))


def _dotted(loc: Path_) -> str:
    return "`" + ".".join(str(p) for p in loc) + "`"


def in_order(faults: Iterable[Fault]) -> list[Fault]:
    """Faults by their places, each once."""
    unique = dict.fromkeys(faults)
    return sorted(unique, key=lambda f: (f.span.line, f.span.column, f.code))
