"""The one way in which files are written: whole or not at all, as other processes see them."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "is_file",
    "is_folder",
    "replaced",
    "shown",
    "write",
    "write_changed",
]


def is_file(path: str | Path) -> bool:
    """Whether a file is there; of a name that none can have (too long, say) it is not."""
    try:
        return Path(path).is_file()
    except OSError:
        return False


def is_folder(path: str | Path) -> bool:
    """Whether a folder is there, likewise."""
    try:
        return Path(path).is_dir()
    except OSError:
        return False


@contextlib.contextmanager
def replaced(path: str | Path) -> Iterator[Path]:
    """The path of an empty file that takes the place of ``path`` when the block ends well.

    It stands beside ``path`` and has its suffix; the user's umask says who may read it. A device or
    a pipe (``/dev/null``) is written to, and not replaced. Raises OSError.
    """
    target = Path(path)
    if target.exists() and not target.is_file() and not target.is_dir():
        yield target
        return
    name = target.with_name(f".{target.stem}.{secrets.token_hex(8)}{target.suffix}")
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield name
        name.replace(target)
    except BaseException:  # an interrupt, too, must not leave the temporary file behind
        name.unlink(missing_ok=True)
        raise


def write(path: str | Path, data: bytes | memoryview | str) -> None:
    """Write a file; text becomes UTF-8. Folders that it needs are made. Raises OSError."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as name, name.open("wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)


def write_changed(path: str | Path, text: str) -> bool:
    """Like :func:`write`; returns False, and writes nothing, when the file says that already."""
    with contextlib.suppress(OSError):
        if Path(path).read_bytes() == text.encode():
            return False
    write(path, text)
    return True


def shown(path: str | Path) -> str:
    """A path as a report shows it: from the working folder where it lies below it."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(path)
