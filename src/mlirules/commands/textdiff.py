"""A short unified diff of two programs, for the terminal."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from rich.text import Text

from mlirules.commands.common import out

_WIDEST = 240
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def diff_lines(before: str, after: str, name: str, *, context: int = 1) -> Iterator[str]:
    """The unified diff of two programs, without their weights; very long lines are cut."""
    yield from difflib.unified_diff(
        _lines(before), _lines(after), f"{name} (before)", f"{name} (after)", n=context,
        lineterm="",
    )  # fmt: skip


def show_diff(before: str, after: str, name: str, *, limit: int | None = None) -> None:
    """Print the diff on stdout, at most ``limit`` lines of it."""
    lines = list(diff_lines(before, after, name))
    for line in lines[:limit]:
        out.print(Text(line, style=_STYLES.get(line[:1], "")), soft_wrap=True)
    if limit is not None and len(lines) > limit:
        out.print(Text(f"... {len(lines) - limit} more lines", style="dim"))


def _lines(text: str) -> list[str]:
    program = text.split("\n{-#", 1)[0]
    return [
        line if len(line) <= _WIDEST else line[: _WIDEST - 4] + " ..."
        for line in program.splitlines()
    ]
