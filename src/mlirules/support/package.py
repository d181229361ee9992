"""Where the data that ships lies: rules and specs, beside the code in a checkout and in a wheel."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

VERSION = "0.1.0"
PACKAGE = Path(__file__).resolve().parents[1]
#: The folders that a checkout has beside `src`, and links to in the package.
LINKED = ("drivers", "generator", "rules", "specs")


def folder(name: str) -> Path:
    """A folder of the package (or a file), by its path in it: ``drivers/measure``.

    Where a system has no symbolic links, git writes a file with what the link would hold.
    """
    first, _, rest = name.partition("/")
    top = PACKAGE / first
    if first in LINKED and top.is_file():
        top = PACKAGE / top.read_text(encoding="utf-8").strip()
    return (top / rest).resolve()


def beside() -> list[str]:
    """Where the package's modules lie besides in it: nowhere, but where git wrote no links."""
    if not (PACKAGE / "drivers").is_file():
        return []
    return sorted({str(folder(name).parent) for name in LINKED})


#: The library of rules, by folders.
RULES = folder("rules")
#: Pipelines, facts about targets, search spaces, the demo's program.
SPECS = folder("specs")
#: The generator's Jinja templates.
TEMPLATES = folder("generator/templates")
#: What was made when the package was built, kept by content as in the cache; none in a checkout.
PREBUILT = PACKAGE / "prebuilt"


@functools.cache
def code() -> str:
    """What changes when the code or its data do, rules aside: those are known by their content.

    Told by sizes and times, so good for what one installation keeps, and not for what ships.
    """
    listed = [VERSION]
    for start in (PACKAGE, *(folder(name) for name in LINKED if name != "rules")):
        for top, folders, files in os.walk(start):
            if top == str(PACKAGE):
                folders[:] = [f for f in folders if f not in (*LINKED, "prebuilt")]
            folders[:] = [f for f in folders if f != "__pycache__"]
            shown = f"{start.name}{top[len(str(start)) :]}"
            for name in files:
                found = os.stat(os.path.join(top, name))  # noqa: PTH116, PTH118 - the quickest way
                listed.append(f"{shown}/{name} {found.st_size} {found.st_mtime_ns}")
    return hashlib.sha256("\n".join(sorted(listed)).encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=16)
def content(name: str, *endings: str) -> str:
    """A hash of the files below a folder of the package whose names have one of these endings.

    The same in a checkout, in a wheel and where that is installed; a file that was edited changes
    it, whatever its time says. ``name`` is the folder's path in the package.
    """
    start = str(folder(name))
    made = hashlib.sha256()
    for top, folders, files in os.walk(start):
        folders[:] = sorted(inner for inner in folders if inner != "__pycache__")
        for file in sorted(files):
            if file.endswith(endings):
                path = f"{top}{os.sep}{file}"
                with open(path, "rb") as opened:  # noqa: PTH123 - likewise
                    data = opened.read()
                shown = path[len(start) :].replace(os.sep, "/")
                made.update(f"{shown}\0{len(data)}\0".encode() + data)
    return made.hexdigest()[:16]
