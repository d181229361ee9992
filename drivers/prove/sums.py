"""Sums, products and the other reductions of normal forms, over indices that are bound."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from mlirules.drivers.prove.conditions import at_least_zero
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
    nodes_in,
    terms_of,
)
from mlirules.drivers.prove.laws import Laws
from mlirules.drivers.prove.replacing import (
    Replacement,
    linear_in,
    variables_of,
)
from mlirules.drivers.prove.world import divided

#: Permutations of the indices of one sum that are tried for its smallest form.
_ORDERS = 24


#: Sums over at most so many numbers are written out where nothing else shows an equality.
_WRITTEN_OUT = 8


class Sums(Laws):
    """Reductions under the assumptions of one world, each in its one form."""

    #: Whether sums over few numbers, as many on all paths, are written out.
    unroll: bool = False

    def reduced(self, op: str, loops: Iterable[Node], value: Int) -> Int:
        """A reduction that no law but the renaming of its indices is used on."""
        used = [v for v in loops if v.args[1] != 1]
        for v in loops:
            if v.args[1] == 1:
                value = self.replaced(value, {v: 0})
        if not used:
            return value
        if op == "any" and not isinstance(value, Poly):
            raise Undecided("a truth value that holds for any index of what may be empty")
        return atom(self.renamed("reduce", used, value, op))

    def summed(self, loops: Iterable[Node], value: Int) -> Int:
        """A sum over loop indices, term by term."""
        total: Int = 0
        loops = list(loops)
        for mono, c in terms_of(value).items():
            total = total + self.summed_term(loops, mono, c)
            self.world.limits.check()
        return total

    def count(self, size: Int) -> int | None:
        """A size that is a small number, by itself or by what is known of it."""
        if isinstance(size, Poly):
            size = self.replaced(size, self.world.equal)
        return size if isinstance(size, int) and 0 <= size <= _WRITTEN_OUT else None

    def summed_term(self, loops: list[Node], mono: Mono, c: Number) -> Int:
        """The sum of one product over loop indices."""
        for v in loops:
            if v.args[1] == 0:
                return 0
            if v.args[1] == 1:
                rest = [w for w in loops if w is not v]
                return self.summed(rest, self.replaced(make({mono: c}), {v: 0}))
        for v in loops if self.unroll else ():
            count = self.count(v.args[1])
            if count is not None:
                rest = [w for w in loops if w is not v]
                term = make({mono: c})
                out: Int = 0
                for i in range(count):
                    out = out + self.summed(rest, self.replaced(term, {v: i}))
                return out
        # Sums inside: the sum of sums is one sum.
        bound = frozenset(loops)
        for node, power in mono:
            if node.op == "sum" and power == 1 and node.vars & bound:
                inner, body = self.opened(node)
                left = make({tuple(t for t in mono if t[0] != node): c})
                return self.summed([*loops, *inner], left * body)
        split = self._split(loops, mono, c)
        if split is not None:
            return split
        out = c
        depending: list[tuple[Node, int]] = []
        for node, power in mono:
            if node.vars & bound:
                depending.append((node, power))
            else:
                for _ in range(power):
                    out = out * atom(node)
        # Indices that no factor and no size shares fall apart into sums of their own.
        left_loops = list(loops)
        while left_loops:
            part = {left_loops[0]}
            factors: list[tuple[Node, int]] = []
            grown = True
            while grown:
                grown = False
                for t in depending:
                    if t not in factors and t[0].vars & part:
                        factors.append(t)
                        part |= t[0].vars & bound
                        grown = True
                for v in left_loops:
                    size = v.args[1]
                    tied = size.vars & bound if isinstance(size, Poly) else frozenset()
                    if (v in part and not tied <= part) or (v not in part and tied & part):
                        part |= tied | {v}
                        grown = True
            mine = [v for v in left_loops if v in part]
            left_loops = [v for v in left_loops if v not in part]
            if not factors:
                if any(isinstance(v.args[1], Poly) and v.args[1].vars & bound for v in mine):
                    raise Undecided("a count of indices that depend on one another")
                for v in mine:
                    out = out * v.args[1]
                continue
            body = make({tuple(sorted(factors, key=lambda t: t[0].key)): 1})
            out = out * atom(self.renamed("sum", mine, body))
        return out

    def _split(self, loops: list[Node], mono: Mono, c: Number) -> Int | None:
        """One step that makes the index set of a sum plainer, as a sum over it; None: none left."""
        world = self.world
        mine = frozenset(loops)
        for node, _ in mono:
            if not node.vars & mine:
                continue
            if node.op == "holds" and node.args[0].op in ("eq0", "ge0"):
                inner = node.args[0].args[0]
                for v in loops:
                    weight, rest = linear_in(inner, v)
                    if weight not in (1, -1) or v in variables_of(rest):
                        continue
                    if isinstance(rest, Poly) and any(
                        isinstance(w.args[1], Poly) and v in w.args[1].vars for w in loops
                    ):
                        continue
                    size = v.args[1]
                    left = make({tuple(t for t in mono if t[0] != node): c})
                    others = [w for w in loops if w != v]
                    if node.args[0].op == "eq0":
                        at = -rest if weight == 1 else rest
                        if world.within(at, size):
                            return self.summed(others, self.replaced(left, {v: at}))
                        continue
                    if weight == -1:
                        # v <= rest
                        most = rest + 1
                        if world.follows(at_least_zero(most)) and world.follows(
                            at_least_zero(size - most)
                        ):
                            new = Node("var", world.fresh("k"), most)
                            return self.summed([*others, new], self.replaced(left, {v: atom(new)}))
                    else:
                        low = -rest
                        if world.follows(at_least_zero(low)) and world.follows(
                            at_least_zero(size - low)
                        ):
                            new = Node("var", world.fresh("k"), size - low)
                            return self.summed(
                                [*others, new], self.replaced(left, {v: atom(new) + low})
                            )
        # An index that is taken apart into digits: one index for each digit.
        for node in nodes_in(tuple(n for n, _ in mono)):
            if node.op != "fdiv":
                continue
            for v in loops:
                if node.args[0] == atom(v):
                    many, none = divided(v.args[1], node.args[1])
                    if none == 0 and not variables_of(node.args[1]) & mine:
                        high = Node("var", world.fresh("k"), many)
                        low_digit = Node("var", world.fresh("k"), node.args[1])
                        others = [w for w in loops if w != v]
                        value = self.replaced(
                            make({mono: c}), {v: atom(high) * node.args[1] + atom(low_digit)}
                        )
                        return self.summed([*others, high, low_digit], value)
        return None

    def opened(self, node: Node) -> tuple[list[Node], Int]:
        """The indices and the body of a sum, under fresh names."""
        loops, body = node.args[:2]
        new: list[Node] = []
        by: dict[Node, Int] = {}
        for v in loops:
            size = self.replaced(v.args[1], by)
            fresh = Node("var", self.world.fresh("k"), size)
            new.append(fresh)
            by[v] = atom(fresh)
        return new, self.replaced(body, by)

    def renamed(self, op: str, loops: list[Node], body: Int, *more: object) -> Node:
        """A sum or reduction under names of its own, in the order that gives the smallest key."""
        height = 1 + max(
            (
                int(str(n.args[0][0].args[0])[1:].split(".")[0])
                for n in nodes_in(body)
                if n.op in ("sum", "reduce")
            ),
            default=0,
        )

        def place(order: list[Node]) -> Node:
            by: dict[Node, Int] = {}
            named: list[Node] = []
            for i, v in enumerate(order):
                size = self.world.canonical(self.replaced(v.args[1], by))
                new = Node("var", f"#{height}.{i}", size)
                by[v] = atom(new)
                named.append(new)
            # A bare renaming changes no range: nothing has to be simplified again.
            return Node(op, tuple(named), self.replaced(body, by, bare=True), *more)

        def signature(v: Node) -> str:
            by = {w: atom(Node("var", "#self" if w == v else "#other", 0)) for w in loops}
            return key_of(v.args[1]) + key_of(self.replaced(body, by, bare=True))

        groups: dict[str, list[Node]] = {}
        if len(loops) == 1:
            return place(loops)
        for v in loops:
            groups.setdefault(signature(v), []).append(v)
        ordered = [groups[k] for k in sorted(groups)]
        best: Node | None = None
        for count, parts in enumerate(
            itertools.product(*(itertools.permutations(g) for g in ordered))
        ):
            if count >= _ORDERS:
                break
            found = place([v for part in parts for v in part])
            if best is None or found.key < best.key:
                best = found
        assert best is not None
        return best

    # -- replacing indices

    def replaced(self, value: object, by: dict[Node, Int], *, bare: bool = False) -> Any:
        """A value with loop indices replaced; ``bare``: by other names alone."""
        if not by:
            return value
        return Replacement(self, by, bare=bare).value(value)
