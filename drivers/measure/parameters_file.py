"""Files of the roofline model's parameters: what one says, checked; faults have their places."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import pydantic
from pydantic import ConfigDict, Field

from mlirules.drivers.measure.parameters import Class, Parameters
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.reading import load_yaml

__all__ = ["read"]


def read(path: Path) -> Parameters:
    """The parameters in a file. Raises :class:`MlirulesError`, located."""
    source = load_yaml(path)
    limits = {
        "Positive": Annotated[float, Field(gt=0)],
        "NotNegative": Annotated[float, Field(ge=0)],
        "Count": Annotated[int, Field(ge=1)],
    }
    hints = get_type_hints(Parameters, localns=limits, include_extras=True)
    said: dict[str, Any] = {
        found.name: (hints[found.name], ... if found.default is MISSING else found.default)
        for found in fields(Parameters)
    }
    model = pydantic.create_model("Parameters", __config__=ConfigDict(extra="forbid"), **said)
    try:
        made = Parameters(**model.model_validate(source.data).model_dump())
    except pydantic.ValidationError as error:
        raise MlirulesError(
            [
                Fault(source.span_at(tuple(e["loc"])), "target-parameters", e["msg"])
                for e in error.errors()
            ]
        ) from None
    if faults := _of_the_whole(made):
        raise MlirulesError([Fault(source.span_at(()), "target-parameters", f) for f in faults])
    return made


def _of_the_whole(made: Parameters) -> list[str]:
    faults = []
    if missing := sorted(set(get_args(Class)) - set(made.efficiency)):
        faults.append(f"efficiency of {', '.join(missing)} is missing")
    if "f32" not in made.peak_gflops:
        faults.append("peak_gflops of f32 is missing")
    if (made.fresh_mb is None) != (made.fresh_gbs is None):
        faults.append("fresh_mb and fresh_gbs go together")
    return faults
