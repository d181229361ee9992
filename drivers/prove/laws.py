"""Laws of the reals that normal forms are made by. They are listed in docs/proving.md."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

from mlirules.drivers.prove.conditions import at_least_zero
from mlirules.drivers.prove.expr import (
    Int,
    Mono,
    Node,
    Poly,
    Undecided,
    atom,
    key_of,
    make,
    nodes_in,
    terms_of,
)
from mlirules.drivers.prove.realness import finite, may_be_infinite, positive, special
from mlirules.drivers.prove.world import World


def _choice(value: Int) -> Node | None:
    """The choice between two values that a value is."""
    if isinstance(value, Poly) and len(value.terms) == 1:
        ((mono, c),) = value.terms.items()
        if c == 1 and len(mono) == 1 and mono[0][1] == 1 and mono[0][0].op == "ite":
            return mono[0][0]
    return None


def common_factors(value: Poly) -> tuple[Mono, Int]:
    """The product that every term of a value holds, and what is left of the value."""
    first, *others = value.terms
    common = dict(first)
    for mono in others:
        powers = dict(mono)
        common = {n: min(p, powers[n]) for n, p in common.items() if n in powers}
    rest = {
        tuple((n, p - common.get(n, 0)) for n, p in m if p > common.get(n, 0)): c
        for m, c in value.terms.items()
    }
    return tuple((n, common[n]) for n, _ in first if n in common), make(rest)


class Laws:
    """Arithmetic and functions over the reals, under the assumptions of one world."""

    def __init__(self, world: World) -> None:
        self.world = world

    # -- arithmetic over the reals

    def added(self, a: Int, b: Int) -> Int:
        """A sum. What may be infinite is never cancelled; an infinity takes in real numbers."""
        for x, y in ((a, b), (b, a)):
            if special(x) in ("inf", "-inf") and finite(self.world, y):
                return x
        choices = sorted(
            ((_choice(x), y) for x, y in ((a, b), (b, a)) if _choice(x) is not None),
            key=lambda t: key_of(t[0]),
        )
        for node, y in choices:
            # What is added to a choice is added to both of its values.
            assert node is not None
            c, p, q = node.args
            return self.select(c, self.added(p, y), self.added(q, y))
        out = a + b
        if len(terms_of(out)) < len(terms_of(a).keys() | terms_of(b).keys()):
            gone = [m for m in terms_of(a).keys() & terms_of(b).keys() if m not in terms_of(out)]
            if any(self.unbounded(n) for m in gone for n, _ in m):
                raise Undecided("a difference of what may be infinite")
        return out

    def absorbed(self, value: Int) -> Int:
        """A sum of an infinity and of what is real is that infinity."""
        if isinstance(value, Poly) and len(value.terms) > 1:
            for mono, c in value.terms.items():
                one = make({mono: c})
                if special(one) in ("inf", "-inf") and finite(self.world, value - one):
                    return one
        return value

    def product(self, a: Int, b: Int) -> Int:
        """A product. 0 times what may be infinite is not 0."""
        for zero, other in ((a, b), (b, a)):
            if zero == 0 and any(self.unbounded(n) for m in terms_of(other) for n, _ in m):
                raise Undecided("0 times what may be infinite")
        out = a * b
        return self.cancelled(out) if isinstance(out, Poly) else out

    def cancelled(self, value: Poly) -> Int:
        """``x`` times ``1 / x`` is 1 for a size of at least 1."""
        if not any(n.op == "inv" and n.symbols for m in value.terms for n, _ in m):
            return value
        total: Int = 0
        for mono, c in value.terms.items():
            powers = dict(mono)
            for node, power in mono:
                of = node.args[0] if node.op == "inv" else None
                if not isinstance(of, Poly) or len(of.terms) != 1:
                    continue
                ((inner, k),) = of.terms.items()
                if k != 1 or len(inner) != 1 or inner[0][1] != 1:
                    continue
                other = inner[0][0]
                if (
                    other.op in ("dim", "int")
                    and other in powers
                    and self.world.follows(at_least_zero(of - 1))
                ):
                    both = min(power, powers[other])
                    powers[node] -= both
                    powers[other] -= both
            total = total + make({tuple((n, powers[n]) for n, _ in mono if powers[n]): c})
        return total

    def unbounded(self, node: Node) -> bool:
        """Whether a program's own infinity or NaN occurs in a term."""
        return may_be_infinite(self.world, node)

    def inverse(self, value: Int) -> Int:
        """``1 / value``: of a product that of inverses; of a sum, scaled to its first term."""
        if not isinstance(value, Poly):
            if value == 0:
                # What is not chosen may be anything; nothing is ever made of it.
                return atom(Node("special", "1/0"))
            return 1 / Fraction(value)
        if len(value.terms) == 1:
            ((mono, c),) = value.terms.items()
            out: Int = 1 / Fraction(c)
            for node, power in mono:
                if node.op == "holds":
                    one: Int = atom(Node("inv", atom(node)))
                elif node.op == "inv":
                    # 1 / (1 / x) is x where x is not 0, which the program divides by.
                    one = node.args[0]
                else:
                    one = atom(Node("inv", atom(node)))
                for _ in range(power):
                    out = out * one
            return out
        shared, rest = common_factors(value)
        if shared:
            return self.inverse(make({shared: 1})) * self.inverse(rest)
        lead = Fraction(next(iter(value.terms.values())))
        scaled = self.near(value * (1 / lead))
        return atom(Node("inv", scaled)) * (1 / lead)

    def select(self, c: Int, a: Int, b: Int) -> Int:
        """``a`` where ``c`` is 1, ``b`` where it is 0."""
        if c == 1:
            return a
        if c == 0:
            return b
        if key_of(a) == key_of(b):
            return a
        if may_be_infinite(self.world, (a, b)):
            return atom(Node("ite", c, a, b))
        return b + c * (a - b)

    def function(self, name: str, args: tuple[Int, ...]) -> Int:
        """A function of reals, after the laws that are listed for it."""
        args = tuple(self.absorbed(self.near(a)) for a in args)
        a = args[0]
        if name == "rsqrt":
            return self.inverse(self.function("sqrt", args))
        if name in ("exp", "log", "sqrt", "tanh", "erf", "abs") and isinstance(a, Poly):
            found = self._through_select(name, a)
            if found is not None:
                return found
        if name == "exp":
            if special(a) == "-inf":
                return 0
            if finite(self.world, a):
                return self._exponential(a)
        if name == "log":
            found = self._logarithm(a)
            if found is not None:
                return found
        if name == "sqrt" and not isinstance(a, Poly):
            f = Fraction(a)
            if f >= 0:
                n, d = isqrt(f.numerator), isqrt(f.denominator)
                if n * n == f.numerator and d * d == f.denominator:
                    return Fraction(n, d)
        if name == "abs" and not isinstance(a, Poly):
            return abs(a)
        whole = not isinstance(a, Poly) and Fraction(a).denominator == 1
        if name in ("floor", "ceil", "trunc", "round") and whole:
            return a
        if name == "pow":
            power = args[1]
            if not isinstance(power, Poly):
                p = Fraction(power)
                if p == Fraction(1, 2):
                    return self.function("sqrt", (a,))
                if p.denominator == 1 and 0 < abs(p.numerator) <= 8:
                    out: Int = 1
                    for _ in range(abs(p.numerator)):
                        out = self.product(out, a)
                    return out if p > 0 else self.inverse(out)
        if name in ("max", "min"):
            first, second = sorted(args, key=key_of)
            if key_of(first) == key_of(second):
                return first
            if not isinstance(first, Poly) and not isinstance(second, Poly):
                return max(first, second) if name == "max" else min(first, second)
            answer = self._ordered(first, second)
            if answer is not None:
                return (
                    (second if answer else first)
                    if name == "max"
                    else (first if answer else second)
                )
            args = (first, second)
        return atom(Node("f", name, args))

    def near(self, value: Int) -> Int:
        """A value whose numbers stand for all that round to them, where constants do."""
        limits = self.world.limits
        if not limits.constants:
            return value
        if isinstance(value, Poly):
            return make({m: limits.near(c) for m, c in value.terms.items()})
        return limits.near(value)

    def _exponential(self, a: Int) -> Int:
        """``exp`` of a real sum: the product of those of its terms; of -x the inverse."""
        out: Int = 1
        for mono, c in terms_of(a).items():
            times = abs(c) if isinstance(c, int) and mono and abs(c) <= 8 else 1
            one = atom(Node("exp", make({mono: abs(Fraction(c)) / times})))
            for _ in range(times):
                out = out * (one if c > 0 else atom(Node("inv", one)))
        return out

    def _logarithm(self, a: Int) -> Int | None:
        """``log`` of a product of what is above 0: the sum of those of its factors."""
        if a == 1:
            return 0
        if not isinstance(a, Poly) or len(a.terms) != 1 or not positive(self.world, a):
            return None
        ((mono, c),) = a.terms.items()
        if len(mono) == 1 and c == 1 and mono[0][1] == 1 and mono[0][0].op not in ("exp", "inv"):
            return None
        out: Int = 0 if c == 1 else atom(Node("f", "log", (c,)))
        for node, power in mono:
            if node.op == "exp":
                one: Int = node.args[0]
            elif node.op == "inv":
                one = -self.function("log", (node.args[0],))
            else:
                one = self.function("log", (atom(node),))
            out = out + power * one
        return out

    def _ordered(self, a: Int, b: Int) -> bool | None:
        """Whether a <= b (True) or b <= a (False) is certain, for sizes and indices."""
        d = b - a
        if all(n.op in ("dim", "var", "int", "fdiv", "min") for n in nodes_in(d)) and all(
            isinstance(c, int) for c in terms_of(d).values()
        ):
            if self.world.follows(at_least_zero(d)):
                return True
            if self.world.follows(at_least_zero(-d)):
                return False
        return None

    def _through_select(self, name: str, a: Poly) -> Int | None:
        """A function of a choice is the choice of the function's values."""
        for mono, c in a.terms.items():
            if len(mono) == 1 and mono[0][1] == 1 and mono[0][0].op == "ite":
                condition, x, y = mono[0][0].args
                rest = a - make({mono: c})
                x, y = (self.added(rest, self.product(c, v)) for v in (x, y))
                return self.select(condition, self.function(name, (x,)), self.function(name, (y,)))
        return None
