"""What a search leaves on the disk: rules, and a pipeline that compiles with what won."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from mlirules.drivers.iree.targets import Target
from mlirules.drivers.tuning import results
from mlirules.drivers.tuning.outcome import Outcome
from mlirules.language import outputs
from mlirules.language.pipeline import Pipeline
from mlirules.language.stage import Stage, as_data


def write_found(
    done: Outcome, output: Path, name: str, before: Pipeline | None = None
) -> list[Path]:
    """Write the rules, and a pipeline for the whole program where something won.

    ``before`` is the pipeline that the program went through before the search. Rules that hold
    under a way's flags only lie in a folder of its name.
    """
    paths = results.write_rules(done.rules, output)
    choice = done.choice
    if choice is None:
        return paths
    folder = output
    if (
        done.under is not None
        and choice.way is not None
        and choice.rules
        and list(choice.rules) == done.under.rules
    ):
        folder = output / choice.way.name
        paths += results.write_rules(done.under.rules, folder)
    if before is not None and choice.way is not None and choice.way.change is not None:
        before = choice.way.change.of(before)
    stages = [s for s in before.stages if s.phase != "configuration"] if before else []
    flags = [*done.flags]
    if choice.way is not None:
        stages += choice.way.stages
        flags += choice.way.flags
    text = pipeline_of(
        name,
        done.target,
        settings={"flags": flags, "affinity": before is not None and before.affinity},
        stages=stages,
        rules=[(folder / f"{r.name}.yaml").relative_to(output) for r, _ in choice.rules],
        reason=f"{choice.name}, {choice.whole.ratio:.2f} times as fast as the default.",
    )
    path = output / f"{name}.{done.target.name.replace(':', '-')}.yaml"
    outputs.write(path, text.encode())
    return [*paths, path]


def pipeline_of(
    name: str,
    target: Target,
    *,
    settings: Mapping[str, object],
    stages: Sequence[Stage],
    rules: Sequence[Path],
    reason: str,
) -> str:
    """A pipeline that compiles a program with what won; ``rules`` are files beside it.

    ``settings`` are what it says beside its stages, as its file has them.

    Compiling with it fails when one of the rules finds no op.
    """
    chosen = [as_data(s, defaults=False) for s in stages]
    if rules:
        chosen.append(
            {
                "phase": "configuration",
                "rules": [p.as_posix() for p in rules],
                "expect_rules": {p.stem: {"min": 1} for p in rules},
            }
        )
    words = re.sub(r"[^a-z0-9]+", "-", f"tuned-{name}-{target.name}".lower()).strip("-")
    data: dict[str, object] = {
        "pipeline": words,
        "summary": reason,
        "targets": [target.kind],
    }
    data |= {key: value for key, value in settings.items() if value}
    data["stages"] = chosen
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
