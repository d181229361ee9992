"""All small programs over a set of ops, in classes of those that compute the same.

Programs grow from smaller ones: an op's operands are programs that are the smallest of their class.
Two programs are of one class where they give the same numbers on several inputs of several sizes:
ordinary numbers, numbers of many magnitudes, and edge values (zeros, ones, equal numbers, dims of
1). What floats round by is tolerated; where only one of two is NaN or infinite they differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirules.drivers.discover.numeric import (
    Kernel,
    NotComputed,
    Number,
    Numbers,
    Operand,
    kernel,
    rounded,
)
from mlirules.drivers.discover.opsets import Hole, Operator, OpSet, flat, result_element
from mlirules.drivers.discover.terms import (
    Axis,
    Code,
    Ref,
    Scalar,
    Sizes,
    Term,
    Type,
    mapped,
    refs,
    scalar_value,
    value,
)
from mlirules.drivers.prove.expr import Int, dim
from mlirules.drivers.prove.meanings import Meanings

#: Relative to the largest number of a tensor: what rounding may make of it.
TOLERANCE = 1e-9
#: Programs of one class that are as small as its smallest and stand inside larger ones.
TIES = 6
#: The same for programs of more than one op.
LARGER_TIES = 2


@dataclass(frozen=True)
class Trial:
    """Sizes and inputs that programs are run on."""

    name: str
    dims: dict[str, int]
    numbers: dict[str, float]
    inputs: dict[str, Numbers] = field(default_factory=dict)


def trials(ops: OpSet, seed: int) -> list[Trial]:
    """Ordinary numbers, numbers of many magnitudes in other sizes, and edge values."""
    rng = np.random.default_rng(seed)
    primes = [2, 3, 5, 7, 11, 13, 17]
    others = [4, 2, 3, 5, 6, 7, 8]
    edges = [3, 1, 2, 4, 1, 2, 3]
    out: list[Trial] = []
    for name, sizes in (("ordinary", primes), ("magnitudes", others), ("edges", edges)):
        dims = dict(zip(ops.dims, sizes, strict=False))
        numbers = {c: float(rng.uniform(0.3, 1.9)) for c in ops.scalars}
        if name == "edges":
            numbers = {c: -n for c, n in numbers.items()}
        trial = Trial(name, dims, numbers)
        for leaf, t in ops.leaves.items():
            trial.inputs[leaf] = _input(rng, name, t, t.concrete(dims))
        out.append(trial)
    return out


def _input(rng: Any, name: str, t: Type, shape: tuple[int, ...]) -> Numbers:
    if t.element == "i1":
        return rng.integers(0, 2, shape).astype(bool)
    if name == "ordinary":
        x = rng.uniform(-2.0, 2.0, shape)
    elif name == "magnitudes":
        x = np.exp(rng.uniform(-5.0, 3.0, shape)) * rng.choice([-1.0, 1.0], shape)
    else:
        x = rng.choice([0.0, 1.0, -1.0, 2.0, 0.5, -3.0], shape)
    return rounded(x, t.element)


@dataclass
class Class:
    """Programs that compute the same, by their numbers; the smallest come first."""

    type: Type
    members: list[int] = field(default_factory=list)


class Space:
    """Programs and their classes, level by level. See the module's docstring."""

    def __init__(self, ops: OpSet, meanings: Meanings, seed: int = 0) -> None:
        self.ops, self.meanings = ops, meanings
        self.trials = trials(ops, seed)
        self.terms: list[Term] = []
        self.classes: list[Class] = []
        #: The class of each program.
        self.of: list[int] = []
        #: Programs that were not computed, by op: the first reason.
        self.left_out: dict[str, str] = {}
        #: How many programs were run.
        self.tried = 0
        self._numbers: list[dict[int, Numbers]] = [{} for _ in self.trials]
        self._kernels: dict[object, Kernel | None] = {}
        self._types: dict[object, Type | None] = {}
        self._index: dict[object, list[int]] = {}
        self._known: set[object] = set()
        self._commuting: dict[str, bool] = {}
        self._sizes = _size_table(ops, self.trials)
        self._weights = np.random.default_rng(7).uniform(0.5, 1.5, 4096)
        for name, t in ops.leaves.items():
            self._add(Term("", (name,), t, frozenset()))

    # -- growing

    def grow(self, size: int, step: Callable[[int, int], None] = lambda _n, _of: None) -> None:
        """All programs of so many ops; those of fewer are there."""
        pool = _Pool(self.terms, self.pool())
        for n, operator in enumerate(self.ops.operators):
            step(n, len(self.ops.operators))
            swaps = self.commutes(operator)
            for operands in pool.operands(operator.holes, size - 1):
                if not swaps or operands[0] <= operands[1]:
                    self.apply(operator, operands)
        step(len(self.ops.operators), len(self.ops.operators))

    def pool(self) -> list[int]:
        """The programs that stand inside larger ones: the smallest of each class."""
        out: list[int] = []
        for c in self.classes:
            least = self.terms[c.members[0]].size
            most = TIES if least == 1 else LARGER_TIES
            ties = [m for m in c.members if self.terms[m].size == least][:most]
            out += ties if least else ties[:1]
        return sorted(out)

    def commutes(self, operator: Operator) -> bool:
        """Whether an op gives the same with its first two tensors swapped."""
        known = self._commuting.get(operator.op)
        if known is None:
            known = operator.holes == 2 and isinstance(operator.args[1], Hole)
            known = known and isinstance(operator.args[0], Hole) and self._swap_is_same(operator)
            self._commuting[operator.op] = known
        return known

    def commuting(self, op: str) -> bool:
        """Whether an op was found to give the same with its first two tensors swapped."""
        return self._commuting.get(op, False)

    def _swap_is_same(self, operator: Operator) -> bool:
        asked = False
        leaves = list(self.ops.leaves.items())
        for (n, (_, t)), (m, (_, u)) in itertools.product(enumerate(leaves), repeat=2):
            for trial in range(len(self.trials)):
                try:
                    one = self._run(operator.op, _filled(operator.args, (n, m)), trial)
                    two = self._run(operator.op, _filled(operator.args, (m, n)), trial)
                except NotComputed:
                    continue
                if t != u and self.trials[trial].name == "edges":
                    continue
                if not same(one, two):
                    return False
                asked = asked or n != m
        return asked

    def apply(self, operator: Operator, operands: Sequence[int]) -> int | None:
        """The program of an op over others; None where there is none, or it is there."""
        args = _filled(operator.args, operands)
        if operator.op in self.left_out and not operands:
            return None
        key = (operator.op, args)
        if key in self._known:
            return None
        self._known.add(key)
        parts = frozenset[int]().union(*(self.terms[o].parts for o in operands)) | {len(self.terms)}
        found = self._type(operator.op, args)
        if found is None:
            return None
        matchable = all(s.plain for s in flat(args) if isinstance(s, Scalar))
        matchable = matchable and all(self.terms[o].matchable for o in operands)
        return self._add(Term(operator.op, args, found, parts, matchable))

    def _add(self, term: Term) -> int | None:
        number = len(self.terms)
        self.terms.append(term)
        self.of.append(-1)
        try:
            value = self.value(number, 0)
        except NotComputed as error:
            self.left_out.setdefault(term.op, str(error))
            self.terms.pop()
            self.of.pop()
            return None
        self.tried += 1
        home = self._place(number, term.type, value)
        self.of[number] = home
        self.classes[home].members.append(number)
        return number

    # -- classes

    def _place(self, number: int, t: Type, found: Numbers) -> int:
        keys = self._keys(t, found)
        for key in keys:
            for home in self._index.get(key, ()):
                if self._equal(number, self.classes[home].members[0]):
                    return home
        self.classes.append(Class(t))
        for key in keys:
            self._index.setdefault(key, []).append(len(self.classes) - 1)
        return len(self.classes) - 1

    def _keys(self, t: Type, found: Numbers) -> list[Any]:
        """Where a tensor of numbers is looked for: two roundings, that no border parts equals."""
        flat_ = np.asarray(found).ravel()
        base = (t.element, tuple(s.key if hasattr(s, "key") else s for s in t.shape))
        if flat_.dtype == bool:
            return [(base, flat_.tobytes())]
        finite = np.isfinite(flat_)
        kind = np.where(np.isnan(flat_), 2, np.where(finite, 0, 1)).astype(np.int8).tobytes()
        numbers = flat_[finite]
        scale = float(np.max(np.abs(numbers))) if numbers.size else 0.0
        if scale == 0.0:
            return [(base, kind, 0, 0)]
        weights = np.resize(self._weights, numbers.size)
        place = float(np.dot(numbers / scale, weights)) / max(1, numbers.size)
        large = float(np.log(scale))
        return [
            (base, kind, int(np.floor(place * 1e6 + a)), int(np.floor(large * 1e5 + b)))
            for a in (0.0, 0.5)
            for b in (0.0, 0.5)
        ]

    def _equal(self, one: int, other: int) -> bool:
        """Whether two programs give the same in every trial."""
        for trial in range(len(self.trials)):
            try:
                if not same(self.value(one, trial), self.value(other, trial)):
                    return False
            except NotComputed:
                return False
        return True

    # -- numbers

    def value(self, number: int, trial: int) -> Numbers:
        """What a program gives in a trial. Raises :class:`NotComputed`."""
        held = self._numbers[trial]
        found = held.get(number)
        if found is None:
            term = self.terms[number]
            if not term.op:
                found = self.trials[trial].inputs[term.args[0]]
            else:
                found = self._run(term.op, term.args, trial)
            held[number] = found
        return found

    def _run(self, op: str, args: Sequence[object], trial: int) -> Numbers:
        at = self.trials[trial]
        operands = {r: Given(self.value(r, trial), self.terms[r].type.element) for r in refs(args)}
        return run_op(self, self._kernels, op, args, operands, at)

    def _type(self, op: str, args: Sequence[object]) -> Type | None:
        """The type of an op's result, from the sizes that it has in two trials."""
        key = (op, mapped(args, lambda a: self.terms[a.term].type if isinstance(a, Ref) else a))
        if key not in self._types:
            self._types[key] = self._find_type(op, args)
        return self._types[key]

    def _find_type(self, op: str, args: Sequence[object]) -> Type | None:
        shapes: list[tuple[int, ...]] = []
        for trial in range(len(self.trials)):
            try:
                shapes.append(tuple(np.shape(self._run(op, args, trial))))
            except NotComputed as error:
                if trial == 0:
                    self.left_out.setdefault(op, str(error))
                return None
        if len({len(s) for s in shapes}) != 1:
            return None
        sizes: list[Int] = []
        for column in zip(*shapes, strict=True):
            known = self._sizes.get(column)
            if known is None:
                return None
            sizes.append(known)
        return Type(tuple(sizes), self._kernel(op, args).element)

    def work(self, number: int) -> int:
        """How many elements the last op of a program computes and sums in the first trial."""
        term = self.terms[number]
        return self._kernel(term.op, term.args).work

    def _kernel(self, op: str, args: Sequence[object]) -> Kernel:
        """The kernel that an op over programs was run by in the first trial."""
        shapes = {r: tuple(np.shape(self.value(r, 0))) for r in refs(args)}
        elements = {r: self.terms[r].type.element for r in refs(args)}
        found = self._kernels[_kernel_key(op, args, shapes, elements, self.trials[0])[0]]
        assert found is not None
        return found


