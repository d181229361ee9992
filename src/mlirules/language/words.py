"""A condition that does not hold, in words: what it wants, what is there, and which part of it.

:func:`explain` walks a condition with the values of a match. It descends to the part that decides
(one side of an ``and``, the inside of a ``not``), so that a caret can stand under it, and says with
values what a reader would otherwise have to work out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mlirules.language.evaluate import Evaluator
from mlirules.language.notation import ast
from mlirules.language.operands import Refused, describe, truth
from mlirules.language.values import DType, Dyn, Scalar, Tensor


@dataclass(frozen=True)
class Said:
    """Why a condition does not hold. ``node`` is the part that decides."""

    message: str
    expected: str
    found: str
    node: ast.Node | None = None


# What a predicate wants of its first value, and what that value is when it says no.
_PREDICATES: dict[str, tuple[str, str]] = {
    "is_float": ("a floating-point type", "no floating-point type"),
    "is_int": ("an integer type", "no integer type (bool is none)"),
    "is_bool": ("bool (i1)", "not bool"),
    "is_unsigned": ("an unsigned type", "signed"),
    "is_complex": ("a complex type", "not complex"),
    "ranked": ("a known rank and element type", "not ranked"),
    "constant": ("known at compile time", "not at compile time"),
    "present": ("there", "none"),
    "is_tensor": ("a tensor", "no tensor"),
    "distinct": ("without a value that stands twice", "one stands twice"),
    "is_permutation": ("a permutation", "no permutation"),
}

_ORDER = {"<": "less than", "<=": "at most", ">": "more than", ">=": "at least"}
_INVERSE = {
    "<": ">=",
    "<=": ">",
    ">": "<=",
    ">=": "<",
    "==": "!=",
    "!=": "==",
    "in": "not in",
    "not in": "in",
}

_WANTED_USES = {
    "one_use": "exactly one use",
    "unused": "no use",
    "inside": "no use outside the match",
}
# Answers one_use and the like: (function, names) -> (holds, what there is, in words).
Structural = Callable[[str, list[str]], tuple[bool, str]]


def source(node: ast.Expr) -> str:
    """An expression as text, spelt the one way."""
    match node:
        case ast.Literal(value=value):
            if value is None:
                return "none"
            if isinstance(value, bool):
                return "true" if value else "false"
            return f'"{value}"' if isinstance(value, str) else str(value)
        case ast.Name(id=name):
            return name
        case ast.Wildcard():
            return "_"
        case ast.Pack(id=pack):
            return f"{pack or ''}..."
        case ast.ListExpr(items=items):
            return "[" + ", ".join(map(source, items)) + "]"
        case ast.Call(fn=fn, args=args):
            return f"{fn}(" + ", ".join(map(source, args)) + ")"
        case ast.Access(base=base, items=items):
            return f"{source(base)}[" + ", ".join(map(source, items)) + "]"
        case ast.Unary(op=op, operand=operand):
            return f"{op} {source(operand)}" if op == "not" else f"{op}{source(operand)}"
        case ast.Binary(op=op, left=left, right=right):
            return f"{_operand(left, op)} {op} {_operand(right, op)}"
        case ast.Conditional(condition=c, then=a, otherwise=b):
            return f"{source(a)} if {source(c)} else {source(b)}"


_LEVELS = {"or": 1, "and": 2, "*": 5, "/": 5, "//": 5, "%": 5, "+": 4, "-": 4}


def _operand(node: ast.Expr, outer: str) -> str:
    """An operand, in brackets where it would otherwise be read another way."""
    level = _LEVELS.get(outer, 3)
    inner = 9
    if isinstance(node, ast.Binary):
        inner = _LEVELS.get(node.op, 3)
    elif isinstance(node, ast.Conditional) or (isinstance(node, ast.Unary) and node.op == "not"):
        inner = 0
    return f"({source(node)})" if inner <= level else source(node)


def spelt(value: object) -> str:
    """A value as a rule would spell it."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(spelt, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else describe(value)


def explain(
    expr: ast.Expr, names: Mapping[str, object], structural: Structural | None = None
) -> Said:
    """Why ``expr`` does not hold for these values. Call it only when it does not."""
    return _Words(names, structural).no(expr)


