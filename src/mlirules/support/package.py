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
    """What changes when the code or its data do, rules aside: those are known by their content."""
    listed = []
    for top, folders, files in os.walk(PACKAGE, followlinks=True):
        if top == str(PACKAGE):
            folders[:] = [f for f in folders if f not in ("rules", "prebuilt")]
        folders[:] = [f for f in folders if f != "__pycache__"]
        for name in files:
            found = os.stat(os.path.join(top, name))  # noqa: PTH116, PTH118 - the quickest way
            listed.append(f"{top[len(str(PACKAGE)) :]}/{name} {found.st_size} {found.st_mtime_ns}")
    return hashlib.sha256("\n".join(sorted(listed)).encode()).hexdigest()[:16]
