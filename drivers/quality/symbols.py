"""Where the names of a rule file stand: its outline, uses of a name, other names, mended faults.

Lines and columns count from 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from mlirules.drivers.quality.editor import Part
from mlirules.language.consent import ships
from mlirules.language.family import members
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.notation.parser import ELEMENT_TYPES
from mlirules.language.reading import load_yaml
from mlirules.language.source import SourceFile

__all__ = ["Edit", "Symbol", "fixes", "new_name", "outline", "references", "rename", "tests"]

#: So many files of a folder are looked at for the uses of a rule's name.
_FILES = 2000
_SECTIONS = ("types", "match", "let", "where", "rewrite", "kernel")
_NAME = re.compile(r"[A-Za-z_]\w*")
_RULE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
#: Keys of rules and pipelines whose values, or keys, are names of rules.
_NAMING = ("rule", "overlaps", "only", "skip", "expect_rules")


@dataclass(frozen=True)
class Edit:
    """A part of a file, and what to write there."""

    path: str
    part: Part
    text: str


@dataclass
class Symbol:
    """A part of a rule file that has a name."""

    name: str
    kind: str
    part: Part
    detail: str = ""
    below: list[Symbol] = field(default_factory=list)


def outline(path: str | Path, text: str) -> list[Symbol]:
    """The rule with its sections, types, lines and tests; nothing where there is no YAML."""
    source, data = _mapping(path, text)
    out: list[Symbol] = []
    for key in data:
        if not isinstance(key, str) or (key,) not in source.key_marks:
            continue
        made = Symbol(key, "section", _part(source, (key,), key=True))
        made.below = list(_below(source, key, data[key]))
        if made.below or key in ("rule", "pipeline"):
            shown = str(data[key]) if key in ("rule", "pipeline") else ""
            made.detail = shown
            out.append(made)
    return out


def _mapping(path: str | Path, text: str) -> tuple[SourceFile, dict[object, object]]:
    """The file and what it says; nothing where there is no YAML, or where it is no mapping."""
    try:
        source = load_yaml(path, text)
    except MlirulesError:
        source = load_yaml(path, "{}")
    return source, source.data if isinstance(source.data, dict) else {}


def _below(source: SourceFile, key: str, value: object) -> Iterator[Symbol]:
    if isinstance(value, dict) and key in ("types", "let", "with"):
        for name, said in value.items():
            yield Symbol(str(name), "symbol", _part(source, (key, name), key=True), str(said))
    elif isinstance(value, dict) and set(value) == {"any"}:
        yield _alternatives(source, (key,), value["any"])
    elif isinstance(value, list):
        for n, item in enumerate(value):
            if isinstance(item, dict) and set(item) == {"any"}:
                yield _alternatives(source, (key, n), item["any"])
            elif isinstance(item, dict):
                name = next((str(item[k]) for k in ("name", "phase", "body") if k in item), key)
                kind = "test" if key == "tests" else "line"
                yield Symbol(name.split("\n")[0][:80], kind, _part(source, (key, n)))
            elif isinstance(item, str) and key in ("match", "where", "rewrite"):
                yield Symbol(item[:80], "line", _part(source, (key, n)))


def _alternatives(source: SourceFile, at: tuple[str | int, ...], value: object) -> Symbol:
    """Lines of a family that stand for each other, under their names."""
    out = Symbol("any", "section", _part(source, (*at, "any"), key=True))
    named = list(value.items()) if isinstance(value, dict) else []
    if isinstance(value, list):
        named = [(n, item) for n, item in enumerate(value)]
    for name, item in named:
        first = item[0] if isinstance(item, list) and item else item
        place = _part(source, (*at, "any", name), key=isinstance(name, str))
        label = name if isinstance(name, str) else str(first)
        out.below.append(Symbol(label[:80], "line", place, str(first).split("\n")[0][:80]))
    return out


def _part(source: SourceFile, at: tuple[str | int, ...], *, key: bool = False) -> Part:
    span = source.span_at(at, key=key)
    line, start = max(0, span.line - 1), max(0, span.column - 1)
    return Part(line, start, start + span.length)


def tests(path: str | Path, text: str) -> list[tuple[str, Part]]:
    """The names of a rule's tests, with their places."""
    found = [s for s in outline(path, text) if s.name == "tests"]
    return [(test.name, test.part) for s in found for test in s.below]


