"""YAML with source marks.

Rule files are untrusted input: only plain scalars, lists and mappings are built (no tags, no
aliases that could explode), duplicate keys are faults, and every node keeps the place it stands at
so that any later fault can point into the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mlirules.rules.faults import Fault, MlirulesError, Span

Path_ = tuple[str | int, ...]

MAX_BYTES = 1 << 20
MAX_DEPTH = 40

# What YAML 1.1 turns into something its author did not mean.
_BOOL_WORDS = {"yes", "no", "on", "off", "y", "n"}
_EXPONENT = re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$|^[-+]?[0-9]*\.?[0-9]+[eE][0-9]+$")


@dataclass
class Text:
    """A scalar's text together with where each of its characters stands in the file."""

    value: str
    source: SourceFile
    line: int  # of the first character, from 1
    column: int  # of the first character, from 1
    block: bool = False  # a `|` or `>` scalar: lines map one to one

    def span(self, offset: int = 0, length: int | None = None) -> Span:
        """The place of ``length`` characters from ``offset`` on (default: to the line's end)."""
        offset = max(0, min(offset, len(self.value)))
        before = self.value[:offset]
        row = before.count("\n")
        in_row = offset - (before.rfind("\n") + 1)
        if length is None:
            rest = self.value[offset:].split("\n", 1)[0]
            length = max(1, len(rest))
        if self.block:
            line = self.line + row
            column = self.column + in_row
        elif row == 0:
            line, column = self.line, self.column + in_row
        else:
            line, column = self.line + row, 1
        return self.source.span(line, column, length)


@dataclass
class SourceFile:
    """A YAML file: its path, its text, its plain data and a mark for every node."""

    path: str
    text: str
    data: Any = None
    marks: dict[Path_, Text] = field(default_factory=dict)
    key_marks: dict[Path_, Text] = field(default_factory=dict)

    def span(self, line: int, column: int, length: int = 1) -> Span:
        """A place in this file, with its source line."""
        lines = self._lines
        source_line = lines[line - 1] if 0 < line <= len(lines) else ""
        return Span(self.path, line, column, length, source_line)

    @property
    def _lines(self) -> list[str]:
        # Not splitlines(): YAML and editors count only line feeds.
        return self.text.split("\n")

    def text_at(self, path: Path_) -> Text:
        """The mark of the node at ``path``, or of its nearest ancestor that has one."""
        while path not in self.marks and path:
            path = path[:-1]
        return self.marks.get(path, Text("", self, 1, 1))

    def span_at(self, path: Path_, *, key: bool = False) -> Span:
        """The place of the node at ``path`` (or of its key)."""
        if key and path in self.key_marks:
            mark = self.key_marks[path]
            return mark.span(0, max(1, len(mark.value)))
        while path not in self.marks and path:
            path = path[:-1]
        mark = self.text_at(path)
        return mark.span(0, max(1, len(mark.value.split("\n", 1)[0])))


