"""Sections of documents that benchmarks write, between two marks."""

from __future__ import annotations

from pathlib import Path

from mlirules.language.faults import MlirulesError
from mlirules.support import files

__all__ = ["parts", "renew"]


def parts(path: Path, begin: str, end: str) -> tuple[str, str]:
    """What stands before and behind the marks in a document. Raises MlirulesError without them.

    Worth asking before what takes hours.
    """
    if not path.is_file():
        raise MlirulesError.at(str(path), "there is no such file", code="file")
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise MlirulesError.at(str(path), f"has no section between {begin!r} and {end!r}")
    return before, after


def renew(path: Path, begin: str, end: str, text: str) -> None:
    """Put ``text`` between the marks in a document. Raises MlirulesError where it has none."""
    before, after = parts(path, begin, end)
    files.write(path, f"{before}{begin}\n{text}\n{end}{after}")
