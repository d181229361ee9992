"""Replacing loop indices and sizes in normal forms."""

from __future__ import annotations

from typing import Any, SupportsInt

from mlirules.drivers.prove.conditions import at_least_zero, is_zero, negated
from mlirules.drivers.prove.expr import Int, Node, Number, Poly, Undecided, atom, terms_of
from mlirules.drivers.prove.scalars import INDEX, NUMBER, type_key
from mlirules.language.values import DType

_CONDITIONS = frozenset(["eq0", "ge0", "req0", "rge0", "rgt0", "cmp", "elem?", "test", "any"])


class Replacement:
    """One replacement of loop indices. See :meth:`Normal.replaced`."""

    def __init__(self, normal: Any, by: dict[Node, Int], *, bare: bool) -> None:
        self.normal, self.by, self.bare = normal, by, bare
        self.keys = frozenset(by)
        self.memo: dict[str, object] = {}

    def touches(self, value: Node | Poly) -> bool:
        """Whether any of them occurs."""
        return bool(value.vars & self.keys or value.symbols & self.keys)

    def value(self, value: object) -> Any:
        """A value with them replaced."""
        if isinstance(value, tuple):
            return tuple(self.value(v) for v in value)
        if not isinstance(value, (Node, Poly)) or not self.touches(value):
            return value
        held = self.memo.get(value.key)
        if held is None:
            if isinstance(value, Poly):
                held = self.poly(value)
            elif value.op in _CONDITIONS or value.op in ("not", "and", "or"):
                held = self.condition(value)
            else:
                held = self.plain(value)
            self.memo[value.key] = held
        return held

    def poly(self, value: Poly) -> Int:
        """A polynomial."""
        total: Int = 0
        for mono, c in value.terms.items():
            product: Int = c
            for node, power in mono:
                one = self.node(node)
                for _ in range(power):
                    product = product * one
            total = total + product
        return total

    def condition(self, node: Node) -> Node | bool:
        """A condition."""
        args = tuple(self.value(a) for a in node.args)
        match node.op:
            case "eq0":
                return is_zero(args[0])
            case "ge0":
                return at_least_zero(args[0])
            case "not":
                return negated(args[0])
        return Node(node.op, *args)

    def plain(self, node: Node) -> Node:
        """A node that stands inside another one, as a node."""
        found = self.node(node)
        if isinstance(found, Poly) and len(found.terms) == 1:
            ((mono, c),) = found.terms.items()
            if c == 1 and len(mono) == 1 and mono[0][1] == 1:
                return mono[0][0]
        raise Undecided("an index set that changes shape")

    def node(self, node: Node) -> Int:
        """What a node becomes."""
        if node in self.by:
            return self.by[node]
        if not self.touches(node):
            return atom(node)
        if node.op == "var":
            # Its range changes: the index itself stays.
            return atom(Node("var", node.args[0], self.value(node.args[1])))
        n, w = self.normal, self.normal.world
        if node.op in ("sum", "reduce"):
            loops = node.args[0]
            sizes = tuple(self.value(v.args[1]) for v in loops)
            if self.bare:
                new = tuple(Node("var", v.args[0], s) for v, s in zip(loops, sizes, strict=True))
                inner = {**self.by, **{v: atom(x) for v, x in zip(loops, new, strict=True)}}
                body = Replacement(n, inner, bare=True).value(node.args[1])
                return atom(Node(node.op, new, body, *node.args[2:]))
            fresh = [Node("var", w.fresh("k"), s) for s in sizes]
            inner = {**self.by, **{v: atom(x) for v, x in zip(loops, fresh, strict=True)}}
            body = Replacement(n, inner, bare=False).value(node.args[1])
            if node.op == "sum":
                return n.summed(fresh, body)
            return n.reduced(node.args[2], fresh, body)
        if node.op == "holds" and node.args[0].op == "any" and not self.bare:
            loops, body = node.args[0].args[0].args[:2]
            fresh = [Node("var", w.fresh("k"), self.value(v.args[1])) for v in loops]
            inner = {**self.by, **{v: atom(x) for v, x in zip(loops, fresh, strict=True)}}
            return n.quantified(tuple(fresh), Replacement(n, inner, bare=False).value(body))
        args = tuple(self.value(a) for a in node.args)
        if self.bare:
            return atom(Node(node.op, *args))
        match node.op:
            case "fdiv":
                return w.idiv(*args)
            case "min":
                return w.least(*args)
            case "holds":
                condition = args[0]
                if isinstance(condition, Node) and condition.op == "cmp":
                    return n.compared(*condition.args)
                return n.indicator(condition)
            case "f":
                return n.function(args[0], args[1])
            case "exp":
                return n.function("exp", args)
            case "inv":
                return n.inverse(args[0])
            case "ite":
                return n.select(*args)
        return atom(Node(node.op, *args))


def variables_of(value: object) -> frozenset[Node]:
    """The free loop indices of a value."""
    return value.vars if isinstance(value, (Node, Poly)) else frozenset()


def linear_in(value: Int, v: Node) -> tuple[Number, Int]:
    """The coefficient of an index in a linear expression and the rest; 0 where there is none."""
    mono = ((v, 1),)
    c = terms_of(value).get(mono, 0)
    return c, value - c * atom(v)


def exact(value: SupportsInt, t: DType) -> int:
    """The whole number that an integer constant stands for in a type."""
    if t is INDEX or t is NUMBER:
        return int(value)
    span = 1 << t.width
    low = int(t.lowest)
    return (int(value) - low) % span + low


def type_name_for_order(t: DType) -> str:
    """What tells orders apart: the type of integers, and that of floats as one."""
    if t is NUMBER or t.is_float:
        return "real"
    return type_key(t)