class _Pool:
    """Programs that may stand inside others, by how many ops they have and by which."""

    def __init__(self, terms: Sequence[Term], pool: Sequence[int]) -> None:
        self.terms = terms
        self.by_size: dict[int, list[int]] = {}
        self.holding: dict[int, list[int]] = {}
        for t in pool:
            self.by_size.setdefault(terms[t].size, []).append(t)
            for part in terms[t].parts:
                self.holding.setdefault(part, []).append(t)

    def operands(self, holes: int, size: int) -> Iterator[tuple[int, ...]]:
        """So many programs that have so many ops together, what they share counted once."""
        if holes == 0:
            if size == 0:
                yield ()
            return
        yield from self._from((), frozenset(), holes, size)

    def _from(
        self, chosen: tuple[int, ...], parts: frozenset[int], holes: int, size: int
    ) -> Iterator[tuple[int, ...]]:
        left = size - len(parts)
        if holes == 1:
            # The last one brings all ops that are missing.
            for t in self._bringing(parts, left):
                yield (*chosen, t)
            return
        for more in range(left + 1):
            for t in self._bringing(parts, more):
                yield from self._from((*chosen, t), parts | self.terms[t].parts, holes - 1, size)

    def _bringing(self, parts: frozenset[int], more: int) -> list[int]:
        """Programs that have so many ops beside those that there are."""
        sharing = {t for p in parts for t in self.holding.get(p, ())}
        found = [t for t in sharing if len(self.terms[t].parts - parts) == more]
        found += [t for t in self.by_size.get(more, ()) if t not in sharing]
        return sorted(found)