class _Words:
    def __init__(self, names: Mapping[str, object], structural: Structural | None) -> None:
        self.structural = structural
        ask = None if structural is None else (lambda fn, of: structural(fn, of)[0])
        self.evaluator = Evaluator(names, ask)

    def value(self, node: ast.Expr) -> Any:
        return self.evaluator.eval(node)

    def holds(self, node: ast.Expr) -> bool:
        try:
            return truth(self.value(node))
        except Refused:
            return False

    def is_(self, node: ast.Expr) -> str:
        """``K is 100``; a literal stands for itself."""
        text, value = source(node), self.value(node)
        shown = spelt(value)
        return shown if isinstance(node, ast.Literal) or shown == text else f"{text} is {shown}"

    def has(self, node: ast.Expr) -> str:
        """``K = 100``."""
        text, shown = source(node), spelt(self.value(node))
        return shown if isinstance(node, ast.Literal) or shown == text else f"{text} = {shown}"

    def no(self, node: ast.Expr) -> Said:
        """Why ``node`` is false."""
        match node:
            case ast.Binary(op="and", left=left, right=right):
                return self.no(right) if self.holds(left) else self.no(left)
            case ast.Binary(op="or", left=left, right=right):
                a, b = self.no(left), self.no(right)
                return Said(
                    f"{a.message}, and {b.message}",
                    f"{a.expected}, or {b.expected}",
                    a.found if a.found == b.found else f"{a.found}; {b.found}",
                    node,
                )
            case ast.Unary(op="not", operand=operand):
                return self.yes(operand, node)
            case ast.Conditional(condition=c, then=a, otherwise=b):
                return self.no(a if self.holds(c) else b)
            case ast.Binary(op=op, left=left, right=right) if op in _INVERSE:
                return self.comparison(op, left, right, node)
            case ast.Call(fn=fn, args=args):
                return self.predicate(fn, args, node)
        return Said(f"{self.is_(node)}, not true", f"{source(node)} = true", self.has(node), node)

    def yes(self, node: ast.Expr, outer: ast.Expr) -> Said:
        """Why ``not node`` is false: ``node`` holds."""
        match node:
            case ast.Unary(op="not", operand=operand):
                return self.no(operand)
            case ast.Binary(op="or", left=left, right=right):
                return self.yes(left, outer) if self.holds(left) else self.yes(right, outer)
            case ast.Binary(op="and", left=left, right=right):
                a, b = self.yes(left, outer), self.yes(right, outer)
                return Said(
                    f"{a.message}, and {b.message}",
                    f"{a.expected}, or {b.expected}",
                    f"{a.found}; {b.found}",
                    outer,
                )
            case ast.Binary(op=op, left=left, right=right) if op in _INVERSE:
                return self.comparison(_INVERSE[op], left, right, outer)
            case ast.Call(fn=fn, args=args):
                return self.affirmed(fn, args, outer)
        return Said(
            f"{self.is_(node)}, not false", f"{source(node)} = false", self.has(node), outer
        )

    def comparison(self, op: str, left: ast.Expr, right: ast.Expr, node: ast.Expr) -> Said:
        value = self.value(left)
        text, found = source(left), self.has(left)
        if op in ("in", "not in"):
            listed = spelt(self.value(right))
            if op == "in":
                return Said(
                    f"{self.is_(left)}, not one of {listed}", f"{text} in {listed}", found, node
                )
            return Said(
                f"{self.is_(left)}, which is one of {listed}",
                f"{text} not in {listed}",
                found,
                node,
            )
        wanted = spelt(self.value(right))
        named = wanted if source(right) == wanted else f"{source(right)} = {wanted}"
        if op == "==":
            if isinstance(value, Dyn):
                return Said(
                    f"{text} is known only at run time, not {named}",
                    f"{text} = {wanted}",
                    found,
                    node,
                )
            if not self._constant(right) and self._constant(left):
                return Said(
                    f"{self.is_(right)}, not {spelt(value)}",
                    f"{source(right)} = {spelt(value)}",
                    self.has(right),
                    node,
                )
            return Said(f"{self.is_(left)}, not {named}", f"{text} = {named}", found, node)
        if op == "!=":
            return Said(
                f"{self.is_(left)}, which the rule excludes",
                f"{text} other than {named}",
                found,
                node,
            )
        return Said(
            f"{self.is_(left)}, not {_ORDER[op]} {named}",
            f"{text} {_ORDER[op]} {named}",
            found,
            node,
        )

    @staticmethod
    def _constant(node: ast.Expr) -> bool:
        return isinstance(node, ast.Literal) or (
            isinstance(node, ast.ListExpr) and all(map(_Words._constant, node.items))
        )

    def predicate(self, fn: str, args: tuple[ast.Expr, ...], node: ast.Expr) -> Said:
        if fn in _WANTED_USES and self.structural is not None:
            return self.uses(fn, args, node)
        texts = [source(a) for a in args]
        values = [self.value(a) for a in args if not isinstance(a, ast.Pack)]
        if fn == "static":
            return Said(
                f"{self.is_(args[0])}: {_dynamic(values[0])}",
                f"{texts[0]} with every size known at compile time",
                self.has(args[0]),
                node,
            )
        if fn == "divisible":
            rest = values[0] % values[1] if isinstance(values[0], int) and values[1] else "?"
            by = spelt(values[1]) if texts[1] == spelt(values[1]) else f"{texts[1]} = {values[1]}"
            return Said(
                f"{self.is_(args[0])}, which is no multiple of {by} (the rest is {rest})",
                f"{texts[0]} a multiple of {by}",
                self.has(args[0]),
                node,
            )
        if fn == "broadcasts":
            shapes = ", ".join(f"{t}: {describe(v)}" for t, v in zip(texts, values, strict=True))
            return Said(
                f"the shapes do not broadcast together ({shapes})",
                f"shapes of {', '.join(texts)} that broadcast",
                shapes,
                node,
            )
        if fn == "all_equal":
            return Said(
                f"{self.is_(args[0])}: not every item is {spelt(values[1])}",
                f"{texts[0]} all {spelt(values[1])}",
                self.has(args[0]),
                node,
            )
        if fn == "at_least":
            return Said(
                f"{self.is_(args[0])}: not every item is at least {spelt(values[1])}",
                f"{texts[0]} all at least {spelt(values[1])}",
                self.has(args[0]),
                node,
            )
        if fn in _PREDICATES:
            wanted, said = _PREDICATES[fn]
            shown = _type_of(values[0]) if fn.startswith("is_") else spelt(values[0])
            if fn == "present":
                return Said(f"{texts[0]} is none", f"{texts[0]} given", f"{texts[0]} = none", node)
            return Said(
                f"{texts[0]} is {shown}: {said}",
                f"{texts[0]} {wanted}",
                f"{texts[0]} = {shown}",
                node,
            )
        shown = ", ".join(self.has(a) for a in args if not isinstance(a, ast.Pack))
        return Said(f"{source(node)} does not hold ({shown})", source(node), shown, node)

    def affirmed(self, fn: str, args: tuple[ast.Expr, ...], node: ast.Expr) -> Said:
        """Why ``not fn(args)`` is false."""
        if fn in _WANTED_USES and self.structural is not None:
            return self.uses(fn, args, node)
        values = [self.value(a) for a in args if not isinstance(a, ast.Pack)]
        text = source(args[0])
        if fn == "divisible":
            by = spelt(values[1])
            return Said(
                f"{self.is_(args[0])}, which is a multiple of {by}",
                f"{text} no multiple of {by}",
                self.has(args[0]),
                node,
            )
        if fn == "present":
            return Said(f"{text} is given", f"{text} = none", self.has(args[0]), node)
        if fn == "static":
            return Said(
                f"{self.is_(args[0])}: every size is known at compile time",
                f"{text} with a size known only at run time",
                self.has(args[0]),
                node,
            )
        if fn in _PREDICATES:
            wanted = _PREDICATES[fn][0]
            shown = _type_of(values[0]) if fn.startswith("is_") else spelt(values[0])
            what = shown if fn == "is_bool" else f"{shown}, {wanted}"
            return Said(
                f"{text} is {what}, which the rule excludes",
                f"{text} other than {wanted}",
                f"{text} = {shown}",
                node,
            )
        shown = ", ".join(self.has(a) for a in args if not isinstance(a, ast.Pack))
        return Said(
            f"{fn}({', '.join(map(source, args))}) holds ({shown})", source(node), shown, node
        )

    def uses(self, fn: str, args: tuple[ast.Expr, ...], node: ast.Expr) -> Said:
        assert self.structural is not None
        names = [a.id for a in args if isinstance(a, (ast.Name, ast.Pack)) and a.id]
        said = self.structural(fn, names)[1]
        wanted = _WANTED_USES[fn]
        negated = isinstance(node, ast.Unary)
        return Said(
            said, f"{', '.join(names)} with {'other than ' if negated else ''}{wanted}", said, node
        )


def _dynamic(value: object) -> str:
    if isinstance(value, Tensor) and value.dims is not None:
        at = [str(i) for i, d in enumerate(value.dims) if not isinstance(d, int)]
        return f"dim{'s' * (len(at) > 1)} {', '.join(at)} known only at run time"
    if isinstance(value, Tensor):
        return "its rank is not known"
    if isinstance(value, (list, tuple)):
        at = [str(i) for i, d in enumerate(value) if not isinstance(d, (int, float))]
        return f"item{'s' * (len(at) > 1)} {', '.join(at)} known only at run time"
    return "not known at compile time"


def _type_of(value: object) -> str:
    """What a predicate about types looks at."""
    if isinstance(value, Tensor):
        return str(value.dtype)
    if isinstance(value, DType):
        return value.name
    if isinstance(value, bool):
        return f"{describe(value)} (a bool)"
    if isinstance(value, int):
        return f"{value} (an int)"
    if isinstance(value, float):
        return f"{value} (a float)"
    return describe(value) if not isinstance(value, Scalar) else f"a {value.kind}"
