"""Syntax trees of the notation. Every node keeps ``pos``, its offset in the text it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """A syntax node; ``pos`` and ``end`` are character offsets in its text."""

    pos: int
    end: int


# ---- expressions ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Literal(Node):
    """An integer, float, truth value, string or ``none``."""

    value: int | float | bool | str | None


@dataclass(frozen=True)
class Name(Node):
    """A symbol: a value, a dim, an element type, a loop index, a let-bound number."""

    id: str


@dataclass(frozen=True)
class Wildcard(Node):
    """``_``: matches anything and binds nothing."""


@dataclass(frozen=True)
class Pack(Node):
    """``I...`` (named) or ``...`` (anonymous: aligned at the right, broadcast as PyTorch does)."""

    id: str | None


@dataclass(frozen=True)
class ListExpr(Node):
    """``[a, b]``."""

    items: tuple[Expr, ...]


@dataclass(frozen=True)
class Call(Node):
    """``f(a, b)``: a function of the closed set, a cast (``f32(x)``), or a nested op."""

    fn: str
    args: tuple[Expr, ...]
    attrs: tuple[tuple[str, Expr], ...] = ()


@dataclass(frozen=True)
class Access(Node):
    """``x[i, j]``: an element of a tensor, list, or pack."""

    base: Expr
    items: tuple[Expr, ...]


@dataclass(frozen=True)
class Unary(Node):
    """``-x`` or ``not x``."""

    op: str
    operand: Expr


@dataclass(frozen=True)
class Binary(Node):
    """Arithmetic, comparison, ``and``, ``or``, ``in``, ``not in``."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Conditional(Node):
    """``a if c else b``."""

    condition: Expr
    then: Expr
    otherwise: Expr


Expr = Literal | Name | Wildcard | Pack | ListExpr | Call | Access | Unary | Binary | Conditional

# ---- statements -----------------------------------------------------------------------------


@dataclass(frozen=True)
class OpEquation(Node):
    """``c, d = torch.aten.foo(a, [x, 1], none) {attr = v}``.

    ``pack``: the last name (``ys... = op(x)``) binds all the results that remain, as a list.
    ``each``: the op stands once for every item of a list (``ys[i] = op(xs[i])``), and this is the
    index of the item.
    """

    results: tuple[str | None, ...]
    call: Call
    pack: bool = False
    each: str | None = None


@dataclass(frozen=True)
class Bound(Node):
    """``u < K``: the loop index (or pack) ``id`` runs from 0 to ``limit`` - 1."""

    id: str
    pack: bool
    limit: Expr


@dataclass(frozen=True)
class IndexEquation(Node):
    """``c[m, n] += a[m, k] * b[k, n] for k < K``. ``op`` is ``=``, ``+=``, ``*=``, ``max=``..."""

    target: str
    indices: tuple[Expr, ...]
    op: str
    value: Expr
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True)
class Assignment(Node):
    """``xp = pad(x, ...)`` or ``n = a + b``: a tensor function or a scalar."""

    target: str
    value: Expr


@dataclass(frozen=True)
class Erase(Node):
    """``erase``: nothing stands for a root that has no results."""


Statement = OpEquation | IndexEquation | Assignment | Erase


def names_op(fn: str) -> bool:
    """Whether a called name may stand for an op: that of one, or a variable (``Op``) for any."""
    return "." in fn or fn[:1].isupper()


def with_variable(statement: Statement) -> Statement:
    """An equation as one of ops where an op of any name (``y = Op(x)``) may stand on the right."""
    match statement:
        case Assignment(target=target, value=Call() as call) if names_op(call.fn):
            return OpEquation(statement.pos, statement.end, (target,), call)
        case IndexEquation(
            target=target, indices=(Name(id=each),), op="=", value=Call() as call, bounds=()
        ) if names_op(call.fn):
            return OpEquation(statement.pos, statement.end, (target,), call, each=each)
    return statement


# ---- types ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DimDecl(Node):
    """A dim of a declared type: a number, a symbol, ``?`` (any), a pack (``S...``) or computed.

    ``value`` is None where ``expr`` computes the dim (``2*N``).
    """

    value: int | str | None
    pack: bool = False
    expr: Expr | None = None

    def asked(self) -> Iterator[Name]:
        """The names that a computed dim reads."""
        if self.expr is not None:
            yield from (n for n in walk_expression(self.expr) if isinstance(n, Name))


@dataclass(frozen=True)
class TypeDecl(Node):
    """A declared type.

    ``kind`` is ``vtensor``, ``tensor``, a scalar (``int``, ``float``, ``bool``, ``number``,
    ``str``, ``device``, ``any``) or ``list``.
    """

    kind: str
    dims: tuple[DimDecl, ...] | None = None  # None: any rank, unnamed
    element: str | None = None  # element type literal or symbol; None: any
    constant: bool = False
    optional: bool = False
    of: TypeDecl | None = None

    def symbols(self) -> Iterator[str]:
        """The names of its dims and element types, literal ones among them."""
        for dim in self.dims or ():
            if isinstance(dim.value, str):
                yield dim.value
            yield from (name.id for name in dim.asked())
        if self.element:
            yield self.element
        if self.of is not None:
            yield from self.of.symbols()


def walk_expression(node: Expr) -> Iterator[Expr]:
    """An expression and all that it is made of, outermost first."""
    left = [node]
    while left:
        node = left.pop()
        yield node
        match node:
            case ListExpr(items=items):
                left += reversed(items)
            case Call(args=args):
                left += reversed(args)
            case Access(base=base, items=items):
                left += reversed(items)
                left.append(base)
            case Unary(operand=operand):
                left.append(operand)
            case Binary(left=a, right=b):
                left += (b, a)
            case Conditional(condition=c, then=a, otherwise=b):
                left += (b, a, c)
