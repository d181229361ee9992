"""What the typed model refuses, told at its place in the file and in words."""

from __future__ import annotations

import copy
import re
from typing import Any

import pydantic

from mlirules.language.faults import Fault, Span, did_you_mean
from mlirules.language.kernel import Kernel, KernelDoc, KernelObject, KernelVariant
from mlirules.language.model import Body, DraftDoc, RuleDoc, RunDoc, Test
from mlirules.language.reading import MAX_FAULTS
from mlirules.language.source import Path_, SourceFile

_PLACEHOLDERS: dict[str, object] = {
    "rule": "unnamed",
    "kind": "conversion",
    "summary": "missing",
    "reason": "missing",
    "name": "missing",
}

_TYPES = {
    "string_type": ("a text", "write a text; quote it if it looks like a number or a list"),
    "int_type": ("a whole number", ""),
    "int_from_float": ("a whole number", ""),
    "float_type": ("a number", ""),
    "finite_number": ("a finite number", ""),
    "bool_type": ("true or false", ""),
    "list_type": ("a list", "put each item on a line of its own, after '- '"),
    "dict_type": ("a mapping", "write `key: value` lines"),
    "model_type": ("a mapping", "write `key: value` lines"),
    "model_attributes_type": ("a mapping", "write `key: value` lines"),
}

_MISSING = {
    "rule": "name it as the file: lower-case words and digits joined by '-'",
    "kind": "`kind: conversion` (op to op), `kind: fusion` (DAG to DAG) or `kind: kernel`",
    "kernel": "a kernel rule says in `kernel:` what is dispatched in place of the match",
    "inputs": "list the tensors that the kernel reads",
    "variants": "write the kernel once for each kind of target",
    "targets": "list the kinds of target that the variant is for",
    "grid": "say how many workgroups there are: `grid: [M // TM]`",
    "body": "write the MLIR of one workgroup",
    "summary": "say in one sentence what the rule does",
    "reason": "say why the rule exists: what it makes possible or faster",
    "match": "list the ops to find, the root last: `- c = torch.aten.mm(a, b)`",
    "rewrite": "list the equations that define the root's results",
    "tests": "every rule has at least one positive and one negative test",
    "name": "say what the test shows",
}


def typed(data: object, *, draft: bool = False) -> tuple[RuleDoc | None, list[Any]]:
    """The rule as the typed model reads it, or the errors of it. A draft may lack its tests."""
    kernel = isinstance(data, dict) and data.get("kind") == "kernel"
    model = KernelDoc if kernel else DraftDoc if draft else RuleDoc
    try:
        return model.model_validate(data), []
    except pydantic.ValidationError as error:
        return None, list(error.errors(include_url=False))[:MAX_FAULTS]


def mended(data: dict[str, object], errors: list[object], *, draft: bool = False) -> RuleDoc | None:
    """The rule without the keys that the model refused, or None when too little is left."""
    data = copy.deepcopy(data)
    for error in errors:
        loc = location(error)
        holder: Any = data
        for part in loc[:-1]:
            try:
                holder = holder[part]
            except (KeyError, IndexError, TypeError):
                break
        else:
            if not loc or not isinstance(holder, dict):
                return None
            if loc[-1] in _PLACEHOLDERS:
                holder[loc[-1]] = _PLACEHOLDERS[loc[-1]]
            elif loc == ("tests",):
                holder["tests"] = [{"name": "missing"}]
            else:
                holder.pop(loc[-1], None)
    return typed(data, draft=draft)[0]


def location(error: Any) -> Path_:
    """Where the model refused the file, without pydantic's names for branches and keys."""
    loc: list[str | int] = [
        p
        for p in error["loc"]
        if not (isinstance(p, str) and (p in ("Body", "[key]") or "constrained-" in p))
    ]
    if loc and loc[0] == "let":
        loc = loc[:2]
    if loc and loc[0] == "rewrite" and len(loc) > 2 and error["type"] == "model_type":
        loc = loc[:2]
    return tuple(loc)


def _model_at(loc: Path_) -> Any:
    match loc:
        case ("tests", int(), "run", *_):
            return RunDoc
        case ("tests", *_):
            return Test
        case ("rewrite", *_):
            return Body
        case ("kernel", "variants", int(), "object", *_):
            return KernelObject
        case ("kernel", "variants", int(), *_):
            return KernelVariant
        case ("kernel", *_):
            return Kernel
    return RuleDoc


