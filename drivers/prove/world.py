"""One path through a proof: what is assumed of sizes and constants, and which way was chosen.

A proof runs the same code once for every way that its conditions can turn out. :meth:`World.decide`
answers a condition that follows from what is assumed, or its contrary; any other one is a fork: the
path assumes that it holds, and :func:`paths` runs again with the contrary. A condition of which the
solver knows nothing is a fork too, so what it cannot tell never makes a proof.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from mlirules.drivers.prove.expr import (
    Int,
    Node,
    Number,
    Poly,
    Undecided,
    atom,
    make,
    terms_of,
)

#: Milliseconds for one question to the solver.
QUESTION = 250


class Impossible(Exception):
    """A path that cannot occur, or that is no case of the rule."""


class Covered(Exception):
    """A path that an earlier round of the same proof has run."""


class OutOfTime(Undecided):
    """The proof's time is over."""


# ---- conditions -------------------------------------------------------------------------------


def is_zero(value: Int) -> Node | bool:
    """The condition that a whole number is 0."""
    if not isinstance(value, Poly):
        return bool(value == 0)
    first = next(iter(value.terms.values()))
    return Node("eq0", value if first > 0 else -value)


def at_least_zero(value: Int) -> Node | bool:
    """The condition that a whole number is not negative."""
    return Node("ge0", value) if isinstance(value, Poly) else bool(value >= 0)


def compared(op: str, a: Int, b: Int) -> Node | bool:
    """A comparison of whole numbers as a condition."""
    match op:
        case "==":
            return is_zero(a - b)
        case "!=":
            return negated(is_zero(a - b))
        case "<":
            return at_least_zero(b - a - 1)
        case "<=":
            return at_least_zero(b - a)
        case ">":
            return at_least_zero(a - b - 1)
        case ">=":
            return at_least_zero(a - b)
    raise Undecided(f"a comparison {op}")


def negated(condition: Node | bool) -> Node | bool:
    """The contrary of a condition."""
    if isinstance(condition, bool):
        return not condition
    if condition.op == "not":
        found = condition.args[0]
        assert isinstance(found, (Node, bool))
        return found
    if condition.op == "ge0":
        return at_least_zero(-condition.args[0] - 1)
    return Node("not", condition)


# ---- worlds -----------------------------------------------------------------------------------


@dataclass
class Limits:
    """How long a proof may take, and how far it goes; shared by all its paths."""

    deadline: float
    rank: int = 6
    paths: int = 20000
    #: Whether the rank that is allowed kept any choice from going further.
    capped: bool = False
    #: Sizes are at least this.
    least: int = 0
    #: Cases that no conversion rule lowers: the op, and the first reason.
    left_out: dict[str, str] = field(default_factory=dict)
    _context: Any = None

    def context(self) -> Any:
        """The solver's, shared by all paths."""
        if self._context is None:
            import z3

            self._context = z3.Context()
        return self._context

    def check(self) -> None:
        """Raise :class:`OutOfTime` when the time is over."""
        if time.monotonic() > self.deadline:
            raise OutOfTime("out of time")


