"""Where the data that ships lies: rules and specs, beside the code in a checkout and in a wheel."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

VERSION = "0.1.0"
PACKAGE = Path(__file__).resolve().parents[1]
#: The library of rules, by folders.
RULES = (PACKAGE / "rules").resolve()
#: Pipelines, facts about targets, search spaces, the demo's program.
SPECS = (PACKAGE / "specs").resolve()
#: The generator's Jinja templates.
TEMPLATES = (PACKAGE / "generator" / "templates").resolve()
#: What was made when the package was built, kept by content as in the cache; none in a checkout.
PREBUILT = PACKAGE / "prebuilt"


@functools.cache
def code() -> str:
    """What changes when the code or its data do, rules aside: those are known by their content.

    Told by sizes and times, so good for what one installation keeps, and not for what ships.
    """
    listed = [VERSION]
    for top, folders, files in os.walk(PACKAGE, followlinks=True):
        if top == str(PACKAGE):
            folders[:] = [f for f in folders if f not in ("rules", "prebuilt")]
        folders[:] = [f for f in folders if f != "__pycache__"]
        for name in files:
            found = os.stat(os.path.join(top, name))  # noqa: PTH116, PTH118 - the quickest way
            listed.append(f"{top[len(str(PACKAGE)) :]}/{name} {found.st_size} {found.st_mtime_ns}")
    return hashlib.sha256("\n".join(sorted(listed)).encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=16)
def content(folder: str, *endings: str) -> str:
    """A hash of the files below a folder of the package whose names have one of these endings.

    The same in a checkout, in a wheel and where that is installed; a file that was edited changes
    it, whatever its time says. ``folder`` is relative to the package.
    """
    start = os.path.join(PACKAGE, folder)  # noqa: PTH118 - the quickest way
    made = hashlib.sha256()
    for top, folders, files in os.walk(start, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            if name.endswith(endings):
                path = f"{top}{os.sep}{name}"
                with open(path, "rb") as opened:  # noqa: PTH123 - likewise
                    data = opened.read()
                shown = path[len(start) :].replace(os.sep, "/")
                made.update(f"{shown}\0{len(data)}\0".encode() + data)
    return made.hexdigest()[:16]
