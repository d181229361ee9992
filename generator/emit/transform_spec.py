"""Matchers and their actions as the text of a preprocessing transform spec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlirules.generator.names import identifier, location
from mlirules.generator.render import Templates, shipped
from mlirules.language.rule import Rule

__all__ = ["ANY", "VALUE", "Entry", "spec_text"]

ANY = "!transform.any_op"
VALUE = "!transform.any_value"


@dataclass(frozen=True)
class Entry:
    """One matcher, its action, and the function that the action calls.

    ``dag`` is the region of ops to compare with, ``guards`` the match ops that ask about sizes
    (``%root`` is the op), ``uses`` those that ask about uses, in the action. ``head`` and ``body``
    are the function's signature (without its name) and its lines.
    """

    rule: Rule = field(compare=False)
    dag: str
    guards: tuple[str, ...]
    uses: tuple[str, ...]
    head: str
    body: str
    #: An executable that the function dispatches: its name and its text.
    executable: tuple[str, str] | None = None


TEMPLATE = "transform-spec.mlir.j2"


@dataclass(frozen=True)
class _View:
    """An entry as the template shows it: with the names that it has in the spec."""

    rule: str
    function: str
    #: Nothing before it has the same function and action.
    first: bool
    matcher: str
    dag: str
    guards: tuple[str, ...]
    uses: tuple[str, ...]
    head: str
    body: str
    #: The name of an executable that the function dispatches; its text, where it is the first.
    kernel: str
    executable: str


def spec_text(
    entries: Sequence[Entry], name: str, require: bool, templates: Templates | None = None
) -> str:
    """The spec called ``name``; with ``require`` it fails where nothing applied."""
    functions: dict[tuple[str, str, str], str] = {}
    counts: Counter[str] = Counter()
    matchers: Counter[str] = Counter()
    dispatched: set[str] = set()
    views = []
    for entry in entries:
        key = (entry.rule.name, entry.head, entry.body)
        stem = identifier(entry.rule.name)
        first = key not in functions
        if first:
            counts[stem] += 1
            functions[key] = f"mlirules_{stem}_{counts[stem]}"
        kernel, executable = entry.executable or ("", "")
        if not first or kernel in dispatched:
            executable = ""
        dispatched.add(kernel)
        matchers[stem] += 1
        views.append(
            _View(
                entry.rule.name,
                functions[key],
                first,
                f"match_{stem}_{matchers[stem]}",
                entry.dag,
                entry.guards,
                entry.uses,
                entry.head,
                entry.body,
                kernel,
                executable,
            )
        )
    rules = {entry.rule.name: entry.rule for entry in reversed(entries)}
    names = dict.fromkeys(entry.rule.name for entry in entries)
    return (templates or shipped()).render(
        TEMPLATE,
        name=name,
        require=require,
        rules=[{"name": rule, "location": location(rules[rule])} for rule in names],
        entries=views,
    )
