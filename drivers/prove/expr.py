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


def key_of(value: object) -> str:
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

    __slots__ = ("_atom", "_key", "_occurring", "args", "op")

    def __init__(self, op: str, *args: Any) -> None:
        self.op = op
        self.args = args
        self._key = ""
        self._atom: Poly | None = None
        self._occurring: tuple[frozenset[Node], frozenset[Node]] | None = None

    @property
    def key(self) -> str:
        """What equal nodes share and others do not."""
        if not self._key:
            text = self.op + "(" + ",".join([key_of(a) for a in self.args]) + ")"
            self._key = text if len(text) < 40 else digest(text)
        return self._key

    def _found(self) -> tuple[frozenset[Node], frozenset[Node]]:
        if self._occurring is None:
            found: frozenset[Node] = frozenset()
            named: frozenset[Node] = frozenset()
            for a in self.args:
                if isinstance(a, (Node, Poly, tuple)):
                    f, s = occurring(a)
                    found, named = found | f, named | s
            if self.op in BINDERS:
                bound = {
                    v for a in self.args if isinstance(a, tuple) for v in a if isinstance(v, Node)
                }
                found = found - bound
            self._occurring = (
                found | {self} if self.op == "var" else found,
                named | {self} if self.op in ("dim", "int", "axis") else named,
            )
        return self._occurring

    @property
    def vars(self) -> frozenset[Node]:
        """The loop indices that occur in it free."""
        return self._found()[0]

    @property
    def symbols(self) -> frozenset[Node]:
        """The sizes and whole numbers that occur in it."""
        return self._found()[1]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Node) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        if self.op in ("var", "dim", "num"):
            return str(self.args[0])
        return f"{self.op}({', '.join(map(str, self.args))})"


def occurring(value: object) -> tuple[frozenset[Node], frozenset[Node]]:
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

    __slots__ = ("_key", "_occurring", "_raw", "_sorted")

    def __init__(self, terms: dict[Mono, Number]) -> None:
        self._raw = terms
        self._sorted = len(terms) == 1
        self._key = ""
        self._occurring: tuple[frozenset[Node], frozenset[Node]] | None = None

    @property
    def terms(self) -> dict[Mono, Number]:
        """The coefficient of each product, in an order that equal polynomials share."""
        if not self._sorted:
            self._raw = dict(sorted(self._raw.items(), key=_order))
            self._sorted = True
        return self._raw

    @property
    def key(self) -> str:
        """What equal polynomials share and others do not."""
        if not self._key:
            text = "+".join(
                [
                    f"{key_of(c)}*" + "*".join([f"{n.key}^{p}" for n, p in m])
                    for m, c in self.terms.items()
                ]
            )
            self._key = "{" + text + "}" if len(text) < 58 else "{" + digest(text) + "}"
        return self._key

    def _found(self) -> tuple[frozenset[Node], frozenset[Node]]:
        if self._occurring is None:
            found: set[Node] = set()
            named: set[Node] = set()
            for m in self._raw:
                for n, _ in m:
                    f, s = n._found()
                    found |= f
                    named |= s
            self._occurring = frozenset(found), frozenset(named)
        return self._occurring

    @property
    def vars(self) -> frozenset[Node]:
        """The loop indices that occur in it free."""
        return self._found()[0]

    @property
    def symbols(self) -> frozenset[Node]:
        """The sizes and whole numbers that occur in it."""
        return self._found()[1]

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Poly) and len(self._raw) == len(other._raw) and self.key == other.key
        )

    def __hash__(self) -> int:
        return hash(self.key)

    def __bool__(self) -> bool:
        raise TypeError("a polynomial is neither true nor false")

    def __repr__(self) -> str:
        def one(m: Mono, c: Number) -> str:
            body = "*".join(f"{n}" if p == 1 else f"{n}^{p}" for n, p in m)
            return body if c == 1 and body else f"{c}*{body}" if body else str(c)

        return " + ".join(one(m, c) for m, c in self.terms.items())

    def __add__(self, other: Int) -> Int:
        terms = dict(self._raw)
        for m, c in _raw_of(other).items():
            terms[m] = terms.get(m, 0) + c
        return make(terms)

    __radd__ = __add__

    def __neg__(self) -> Int:
        return make({m: -c for m, c in self._raw.items()})

    def __sub__(self, other: Int) -> Int:
        return self + (-other)

    def __rsub__(self, other: Int) -> Int:
        return (-self) + other

    def __mul__(self, other: Int) -> Int:
        terms: dict[Mono, Number] = {}
        others = _raw_of(other)
        for a, x in self._raw.items():
            for b, y in others.items():
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


def _raw_of(value: Int) -> Mapping[Mono, Number]:
    if isinstance(value, Poly):
        return value._raw
    return {(): value} if value else {}


def _order(term: tuple[Mono, Number]) -> list[tuple[str, int]]:
    return [(n.key, p) for n, p in term[0]]


def digest(text: str) -> str:
    """A short text that no two texts share."""
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


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
    found = node._atom
    if found is None:
        found = node._atom = Poly({((node, 1),): 1})
    return found


_PAIRS = frozenset(["inv", "exp"])


def times(a: Mono, b: Mono) -> Mono:
    """The product of two products of nodes."""
    if not a:
        return b
    if not b:
        return a
    if len(a) == len(b) == 1 and a[0][0] != b[0][0] and not {a[0][0].op, b[0][0].op} & _PAIRS:
        return a + b if a[0][0].key < b[0][0].key else b + a
    powers = dict(a)
    for n, p in b:
        powers[n] = powers.get(n, 0) + p
    for n in [n for n in powers if n.op == "inv"]:
        # An exponential is never 0: it and its inverse cancel.
        (of,) = n.args
        if isinstance(of, Poly) and len(of._raw) == 1:
            ((mono, _),) = of._raw.items()
            if len(mono) == 1 and mono[0][0].op == "exp" and mono[0][0] in powers:
                other = mono[0][0]
                both = min(powers[n], powers[other])
                powers[n] -= both
                powers[other] -= both
    out: list[tuple[Node, int]] = []
    for n, p in powers.items():
        if not p:
            continue
        # A truth value as 0 or 1 is its own square.
        out.append((n, 1 if n.op == "holds" else p))
    return tuple(sorted(out, key=lambda t: t[0].key))


def nodes_in(value: object, seen: set[str] | None = None) -> Iterator[Node]:
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
