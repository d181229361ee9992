"""C files of kernel rules as object files: compiled once, kept by content."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from mlirules.support import cache, children, files
from mlirules.support.limits import Limits, limited

#: No libc, no run-time support: the object is linked into an executable that has neither.
FLAGS = (
    "-c",
    "-O3",
    "-march=native",
    "-std=c11",
    "-ffreestanding",
    "-fPIC",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-math-errno",
    "-Wall",
    "-Werror=implicit",
)


class ObjectError(Exception):
    """A C file that cannot be compiled. ``missing``: because there is no compiler here."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


def c_compiler() -> str | None:
    """The C compiler of this machine, or None."""
    return next(filter(None, map(shutil.which, ("cc", "clang", "gcc"))), None)


def object_of(source: Path) -> Path:
    """The object file that ``source`` compiles to. Raises :class:`ObjectError`."""
    compiler = c_compiler()
    if compiler is None:
        raise ObjectError("no C compiler is here (cc, clang or gcc)", missing=True)
    try:
        text = source.read_bytes()
    except OSError as error:
        raise ObjectError(f"{source.name} cannot be read: {error.strerror}") from None
    key = hashlib.sha256(b"\0".join([compiler.encode(), repr(FLAGS).encode(), text])).hexdigest()
    made = cache.directory() / "objects" / f"{source.stem}-{key[:16]}.o"
    if made.is_file():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    with files.replaced(made) as name:
        done = children.run(
            limited([compiler, *FLAGS, str(source), "-o", str(name)], Limits(cpu_s=120)),
            timeout=120,
        )
        if done.status:
            raise ObjectError(f"{source.name} does not compile: {done.stderr.strip()[:2000]}")
    return made
