"""Normal forms: what of two elements is compared.

A float, a number or a complex element becomes a polynomial over the reals, an integer one modulo
a power of two, a truth value a polynomial of 0 and 1. The laws that are used stand where they are
used and are listed in docs/proving.md. Two elements with one normal form are equal; nothing follows
from two normal forms that differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from fractions import Fraction

from mlirules.drivers.prove.conditions import at_least_zero, is_zero, negated
from mlirules.drivers.prove.expr import (
    Int,
    Mono,
    Node,
    Number,
    Poly,
    Undecided,
    atom,
    key_of,
    make,
    terms_of,
)
from mlirules.drivers.prove.integers import alike, narrowed, of_exact, widened
from mlirules.drivers.prove.laws import common_factors
from mlirules.drivers.prove.realness import finite, positive, special
from mlirules.drivers.prove.replacing import (
    exact,
    type_name_for_order,
)
from mlirules.drivers.prove.scalars import INDEX, NUMBER, E, LazyType, type_key
from mlirules.drivers.prove.sums import Sums
from mlirules.drivers.prove.world import World, bound_in
from mlirules.language.values import DType, dtype_named


def _place(value: Int) -> bool:
    """Whether a value is written by indices and sizes, as places in tensors are."""
    return all(
        isinstance(c, int)
        and abs(c) <= 1 << 31
        and (not m or (len(m) == 1 and m[0][1] == 1 and m[0][0].op in ("var", "dim")))
        for m, c in terms_of(value).items()
    )


def _upright(value: Poly) -> bool:
    """Which of a condition ``value >= 0`` and its contrary is written: whatever its indices are
    called, the same one, by the sign of its first size, number or index of the result."""
    signs: dict[tuple[str, ...], list[Number]] = {}
    for mono, c in value.terms.items():
        if mono:
            names = tuple("~" if bound_in(n) else n.key for n, _ in mono)
            signs.setdefault(names, []).append(c)
    for names in sorted(signs):
        if len(signs[names]) == 1:
            return signs[names][0] > 0
    return bool(value.terms.get((), 0) >= 0)


def is_truth(value: Poly) -> bool:
    """Whether a polynomial of few truth values is 0 or 1 for all of them."""
    nodes = sorted({n for m in value.terms for n, _ in m}, key=lambda n: n.key)
    if len(nodes) > 5:
        return False
    for chosen in itertools.product((0, 1), repeat=len(nodes)):
        of = dict(zip(nodes, chosen, strict=True))
        if sum(c * all(of[n] for n, _ in m) for m, c in value.terms.items()) not in (0, 1):
            return False
    return True


def bound_among(value: Int, loops: Iterable[Node]) -> bool:
    """Whether any of some indices occurs in a value."""
    return isinstance(value, Poly) and bool(value.vars & frozenset(loops))


class Normal(Sums):
    """Normal forms under the assumptions of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.memo: dict[str, Int] = {}
        world.lowest = self.is_lowest

    # -- elements

    def of(self, e: E) -> Int:
        """An element's normal form, by its type."""
        t = e.dtype
        if e.op in ("elem", "applied") and isinstance(t, LazyType) and len(t.among) > 1:
            # What is only moved is the same in every type.
            return atom(Node(e.op, *e.args))
        if t is NUMBER:
            return self.real(e)
        if t is INDEX or t.is_int:
            return self.integer(e)
        if t.is_bool:
            return self.boolean(e)
        return self.real(e)

    def real(self, e: E) -> Int:
        """An element over the reals (or the complex numbers)."""
        held = self.memo.get("r" + e.key)
        if held is None:
            held = self._real(e)
            self.memo["r" + e.key] = held
        return held

    def _real(self, e: E) -> Int:
        match e.op:
            case "const":
                value = e.args[0]
                return Fraction(int(value) if isinstance(value, bool) else value)
            case "num" if e.args[0] in self.world.reals:
                return self.world.reals[e.args[0]]
            case "special" | "num":
                return atom(Node(e.op, *e.args))
            case "elem" | "applied":
                return atom(Node(e.op, *e.args))
            case "whole":
                return e.args[0]
            case "add":
                return self.added(self.real(e.args[1]), self.real(e.args[2]))
            case "sub":
                return self.added(self.real(e.args[1]), -self.real(e.args[2]))
            case "mul":
                return self.product(self.real(e.args[1]), self.real(e.args[2]))
            case "div":
                return self.product(self.real(e.args[1]), self.inverse(self.real(e.args[2])))
            case "floordiv" | "mod":
                return self.function(e.op, (self.real(e.args[1]), self.real(e.args[2])))
            case "cast":
                return self.cast_to_real(e.args[2], e.dtype)
            case "select":
                c = self.boolean(e.args[1])
                # What is not chosen may be anything, a division by 0 too.
                if not isinstance(c, Poly):
                    return self.real(e.args[2 if c else 3])
                return self.select(c, self.real(e.args[2]), self.real(e.args[3]))
            case "fn":
                return self.real_function(e)
            case "red":
                op, _, loops, body = e.args
                if op == "+":
                    return self.summed(loops, self.real(body)) if self.some(loops) else 0
                return self.reduced(op, loops, self.real(body))
        raise Undecided(f"{e.op} on {e.dtype}")

    def cast_to_real(self, x: E, to: DType) -> Int:
        """A conversion to a float: exact over the reals."""
        s = x.dtype
        if s is INDEX:
            return self.integer(x)
        if s is NUMBER or s.is_float:
            return self.real(x)
        if s.is_bool:
            return self.boolean(x)
        if s.is_complex:
            if to is not NUMBER and to.is_complex:
                return self.real(x)
            return self.function("real", (self.real(x),))
        value = self.integer(x)
        if isinstance(value, int):
            return exact(value, s)
        narrow = of_exact(widened(value, s))
        return atom(Node("toreal", *(narrow or (type_key(s), value))))

    def real_function(self, e: E) -> Int:
        """A function of floats."""
        name, _, *args = e.args
        if name in ("real", "imag") and args[0].op == "fn" and args[0].args[0] == "complex":
            return self.real(args[0].args[2 if name == "real" else 3])
        if name == "complex":
            i = atom(Node("i"))
            return self.added(self.real(args[0]), self.product(i, self.real(args[1])))
        return self.function(name, tuple(self.real(a) for a in args))

    def integer(self, e: E) -> Int:
        """An integer modulo two to the power of its width; an index as it is."""
        held = self.memo.get("i" + e.key)
        if held is None:
            held = self._integer(e)
            if e.dtype is not INDEX:
                held = narrowed(held, e.dtype)
            held = self.wrapped(held, e.dtype)
            self.memo["i" + e.key] = held
        return held

    def _integer(self, e: E) -> Int:
        t = e.dtype
        match e.op:
            case "const":
                return int(e.args[0])
            case "elem" | "applied":
                return atom(Node(e.op, *e.args))
            case "whole":
                return e.args[0]
            case "add":
                return self.integer(e.args[1]) + self.integer(e.args[2])
            case "sub":
                return self.integer(e.args[1]) - self.integer(e.args[2])
            case "mul":
                return self.integer(e.args[1]) * self.integer(e.args[2])
            case "floordiv" | "mod":
                a, b = self.integer(e.args[1]), self.integer(e.args[2])
                if t is INDEX:
                    return self.world.idiv(a, b) if e.op == "floordiv" else self.world.imod(a, b)
                return atom(Node("ifn", e.op, type_key(t), (a, b)))
            case "cast":
                return self.cast_to_integer(e.args[2], t)
            case "select":
                c = self.boolean(e.args[1])
                a, b = self.integer(e.args[2]), self.integer(e.args[3])
                return b + c * (a - b)
            case "fn":
                name, _, *args = e.args
                values = [self.integer(a) for a in args]
                if name in ("max", "min", "bitand", "bitor", "bitxor", "maxnum", "minnum"):
                    values.sort(key=key_of)
                    if values[0] == values[1] and name != "bitxor":
                        return values[0]
                kind = type_key(args[0].dtype)
                narrow = alike(tuple(values), kind) if name in ("max", "min") else None
                if narrow is not None:
                    # What is chosen of widened numbers is the widened one of those.
                    key, inner = narrow
                    inner = tuple(sorted(inner, key=key_of))
                    return atom(Node("exact", key, atom(Node("ifn", name, key, inner))))
                return atom(Node("ifn", name, type_key(args[0].dtype), tuple(values)))
            case "red":
                op, _, loops, body = e.args
                if op == "+" and not self.some(loops):
                    return 0
                value = self.integer(body)
                if op == "+":
                    return self.summed(loops, value)
                return self.reduced(f"{op} {type_key(t)}", loops, value)
        raise Undecided(f"{e.op} on {e.dtype}")

    def cast_to_integer(self, x: E, t: DType) -> Int:
        """A conversion to an integer: wraps when it narrows, keeps the value when it widens."""
        s = x.dtype
        if s is INDEX:
            return self.integer(x)
        if s is NUMBER or s.is_float:
            value = self.real(x)
            if not isinstance(value, Poly):
                return int(value)
            return atom(Node("toint", type_key(t), value))
        if s.is_bool:
            return self.boolean(x)
        if s.is_complex:
            raise Undecided("a complex number as an integer")
        value = self.integer(x)
        if t is INDEX or t.width > s.width:
            return widened(value, s)
        return value

    @staticmethod
    def wrapped(value: Int, t: DType) -> Int:
        """Coefficients reduced to the type's width."""
        if t is INDEX or (isinstance(t, LazyType) and len(t.among) > 1):
            return value
        span = 1 << t.width
        half = span >> 1
        out: dict[Mono, Number] = {}
        for m, c in terms_of(value).items():
            if isinstance(c, Fraction):
                raise Undecided("a fraction among integers")
            out[m] = (c + half) % span - half
        return make(out)

    def boolean(self, e: E) -> Int:
        """A truth value as a polynomial of 0 and 1."""
        held = self.memo.get("b" + e.key)
        if held is None:
            held = self._boolean(e)
            self.memo["b" + e.key] = held
        return held

    def _boolean(self, e: E) -> Int:
        match e.op:
            case "const":
                return int(bool(e.args[0]))
            case "icond":
                return self.indicator(e.args[0])
            case "elem" | "applied":
                return self.indicator(Node("elem?", Node(e.op, *e.args)))
            case "and" | "mul":
                return self.boolean(e.args[-2]) * self.boolean(e.args[-1])
            case "or":
                a, b = self.boolean(e.args[0]), self.boolean(e.args[1])
                return a + b - a * b
            case "xor":
                a, b = self.boolean(e.args[0]), self.boolean(e.args[1])
                return a + b - 2 * (a * b)
            case "not":
                return 1 - self.boolean(e.args[0])
            case "select":
                c, a, b = (self.boolean(x) for x in e.args[1:])
                return b + c * (a - b)
            case "cmp":
                return self.comparison(e.args[0], e.args[2], e.args[3])
            case "cast":
                x = e.args[2]
                if x.dtype is not NUMBER and x.dtype is not INDEX and x.dtype.is_bool:
                    return self.boolean(x)
                return self.comparison("!=", x, E("const", (0,), x.dtype))
            case "fn":
                name, _, *args = e.args
                return self.indicator(Node("test", name, tuple(self.of(a) for a in args)))
            case "red":
                op, _, loops, body = e.args
                value = self.boolean(body)
                if op in ("max", "or"):
                    # "Any" and "all" are one another's contraries.
                    return self.quantified(loops, value)
                if op in ("min", "and"):
                    return 1 - self.quantified(loops, 1 - value)
        raise Undecided(f"{e.op} on i1")

    def quantified(self, loops: tuple[Node, ...], value: Int) -> Int:
        """Whether a truth value holds for any value of some indices."""
        if value == 0 or not self.some(loops):
            return 0
        some: Int = 1
        for v in loops:
            some = some * self.indicator(at_least_zero(v.args[1] - 1))
        if not bound_among(some, loops) and self.replaced(value, dict.fromkeys(loops, 0)) == 1:
            return some  # the first of them, where there is one
        outside: Int = 1
        if isinstance(value, Poly) and len(value.terms) == 1:
            ((mono, c),) = value.terms.items()
            kept = tuple(t for t in mono if t[0].vars & frozenset(loops))
            if c == 1 and len(kept) < len(mono):
                outside = make({tuple(t for t in mono if t not in kept): 1})
                value = make({kept: 1})
        if outside != 1:
            return outside * self.quantified(loops, value)
        found = self.reduced("any", loops, value)
        if not isinstance(found, Poly):
            return found
        ((mono, _),) = found.terms.items()
        return self.indicator(Node("any", mono[0][0]))

    def comparison(self, op: str, x: E, y: E) -> Int:
        """A comparison of elements."""
        t = x.dtype
        if t is not NUMBER and t is not INDEX and t.is_bool:
            a, b = self.boolean(x), self.boolean(y)
            different = a + b - 2 * (a * b)
            match op:
                case "==":
                    return 1 - different
                case "!=":
                    return different
            raise Undecided("an order of truth values")
        a, b = self.of(x), self.of(y)
        if op == "!=":
            return 1 - self.comparison("==", x, y)
        if op in (">", ">="):
            a, b, op = b, a, {">": "<", ">=": "<="}[op]
        if not isinstance(a, Poly) and not isinstance(b, Poly):
            if t is not NUMBER and t.is_int:
                a, b = exact(a, t), exact(b, t)
            return int({"==": a == b, "<": a < b, "<=": a <= b}[op])
        if t is INDEX:
            d = a - b
            return self.indicator(
                {"==": is_zero(d), "<": at_least_zero(-d - 1), "<=": at_least_zero(-d)}[op]
            )
        if t is NUMBER or t.is_float:
            for x_, y_ in ((a, b), (b, a)):
                if op == "==" and special(y_) in ("inf", "-inf") and finite(self.world, x_):
                    return 0  # no real number is infinite
                if op == "==" and y_ == 0 and positive(self.world, x_):
                    return 0  # exponentials, and sums of them, are above 0
        return self.compared(op, type_name_for_order(t), a, b)

    def compared(self, op: str, order: str, a: Int, b: Int) -> Int:
        """A comparison in an order: of numbers, of truth values as numbers, of places."""
        if op == "==":
            a, b = sorted((a, b), key=key_of)
        if op == "==" and order == "real":
            for x, y in ((a, b), (b, a)):
                found = (
                    self.is_lowest(x)
                    if special(y) == "-inf"
                    else self.is_nothing(x)
                    if y == 0
                    else None
                )
                if found is not None:
                    return found
        integers = dtype_named(order)
        if not isinstance(a, Poly) and not isinstance(b, Poly):
            if integers is not None and integers.is_int:
                a, b = exact(a, integers), exact(b, integers)
            elif order != "real":
                return self.indicator(Node("cmp", op, order, a, b))
            return int({"==": a == b, "<": a < b, "<=": a <= b}[op])
        narrow = alike((a, b), order) if integers is not None and integers.is_int else None
        if narrow is not None:
            order, (a, b) = narrow
            return self.compared(op, order, a, b)
        chosen = {n for v in (a, b) for m in terms_of(v) for n, _ in m}
        if len(chosen) == 1 and next(iter(chosen)).op == "holds":
            # A choice between two numbers: the comparison is one, too.
            (node,) = chosen
            no, yes = (
                self.compared(op, order, self.chosen(a, n), self.chosen(b, n)) for n in (0, 1)
            )
            return no + (yes - no) * atom(node)
        if order == "si64" and all(_place(v) for v in (a, b)):
            # Places in a tensor, and differences of two, are far below 2 to the power of 63.
            d = b - a
            return self.indicator(
                {"==": is_zero(d), "<": at_least_zero(d - 1), "<=": at_least_zero(d)}[op]
            )
        return self.indicator(Node("cmp", op, order, a, b))

    def is_lowest(self, value: Int) -> Int | None:
        """Whether a value is minus infinity: a maximum is where all are; None where not known."""
        if special(value) is not None:
            return int(special(value) == "-inf")
        if finite(self.world, value):
            return 0
        if not isinstance(value, Poly) or len(value.terms) != 1:
            return None
        ((mono, k),) = value.terms.items()
        node = mono[0][0]
        if k != 1 or len(mono) != 1 or mono[0][1] != 1:
            return None
        if node.op == "ite":
            c, p, q = node.args
            first, second = self.is_lowest(p), self.is_lowest(q)
            if first is None or second is None:
                return None
            return second + c * (first - second)
        if node.op == "reduce" and node.args[2] == "max":
            loops, body = self.opened(node)
            one = self.is_lowest(body)
            if one is None:
                return None
            return 1 - self.quantified(tuple(loops), 1 - one)
        return None

    def is_nothing(self, value: Int) -> Int | None:
        """Whether a sum of what is not negative is 0: where all of it is; None where not known."""
        if not isinstance(value, Poly):
            return int(value == 0)
        shared, rest = common_factors(value)
        some: Int = 1
        for node, _ in shared:
            if node.op == "exp" and finite(self.world, node.args[0]):
                continue
            if positive(self.world, atom(node)):
                continue
            if node.op == "holds":
                some = some * atom(node)
            elif node.op == "sum":
                loops, body = self.opened(node)
                one = self.is_nothing(body)
                if one is None:
                    return None
                some = some * self.quantified(tuple(loops), 1 - one)
            else:
                return None
        if isinstance(rest, Poly):
            one = self._sum_is_nothing(rest)
            if one is None:
                return None
            some = some * (1 - one)
        elif rest < 0:
            return None
        return 1 - some

    def _sum_is_nothing(self, value: Poly) -> Int | None:
        """As of :meth:`is_nothing`: of several terms that share no factor."""
        if all(n.op == "holds" for m in value.terms for n, _ in m):
            # A polynomial of truth values that is one itself.
            return 1 - value if is_truth(value) else None
        if all(c > 0 for c in value.terms.values()):
            out: Int = 1
            for mono, c in value.terms.items():
                one = self.is_nothing(make({mono: c}))
                if one is None:
                    return None
                out = out * one
            return out
        # Sums over the same indices, of which one takes away a part of another.
        total: Int = 0
        first: list[Node] | None = None
        for mono, c in value.terms.items():
            if len(mono) != 1 or mono[0][1] != 1 or mono[0][0].op != "sum":
                return None
            loops, body = self.opened(mono[0][0])
            if first is None:
                first = loops
            elif [key_of(v.args[1]) for v in loops] != [key_of(v.args[1]) for v in first]:
                return None
            by = {v: atom(w) for v, w in zip(loops, first, strict=True)}
            total = total + c * self.replaced(body, by)
        one = self.is_nothing(total)
        assert first is not None
        return None if one is None else 1 - self.quantified(tuple(first), 1 - one)

    @staticmethod
    def chosen(value: Int, which: int) -> Int:
        """A value of one truth value where that is 0 or 1."""
        return sum((c for m, c in terms_of(value).items() if which or not m), 0)

    def indicator(self, condition: Node | bool) -> Int:
        """1 where a condition holds, else 0."""
        if isinstance(condition, bool):
            return int(condition)
        if condition.op == "not":
            return 1 - self.indicator(condition.args[0])
        if condition.op == "and":
            out: Int = 1
            for c in condition.args:
                out = out * self.indicator(c)
            return out
        if condition.op in ("eq0", "ge0"):
            answer = self.world.answer(condition)
            if answer is not None:
                return int(answer)
        if condition.op == "ge0":
            if not _upright(condition.args[0]):
                return 1 - self.indicator(negated(condition))
        elif self.world.known.get(condition.key) is not None:
            return int(self.world.known[condition.key])
        return atom(Node("holds", condition))

    # -- reductions

    def some(self, loops: Iterable[Node]) -> bool:
        """Whether indices may take any value: not where a size is known to be 0."""
        known = self.world.known
        return not any(
            size == 0 or known.get(getattr(is_zero(size), "key", ""))
            for v in loops
            for size in (v.args[1], self.world.canonical(v.args[1]))
        )
