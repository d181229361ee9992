"""Files that a user asked for: written whole, and a located fault where one cannot be."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from mlirules.language.faults import MlirulesError
from mlirules.support import files

__all__ = ["replaced", "reserved", "write", "write_changed"]


@contextlib.contextmanager
def _located(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MlirulesError.at(
            str(path), f"cannot be written: {error.strerror or error}", code="file"
        ) from None


@contextlib.contextmanager
def reserved(path: str | Path) -> Iterator[Path]:
    """Like :func:`mlirules.support.files.replaced`; an OSError of the block is its own.

    Raises MlirulesError where the file is no place to write to.
    """
    place = files.replaced(path)
    with _located(path):
        name = place.__enter__()
    try:
        yield name
    except BaseException:
        place.__exit__(*sys.exc_info())
        raise
    with _located(path):
        place.__exit__(None, None, None)


@contextlib.contextmanager
def replaced(path: str | Path) -> Iterator[Path]:
    """Like :func:`reserved`, around what writes the file alone: an OSError of the block is its."""
    with reserved(path) as name, _located(path):
        yield name


def write(path: str | Path, data: bytes | memoryview | str) -> None:
    """Write a file, in a folder that is there. Raises MlirulesError."""
    with replaced(path) as name, name.open("wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)


def write_changed(path: str | Path, text: str) -> bool:
    """Like :func:`mlirules.support.files.write_changed`. Raises MlirulesError."""
    with _located(path):
        return files.write_changed(path, text)
