"""The one way to write a rule file's match, conditions and rewrite.

Only layout changes: lists are written one item a line, spaces as the notation's own examples have
them, attributes stand behind operands, and the signs of neighbouring equations below each other.
Comments, bodies and all else stay as they are. A line whose meaning would change is left alone:
what is written is parsed and compared with what was read.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mlirules.language.edit import scalar
from mlirules.language.notation import ast
from mlirules.language.notation.parser import NotationError, parse_expression, parse_statement
from mlirules.language.reading import load_yaml

__all__ = ["formatted"]

#: Longer lines are not aligned.
WIDTH = 100
_SECTIONS = ("match", "where", "rewrite")
_COMPARED = re.compile("[=!<>]=")
_SIGN = re.compile(r"(?:\+|\*|\b(?:max|min|and|or|xor))?=(?!=)")
_WORD = re.compile(r"\$([A-Za-z_]\w*)")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\.\.\.|[A-Za-z_][\w.]*[A-Za-z0-9_]|\w+|\s+|[^\w\s]')


@dataclass
class _Item:
    """An item of a list: where it stands in the file, and its text."""

    start: int
    end: int
    value: str
    #: The row behind it: a comment.
    rest: str = ""


def formatted(path: str | Path, text: str | None = None) -> str:
    """The text of a rule file, written the one way. Raises :class:`MlirulesError` for no YAML.

    What holds no rule, and lines that cannot be read, stay as they are. Formatting twice changes
    nothing more.
    """
    source = load_yaml(path, text)
    if not isinstance(source.data, dict) or "rule" not in source.data:
        return source.text
    written = source.text
    root = _composed(written)
    if root is None:
        return written
    entries = [(k, v) for k, v in root.value if k.value in _SECTIONS and not k.start_mark.column]
    for key, value in sorted(entries, key=lambda e: -e[0].start_mark.index):
        written = _listed(written, key, value, key.value)
    if written != source.text:
        written = _reasons(source.data, written)
    rows = written.split("\n")
    return "\n".join(_bare_rows(rows)).rstrip("\n") + "\n"


def _bare_rows(rows: Sequence[str]) -> Iterator[str]:
    """Without blanks at the ends of rows; blanks alone mean nothing anywhere in a rule file."""
    for row in rows:
        yield row.rstrip(" \t")


def _composed(text: str) -> yaml.MappingNode | None:
    """The nodes of the file, with marks; None where it is no mapping that PyYAML reads."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return None
    return root if isinstance(root, yaml.MappingNode) else None


def _listed(text: str, key: yaml.Node, value: yaml.Node, section: str) -> str:
    parse: Callable[[str], Any] = parse_expression if section == "where" else parse_statement
    inline = isinstance(value, yaml.ScalarNode) or getattr(value, "flow_style", False)
    nodes = [value] if isinstance(value, yaml.ScalarNode) else list(value.value)
    if inline:
        end = value.end_mark.index
        row_end = _row_end(text, end)
        whole = text[key.start_mark.index : row_end]
        plain = all(isinstance(n, yaml.ScalarNode) and "\n" not in n.value.strip() for n in nodes)
        if not plain or not nodes or "#" in _without_strings(whole):
            return text
        items = [_Item(0, 0, _written(n.value.strip(), parse)) for n in nodes]
        rows = [f"{section}:", *(f"  - {scalar(value)}" for value in _aligned(items, 4, section))]
        return text[: key.start_mark.index] + "\n".join(rows) + text[row_end:]
    groups: list[tuple[int, list[_Item]]] = []
    # What holds lines: the section itself, and alternatives of a family inside of it.
    pending: list[Any] = [value]
    while pending:
        node = pending.pop()
        if node.flow_style:
            continue
        if isinstance(node, yaml.MappingNode):
            # An alternative of one line has its name before it: nothing to align it with.
            for name, inner in node.value:
                if name.value == "body":
                    continue
                found = _item(text, inner, parse)
                if found is not None:
                    groups.append((inner.start_mark.column, [found]))
                elif not isinstance(inner, yaml.ScalarNode):
                    pending.append(inner)
            continue
        column = min((n.start_mark.column for n in node.value), default=4)
        last = -1
        for inner in node.value:
            found = _item(text, inner, parse)
            if found is None:
                last = -1
                if not isinstance(inner, yaml.ScalarNode):
                    pending.append(inner)
                continue
            if inner.start_mark.line != last + 1 or last < 0:
                groups.append((column, []))
            last = inner.start_mark.line
            groups[-1][1].append(found)
    out, at = [], 0
    for column, group in sorted(groups, key=lambda g: g[1][0].start):
        for item, written in zip(group, _aligned(group, column, section), strict=True):
            out += [text[at : item.start], scalar(written)]
            at = item.end
    return "".join([*out, text[at:]])


def _item(text: str, node: Any, parse: Callable[[str], Any]) -> _Item | None:
    """A node that is one line of the notation; None for any other."""
    one = isinstance(node, yaml.ScalarNode) and node.start_mark.line == node.end_mark.line
    if not one or node.style in ("|", ">"):
        return None
    start, end = node.start_mark.index, node.end_mark.index
    return _Item(start, end, _written(node.value, parse), text[end : _row_end(text, end)])


