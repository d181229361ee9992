"""How a command compiles a program: the pipeline, whole, exactly as `mlirules compile` runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlirules.commands.common import cost_settings, pipeline_for, split
from mlirules.language.faults import MlirulesError

if TYPE_CHECKING:
    from mlirules.drivers.iree.runtime import Array
    from mlirules.drivers.pipelines.transform import Recipe
    from mlirules.language.pipeline import Pipeline


def recipe_for(
    model: Path,
    target: str,
    *,
    pipeline: str | None = None,
    rules: list[str] | None = None,
    driver: str = "greedy",
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    flags: Sequence[str] = (),
    configs: Sequence[str] = (),
    measure: bool = False,
    timeout: float | None = None,
    alone: bool = False,
) -> Recipe:
    """The recipe of a program: by the pipeline (default: the target's), with ``rules`` in it.

    With ``alone`` and without a pipeline's name ``rules`` stand alone. ``only`` and ``skip`` leave
    rules of the stages out. Raises :class:`MlirulesError`.
    """
    from mlirules.drivers.apply.programs import load_program
    from mlirules.drivers.iree.targets import Target
    from mlirules.drivers.pipelines.transform import Recipe

    chosen = Target.parse(target)
    given = split(rules)
    by_themselves = rules if alone and pipeline is None else None
    line = line_for(by_themselves, pipeline, driver, list(only), list(skip), chosen.name)
    if given and by_themselves is None:
        from mlirules.drivers.pipelines.insert import config_files, with_rules

        line = with_rules(line, given, chosen)
        configs = (*configs, *config_files(given))
    return Recipe(
        lambda: load_program(model),
        chosen,
        line,
        path=str(model),
        flags=tuple(flags),
        configs=tuple(configs),
        costs=cost_settings(target, measure, (*line.flags, *flags)),
        timeout=timeout,
    )


def line_for(
    rules: list[str] | None,
    pipeline: str | None,
    driver: str,
    only: list[str],
    skip: list[str],
    target: str,
) -> Pipeline:
    """The pipeline that rules or, without them, its name or the target stand for."""
    from mlirules.language.pipeline import Pipeline
    from mlirules.language.stage import Stage

    if rules is None:
        line = pipeline_for(pipeline, target)
        if not (only or skip):
            return line
        from mlirules.commands.apply import _filtered

        rewriting = [s for s in line.stages if s.phase != "configuration"]
        configuring = [s for s in line.stages if s.phase == "configuration"]
        stages = [*_filtered(rewriting, only, skip), *configuring]
        return replace(line, stages=stages)
    if driver not in ("greedy", "walk", "conversion", "saturate"):
        raise MlirulesError.at(
            "--driver",
            f"unknown driver {driver!r}",
            code="driver",
            suggestion="greedy, walk, conversion or saturate",
        )
    named: Any = driver
    return Pipeline(
        pipeline="rules",
        summary="The given rules.",
        targets=[target.partition(":")[0]],
        stages=[Stage(phase="torch", rules=split(rules), driver=named, only=only, skip=skip)],
    )


def golden_of(
    recipe: Recipe, golden: Path, function: str | None
) -> tuple[list[Array], list[Array] | None]:
    """The inputs a0.. and, where they are there, the results r0.. of a golden file."""
    from mlirules.drivers.iree import runtime
    from mlirules.drivers.measure import numerics

    functions = numerics.functions(recipe.program(), function)
    arguments = next(iter(functions.values()))
    inputs = runtime.load_npz(golden, [element for _, element in arguments])
    if not inputs and arguments:
        raise MlirulesError.at(
            str(golden), "holds no inputs a0, a1, ...", code="npz", suggestion="import --golden"
        )
    return inputs, runtime.load_npz(golden, prefix="r") or None
