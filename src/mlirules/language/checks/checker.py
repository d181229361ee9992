"""What every check of a rule needs: faults at their place, lines, names near to one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from mlirules.language.faults import Fault, did_you_mean
from mlirules.language.notation import ast
from mlirules.language.notation.parser import (
    NotationError,
)
from mlirules.language.rule import (
    Line,
    Rule,
)
from mlirules.language.source import SourceFile

# Says of an op name whether the installed compiler has it, and names near to it.
OpOracle = Callable[[str], tuple[bool, list[str]]]

MAX_SUGGESTIONS = 20  # in one file


class Checker:
    """Reads lines of a rule and collects faults."""

    def __init__(self, source: SourceFile, data: dict[str, object], ops: OpOracle | None) -> None:
        self.source = source
        self.data = data
        self.ops = ops
        self.faults: list[Fault] = []
        # Words of lines that could not be read: they may be names, so no fault is made of them.
        self.unread: set[str] = set()
        self.unread_sections: set[str] = set()

    def line(self, section: str, key: str | int, *more: str | int) -> Line:
        """A line of the rule, with its place."""
        return Line(section, key, self.source.text_at((section, key, *more)))

    def fault(
        self, line: Line, node: ast.Node | None, code: str, message: str, hint: str = ""
    ) -> None:
        """Note a fault at a node of a line, or at the whole line."""
        span = line.span
        if node is not None:
            span = line.text.span(node.pos, max(1, node.end - node.pos))
        self.faults.append(Fault(span, code, message, hint))

    def parsed(self, line: Line, parse: Callable[[str], Any]) -> Any:
        """What a line says, or None with its fault noted."""
        try:
            return parse(line.text.value)
        except NotationError as error:
            self.faults.append(
                Fault(
                    line.text.span(error.pos, error.length),
                    "syntax",
                    error.message,
                    error.suggestion,
                )
            )
        self.skip(line)
        return None

    def near(self, word: str, known: Iterable[str]) -> str:
        """A suggestion; none after many faults, because finding one takes time."""
        return did_you_mean(word[:100], known) if len(self.faults) < MAX_SUGGESTIONS else ""

    def skip(self, line: Line) -> None:
        """Note that a line could not be read."""
        self.unread |= set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", line.text.value))
        self.unread_sections.add(line.section)
        if line.section == "let":
            self.unread.add(str(line.key))

    def has_root(self, rule: Rule) -> bool:
        """Whether the match's last line was read and is an op equation."""
        return bool(rule.match) and rule.root.line.key == len(rule.doc.match) - 1