# ---------------------------------------------------------------- uses of a name


def references(path: str | Path, text: str, word: str, root: Path | None = None) -> list[Edit]:
    """All places where a symbol of the rule stands; of a rule's name, also those in other files.

    ``root`` is the folder that is searched for other files. The texts of the edits are the word.
    """
    source, data = _mapping(path, text)
    if data.get("rule") == word:
        return [*_names(str(path), text, word), *_elsewhere(Path(path), word, root)]
    if not _NAME.fullmatch(word) or word in ELEMENT_TYPES or "rule" not in data:
        return []
    words = data.get("with")
    if isinstance(words, dict) and word in words:
        span = source.span_at(("with", word), key=True)
        key = Part(span.line - 1, span.column - 1, span.column - 1 + len(word))
        said = re.compile(rf"\$({word})(?!\w)")
        rows = enumerate(text.split("\n"))
        found = [Part(n, m.start(1), m.end(1)) for n, row in rows for m in said.finditer(row)]
        places = sorted([key, *found], key=lambda p: (p.line, p.start))
        return [Edit(str(path), part, word) for part in places]
    return [Edit(str(path), part, word) for part in _uses(text, word)]


def _uses(text: str, word: str) -> Iterator[Part]:
    """Where a symbol stands: in the lines of the notation, in bodies, and in reasons of tests."""
    rows = text.split("\n")
    found = re.compile(rf"(?<![\w.]){re.escape(word)}(?![\w-])(?!\.[A-Za-z_])")
    section = ""
    because = re.compile(r"\s*(?:- )?because:\s")
    block = -1
    for n, row in enumerate(rows):
        if head := re.match(r"([A-Za-z_]\w*):", row):
            section = head[1]
        indent = len(row) - len(row.lstrip())
        if section == "tests":
            if block >= 0 and row.strip() and indent <= block:
                block = -1
            if block < 0 and re.search(r":\s*[|>][-+]?\s*$", row):
                block = indent
            if block >= 0 or not because.match(row):
                continue
            start = row.index("because:") + len("because:")
        elif section in _SECTIONS:
            start = len(head[0]) if head else 0
        else:
            continue
        cut = re.search(r"\s#", row)
        text_end = cut.start() if cut else len(row)
        quoted = [m.span() for m in re.finditer(r'"(?:[^"\\]|\\.)*"', row)]
        for m in found.finditer(row, start, text_end):
            if not any(a < m.start() < b for a, b in quoted):
                yield Part(n, m.start(), m.end())


