"""What an op computes, as numbers: the elements that the prover's equations say, by numpy.

An op's meaning is that of :mod:`mlirules.drivers.prove.meanings`, read on operands of given sizes;
each result's element is turned into a list of numpy steps once, and run on as many inputs as asked.
Floats are computed in f64 and rounded where the program converts to a narrower type.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from mlirules.drivers.prove.arrays import operand
from mlirules.drivers.prove.binding import NoFit
from mlirules.drivers.prove.expr import Node, Poly, Undecided, atom
from mlirules.drivers.prove.meanings import Meanings
from mlirules.drivers.prove.scalars import INDEX, NUMBER, E
from mlirules.drivers.prove.tensors import Array
from mlirules.drivers.prove.world import Impossible, Limits, World
from mlirules.language.operands import Refused
from mlirules.language.values import DType

Numbers = Any  # a numpy array; numpy's own types are no help here

#: Elements (with those that are summed over) above which nothing is computed.
MOST = 1 << 22


class NotComputed(Exception):
    """An op that the equations do not say, or not for these operands."""


@dataclass(frozen=True)
class Operand:
    """A tensor that an op is asked about: its name, its sizes, its element type."""

    name: str
    shape: tuple[int, ...]
    element: str


@dataclass(frozen=True)
class Number:
    """A number that is given when the op is run."""

    name: str


Step = tuple[Callable[..., Numbers], tuple[int, ...]]


@dataclass(frozen=True)
class Kernel:
    """One op on operands of given sizes, as numpy steps."""

    shape: tuple[int, ...]
    element: str
    steps: tuple[tuple[Any, ...], ...]
    #: The tensors that it reads, and the numbers.
    reads: tuple[tuple[str, tuple[int, ...]], ...] = ()
    numbers: tuple[str, ...] = ()

    @functools.cached_property
    def work(self) -> int:
        """How many elements its steps compute and sum, in the sizes that it is for."""
        given = {n: np.ones(s) for n, s in self.reads}
        numbers = dict.fromkeys(self.numbers, 1.0)
        return int(sum(np.size(v) for v in self._held({**given, **numbers})))

    def run(self, values: Mapping[str, Numbers]) -> Numbers:
        """The result for tensors (arrays) and numbers by name."""
        out = np.asarray(self._held(values)[-1])
        rank = len(self.shape)
        return np.broadcast_to(out.reshape((out.shape + (1,) * rank)[:rank]), self.shape)

    def _held(self, values: Mapping[str, Numbers]) -> list[Numbers]:
        """What each step gives."""
        held: list[Numbers] = []
        with np.errstate(all="ignore"):
            for kind, what, sources in self.steps:
                if kind == "given":
                    held.append(what(values))
                else:
                    held.append(what(*[held[s] for s in sources]))
        return held


def kernel(
    meanings: Meanings,
    op: str,
    args: Sequence[object],
    element: str | None = None,
    seconds: float = 5.0,
) -> Kernel:
    """An op on operands: :class:`Operand`, :class:`Number`, constants, and lists of them.

    ``element``: the element type of the result, where the program says it.

    Raises :class:`NotComputed` where the conversion rules do not lower it.
    """
    why = ""
    guesses = [None, *_guesses(args)] if element is None else [element]
    if element is None and any(isinstance(a, list) and _tensors(a) for a in args):
        # What is combined from a list has the type of its items; numbers beside it do not count.
        guesses = _guesses(args)
    for guess in guesses:
        world = World(Limits(time.process_time() + seconds))
        hint = (None, None if guess is None else DType(guess))
        try:
            (made,) = meanings.results(
                world, op, [_given(a) for a in args], {}, [hint], assume=False
            )
            if not isinstance(made, Array):
                raise NotComputed(f"nothing is known of {op}")
            shapes = {a.name: a.shape for a in _flat(args) if isinstance(a, Operand)}
            numbers = tuple(a.name for a in _flat(args) if isinstance(a, Number))
            return replace(_compiled(made, shapes), reads=tuple(shapes.items()), numbers=numbers)
        except (Undecided, NoFit, Refused, Impossible) as error:
            why = why or str(error)
        except (IndexError, TypeError, ValueError, AssertionError) as error:
            # Operands that the op was never meant for: axes or lengths that do not fit.
            why = why or f"{type(error).__name__}: {error}"
    raise NotComputed(why)


def _guesses(args: Sequence[object]) -> list[str | None]:
    """Element types that a result may have where the rule does not say it."""
    found = [a.element for a in _tensors(args)]
    return list(dict.fromkeys([*found, "i1", "f32"]))


def _tensors(args: Sequence[object]) -> list[Operand]:
    return [a for a in _flat(args) if isinstance(a, Operand)]


def _flat(args: Sequence[object]) -> list[Any]:
    return [x for a in args for x in (_flat(a) if isinstance(a, (list, tuple)) else [a])]


def _given(value: object) -> Any:
    if isinstance(value, Operand):
        return operand(value.name, list(value.shape), DType(value.element))
    if isinstance(value, Number):
        return E("num", (value.name,), NUMBER)
    if isinstance(value, (list, tuple)):
        return [_given(v) for v in value]
    return value


def _compiled(made: Array, shapes: Mapping[str, tuple[int, ...]]) -> Kernel:
    shape = made.shape
    if not all(isinstance(s, int) for s in shape):
        raise NotComputed("a result whose sizes are not numbers")
    out = [Node("var", f"at:{i}", n) for i, n in enumerate(shape)]
    element = made.elem([atom(v) if v.args[1] != 1 else 0 for v in out])
    writer = _Writer(out, shapes)
    writer.of(element)
    assert made.dtype is not None
    return Kernel(tuple(shape), made.dtype.name, tuple(writer.steps))


class _Writer:
    """Turns an element into steps; every index has an axis of its own."""

    def __init__(self, out: Sequence[Node], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = shapes
        self.axes = {v: i for i, v in enumerate(out)}
        self.steps: list[tuple[object, ...]] = []
        self.known: dict[str, int] = {}

    def add(self, what: Callable[..., Numbers], *sources: int, kind: str = "made") -> int:
        self.steps.append((kind, what, sources))
        return len(self.steps) - 1

    def fixed(self, value: object) -> int:
        held = np.asarray(value)
        return self.add(lambda: held)

    def of(self, e: E) -> int:
        """The step that computes a scalar."""
        key = f"{e.key} {e.dtype if e.dtype is not NUMBER and e.dtype is not INDEX else ''}"
        if key not in self.known:
            self.known[key] = self._of(e)
        return self.known[key]

    def _of(self, e: E) -> int:
        match e.op:
            case "const":
                value, *minus = e.args
                if isinstance(value, Fraction):
                    value = float(value)
                return self.fixed(-0.0 if minus else value)
            case "special":
                return self.fixed(float(e.args[0]))
            case "num":
                name = e.args[0]
                return self.add(lambda values: np.asarray(values[name]), kind="given")
            case "elem":
                return self.read(*e.args)
            case "whole":
                return self.fixed(self.index(e.args[0]))
            case "icond":
                return self.fixed(self.condition(e.args[0]))
            case "add" | "sub" | "mul" | "div" | "floordiv" | "mod":
                return self.add(_ARITHMETIC[e.op], self.of(e.args[1]), self.of(e.args[2]))
            case "and" | "or" | "xor" | "not":
                return self.add(_LOGIC[e.op], *(self.of(a) for a in e.args))
            case "cmp":
                return self.add(_COMPARE[e.args[0]], self.of(e.args[2]), self.of(e.args[3]))
            case "select":
                _, c, a, b = e.args
                return self.add(_front(np.where), self.of(c), self.of(a), self.of(b))
            case "cast":
                return self.add(_cast(e.args[0], e.args[1]), self.of(e.args[2]))
            case "fn":
                name, _, *values = e.args
                if name not in FUNCTIONS:
                    raise NotComputed(f"the function {name}")
                return self.add(FUNCTIONS[name], *(self.of(a) for a in values))
            case "red":
                return self.reduction(*e.args)
        raise NotComputed(f"{e.op} in an element")

    def read(self, name: str, at: tuple[object, ...]) -> int:
        # What a condition does not choose may lie outside: any element stands for it.
        found = [
            np.clip(self.index(i), 0, n - 1) for i, n in zip(at, self.shapes[name], strict=True)
        ]
        most = max((p.ndim for p in found), default=0)
        places = tuple(p.reshape(p.shape + (1,) * (most - p.ndim)) for p in found)

        def read(values: dict[str, Numbers]) -> Numbers:
            held = values[name]
            return held[places] if places else np.asarray(held)

        return self.add(read, kind="given")

    def reduction(self, op: str, _type: str, loops: tuple[Node, ...], body: E) -> int:
        for v in loops:
            self.axes.setdefault(v, len(self.axes))
        axes = tuple(self.axes[v] for v in loops)
        sizes = tuple(v.args[1] for v in loops)
        if math.prod(sizes) > MOST:
            raise NotComputed("too many elements")
        inner = self.of(body)
        reduce = _REDUCE[op]

        def reduced(values: Numbers) -> Numbers:
            values = np.asarray(values)
            wide = list(values.shape) + [1] * (max(axes) + 1 - values.ndim)
            values = values.reshape(wide)
            for a, n in zip(axes, sizes, strict=True):
                wide[a] = n
            values = np.broadcast_to(values, wide)
            return reduce(values, axis=axes, keepdims=True)

        return self.add(reduced, inner)

    # -- indices: numbers that only the sizes say

    def index(self, value: Any) -> Numbers:
        """A whole number written by indices, as an array over their axes."""
        if not isinstance(value, Poly):
            return np.asarray(int(value))
        total: Numbers = np.asarray(0)
        for mono, c in value.terms.items():
            if isinstance(c, Fraction):
                raise NotComputed("an index that is a fraction")
            term: Numbers = np.asarray(c)
            for node, power in mono:
                term = _aligned(np.multiply, term, self.node(node) ** power)
            total = _aligned(np.add, total, term)
        return total

    def node(self, node: Node) -> Numbers:
        match node.op:
            case "var":
                axis = self.axes.setdefault(node, len(self.axes))
                return np.arange(node.args[1]).reshape(
                    [-1 if i == axis else 1 for i in range(axis + 1)]
                )
            case "fdiv":
                a, b = (self.index(x) for x in node.args)
                return _aligned(np.floor_divide, a, b)
            case "min":
                a, b = (self.index(x) for x in node.args)
                return _aligned(np.minimum, a, b)
            case "holds":
                return self.condition(node.args[0]).astype(np.int64)
        raise NotComputed(f"{node.op} in an index")

    def condition(self, c: Any) -> Numbers:
        """A condition on indices, as an array over their axes."""
        if isinstance(c, bool):
            return np.asarray(c)
        match c.op:
            case "eq0":
                return self.index(c.args[0]) == 0
            case "ge0":
                return self.index(c.args[0]) >= 0
            case "not":
                return ~self.condition(c.args[0])
            case "and" | "or":
                how = np.logical_and if c.op == "and" else np.logical_or
                return functools.reduce(
                    functools.partial(_aligned, how), (self.condition(a) for a in c.args)
                )
        raise NotComputed(f"{c.op} in a condition")


def _aligned(how: Callable[..., Numbers], *values: Numbers) -> Numbers:
    """A function of arrays whose axes count from the front."""
    most = max((np.ndim(v) for v in values), default=0)
    return how(*(np.reshape(v, np.shape(v) + (1,) * (most - np.ndim(v))) for v in values))


def _front(how: Callable[..., Numbers]) -> Callable[..., Numbers]:
    return functools.partial(_aligned, how)


_ARITHMETIC = {
    "add": _front(np.add),
    "sub": _front(np.subtract),
    "mul": _front(np.multiply),
    "div": _front(np.divide),
    "floordiv": _front(np.floor_divide),
    "mod": _front(np.mod),
}
_LOGIC: dict[str, Callable[..., Numbers]] = {
    "and": _front(np.logical_and),
    "or": _front(np.logical_or),
    "xor": _front(np.logical_xor),
    "not": np.logical_not,
}
_COMPARE = {
    "==": _front(np.equal),
    "!=": _front(np.not_equal),
    "<": _front(np.less),
    "<=": _front(np.less_equal),
    ">": _front(np.greater),
    ">=": _front(np.greater_equal),
}
_REDUCE: dict[str, Callable[..., Numbers]] = {
    "+": np.sum,
    "*": np.prod,
    "max": np.max,
    "min": np.min,
    "and": np.all,
    "or": np.any,
}


def _erf(x: Numbers) -> Numbers:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


#: Functions of the notation on numbers (docs/notation.md).
FUNCTIONS: dict[str, Callable[..., Numbers]] = {
    **{
        name: getattr(np, name)
        for name in (
            *("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "sin", "cos", "tan"),
            *("sinh", "cosh", "tanh", "floor", "ceil", "trunc", "abs", "sign"),
            *("isnan", "isinf", "isfinite"),
        )
    },
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "round": np.rint,
    "erf": _erf,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "atan2": _front(np.arctan2),
    "copysign": _front(np.copysign),
    "pow": _front(lambda x, y: np.power(np.asarray(x, np.float64), y)),
    "max": _front(np.maximum),
    "min": _front(np.minimum),
    "maxnum": _front(np.fmax),
    "minnum": _front(np.fmin),
    "truncdiv": _front(lambda x, y: np.trunc(x / y)),
    "rem": _front(np.fmod),
}

_WIDTHS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
_ROUNDED: dict[str, Any] = {"f16": np.float16, "f32": np.float32}


def _cast(to: str, of: str) -> Callable[[Numbers], Numbers]:
    """A conversion of elements, rounding where the new type is narrower."""
    if to == "i1":
        return lambda x: np.asarray(x) != 0
    if to in _WIDTHS:
        if of in _WIDTHS and _WIDTHS[of] <= _WIDTHS[to]:
            return np.asarray
        if of == "number":
            return lambda x: np.asarray(x, np.float64)
        return functools.partial(rounded, element=to)
    if to in ("number", "index"):
        return np.asarray
    if of in _WIDTHS:
        return np.trunc
    return np.asarray


def rounded(x: Numbers, element: str) -> Numbers:
    """Floats rounded to an element type, held as f64."""
    if element in _ROUNDED:
        return np.asarray(x).astype(_ROUNDED[element]).astype(np.float64)
    if element == "bf16":
        bits = np.asarray(x).astype(np.float32).view(np.uint32)
        kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return kept.astype(np.uint32).view(np.float32).astype(np.float64)
    return np.asarray(x, np.float64)
