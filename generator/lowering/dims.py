"""Arithmetic on shapes whose dims may be known only at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlirules.language.operands import arith
from mlirules.language.rule import Rule
from mlirules.language.sizes import size
from mlirules.language.values import Dim, Dyn


def declared_dims(rule: Rule, env: Mapping[str, object], name: str, rank: int) -> list[Any]:
    """What the declared type of ``name`` says of each of its ``rank`` dims; None: nothing."""
    declared = rule.types.get(name)
    if declared is None or declared[1].dims is None:
        return [None] * rank
    spread: list[object] = []
    for d in declared[1].dims:
        value = env.get(d.value) if isinstance(d.value, str) else d.value
        if d.expr is not None:
            value = size(d.expr, env)
        if d.pack:
            count = rank - (len(declared[1].dims) - 1)
            spread.extend(value if isinstance(value, list) else [None] * count)
        else:
            spread.append(value)
    return spread if len(spread) == rank else [None] * rank


def same_dims(a: Sequence[object], b: Sequence[object]) -> bool:
    """Whether two shapes are one, as far as can be told."""
    return len(a) == len(b) and all(
        x == y or (isinstance(x, Dyn) != isinstance(y, Dyn) and len(a) == 1)
        for x, y in zip(a, b, strict=True)
    )


def one_product(dims: Sequence[object]) -> Dim:
    """The product of dims."""
    out: Dim = 1
    for d in dims:
        out = arith("*", out, d)
    return out


def cancel(have: list[Dim], used: list[Dim]) -> Any:
    """The product of ``have`` over ``used`` where factors cancel exactly, else None."""
    rest = list(have)
    for v in used:
        if v in rest:
            rest.remove(v)
        elif v != 1:
            return None
    return one_product(rest)


def reassociate(have: list[Any], want: list[Any]) -> list[tuple[list[int], list[int]]] | None:
    """Groups of dims of equal product, smallest first; None when they cannot be told apart."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(have) and j < len(want):
        a, b = [i], [j]
        p, q = have[i], want[j]
        i, j = i + 1, j + 1
        while p != q:
            if isinstance(p, Dyn) or isinstance(q, Dyn):
                return None
            if p < q:
                if i == len(have) or isinstance(have[i], Dyn):
                    return None
                p *= have[i]
                a.append(i)
                i += 1
            else:
                if j == len(want) or isinstance(want[j], Dyn):
                    return None
                q *= want[j]
                b.append(j)
                j += 1
        if p == 0 and (i < len(have) or j < len(want)) and len(groups) == 0:
            return None
        groups.append((a, b))
    if not groups:
        return None
    # What is left over are dims of size 1: they join the last group.
    for k in range(i, len(have)):
        if have[k] != 1:
            return None
        groups[-1][0].append(k)
    for k in range(j, len(want)):
        if want[k] != 1:
            return None
        groups[-1][1].append(k)
    many_to_many = any(len(a) > 1 and len(b) > 1 for a, b in groups)
    if many_to_many and any(isinstance(v, Dyn) for v in [*have, *want]):
        return None
    return groups
