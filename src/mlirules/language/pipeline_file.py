"""Pipeline files: what one says, checked, with each fault at its place.

The models are made of the fields of :mod:`~mlirules.language.stage`, with their limits.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, get_type_hints

import pydantic
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import ErrorDetails

from mlirules.language.faults import Fault, MlirulesError, did_you_mean
from mlirules.language.source import Path_, SourceFile
from mlirules.language.stage import OF_FLAGS, Expect, Extension, Insertion, Stage, Stages

__all__ = ["models", "read", "stage_of"]


@cache
def models() -> dict[str, type[BaseModel]]:
    """The models of a file's parts, by the names of the classes that they are made of."""
    made: dict[str, type[BaseModel]] = {}
    for part in (Expect, Stage, Insertion, Extension, Stages):
        made[part.__name__] = _model(part, made)
    return made


def _model(part: type[Any], inner: dict[str, type[BaseModel]]) -> type[BaseModel]:
    hints = get_type_hints(part, localns=dict(inner))
    said: dict[str, Any] = {}
    for found in fields(part):
        hint, limits = hints[found.name], dict(found.metadata)
        if "pattern" in limits:
            hint = Annotated[hint, StringConstraints(pattern=limits["pattern"])]
            if found.default is None:
                hint = Annotated[str, StringConstraints(pattern=limits["pattern"])] | None
            del limits["pattern"]
        if found.default_factory is not MISSING:
            said[found.name] = (hint, Field(default_factory=found.default_factory, **limits))
        else:
            default = ... if found.default is MISSING else found.default
            said[found.name] = (hint, Field(default=default, **limits))
    strict = ConfigDict(extra="forbid", strict=True, frozen=True)
    model: type[BaseModel] = pydantic.create_model(
        part.__name__, __config__=strict, __doc__=part.__doc__, **said
    )
    return model


def read(source: SourceFile) -> Stages | Extension:
    """What a pipeline file says. Raises :class:`MlirulesError` with all that is wrong with it."""
    extends = isinstance(source.data, dict) and "extends" in source.data
    part = "Extension" if extends else "Stages"
    data = _checked(source, source.data, part, ())
    if extends:
        _one_place(source, data["insert"])
        return Extension.of(data)
    for key in OF_FLAGS:
        if unknown := [flag for flag in data[key] if flag not in data["flags"]]:
            said = f"{', '.join(unknown)} is not among the flags"
            raise MlirulesError(Fault(source.span_at((key,)), "pipeline", said))
    return Stages.of(data)


def stage_of(source: SourceFile, raw: object, at: Path_) -> Stage:
    """A stage that stands at ``at`` in a file. Raises :class:`MlirulesError`, located."""
    return Stage.of(_checked(source, raw, "Stage", at))


def _checked(source: SourceFile, raw: object, part: str, at: Path_) -> dict[str, Any]:
    model = models()[part]
    try:
        return model.model_validate(raw).model_dump()
    except pydantic.ValidationError as error:
        raise MlirulesError([_fault(source, e, model, at) for e in error.errors()]) from None


def _one_place(source: SourceFile, insertions: list[dict[str, object]]) -> None:
    for number, said in enumerate(insertions):
        if (said["before"] is None) == (said["after"] is None):
            message = "say either `before:` or `after:`, with the name of a stage"
            raise MlirulesError(Fault(source.span_at(("insert", number)), "pipeline", message))


def _fault(source: SourceFile, error: ErrorDetails, model: type[BaseModel], at: Path_) -> Fault:
    """What the model refuses, at its place in the file."""
    loc = (*at, *error["loc"])
    extra = error["type"] == "extra_forbidden"
    hint = ""
    if extra:
        inner: dict[object, type[BaseModel]] = {
            "stages": models()["Stage"],
            "insert": models()["Insertion"],
        }
        within = next((inner[k] for k in reversed(loc[:-1]) if k in inner), model)
        known = list(within.model_fields)
        hint = did_you_mean(str(loc[-1]), known) or "known: " + ", ".join(known)
    message = error["msg"]
    if extra:
        message = f"unknown key {loc[-1]!r}"
    elif error["type"] == "missing":
        message = f"the key {loc[-1]!r} is missing"
    elif error["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        given = str(error["input"])[:60]
        message = f"`{loc[-1]}` must be one of {', '.join(known)}, not {given}"
        hint = did_you_mean(given, known)
    return Fault(source.span_at(loc, key=extra), "pipeline", message, hint)
