"""Mistakes planted in rules: what no proof may call equal.

Changes that leave a rule right are none and are left out: operands of an op that commutes, a
constant without its cast to the type that it has anyway, the step of a slice of one element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mlirules.language.notation import ast
from mlirules.language.rule import BodyText, Rule


@dataclass(frozen=True)
class Mutant:
    """A rule with one mistake in its rewrite, and what the mistake is."""

    rule: Rule
    mistake: str


def mutants(rule: Rule) -> Iterator[Mutant]:
    """A rule's rewrite with one mistake at a time."""
    for at, (line, statement) in enumerate(rule.rewrite):
        if isinstance(statement, BodyText):
            continue
        for mistake, wrong in _mistakes(statement):
            lines = list(rule.rewrite)
            lines[at] = (line, wrong)
            made = Rule(
                rule.doc,
                rule.source,
                rule.types,
                rule.match,
                rule.index_match,
                rule.let,
                rule.where,
                lines,
                origin=rule.origin,
                order=rule.order,
                names=rule.names,
            )
            yield Mutant(made, f"{mistake} in `{line}`")


def _mistakes(statement: ast.Statement) -> Iterator[tuple[str, ast.Statement]]:
    match statement:
        case ast.OpEquation(call=call):
            for mistake, wrong in _calls(call):
                yield mistake, replace(statement, call=wrong)
        case ast.IndexEquation(indices=indices, value=value, op=op):
            for mistake, expr in _expressions(value):
                yield mistake, replace(statement, value=expr)
            if op == "+=":
                yield "maximum for sum", replace(statement, op="max=")
                yield "product for sum", replace(statement, op="*=")
            elif op == "max=":
                yield "minimum for maximum", replace(statement, op="min=")
            del indices
        case ast.Assignment(value=ast.Call() as call):
            for mistake, wrong in _calls(call):
                yield mistake, replace(statement, value=wrong)


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


def _calls(call: ast.Call) -> Iterator[tuple[str, ast.Call]]:
    args = call.args
    named = len(args) >= 2 and all(isinstance(a, ast.Name) for a in args[:2])
    if named and args[0] != args[1] and not _commutes(call):
        yield "swapped operands", replace(call, args=(args[1], args[0], *args[2:]))
    for at, arg in enumerate(args):
        if call.fn == "torch.aten.slice.Tensor" and at == 4:
            continue  # of a slice of one element every step is the same
        for mistake, wrong in _literals(arg):
            yield mistake, replace(call, args=(*args[:at], wrong, *args[at + 1 :]))


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
            if len(items) == 2 and items[0] != items[1]:
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
