"""Files that are kept between runs: where they are, and how to know that they are whole."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from pathlib import Path

from mlirules.support import files, package

__all__ = [
    "broken",
    "checked",
    "directory",
    "keep",
    "keep_newest",
    "kept",
    "read_checked",
    "read_head",
    "shipped",
    "shipped_head",
    "with_head",
    "write_checked",
    "write_with_head",
]


def directory() -> Path:
    """Where what was compiled is kept: ``MLIRULES_CACHE_DIR``, or the user's cache folder."""
    given = os.environ.get("MLIRULES_CACHE_DIR")
    if given:
        return Path(given)
    from platformdirs import user_cache_path  # a command that keeps nothing need not ask

    return user_cache_path("mlirules")


def write_checked(path: Path, data: bytes) -> None:
    """Write a file for :func:`read_checked`. A folder that cannot be written keeps nothing."""
    with contextlib.suppress(OSError):
        files.write(path, checked(data))


def checked(data: bytes) -> bytes:
    """What is written for ``data``, so that :func:`read_checked` can tell whether it is whole."""
    return hashlib.sha256(data).digest() + data


def read_checked(path: Path) -> bytes | None:
    """What :func:`write_checked` wrote; None when it is not there, or not whole."""
    try:
        found = path.read_bytes()
    except OSError:
        return None
    digest, data = found[:32], found[32:]
    return data if hashlib.sha256(data).digest() == digest else None


def with_head(head: bytes, rest: bytes) -> bytes:
    """What is written for a file of which :func:`read_head` reads the beginning alone.

    Its checksum is the head's: who reads of the rest must know by other means what stands there.
    """
    return checked(len(head).to_bytes(8, "little") + head) + rest


def write_with_head(path: Path, head: bytes, rest: bytes) -> None:
    """Write a file for :func:`read_head`. A folder that cannot be written keeps nothing."""
    with contextlib.suppress(OSError):
        files.write(path, with_head(head, rest))


def read_head(path: Path) -> tuple[bytes, int] | None:
    """The head of such a file, and where its rest begins; None: it is not there, or not whole."""
    try:
        with open(path, "rb", buffering=0) as opened:  # noqa: PTH123 - of every rule set there is
            digest, size = opened.read(32), opened.read(8)
            length = int.from_bytes(size, "little")
            if length > os.fstat(opened.fileno()).st_size:
                return None
            head = opened.read(length)
    except OSError:
        return None
    whole = hashlib.sha256(size + head).digest() == digest
    return (head, 40 + length) if whole else None


def shipped_head(kind: str, key: str) -> tuple[Path, tuple[bytes, int]] | None:
    """As :func:`shipped`, of a file with a head: its place, and what :func:`read_head` reads."""
    path = package.PREBUILT / kind / key
    found = read_head(path)
    if found is None:
        if files.is_file(path):
            _tell(str(path))
        return None
    return path, found


def broken(path: Path) -> None:
    """Say that the rest of a file with a head is not what its reader knows it to be.

    Of what was kept here nothing is said: it may just have been written anew.
    """
    if path.is_relative_to(package.PREBUILT):
        _tell(str(path))


def kept(kind: str, key: str) -> bytes | None:
    """What :func:`keep` kept, here or when the package was built; None: nothing."""
    found = shipped(kind, key)
    return found if found is not None else read_checked(directory() / kind / key)


def shipped(kind: str, key: str) -> bytes | None:
    """What was kept when the package was built; None: nothing, or a file that was changed since."""
    path = package.PREBUILT / kind / key
    found = read_checked(path)
    if found is None and files.is_file(path):
        _tell(str(path))
    return found


@functools.lru_cache(maxsize=64)
def _tell(path: str) -> None:
    """Say once that a file of the package is broken: it is not used, and every start pays."""
    import logging  # on stderr, where the program that imports this says nothing else

    logging.getLogger("mlirules").warning(
        "%s: warning[prebuilt]: is not as it was built, so what it holds is made anew\n"
        "      = help: pip install --force-reinstall mlirules",
        path,
    )


def keep(kind: str, key: str, data: bytes, *, limit: int) -> None:
    """Keep ``data``; of more than ``limit`` of that kind, those written first go."""
    folder = directory() / kind
    write_checked(folder / key, data)
    keep_newest(folder, limit)


def keep_newest(folder: Path, count: int) -> None:
    """Remove all files of a folder but the ``count`` that were written last."""
    with contextlib.suppress(OSError):
        # Names alone are read quickly; when each was written is asked only where some must go.
        if len(os.listdir(folder)) <= count:  # noqa: PTH208
            return
        files = [(entry.stat().st_mtime_ns, entry.path) for entry in os.scandir(folder)]
        for _, path in sorted(files)[:-count]:
            Path(path).unlink(missing_ok=True)
