"""YAML with source marks.

Rule files are untrusted input: only plain scalars, lists and mappings are built (no tags, no
aliases that could explode), duplicate keys are faults, and every node keeps the place it stands at
so that any later fault can point into the file.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from mlirules.language.faults import Fault, MlirulesError, Span
from mlirules.language.source import MAX_BYTES, Path_, SourceFile, Text

__all__ = ["MAX_DEPTH", "MAX_FAULTS", "load_yaml"]

MAX_DEPTH = 40
MAX_FAULTS = 100  # of one file and kind: nobody reads more, and finding them takes time

# What YAML 1.1 turns into something its author did not mean.
_BOOL_WORDS = {"yes", "no", "on", "off", "y", "n"}
_EXPONENT = re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$|^[-+]?[0-9]*\.?[0-9]+[eE][0-9]+$")


class _Composing(yaml.composer.Composer):
    """Composes nodes and collects what rule files may not hold: tags, anchors, aliases."""

    def _prepare(self, source: SourceFile) -> None:
        self.source = source
        self.faults: list[Fault] = []
        self.nesting = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if len(self.faults) >= MAX_FAULTS:
            raise MlirulesError([])
        events: Any = self  # a loader is its own parser, which the stubs leave out
        event = events.peek_event()
        mark = event.start_mark
        span = self.source.span(mark.line + 1, mark.column + 1)
        if isinstance(event, yaml.AliasEvent):
            events.get_event()
            self.faults.append(
                Fault(
                    replace(span, length=len(str(event.anchor)) + 1),
                    "yaml-alias",
                    f"the alias *{str(event.anchor)[:60]} is not allowed",
                    "write the value out",
                )
            )
            return yaml.ScalarNode("tag:yaml.org,2002:null", "", mark, mark)
        if event.anchor is not None:
            self.faults.append(
                Fault(
                    span,
                    "yaml-alias",
                    f"the anchor &{event.anchor[:60]} is not allowed",
                    "remove it: values are written out where they stand",
                )
            )
            event.anchor = None
        if event.tag is not None:
            shown = event.tag.replace("tag:yaml.org,2002:", "!!")
            self.faults.append(
                Fault(
                    span,
                    "yaml-tag",
                    f"the tag {shown[:60]} is not allowed",
                    "rule files are plain data: remove the tag",
                )
            )
        if self.nesting >= MAX_DEPTH:
            # Nothing below can be read, and composing is recursive: stop here.
            raise MlirulesError(
                Fault(span, "too-deep", f"nested more than {MAX_DEPTH} levels deep")
            )
        self.nesting += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.nesting -= 1


class _Composer(_Composing, yaml.SafeLoader):
    """On PyYAML's own scanner, whose errors are told to users."""

    def __init__(self, text: str, source: SourceFile) -> None:
        yaml.SafeLoader.__init__(self, text)
        self._prepare(source)


class _QuickComposer(_Composing, yaml.CSafeLoader):
    """On libyaml's scanner, several times faster: for files that have no fault."""

    def __init__(self, text: str, source: SourceFile) -> None:
        yaml.CSafeLoader.__init__(self, text)
        self._prepare(source)

    # libyaml's parser composes by itself, which would pass over compose_node.
    get_single_node = yaml.composer.Composer.get_single_node
    compose_document = yaml.composer.Composer.compose_document
    compose_sequence_node = yaml.composer.Composer.compose_sequence_node
    compose_mapping_node = yaml.composer.Composer.compose_mapping_node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node: yaml.ScalarNode = yaml.composer.Composer.compose_scalar_node(self, anchor)
        node.style = node.style or None  # a plain scalar's is empty here, and None elsewhere
        return node


