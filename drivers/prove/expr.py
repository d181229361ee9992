"""Terms and polynomials over them: what indices, sizes and elements are written in.

A :class:`Node` is an operator over numbers, names, nodes and polynomials. A :class:`Poly` is a sum
of products of nodes: integers and fractions are its coefficients. Both are values that never
change; equal ones have equal keys. A polynomial without nodes is a plain Python number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

Number = int | Fraction
Mono = tuple[tuple["Node", int], ...]
#: A polynomial, or a number where no term is left.
Int = Any


class Undecided(Exception):
    """What the model does not cover: no verdict may be drawn from it. ``reason`` says what."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def key_of(value: Any) -> str:
    """A text that equal values share and others do not."""
    if isinstance(value, (Node, Poly)):
        return value.key
    if isinstance(value, tuple):
        return "(" + ",".join(key_of(v) for v in value) + ")"
    if isinstance(value, Fraction):
        return f"{value.numerator}/{value.denominator}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return f"{type(value).__name__}:{value!r}"
    key = getattr(value, "key", None)
    if isinstance(key, str):
        return key
    raise TypeError(f"no key for {type(value).__name__}")


#: Nodes that bind the loop indices in their first tuple.
BINDERS = frozenset(["sum", "reduce", "red", "argument"])


class Node:
    """An operator ``op`` over ``args``; equal nodes have equal keys."""

    __slots__ = ("args", "key", "op", "symbols", "vars")

    def __init__(self, op: str, *args: Any) -> None:
        self.op = op
        self.args = args
        text = op + "(" + ",".join(key_of(a) for a in args) + ")"
        self.key = text if len(text) < 40 else hashlib.sha256(text.encode()).hexdigest()[:40]
        found: frozenset[Node] = frozenset()
        named: frozenset[Node] = frozenset()
        for a in args:
            f, s = occurring(a)
            found, named = found | f, named | s
        if op in BINDERS:
            bound = {v for a in args if isinstance(a, tuple) for v in a if isinstance(v, Node)}
            found = found - bound
        #: The loop indices that occur in it free.
        self.vars = found | {self} if op == "var" else found
        #: The sizes and whole numbers that occur in it.
        self.symbols = named | {self} if op in ("dim", "int") else named

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        if self.op in ("var", "dim", "num"):
            return str(self.args[0])
        return f"{self.op}({', '.join(map(str, self.args))})"


def occurring(value: Any) -> tuple[frozenset[Node], frozenset[Node]]:
    """The loop indices and the symbols that occur in a value."""
    if isinstance(value, (Node, Poly)):
        return value.vars, value.symbols
    found: frozenset[Node] = frozenset()
    named: frozenset[Node] = frozenset()
    if isinstance(value, tuple):
        for v in value:
            f, s = occurring(v)
            found, named = found | f, named | s
    return found, named


def loop(name: str, size: Int) -> Poly:
    """A loop index that runs from 0 to ``size`` - 1."""
    return atom(Node("var", name, size))


def dim(name: str) -> Poly:
    """A size: a whole number of at least 0."""
    return atom(Node("dim", name))


def whole(name: str) -> Poly:
    """A whole number of either sign."""
    return atom(Node("int", name))


class Poly:
    """A sum of products of nodes with number coefficients; never a plain number."""

    __slots__ = ("key", "symbols", "terms", "vars")

    def __init__(self, terms: Mapping[Mono, Number]) -> None:
        self.terms = dict(sorted(terms.items(), key=lambda t: [(n.key, p) for n, p in t[0]]))
        text = "+".join(
            f"{key_of(c)}*" + "*".join(f"{n.key}^{p}" for n, p in m) for m, c in self.terms.items()
        )
        self.key = "{" + text + "}"
        if len(self.key) > 60:
            self.key = "{" + hashlib.sha256(text.encode()).hexdigest()[:40] + "}"
        found: set[Node] = set()
        named: set[Node] = set()
        for m in self.terms:
            for n, _ in m:
                found |= n.vars
                named |= n.symbols
        self.vars = frozenset(found)
        self.symbols = frozenset(named)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __bool__(self) -> bool:
        raise TypeError("a polynomial is neither true nor false")

    def __repr__(self) -> str:
        def one(m: Mono, c: Number) -> str:
            body = "*".join(f"{n}" if p == 1 else f"{n}^{p}" for n, p in m)
            return body if c == 1 and body else f"{c}*{body}" if body else str(c)

        return " + ".join(one(m, c) for m, c in self.terms.items())

    def __add__(self, other: Any) -> Int:
        terms = dict(self.terms)
        for m, c in terms_of(other).items():
            terms[m] = terms.get(m, 0) + c
        return make(terms)

    __radd__ = __add__

    def __neg__(self) -> Int:
        return make({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Any) -> Int:
        return self + (-other)

    def __rsub__(self, other: Any) -> Int:
        return (-self) + other

    def __mul__(self, other: Any) -> Int:
        terms: dict[Mono, Number] = {}
        for a, x in self.terms.items():
            for b, y in terms_of(other).items():
                m = times(a, b)
                terms[m] = terms.get(m, 0) + x * y
        if len(terms) > 4000:
            raise Undecided("an expression grows past 4000 terms")
        return make(terms)

    __rmul__ = __mul__


def terms_of(value: Int) -> Mapping[Mono, Number]:
    """The terms of a polynomial or number."""
    if isinstance(value, Poly):
        return value.terms
    return {(): value} if value else {}


def make(terms: Mapping[Mono, Number]) -> Int:
    """A polynomial of terms, or a number where none holds a node."""
    left = {
        m: (c.numerator if isinstance(c, Fraction) and c.denominator == 1 else c)
        for m, c in terms.items()
        if c
    }
    if not left:
        return 0
    if len(left) == 1 and () in left:
        return left[()]
    return Poly(left)


def atom(node: Node) -> Poly:
    """A node as a polynomial."""
    return Poly({((node, 1),): 1})


def times(a: Mono, b: Mono) -> Mono:
    """The product of two products of nodes."""
    if not a:
        return b
    if not b:
        return a
    powers = dict(a)
    for n, p in b:
        powers[n] = powers.get(n, 0) + p
    out: list[tuple[Node, int]] = []
    for n, p in powers.items():
        # A truth value as 0 or 1 is its own square.
        out.append((n, 1 if n.op == "holds" else p))
    return tuple(sorted(out, key=lambda t: t[0].key))


def nodes_in(value: Any, seen: set[str] | None = None) -> Iterator[Node]:
    """Every node that occurs in a value, at any depth, once."""
    seen = set() if seen is None else seen
    stack = [value]
    while stack:
        at = stack.pop()
        if isinstance(at, Poly):
            stack.extend(n for m in at.terms for n, _ in m)
        elif isinstance(at, tuple):
            stack.extend(at)
        elif isinstance(at, Node) and at.key not in seen:
            seen.add(at.key)
            yield at
            stack.extend(at.args)
