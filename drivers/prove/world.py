"""One path through a proof: what is assumed of sizes and constants, and which way was chosen.

A proof runs the same code once for every way that its conditions can turn out. :meth:`World.decide`
answers a condition that follows from what is assumed, or its contrary; any other one is a fork: the
path assumes that it holds, and :func:`paths` runs again with the contrary. A condition of which the
solver knows nothing is a fork too, so what it cannot tell never makes a proof.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from mlirules.drivers.prove.conditions import (
    any_of,
    at_least_zero,
    is_zero,
    negated,
)
from mlirules.drivers.prove.expr import (
    Int,
    Node,
    Number,
    Poly,
    Undecided,
    atom,
    dim,
    key_of,
    make,
    terms_of,
)
from mlirules.drivers.prove.solver import Solver, Witness
from mlirules.language.values import DType


class Impossible(Exception):
    """A path that cannot occur, or that is no case of the rule."""


class OutOfTime(Undecided):
    """The proof's time is over."""


# ---- worlds -----------------------------------------------------------------------------------


@dataclass
class Limits:
    """How long a proof may take, and how far it goes; shared by all its paths."""

    #: By the processor's time of this process: what else runs on the machine changes no verdict.
    deadline: float
    rank: int = 6
    paths: int = 50000
    #: Whether the rank that is allowed kept any choice from going further.
    capped: bool = False
    #: Sizes are at least this.
    least: int = 0
    #: Cases that no conversion rule lowers: the op, and the first reason.
    left_out: dict[str, str] = field(default_factory=dict)
    #: Every path of a lower rank has been run.
    rank_at_work: int = 0
    #: Whether what broadcasting asks of sizes is decided at once.
    eager: bool = False
    #: Constants that stand for one number each; numbers that round to one are one.
    constants: dict[str, float] = field(default_factory=dict)
    rounded: list[Fraction] = field(default_factory=list)
    #: The element types that a symbol may stand for; all where none is given.
    types: tuple[DType, ...] = ()
    _solver: Solver | None = None
    _looked: float = 0.0

    def solver(self) -> Solver:
        """The solver, shared by all paths."""
        if self._solver is None:
            self._solver = Solver(self.least)
        return self._solver

    def near(self, value: Number) -> Number:
        """The number that stands for all that round to it, where constants do."""
        if not self.constants or not isinstance(value, Fraction):
            return value
        for other in self.rounded:
            if abs(value - other) * 1_000_000_000 <= abs(other):
                return other
        self.rounded.append(value)
        return value

    def check(self) -> None:
        """Raise :class:`OutOfTime` when the time is over."""
        # The processor's time is dear to ask for: no more often than a plain clock says.
        now = time.perf_counter()
        if now - self._looked > 0.05:
            self._looked = now
            if time.process_time() > self.deadline:
                raise OutOfTime("out of time")