def _quick_node(text: str, source: SourceFile) -> yaml.Node | None:
    """The file's root node by the fast scanner; None when anything at all is wrong with it."""
    composer = _QuickComposer(text, source)
    try:
        node = composer.get_single_node()
    except (yaml.YAMLError, MlirulesError, RecursionError, ValueError):
        return None
    return None if composer.faults else node


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

    def build(self, node: yaml.Node, path: Path_) -> Any:
        self.source.marks[path] = self._mark(node)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(n, (*path, i)) for i, n in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode)
        out: dict[Hashable, object] = {}
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
                    f"the key {key[:60]!r} stands twice in this mapping",
                    f"it first stands in line {first.line}; keep one of them",
                    len(key),
                )
                continue
            self.source.key_marks[child] = Text(
                key, self.source, key_node.start_mark.line + 1, key_node.start_mark.column + 1
            )
            out[key] = self.build(value_node, child)
        return out

    def _mark(self, node: yaml.Node) -> Text:
        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        if not isinstance(node, yaml.ScalarNode):
            return Text("", self.source, line, column)
        if node.style in (None, "'", '"') and "\n" not in node.value:
            quote = len(node.style or "")
            at, end = node.start_mark.index + quote, node.end_mark.index - quote
            # As it stands, in one line: its characters need no places of their own.
            if end - at == len(node.value) and self.source.text.startswith(node.value, at):
                return Text(node.value, self.source, line, column + quote)
        places = _places(self.source.text, node)
        if places is None:
            return Text(node.value, self.source, line, column)
        line, column = self.source.line_column(places[0])
        return Text(node.value, self.source, line, column, node.style == "|", places)

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text = node.value
        if node.style is not None:
            return text
        shown = text if len(text) <= 40 else text[:37] + "..."
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
                f"YAML 1.1 reads {shown} as a string, not as a number",
                f"write {fixed}e{exponent}" if shown == text else "",
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
                        f"YAML 1.1 reads {shown} in another base",
                        f"quote it: '{shown}'",
                        length,
                    )
                    return None
                return int(text.replace("_", ""), 0)
            if node.tag == "tag:yaml.org,2002:float":
                value = float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
                return value if not math.isnan(value) else float("nan")
        except ValueError:
            self.fault(node, "yaml-number", f"{shown!r} is not a number", "quote it", length)
            return None
        return text  # dates and the like stay text


_BREAKS = {"\r": "CR", "\x85": "NEL", "\u2028": "LINE SEPARATOR", "\u2029": "PARAGRAPH SEPARATOR"}
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[^\n])")


def _places(text: str, node: yaml.ScalarNode) -> tuple[int, ...] | None:
    """Where every character of a scalar's value stands in ``text``; None: cannot be told."""
    at, end = node.start_mark.index, node.end_mark.index
    value, style = node.value, node.style
    if style in ("|", ">"):
        at = text.find("\n", at, end) + 1 or end
        return _block_places(text, at, end, value, folded=style == ">")
    if style in ("'", '"'):
        at, end = at + 1, end - 1
    out: list[int] = []
    for char in value:
        if at >= end:
            return None
        while style == '"' and text.startswith("\\\n", at):  # an escaped break joins two lines
            at += 2
            while at < end and text[at] in " \t\n":
                at += 1
        if at >= end:
            return None
        if style == '"' and text[at] == "\\":
            found = _ESCAPE.match(text, at, end)
            if not found:
                return None
            out.append(at)
            at = found.end()
        elif style == "'" and text.startswith("''", at):
            out.append(at)
            at += 2
        elif text[at] == char:
            out.append(at)
            at += 1
        elif char in " \n":  # folded: the value has one blank for a break and its indentation
            out.append(at)
            while at < end and text[at] in " \t":
                at += 1
        else:
            while at < end and text[at] in " \t\n":
                at += 1
            if at >= end or text[at] != char:
                return None
            out.append(at)
            at += 1
        if char in " \n" and "\n" in text[out[-1] : at + 1]:
            while at < end and text[at] in " \t\n":
                at += 1
    out.append(at)
    return tuple(out)


def _block_places(
    text: str, at: int, end: int, value: str, *, folded: bool
) -> tuple[int, ...] | None:
    start = at
    indents = [len(r) - len(r.lstrip(" ")) for r in text[at:end].split("\n") if r.strip()]
    first = value.lstrip("\n")
    # An indentation indicator (`|2`) leaves blanks at the head of the first line.
    indent = indents[0] - (len(first) - len(first.lstrip(" "))) if indents else 0
    out: list[int] = []
    if not folded:
        *whole, rest = value.split("\n")
        for line in (*(f"{line}\n" for line in whole), *([rest] if rest else [])):
            newline = text.find("\n", at, end)
            at += min(indent, (newline if newline >= 0 else end) - at)
            if not text.startswith(line, at, end):
                break
            out += range(at, at + len(line))
            at += len(line)
        else:
            out.append(min(at, len(text)))
            return tuple(out)
        # The last line lacks the break that YAML gives it, or the text is not to be told.
        out, at = [], start
    at_start = True
    for char in value:
        if at_start:
            newline = text.find("\n", at, end)
            at += min(indent, (newline if newline >= 0 else end) - at)
            at_start = False
        if at >= end:
            if char != "\n":  # YAML ends a last line that the file does not
                return None
            out.append(min(at, len(text)))
            continue
        if text[at] != char and not (folded and char == " " and text[at] == "\n"):
            if not (folded and text[at] == "\n"):
                return None
            # A break that folding dropped: more of them follow.
            while at < end and text[at] == "\n":
                at += 1
            at += indent
            if at >= end or text[at] != char:
                return None
        out.append(at)
        at_start = text[at] == "\n"
        at += 1
    out.append(min(at, len(text)))
    return tuple(out)


