"""``mlirules new``: a rule file with its tests, or a pipeline, ready to edit."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from mlirules.commands.common import Json, note, say_json, write_bytes
from mlirules.commands.options import Argument, Option
from mlirules.language.faults import MlirulesError

EXAMPLE = "mlirules new conversion my-sigmoid && mlirules test my-sigmoid.yaml"


class Kind(StrEnum):
    """What can be written: the kinds of rule, and a pipeline."""

    CONVERSION = "conversion"
    FUSION = "fusion"
    KERNEL = "kernel"
    CONFIG = "config"
    PIPELINE = "pipeline"


def command(
    kind: Annotated[
        Kind,
        Argument(
            help="conversion: op to op. fusion: DAG to DAG. "
            "kernel: DAG to a kernel written by hand. "
            "config: how an op is compiled. "
            "pipeline: the default one with a stage of one's own."
        ),
    ],
    name: Annotated[str, Argument(help="The name: lower-case words joined by '-'.")],
    folder: Annotated[Path, Option("--output", "-o", help="The folder.")] = Path(),
    force: Annotated[bool, Option("--force", help="Replace a file that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write NAME.yaml: a small rule that works, with a positive and a negative test, to edit."""
    from mlirules.generator.render import render

    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise MlirulesError.at(
            name,
            "is no rule name",
            code="rule-name",
            suggestion="lower-case words joined by '-', for example torch-mm-to-linalg",
        )
    path = folder / f"{name}.yaml"
    if path.exists() and not force:
        raise MlirulesError.at(
            str(path), "is there already", code="file", suggestion="--force replaces it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(path, render(f"new-{kind.value}.yaml.j2", name=name).encode())
    if as_json:
        say_json({"path": str(path)})
    else:
        then = f"compile MODEL --pipeline {path}" if kind is Kind.PIPELINE else f"test {path}"
        then += " --trust-native" if kind is Kind.KERNEL else ""
        note(f"{path}: edit it, then: mlirules {then}")