class Witness:
    """Numbers for sizes and indices; what they leave open gets a number when it is asked for."""

    def __init__(self, numbers: dict[str, int], seed: int, least: int) -> None:
        self.least = least
        self.numbers = numbers
        self.count = seed

    def node(self, node: Node) -> int | None:
        """A node's number; None where it has none."""
        if node.op not in ("dim", "int", "var", "fdiv", "min", "holds"):
            return None
        if node.op == "fdiv":
            a, b = self.number(node.args[0]), self.number(node.args[1])
            return None if a is None or not b else a // b
        if node.op == "min":
            a, b = self.number(node.args[0]), self.number(node.args[1])
            return None if a is None or b is None else min(a, b)
        if node.op == "holds":
            held = self.holds(node.args[0])
            return None if held is None else int(held)
        found = self.numbers.get(node.key)
        if found is None:
            self.count += 1
            if node.op == "dim" and self.count % 9 == 5 and not self.least:
                found = 0
                self.numbers[node.key] = found
                return found
            found = (2, 3, 5, 7, 11, 4, 1, 6)[self.count % 8]
            if node.op == "var":
                size = self.number(node.args[1])
                if size is None or size < 1:
                    return None
                found = (self.count * 7 + 3) % size
            self.numbers[node.key] = found
        return found

    def number(self, value: Int) -> int | None:
        """A polynomial's number."""
        total = 0
        for mono, c in terms_of(value).items():
            if not isinstance(c, int):
                return None
            product = c
            for node, power in mono:
                one = self.node(node)
                if one is None:
                    return None
                product *= one**power
            total += product
        return total

    def holds(self, condition: Node | bool) -> bool | None:
        """Whether a condition holds; None where that is not known."""
        if isinstance(condition, bool):
            return condition
        match condition.op:
            case "eq0":
                value = self.number(condition.args[0])
                return None if value is None else value == 0
            case "ge0":
                value = self.number(condition.args[0])
                return None if value is None else value >= 0
            case "not":
                held = self.holds(condition.args[0])
                return None if held is None else not held
            case "and":
                parts = [self.holds(c) for c in condition.args]
                return False if False in parts else None if None in parts else True
        return None


