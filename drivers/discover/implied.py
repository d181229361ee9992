"""Which programs a smaller rule rewrites already: patterns held against programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlirules.drivers.discover.programs import in_order
from mlirules.drivers.discover.terms import Ref, Scalar, Sizes, Term, Type
from mlirules.drivers.prove.expr import Int, Poly

if TYPE_CHECKING:
    from mlirules.drivers.discover.space import Space


class Rules:
    """The left sides that rewrite programs."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.by_op: dict[str, list[int]] = {}

    def add(self, left: int, right: int) -> None:
        """A rule from one program to another of its class."""
        del right
        self.by_op.setdefault(self.space.terms[left].op, []).append(left)

    def implies(self, root: int) -> bool:
        """Whether a rule matches at any op of a program."""
        terms = self.space.terms
        return any(
            self.matches(pattern, at)
            for at in in_order(terms, root)
            for pattern in self.by_op.get(terms[at].op, ())
        )

    def matches(self, pattern: int, at: int) -> bool:
        """Whether a program is an instance of a left side."""
        return _Match(self.space).one(pattern, at)


class _Match:
    def __init__(self, space: Space) -> None:
        self.space = space
        self.terms: Sequence[Term] = space.terms
        self.bound: dict[int, int] = {}
        self.scalars: dict[str, object] = {}
        self.dims: dict[str, object] = {}

    def one(self, pattern: int, at: int) -> bool:
        p, t = self.terms[pattern], self.terms[at]
        if not p.op:
            if pattern in self.bound:
                return self.bound[pattern] == at
            if not self.typed(p.type, t.type):
                return False
            self.bound[pattern] = at
            return True
        if p.op != t.op or len(p.args) != len(t.args):
            return False
        kept = dict(self.bound), dict(self.scalars), dict(self.dims)
        if self.args(p.args, t.args):
            return True
        if self.space.commuting(p.op):
            self.bound, self.scalars, self.dims = kept
            return self.args(p.args, (t.args[1], t.args[0], *t.args[2:]))
        return False

    def args(self, ps: Sequence[Any], ts: Sequence[Any]) -> bool:
        if len(ps) != len(ts):
            return False
        return all(self.arg(p, t) for p, t in zip(ps, ts, strict=True))

    def arg(self, p: object, t: object) -> bool:
        if isinstance(p, Ref):
            return isinstance(t, Ref) and self.one(p.term, t.term)
        if isinstance(p, tuple):
            return isinstance(t, tuple) and self.args(p, t)
        if isinstance(p, Scalar):
            given = t.text if isinstance(t, Scalar) else t
            if isinstance(given, bool) or not isinstance(given, (int, float, str)):
                return False
            return bool(self.scalars.setdefault(p.text, given) == given)
        if isinstance(p, Sizes):
            # What sizes a view has is said by its type.
            return isinstance(t, Sizes) and self.typed(Type(p.dims, ""), Type(t.dims, ""))
        return type(p) is type(t) and bool(p == t)

    def typed(self, p: Type, t: Type) -> bool:
        """Whether sizes are an instance; an elementwise pattern takes any rank."""
        if p.element != t.element:
            return False
        if len(p.shape) == 1 and len(t.shape) != 1 and isinstance(p.shape[0], Poly):
            return bool(self.dims.setdefault(p.shape[0].key, t.shape) == t.shape)
        if len(p.shape) != len(t.shape):
            return False
        return all(self.sized(a, b) for a, b in zip(p.shape, t.shape, strict=True))

    def sized(self, p: Int, t: Int) -> bool:
        if isinstance(p, Poly):
            return bool(self.dims.setdefault(p.key, t) == t)
        return bool(p == t)