@dataclass
class World:
    """The assumptions of one path. See the module's docstring."""

    limits: Limits
    script: Sequence[int] = ()
    #: For each choice the way taken, and the highest rank of the path for each way.
    taken: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    known: dict[str, bool] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fresh_count: int = 0
    rank: int = 0
    #: What the paths need to hold beyond the rule's own lines.
    facts: list[Node] = field(default_factory=list)
    #: Sizes that a reshape infers, by how many elements there are and how many beside it.
    inferred: dict[str, Int] = field(default_factory=dict)
    #: Lists of sizes that a program reshapes to, with how many elements, and the shapes.
    shaped: list[tuple[str, Int, list[Int]]] = field(default_factory=list)
    #: Slices as maps of indices: what names one, its bounds and the size of its axis.
    slices: list[tuple[Node, Node, Int]] = field(default_factory=list)
    #: Sizes that others are broadcast to, and those.
    wide: dict[Node, frozenset[Node]] = field(default_factory=dict)
    #: Indices that are below a size for certain, by their keys.
    inside: set[tuple[str, str]] = field(default_factory=set)
    #: Sizes that reductions run over, each written in one way.
    sizes: list[Int] = field(default_factory=list)
    #: Axes that the program gives, and what is chosen of them.
    axes: dict[Node, Any] = field(default_factory=dict)
    #: Numbers that a condition says to be others.
    reals: dict[str, Int] = field(default_factory=dict)
    #: By a maximum of real numbers and minus infinities: when any of them is real.
    maxima: dict[str, Int] = field(default_factory=dict)
    #: What says when a value is minus infinity.
    lowest: Callable[[Int], Int | None] | None = None
    #: Sizes that equations write by others.
    equal: dict[Node, Int] = field(default_factory=dict)
    #: Numbers for which all that is assumed holds; how many facts they were held against.
    _witnesses: list[Witness] = field(default_factory=list)
    _seen: list[Witness] | None = None
    _checked: int = 0

    # -- choices

    def stage(self) -> tuple[int, int]:
        """What changes whenever more is assumed or chosen."""
        return len(self.facts), len(self.chosen)

    def fresh(self, stem: str) -> str:
        """A name that nothing else on this path has."""
        self.fresh_count += 1
        return f"{stem}'{self.fresh_count}"

    def choose(self, what: str, options: Sequence[object], ranks: Sequence[int] = ()) -> Any:
        """One of some ways, all of which are run; the same one for the same ``what``.

        ``ranks``: the rank that each way stands for; paths of lower ranks are run first.
        """
        if what in self.chosen:
            return self.chosen[what]
        if not options:
            raise Impossible(what)
        at = self._branch(len(options), ranks)
        if ranks:
            self.rank = max(self.rank, ranks[at])
        self.chosen[what] = options[at]
        return options[at]

    def _branch(self, count: int, ranks: Sequence[int] = ()) -> int:
        self.limits.check()
        if count == 1:
            return 0
        at = len(self.taken)
        way = self.script[at] if at < len(self.script) else 0
        reached = tuple(max(self.rank, r) for r in ranks) if ranks else (self.rank,) * count
        self.taken.append((way, reached))
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
        self.hold(condition if way else negated(condition))
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

    def assume(self, condition: Node | bool, *, check: bool = True) -> None:
        """Assume a condition. Raises :class:`Impossible` where it contradicts what is known.

        ``check=False``: a contradiction is found where next it is asked for.
        """
        if isinstance(condition, bool):
            if not condition:
                raise Impossible("a condition that is false")
            return
        if self.known.get(condition.key):
            return
        self.hold(condition)
        if check and not self.possible():
            raise Impossible(str(condition))

    def hold(self, condition: Node | bool) -> None:
        """Write down a condition that is assumed, or that follows."""
        assert isinstance(condition, Node)
        self.known[condition.key] = True
        self.facts.append(condition)
        if condition.op == "eq0":
            self._equate(condition.args[0])

    def _equate(self, value: Int) -> None:
        """Remember an equation as a way to write one size by others, by a single one if it can."""
        for mono, c in terms_of(value).items():
            if len(mono) != 1 or mono[0][1] != 1 or abs(c) != 1:
                continue
            node = mono[0][0]
            if node.op not in ("dim", "int"):
                continue
            rest = value - c * atom(node)
            rest = -rest if c == 1 else rest
            if isinstance(rest, Poly) and (rest.vars or node in self._written_by(rest)):
                continue
            if node in self.equal and (_single(self.equal[node]) or not _single(rest)):
                continue
            self.equal[node] = rest
            return

    def _written_by(self, value: Poly) -> set[Node]:
        """The sizes that a value is written by in the end."""
        found: set[Node] = set()
        waiting = list(value.symbols)
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                by = self.equal.get(node)
                if isinstance(by, Poly):
                    waiting.extend(by.symbols)
        return found

    def witnesses(self) -> list[Witness]:
        """Numbers for which all that is assumed holds."""
        solver = self.limits.solver()
        if self._seen is not solver.witnesses:
            self._seen, self._checked = solver.witnesses, 0
            self._witnesses = list(solver.witnesses)
        if self._checked < len(self.facts):
            new = self.facts[self._checked :]
            self._witnesses = [w for w in self._witnesses if all(w.holds(f) for f in new)]
            self._checked = len(self.facts)
        return self._witnesses

    def possible(self) -> bool:
        """Whether the assumptions may hold together, as far as the solver can tell."""
        return bool(self.witnesses()) or self.limits.solver().consistent(self.facts)

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
        if any(w.holds(condition) is False for w in self.witnesses()):
            return False
        self.limits.check()
        return self.limits.solver().follows(condition, self.facts)

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
        if self.inside and (key_of(value), key_of(size)) in self.inside:
            return True
        if self._radix(value, size):
            return True
        if self.follows(at_least_zero(value)) and self.follows(at_least_zero(size - value - 1)):
            return True
        return self._between(value, size)

    def _between(self, value: Int, size: Int) -> bool:
        """Bounds by the first and the last index, where no index counts backwards."""
        if not isinstance(value, Poly):
            return False
        low, high, runs = value, value, list[Node]()
        for v in value.vars:
            weight: Int = 0
            for mono, c in value.terms.items():
                if (v, 1) in mono:
                    weight = weight + make({tuple(t for t in mono if t[0] != v): c})
                elif any(v in n.vars for n, _ in mono):
                    return False
            if isinstance(weight, Poly) and weight.vars:
                return False
            if not self.follows(at_least_zero(weight)):
                return False
            if isinstance(v.args[1], Poly) and v.args[1].vars:
                return False
            low = low - weight * atom(v)
            high = high + weight * (v.args[1] - 1 - atom(v))
            some = at_least_zero(v.args[1] - 1)
            if isinstance(some, Node):
                runs.append(some)
        return self._given(at_least_zero(low), runs) and self._given(
            at_least_zero(size - high - 1), runs
        )

    def _given(self, condition: Node | bool, more: Sequence[Node]) -> bool:
        """Whether a condition follows where some more hold."""
        if isinstance(condition, bool):
            return condition
        return self.limits.solver().follows(condition, [*self.facts, *more])

    def _radix(self, value: Int, size: Int) -> bool:
        """Digits below their bases: j + N*i below N*M where j is below N and i below M."""
        if not isinstance(value, Poly):
            return isinstance(size, int) and 0 <= value < size
        for mono in value.terms:
            for node, power in mono:
                if node.op not in ("var", "pick") or power != 1:
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

    # -- broadcasting

    def joined(self, sizes: Sequence[Int], *, assume: bool) -> Int | None:
        """The size that sizes broadcast to, without asking which of them are 1.

        None: where that does not help, or (unless ``assume``) they may not fit.
        """
        if self.limits.eager:
            return None
        found: set[Node] = set()
        for s in sizes:
            if isinstance(s, int):
                if s != 1:
                    return None
                continue
            name = _named(s)
            if name is None:
                return None
            found |= self.wide.get(name, frozenset((name,)))
        if len(found) < 2:
            return atom(next(iter(found))) if found else 1
        names = sorted(found, key=lambda n: n.key)
        first = atom(names[0])
        if all(self.same(first, atom(n)) for n in names[1:]):
            return first
        all_of_them = frozenset(found)
        for wide, of in self.wide.items():
            if of == all_of_them:
                return atom(wide)
        if not assume:
            for at, a in enumerate(names):
                for b in names[:at]:
                    if not self.follows(_fit(atom(a), atom(b))):
                        return None
        out = dim("the broadcast of " + ",".join(n.key for n in names))
        for n in names:
            self.assume(_fit(atom(n), out, only=True), check=False)
        self.assume(any_of(is_zero(out - atom(n)) for n in names))
        ((mono, _),) = out.terms.items()
        self.wide[mono[0][0]] = all_of_them
        return out

    def stretches(self, size: Int, to: Int, *, assume: bool) -> bool:
        """Whether a size is 1 or another one for certain; ``assume``: that it is so."""
        if self.limits.eager or not isinstance(size, Poly) or not isinstance(to, Poly):
            return False
        fit = _fit(size, to, only=True)
        if assume:
            self.assume(fit)
            return True
        return self.follows(fit)

    def broadcasts(self, size: Poly, index: Poly) -> bool:
        """Whether an index runs over a size that this one is broadcast to."""
        name = _named(index)
        if name is None or name.op != "var":
            return False
        return bool(self.known.get(getattr(_fit(size, name.args[1], only=True), "key", "")))

    def canonical(self, size: Int) -> Int:
        """One way to write a size for all ways that are known to be equal."""
        if not isinstance(size, Poly) or size.vars:
            return size
        name = _named(size)
        for _ in range(4):
            other = self.equal.get(name) if name is not None else None
            if not isinstance(other, Poly) or _named(other) is None:
                break
            size, name = other, _named(other)
        if all(n.op in ("dim", "int") for m in size.terms for n, _ in m):
            if size not in self.sizes:
                self.sizes.append(size)
            return size
        for other in self.sizes:
            if self.same(size, other):
                return other
        self.sizes.append(size)
        return size

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
        for w, left in _factors(b):
            # (w*i + r) // (w*n) is i // n where r is a digit below w.
            high, low = divided(a, w)
            if high != 0 and self.follows(at_least_zero(w - 1)) and self.within(low, w):
                return self.idiv(high, left)
        name = _named(b)
        if name is not None and name.op == "int" and self.same(b, 1):
            return a
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