@dataclass
class World:
    """The assumptions of one path. See the module's docstring."""

    limits: Limits
    script: Sequence[int] = ()
    taken: list[tuple[int, int]] = field(default_factory=list)
    known: dict[str, bool] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fresh_count: int = 0
    ranks: list[int] = field(default_factory=list)
    #: What the paths need to hold beyond the rule's own lines.
    facts: list[Node] = field(default_factory=list)
    #: Sizes that equations write by others.
    equal: dict[Node, Int] = field(default_factory=dict)
    _witnesses: list[Witness] = field(default_factory=list)
    _solver: Any = None
    _declared: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        import z3

        self._z3 = z3
        self._context = self.limits.context()
        self._solver = z3.Solver(ctx=self._context)
        self._solver.set("timeout", QUESTION)
        self._witnesses = [Witness({}, n, self.limits.least) for n in range(4)]

    # -- choices

    def fresh(self, stem: str) -> str:
        """A name that nothing else on this path has."""
        self.fresh_count += 1
        return f"{stem}'{self.fresh_count}"

    def choose(self, what: str, options: Sequence[Any]) -> Any:
        """One of some ways, all of which are run; the same one for the same ``what``."""
        if what in self.chosen:
            return self.chosen[what]
        if not options:
            raise Impossible(what)
        found = options[self._branch(len(options))]
        self.chosen[what] = found
        return found

    def _branch(self, count: int) -> int:
        self.limits.check()
        if count == 1:
            return 0
        at = len(self.taken)
        way = self.script[at] if at < len(self.script) else 0
        self.taken.append((way, count))
        return way

    def decide(self, condition: Node | bool) -> bool:
        """Whether a condition holds on this path; where both are possible, a fork."""
        if isinstance(condition, bool):
            return condition
        answer = self.answer(condition)
        if answer is not None:
            return answer
        if bound_in(condition):
            raise Undecided("a condition on an index that is summed over")
        way = self._branch(2) == 0
        self._hold(condition if way else negated(condition))
        self.known[condition.key] = way
        return way

    def answer(self, condition: Node | bool) -> bool | None:
        """Whether a condition follows, its contrary does, or (None) neither is known."""
        if isinstance(condition, bool):
            return condition
        held = self.known.get(condition.key)
        if held is not None:
            return held
        contrary = negated(condition)
        if isinstance(contrary, bool):
            return not contrary
        held = self.known.get(contrary.key)
        if held is not None:
            return not held
        if self.follows(condition):
            self.known[condition.key] = True
            return True
        if self.follows(contrary):
            self.known[condition.key] = False
            return False
        return None

    def assume(self, condition: Node | bool) -> None:
        """Assume a condition. Raises :class:`Impossible` where it contradicts what is known."""
        if isinstance(condition, bool):
            if not condition:
                raise Impossible("a condition that is false")
            return
        if self.known.get(condition.key):
            return
        self._hold(condition)
        if not self._witnesses and not self._witnessed():
            raise Impossible(str(condition))

    def _hold(self, condition: Node | bool) -> None:
        assert isinstance(condition, Node)
        self.known[condition.key] = True
        self.facts.append(condition)
        self._solver.add(self.encoded(condition))
        self._witnesses = [w for w in self._witnesses if w.holds(condition)]
        if condition.op == "eq0":
            self._equate(condition.args[0])

    def _equate(self, value: Int) -> None:
        """Remember an equation as a way to write one size by others."""
        for mono, c in terms_of(value).items():
            if len(mono) != 1 or mono[0][1] != 1 or abs(c) != 1:
                continue
            node = mono[0][0]
            if node.op not in ("dim", "int") or node in self.equal:
                continue
            rest = value - c * atom(node)
            if isinstance(rest, Poly) and (node in rest.symbols or rest.vars):
                continue
            self.equal[node] = -rest if c == 1 else rest
            return

    def _witnessed(self) -> bool:
        """Find numbers for which all that is assumed holds; False: there are none."""
        found = self._solver.check()
        if found == self._z3.unsat:
            return False
        if found == self._z3.sat:
            self._witness()
        return True

    def _witness(self) -> None:
        model = self._solver.model()
        numbers: dict[str, int] = {}
        for d in model.decls():
            name = d.name()
            value = model[d]
            if ":" in name and self._z3.is_int_value(value):
                numbers[name.split(":", 1)[1]] = value.as_long()
        made = Witness(numbers, len(self._witnesses), self.limits.least)
        if all(made.holds(f) for f in self.facts):
            self._witnesses = [*self._witnesses[-7:], made]

    def possible(self) -> bool:
        """Whether the assumptions may hold together, as far as the solver can tell."""
        return bool(self._witnesses) or self._witnessed()

    # -- proofs of conditions

    def follows(self, condition: Node | bool) -> bool:
        """Whether a condition follows from what is assumed; False also where that is unknown."""
        if isinstance(condition, bool):
            return condition
        if self.known.get(condition.key):
            return True
        if condition.op == "ge0" and self._plainly(condition.args[0]):
            return True
        # Numbers for which it does not hold are an answer without the solver.
        if any(w.holds(condition) is False for w in self._witnesses):
            return False
        self.limits.check()
        self._solver.push()
        try:
            # Declarations of what occurs are assertions too: encode before the question.
            question = self.encoded(condition)
            self._solver.add(self._z3.Not(question))
            answer = self._solver.check()
            found = answer == self._z3.unsat
            if answer == self._z3.sat:
                self._witness()
        finally:
            self._solver.pop()
            self._declared.clear()
        return bool(found)

    @staticmethod
    def _plainly(value: Int) -> bool:
        return all(
            c >= 0 and all(n.op in ("var", "dim") or p % 2 == 0 for n, p in m)
            for m, c in terms_of(value).items()
        )

    def nonempty(self, loops: Iterable[Node]) -> bool:
        """Whether every one of some indices takes a value."""
        return all(self.follows(at_least_zero(v.args[1] - 1)) for v in loops)

    def same(self, a: Int, b: Int) -> bool:
        """Whether two whole numbers are equal for certain."""
        return self.follows(is_zero(a - b))

    def within(self, value: Int, size: Int) -> bool:
        """Whether 0 <= value < size for certain."""
        if self._radix(value, size):
            return True
        return self.follows(at_least_zero(value)) and self.follows(at_least_zero(size - value - 1))

    def _radix(self, value: Int, size: Int) -> bool:
        """Digits below their bases: j + N*i below N*M where j is below N and i below M."""
        if not isinstance(value, Poly):
            return isinstance(size, int) and 0 <= value < size
        for mono in value.terms:
            for node, power in mono:
                if node.op != "var" or power != 1:
                    continue
                weight = make(
                    {
                        tuple(t for t in m if t[0] != node): c
                        for m, c in value.terms.items()
                        if (node, 1) in m
                    }
                )
                rest = value - weight * atom(node)
                if weight * node.args[1] - size == 0 and (
                    (weight == 1 and rest == 0) or self._radix_rest(rest, weight)
                ):
                    return True
        return False

    def _radix_rest(self, rest: Int, weight: Int) -> bool:
        if rest == 0:
            return self.follows(at_least_zero(weight - 1))
        return self._radix(rest, weight)

    # -- whole numbers

    def idiv(self, a: Int, b: Int) -> Int:
        """``a // b`` rounded down."""
        if b == 1:
            return a
        if isinstance(b, int) and b == 0:
            raise Undecided("a division by zero")
        if not isinstance(a, Poly) and not isinstance(b, Poly):
            return int(a) // int(b)
        if a == 0:
            return 0
        whole_part, rest = divided(a, b)
        if not isinstance(whole_part, int) or whole_part != 0:
            if rest == 0:
                if isinstance(b, int) or self.follows(negated(is_zero(b))):
                    return whole_part
            elif self.within(rest, b):
                return whole_part
            elif isinstance(b, int) or self.follows(negated(is_zero(b))):
                return whole_part + self.idiv(rest, b)
        elif self.within(a, b):
            return 0
        if isinstance(a, Poly) and len(a.terms) == 1 and isinstance(b, (int, Poly)):
            # (x // m) // n is x // (m * n) for positive m and n.
            ((mono, c),) = a.terms.items()
            if c == 1 and len(mono) == 1 and mono[0][1] == 1 and mono[0][0].op == "fdiv":
                x, m = mono[0][0].args
                if self.follows(at_least_zero(m - 1)) and self.follows(at_least_zero(b - 1)):
                    return self.idiv(x, m * b)
        return atom(Node("fdiv", a, b))

    def imod(self, a: Int, b: Int) -> Int:
        """``a % b`` with the sign of ``b``."""
        return a - b * self.idiv(a, b)

    def least(self, a: Int, b: Int) -> Int:
        """The smaller of two whole numbers."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        answer = self.answer(at_least_zero(b - a))
        if answer is not None:
            return a if answer else b
        first, second = sorted((a, b), key=str)
        return atom(Node("min", first, second))

    def most(self, a: Int, b: Int) -> Int:
        """The larger of two whole numbers."""
        return -self.least(-a, -b)

    def picked(self, condition: Node | bool, a: Int, b: Int) -> Int:
        """``a`` where a condition holds, else ``b``."""
        answer = self.answer(condition)
        if answer is not None:
            return a if answer else b
        if (a - b) == 0:
            return a
        assert isinstance(condition, Node)
        return b + atom(Node("holds", condition)) * (a - b)

    # -- the solver's language

    def encoded(self, condition: Node | bool) -> Any:
        """A condition as the solver's formula; what occurs is declared with its range."""
        z3 = self._z3
        if isinstance(condition, bool):
            return z3.BoolVal(condition, ctx=self._context)
        match condition.op:
            case "not":
                return z3.Not(self.encoded(condition.args[0]))
            case "and":
                return z3.And(*[self.encoded(c) for c in condition.args])
            case "or":
                return z3.Or(*[self.encoded(c) for c in condition.args])
            case "eq0":
                return self.number(condition.args[0]) == 0
            case "ge0":
                return self.number(condition.args[0]) >= 0
            case "req0":
                return self.number(condition.args[0], real=True) == 0
            case "rge0":
                return self.number(condition.args[0], real=True) >= 0
            case "rgt0":
                return self.number(condition.args[0], real=True) > 0
        return z3.Bool("b:" + condition.key, ctx=self._context)

    def number(self, value: Int, *, real: bool = False) -> Any:
        """A polynomial in the solver's arithmetic."""
        z3 = self._z3

        def constant(c: Number) -> Any:
            if real:
                return z3.RealVal(str(Fraction(c)), ctx=self._context)
            if isinstance(c, Fraction):
                raise Undecided("a fraction among whole numbers")
            return z3.IntVal(c, ctx=self._context)

        total = constant(0)
        for mono, c in terms_of(value).items():
            product = constant(c)
            for node, power in mono:
                one = self._symbol(node, real)
                for _ in range(power):
                    product = product * one
            total = total + product
        return total

    def _symbol(self, node: Node, real: bool) -> Any:
        z3 = self._z3
        whole = node.op in ("var", "dim", "int", "fdiv", "min")
        name = f"{node.op}:{node.key}"
        if whole:
            symbol = z3.Int(name, ctx=self._context)
            if name not in self._declared:
                self._declared[name] = symbol
                self._ranged(node, symbol)
            return z3.ToReal(symbol) if real else symbol
        if node.op == "holds":
            one, zero = (
                (z3.RealVal(1, ctx=self._context), z3.RealVal(0, ctx=self._context))
                if real
                else (z3.IntVal(1, ctx=self._context), z3.IntVal(0, ctx=self._context))
            )
            return z3.If(self.encoded(node.args[0]), one, zero)
        return (z3.Real if real else z3.Int)(f"{name}:{real}", ctx=self._context)

    def _ranged(self, node: Node, symbol: Any) -> None:
        z3 = self._z3
        match node.op:
            case "dim":
                self._solver.add(symbol >= self.limits.least)
            case "var":
                self._solver.add(symbol >= 0, symbol < self.number(node.args[1]))
            case "fdiv":
                a, b = self.number(node.args[0]), self.number(node.args[1])
                self._solver.add(
                    z3.Implies(b > 0, z3.And(symbol * b <= a, a < symbol * b + b)),
                )
            case "min":
                a, b = self.number(node.args[0]), self.number(node.args[1])
                self._solver.add(symbol == z3.If(a <= b, a, b))