def _read(path: Path) -> str:
    name = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or str(error)
        raise MlirulesError.at(name, f"cannot be read: {why}", code="file") from None
    if len(raw) > MAX_BYTES:
        raise MlirulesError.at(name, f"larger than {MAX_BYTES} bytes", code="too-large")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8")
        start = before.rfind("\n") + 1
        line = raw.split(b"\n")[before.count("\n")].decode("utf-8", errors="replace")
        span = Span(name, before.count("\n") + 1, len(before) - start + 1, 1, line)
        raise MlirulesError(
            Fault(
                span,
                "encoding",
                f"the byte 0x{raw[error.start]:02x} is not UTF-8",
                "save the file as UTF-8",
            )
        ) from None


def _bad_characters(source: SourceFile) -> list[Fault]:
    """Characters that YAML refuses, or that break lines in YAML but in no editor."""
    faults = []
    for found in _NOT_PRINTABLE.finditer(source.text):
        char = found.group()
        line, column = source.line_column(found.start())
        name = _BREAKS.get(char) or unicodedata.name(char, "")
        faults.append(
            Fault(
                source.span(line, column),
                "yaml-character",
                f"the character U+{ord(char):04X}{f' ({name})' if name else ''} is not allowed",
                "break lines with a plain line feed" if char in _BREAKS else "remove it",
            )
        )
        if len(faults) == MAX_FAULTS:
            break
    return faults


_NOT_PRINTABLE = re.compile(
    "[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


def _syntax_fault(source: SourceFile, error: yaml.MarkedYAMLError) -> Fault:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    problem = error.problem or "malformed YAML"
    context = f" ({error.context})" if error.context else ""
    if error.context_mark and (error.context or "").startswith("while scanning a quoted scalar"):
        # The place that matters is where the quote was opened, not where the file ends.
        line, column = error.context_mark.line + 1, error.context_mark.column + 1
        problem, context = "this quote is not closed", ""
    hint = ""
    if "mapping values are not allowed" in problem:
        hint = "a text that holds ': ' must be quoted"
    elif "\\t" in problem:
        hint = "indent with spaces, not with tabs"
    elif "could not find expected ':'" in problem:
        hint = "is this line indented too little, or a `key:` without its colon?"
    elif "expected <block end>" in problem:
        hint = "check the indentation, and quote texts that start with a special character"
    elif "cannot start any token" in problem:
        hint = "quote texts that start with a special character"
    elif "expected ',' or" in problem:
        hint = "close the bracket, or quote the text that holds it"
    return Fault(source.span(line, column), "yaml-syntax", problem + context, hint)


def load_yaml(path: str | Path, text: str | None = None) -> SourceFile:
    """Read a YAML file (or ``text`` as if it stood in ``path``) with marks.

    Raises :class:`MlirulesError` with every fault of the file: syntax, duplicate keys, tags,
    merge keys, words and numbers that YAML 1.1 reads differently from what they look like.
    """
    name = str(path)
    if text is None:
        text = _read(Path(path))
    elif len(text) > MAX_BYTES:
        raise MlirulesError.at(name, f"larger than {MAX_BYTES} bytes", code="too-large")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    source = SourceFile(name, text)
    faults = _bad_characters(source)
    if faults:
        raise MlirulesError(faults)
    composer = _Composer(text, source)
    try:
        node = _quick_node(text, source) or composer.get_single_node()
    except yaml.composer.ComposerError as error:
        mark = error.problem_mark or error.context_mark
        span = source.span(mark.line + 1, mark.column + 1, 3) if mark else Span(name)
        raise MlirulesError(
            [
                *composer.faults,
                Fault(
                    span, "yaml-documents", "a second YAML document starts here", "one rule a file"
                ),
            ]
        ) from None
    except yaml.MarkedYAMLError as error:
        raise MlirulesError([*composer.faults, _syntax_fault(source, error)]) from None
    except MlirulesError as error:
        raise MlirulesError([*composer.faults, *error.faults]) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise MlirulesError.at(name, f"malformed YAML: {error}", code="yaml-syntax") from None
    finally:
        composer.dispose()
    if node is None:
        raise MlirulesError(
            Fault(source.span(1, 1, 1), "empty", "the file is empty", "see `mlirules new --help`")
        )
    builder = _Builder(source)
    source.data = builder.build(node, ())
    faults = [*composer.faults, *builder.faults]
    if faults:
        raise MlirulesError(sorted(faults, key=lambda f: (f.span.line, f.span.column)))
    return source
