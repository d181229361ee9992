"""What `check` found in rule files that have not changed since, by content: not found again.

Kept for files of rewrite rules alone that name nothing outside themselves. The key holds all that
the answer depends on: the files, where they stand, the code, the data that ships, the compiler.
"""

# ruff: noqa: PTH109, PTH113, PTH118, PTH123 - pathlib takes as long to load as all this.
from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Sequence

from mlirules.language.faults import Fault, Span
from mlirules.support import cache, package

__all__ = ["keep", "kept", "key"]

#: Words of rules whose files bring others along, or that somebody must have consented to.
_FURTHER = (b"kernel", b"reference", b"python", b"pipeline", b"config")
_LARGEST = 1 << 17


def key(paths: Sequence[str], *, alone: bool) -> str | None:
    """The key of a check of ``paths``; None where its answer is not kept."""
    compiler = _compiler()
    if not paths or compiler is None:
        return None
    said = [b"1", str(alone).encode(), os.getcwd().encode(), package.code().encode(), compiler]
    for path in paths:
        if not path.endswith(".yaml") or not os.path.isfile(path):
            return None
        with open(path, "rb") as opened:
            content = opened.read(_LARGEST + 1)
        if len(content) > _LARGEST or any(word in content for word in _FURTHER):
            return None
        said += [path.encode(), os.path.realpath(path).encode(), content]
    return hashlib.sha256(b"".join(b"%d:%b" % (len(s), s) for s in said)).hexdigest()[:32]


def kept(name: str) -> tuple[list[Fault], int] | None:
    """The faults that were found, and the number of files."""
    data = cache.kept("checks", name)
    if data is None:
        return None
    found = json.loads(data)
    faults = [Fault(**{**fault, "span": Span(**fault["span"])}) for fault in found["faults"]]
    return faults, found["files"]


def keep(name: str, faults: Sequence[Fault], files: int) -> None:
    """Keep what a check found."""
    listed = [dataclasses.asdict(fault) for fault in faults]
    data = json.dumps({"faults": listed, "files": files}).encode()
    cache.keep("checks", name, data, limit=5000)


def _compiler() -> bytes | None:
    """What says which compiler is installed, found without importing it."""
    for folder in sys.path:
        try:
            with open(os.path.join(folder, "iree", "compiler", "version.py"), "rb") as opened:
                return opened.read()
        except OSError:
            continue
    return None
