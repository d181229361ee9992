"""The forms that a pair is tried in: any number of dims where it can, else as it was found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirules.drivers.discover.numeric import NotComputed, Numbers, rounded
from mlirules.drivers.discover.opsets import flat
from mlirules.drivers.discover.programs import in_order
from mlirules.drivers.discover.terms import Sizes, dims_in, refs
from mlirules.drivers.discover.written import Pair

if TYPE_CHECKING:
    from mlirules.drivers.discover.space import Space

__all__ = ["flat", "forms", "names_in"]


def names_in(text: str) -> list[str]:
    """The constants that an expression names."""
    return re.findall(r"[a-z]\w*", text)


def forms(space: Space, pair: Pair) -> Iterator[Pair]:
    """A pair over any rank, where both sides agree in several; then over the rank it has."""
    for pack in _packs(pair):
        if all(_agrees(space, pair, pack, count) for count in (0, 2)):
            yield replace(pair, pack=pack)
    yield pair


def _packs(pair: Pair) -> list[str]:
    """What may stand for any number of dims: all of them, or the one that leads everywhere."""
    terms = pair.terms
    every = [t for root in (pair.left, pair.right) for t in in_order(terms, root)]
    shapes = [terms[t].type.shape for t in every]
    lists = [a.dims for t in every for a in flat(terms[t].args) if isinstance(a, Sizes)]
    out: list[str] = []
    if all(s == shapes[0] for s in shapes) and shapes[0] and not lists:
        out.append("*")
    for d in dict.fromkeys(d for s in shapes if s for d in dims_in(s[0])):
        leads = all(
            dims_in(size) == [d] if n == 0 and d in dims_in(size) else d not in dims_in(size)
            for s in (*shapes, *lists)
            for n, size in enumerate(s)
        )
        plain = all(
            len(getattr(s[0], "terms", ())) == 1 and dims_in(s[0]) == [d] and str(s[0]) == d
            for s in (*shapes, *lists)
            if s and d in dims_in(s[0])
        )
        if leads and plain:
            out.append(d)
    return out


def _agrees(space: Space, pair: Pair, pack: str, count: int) -> bool:
    """Whether both sides give the same with so many dims for the packed one."""
    from mlirules.drivers.discover.space import Given, run_op, same

    terms = pair.terms
    trial = space.trials[0]
    extra = (3, 4)[:count]
    rng = np.random.default_rng(11)
    held: dict[int, Numbers] = {}

    def shape_of(root: int) -> tuple[int, ...]:
        t = terms[root].type
        if pack == "*":
            return extra
        sizes = t.concrete(trial.dims)
        if t.shape and dims_in(t.shape[0]) == [pack]:
            return (*extra, *sizes[1:])
        return sizes

    for root in (pair.left, pair.right):
        for at in in_order(terms, root):
            term = terms[at]
            if at in held:
                continue
            if not term.op:
                shape = shape_of(at)
                if term.type.element == "i1":
                    held[at] = rng.integers(0, 2, shape).astype(bool)
                else:
                    held[at] = rounded(rng.uniform(-2, 2, shape), term.type.element)
                continue
            operands = {r: Given(held[r], terms[r].type.element) for r in refs(term.args)}
            args = _widened(term.args, pack, extra)
            try:
                held[at] = run_op(space, {}, term.op, args, operands, trial)
            except NotComputed:
                return False
            if tuple(np.shape(held[at])) != shape_of(at):
                return False
    return same(held[pair.left], held[pair.right])


def _widened(args: Sequence[object], pack: str, extra: Iterable[int]) -> tuple[Any, ...]:
    def one(a: object) -> Any:
        if isinstance(a, tuple):
            return tuple(map(one, a))
        if isinstance(a, Sizes) and a.dims and dims_in(a.dims[0]) == [pack]:
            return Sizes((*extra, *a.dims[1:]))
        return a

    return tuple(map(one, args))
