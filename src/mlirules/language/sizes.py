"""Dims that a type computes (``2*N``): solved for a symbol that nothing else binds, or compared."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mlirules.language.evaluate import Evaluator
from mlirules.language.nomatch import NoMatch
from mlirules.language.notation import ast
from mlirules.language.operands import Refused, describe
from mlirules.language.rule import Line
from mlirules.language.values import Dyn


@dataclass(frozen=True)
class Computed:
    """A dim of the value ``name`` of a match, and the expression that its type has for it."""

    line: Line
    name: str
    expr: ast.Expr
    dim: Any

    def refusal(self, message: str) -> NoMatch:
        """Why the dim does not fit."""
        return NoMatch(
            self.line, message, expected=shown(self.line, self.expr), found=describe(self.dim)
        )


def shown(line: Line, expr: ast.Expr) -> str:
    """An expression of a declared type as it is written."""
    return line.text.value[expr.pos : expr.end]


def names(expr: ast.Expr) -> list[str]:
    """The names that an expression reads, each once."""
    return list(dict.fromkeys(n.id for n in ast.walk_expression(expr) if isinstance(n, ast.Name)))


def size(expr: ast.Expr, env: Mapping[str, object]) -> Any:
    """A computed dim: a whole number, or one known at run time. Raises :class:`Refused`."""
    value = Evaluator(env).eval(expr)
    if isinstance(value, bool) or not isinstance(value, (int, Dyn)):
        raise Refused(f"{describe(value)} is not a dim", expr)
    if isinstance(value, int) and value < 0:
        raise Refused(f"the dim would be {value}", expr)
    return value


def solvable(expr: ast.Expr, unknown: str) -> bool:
    """Whether an expression is a linear one of ``unknown``, whatever the other names are."""
    match expr:
        case ast.Binary(op="+" | "-", left=left, right=right):
            return solvable(left, unknown) and solvable(right, unknown)
        case ast.Binary(op="*", left=left, right=right):
            inside = [unknown in names(side) for side in (left, right)]
            return not all(inside) and all(map(solvable, (left, right), (unknown,) * 2))
        case ast.Unary(op="-", operand=operand):
            return solvable(operand, unknown)
    return isinstance(expr, ast.Name) or unknown not in names(expr)


def order(exprs: Iterable[ast.Expr], known: Collection[str]) -> Iterator[ast.Expr]:
    """The expressions that cannot be solved, when each may bind one symbol that others read."""
    bound, pending = set(known), list(exprs)
    while pending:
        left = []
        for expr in pending:
            unknown = [n for n in names(expr) if n not in bound]
            if len(unknown) > 1 or not all(solvable(expr, n) for n in unknown):
                left.append(expr)
            else:
                bound.update(unknown)
        if len(left) == len(pending):
            yield from left
            return
        pending = left


def solve(
    computed: list[Computed], env: dict[str, object], values: Collection[str]
) -> list[NoMatch]:
    """Bind what computed dims say of symbols in ``env``; why those that do not fit do not.

    ``values`` are the names of the match's own values: none of them is solved for.
    """
    misses: list[NoMatch] = []
    pending = computed
    while pending:
        left = []
        for one in pending:
            unknown = [n for n in names(one.expr) if n not in values and env.get(n) is None]
            if len(unknown) > 1:
                left.append(one)
                continue
            try:
                if unknown:
                    env[unknown[0]] = _solution(one, unknown[0], env)
                else:
                    _compare(one, size(one.expr, env))
            except NoMatch as no:
                misses.append(no)
            except Refused as refused:
                misses.append(one.refusal(refused.message))
        if len(left) == len(pending):
            if not misses:  # else the symbol is missing for their reason
                misses += [one.refusal(_unsolved(one.line, one.expr)) for one in left]
            break
        pending = left
    return misses


def _unsolved(line: Line, expr: ast.Expr) -> str:
    return f"{shown(line, expr)} does not say what {' and '.join(names(expr))} are"


def _compare(one: Computed, value: object) -> None:
    # As for a symbol that stands twice: a dim known at run time unifies with any.
    if isinstance(value, int) and isinstance(one.dim, int) and value != one.dim:
        raise one.refusal(
            f"a dim of {one.name} is {one.dim}, not {shown(one.line, one.expr)} = {value}"
        )


def _solution(one: Computed, unknown: str, env: Mapping[str, object]) -> int:
    text = shown(one.line, one.expr)
    if not isinstance(one.dim, int):
        raise one.refusal(
            f"a dim of {one.name} is known only at run time, "
            f"so {unknown} cannot be told from {text}"
        )
    at_zero, at_one = (size_at(one.expr, unknown, n, env) for n in (0, 1))
    if not isinstance(at_zero, int) or not isinstance(at_one, int) or at_zero == at_one:
        raise one.refusal(f"{unknown} cannot be told from {text}")
    found, rest = divmod(one.dim - at_zero, at_one - at_zero)
    if rest or found < 0:
        raise one.refusal(f"a dim of {one.name} is {one.dim}: no {unknown} gives {text}")
    return found


def size_at(expr: ast.Expr, unknown: str, value: int, env: Mapping[str, object]) -> Any:
    """What a linear expression is where its symbol is ``value``; the line may be below 0."""
    if not solvable(expr, unknown):
        raise Refused(f"{unknown} cannot be told: the dim is not linear in it", expr)
    return Evaluator({**env, unknown: value}).eval(expr)