def _kernel_key(
    op: str,
    args: Sequence[object],
    shapes: Mapping[int, tuple[int, ...]],
    elements: Mapping[int, str],
    at: Trial,
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """What tells an op's kernel from others, its operands, and the numbers it is given."""
    order: dict[int, str] = {}
    numbers: dict[str, object] = {}

    def one(a: object) -> Any:
        if isinstance(a, Ref):
            # Which tensor it is does not matter: every operand has a name of its own.
            name = order.setdefault(a.term, f"p{len(order)}")
            return Operand(name, shapes[a.term], elements[a.term])
        if isinstance(a, Scalar):
            name = f"n{len(numbers)}"
            numbers[name] = scalar_value(a.text, at.numbers)
            return Number(name)
        if isinstance(a, (Axis, Code)):
            return a.value
        if isinstance(a, Sizes):
            return tuple(value(s, at.dims) for s in a.dims)
        return a

    made = mapped(args, one)
    typed = tuple((type(a).__name__, a) for a in flat(made))
    return (op, made, typed), made, {**{n: r for r, n in order.items()}, **numbers}


@dataclass(frozen=True)
class Given:
    """A tensor as an op takes it: its numbers, and its element type as programs write it."""

    value: Numbers
    element: str


def run_op(
    space: Space,
    kernels: dict[Any, Kernel | None],
    op: str,
    args: Sequence[object],
    operands: Mapping[int, Given],
    at: Trial,
) -> Numbers:
    """An op on the tensors of terms, by their numbers. Raises :class:`NotComputed`."""
    shapes = {r: tuple(np.shape(operand.value)) for r, operand in operands.items()}
    elements = {r: operand.element for r, operand in operands.items()}
    key, made, given = _kernel_key(op, args, shapes, elements, at)
    if key not in kernels:
        try:
            told = result_element(op, args, elements, space.ops.results)
            kernels[key] = kernel(space.meanings, op, mapped_lists(made), told)
        except NotComputed:
            kernels[key] = None
            raise
    held = kernels[key]
    if held is None:
        raise NotComputed(f"{op} on such operands")
    named = {n: operands[g].value if n.startswith("p") else g for n, g in given.items()}
    try:
        return held.run(named)
    except (IndexError, ValueError) as error:
        raise NotComputed(str(error)) from None


def mapped_lists(args: Sequence[object]) -> list[Any]:
    """Tuples as lists, as the prover's ops take them."""
    return [mapped_lists(a) if isinstance(a, tuple) else a for a in args]


def _filled(args: Sequence[object], operands: Sequence[int]) -> tuple[Any, ...]:
    waiting = iter(operands)
    return mapped(args, lambda a: Ref(next(waiting)) if isinstance(a, Hole) else a)


def same(one: Numbers, other: Numbers) -> bool:
    """Whether two tensors hold the same up to rounding."""
    a, b = np.asarray(one), np.asarray(other)
    if a.shape != b.shape:
        return False
    if a.dtype == bool or b.dtype == bool:
        return bool(np.array_equal(a, b))
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return False
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    x, y = a[finite], b[finite]
    if not x.size:
        return True
    scale = max(float(np.max(np.abs(x))), float(np.max(np.abs(y))))
    return bool(np.max(np.abs(x - y)) <= TOLERANCE * scale)


def _size_table(ops: OpSet, runs: Sequence[Trial]) -> dict[tuple[int, ...], Int]:
    """Sizes by the numbers that they are in each trial, plain ones first."""
    atoms = [dim(d) for d in ops.dims]
    found: list[Int] = [1, *atoms]
    found += [a * b for a, b in itertools.combinations(atoms, 2)]
    found += [a + b for a, b in itertools.combinations_with_replacement(atoms, 2)]
    found += [a * b * c for a, b, c in itertools.combinations(atoms, 3)]
    found += [0, 2, 3, 4]
    table: dict[tuple[int, ...], Int] = {}
    for size in found:
        table.setdefault(tuple(value(size, t.dims) for t in runs), size)
    return table
