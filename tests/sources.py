"""Where the sources lie: the same in a checkout, which holds links, and in an unpacked sdist."""

from pathlib import Path

from mlirules.support import package


def modules() -> dict[str, Path]:
    """The files of every module of the package, by their paths in it, ``drivers/iree/ops.py``."""
    tops = {entry.name: package.folder(entry.name) for entry in package.PACKAGE.iterdir()}
    found = {name: top for name, top in tops.items() if top.suffix == ".py"}
    for name, top in tops.items():
        found |= {f"{name}/{file.relative_to(top).as_posix()}": file for file in top.rglob("*.py")}
    return found
