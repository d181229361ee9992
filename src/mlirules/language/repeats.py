"""Rows of a kernel that are written once and stand several times: ``$each i < G`` to ``$end``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["MAX_REPEATS", "Repeat", "RepeatError", "repeats"]

#: So often rows can stand at most.
MAX_REPEATS = 64

_EACH = re.compile(r"[ \t]*\$each\b[ \t]*(.*)")
_HEAD = re.compile(r"([A-Za-z_]\w*)[ \t]*<[ \t]*(\S.*?)[ \t]*$")
_END = re.compile(r"[ \t]*\$end[ \t]*$")


@dataclass(frozen=True)
class Repeat:
    """Rows from ``first`` up to ``last``, counted from 0: those of ``$each`` and ``$end``.

    ``times`` is an expression, which stands at ``offset`` of the text; ``name`` is in the rows
    between, as ``$name``, how often they stand already.
    """

    name: str
    times: str
    offset: int
    first: int
    last: int


class RepeatError(Exception):
    """Rows that do not say what is repeated: at ``offset`` of the text."""

    def __init__(self, offset: int, message: str, hint: str) -> None:
        super().__init__(message)
        self.offset = offset
        self.hint = hint


def repeats(text: str) -> Iterator[Repeat]:
    """What is repeated in a kernel's text, from above. Raises :class:`RepeatError`."""
    offset = 0
    opened: tuple[int, int, re.Match[str]] | None = None
    for number, row in enumerate(text.splitlines(keepends=True)):
        bare = row.rstrip("\n")
        if each := _EACH.fullmatch(bare):
            at = offset + bare.index("$")
            if opened is not None:
                raise RepeatError(at, "repeated rows repeat none", "end the first with $end")
            head = _HEAD.fullmatch(each[1])
            if head is None:
                raise RepeatError(
                    at, "$each does not say how often", "write `$each i < N`: i is 0, 1, ... N - 1"
                )
            opened = number, offset + each.start(1), head
        elif _END.fullmatch(bare):
            if opened is None:
                raise RepeatError(offset + bare.index("$"), "$end ends nothing", "begin with $each")
            first, start, head = opened
            yield Repeat(head[1], head[2], start + head.start(2), first, number)
            opened = None
        offset += len(row)
    if opened is not None:
        raise RepeatError(opened[1], "$each has no $end", "write $end below the rows")
