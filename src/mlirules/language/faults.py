"""Located faults: what is wrong, where, why and what to write instead.

Every part of mlirules that refuses an input does it with a :class:`Fault`, so that one renderer
prints all of them alike: ``file:line:col``, the source line with a caret, the cause, a suggestion.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

EXIT_DONE = 0
EXIT_CHECK_FAILED = 1
EXIT_INPUT_WRONG = 2


@dataclass(frozen=True, order=True)
class Span:
    """A place in a source text. ``line`` and ``column`` count from 1; ``length`` in characters.

    0 is a place that is not known.
    """

    path: str
    line: int = 0
    column: int = 0
    length: int = 1
    source_line: str = ""

    def __str__(self) -> str:
        if not self.line:
            return self.path
        place = f"{self.path}:{self.line}"
        return f"{place}:{self.column}" if self.column else place


@dataclass(frozen=True)
class Fault:
    """One located fault. ``code`` is a stable short name that tools and tests can rely on."""

    span: Span
    code: str
    message: str
    suggestion: str = ""
    severity: str = "error"

    def render(self) -> str:
        """The fault as text: location, cause, source line with a caret, suggestion."""
        out = [f"{self.span}: {self.severity}[{self.code}]: {self.message}"]
        if self.span.line and self.span.source_line:
            shown = self.span.source_line.replace("\t", " ")
            start, cut = self.span.column - 1, ""
            if len(shown) > 160:  # keep the caret in view on very long lines
                begin = max(0, start - 80)
                shown, start, cut = shown[begin : begin + 150], start - begin, "... "
            gutter = f"{self.span.line:>5} | "
            width = max(1, min(self.span.length, max(1, len(shown) - start)))
            out.append(gutter + cut + shown)
            out.append(" " * 5 + " | " + " " * (max(0, start) + len(cut)) + "^" * width)
        if self.suggestion:
            out.append(f"      = help: {self.suggestion}")
        return "\n".join(out)

    def as_json(self) -> dict[str, object]:
        """The fault as plain data, for ``--json``."""
        return {
            "path": self.span.path,
            "line": self.span.line,
            "column": self.span.column,
            "length": self.span.length,
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "suggestion": self.suggestion,
        }


class MlirulesError(Exception):
    """An input that is wrong, as one or more located faults."""

    def __init__(self, faults: Fault | Sequence[Fault]) -> None:
        self.faults: list[Fault] = [faults] if isinstance(faults, Fault) else list(faults)
        super().__init__("\n".join(f.render() for f in self.faults))

    def __reduce__(self) -> tuple[object, ...]:
        # Subclasses take other arguments than the text that exceptions keep.
        return _again, (type(self), self.args), dict(vars(self))

    @classmethod
    def at(
        cls, path: str, message: str, *, code: str = "input", suggestion: str = ""
    ) -> MlirulesError:
        """A fault that concerns a whole file or flag rather than a place in it."""
        return cls(Fault(Span(path), code, message, suggestion))

    @classmethod
    def not_installed(
        cls, path: str, message: str, extra: str, *, code: str = "extra", besides: str = ""
    ) -> MlirulesError:
        """Something that an extra of the distribution brings is missing."""
        return cls.at(
            path, message, code=code, suggestion=f"pip install 'mlirules[{extra}]'{besides}"
        )


def _again(kind: type[MlirulesError], said: tuple[object, ...]) -> MlirulesError:
    """An error that comes from another process; its faults follow."""
    return kind.__new__(kind, *said)


class CheckFailed(Exception):
    """A check that ran and did not hold (exit code 1): a failing test, an unmet expectation."""


def did_you_mean(word: str, known: Iterable[str], *, limit: int = 3) -> str:
    """A ``did you mean ...?`` sentence, or an empty string when nothing is near."""
    near = difflib.get_close_matches(word, list(known), n=limit, cutoff=0.6)
    if not near:
        return ""
    return "did you mean " + " or ".join(repr(n) for n in near) + "?"
