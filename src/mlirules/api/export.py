"""Folders to deploy: a program with its weights, and how to call it without mlirules."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlirules.api import pages
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.parameters import write_archive
from mlirules.drivers.iree.runtime import Executable
from mlirules.drivers.iree.targets import Target
from mlirules.language.faults import MlirulesError
from mlirules.support import package

__all__ = ["write"]

#: numpy's names where they are not the element type's, and those of the C API.
_NUMPY = {
    "i1": "bool",
    **{f"{p}{n}": f"int{n}" for p in ("i", "si") for n in (8, 16, 32, 64)},
    **{f"ui{n}": f"uint{n}" for n in (8, 16, 32, 64)},
    **{f"f{n}": f"float{n}" for n in (16, 32, 64)},
    "complex<f32>": "complex64",
}
_C = {
    "i1": "BOOL_8",
    **{f"{p}{n}": f"SINT_{n}" for p in ("i", "si") for n in (8, 16, 32, 64)},
    **{f"ui{n}": f"UINT_{n}" for n in (8, 16, 32, 64)},
    **{f"f{n}": f"FLOAT_{n}" for n in (16, 32, 64)},
    "bf16": "BFLOAT_16",
    "complex<f32>": "COMPLEX_FLOAT_64",
}


@dataclass(frozen=True)
class Deployed:
    """What a folder to deploy holds."""

    #: Its archives of weights are copied.
    program: Executable
    target: Target
    #: Shapes (None: any size) and element types.
    arguments: Sequence[tuple[Sequence[int | None], str]]
    #: How often each rule applied.
    applications: Mapping[str, int]
    #: Weights that lie in no archive yet, by the program's names for them.
    weights: Mapping[str, Any] = field(default_factory=dict)
    #: What the model calls these.
    names: Mapping[str, str] = field(default_factory=dict)


def write(path: str | Path, what: Deployed) -> Path:
    """Write the folder ``path``, whole or not at all.

    Raises :class:`MlirulesError` where there is something already.
    """
    folder = Path(path)
    binary, function, target = what.program.vmfb, what.program.function, what.target
    arguments, weights = what.arguments, what.weights
    if folder.exists():
        raise MlirulesError.at(
            str(folder), "is there already", code="file", suggestion="give a new folder"
        )
    results = next(e.results for e in runtime.entries(binary) if e.name == function)
    files = [_Archive(scope="model", file="weights.irpa")] if weights else []
    for number, text in enumerate(what.program.parameters):
        scope, _, file = runtime.scoped(text).partition("=")
        files.append(_Archive(scope, f"weights{number}{Path(file).suffix}", Path(file)))
    taken = [
        {"shape": list(shape), "type": element, "numpy": _NUMPY.get(element)}
        for shape, element in arguments
    ]
    unknown = sorted({element for _, element in arguments if element not in _C})
    if unknown:
        raise MlirulesError.at(
            str(folder), f"run.c knows no arguments of type {', '.join(unknown)}", code="type"
        )
    facts = {
        "mlirules": package.VERSION,
        "compiler": compiler.version(),
        "runtime": runtime.version(),
        "target": target.name,
        "device": target.device,
        "function": function,
        "arguments": taken,
        "results": len(results),
        "program": {"file": "program.vmfb", "sha256": hashlib.sha256(binary).hexdigest()},
        "weights": [{"scope": a.scope, "file": a.file} for a in files],
        "names": dict(what.names),
        "rules": dict(what.applications),
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        (made / "program.vmfb").write_bytes(binary)
        if weights:
            write_archive(made / "weights.irpa", weights)
        for archive in files:
            if archive.source is not None:
                shutil.copyfile(archive.source, made / archive.file)
        (made / "manifest.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        c = [{**a, "c": _C[element]} for a, (_, element) in zip(taken, arguments, strict=True)]
        for name in ("run.py", "run.c", "CMakeLists.txt"):
            text = pages.plain(f"deploy/{name}.j2", facts=facts, arguments=c, archives=files)
            (made / name).write_text(text, encoding="utf-8")
        made.chmod(0o755)
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return folder


class _Archive:
    """A file of weights in the folder, and where it is copied from."""

    def __init__(self, scope: str, file: str, source: Path | None = None) -> None:
        self.scope = scope
        self.file = file
        self.source = source