def _names(path: str, text: str, word: str) -> list[Edit]:
    """Where a rule's name stands in a file: as its name, in `overlaps:`, in a stage's filters."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        return []
    out: list[Edit] = []
    left: list[tuple[yaml.Node | None, bool]] = [(root, False)]
    while left:
        node, naming = left.pop()
        if isinstance(node, yaml.ScalarNode):
            if naming and node.value == word:
                quote = int(node.style in ("'", '"'))
                mark = node.start_mark
                start = mark.column + quote
                out.append(Edit(path, Part(mark.line, start, start + len(word)), word))
        elif isinstance(node, yaml.SequenceNode):
            left += [(item, naming) for item in node.value]
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                named = key.value in _NAMING
                left.append((value, named))
                if naming:
                    left.append((key, True))
    return sorted(out, key=lambda e: (e.part.line, e.part.start))


def _elsewhere(path: Path, word: str, root: Path | None) -> Iterator[Edit]:
    folder = root if root is not None else path.parent
    if not folder.is_dir():
        return
    for n, file in enumerate(sorted(folder.rglob("*.yaml"))):
        if n >= _FILES:
            return
        if file.resolve() == path.resolve() or ships(file):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if word in text:
            yield from _names(str(file), text, word)


def rename(path: str | Path, text: str, word: str, to: str, root: Path | None = None) -> list[Edit]:
    """The edits that give a symbol or a rule another name. Raises :class:`MlirulesError`."""
    found = references(path, text, word, root)
    if not found:
        raise MlirulesError.at(str(path), f"{word!r} is no symbol of the rule, nor its name")
    if problem := new_name(path, text, word, to):
        raise MlirulesError.at(str(path), problem)
    return [Edit(edit.path, edit.part, to) for edit in found]


def new_name(path: str | Path, text: str, word: str, to: str) -> str:
    """Why a name cannot be ``to``; empty where it can."""
    data = load_yaml(path, text).data
    if isinstance(data, dict) and data.get("rule") == word:
        if len(members(load_yaml(path, text))) > 1:
            line = load_yaml(path, text).span_at(("rule",)).line
            return f"line {line}: {word!r} names several rules, which others may name: by hand"
        return "" if _RULE.fullmatch(to) else f"{to!r}: lower-case words and digits joined by '-'"
    if not _NAME.fullmatch(to) or to in ELEMENT_TYPES or to in ("true", "false", "none", "_"):
        return f"{to!r} is no name of a symbol"
    return f"{to!r} has a meaning already" if any(_uses(text, to)) else ""


# ---------------------------------------------------------------- what faults suggest


def fixes(fault: Fault, text: str) -> list[tuple[str, list[Edit]]]:
    """What a fault suggests, as edits of the text: a title, and what to write where."""
    said, span = fault.suggestion, fault.span
    rows = text.split("\n")
    if not said or not 0 < span.line <= len(rows):
        return []
    row = rows[span.line - 1]
    here = Part(span.line - 1, span.column - 1, span.column - 1 + span.length)

    def edit(part: Part, written: str) -> list[Edit]:
        return [Edit(span.path, part, written)]

    out: list[tuple[str, list[Edit]]] = []
    if said.startswith("did you mean"):
        out += [(f"Write {w}", edit(here, w)) for w in re.findall(r"'([^']+)'", said)]
    written = _WRITE.match(said)
    if fault.code == "not-summed":
        sign = re.search(r"(?<=[\s\])])=(?=\s)", row)
        if sign:
            part = Part(span.line - 1, sign.start(), sign.end())
            out.append(("Sum: write +=", edit(part, "+=")))
    elif written:
        word = next(group for group in written.groups() if group)
        out.append((f"Write {word}", edit(here, word)))
    condition = re.search(r"(?:say|write) `([^`]+)` in `where:`", said)
    if condition:
        out.append((f"Say {condition[1]} in where", [_condition(span.path, rows, condition[1])]))
    if said.startswith("remove it") and _alone(row):
        whole = Part(span.line - 1, 0, len(row) + 1)
        out.append(("Remove the line", edit(whole, "")))
    if fault.code == "no-numbers" and (place := _positive(rows)) is not None:
        line, indent = place
        numbers = f"{' ' * indent}run: {{devices: [cpu]}}\n"
        out.append(("Compare numbers on the cpu", edit(Part(line, 0, 0), numbers)))
    if fault.code == "missing-key" and (key := re.search(r"'(\w+)'", fault.message)):
        blanks = " " * (len(row) - len(row.lstrip(" -")))
        part = Part(span.line - 1, len(row), len(row))
        out.append((f"Add {key[1]}", edit(part, f"\n{blanks}{key[1]}: ")))
    return out


_WRITE = re.compile(
    r"(?:write|say) (?:`([^`]+)`|([\w+*|./=-]+(?:\([^)]*\))?:?))"
    r"(?:, without its brackets)?(?:$|[;,])"
)


def _alone(row: str) -> bool:
    """Whether a row is one entry of a list or mapping, and nothing goes on behind it."""
    return re.fullmatch(r"\s+(?:- .*|\w+: [^|>{[].*)", row) is not None


def _condition(path: str, rows: list[str], condition: str) -> Edit:
    """A further line of `where:`, or the section where there is none."""
    for n, row in enumerate(rows):
        if re.fullmatch(r"where:\s*(?:#.*)?", row):
            return Edit(path, Part(n + 1, 0, 0), f"  - {condition}\n")
        if found := re.match(r"where:\s*\[", row):
            return Edit(path, Part(n, found.end(), found.end()), f"{condition}, ")
    before = next((n for n, row in enumerate(rows) if row.startswith(("rewrite:", "tests:"))), 0)
    return Edit(path, Part(before, 0, 0), f"where:\n  - {condition}\n")


def _positive(rows: list[str]) -> tuple[int, int] | None:
    """Where a further key of the first test with `input:` goes, and its column."""
    for n, row in enumerate(rows):
        found = re.match(r"(\s+)(?:- )?input:", row)
        if found:
            indent = len(row) - len(row.lstrip(" -"))
            return n, indent
    return None
