"""What can stand at a place of a rule or pipeline file: keys, ops, functions, symbols, names.

Told from the rows around the place, not from the file as a whole: while one types it is no YAML.
Lines and columns count from 0.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mlirules.drivers.iree import ops
from mlirules.drivers.iree.targets import CPU_ARCHITECTURES
from mlirules.drivers.quality.signatures import (
    Signature,
    of_function,
    of_op,
    operand_names,
)
from mlirules.language.builtins import FUNCTIONS
from mlirules.language.checks.expressions import RUNTIME_FUNCTIONS
from mlirules.language.config.model import ConfigDoc
from mlirules.language.kernel import KernelDoc, KernelVariant
from mlirules.language.model import RuleDoc, RunDoc, Test
from mlirules.language.notation.parser import ELEMENT_TYPES
from mlirules.language.pipeline import PIPELINES, Pipeline
from mlirules.language.pipeline_file import models
from mlirules.language.rulefiles import LIBRARY

__all__ = ["Item", "complete", "rule_names", "signature"]

#: Ops listed at once: an editor asks again when more has been typed.
MAX_OPS = 200
#: What a line of the match makes, behind the name of an alternative if it has one.
_MADE = r"[ -]*(?:[\w(), -]+:\s+)?['\"]?([\w, ]+?)(?:\[\w+\])?\s*="
_KINDS = ("vtensor<", "tensor<", "int", "float", "bool", "number", "list<", "constant ", "any")


@dataclass(frozen=True)
class Item:
    """One thing that can stand there. ``kind``: key, value, op, function, symbol, type, name."""

    label: str
    kind: str
    detail: str = ""
    documentation: str = ""
    #: What is put there, with ``${1:x}`` where the editor's cursor goes; empty: the label.
    snippet: str = ""


@dataclass(frozen=True)
class _Place:
    """Where the cursor is: the keys around it from the outermost, and the row up to it."""

    keys: tuple[str, ...]
    row: str
    word: str
    #: A key is being written, not a value.
    key: bool


def complete(path: str | Path, text: str, line: int, column: int) -> list[Item]:
    """What can stand at a place, best first. Nothing for files that hold neither."""
    pipeline = re.search(r"^pipeline:", text, re.MULTILINE) is not None
    started = not text.strip() or re.fullmatch(r"\w*", text.strip()) is not None
    if not pipeline and not started and not re.search(r"^(rule|kind|match):", text, re.MULTILINE):
        return []
    place = _place(text, line, column)
    found = _pipeline(place, path, text) if pipeline else _rule(place, path, text)
    unique = {item.label: item for item in found if item.label.startswith(place.word)}
    return list(unique.values())


def signature(text: str, line: int, column: int) -> tuple[Signature, int] | None:
    """The op or function in whose brackets a place is, and which of its values that is."""
    rows = text.split("\n")
    row = rows[line][:column] if line < len(rows) else ""
    depth = commas = 0
    for n in range(len(row) - 1, -1, -1):
        char = row[n]
        if char in ")]}":
            depth += 1
        elif char in "([{":
            if depth:
                depth -= 1
                continue
            name = re.search(r"([A-Za-z_][\w.]*)\s*$", row[:n])
            if char != "(" or name is None:
                commas = 0
                continue
            found = of_op(name[1], operand_names()) if "." in name[1] else of_function(name[1])
            return (found, commas) if found is not None else None
        elif char == "," and not depth:
            commas += 1
    return None


def _place(text: str, line: int, column: int) -> _Place:
    rows = text.split("\n")
    row = rows[line][:column] if line < len(rows) else ""
    keys: list[str] = []
    bare = re.match(r"\s*(?:- +)?\w*$", row) is not None
    width = len(row) - len(row.lstrip(" -")) if row.strip(" -") else len(row)
    inline = re.match(r"[ -]*([\w-]+):(?= |$)", row)
    if inline:
        keys.append(inline[1])
    for before in reversed(rows[:line]):
        found = re.match(r"([ -]*)([\w-]+):(?= |$)", before)
        if found and len(found[1]) < width:
            keys.insert(0, found[2])
            width = len(found[1])
        if not width:
            break
    flow = re.search(r"[{,]\s*(\w*)$", row) if inline and row.count("{") > row.count("}") else None
    word = re.search(r"[\w.:-]*$" if not inline or flow else r"[\w./:-]*$", row)
    said = word[0] if word else ""
    if flow:
        said = flow[1]
    return _Place(tuple(keys), row, said, bare or flow is not None)


def _model_keys(model: type[BaseModel], text: str = "") -> Iterator[Item]:
    for name, field in model.model_fields.items():
        if text and re.search(rf"^{name}:", text, re.MULTILINE):
            continue
        needed = "required" if field.is_required() else "optional"
        yield Item(name, "key", needed, field.description or "", f"{name}: ")


def _values(field: FieldInfo) -> Iterator[Item]:
    """The words that a field may hold."""
    left: list[object] = [field.annotation]
    while left:
        kind = left.pop()
        if typing.get_origin(kind) is typing.Literal:
            for value in typing.get_args(kind):
                yield Item(str(value), "value", "", field.description or "")
        else:
            left += list(typing.get_args(kind))
        if kind is bool:
            yield Item("true", "value")
            yield Item("false", "value")


# ---------------------------------------------------------------- rules


def _rule(place: _Place, path: str | Path, text: str) -> Iterator[Item]:
    kind = re.search(r"^kind:\s*(\w+)", text, re.MULTILINE)
    models: dict[str, type[BaseModel]] = {"kernel": KernelDoc, "config": ConfigDoc}
    doc = models.get(kind[1] if kind else "", RuleDoc)
    if re.search(r"\$\w*$", place.row):
        yield from (Item(word, "symbol", "a word of `with:`") for word in _words(text))
        return
    match place.keys:
        case ():
            yield from _model_keys(doc, text)
            if not re.search(r"^with:", text, re.MULTILINE):
                yield Item("with", "key", "optional", "Words that a family spells.", "with:\n  ")
        case ("tests", *_, "run") if place.key:
            yield from _model_keys(RunDoc)
        case ("tests",) if place.key:
            yield from _model_keys(Test)
            if re.search(r"\bany:|^with:", text, re.MULTILINE):
                yield Item("for", "key", "optional", "Members that the test is for.", "for: ")
        case ("kernel", "variants") if place.key:
            yield from _model_keys(KernelVariant)
        case ("tests", *_, "devices"):
            yield from _values(RunDoc.model_fields["devices"])
        case ("tests", *_, "because"):
            yield from (Item(said, "value") for said in _lines(text))
        case ("kind",):
            for name in ("conversion", "fusion", "kernel", "config"):
                yield Item(name, "value", "", RuleDoc.model_fields["kind"].description or "")
        case ("overlaps", *_):
            yield from (Item(name, "name", "a rule") for name in rule_names(path))
        case ("targets", *_):
            for name in ("cpu", "vulkan", "cuda", "hip", *(f"cpu:{n}" for n in CPU_ARCHITECTURES)):
                yield Item(name, "value", "a target")
        case ("commutative", *_):
            yield from _ops(place.word)
        case ("rule",):
            yield Item(Path(path).stem, "name", "the file's name")
        case ("types", *_):
            if ":" in place.row:
                for name in (*_KINDS, *sorted(ELEMENT_TYPES)):
                    yield Item(name, "type")
                yield from _symbols(text)
        case ("match", *_):
            yield from _symbols(text)
            yield from _ops(place.word)
        case ("where" | "let", *_):
            yield from _symbols(text)
            yield from _functions(FUNCTIONS)
            yield from (Item(name, "type", "element type") for name in sorted(ELEMENT_TYPES))
        case ("rewrite", *_):
            yield from _symbols(text)
            yield from _functions({*FUNCTIONS, *RUNTIME_FUNCTIONS})
            yield from (Item(name, "type", "element type") for name in sorted(ELEMENT_TYPES))
            yield from _ops(place.word)


def _words(text: str) -> Iterator[str]:
    """The words that a family spells."""
    section = ""
    for row in text.split("\n"):
        if head := re.match(r"(\w+):", row):
            section = head[1]
        if section == "with":
            yield from re.findall(r"^(?:with: *\{|  )(\w+):", row)


def _lines(text: str) -> Iterator[str]:
    """The lines that can refuse a program."""
    section = ""
    for row in text.split("\n"):
        if head := re.match(r"(\w+):", row):
            section = head[1]
        elif section in ("match", "where") and (
            item := re.match(r"\s+(?:- |[\w(), -]+: )(.+?)\s*$", row)
        ):
            if not item[1].endswith(":"):
                yield item[1].strip("'\"")
        elif section == "types" and (item := re.match(r"\s+\w+: (.+?)\s*$", row)):
            yield item[1]


def _symbols(text: str) -> Iterator[Item]:
    """The names that a rule's types, let and match bind, each with what is said of it."""
    found: dict[str, str] = {}
    section = ""
    for row in text.split("\n"):
        head = re.match(r"(\w+):", row)
        if head:
            section = head[1]
        if section in ("types", "let"):
            inside = row[len(head[0]) :] if head else row
            for item in re.finditer(r"(?:^|[{,])\s*(\w+):\s*([^,{}]+(?:<[^>]*>)?)", inside):
                found[item[1]] = item[2].strip()
                shape = re.search(r"<([^<>]*)>", item[2])
                for word in re.findall(r"[A-Za-z_]\w*", shape[1]) if shape else ():
                    if word not in ELEMENT_TYPES and word != "x":
                        found.setdefault(word, f"of {item[1]}: {item[2].strip()}")
        elif section == "match" and (made := re.match(_MADE, row)):
            for word in re.findall(r"[A-Za-z_]\w*", made[1]):
                found.setdefault(word, "a result of the match")
    yield from (Item(name, "symbol", said) for name, said in found.items())


