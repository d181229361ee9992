"""Matchers and their actions as the text of a preprocessing transform spec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlirules.generator.names import identifier, location
from mlirules.generator.render import Templates, shipped
from mlirules.language.rule import Rule

__all__ = ["Bounds", "Entry", "Function", "Guard", "Reached", "Use", "spec_text"]


@dataclass(frozen=True)
class Reached:
    """A value of the match as seen from its root op.

    From the root on to the ops that produce the operands ``through``, one after the other, and
    there it is the operand of this ``number``; or it is the root's own result of this number.
    """

    through: tuple[int, ...]
    number: int
    result: bool = False


@dataclass(frozen=True)
class Bounds:
    """What a size must be; None asks nothing."""

    low: int | None = None
    high: int | None = None
    multiple: int | None = None


@dataclass(frozen=True)
class Guard:
    """A question about a size, the dim ``axis`` of a value: the matcher asks it."""

    value: Reached
    axis: int
    bounds: Bounds


@dataclass(frozen=True)
class Use:
    """A value, its op's result of this number, that has one use: the action asks about it.

    The matcher cannot: it may not look at the users of a value.
    """

    value: Reached
    result: int


@dataclass(frozen=True)
class Function:
    """What an action calls: arguments (name, type), the types of results, and the lines within."""

    arguments: tuple[tuple[str, str], ...]
    results: str
    body: str
    #: An executable that it dispatches: its name and its text.
    executable: tuple[str, str] | None = None


@dataclass(frozen=True)
class Entry:
    """One matcher, its action, and the function that the action calls.

    ``dag`` is the region of ops to compare with.
    """

    rule: Rule = field(compare=False)
    dag: str
    guards: tuple[Guard, ...]
    uses: tuple[Use, ...]
    function: Function


TEMPLATE = "transform-spec.mlir.j2"


@dataclass(frozen=True)
class _View:
    """An entry as the template shows it: with the names that it has in the spec."""

    rule: str
    #: The function's name, and what it is.
    name: str
    function: Function
    #: Nothing before it has the same function and action.
    first: bool
    matcher: str
    dag: str
    guards: tuple[Guard, ...]
    uses: tuple[Use, ...]
    #: The name of an executable that the function dispatches; its text, where it is the first.
    kernel: str
    executable: str


def spec_text(
    entries: Sequence[Entry], name: str, require: bool, templates: Templates | None = None
) -> str:
    """The spec called ``name``; with ``require`` it fails where nothing applied."""
    functions: dict[tuple[str, Function, tuple[Use, ...]], str] = {}
    counts: Counter[str] = Counter()
    matchers: Counter[str] = Counter()
    dispatched: set[str] = set()
    views = []
    for entry in entries:
        key = (entry.rule.name, entry.function, entry.uses)
        stem = identifier(entry.rule.name)
        first = key not in functions
        if first:
            counts[stem] += 1
            functions[key] = f"mlirules_{stem}_{counts[stem]}"
        kernel, executable = entry.function.executable or ("", "")
        if not first or kernel in dispatched:
            executable = ""
        dispatched.add(kernel)
        matchers[stem] += 1
        views.append(
            _View(
                entry.rule.name,
                functions[key],
                entry.function,
                first,
                f"match_{stem}_{matchers[stem]}",
                entry.dag,
                entry.guards,
                entry.uses,
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
