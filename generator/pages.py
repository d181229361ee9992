"""Documentation made from the rules themselves: nothing in it can be out of date."""

from __future__ import annotations

from collections.abc import Sequence

from mlirules.generator import pdll
from mlirules.generator.scalars import SIMPLE
from mlirules.rules import schema as rule_schema
from mlirules.rules.evaluate import FUNCTIONS
from mlirules.rules.rule import Rule


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


def page(rule: Rule) -> str:
    """One rule's page, in Markdown."""
    return pdll.render("page.md.j2", rule=rule, doc=rule.doc, location=pdll.location(rule))


def index(rules: Sequence[Rule]) -> str:
    """The list of all pages, in Markdown."""
    return pdll.render("index.md.j2", rules=sorted(rules, key=lambda r: r.origin))
