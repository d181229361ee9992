"""A YAML file as it was read: its data, and the place of every node in the text.

:mod:`~mlirules.language.reading` reads one. What stands here needs no YAML, so that rules that were
read before are used without it.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mlirules.language.faults import Span

Path_ = tuple[str | int, ...]

#: A kernel of several CPUs and activations has 380 KB with its tests.
MAX_BYTES = 1 << 19


@dataclass
class Text:
    """A scalar's text together with where each of its characters stands in the file."""

    value: str
    source: SourceFile = field(repr=False)
    line: int  # of the first character, from 1
    column: int  # of the first character, from 1
    block: bool = False  # a `|` scalar: lines map one to one
    # Offset in the file of every character of `value` (and of its end), where that is not simply
    # counted from the first one: folded lines, escapes, block indentation.
    places: tuple[int, ...] | None = field(default=None, repr=False)

    def span(self, offset: int = 0, length: int | None = None) -> Span:
        """The place of ``length`` characters from ``offset`` on (default: to the line's end)."""
        offset = max(0, min(offset, len(self.value)))
        stop = self.value.find("\n", offset)
        rest = (stop if stop >= 0 else len(self.value)) - offset
        length = max(1, rest if length is None else min(length, rest))
        if self.places is None:
            return self.source.span(self.line, self.column + offset, length)
        place = self.places[offset]
        end = self.places[min(offset + length, len(self.value))]
        line, column = self.source.line_column(place)
        newline = self.source.text.find("\n", place)
        stop = min(end, newline) if newline >= 0 else end
        return self.source.span(line, column, max(1, stop - place))


@dataclass
class SourceFile:
    """A YAML file: its path, its text, its plain data and a mark for every node."""

    path: str
    text: str = field(repr=False)
    # Of the text, and its marks hold this file again: files are compared by path and text.
    data: Any = field(default=None, repr=False, compare=False)
    marks: dict[Path_, Text] = field(default_factory=dict, repr=False, compare=False)
    key_marks: dict[Path_, Text] = field(default_factory=dict, repr=False, compare=False)
    #: Of a rule that stands in one file with others: the file's own name for them, and which of
    #: its alternatives this one takes. Empty for a file that holds one rule.
    family: str = ""
    member: str = ""

    def span(self, line: int, column: int, length: int = 1) -> Span:
        """A place in this file, with its source line."""
        lines = self._lines
        source_line = lines[line - 1] if 0 < line <= len(lines) else ""
        return Span(self.path, line, column, length, source_line)

    def line_column(self, offset: int) -> tuple[int, int]:
        """The line and column, from 1, of a character of the file."""
        line = bisect.bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def offset(self, line: int, column: int) -> int:
        """The place in the text of a line and column, which count from 1."""
        return self._starts[line - 1] + column - 1

    def another(self) -> SourceFile:
        """The same file without data and marks; its lines are split only once."""
        made = SourceFile(self.path, self.text)
        vars(made).update(_lines=self._lines, _starts=self._starts)
        return made

    @cached_property
    def _lines(self) -> list[str]:
        # Not splitlines(): editors count only line feeds (and YAML's others are faults).
        return self.text.split("\n")

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(m.end() for m in re.finditer("\n", self.text))]

    def listed(self, *keys: str) -> None:
        """Read a single item under one of these keys as a list of that one item."""
        if not isinstance(self.data, dict):
            return
        for key in keys:
            if isinstance(self.data.get(key), (str, dict)):
                self.data[key] = [self.data[key]]
                for marks in (self.marks, self.key_marks):
                    inner = {p: m for p, m in marks.items() if p[:1] == (key,) and len(p) > 1}
                    for path in inner:
                        del marks[path]
                    marks.update({(key, 0, *p[1:]): m for p, m in inner.items()})
                self.marks[key, 0] = self.marks[key,]

    def text_at(self, path: Path_) -> Text:
        """The mark of the node at ``path``, or of its nearest ancestor that has one."""
        while path not in self.marks and path:
            path = path[:-1]
        return self.marks.get(path, Text("", self, 1, 1))

    def key_at(self, path: Path_) -> Text:
        """The mark of the key at ``path``, or of the node where the key has none."""
        return self.key_marks.get(path) or self.text_at(path)

    def span_at(self, path: Path_, *, key: bool = False) -> Span:
        """The place of the node at ``path`` (or of its key)."""
        if key and path in self.key_marks:
            mark = self.key_marks[path]
            return mark.span(0, max(1, len(mark.value)))
        while path not in self.marks and path:
            path = path[:-1]
        mark = self.text_at(path)
        return mark.span(0, max(1, len(mark.value.split("\n", 1)[0])))
