"""Mistakes planted in rules: what no proof may call equal.

Changes that leave a rule right are none and are left out: operands of an op that commutes, a
constant without its cast to the type that it has anyway, the step of a slice that ends right after
the place where it starts, conditions that only say where the rewrite pays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from mlirules.language.notation import ast
from mlirules.language.rule import BodyText, Line, Rule


@dataclass(frozen=True)
class Mutant:
    """A rule with one mistake in its rewrite, and what the mistake is."""

    rule: Rule
    mistake: str


def mutants(rule: Rule) -> Iterator[Mutant]:
    """A rule with one mistake at a time: in a line of its rewrite, or without a condition."""
    names = {name: expr for name, _, expr, _ in rule.let if expr is not None}
    for at, (line, statement) in enumerate(rule.rewrite):
        if isinstance(statement, BodyText):
            continue
        for mistake, wrong in _mistakes(statement, names):
            made: list[tuple[Line, ast.Statement | BodyText]] = [(line, w) for w in wrong]
            lines = [*rule.rewrite[:at], *made, *rule.rewrite[at + 1 :]]
            yield Mutant(_variant(rule, rewrite=lines), f"{mistake} in `{line}`")
    for at, (line, expr) in enumerate(rule.where):
        if not for_cost(expr):
            kept = [*rule.where[:at], *rule.where[at + 1 :]]
            yield Mutant(_variant(rule, where=kept), f"dropped condition `{line}`")


def _variant(rule: Rule, **parts: object) -> Rule:
    """A rule with other parts, and nothing that was worked out of its own."""
    held = {f.name: getattr(rule, f.name) for f in fields(rule)}
    return Rule(**(held | parts))


def _mistakes(
    statement: ast.Statement, names: Mapping[str, ast.Expr]
) -> Iterator[tuple[str, tuple[ast.Statement, ...]]]:
    """A line of a rewrite with one mistake, as the line or the lines that stand for it."""
    match statement:
        case ast.OpEquation(call=call):
            for mistake, wrong in _calls(call, names):
                yield mistake, (replace(statement, call=wrong),)
        case ast.IndexEquation(value=value, op=op):
            for mistake, expr in _expressions(value):
                yield mistake, (replace(statement, value=expr),)
            if op == "+=":
                yield "maximum for sum", (replace(statement, op="max="),)
                yield "product for sum", (replace(statement, op="*="),)
                yield "wrong init", _started(statement, "+", 1)
            elif op == "max=":
                yield "minimum for maximum", (replace(statement, op="min="),)
                yield "wrong init", _started(statement, "max", 0)
        case ast.Assignment(value=ast.Call() as call):
            for mistake, wrong in _calls(call, names):
                yield mistake, (replace(statement, value=wrong),)


def _started(
    reduction: ast.IndexEquation, op: str, init: int
) -> tuple[ast.IndexEquation, ast.IndexEquation]:
    """A reduction that starts with a number other than its identity, as two equations."""
    pos, end = reduction.pos, reduction.end
    name = f"{reduction.target}_of_all"
    whole = (ast.Pack(pos, end, None),)
    read = ast.Access(pos, end, ast.Name(pos, end, name), whole)
    first = ast.Literal(pos, end, init)
    value: ast.Expr = (
        ast.Call(pos, end, op, (read, first))
        if op == "max"
        else ast.Binary(pos, end, op, read, first)
    )
    return (
        replace(reduction, target=name),
        ast.IndexEquation(pos, end, reduction.target, whole, "=", value),
    )


#: Ops whose first two operands may be exchanged: that is no mistake. ``add`` only where it does
#: not scale the second one.
_COMMUTING = frozenset(
    f"torch.aten.{name}"
    for name in ("mul.Tensor", "maximum", "minimum", "logical_and", "logical_or", "eq.Tensor")
)


def _commutes(call: ast.Call) -> bool:
    if call.fn == "torch.aten.add.Tensor" and len(call.args) == 3:
        return isinstance(call.args[2], ast.Literal) and call.args[2].value == 1
    return call.fn in _COMMUTING


def _calls(call: ast.Call, names: Mapping[str, ast.Expr]) -> Iterator[tuple[str, ast.Call]]:
    args = call.args
    named = len(args) >= 2 and all(isinstance(a, ast.Name) for a in args[:2])
    if named and args[0] != args[1] and not _commutes(call):
        yield "swapped operands", replace(call, args=(args[1], args[0], *args[2:]))
    for at, arg in enumerate(args):
        if (
            call.fn == "torch.aten.slice.Tensor"
            and at == 4
            and _one_element(args[2], args[3], names)
        ):
            continue  # of one element every step is the same
        if _LIBRARY.get(call.fn) == at or _shares_none(call, at):
            continue
        if call.fn in _CASTS and at == 1 and isinstance(arg, ast.Literal) and arg.value in (0, 1):
            # The codes of ui8 and si8.
            other = replace(arg, value=1 - int(arg.value))
            yield "signedness", replace(call, args=(args[0], other, *args[2:]))
            continue
        for mistake, wrong in _literals(arg):
            yield mistake, replace(call, args=(*args[:at], wrong, *args[at + 1 :]))


#: Ops whose second operand is an element type's code.
_CASTS = frozenset(f"torch.aten.{name}" for name in ("to.dtype", "_to_copy", "_cast"))


def _one_element(start: ast.Expr, end: ast.Expr, names: Mapping[str, ast.Expr]) -> bool:
    """Whether a slice ends right after the place where it starts, as it is written.

    ``names``: what the rule's own names stand for.
    """
    if isinstance(start, ast.Name) and isinstance(end, ast.Name):
        match names.get(start.id):
            case ast.Binary(op="-", left=ast.Name(id=before), right=ast.Literal(value=1)):
                return before == end.id
        return False
    match start, end:
        case ast.Literal(value=int(a)), ast.Literal(value=int(b)):
            return b == a + 1
        case ast.Name(id=a), ast.Binary(op="+", left=ast.Name(id=b), right=ast.Literal(value=1)):
            return a == b
    return False


def for_cost(condition: ast.Expr) -> bool:
    """Whether a condition only says where a rewrite pays or can be made, whatever it computes."""
    return isinstance(condition, ast.Call) and condition.fn in (
        "one_use",
        "inside",
        "static",
        "unused",
    )


def _alike(a: ast.Expr, b: ast.Expr) -> bool:
    """Whether two operands are the same number, wherever they stand."""
    if isinstance(a, ast.Literal) and isinstance(b, ast.Literal):
        return a.value == b.value
    return a == b


#: Flags that only choose between libraries, by op: the place of the operand.
_LIBRARY = {"torch.aten.layer_norm": 5, "torch.aten.batch_norm": 8, "torch.aten.group_norm": 5}


def _shares_none(call: ast.Call, at: int) -> bool:
    """Whether an operand says that attention shares no heads, which it may share as well.

    Without sharing there are as many heads of keys as of queries, or one: repeating them changes
    nothing.
    """
    if call.fn != "torch.aten.scaled_dot_product_attention" or at != 7:
        return False
    arg = call.args[at]
    return isinstance(arg, ast.Literal) and arg.value is False


def _literals(arg: ast.Expr) -> Iterator[tuple[str, ast.Expr]]:
    match arg:
        case ast.Literal(value=bool(value)):
            yield "wrong flag", replace(arg, value=not value)
        case ast.Literal(value=int(value)):
            yield "off by one", replace(arg, value=value + 1)
        case ast.Literal(value=float(value)):
            yield "wrong constant", replace(arg, value=value + 0.5)
        case ast.ListExpr(items=items):
            for at, item in enumerate(items):
                for mistake, wrong in _literals(item):
                    yield mistake, replace(arg, items=(*items[:at], wrong, *items[at + 1 :]))
            if len(items) == 2 and not _alike(items[0], items[1]):
                yield "swapped items", replace(arg, items=(items[1], items[0]))
        case ast.Name() | ast.Binary(op="+"):
            pass
        case ast.Unary(op="-", operand=ast.Literal(value=int(value))):
            yield (
                "wrong axis",
                replace(arg, operand=ast.Literal(arg.pos, arg.end, value + 1)),
            )


def _expressions(node: ast.Expr) -> Iterator[tuple[str, ast.Expr]]:
    """An expression with one mistake, at any place in it."""
    match node:
        case ast.Access(base=ast.Name(), items=items):
            if len(items) == 2 and items[0] != items[1]:
                yield "swapped indices", replace(node, items=(items[1], items[0]))
            for at, item in enumerate(items):
                if isinstance(item, ast.Name):
                    one = ast.Binary(
                        item.pos, item.end, "+", item, ast.Literal(item.pos, item.end, 1)
                    )
                    yield (
                        "off-by-one index",
                        replace(node, items=(*items[:at], one, *items[at + 1 :])),
                    )
        case ast.Binary(op=op, left=left, right=right):
            swapped = {"+": "-", "-": "+", "*": "+", "/": "*"}.get(op)
            if swapped:
                yield "wrong operator", replace(node, op=swapped)
            if op in ("-", "/"):
                yield "swapped operands", replace(node, left=right, right=left)
            yield from _within(left, lambda e: replace(node, left=e))
            yield from _within(right, lambda e: replace(node, right=e))
        case ast.Unary(operand=operand):
            yield "missing sign", operand
            yield from _within(operand, lambda e: replace(node, operand=e))
        case ast.Call(fn=fn, args=args):
            # A constant takes the type that it stands beside, cast or not.
            if fn == "cast" and not isinstance(args[0], ast.Literal):
                yield "missing cast", args[0]
                match args[1]:
                    case ast.Name(id=t) if t[:2] in ("si", "ui") and t[2:].isdigit():
                        other = replace(args[1], id=("ui" if t[0] == "s" else "si") + t[2:])
                        yield "signedness", replace(node, args=(args[0], other))
            for at, arg in enumerate(args):
                if fn == "cast" and at == 1:
                    continue
                before, after = args[:at], args[at + 1 :]
                yield from _within(arg, partial(_with_argument, node, before, after))
        case ast.Conditional(then=then, otherwise=otherwise):
            yield "swapped branches", replace(node, then=otherwise, otherwise=then)
            yield from _within(then, lambda e: replace(node, then=e))
            yield from _within(otherwise, lambda e: replace(node, otherwise=e))
        case ast.Literal(value=int(value)) if not isinstance(value, bool):
            yield "off by one", replace(node, value=value + 1)


def _with_argument(
    call: ast.Call, before: tuple[ast.Expr, ...], after: tuple[ast.Expr, ...], made: ast.Expr
) -> ast.Call:
    return replace(call, args=(*before, made, *after))


def _within(node: ast.Expr, around: Callable[[ast.Expr], Any]) -> Iterator[tuple[str, ast.Expr]]:
    for mistake, wrong in _expressions(node):
        yield mistake, around(wrong)
