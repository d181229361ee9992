"""C of kernel rules as object files: compiled once, kept by content."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from mlirules.support import cache, children, files
from mlirules.support.limits import Limits, limited

#: No libc, no run-time support: the object is linked into an executable that has neither.
FLAGS = (
    "-c",
    "-O3",
    "-std=c11",
    "-ffreestanding",
    "-fPIC",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-math-errno",
    "-Wall",
    "-Werror=implicit",
)
#: The C of a rule is compiled for the machine that compiles.
HERE = ("-march=native",)


NO_COMPILER = "no C compiler is here (cc, clang or gcc)"


class ObjectError(Exception):
    """Code that cannot be compiled. ``missing``: because what makes it is not here."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


def c_compiler() -> str | None:
    """The C compiler of this machine, or None."""
    return next(filter(None, map(shutil.which, ("cc", "clang", "gcc"))), None)


def object_of(source: Path) -> Path:
    """The object file that ``source`` compiles to. Raises :class:`ObjectError`."""
    if c_compiler() is None:  # before the file: it may be the lesser fault
        raise ObjectError(NO_COMPILER, missing=True)
    try:
        text = source.read_bytes()
    except OSError as error:
        raise ObjectError(f"{source.name} cannot be read: {error.strerror}") from None
    return compiled(source.stem, text, HERE, source)


def compiled(stem: str, text: bytes, flags: Sequence[str], source: Path | None = None) -> Path:
    """The object file of C: of the file ``source``, or of ``text`` where there is none.

    Raises :class:`ObjectError`.
    """
    compiler = c_compiler()
    if compiler is None:
        raise ObjectError(NO_COMPILER, missing=True)
    flags = (*FLAGS, *flags)
    key = hashlib.sha256(b"\0".join([compiler.encode(), repr(flags).encode(), text])).hexdigest()
    made = cache.directory() / "objects" / f"{stem}-{key[:16]}.o"
    if made.is_file():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    read = [str(source)] if source is not None else ["-x", "c", "-"]
    with files.replaced(made) as name:
        done = children.run(
            limited([compiler, *flags, *read, "-o", str(name)], Limits(cpu_s=120)),
            stdin="" if source is not None else text.decode(),
            timeout=120,
        )
        if done.status:
            named = source.name if source is not None else stem
            raise ObjectError(f"{named} does not compile: {done.stderr.strip()[:2000]}")
    return made
