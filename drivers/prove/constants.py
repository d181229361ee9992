"""Constants that a rule accepts within a tolerance: the numbers that they stand for.

``abs(c * c - 2) < 1.0e-6`` accepts what rounds to a root of two. Over the reals both sides are
equal for no other number than the one meant, so such a rule is proven for that number (for each
one that the condition is about), and the verdict says so. ``c <= -1.0e+9``, a mask, stands for
minus infinity.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from mlirules.language.evaluate import Evaluator
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression as walk
from mlirules.language.operands import Refused
from mlirules.language.rule import Rule

#: A condition with a smaller tolerance is about one number; one with a larger bound is a mask's.
TIGHT, HUGE = 1e-3, 1e4
#: Where the search for roots starts.
_STARTS = (1.0, -1.0, 0.1, -0.1, 10.0, -10.0)


def meant(rule: Rule) -> Iterator[dict[str, float]]:
    """The numbers that the constants of a rule stand for, every combination of them."""
    found: dict[str, list[float]] = {}
    for expr in (part for _, w in rule.where for part in _parts(w)):
        one = _roots(rule, expr) or _infinite(rule, expr)
        if one is not None:
            found.setdefault(one[0], one[1])
    if found and all(found.values()):
        for values in itertools.product(*found.values()):
            yield dict(zip(found, values, strict=True))


def _parts(expr: ast.Expr) -> Iterator[ast.Expr]:
    """The conditions that ``and`` joins."""
    waiting = [expr]
    while waiting:
        at = waiting.pop()
        if isinstance(at, ast.Binary) and at.op == "and":
            waiting += [at.left, at.right]
        else:
            yield at


def _constant(rule: Rule, name: str) -> bool:
    declared = rule.types.get(name)
    return declared is not None and declared[1].kind in ("number", "float")


def _roots(rule: Rule, expr: ast.Expr) -> tuple[str, list[float]] | None:
    """A name and the numbers that ``abs(..) < tiny`` says it to be."""
    match expr:
        case ast.Binary(
            op="<" | "<=",
            left=ast.Call(fn="abs", args=(inner,)),
            right=ast.Literal(value=float(bound)),
        ) if 0 < bound <= TIGHT:
            names = {n.id for n in walk(inner) if isinstance(n, ast.Name)}
            if len(names) == 1 and _constant(rule, name := names.pop()):
                return name, _zeros(inner, name)
    return None


def exactly(rule: Rule) -> bool:
    """Whether the conditions say ``c == lowest(T)`` of every constant that stands for a number."""
    return all(
        _roots(rule, part) is None and (_infinite(rule, part) is None or _lowest(part))
        for _, w in rule.where
        for part in _parts(w)
    )


def _lowest(expr: ast.Expr) -> bool:
    match expr:
        case ast.Binary(op="==", left=ast.Name(), right=ast.Call(fn="lowest")):
            return True
    return False


def _infinite(rule: Rule, expr: ast.Expr) -> tuple[str, list[float]] | None:
    """A name that is at most a large negative number: minus infinity."""
    match expr:
        case ast.Binary(
            op="<" | "<=",
            left=ast.Name(id=name),
            right=ast.Literal(value=float(bound)),
        ) if bound <= -HUGE and _constant(rule, name):
            return name, [-math.inf]
        case ast.Binary(left=ast.Name(id=name)) if _lowest(expr) and _constant(rule, name):
            return name, [-math.inf]
    return None


def _zeros(expr: ast.Expr, name: str) -> list[float]:
    """The numbers for which an expression is 0, by the secant method from several starts."""

    def value(x: float) -> float:
        return float(Evaluator({name: x}).eval(expr))

    found: list[float] = []
    for start in _STARTS:
        try:
            a, b = start, start * 1.1
            for _ in range(100):
                fa, fb = value(a), value(b)
                if fa == fb:
                    break
                a, b = b, b - fb * (b - a) / (fb - fa)
            if abs(value(b)) < 1e-12 and not any(math.isclose(b, x, rel_tol=1e-9) for x in found):
                found.append(b)
        except (Refused, ArithmeticError, TypeError):
            continue
    return found
