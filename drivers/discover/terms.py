"""Small programs as terms: ops over inputs, each part once, and how they are written."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlirules.drivers.prove.expr import Int, Poly, dim, terms_of
from mlirules.language.notation import ast
from mlirules.language.notation.parser import parse_expression


@dataclass(frozen=True)
class Axis:
    """An axis, counted from the end."""

    value: int


@dataclass(frozen=True)
class Scalar:
    """A constant of the rule, or what is computed from some."""

    text: str

    @property
    def plain(self) -> bool:
        """Whether a match can name it."""
        return self.text.isidentifier()


@dataclass(frozen=True)
class Code:
    """An element type, by PyTorch's number."""

    value: int


@dataclass(frozen=True)
class Sizes:
    """A list of sizes."""

    dims: tuple[Int, ...]


@dataclass(frozen=True)
class Ref:
    """An operand: another term by its number."""

    term: int


@dataclass(frozen=True)
class Type:
    """A tensor's sizes, written in dims, and its element type."""

    shape: tuple[Int, ...]
    element: str

    def concrete(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """The sizes as numbers."""
        return tuple(value(s, dims) for s in self.shape)


@dataclass(frozen=True)
class Term:
    """An input (``op`` is empty, ``args`` its name) or an op over terms."""

    op: str
    args: tuple[Any, ...]
    type: Type
    #: The op terms that it is made of, itself among them.
    parts: frozenset[int]
    #: Whether a match can find it: no constant is computed.
    matchable: bool = True

    @property
    def size(self) -> int:
        """How many ops it has."""
        return len(self.parts)


def sizes_of(texts: Iterable[str]) -> tuple[Int, ...]:
    """Sizes as they are written in sets: dims, numbers, products and sums."""
    out: list[Int] = []
    for text in texts:
        total: Int = 0
        for summand in text.split("+"):
            product: Int = 1
            for factor in summand.split("*"):
                word = factor.strip()
                product = product * (int(word) if word.isdigit() else dim(word))
            total = total + product
        out.append(total)
    return tuple(out)


def value(size: Int, dims: Mapping[str, int]) -> int:
    """A size as a number."""
    total = 0
    for mono, c in terms_of(size).items():
        product = int(c)
        for node, power in mono:
            product *= dims[str(node.args[0])] ** power
        total += product
    return total


def written(size: Int) -> str:
    """A size in the notation of rules."""
    if not isinstance(size, Poly):
        return str(size)
    texts = []
    for mono, c in size.terms.items():
        factors = [str(n.args[0]) for n, p in mono for _ in range(p)]
        texts.append(" * ".join([*([str(c)] if c != 1 else []), *sorted(factors)]))
    return " + ".join(sorted(texts))


def dims_in(size: Int) -> list[str]:
    """The dims that a size is written in."""
    if not isinstance(size, Poly):
        return []
    return sorted({str(n.args[0]) for n in size.symbols})


def renamed(size: Int, names: Mapping[str, str]) -> Int:
    """A size with other names of its dims."""
    total: Int = 0
    for mono, c in terms_of(size).items():
        product: Int = c
        for node, power in mono:
            for _ in range(power):
                product = product * dim(names[str(node.args[0])])
        total = total + product
    return total


def scalar_value(text: str, numbers: Mapping[str, float]) -> float:
    """A constant of the right side as a number."""
    return _number(parse_expression(text), numbers)


def _number(expr: ast.Expr, numbers: Mapping[str, float]) -> float:
    match expr:
        case ast.Name(id=name):
            return numbers[name]
        case ast.Literal(value=found) if isinstance(found, (int, float)):
            return float(found)
        case ast.Unary(op="-", operand=inner):
            return -_number(inner, numbers)
        case ast.Binary(op=op, left=left, right=right) if op in _OPS:
            return _OPS[op](_number(left, numbers), _number(right, numbers))
    raise ValueError(f"not arithmetic on constants: {expr}")


_OPS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


def mapped(args: Sequence[object], what: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Operands with a function applied, in lists too."""
    return tuple(mapped(a, what) if isinstance(a, tuple) else what(a) for a in args)


def refs(args: Sequence[object]) -> list[int]:
    """The terms that operands name, in order."""
    out: list[int] = []
    for a in args:
        if isinstance(a, tuple):
            out.extend(refs(a))
        elif isinstance(a, Ref):
            out.append(a.term)
    return out


def terms_key(terms: Sequence[Term], root: int) -> str:
    """A program whatever its inputs, constants and dims are called."""
    names: dict[object, str] = {}
    dims: dict[str, str] = {}

    def size(found: Int) -> str:
        for d in dims_in(found):
            dims.setdefault(d, f"D{len(dims)}")
        return written(renamed(found, dims)) if isinstance(found, Poly) else str(found)

    def one(a: object) -> str:
        if isinstance(a, Ref):
            return program(a.term)
        if isinstance(a, tuple):
            return "[" + ",".join(map(one, a)) + "]"
        if isinstance(a, Sizes):
            return "[" + ",".join(map(size, a.dims)) + "]"
        if isinstance(a, Scalar):
            return names.setdefault(a.text, f"s{len(names)}")
        return repr(a)

    def program(at: int) -> str:
        term = terms[at]
        if term.op:
            return f"{term.op}({','.join(map(one, term.args))})"
        if at not in names:
            shape = ",".join(map(size, term.type.shape))
            names[at] = f"i{len(names)}:[{shape}]{term.type.element}"
        return names[at]

    return program(root)
