"""Compiled programs on disk, found again by all that went into them.

An entry is the program with what its caller keeps beside it (JSON), checksummed. It appears whole
or not at all; one that is damaged is taken for absent and made again. Several processes may share
the folder.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.pipelines import transform
from mlirules.drivers.pipelines.transform import Recipe
from mlirules.language import consent
from mlirules.language.stage import as_data
from mlirules.support import cache, package

__all__ = ["LIMIT", "Terms", "content", "kept", "key_of", "tuned_folder"]

#: How many programs are kept; the ones made longest ago go first.
LIMIT = 1024
_FORMAT = b"mlirules-program-1\n"


@dataclass(frozen=True)
class Terms:
    """On what terms the library compiles a program."""

    #: What was compiled before is taken, and what is compiled now is kept.
    cache: bool
    #: Ops that no rule converts are left to the compiler's own conversion.
    fallback: bool = True
    #: Seconds that go into the search for a faster way to compile it.
    tune: float = 0.0


def key_of(program: bytes, recipe: Recipe, further: Iterable[str] = ()) -> str:
    """The name of what a recipe makes of a program.

    ``program`` is all that the program is, ``further`` what else it depends on. The content of
    rules counts, not where they lie. Raises :class:`MlirulesError` for rules that are wrong.
    """
    pipeline, target = recipe.pipeline, recipe.target
    assert pipeline is not None
    digest = hashlib.sha256()
    parts = [
        package.VERSION,
        compiler.version(),
        runtime.version(),
        target.name,
        *target.flags,
        # What runs only with consent is not found without it.
        str(consent.current().native),
        json.dumps(as_data(replace(pipeline, stages=[]))),
        *further,
    ]
    for stage in pipeline.stages:
        parts.append(json.dumps(as_data(replace(stage, rules=["-"]))))
        if stage.phase == "configuration":
            parts += _contents(stage.rules)
        else:
            parts += [
                f"{e.name} {e.digest}" for e in transform.stage_entries(stage, recipe.session)
            ]
    for part in parts:
        digest.update(part.encode() + b"\0")
    digest.update(program)
    return digest.hexdigest()


def tuned_folder(key: str) -> Path:
    """Where the measurements of a program are that is tuned before it is compiled."""
    return cache.directory() / "tuned" / key


def content(module: compiler.ir.Module) -> bytes:
    """A program as bytes that say nothing of where its ops were written."""
    plain = module.operation.clone()
    try:
        compiler.PassManager.parse("builtin.module(strip-debuginfo)", module.context).run(plain)
        data = io.BytesIO()
        plain.write_bytecode(data)
    finally:
        plain.erase()
    return data.getvalue()


def _contents(sets: Iterable[str]) -> list[str]:
    """What config rules are: their files."""
    from mlirules.language.rulefiles import rule_files

    return [
        hashlib.sha256(Path(file).read_bytes()).hexdigest()
        for name in sets
        for file in rule_files(name)
    ]


def kept(
    key: str, make: Callable[[], tuple[bytes, dict[str, Any]]], use: bool = True
) -> tuple[bytes, dict[str, Any], bool]:
    """The program of that name with what is told beside it, and whether it was there already.

    ``make`` gives both where it was not. Without ``use`` nothing is read or written.
    """
    if not use:
        return *make(), False
    folder = cache.directory() / "programs"
    path = folder / key
    found = cache.read_checked(path)
    if found is not None and found.startswith(_FORMAT):
        told, _, binary = found[len(_FORMAT) :].partition(b"\n")
        return binary, json.loads(told), True
    binary, beside = make()
    cache.write_checked(path, _FORMAT + json.dumps(beside).encode() + b"\n" + binary)
    cache.keep_newest(folder, LIMIT)
    return binary, beside, False
