"""How a command compiles a program: the pipeline, whole, exactly as `mlirules compile` runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlirules.commands.common import cost_settings, pipeline_for, split
from mlirules.language.faults import MlirulesError

if TYPE_CHECKING:
    from mlirules.drivers.iree.runtime import Array
    from mlirules.drivers.pipelines.transform import Recipe
    from mlirules.language.pipeline import Pipeline


@dataclass(frozen=True)
class Wanted:
    """What a command line says of how a program is compiled.

    The pipeline (default: the target's) with ``rules`` in it; with ``alone`` and without a
    pipeline's name ``rules`` stand alone, in ``driver``. ``only`` and ``skip`` leave rules of the
    stages out. ``flags`` and ``configs`` come after the pipeline's. ``timeout`` is in seconds.
    """

    pipeline: str | None = None
    rules: Sequence[str] | None = None
    driver: str = "greedy"
    only: Sequence[str] = ()
    skip: Sequence[str] = ()
    flags: Sequence[str] = ()
    configs: Sequence[str] = ()
    measure: bool = False
    timeout: float | None = None
    alone: bool = False


def recipe_for(model: Path, target: str, wanted: Wanted) -> Recipe:
    """The recipe of a program, as it is wanted. Raises :class:`MlirulesError`."""
    from mlirules.drivers.apply.programs import load_program
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.pipelines.transform import Recipe

    chosen = Target.parse(target)
    given = split(wanted.rules)
    by_themselves = wanted.alone and wanted.pipeline is None and wanted.rules is not None
    configs = tuple(wanted.configs)
    line = _of_rules(wanted, chosen.kind) if by_themselves else _of_pipeline(wanted, chosen.name)
    if given and not by_themselves:
        from mlirules.drivers.pipelines.insert import config_files, with_rules

        line = with_rules(line, given, chosen)
        configs = (*configs, *config_files(given))
    return Recipe(
        lambda: load_program(model),
        chosen,
        line,
        path=str(model),
        flags=tuple(wanted.flags),
        configs=configs,
        costs=cost_settings(target, wanted.measure, (*line.flags, *wanted.flags)),
        timeout=wanted.timeout,
    )


def _of_pipeline(wanted: Wanted, target: str) -> Pipeline:
    """The pipeline that its name or, without one, the target stands for."""
    line = pipeline_for(wanted.pipeline, target)
    if not (wanted.only or wanted.skip):
        return line
    from mlirules.commands.apply import _filtered

    rewriting = [s for s in line.stages if s.phase != "configuration"]
    configuring = [s for s in line.stages if s.phase == "configuration"]
    stages = [*_filtered(rewriting, list(wanted.only), list(wanted.skip)), *configuring]
    return replace(line, stages=stages)


def _of_rules(wanted: Wanted, kind: str) -> Pipeline:
    """The rules as a pipeline of one stage."""
    from mlirules.language.pipeline import Pipeline
    from mlirules.language.stage import Stage

    if wanted.driver not in ("greedy", "walk", "conversion", "saturate"):
        raise MlirulesError.at(
            "--driver",
            f"unknown driver {wanted.driver!r}",
            code="driver",
            suggestion="greedy, walk, conversion or saturate",
        )
    named: Any = wanted.driver
    stage = Stage(
        phase="torch",
        rules=split(wanted.rules),
        driver=named,
        only=list(wanted.only),
        skip=list(wanted.skip),
    )
    return Pipeline(pipeline="rules", summary="The given rules.", targets=[kind], stages=[stage])


def golden_of(
    recipe: Recipe, golden: Path, function: str | None
) -> tuple[list[Array], list[Array] | None]:
    """The inputs a0.. and, where they are there, the results r0.. of a golden file."""
    from mlirules.drivers.iree import npz
    from mlirules.drivers.measure import numerics

    functions = numerics.functions(recipe.program(), function)
    arguments = next(iter(functions.values()))
    inputs = npz.load(golden, [element for _, element in arguments])
    if not inputs and arguments:
        raise MlirulesError.at(
            str(golden), "holds no inputs a0, a1, ...", code="npz", suggestion="import --golden"
        )
    return inputs, npz.load(golden, prefix="r") or None
