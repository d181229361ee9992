"""Pipelines: which rule sets run in which phase, with which driver, for which targets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import ErrorDetails

from mlirules.language import consent
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean
from mlirules.language.source import Path_, SourceFile, load_yaml
from mlirules.support import files, package

PIPELINES = package.SPECS / "pipelines"

Phase = Literal[
    "torch",
    "input",
    "preprocessing",
    "global-optimization",
    "dispatch-creation",
    "flow",
    "configuration",
]
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


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Expect(_Strict):
    """How often something must apply; compiling fails when it does not."""

    applied: int | None = Field(default=None, ge=0, description="Exactly this many applications.")
    min: int | None = Field(default=None, ge=0, description="At least this many applications.")


_Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]


class Stage(_Strict):
    """One rule set, applied by one driver in one phase."""

    name: _Name | None = Field(
        default=None, description="What pipelines that extend this one call the stage."
    )
    phase: Phase = Field(
        description="torch: before IREE. input, preprocessing, global-optimization, "
        "dispatch-creation, flow: after that phase of IREE. configuration: config rules, where "
        "IREE chooses how each op is compiled."
    )
    rules: list[str] = Field(
        min_length=1,
        description="Rule sets: paths beside the pipeline file, shipped names, or other paths.",
    )
    driver: Literal["greedy", "walk", "conversion", "cost", "saturate"] = Field(
        default="greedy",
        description="cost: greedy, where a cost model says that a rule pays. saturate: rules as "
        "equalities, of all equal programs the cheapest.",
    )
    nodes: int | None = Field(
        default=None,
        ge=1,
        description="Saturate: end with the best so far at so many ops; default: by the size.",
    )
    seconds: float = Field(
        default=10.0, gt=0, description="Saturate: end with the best so far after so many seconds."
    )
    rounds: int = Field(
        default=12,
        ge=1,
        description="Saturate: end with the best so far when all rules were tried so often.",
    )
    megabytes: float = Field(
        default=2000.0,
        gt=0,
        description="Saturate: end with the best so far when the process has grown by so much.",
    )
    margin: float | None = Field(
        default=None,
        ge=-0.5,
        le=10,
        description="Cost, saturate: the gain to exceed; 0.03 is 3 %, -0.03 allows a loss of 3 %.",
    )
    order: Literal["top-down", "bottom-up"] = "top-down"
    full: bool = Field(default=False, description="Conversion: nothing illegal may remain.")
    only: list[str] = Field(default=[], description="Filters: globs, tag:TAG, kind:KIND.")
    skip: list[str] = Field(default=[], description="Filters: globs, tag:TAG, kind:KIND.")
    expect: Expect | None = Field(default=None, description="What the whole stage must do.")
    expect_rules: dict[str, Expect] = Field(
        default={}, description="What single rules must do, by rule name."
    )


class Insertion(_Strict):
    """Further stages, at a named stage of the pipeline that is extended."""

    before: _Name | None = None
    after: _Name | None = None
    stages: list[Stage] = Field(min_length=1)

    @pydantic.model_validator(mode="after")
    def _one_place(self) -> Insertion:
        if (self.before is None) == (self.after is None):
            raise ValueError("say either `before:` or `after:`, with the name of a stage")
        return self

    @property
    def at(self) -> str:
        """The stage at which they go."""
        return self.before or self.after or ""


class Extension(_Strict):
    """A pipeline said by how it differs from another."""

    pipeline: _Name
    extends: str = Field(description="A shipped name, or the path of a pipeline beside this one.")
    summary: str = Field(min_length=3)
    targets: list[str] = Field(default=[], description="As in the extended pipeline when left out.")
    insert: list[Insertion] = Field(default=[], description="Stages before or after named ones.")
    without: list[_Name] = Field(default=[], description="Names of stages that are left out.")
    stages: list[Stage] = Field(default=[], description="Stages after all others.")
    flags: list[str] = Field(default=[], description="Further flags, after the extended ones.")
    dispensable: list[str] = Field(default=[], description="Those of them that may be left out.")
    copying_weights: list[str] = Field(
        default=[], description="Those of them that are left out where weights are mapped."
    )
    padding_vectors: list[str] = Field(
        default=[], description="Those of them that are left out where a vector would be padded."
    )
    large_products: list[str] = Field(
        default=[], description="Those of them that are left out where all products are small."
    )
    without_flags: list[str] = Field(default=[], description="Flags that are left out.")


class Pipeline(_Strict):
    """An ordered list of stages for some targets."""

    pipeline: _Name
    summary: str = Field(min_length=3)
    targets: list[str] = Field(min_length=1, description="Target kinds: cpu, vulkan, cuda, hip.")
    stages: list[Stage] = Field(default=[])
    flags: list[str] = Field(default=[], description="Further flags for iree-compile.")
    dispensable: list[str] = Field(
        default=[],
        description="Those of the flags that some programs do not compile with: such a program is "
        "compiled without them, and a warning says so.",
    )
    copying_weights: list[str] = Field(
        default=[],
        description="Those of the flags with which weights are laid out anew: left out where a "
        "program maps its weights from an archive, which would be read and copied at every start.",
    )
    padding_vectors: list[str] = Field(
        default=[],
        description="Those of the flags with which a product that gives a vector of a length known "
        "only at run time is wrong: left out where a program has one.",
    )
    large_products: list[str] = Field(
        default=[],
        description="Those of the flags that make a compile longer and pay for large products: "
        "left out where all products of a program together multiply fewer than a million pairs.",
    )

    @pydantic.model_validator(mode="after")
    def _known(self) -> Pipeline:
        for key in ("dispensable", "copying_weights", "padding_vectors", "large_products"):
            if unknown := [flag for flag in getattr(self, key) if flag not in self.flags]:
                raise ValueError(f"{key}: {', '.join(unknown)} is not among the flags")
        return self

    def _below(self, folder: Path) -> Pipeline:
        """With rule sets that lie beside the pipeline file by their paths."""

        stages = [beside(stage, folder) for stage in self.stages]
        return self.model_copy(update={"stages": stages})

    @classmethod
    def load(cls, name: str | Path) -> Pipeline:
        """A pipeline by shipped name or by path. Raises :class:`MlirulesError`, located."""
        path = Path(name)
        if not files.is_file(path):
            shipped = PIPELINES / f"{name}.yaml"
            if not files.is_file(shipped):
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
        return cls._from(path, ())

    @classmethod
    def _from(cls, path: Path, above: tuple[Path, ...]) -> Pipeline:
        """The pipeline of a file that the files ``above`` extend, the outermost first."""
        source = load_yaml(path)
        extends = isinstance(source.data, dict) and "extends" in source.data
        try:
            if not extends:
                plain = cls.model_validate(source.data)
                if unknown := consent.flag_faults(plain.flags, source):
                    raise MlirulesError(unknown)
                return plain._below(path.parent)
            extension = Extension.model_validate(source.data)
        except pydantic.ValidationError as error:
            raise MlirulesError(
                [_fault(source, e, Extension if extends else cls) for e in error.errors()]
            ) from None
        if unknown := consent.flag_faults(extension.flags, source):
            raise MlirulesError(unknown)
        chain = (*above, path.resolve())
        near = path.parent / extension.extends
        other = near if files.is_file(near) else PIPELINES / f"{extension.extends}.yaml"
        if not files.is_file(other) or other.resolve() in chain:
            known = sorted(p.stem for p in PIPELINES.glob("*.yaml"))
            raise MlirulesError(
                Fault(
                    source.span_at(("extends",)),
                    "extends",
                    f"{extension.extends!r} extends this pipeline itself"
                    if files.is_file(other)
                    else f"there is no pipeline {extension.extends!r}",
                    did_you_mean(extension.extends, known) or "shipped: " + ", ".join(known),
                )
            )
        return cls._extended(cls._from(other, chain), extension, source, path.parent)

    @classmethod
    def _extended(
        cls, base: Pipeline, extension: Extension, source: SourceFile, folder: Path
    ) -> Pipeline:
        """``base`` as the extension changes it. Raises for what the base does not have."""
        names = [stage.name for stage in base.stages if stage.name]
        faults: list[Fault] = []

        def known(name: str, where: Path_, what: str, among: list[str]) -> None:
            if name not in among:
                said = f"{base.pipeline} has no {what} {name!r}"
                hint = did_you_mean(name, among) or f"it has: {', '.join(among) or 'none'}"
                faults.append(Fault(source.span_at(where), "extends", said, hint))

        for i, insertion in enumerate(extension.insert):
            place = "before" if insertion.before else "after"
            known(insertion.at, ("insert", i, place), "stage", names)
        for i, name in enumerate(extension.without):
            known(name, ("without", i), "stage", names)
        for i, flag in enumerate(extension.without_flags):
            known(flag, ("without_flags", i), "flag", base.flags)
        if faults:
            raise MlirulesError(faults)
        stages: list[Stage] = []
        for stage in base.stages:
            at = [n for n in extension.insert if n.at == stage.name]
            stages += [beside(s, folder) for n in at if n.before for s in n.stages]
            if stage.name is None or stage.name not in extension.without:
                stages.append(stage)
            stages += [beside(s, folder) for n in at if n.after for s in n.stages]
        stages += [beside(s, folder) for s in extension.stages]
        flags = [f for f in base.flags if f not in extension.without_flags] + extension.flags
        named = [s.name for s in stages if s.name]
        if twice := sorted({n for n in named if named.count(n) > 1}):
            said = f"two stages are named {', '.join(twice)}"
            raise MlirulesError(Fault(source.span_at(("pipeline",)), "extends", said))
        try:
            return cls(
                pipeline=extension.pipeline,
                summary=extension.summary,
                targets=extension.targets or base.targets,
                stages=stages,
                flags=flags,
                dispensable=[f for f in base.dispensable if f in flags] + extension.dispensable,
                copying_weights=[f for f in base.copying_weights if f in flags]
                + extension.copying_weights,
                padding_vectors=[f for f in base.padding_vectors if f in flags]
                + extension.padding_vectors,
                large_products=[f for f in base.large_products if f in flags]
                + extension.large_products,
            )
        except pydantic.ValidationError as error:
            raise MlirulesError([_fault(source, e, Extension) for e in error.errors()]) from None


def beside(stage: Stage, folder: Path) -> Stage:
    """The stage with rule sets that lie beside the pipeline file, in ``folder``, by their paths."""
    placed = [(r, folder / r) for r in stage.rules]
    rules = [str(p) if files.is_file(p) or files.is_folder(p) else r for r, p in placed]
    return stage.model_copy(update={"rules": rules})


def _fault(source: SourceFile, error: ErrorDetails, model: type[BaseModel]) -> Fault:
    """What the model refuses, at its place in the file."""
    loc = tuple(error["loc"])
    extra = error["type"] == "extra_forbidden"
    hint = ""
    if extra:
        inner: dict[Any, type[BaseModel]] = {"stages": Stage, "insert": Insertion}
        within = next((inner[k] for k in reversed(loc[:-1]) if k in inner), model)
        fields = list(within.model_fields)
        hint = did_you_mean(str(loc[-1]), fields) or "known: " + ", ".join(fields)
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


#: The shipped pipeline that a kind of target gets when none is named.
DEFAULTS = {"cpu": "cpu-fast", "vulkan": "vulkan", "cuda": "cuda", "hip": "hip"}


def default_for(kind: str) -> Pipeline:
    """The pipeline that a target kind (cpu, vulkan, cuda, hip) gets when none is named.

    Raises KeyError for another kind.
    """
    return Pipeline.load(DEFAULTS[kind])
