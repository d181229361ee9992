"""Consent: whose code may run as it is written.

Rules that ship are known. A rule of anybody else's that brings C, a kernel's body, or MLIR that
addresses memory or links objects, runs as machine code and can do what the user can; a Python
function can as well. They run only where the user said so: for one command (``--trust-native``,
``--trust-python``), or for all files of a folder, in a configuration file that is the user's own.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlirules.language.faults import Fault, MlirulesError, Span
from mlirules.support import package

if TYPE_CHECKING:
    from mlirules.language.source import SourceFile

__all__ = [
    "Consent",
    "Need",
    "admit",
    "admitted",
    "configuration",
    "current",
    "flag_faults",
    "given",
    "grant",
    "missing",
    "ships",
    "use",
]

#: Flags of iree-compile that run programs, load libraries or link files, without their dashes.
_RUNNING = re.compile(
    r"load|iree-(load-)?plugin|iree-[\w-]*linker-path|iree-hal-substitute-[\w-]*|"
    r"iree-hal-executable-object-search-path|iree-hal-preprocess-executables-with|"
    r"iree-cuda-use-ptxas-from|iree-link-bitcode|iree-rocm-bc-dir|load-[\w-]*plugin"
)


@dataclass(frozen=True)
class Consent:
    """What the user said for this run."""

    native: bool = False
    python: bool = False
    #: Native code of others was let in: what runs from here on runs in a child with limits.
    used: bool = False


# Not what is trusted itself: what the command that this thread is in was told.
_CURRENT: ContextVar[Consent | None] = ContextVar("consent", default=None)


@dataclass(frozen=True)
class Need:
    """Why a rule needs consent: where its code stands, and what it is."""

    span: Span
    what: str
    path: Path
    python: bool = False


def current() -> Consent:
    """What was said so far."""
    return _CURRENT.get() or Consent()


def grant(*, native: bool = False, python: bool = False) -> None:
    """Say yes, until the :func:`given` around it ends."""
    now = current()
    _CURRENT.set(replace(now, native=now.native or native, python=now.python or python))


@contextmanager
def given(*, native: bool = False, python: bool = False) -> Iterator[None]:
    """Consent for what runs inside; what was said before holds as well."""
    before = _CURRENT.set(current())
    grant(native=native, python=python)
    try:
        yield
    finally:
        _CURRENT.reset(before)


def ships(path: str | Path) -> bool:
    """Whether a file is one of the package's."""
    resolved = Path(path).resolve()
    return resolved.is_relative_to(package.RULES) or resolved.is_relative_to(package.SPECS)


def admitted(need: Need) -> bool:
    """Whether the user agreed. Raises :class:`MlirulesError` for a wrong configuration file."""
    now = current()
    if now.python if need.python else now.native:
        return True
    return any(need.path.resolve().is_relative_to(folder) for folder in _trusted())


def admit(need: Need) -> None:
    """Let in code that a rule needs. Raises :class:`MlirulesError` where the user did not agree."""
    if not admitted(need):
        raise MlirulesError(missing(need))
    if not need.python:
        use()


def use() -> None:
    """Native code of others takes part from here on."""
    _CURRENT.set(replace(current(), used=True))


def missing(need: Need) -> Fault:
    """The fault of code to which nobody agreed."""
    option = "--trust-python" if need.python else "--trust-native"
    return Fault(
        need.span,
        "consent",
        f"the rule {need.what}, and does not ship with mlirules: it needs your consent",
        f"read it, then give {option}, or name its folder under `trusted:` in {configuration()}",
    )


def flag_faults(flags: Sequence[str], source: SourceFile) -> list[Fault]:
    """Flags of a pipeline file that let the compiler run or link what is not known.

    Without consent only, and not for pipelines that ship.
    """
    if ships(source.path):
        return []
    out = []
    for number, flag in enumerate(flags):
        name = flag.lstrip("-").partition("=")[0]
        if not (flag.startswith("@") or _RUNNING.fullmatch(name)):
            continue
        need = Need(
            source.span_at(("flags", number)),
            "lets the compiler run or link files of the pipeline's choice",
            Path(source.path),
        )
        if not admitted(need):
            fault = missing(need)
            out.append(replace(fault, message=fault.message.replace("the rule", f"{name}", 1)))
    return out


# ---------------------------------------------------------------- the user's configuration


def configuration() -> Path:
    """The user's own configuration file, whether or not it is there."""
    from platformdirs import user_config_path  # few commands meet code that needs it

    return user_config_path("mlirules") / "config.yaml"


def _trusted() -> list[Path]:
    """The folders that the user's configuration trusts. Raises :class:`MlirulesError`."""
    file = configuration()
    try:
        state = file.stat()
    except OSError:
        return []
    if os.name == "posix" and (
        state.st_uid != os.getuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    ):
        raise MlirulesError.at(
            str(file),
            "others can write this file, so what it trusts counts for nothing",
            code="consent",
            suggestion=f"chmod go-w {file}",
        )
    from mlirules.language.reading import load_yaml  # nothing else here reads a file

    source = load_yaml(file)
    data = source.data
    if not isinstance(data, dict) or set(data) - {"trusted"}:
        raise MlirulesError(
            Fault(source.span_at(()), "configuration", "known here: `trusted:`, a list of folders")
        )
    listed = data.get("trusted") or []
    if not isinstance(listed, list):
        listed = [None]
    out = []
    for number, entry in enumerate(listed):
        folder = Path(entry).expanduser() if isinstance(entry, str) else Path()
        if not folder.is_absolute():
            raise MlirulesError(
                Fault(
                    source.span_at(("trusted", number)),
                    "configuration",
                    "`trusted:` lists folders by their whole paths",
                    f"for example {Path.home() / 'kernels'}",
                )
            )
        out.append(folder.resolve())
    return out