def divided(a: Int, b: Int) -> tuple[Int, Int]:
    """``a`` as ``b * whole + rest`` by its terms: those that ``b`` divides go into ``whole``."""
    if isinstance(b, int):
        quotient: dict[Any, Number] = {}
        rest: dict[Any, Number] = {}
        for m, c in terms_of(a).items():
            assert isinstance(c, int)
            q, r = divmod(c, b)
            quotient[m], rest[m] = q, r
        return make(quotient), make(rest)
    if isinstance(b, Poly) and len(b.terms) == 1:
        ((by, c),) = b.terms.items()
        powers = dict(by)
        quotient, rest = {}, {}
        for m, k in terms_of(a).items():
            have = dict(m)
            if k % c == 0 and all(have.get(n, 0) >= p for n, p in powers.items()):
                left = tuple((n, p - powers.get(n, 0)) for n, p in m if p > powers.get(n, 0))
                quotient[left] = k // c if isinstance(k, int) else k / c
            else:
                rest[m] = k
        return make(quotient), make(rest)
    if isinstance(b, Poly):
        for m, k in terms_of(a).items():
            # A multiple of a sum, found by its first term.
            lead, c = next(iter(b.terms.items()))
            one, none = divided(make({m: k}), make({lead: c}))
            if none == 0 and one != 0:
                rest_of = a - one * b
                if len(terms_of(rest_of)) < len(terms_of(a)):
                    more, left_over = divided(rest_of, b)
                    return one + more, left_over
    return 0, a


