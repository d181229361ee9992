"""What a match that a rule's line refused says."""

from __future__ import annotations

from mlirules.language.notation import ast
from mlirules.language.rule import Line


class NoMatch(Exception):
    """A match that a rule's line refused: which line, and what it expected and found."""

    def __init__(
        self,
        line: Line | None,
        message: str,
        *,
        expected: str = "",
        found: str = "",
        node: ast.Node | None = None,
    ) -> None:
        super().__init__(message)
        self.line = line
        self.message = message
        self.expected = expected
        self.found = found
        self.node = node