def _functions(names: Iterable[str] | Mapping[str, object]) -> Iterator[Item]:
    for name in sorted(names):
        found = of_function(name)
        if found is not None:
            yield Item(name, "function", str(found), found.documentation, _snippet(found))


def _ops(word: str) -> Iterator[Item]:
    dialect, dot, _ = word.partition(".")
    if not dot:
        for name in ops.known_dialects():
            if name.startswith(word):
                yield Item(f"{name}.", "op", "dialect")
        return
    near = [name for name in ops.registered_ops(dialect) if name.startswith(word)]
    named = operand_names()
    for name in near[:MAX_OPS]:
        found = of_op(name, named)
        if found is not None:
            yield Item(name, "op", str(found), found.documentation, _snippet(found))


def _snippet(found: Signature) -> str:
    words = ", ".join(f"${{{n}:{word}}}" for n, word in enumerate(found.parameters, 1))
    return f"{found.name}({words or '$1'})"


def rule_names(path: str | Path) -> list[str]:
    """The rules beside a file, then those that ship."""
    own = []
    folder = Path(path).parent
    if folder.is_dir():
        for file in sorted(folder.glob("*.yaml"))[:500]:
            with file.open(encoding="utf-8", errors="replace") as opened:
                found = re.search(r"^rule:\s*([\w-]+)", opened.read(4096), re.MULTILINE)
            if found:
                own.append(found[1])
    return [*own, *sorted(file.stem for file in LIBRARY.rglob("*.yaml"))]