def _named(value: Int) -> Node | None:
    """The node that a value is."""
    if not isinstance(value, Poly) or len(value.terms) != 1:
        return None
    ((mono, c),) = value.terms.items()
    return mono[0][0] if c == 1 and len(mono) == 1 and mono[0][1] == 1 else None


def _factors(value: Int) -> Iterator[tuple[Int, Int]]:
    """The ways to write a product of sizes as a product of two, the larger first factors first."""
    if not isinstance(value, Poly) or len(value.terms) != 1:
        return
    ((mono, c),) = value.terms.items()
    nodes = [n for n, p in mono for _ in range(p)]
    if c != 1 or not 2 <= len(nodes) <= 5:
        return
    for count in range(len(nodes) - 1, 0, -1):
        for some in itertools.combinations(range(len(nodes)), count):
            w: Int = 1
            left: Int = 1
            for at, n in enumerate(nodes):
                if at in some:
                    w = w * atom(n)
                else:
                    left = left * atom(n)
            yield w, left


def _fit(a: Int, b: Int, *, only: bool = False) -> Node | bool:
    """The condition that two sizes broadcast; ``only``: the first to the second."""
    one = [is_zero(a - 1)] if only else [is_zero(a - 1), is_zero(b - 1)]
    return any_of([*one, is_zero(a - b)])


def _single(value: Int) -> bool:
    """Whether a value is a number or one size."""
    if not isinstance(value, Poly):
        return True
    ((mono, c), *more) = value.terms.items()
    return not more and c == 1 and len(mono) == 1 and mono[0][1] == 1


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
    """Run every way that the conditions can turn out, lower ranks first; each with its world."""
    waiting: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())]
    count = 0
    while waiting:
        rank, _, script = heapq.heappop(waiting)
        limits.rank_at_work = rank
        limits.check()
        count += 1
        if count > limits.paths:
            raise OutOfTime(f"more than {limits.paths} cases")
        world = World(limits, script)
        try:
            found = run(world)
        except Impossible:
            found = None
        ways = [w for w, _ in world.taken]
        for at in range(len(script), len(world.taken)):
            for way, reached in enumerate(world.taken[at][1]):
                if way:
                    # Of one rank the latest first: few wait.
                    order = -count * 1000 - at
                    heapq.heappush(waiting, (reached, order, (*ways[:at], way)))
        if found is not None:
            yield world, found


def bound_in(value: Node | Poly) -> bool:
    """Whether an index occurs that is reduced over: only indices of results are free."""
    return any(not str(v.args[0]).startswith("out:") for v in value.vars)
