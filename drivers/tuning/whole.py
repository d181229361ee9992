"""A program tuned within a time, on the way to being compiled: no command, no report."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mlirules.drivers.apply.session import current
from mlirules.drivers.iree.compiler import Program
from mlirules.drivers.pipelines.transform import Recipe
from mlirules.drivers.tuning import measure, tuner, ways, written
from mlirules.drivers.tuning.outcome import Options
from mlirules.drivers.tuning.store import Store
from mlirules.language.pipeline import Pipeline
from mlirules.language.workers import workers

__all__ = ["tuned"]


def tuned(
    recipe: Recipe,
    source: Callable[[], Program],
    seconds: float,
    folder: Path,
    parameters: tuple[str, ...] = (),
) -> tuple[Recipe, str]:
    """The recipe with what was found for its program in so many seconds, and that in words.

    ``source`` gives the program anew, ``parameters`` are archives of its weights. ``folder`` keeps
    measurements, rules and the pipeline: what it holds from an interrupted search is not measured
    again. Raises MlirulesError where the program cannot be run, and KeyboardInterrupt.
    """
    recipe = replace(recipe, source=source)
    given, before = ways.given(recipe)
    options = Options(
        recipe.target,
        budget=1 << 30,
        seconds=seconds,
        flags=(*before.flags, *recipe.flags),
        parameters=parameters,
    )
    folder.mkdir(parents=True, exist_ok=True)
    with (
        contextlib.closing(Store(folder / "measured.sqlite")) as store,
        measure.Runners() as runners,
        workers("2") as pool,
    ):
        done = tuner.tune(
            given,
            options,
            tuner.Means(store, pool, session=recipe.session or current(), runners=runners),
            path=recipe.path,
            alternatives=ways.load_ways((), recipe.target.kind),
        )
    if done.interrupted:
        raise KeyboardInterrupt
    if done.choice is None:
        tried = sum(len(t.measured) for t in done.tuned) + len(done.ways)
        return recipe, f"tuned: none of {tried} ways to compile it is faster"
    paths = written.write_found(done, folder, "program", before)
    # The search's flags are in the pipeline that it wrote.
    found = replace(recipe, pipeline=Pipeline.load(str(paths[-1])), flags=())
    return found, f"tuned: {done.choice.name}, {done.choice.whole.ratio:.2f} times as fast"
