"""Matchers and their actions as the text of a preprocessing transform spec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlirules.generator.names import identifier, location
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


def spec_text(entries: Sequence[Entry], name: str, require: bool) -> str:
    """The spec called ``name``; with ``require`` it fails where nothing applied."""
    functions: dict[tuple[str, str, str], str] = {}
    counts: Counter[str] = Counter()
    dispatched: set[str] = set()
    parts: list[str] = []
    pairs = []
    for entry in entries:
        key = (entry.rule.name, entry.head, entry.body)
        stem = identifier(entry.rule.name)
        if key not in functions:
            counts[stem] += 1
            functions[key] = f"mlirules_{stem}_{counts[stem]}"
            if entry.executable is not None and entry.executable[0] not in dispatched:
                dispatched.add(entry.executable[0])
                parts.append(entry.executable[1])
            parts += _function(entry, functions[key], name)
            parts += _action(entry, functions[key])
        counts[f"match {stem}"] += 1
        matcher = f"match_{stem}_{counts[f'match {stem}']}"
        parts += _matcher(entry, matcher)
        pairs.append(f"@{matcher} -> @apply_{functions[key]}")
    lines = [
        f"// A preprocessing transform spec, for iree-compile: {name}.",
        "// Do not edit: change the rules and generate again.",
    ]
    for rule in dict.fromkeys(e.rule.name for e in entries):
        first = next(e.rule for e in entries if e.rule.name == rule)
        lines.append(f"// {rule}: generated from {location(first)}")
    lines += ["module attributes {transform.with_named_sequence} {", *_indent(parts, 2)]
    lines += _indent(_main(pairs, name, require), 2)
    return "\n".join([*lines, "}"]) + "\n"


def _indent(lines: Sequence[str], by: int) -> list[str]:
    return [" " * by + row if row else row for part in lines for row in part.splitlines()]


def _function(entry: Entry, symbol: str, name: str) -> list[str]:
    return [
        f'util.func private @{symbol}{entry.head} attributes {{mlirules.spec = "{name}", '
        f'mlirules.rule = "{entry.rule.name}"}} {{',
        entry.body,
        "}",
    ]


def _matcher(entry: Entry, symbol: str) -> list[str]:
    return [
        f"transform.named_sequence @{symbol}(%root: {ANY} {{transform.readonly}}) "
        f"-> ({VALUE}, {VALUE}) {{",
        "  %ins, %outs = transform.iree.match.cast_compatible_dag_from_root %root {",
        *_indent([entry.dag], 2),
        f"  }} : ({ANY}) -> ({VALUE}, {VALUE})",
        *_indent(entry.guards, 2),
        f"  transform.yield %ins, %outs : {VALUE}, {VALUE}",
        "}",
    ]


def _action(entry: Entry, symbol: str) -> list[str]:
    call = [
        f"%table = transform.util.get_nearest_symbol_table %root : ({ANY}) -> {ANY}",
        f"%function = transform.util.import_symbol @{symbol} into %table if undefined : "
        f"({ANY}) -> {ANY}",
        *(
            [
                f"%executable = transform.util.import_symbol @{entry.executable[0]} into %table "
                f"if undefined : ({ANY}) -> {ANY}"
            ]
            if entry.executable is not None
            else []
        ),
        # Before the root, so that what the rule makes is not walked again.
        "transform.util.cast_and_call inline_call %function(%ins) -> %outs before %root {",
        "  transform.type_conversion.tensor.cast_shape_dynamic_dims",
        f"}} : ({ANY}, {VALUE}, {VALUE}, {ANY}) -> ()",
    ]
    lines = [
        f"transform.named_sequence @apply_{symbol}(%ins: {VALUE} {{transform.readonly}}, "
        f"%outs: {VALUE} {{transform.readonly}}) {{",
        f"  %defining = transform.get_defining_op %outs : ({VALUE}) -> {ANY}",
    ]
    if entry.uses:
        lines += [
            # A sequence that suppresses failures goes on after them: the inner one stops.
            f"  transform.sequence %defining : {ANY} failures(suppress) {{",
            f"  ^bb0(%outer: {ANY}):",
            f"    transform.sequence %outer : {ANY} failures(propagate) {{",
            f"    ^bb0(%root: {ANY}):",
            *_indent(entry.uses, 6),
            *_indent(call, 6),
            "    }",
            "  }",
        ]
    else:
        lines += _indent([row.replace("%root", "%defining") for row in call], 2)
    return [*lines, "  transform.yield", "}"]


def _main(pairs: Sequence[str], name: str, require: bool) -> list[str]:
    listed = ",\n".join(f"        {pair}" for pair in pairs)
    lines = [
        f"transform.named_sequence @__transform_main(%module: {ANY}) {{",
        f'  %functions = transform.structured.match ops{{["util.func"]}} in %module : '
        f"({ANY}) -> {ANY}",
        f"  transform.foreach %functions : {ANY} {{",
        f"  ^bb0(%function: {ANY}):",
        "    transform.foreach_match in %function",
        listed,
        f"      : ({ANY}) -> ({ANY})",
        "  }",
    ]
    if require:
        lines += [
            "  // Where nothing applied this fails: a spec without an effect is an error.",
            f'  %made = transform.structured.match ops{{["util.func"]}} attributes'
            f'{{mlirules.spec = "{name}"}} in %module : ({ANY}) -> {ANY}',
            f"  %count = transform.num_associations %made : ({ANY}) -> !transform.param<i64>",
            "  %one = transform.param.constant 1 : i64 -> !transform.param<i64>",
            "  transform.match.param.cmpi ge %count, %one : !transform.param<i64>",
        ]
    return [*lines, f"  transform.apply_dce to %module : {ANY}", "  transform.yield", "}"]
