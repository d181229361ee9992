"""Pipelines: which rule sets run in which phase, with which driver, for which targets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean
from mlirules.language.source import load_yaml
from mlirules.support import package

PIPELINES = package.SPECS / "pipelines"

Phase = Literal["torch", "input", "preprocessing", "configuration"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Expect(_Strict):
    """How often something must apply; compiling fails when it does not."""

    applied: int | None = Field(default=None, ge=0, description="Exactly this many applications.")
    min: int | None = Field(default=None, ge=0, description="At least this many applications.")


class Stage(_Strict):
    """One rule set, applied by one driver in one phase."""

    phase: Phase = Field(
        description="torch: before IREE. input, preprocessing: after that phase of IREE. "
        "configuration: config rules, where IREE chooses how each op is compiled."
    )
    rules: list[str] = Field(
        min_length=1,
        description="Rule sets: paths beside the pipeline file, shipped names, or other paths.",
    )
    driver: Literal["greedy", "walk", "conversion", "cost"] = Field(
        default="greedy", description="cost: greedy, where a cost model says that a rule pays."
    )
    margin: float | None = Field(
        default=None, ge=0, le=10, description="Cost: the gain that must be exceeded; 0.03 is 3 %."
    )
    order: Literal["top-down", "bottom-up"] = "top-down"
    full: bool = Field(default=False, description="Conversion: nothing illegal may remain.")
    only: list[str] = Field(default=[], description="Filters: globs, tag:TAG, kind:KIND.")
    skip: list[str] = Field(default=[], description="Filters: globs, tag:TAG, kind:KIND.")
    expect: Expect | None = Field(default=None, description="What the whole stage must do.")
    expect_rules: dict[str, Expect] = Field(
        default={}, description="What single rules must do, by rule name."
    )


class Pipeline(_Strict):
    """An ordered list of stages for some targets."""

    pipeline: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    summary: str = Field(min_length=3)
    targets: list[str] = Field(min_length=1, description="Target kinds: cpu, vulkan, cuda, hip.")
    stages: list[Stage] = Field(default=[])
    flags: list[str] = Field(default=[], description="Further flags for iree-compile.")
    dispensable: list[str] = Field(
        default=[],
        description="Those of the flags that some programs do not compile with: such a program is "
        "compiled without them, and a warning says so.",
    )

    @pydantic.model_validator(mode="after")
    def _known(self) -> Pipeline:
        if unknown := [flag for flag in self.dispensable if flag not in self.flags]:
            raise ValueError(f"dispensable: {', '.join(unknown)} is not among the flags")
        return self

    def _below(self, folder: Path) -> Pipeline:
        """With rule sets that lie beside the pipeline file by their paths."""

        def below(stage: Stage) -> Stage:
            rules = [str(folder / r) if (folder / r).exists() else r for r in stage.rules]
            return stage.model_copy(update={"rules": rules})

        stages = [below(stage) for stage in self.stages]
        return self.model_copy(update={"stages": stages})

    @classmethod
    def load(cls, name: str | Path) -> Pipeline:
        """A pipeline by shipped name or by path. Raises :class:`MlirulesError`, located."""
        path = Path(name)
        if not path.is_file():
            shipped = PIPELINES / f"{name}.yaml"
            if not shipped.is_file():
                known = sorted(p.stem for p in PIPELINES.glob("*.yaml"))
                raise MlirulesError(
                    Fault(
                        Span(str(name)),
                        "no-pipeline",
                        "no such pipeline file or name",
                        did_you_mean(str(name), known) or "shipped: " + ", ".join(known),
                    )
                )
            path = shipped
        source = load_yaml(path)
        try:
            return cls.model_validate(source.data)._below(path.parent)
        except pydantic.ValidationError as error:
            faults = []
            for e in error.errors():
                loc = tuple(e["loc"])
                extra = e["type"] == "extra_forbidden"
                hint = ""
                if extra:
                    fields = list(Stage.model_fields) if "stages" in loc else list(cls.model_fields)
                    hint = did_you_mean(str(loc[-1]), fields) or "known: " + ", ".join(fields)
                span = source.span_at(loc, key=extra)
                message = (
                    f"unknown key {loc[-1]!r}"
                    if extra
                    else (f"the key {loc[-1]!r} is missing" if e["type"] == "missing" else e["msg"])
                )
                faults.append(Fault(span, "pipeline", message, hint))
            raise MlirulesError(faults) from None


#: The shipped pipeline that a kind of target gets when none is named.
DEFAULTS = {"cpu": "cpu-fast", "vulkan": "vulkan", "cuda": "cuda", "hip": "hip"}


def default_for(kind: str) -> Pipeline:
    """The pipeline that a target kind (cpu, vulkan, cuda, hip) gets when none is named.

    Raises KeyError for another kind.
    """
    return Pipeline.load(DEFAULTS[kind])
