"""Laws of whole numbers in types of several widths.

In a normal form an integer is one modulo two to the power of its type's width; where it is widened
the node ``exact(type, value)`` is the whole number that it stands for.
"""

from __future__ import annotations

from mlirules.drivers.prove.expr import Int, Node, Poly, atom, terms_of
from mlirules.drivers.prove.replacing import exact
from mlirules.drivers.prove.scalars import type_key
from mlirules.language.values import DType, dtype_named


def of_exact(value: Int) -> tuple[str, Int] | None:
    """The type's key and the value of what is nothing but a widened integer."""
    if not isinstance(value, Poly) or len(value.terms) != 1:
        return None
    ((mono, c),) = value.terms.items()
    if c != 1 or len(mono) != 1 or mono[0][1] != 1 or mono[0][0].op != "exact":
        return None
    key, inner = mono[0][0].args
    return key, inner


def widened(value: Int, s: DType) -> Int:
    """The whole number that an integer of a type stands for."""
    if not isinstance(value, Poly):
        return exact(value, s)
    narrow = of_exact(value)
    if narrow is not None and _holds_all(type_key(s), narrow[0]):
        return value
    return atom(Node("exact", type_key(s), value))


def narrowed(value: Int, t: DType) -> Int:
    """A residue by the residues of what was widened from a type that is at least as wide."""
    if not isinstance(value, Poly) or not any(n.op == "exact" for m in value.terms for n, _ in m):
        return value
    out: Int = 0
    for mono, c in terms_of(value).items():
        term: Int = 1
        for node, power in mono:
            factor: Int = atom(node)
            if node.op == "exact" and _as_wide(node.args[0], t):
                factor = node.args[1]
            for _ in range(power):
                term = term * factor
        out = out + c * term
    return out


def alike(values: tuple[Int, ...], t: str) -> tuple[str, tuple[Int, ...]] | None:
    """The type that all of some whole numbers were widened from, and what they were.

    ``t``: the type, by its key, whose order they are in. A type that does not hold all that they
    were keeps no order: -1 is the largest number of an unsigned one.
    """
    found = [of_exact(v) for v in values]
    kinds = {f[0] for f in found if f is not None}
    if None in found or len(kinds) != 1 or not all(_holds_all(t, k) for k in kinds):
        return None
    return kinds.pop(), tuple(f[1] for f in found if f is not None)


def _as_wide(key: str, t: DType) -> bool:
    """Whether a type, by its key, is at least as wide as another one."""
    if key == type_key(t):
        return True
    named = dtype_named(key)
    # What is asked of a type that is not chosen would choose it.
    other = dtype_named(type_key(t))
    return named is not None and other is not None and named.width >= other.width


def _holds_all(key: str, of: str) -> bool:
    """Whether an integer type holds every number of another one, both by their keys."""
    if key == of:
        return True
    a, b = dtype_named(key), dtype_named(of)
    if a is None or b is None or not (a.is_int and b.is_int):
        return False
    return int(a.lowest) <= int(b.lowest) and int(a.highest) >= int(b.highest)