def _shown(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "the truth value " + ("true" if value else "false")
        case int() | float():
            return f"the number {value:.40g}" if isinstance(value, float) else _number(value)
        case str():
            text = value if len(value) <= 40 else value[:37] + "..."
            return f"the text {text!r}"
        case list():
            return "a list"
    return "a mapping"


def _number(value: int) -> str:
    # Python refuses to print very long ones.
    return f"the number {value}" if abs(value) < 10**30 else "a very large number"


def _what(loc: Path_) -> str:
    """The place in words: `match`, an item of `match`."""
    names = [p for p in loc if isinstance(p, str)]
    if loc and isinstance(loc[-1], int):
        return f"an item of `{names[-1]}`"
    return f"`{names[-1]}`" if names else "the file"


def model_fault(
    source: SourceFile, error: Any, *, loc: Path_ | None = None, keys: list[str] | None = None
) -> list[Fault]:
    """What one error of pydantic means for the file, located; nothing when another says it better.

    ``loc`` and ``keys``: the place, and the keys known there, for models other than that of
    rewrite rules.
    """
    loc = location(error) if loc is None else loc
    kind, found, context = error["type"], error.get("input"), error.get("ctx", {})
    if error["loc"] and error["loc"][-1] == "[key]":
        span = source.span_at(loc, key=True)
        return [
            Fault(
                span,
                "bad-name",
                f"{str(loc[-1])[:60]!r} is not a name",
                "up to 60 letters, digits and _, not starting with a digit",
            )
        ]
    # A union reports every branch: keep the one that fits what was written.
    if loc == ("kernel",) and kind == "extra_forbidden":
        return [
            Fault(
                source.span_at(loc, key=True),
                "unknown-key",
                "`kernel:` belongs to a rule of `kind: kernel`",
                "write `kind: kernel`",
            )
        ]
    if loc == ("rewrite",) and source.data.get("kind") == "kernel":
        return [
            Fault(
                source.span_at(loc, key=True),
                "unknown-key",
                "a rule of `kind: kernel` has no `rewrite:`",
                "`kernel:` stands in its place",
            )
        ]
    if loc[:1] == ("rewrite",) and len(error["loc"]) > 2:
        value = source.data["rewrite"][loc[1]]
        if not isinstance(value, (dict, str)):
            return [
                Fault(
                    source.span_at(loc[:2]),
                    "wrong-type",
                    f"an item of `rewrite` is an equation or a mapping with `body:`, "
                    f"not {_shown(value)}",
                )
            ]
        if isinstance(value, dict) != ("Body" in error["loc"]):
            return []
    if loc[:1] == ("let",) and len(loc) == 2:
        return [
            Fault(
                source.span_at(loc),
                "wrong-type",
                f"a `let` value is an expression, a number or a truth value, "
                f"not {_shown(source.data['let'][loc[1]])}",
                "quote lists: '[1, 2]'" if isinstance(found, list) else "",
            )
        ]
    if kind == "missing":
        return [
            Fault(
                _owner_span(source, loc[:-1]),
                "missing-key",
                f"the key {loc[-1]!r} is missing",
                _MISSING.get(str(loc[-1]), f"add `{loc[-1]}:`"),
            )
        ]
    if kind == "extra_forbidden":
        known = list(_model_at(loc[:-1]).model_fields) if keys is None else keys
        word = str(loc[-1])[:100]
        hint = did_you_mean(word, known) or _elsewhere(word) or "known keys: " + ", ".join(known)
        return [Fault(source.span_at(loc, key=True), "unknown-key", f"unknown key {word!r}", hint)]
    span = source.span_at(loc)
    if found is None or found in ("", [], {}):  # nothing to point at but the key
        span = source.span_at(loc, key=True)
    if kind in _TYPES:
        wanted, hint = _TYPES[kind]
        if found is None:
            hint = "write a value, or remove the key"
        if kind == "list_type" and isinstance(found, str):
            hint = f"put it in a list: `- {found.strip().splitlines()[0][:40]}`" if found else ""
        return [
            Fault(span, "wrong-type", f"{_what(loc)} must be {wanted}, not {_shown(found)}", hint)
        ]
    if kind == "literal_error":
        choices = context.get("expected", "")
        near = did_you_mean(str(found), re.findall(r"'([^']*)'", choices))
        return [
            Fault(span, "bad-value", f"{_what(loc)} must be {choices}, not {_shown(found)}", near)
        ]
    if kind == "string_pattern_mismatch":
        fixed = re.sub(r"[^a-z0-9]+", "-", str(found).lower()).strip("-")
        return [
            Fault(
                span,
                "bad-name",
                f"{str(found)[:60]!r} is not a name: lower-case words and digits joined by '-'",
                f"write {fixed[:60]}" if fixed else "",
            )
        ]
    if kind in ("too_short", "string_too_short"):
        least = context["min_length"]
        if not found:
            return [Fault(span, "empty", f"{_what(loc)} is empty", _MISSING.get(str(loc[-1]), ""))]
        unit = "characters" if kind.startswith("string") else "items"
        return [Fault(span, "bad-value", f"{_what(loc)} has fewer than {least} {unit}")]
    if kind in ("too_long", "string_too_long"):
        unit = "characters" if kind.startswith("string") else "items"
        most = context["max_length"]
        return [Fault(span, "too-large", f"{_what(loc)} has more than {most} {unit}")]
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = context.get("ge", context.get("le"))
        side = "at least" if "ge" in context else "at most"
        return [
            Fault(span, "bad-value", f"{_what(loc)} must be {side} {bound}, not {_shown(found)}")
        ]
    return [Fault(span, "wrong-type", f"{_what(loc)}: {error['msg']}")]


def _elsewhere(word: str) -> str:
    """Where a key belongs that stands in the wrong mapping."""
    for name, model in (("a test", Test), ("a test's `run:`", RunDoc), ("the rule", RuleDoc)):
        if word in model.model_fields:
            return f"{word!r} is a key of {name}"
    return ""


def _owner_span(source: SourceFile, parent: Path_) -> Span:
    """The first key of the mapping that lacks something."""
    first = next(
        (k for k in source.key_marks if len(k) == len(parent) + 1 and k[:-1] == parent), None
    )
    if first is not None:
        return source.span_at(first, key=True)
    return source.span_at(parent) if parent else source.span(1, 1)