def paths(run: Callable[[World], Any], limits: Limits) -> Iterator[tuple[World, Any]]:
    """Run every way that the conditions can turn out; each with its world."""
    waiting: list[tuple[int, ...]] = [()]
    count = 0
    while waiting:
        script = waiting.pop()
        limits.check()
        count += 1
        if count > limits.paths:
            raise OutOfTime(f"more than {limits.paths} cases")
        world = World(limits, script)
        try:
            found = run(world)
        except (Impossible, Covered):
            found = None
        ways = [w for w, _ in world.taken]
        waiting.extend(
            (*ways[:at], way)
            for at in range(len(script), len(world.taken))
            for way in range(1, world.taken[at][1])
        )
        if found is not None:
            yield world, found


def bound_in(value: Node | Poly) -> bool:
    """Whether an index occurs that is reduced over: only indices of results are free."""
    return any(not str(v.args[0]).startswith("out:") for v in value.vars)


def all_of(conditions: Iterable[Node | bool]) -> Node | bool:
    """The condition that all of some hold."""
    left: dict[str, Node] = {}
    for c in conditions:
        if isinstance(c, bool):
            if not c:
                return False
            continue
        left[c.key] = c
    if not left:
        return True
    if len(left) == 1:
        return next(iter(left.values()))
    return Node("and", *[left[k] for k in sorted(left)])
