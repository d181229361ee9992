"""Files that are kept between runs: where they are, and how they are written."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

__all__ = ["directory", "keep_newest", "read_checked", "write_checked", "write_whole"]


def directory() -> Path:
    """Where what was compiled is kept: ``MLIRULES_CACHE_DIR``, or the user's cache folder."""
    given = os.environ.get("MLIRULES_CACHE_DIR")
    if given:
        return Path(given)
    from platformdirs import user_cache_path  # a command that keeps nothing need not ask

    return user_cache_path("mlirules")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file through a temporary one: other processes see the old or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except BaseException:  # an interrupt, too, must not leave the temporary file behind
        Path(name).unlink(missing_ok=True)
        raise


def write_checked(path: Path, data: bytes) -> None:
    """Write a file for :func:`read_checked`. A folder that cannot be written keeps nothing."""
    with contextlib.suppress(OSError):
        write_whole(path, hashlib.sha256(data).digest() + data)


def read_checked(path: Path) -> bytes | None:
    """What :func:`write_checked` wrote; None when it is not there, or not whole."""
    try:
        found = path.read_bytes()
    except OSError:
        return None
    digest, data = found[:32], found[32:]
    return data if hashlib.sha256(data).digest() == digest else None


def keep_newest(folder: Path, count: int) -> None:
    """Remove all files of a folder but the ``count`` that were written last."""
    with contextlib.suppress(OSError):
        files = [(entry.stat().st_mtime_ns, entry.path) for entry in os.scandir(folder)]
        for _, path in sorted(files)[:-count]:
            Path(path).unlink(missing_ok=True)
