"""Indices of an equation against indexing maps; the reason that a comparison got furthest with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from mlirules.drivers.iree.compiler import ir
from mlirules.language.notation import ast
from mlirules.language.words import source

Env: TypeAlias = dict[str, Any]
#: An index as terms, each a loop and its factor, and a constant.
Linear: TypeAlias = tuple[tuple[tuple[int, int], ...], int]
_AGREED = 10  # a depth beyond those of whole reasons: the body was compared, part by part


@dataclass(frozen=True)
class Miss:
    """Why an op does not compute an equation."""

    message: str
    depth: int = 0
    expected: str = ""
    found: str = ""


@dataclass
class Furthest:
    """The reason that comparing the body got furthest with, over all orders of the operands."""

    miss: Miss

    def note(self, env: Env, message: str, expected: str, found: str) -> None:
        """A dead end, after as many agreements as ``env`` holds."""
        if _AGREED + len(env) > self.miss.depth:
            self.miss = Miss(message, _AGREED + len(env), expected, found)


def _shown(name: str, found: list[Linear], env: Env) -> str:
    """An indexing map as indices, in the equation's names as far as they are known."""
    names = {v: k[2:] for k, v in env.items() if k.startswith("i:")}
    items = []
    for terms, constant in found:
        parts = [
            names.get(dim, f"d{dim}") + (f"*{factor}" if factor != 1 else "")
            for dim, factor in terms
        ]
        if constant or not parts:
            parts.append(str(constant))
        items.append(" + ".join(parts))
    return f"{name}[{', '.join(items)}]"


def linear(expr: ir.AffineExpr) -> Linear | None:
    """An affine expression as sorted (dim, coefficient) terms and a constant."""
    terms: dict[int, int] = {}
    constant = 0
    left = [(expr, 1)]
    while left:
        e, factor = left.pop()
        if isinstance(e, ir.AffineDimExpr):
            terms[e.position] = terms.get(e.position, 0) + factor
        elif isinstance(e, ir.AffineConstantExpr):
            constant += factor * e.value
        elif isinstance(e, ir.AffineAddExpr):
            left += [(e.lhs, factor), (e.rhs, factor)]
        elif isinstance(e, ir.AffineMulExpr) and isinstance(e.rhs, ir.AffineConstantExpr):
            left.append((e.lhs, factor * e.rhs.value))
        else:
            return None
    return tuple(sorted(terms.items())), constant


def indices(
    name: str, items: tuple[ast.Expr, ...], found: list[Linear], env: Env, furthest: Furthest
) -> Iterator[Env]:
    """Unify an access's indices with an operand's indexing map."""
    wanted = f"{name}[{', '.join(map(source, items))}]"

    def differs() -> None:
        shown = _shown(name, found, env)
        furthest.note(
            env,
            f"the op reads {shown} where the equation has {wanted}"
            if shown != wanted
            else f"{wanted} stands for another dim elsewhere",
            wanted,
            shown,
        )

    packed = any(isinstance(item, ast.Pack) for item in items)
    if not packed and len(items) != len(found):
        furthest.note(
            env,
            f"{name} has {len(found)} dims, the equation gives it {len(items)}",
            f"{len(items)} dims",
            f"{len(found)} dims",
        )
        return
    envs = list(_aligned(items, found, env))
    if not envs:
        differs()
    yield from envs


def _aligned(items: tuple[ast.Expr, ...], found: list[Linear], env: Env) -> Iterator[Env]:
    """Unify indices one by one; a pack takes as many dims as it did elsewhere, or as it can."""
    if not items:
        if not found:
            yield env
        return
    item, rest = items[0], items[1:]
    if isinstance(item, ast.Pack):
        key = f"p:{item.id or '...'}"
        known = env.get(key)
        most = len(found) - sum(1 for i in rest if not isinstance(i, ast.Pack))
        for count in range(most, -1, -1) if known is None else [len(known)]:
            dims = tuple(t[0][0] if _plain(t, c) else -1 for t, c in found[:count])
            if count > most or -1 in dims or known not in (None, dims):
                continue
            if known is None and _taken(dims, env):
                continue
            yield from _aligned(rest, found[count:], {**env, key: dims})
        return
    wanted = _terms(item)
    if wanted is None or not found:
        return
    (terms, constant), (pairs, offset) = found[0], wanted
    if offset == constant and len(pairs) == len(terms):
        for new in _assign(pairs, list(terms), env):
            yield from _aligned(rest, found[1:], new)


def _plain(terms: tuple[tuple[int, int], ...], constant: int) -> bool:
    """Whether a linear index is one loop index and nothing else."""
    return len(terms) == 1 and terms[0][1] == 1 and not constant


def _taken(dims: tuple[int, ...], env: Env) -> bool:
    """Whether one of the loops stands for a loop index or in a pack already, or twice here."""
    used = {v for k, v in env.items() if k.startswith("i:")}
    used |= {d for k, v in env.items() if k.startswith("p:") for d in v}
    return len(set(dims)) != len(dims) or not used.isdisjoint(dims)


def _terms(item: ast.Expr) -> tuple[list[tuple[str, int | str]], int] | None:
    """An index as (loop name, coefficient or symbol) pairs and a constant."""
    match item:
        case ast.Name(id=name):
            return [(name, 1)], 0
        case ast.Literal(value=int() as value):
            return [], value
        case ast.Binary(op="+", left=left, right=right):
            a, b = _terms(left), _terms(right)
            if a is None or b is None:
                return None
            return a[0] + b[0], a[1] + b[1]
        case ast.Binary(op="*", left=ast.Name(id=name), right=ast.Literal(value=int() as c)):
            return [(name, c)], 0
        case ast.Binary(op="*", left=ast.Name(id=name), right=ast.Name(id=symbol)):
            return [(name, symbol)], 0
    return None


def _assign(
    pairs: list[tuple[str, int | str]], terms: list[tuple[int, int]], env: Env
) -> Iterator[Env]:
    if not pairs:
        yield env
        return
    (name, wanted), rest = pairs[0], pairs[1:]
    for i, (dim, coefficient) in enumerate(terms):
        known = env.get(f"i:{name}")
        if known is not None and known != dim:
            continue
        if known is None and _taken((dim,), env):
            continue
        new = {**env, f"i:{name}": dim}
        if isinstance(wanted, str):
            symbol = env.get(f"s:{wanted}")
            if symbol is not None and symbol != coefficient:
                continue
            new[f"s:{wanted}"] = coefficient
        elif wanted != coefficient:
            continue
        yield from _assign(rest, terms[:i] + terms[i + 1 :], new)
