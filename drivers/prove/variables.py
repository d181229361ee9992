"""Rules over listed ops (``Op in [...]``): what one of the names makes of them, name by name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mlirules.drivers.prove.expr import Undecided
from mlirules.drivers.prove.meanings import Meanings
from mlirules.drivers.prove.names import POINTWISE, anyone
from mlirules.language.notation import ast
from mlirules.language.rule import Line, Rule, nested_calls


def beyond(rule: Rule) -> tuple[Line, str] | None:
    """The line of the match with an op of any name, and what it says; None where none is."""
    for pattern in rule.match:
        for call in nested_calls(pattern.equation.call):
            if "." not in call.fn and call.fn not in rule.one_of:
                return pattern.line, f"{call.fn} stands for ops of any name"
    return None


def named(rule: Rule, meanings: Meanings) -> Iterator[tuple[str, Rule | str]]:
    """The rule for each op that its variables may be: which they are, and it, or what is missing.

    A condition that lists the ops holds, and the list is no name of the rule any more.
    """
    lists = rule.one_of
    words = list(lists)
    for chosen in itertools.product(*(lists[w].ops for w in words)):
        by = dict(zip(words, chosen, strict=True))
        said = ", ".join(f"{w} = {op}" for w, op in by.items())
        try:
            yield said, _of(rule, by, meanings)
        except Undecided as undecided:
            yield said, undecided.reason


def kinds(rule: Rule, meanings: Meanings) -> Iterator[tuple[frozenset[str], Rule]]:
    """Ops of one kind, and the rule for any op of that kind: what is shown of it holds for each.

    A kind are the functions of single elements of as many tensors with as many operands.
    """
    if len(rule.one_of) != 1:
        return
    ((word, one_of),) = rule.one_of.items()
    by_kind: dict[tuple[int, int], set[str]] = {}
    for op in one_of.ops:
        found = operand_counts(op, meanings)
        if op in POINTWISE and len(found) == 1 and op not in rule.doc.commutative:
            (count,) = found
            by_kind.setdefault((POINTWISE[op], count), set()).add(op)
    for (tensors, count), ops in by_kind.items():
        if len(ops) > 1:
            try:
                # An op of no other meaning: unknown where it is not taken as one of its kind.
                yield frozenset(ops), _of(rule, {word: anyone(tensors)}, meanings, count)
            except Undecided:
                continue


def operand_counts(op: str, meanings: Meanings) -> set[int]:
    """How many operands an op has, by all that says what it means."""
    rules = [*meanings.definitions.get(op, ()), *meanings.rules.get(op, ())]
    return {len(r.root.equation.call.args) for r in rules}


def _of(rule: Rule, by: dict[str, str], meanings: Meanings, count: int | None = None) -> Rule:
    packs: dict[str, tuple[ast.Expr, ...]] = {}
    for pattern in rule.match:
        for call in nested_calls(pattern.equation.call):
            if call.fn in by:
                counts = operand_counts(by[call.fn], meanings) if count is None else {count}
                _operands(call, by[call.fn], counts, packs)
    if packs.keys() & rule.types.keys():
        raise Undecided("the operands of an op of several names have a type")

    def renamed(value: object) -> Any:
        match value:
            case ast.Call():
                args = [a for v in value.args for a in _unpacked(v, packs)]
                fn = by.get(value.fn, value.fn)
                return replace(value, fn=fn, args=tuple(renamed(a) for a in args))
            case ast.ListExpr(items=items):
                return replace(value, items=tuple(renamed(i) for i in items))
            case ast.OpEquation(call=call):
                return replace(value, call=renamed(call))
        return value

    conditions = {id(o.expr) for o in rule.one_of.values()}
    where = [
        (line, ast.Literal(e.pos, e.end, True) if id(e) in conditions else e)
        for line, e in rule.where
    ]
    listed = {
        o.expr.right.id
        for o in rule.one_of.values()
        if isinstance(o.expr, ast.Binary) and isinstance(o.expr.right, ast.Name)
    }
    return replace(
        rule,
        match=[replace(p, equation=renamed(p.equation)) for p in rule.match],
        where=where,
        let=[entry for entry in rule.let if entry[0] not in listed],
        rewrite=[(line, renamed(s)) for line, s in rule.rewrite],
    )


def _operands(
    call: ast.Call, op: str, counts: set[int], packs: dict[str, tuple[ast.Expr, ...]]
) -> None:
    """The names that a list of operands stands for, by how many operands the op has."""
    open_ones = [a for a in call.args if isinstance(a, ast.Pack) and a.id]
    if not open_ones:
        return
    if len(counts) != 1 or len(open_ones) > 1:
        raise Undecided(f"nothing says how many operands {op} has")
    (count,) = counts
    (pack,) = open_ones
    assert pack.id is not None
    left = count - (len(call.args) - 1)
    names = tuple(ast.Name(pack.pos, pack.end, f"{pack.id}.{i}") for i in range(max(left, 0)))
    if left < 0 or packs.setdefault(pack.id, names) != names:
        raise Undecided(f"{op} has {count} operands")


def _unpacked(arg: ast.Expr, packs: dict[str, tuple[ast.Expr, ...]]) -> tuple[ast.Expr, ...]:
    if isinstance(arg, ast.Pack) and arg.id in packs:
        return packs[arg.id]
    return (arg,)
