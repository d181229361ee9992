"""Functions on lists and axes that are known only as symbols."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from mlirules.drivers.prove.axes import Unordered, pinned
from mlirules.drivers.prove.conditions import is_zero
from mlirules.drivers.prove.expr import Int, Poly, Undecided
from mlirules.drivers.prove.scalars import E
from mlirules.drivers.prove.world import World
from mlirules.language.builtins.lists import replaced, without
from mlirules.language.evaluate import Evaluator
from mlirules.language.notation import ast
from mlirules.language.operands import Refused, sequence, tensor


def in_order(value: object) -> Any:
    """A list whose order is chosen."""
    return value.ordered() if isinstance(value, Unordered) else value


#: Functions of a list that do not depend on its order.
UNORDERED = frozenset(
    {"drop", "reduced", "restore", "len", "product", "sum", "distinct", "permute"}
)


class Lists(Evaluator):
    """Expressions over lists; an axis is chosen where something stands on it."""

    def __init__(self, world: World, names: Mapping[str, Any]) -> None:
        super().__init__(names)
        self.world = world

    def whole(self, value: object, what: str) -> Int:
        """A whole number, perhaps a symbol."""
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, (int, Poly)):
            return value
        if isinstance(value, (E, float)):
            raise Refused(f"{what} is not a whole number")
        raise Refused(f"{what} is not a number")

    def concrete(self, value: object, low: int, high: int) -> int:
        """A whole number as one of ``low`` .. ``high`` - 1, each a case of its own."""
        given = pinned(self.world, self.whole(value, "the axis"))
        if isinstance(given, int):
            return given
        for v in itertools.chain(range(max(low, 0), high), range(low, min(0, high))):
            if self.world.decide(is_zero(given - v)):
                return int(v)
        raise Refused("the axis is out of range")

    def do_dim(self, x: object, axis: object) -> Any:
        """The size of one dim."""
        sizes = list(tensor(x).dims or ())
        at = self.concrete(axis, -len(sizes), len(sizes))
        if not -len(sizes) <= at < len(sizes):
            raise Refused(f"axis {at} is outside a rank-{len(sizes)} tensor")
        return sizes[at]

    def do_take(self, items: object, count: object) -> Any:
        """The first items."""
        return self._counted("take", items, count)

    def do_skip(self, items: object, count: object) -> Any:
        """All but the first items."""
        return self._counted("skip", items, count)

    def do_last(self, items: object, count: object) -> Any:
        """The last items."""
        return self._counted("last", items, count)

    def _counted(self, fn: str, items: object, count: object) -> Any:
        from mlirules.language.builtins import FUNCTIONS

        most = len(sequence(items))
        impl = FUNCTIONS[fn].impl
        assert impl is not None
        return impl(items, self.concrete(count, -most, most + 1))

    def items(self, items: Sequence[ast.Expr]) -> list[Any]:
        """The values of list items; what is a set is put in an order."""
        return [in_order(v) for v in super().items(items)]

    def pack(self, node: ast.Pack) -> list[Any]:
        """The values that a pack stands for, in an order."""
        found: list[object] = in_order(super().pack(node))
        return found

    def access(self, node: ast.Access, base: object, items: Sequence[ast.Expr]) -> Any:
        """An item of a list, or an element of a tensor."""
        base = in_order(base)
        if isinstance(base, (list, tuple)):
            where = self.items(items)
            if len(where) != 1:
                raise Refused("a list takes one index", node)
            if not base:
                raise Refused("an index into an empty list", node)
            at = self.concrete(where[0], -len(base), len(base))
            if not -len(base) <= at < len(base):
                raise Refused(f"index {at} is outside a list of {len(base)}", node)
            return base[at]
        return super().access(node, base, items)

    def do_set(self, items: object, where: object, value: object) -> list[Any]:
        """A list with items replaced."""
        return list(replaced(items, self._axes(items, where), value))

    def do_drop(self, items: object, where: object) -> list[Any]:
        """A list without some items."""
        return list(without(items, self._axes(items, where)))

    def do_swap(self, items: object, a: object, b: object) -> list[Any]:
        """A list with two items exchanged."""
        out = sequence(items)
        i, j = self._axes(out, [a, b])
        out[i], out[j] = out[j], out[i]
        return out

    def do_permute(self, items: object, perm: object) -> list[Any]:
        """Item p[i] of a list at place i."""
        values = sequence(in_order(items))
        if isinstance(perm, Unordered):
            return Unordered([values[i] for i in perm], lambda: [values[i] for i in perm.ordered()])
        return [values[i] for i in self._axes(values, perm)]

    def do_inverse(self, items: object) -> list[int]:
        """The inverse of a permutation."""
        n = len(sequence(items))
        perm = [self.concrete(v, 0, n) for v in sequence(items)]
        if sorted(perm) != list(range(n)):
            raise Refused("not a permutation")
        return [perm.index(i) for i in range(n)]

    def do_is_permutation(self, items: object) -> bool:
        """Whether a list holds 0 .. n-1 once each."""
        n = len(sequence(items))
        try:
            perm = [self.concrete(v, 0, n) for v in sequence(items)]
        except Refused:
            return False
        return sorted(perm) == list(range(n))

    def do_insert(self, items: object, where: object, value: object) -> list[Any]:
        """A list with an item put in."""
        out = sequence(items)
        n = len(out)
        a = self.concrete(where, -n - 1, n + 1)
        if a < 0:
            a += n + 1
        if not 0 <= a <= n:
            raise Refused(f"axis {a} is outside a list of {n + 1}")
        return [*out[:a], value, *out[a:]]

    def do_restore(self, items: object, where: object, value: object) -> list[Any]:
        """A value put in to stand at some axes."""
        values = sequence(items)
        places = where if isinstance(where, (list, tuple)) else [where]
        at = set(self._axes([*values, *places], places))
        if len(at) != len(places):
            raise Refused("an axis stands twice")
        rest = iter(values)
        return [value if i in at else next(rest) for i in range(len(values) + len(places))]

    def do_expanded(self, items: object, count: object) -> list[Any]:
        """A list of one item repeated; of another length it is refused."""
        from mlirules.language.builtins import FUNCTIONS

        impl = FUNCTIONS["expanded"].impl
        assert impl is not None
        return list(impl(sequence(items), self.concrete(count, 0, 7)))

    def do_reduced(self, items: object, where: object, keep: object) -> list[Any]:
        """The indices of a reduction's result."""
        if not isinstance(keep, bool):
            raise Undecided("whether axes are kept is not known")
        return self.do_set(items, where, 0) if keep else self.do_drop(items, where)

    def _axes(self, items: object, where: object) -> list[int]:
        n = len(sequence(items))
        out = []
        for v in where if isinstance(where, (list, tuple)) else [where]:
            a = self.concrete(v, -n, n)
            if not -n <= a < n:
                raise Refused(f"axis {a} is outside a list of {n}")
            out.append(a % n)
        return out