# ---------------------------------------------------------------- pipelines


def _pipeline(place: _Place, path: str | Path, text: str) -> Iterator[Item]:
    extends = re.search(r"^extends:", text, re.MULTILINE) is not None
    names = [file.stem for file in sorted(PIPELINES.glob("*.yaml"))]
    match place.keys:
        case ():
            yield from _model_keys(models()["Extension" if extends else "Stages"], text)
            if not extends:
                yield from (
                    i for i in _model_keys(models()["Extension"], text) if i.label == "extends"
                )
        case (*_, "expect") | (*_, "expect_rules", _) if place.key:
            yield from _model_keys(models()["Expect"])
        case ("stages",) | (*_, "stages") if place.key:
            yield from _model_keys(models()["Stage"])
        case ("insert",) if place.key:
            yield from _model_keys(models()["Insertion"])
        case ("extends",):
            yield from (Item(name, "name", "a shipped pipeline") for name in names)
        case (*_, "rules"):
            yield from (Item(name, "name", "a rule set") for name in _sets(Path(path).parent))
        case (*_, "only" | "skip" | "expect_rules"):
            yield from (Item(name, "name", "a rule") for name in rule_names(path))
        case ("without",) | (*_, "before" | "after"):
            base = re.search(r"^extends:\s*([\w./-]+)", text, re.MULTILINE)
            if base and base[1] in names:
                stages = Pipeline.load(base[1]).stages
                yield from (Item(s.name, "name", "a stage") for s in stages if s.name)
        case ("targets", *_):
            yield from (Item(name, "value") for name in ("cpu", "vulkan", "cuda", "hip"))
        case (*_, last) if last in models()["Stage"].model_fields:
            yield from _values(models()["Stage"].model_fields[last])


def _sets(folder: Path) -> Iterator[str]:
    if folder.is_dir():
        for found in sorted(folder.iterdir())[:500]:
            if found.is_dir() and any(found.glob("*.yaml")):
                yield found.name
    for found in sorted({file.parent for file in LIBRARY.rglob("*.yaml")}):
        yield str(found.relative_to(LIBRARY))
