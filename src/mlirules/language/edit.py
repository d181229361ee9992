"""Changing one value of a rule file in place: comments, order and layout stay as they are."""

from __future__ import annotations

import re

import yaml

from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.source import Path_, SourceFile


def with_value(source: SourceFile, owner: Path_, key: str, value: str) -> str:
    """The file's text with ``key: value`` in the mapping at ``owner``: replaced, or put in last.

    A value of several lines becomes a block (``|``). Raises :class:`MlirulesError` when the mapping
    is written in braces, which have no lines to put it in.
    """
    keys = [p for p in source.key_marks if p[:-1] == owner and len(p) == len(owner) + 1]
    marks = [source.key_marks[p] for p in keys]
    rows = source.text.split("\n")
    if not marks or any(
        m.column != marks[0].column or rows[m.line - 1][: m.column - 1].strip(" -") for m in marks
    ):
        raise MlirulesError(
            Fault(
                source.span_at(owner),
                "flow-mapping",
                f"no place for `{key}:` here",
                "write the mapping in lines of `key: value`, not in braces",
            )
        )
    indent = marks[0].column - 1
    written = _written(key, value, indent)
    if (*owner, key) in source.key_marks:
        first = source.key_marks[*owner, key].line - 1
        end = _end(rows, first, indent)
        lead = rows[first][:indent]  # `- ` where it is the mapping's first key
        written[0] = lead + written[0][indent:]
        return "\n".join([*rows[:first], *written, *rows[end:]])
    end = max(_end(rows, m.line - 1, indent) for m in marks)
    return "\n".join([*rows[:end], *written, *rows[end:]])


def _end(rows: list[str], first: int, indent: int) -> int:
    """The row after a key's value: what is indented more belongs to it, blank rows between too."""
    end = first + 1
    for n in range(first + 1, len(rows)):
        if rows[n].strip():
            if len(rows[n]) - len(rows[n].lstrip(" ")) <= indent:
                break
            end = n + 1
    return end


def _written(key: str, value: str, indent: int) -> list[str]:
    pad = " " * indent
    if "\n" in value.strip("\n"):
        body = [f"{pad}  {row}".rstrip() for row in value.strip("\n").split("\n")]
        return [f"{pad}{key}: |", *body]
    return [f"{pad}{key}: {scalar(value.strip(chr(10)))}"]


def scalar(text: str) -> str:
    """One line of text as a YAML scalar, quoted only where it must be."""
    if re.match(r"[\w(]", text) and not re.search(r"[:#]\s|\s#|:$", text):
        try:
            if yaml.safe_load(f"k: {text}") == {"k": text}:
                return text
        except yaml.YAMLError:
            pass
    return "'" + text.replace("'", "''") + "'"