class _Builder:
    """Builds plain data from YAML nodes and collects faults instead of stopping at the first."""

    def __init__(self, source: SourceFile) -> None:
        self.source = source
        self.faults: list[Fault] = []

    def fault(
        self, node: yaml.Node, code: str, message: str, suggestion: str = "", length: int = 1
    ) -> None:
        mark = node.start_mark
        span = self.source.span(mark.line + 1, mark.column + 1, length)
        self.faults.append(Fault(span, code, message, suggestion))

    def build(self, node: yaml.Node, path: Path_, depth: int = 0) -> Any:
        self.source.marks[path] = self._mark(node)
        if depth > MAX_DEPTH:
            self.fault(node, "too-deep", f"nested more than {MAX_DEPTH} levels deep")
            return None
        explicit = node.tag and not node.tag.startswith("tag:yaml.org,2002:")
        if explicit:
            self.fault(
                node,
                "yaml-tag",
                f"the tag {node.tag!r} is not allowed",
                "rule files are plain data: remove the tag",
            )
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(n, (*path, i), depth + 1) for i, n in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode)
        out: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.fault(key_node, "yaml-key", "a key must be a plain word")
                continue
            key = key_node.value
            if key_node.tag == "tag:yaml.org,2002:merge":
                self.fault(
                    key_node, "yaml-merge", "merge keys (<<) are not allowed", "write the keys out"
                )
                continue
            child = (*path, key)
            if key in out:
                first = self.source.key_marks[child]
                self.fault(
                    key_node,
                    "duplicate-key",
                    f"the key {key!r} stands twice in this mapping",
                    f"it first stands in line {first.line}; keep one of them",
                    len(key),
                )
                continue
            self.source.key_marks[child] = Text(
                key, self.source, key_node.start_mark.line + 1, key_node.start_mark.column + 1
            )
            out[key] = self.build(value_node, child, depth + 1)
        return out

    def _mark(self, node: yaml.Node) -> Text:
        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        if not isinstance(node, yaml.ScalarNode):
            return Text("", self.source, line, column)
        if node.style in ("|", ">"):
            first = self.source.span(line + 1, 1).source_line
            # The block's indent is that of its first line that is not empty.
            row = line + 1
            while not first.strip() and row < line + 200:
                row += 1
                first = self.source.span(row, 1).source_line
            indent = len(first) - len(first.lstrip(" "))
            return Text(node.value, self.source, line + 1, indent + 1, block=True)
        if node.style in ("'", '"'):
            return Text(node.value, self.source, line, column + 1)
        return Text(node.value, self.source, line, column)

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text = node.value
        if node.style is not None:
            return text
        length = max(1, len(text))
        if text.lower() in _BOOL_WORDS and node.tag == "tag:yaml.org,2002:bool":
            self.fault(
                node,
                "yaml-bool",
                f"YAML reads the bare word {text!r} as a truth value",
                f"write true or false, or quote it: '{text}'",
                length,
            )
            return None
        if node.tag == "tag:yaml.org,2002:str" and _EXPONENT.match(text):
            mantissa = re.split("[eE]", text)[0]
            exponent = re.split("[eE]", text)[1]
            fixed = mantissa if "." in mantissa else mantissa + ".0"
            if exponent[:1] not in "+-":
                exponent = "+" + exponent
            self.fault(
                node,
                "yaml-exponent",
                f"YAML 1.1 reads {text} as a string, not as a number",
                f"write {fixed}e{exponent}",
                length,
            )
            return None
        if node.tag == "tag:yaml.org,2002:null":
            return None
        if node.tag == "tag:yaml.org,2002:bool":
            return text.lower() == "true"
        try:
            if node.tag == "tag:yaml.org,2002:int":
                if ":" in text or re.match(r"^[-+]?0[0-9_]+$", text):
                    self.fault(
                        node,
                        "yaml-int",
                        f"YAML 1.1 reads {text} in another base",
                        f"quote it: '{text}'",
                        length,
                    )
                    return None
                return int(text.replace("_", ""), 0)
            if node.tag == "tag:yaml.org,2002:float":
                value = float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
                return value if not math.isnan(value) else float("nan")
        except ValueError:
            self.fault(node, "yaml-number", f"{text!r} is not a number", "quote it", length)
            return None
        return text  # dates and the like stay text


def load_yaml(path: str | Path, text: str | None = None) -> SourceFile:
    """Read a YAML file (or ``text`` as if it stood in ``path``) with marks.

    Raises :class:`MlirulesError` with every fault of the file: syntax, duplicate keys, tags,
    merge keys, words and numbers that YAML 1.1 reads differently from what they look like.
    """
    name = str(path)
    if text is None:
        try:
            raw = Path(path).read_bytes()
        except OSError as error:
            raise MlirulesError.at(
                name, f"cannot be read: {error.strerror or error}", code="file"
            ) from None
        if len(raw) > MAX_BYTES:
            raise MlirulesError.at(name, f"larger than {MAX_BYTES} bytes", code="too-large")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            before = raw[: error.start]
            line = before.count(b"\n") + 1
            column = error.start - (before.rfind(b"\n") + 1) + 1
            raise MlirulesError(
                Fault(Span(name, line, column), "encoding", "not UTF-8", "save the file as UTF-8")
            ) from None
    text = text.replace("\r\n", "\n")
    source = SourceFile(name, text)
    try:
        events = list(yaml.parse(text, Loader=yaml.SafeLoader))
        for event in events:
            if isinstance(event, yaml.AliasEvent):
                mark = event.start_mark
                raise MlirulesError(
                    Fault(
                        source.span(mark.line + 1, mark.column + 1, len(event.anchor) + 1),
                        "yaml-alias",
                        "aliases are not allowed",
                        "write the value out",
                    )
                )
        documents = sum(isinstance(e, yaml.DocumentStartEvent) for e in events)
        if documents > 1:
            raise MlirulesError.at(
                name, "holds more than one YAML document", code="yaml-documents",
                suggestion="one rule a file",
            )
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problem = error.problem or "malformed YAML"
        context = f" {error.context}" if error.context else ""
        hint = ""
        if "mapping values are not allowed" in problem:
            hint = "a text that holds ': ' must be quoted"
        elif "\\t" in problem:
            hint = "indent with spaces, not with tabs"
        elif "expected <block end>" in problem:
            hint = "check the indentation, and quote texts that start with a special character"
        raise MlirulesError(
            Fault(source.span(line, column), "yaml-syntax", problem + context, hint)
        ) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line = before.count("\n") + 1
        column = error.position - (before.rfind("\n") + 1) + 1
        raise MlirulesError(
            Fault(
                source.span(line, column),
                "yaml-character",
                f"the character {error.character!r} is not allowed",
            )
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise MlirulesError.at(name, f"malformed YAML: {error}", code="yaml-syntax") from None
    if node is None:
        raise MlirulesError.at(
            name, "the file is empty", code="empty", suggestion="see `mlirules new --help`"
        )
    builder = _Builder(source)
    source.data = builder.build(node, ())
    if builder.faults:
        raise MlirulesError(builder.faults)
    return source
