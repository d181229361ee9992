"""Documentation made from the rules themselves: nothing in it can be out of date."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mlirules.generator.render import render
from mlirules.language import schema as rule_schema
from mlirules.language.builtins import FUNCTIONS
from mlirules.language.functions import SIMPLE
from mlirules.language.source import SourceFile


def schema() -> str:
    """The JSON Schema of a rule file, for editors."""
    return rule_schema.text()


def functions() -> list[tuple[str, str, str]]:
    """Every function rules can use: how it is called, where it may stand, what it means."""
    rows = [
        (f.example or f"{f.name}({_arity(f.arity)})", "let, where, lists", _sentence(f.doc))
        for _, f in sorted(FUNCTIONS.items())
    ]
    names = ("x", "y", "z")
    rows += [
        (f"{f.name}({', '.join(names[: f.arity])})", "index equations", _sentence(f.doc))
        for _, f in sorted(SIMPLE.items())
    ]
    return rows


def _arity(arity: tuple[int, int]) -> str:
    low, high = arity
    return str(low) if low == high else f"{low} to {high}" if high >= low else f"{low} or more"


def _sentence(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True)
class Page:
    """One rule's page: where it stands and what the index says of it."""

    name: str
    folder: str
    file: str
    kind: str
    summary: str
    text: str
    #: What is known of its equality; None: nothing that still holds.
    proof: str | None = None


def page(
    source: SourceFile,
    doc: Any,
    origin: str,
    example: Sequence[str] = (),
    proof: str | None = None,
) -> Page:
    """One rule's page, in Markdown.

    ``origin`` is the rule's path in the library; ``example`` a program's name, and it before and
    after the rule; ``proof`` what is known of its equality.
    """
    folder, _, _ = origin.rpartition("/")
    text = render(
        "page.md.j2",
        doc=doc,
        origin=origin,
        example=example,
        proof=proof,
        definition=_definition(source),
        location=Path(source.path).name,
    )
    return Page(doc.rule, folder or ".", f"{doc.rule}.md", doc.kind, doc.summary, text, proof)


#: What the page says in other places.
_ELSEWHERE = ("rule", "kind", "summary", "reason", "tags", "targets", "benefit", "tests", "notes")


def _definition(source: SourceFile) -> str:
    """The lines of the file that say what the rule does."""
    if source.family:  # its lines stand among those of others
        told = {key: value for key, value in source.data.items() if key not in _ELSEWHERE}
        return yaml.safe_dump(told, sort_keys=False, width=100, allow_unicode=True).rstrip()
    marks = {path[0]: mark.line for path, mark in source.key_marks.items() if len(path) == 1}
    lines = source.text.split("\n")
    starts = sorted(marks.items(), key=lambda item: item[1])
    kept: list[str] = []
    for (key, first), (_, last) in zip(starts, [*starts[1:], ("", len(lines) + 1)], strict=True):
        if key not in _ELSEWHERE:
            kept += lines[first - 1 : last - 1]
    return "\n".join(kept).rstrip()


def index(pages: Sequence[Page]) -> str:
    """The list of all pages, by folder, in Markdown."""
    ordered = sorted(pages, key=lambda page: (page.folder, page.name))
    return render("index.md.j2", pages=ordered)