def _row_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _without_strings(text: str) -> str:
    return re.sub(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'", "''", text)


# ---------------------------------------------------------------- one line


def _written(text: str, parse: Callable[[str], Any]) -> str:
    """A line of the notation, spaced; as it was where it says something else then."""

    def meaning(line: str) -> Any:
        # A word of a family stands for part of a line: any name does in its place.
        return _meaning(parse(_WORD.sub(r"word_\1", line)))

    try:
        before = meaning(text)
        ordered = text if "$" in text else _ordered(text, parse)
    except NotationError:
        return text
    for made in (_spaced(ordered), _spaced(text)):
        try:
            if meaning(made) == before:
                return made
        except NotationError:
            continue
    return text


def _meaning(node: object) -> Any:
    """A syntax tree without its places."""
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        fields = {
            f.name: _meaning(getattr(node, f.name))
            for f in dataclasses.fields(node)
            if f.name not in ("pos", "end")
        }
        return (type(node).__name__, tuple(fields.items()))
    if isinstance(node, (tuple, list)):
        return tuple(_meaning(item) for item in node)
    return (type(node).__name__, node)


def _ordered(text: str, parse: Callable[[str], Any]) -> str:
    """Results without brackets around them, and attributes behind the operands."""
    made = parse(text)
    if not isinstance(made, ast.OpEquation):
        return text
    bare = re.match(r"\s*\(([^()]*)\)\s*(?==)", text)
    if bare:
        text = f"{bare[1]} {text[bare.end() :]}"
    call = re.search(rf"{re.escape(made.call.fn)}\s*(\{{)", text)
    if call is None:
        return text
    close = _closing(text, call.start(1))
    opened = re.compile(r"\s*\(").match(text, close + 1)
    if opened is None:
        return text
    end = _closing(text, opened.end() - 1)
    attributes = text[call.start(1) : close + 1]
    head = text[: call.start(1)].rstrip()
    return f"{head}{text[close + 1 : end + 1].lstrip()} {attributes}{text[end + 1 :]}"


def _closing(text: str, at: int) -> int:
    """Where the bracket at a place is closed; the end of the text where it is not."""
    depth = 0
    for found in _TOKEN.finditer(text, at):
        if found[0] in "([{":
            depth += 1
        elif found[0] in ")]}":
            depth -= 1
            if not depth:
                return found.start()
    return len(text)


def _spaced(text: str) -> str:
    """One blank where blanks are, one behind a comma, none inside brackets."""
    out: list[str] = []
    for found in _TOKEN.finditer(text.strip()):
        token = found[0]
        before = out[-1] if out else ""
        if token.isspace():
            if before not in ("(", "[", "{", " ", ""):
                out.append(" ")
            continue
        if token in (",", ")", "]", "}") and before == " ":
            out.pop()
        out.append(token)
        if token == ",":
            out.append(" ")
    joined = "".join(out).strip()
    return re.sub(r"(?<=\{)(.*?)(?=\})", _attributes, joined) if "{" in joined else joined


def _attributes(found: re.Match[str]) -> str:
    return re.sub(r'("(?:[^"\\]|\\.)*")|\s*(?<![=<>!])=(?!=)\s*', lambda m: m[1] or " = ", found[0])


# ---------------------------------------------------------------- lines together


def _aligned(items: Sequence[_Item], column: int, section: str) -> list[str]:
    """The lines with their signs below each other, where that leaves all of them short enough."""
    if section == "where":
        return [item.value for item in items]
    cut = [_cut(item.value) for item in items]
    signed = [c for c in cut if c is not None]
    if len(signed) < 2 or len(signed) != len(cut):
        return [item.value for item in items]
    left = max(len(c[0]) for c in signed)
    sign = max(len(c[1]) for c in signed)
    lines = [f"{a:<{left}} {b:>{sign}} {c}" for a, b, c in signed]
    room = WIDTH - column
    fits = all(
        len(scalar(line)) + len(item.rest) <= room or len(line) == len(item.value)
        for line, item in zip(lines, items, strict=True)
    )
    return lines if fits else [item.value for item in items]


def _cut(text: str) -> tuple[str, str, str] | None:
    """A line's left-hand side, its sign and its right-hand side; None where it has no sign."""
    depth = 0
    for n, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == '"':
            return None  # no left-hand side holds one
        elif not depth and _COMPARED.match(text, n):
            return None  # a condition in the wrong section
        elif not depth and (found := _SIGN.match(text, n)):
            left, right = text[:n].strip(), text[found.end() :].strip()
            return (left, found[0], right) if left and right else None
    return None


def _reasons(data: dict[str, object], text: str) -> str:
    """`because:` of the tests, spelt as the lines that they name are now."""
    now = load_yaml("<formatted>", text).data
    changed: dict[str, str] = {}
    for section in _SECTIONS:
        for old, new in zip(_texts(data.get(section)), _texts(now.get(section)), strict=False):
            if " ".join(old.split()) != " ".join(new.split()):
                changed[old.strip()] = " ".join(new.split())
    if not changed:
        return text
    root = _composed(text)
    spans = []
    for key, value in root.value if root is not None else ():
        tests = value.value if key.value == "tests" else ()
        for test in tests:
            for name, said in test.value if isinstance(test, yaml.MappingNode) else ():
                if name.value == "because" and said.value.strip() in changed:
                    one = said.start_mark.line == said.end_mark.line
                    if one:
                        spans.append((said.start_mark.index, said.end_mark.index, said.value))
    for start, end, old in reversed(spans):
        text = text[:start] + scalar(changed[old.strip()]) + text[end:]
    return text


def _texts(value: object) -> list[str]:
    """The lines of a section, those of alternatives among them, in the file's order."""
    out: list[str] = []
    pending = [value]
    while pending:
        found = pending.pop()
        if isinstance(found, dict):
            pending += reversed(list(found.values()))
        elif isinstance(found, list):
            pending += reversed(found)
        else:
            out.append(found if isinstance(found, str) else "")
    return out
