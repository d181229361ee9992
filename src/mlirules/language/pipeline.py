"""Pipelines: which rule sets run in which phase, with which driver, for which targets.

What a file says is kept by its content: one that did not change is neither read nor checked again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlirules.language import consent
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean
from mlirules.language.library import code
from mlirules.language.source import MAX_BYTES, Path_
from mlirules.language.stage import OF_FLAGS, Extension, Stage, Stages, as_data
from mlirules.support import cache, files, package

if TYPE_CHECKING:
    from mlirules.language.source import SourceFile

PIPELINES = package.SPECS / "pipelines"

#: So many files are kept as they were read; of more, those that were read first go.
_KEPT = 200


@dataclass(frozen=True, kw_only=True)
class Pipeline(Stages):
    """An ordered list of stages for some targets."""

    @classmethod
    def load(cls, name: str | Path) -> Pipeline:
        """A pipeline by shipped name or by path. Raises :class:`MlirulesError`, located."""
        path = Path(name)
        if not files.is_file(path):
            shipped = PIPELINES / f"{name}.yaml"
            if not files.is_file(shipped):
                known = _shipped()
                raise MlirulesError(
                    Fault(
                        Span(str(name)),
                        "no-pipeline",
                        "no such pipeline file or name",
                        did_you_mean(str(name), known) or "shipped: " + ", ".join(known),
                    )
                )
            path = shipped
        return _loaded(path, ())


def beside(stage: Stage, folder: Path) -> Stage:
    """The stage with rule sets that lie beside the pipeline file, in ``folder``, by their paths."""
    placed = [(r, folder / r) for r in stage.rules]
    rules = [str(p) if files.is_file(p) or files.is_folder(p) else r for r, p in placed]
    return replace(stage, rules=rules)


#: The shipped pipeline that a kind of target gets when none is named.
DEFAULTS = {"cpu": "cpu-fast", "vulkan": "vulkan", "cuda": "cuda", "hip": "hip"}


def default_for(kind: str) -> Pipeline:
    """The pipeline that a target kind (cpu, vulkan, cuda, hip) gets when none is named.

    Raises KeyError for another kind.
    """
    return Pipeline.load(DEFAULTS[kind])


# ---------------------------------------------------------------- from files


def _shipped() -> list[str]:
    return sorted(p.stem for p in PIPELINES.glob("*.yaml"))


def _loaded(path: Path, above: tuple[Path, ...]) -> Pipeline:
    """The pipeline of a file that the files ``above`` extend, the outermost first."""
    said = _said_in(path)
    if said.flags and not consent.ships(path):
        _admitted(said.flags, path)
    if isinstance(said, Pipeline):
        return replace(said, stages=[beside(stage, path.parent) for stage in said.stages])
    chain = (*above, path.resolve())
    near = path.parent / said.extends
    other = near if files.is_file(near) else PIPELINES / f"{said.extends}.yaml"
    if not files.is_file(other) or other.resolve() in chain:
        known = _shipped()
        raise MlirulesError(
            Fault(
                _source(path).span_at(("extends",)),
                "extends",
                f"{said.extends!r} extends this pipeline itself"
                if files.is_file(other)
                else f"there is no pipeline {said.extends!r}",
                did_you_mean(said.extends, known) or "shipped: " + ", ".join(known),
            )
        )
    return _extended(_loaded(other, chain), said, path)


def _said_in(path: Path) -> Pipeline | Extension:
    """What a file says. Raises :class:`MlirulesError` with every fault of the file."""
    try:
        raw = path.read_bytes()
    except OSError:
        raw = b""
    key = hashlib.sha256(f"{package.VERSION}\0{code()}\0".encode() + raw).hexdigest()[:32]
    found = cache.kept("pipelines", key) if 0 < len(raw) <= MAX_BYTES else None
    if found is not None:
        data = json.loads(found)
        return Extension.of(data) if "extends" in data else Pipeline.of(data)
    from mlirules.language import pipeline_file

    said = as_data(pipeline_file.read(_source(path)))
    cache.keep("pipelines", key, json.dumps(said).encode(), limit=_KEPT)
    return Extension.of(said) if "extends" in said else Pipeline.of(said)


def _source(path: Path) -> SourceFile:
    from mlirules.language.reading import load_yaml

    return load_yaml(path)


def _admitted(flags: list[str], path: Path) -> None:
    if unknown := consent.flag_faults(flags, _source(path)):
        raise MlirulesError(unknown)


def _extended(base: Pipeline, extension: Extension, path: Path) -> Pipeline:
    """``base`` as the extension changes it. Raises for what the base does not have."""
    names = [stage.name for stage in base.stages if stage.name]
    faults: list[Fault] = []

    def known(name: str, where: Path_, what: str, among: list[str]) -> None:
        if name not in among:
            said = f"{base.pipeline} has no {what} {name!r}"
            hint = did_you_mean(name, among) or f"it has: {', '.join(among) or 'none'}"
            faults.append(Fault(_source(path).span_at(where), "extends", said, hint))

    for i, insertion in enumerate(extension.insert):
        place = "before" if insertion.before else "after"
        known(insertion.at, ("insert", i, place), "stage", names)
    for i, name in enumerate(extension.without):
        known(name, ("without", i), "stage", names)
    for i, flag in enumerate(extension.without_flags):
        known(flag, ("without_flags", i), "flag", base.flags)
    if faults:
        raise MlirulesError(faults)
    folder = path.parent
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
        raise MlirulesError(Fault(_source(path).span_at(("pipeline",)), "extends", said))
    of_flags: dict[str, list[str]] = {
        key: [f for f in getattr(base, key) if f in flags] + getattr(extension, key)
        for key in OF_FLAGS
    }
    for key, listed in of_flags.items():
        if unknown := [flag for flag in listed if flag not in flags]:
            said = f"{', '.join(unknown)} is not among the flags"
            raise MlirulesError(Fault(_source(path).span_at((key,)), "pipeline", said))
    return Pipeline(
        pipeline=extension.pipeline,
        summary=extension.summary,
        targets=extension.targets or base.targets,
        stages=stages,
        flags=flags,
        affinity=base.affinity if extension.affinity is None else extension.affinity,
        **of_flags,
    )
