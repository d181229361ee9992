"""How many indices a pack (`I...`) of an index equation stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlirules.language.builtins import FUNCTIONS
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression as walk
from mlirules.language.operands import Refused

__all__ = ["Access", "find_packs", "maybe_packs"]

#: What is read or written: the name of a tensor, and its indices.
Access = tuple[str, tuple[ast.Expr, ...]]


def maybe_packs(equation: ast.IndexEquation) -> frozenset[str]:
    """The names that are written as packs anywhere in an equation."""
    written = (n for e in (*equation.indices, equation.value) for n in walk(e))
    named = {n.id for n in written if isinstance(n, ast.Pack) and n.id is not None}
    return frozenset(named | {b.id for b in equation.bounds if b.pack})


def find_packs(
    equation: ast.IndexEquation,
    accesses: Sequence[Access],
    packs: dict[str, int],
    known: Mapping[str, object],
    *,
    rank: Callable[[int, str], int | None],
    length: Callable[[ast.Expr], int | None],
) -> None:
    """Add the lengths of the packs that follow from the ranks of what is accessed.

    ``known`` are the names that are no indices; ``rank`` tells the rank of an access (its number,
    its tensor), ``length`` how many indices an item stands for, each None where that is not known
    yet. Raises :class:`Refused` where a tensor has too few dims.
    """
    written = maybe_packs(equation)
    progress = True
    while progress:
        progress = False
        for at, (name, items) in enumerate(accesses):
            dims = rank(at, name)
            if dims is None:
                continue
            size, unknown, inside = _counted(written, items, packs, known, length)
            if unknown == ["="] and dims >= size:
                packs.update((n, dims - size) for n in inside)
                progress = True
            elif len(unknown) == 1 and unknown[0] not in ("...", "?", "="):
                if dims < size:
                    raise Refused(f"{name} has rank {dims}: too few dims for its indices")
                packs[unknown[0]] = dims - size
                progress = True


def _counted(
    written: frozenset[str],
    items: tuple[ast.Expr, ...],
    packs: Mapping[str, int],
    known: Mapping[str, Any],
    length: Callable[[ast.Expr], int | None],
) -> tuple[int, list[str], set[str]]:
    """How many indices are known; what is not (a pack, `=` for arithmetic on it); those packs."""
    unknown: list[str] = []
    size = 0
    inside: set[str] = set()
    for item in items:
        if isinstance(item, ast.Pack):
            if item.id is None:
                unknown.append("...")
            elif isinstance(known.get(item.id), list):
                size += len(known[item.id])
            elif item.id in packs:
                size += packs[item.id]
            else:
                unknown.append(item.id)
            continue
        names = {n.id for n in walk(item) if isinstance(n, (ast.Name, ast.Pack))}
        loose = {n for n in names if n in written and n not in known and n not in packs}
        if loose and not any(isinstance(n, (ast.Call, ast.Access)) for n in walk(item)):
            # `O * stride + K * dilation`: arithmetic on packs, item by item.
            inside |= loose
            unknown.append("=")
        elif any(isinstance(n, ast.Call) and n.fn in FUNCTIONS for n in walk(item)) or names & set(
            packs
        ):
            found = length(item)
            if found is None:
                unknown.append("?")
            else:
                size += found
        else:
            size += 1
    return size, unknown, inside
