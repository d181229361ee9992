"""Matching a ``linalg.generic`` by its spelling: the op in full, in each order that commutes.

The compiler compares attributes and bodies exactly. What the rule says once is therefore written
out for every order in which the operands of sums, products, minima and maxima can stand.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mlirules.language.config.op import ConfigRule, Operand, affine_map, element_bits
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.notation import ast
from mlirules.language.signs import SIGNED, UNSIGNED

#: More spellings than this are refused: each is a matcher that every op of a program is tried on.
MAX_SPELLINGS = 32

_FLOAT = {"+": "addf", "-": "subf", "*": "mulf", "/": "divf", "max": "maximumf", "min": "minimumf"}
_INT = {"+": "addi", "-": "subi", "*": "muli"}
_BY_SIGN = {
    SIGNED: {"max": "maxsi", "min": "minsi"},
    UNSIGNED: {"max": "maxui", "min": "minui"},
}
_COMMUTE = frozenset({"+", "*", "max", "min"})
_UNARY = {
    "exp": "math.exp",
    "log": "math.log",
    "sqrt": "math.sqrt",
    "rsqrt": "math.rsqrt",
    "tanh": "math.tanh",
    "abs": "math.absf",
    "erf": "math.erf",
    "sin": "math.sin",
    "cos": "math.cos",
    "neg": "arith.negf",
}
_REDUCE = {"+=": "+", "*=": "*", "max=": "max", "min=": "min"}


@dataclass(frozen=True)
class _Node:
    op: str  # a binary operator, a unary function, or "read"
    args: tuple[_Node, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Generic:
    """A computation in one of its spellings, as the template shows it."""

    #: The operands' types, the result's last; their maps; what each loop is.
    types: list[str]
    maps: list[str]
    kinds: list[str]
    #: The body's arguments with their types, its lines, and what it yields.
    arguments: list[tuple[str, str]]
    body: list[str]
    value: str
    element: str
    form: str = "generic"


def roots(rule: ConfigRule) -> list[Generic]:
    """What an op is compared with, once for each spelling.

    Raises :class:`MlirulesError` for a computation that cannot be written out.
    """
    assert rule.equation is not None
    tree = _tree(rule, rule.equation.value)
    out_name = rule.operands[-1].name
    if rule.equation.op in _REDUCE:
        tree = _Node(_REDUCE[rule.equation.op], (tree, _Node("read", name=out_name)))
    elif rule.equation.op != "=":
        raise _refused(rule, f"{rule.equation.op} is not supported here")
    spelt = list(itertools.islice(_spellings(tree), MAX_SPELLINGS + 1))
    if len(spelt) > MAX_SPELLINGS:
        raise _refused(rule, f"it can be spelt in more than {MAX_SPELLINGS} ways")
    # The usual order of an accumulation in IREE is value first.
    return [_root(rule, t) for t in dict.fromkeys(spelt)]


def _refused(rule: ConfigRule, message: str) -> MlirulesError:
    span = rule.source.span_at(("match", "compute"))
    return MlirulesError(
        Fault(
            span,
            "generic",
            f"the computation cannot be matched: {message}",
            "sums, products, minima, maxima and " + ", ".join(_UNARY) + " can be",
        )
    )


def _tree(rule: ConfigRule, node: ast.Expr) -> _Node:
    match node:
        case ast.Access(base=ast.Name(id=name)):
            return _Node("read", name=name)
        case ast.Binary(op=op, left=left, right=right) if op in _FLOAT:
            return _Node(op, (_tree(rule, left), _tree(rule, right)))
        case ast.Unary(op="-", operand=operand):
            return _Node("neg", (_tree(rule, operand),))
        case ast.Call(fn=fn, args=(one,)) if fn in _UNARY:
            return _Node(fn, (_tree(rule, one),))
        case ast.Call(fn=("max" | "min") as fn, args=(one, two)):
            return _Node(fn, (_tree(rule, one), _tree(rule, two)))
        case ast.Literal():
            raise _refused(rule, "constants stand outside of the op, where nothing compares")
    raise _refused(rule, "a part of it is no arithmetic over operands")


def _spellings(node: _Node) -> Iterator[_Node]:
    if node.op == "read":
        yield node
        return
    for args in itertools.product(*(list(_spellings(a)) for a in node.args)):
        yield _Node(node.op, args)
        if node.op in _COMMUTE and args[0] != args[1]:
            yield _Node(node.op, args[::-1])


def _root(rule: ConfigRule, tree: _Node) -> Generic:
    *inputs, out = rule.operands
    names = {o.name: f"%in{i}" for i, o in enumerate(inputs)} | {out.name: "%out"}
    body: list[str] = []
    wide: dict[str, str] = {}
    for operand in inputs:  # in their order, whichever way they are combined
        _emit(_Node("read", name=operand.name), rule, names, body, wide)
    value = _emit(tree, rule, names, body, wide)
    return Generic(
        [f"tensor<{'?x' * len(o.indices)}{o.element}>" for o in rule.operands],
        [affine_map(rule, o) for o in rule.operands],
        ['"reduction"' if loop in rule.reductions else '"parallel"' for loop in rule.loops],
        [(names[o.name], o.element) for o in rule.operands],
        body,
        value,
        out.element,
    )


def _unsaid(rule: ConfigRule, what: str) -> MlirulesError:
    span = rule.source.span_at(("match", "types"))
    return MlirulesError(
        Fault(
            span,
            "generic",
            f"the types do not say whether integers are signed, and {what} depends on it",
            "write si8 or ui8 in place of i8",
        )
    )


def _widening(rule: ConfigRule, operand: Operand, floating: bool) -> str:
    """The op that widens what is read of an operand to the type that is computed in."""
    if "f" in operand.element:
        return "arith.extf"
    sign = rule.said.sign(operand.name)
    if sign is None:
        raise _unsaid(rule, f"widening {operand.name!r}")
    if floating:
        return "arith.sitofp" if sign == SIGNED else "arith.uitofp"
    return "arith.extsi" if sign == SIGNED else "arith.extui"


def _integer_ops(rule: ConfigRule, op: str) -> dict[str, str]:
    """The ops of integers, with the sign that the equation says."""
    assert rule.equation is not None
    if op in _INT:
        return _INT
    sign = rule.said.sign(rule.operands[-1].name) or rule.said.signs(rule.equation.value)
    if sign not in _BY_SIGN:
        raise _unsaid(rule, op)
    return _INT | _BY_SIGN[sign]


def _emit(
    node: _Node,
    rule: ConfigRule,
    names: Mapping[str, str],
    body: list[str],
    wide: dict[str, str],
) -> str:
    """Write a node's operations; inputs are widened to the result's type where they are read."""
    element = rule.operands[-1].element
    floating = "f" in element
    if node.op == "read":
        operand = next(o for o in rule.operands if o.name == node.name)
        if operand.element == element:
            return names[node.name]
        if node.name not in wide:
            if element_bits(operand.element) > element_bits(element):
                raise _refused(rule, f"{node.name!r} is wider than the result")
            wide[node.name] = f"%w{len(body)}"
            cast = _widening(rule, operand, floating)
            body.append(
                f"{wide[node.name]} = {cast} {names[node.name]} : {operand.element} to {element}"
            )
        return wide[node.name]
    args = [_emit(a, rule, names, body, wide) for a in node.args]
    if len(args) == 1:
        if not floating:
            raise _refused(rule, f"{node.op} of integers")
        op = _UNARY[node.op]
    else:
        table = _FLOAT if floating else _integer_ops(rule, node.op)
        if node.op not in table:
            raise _refused(rule, f"{node.op} of integers")
        op = f"arith.{table[node.op]}"
    name = f"%v{len(body)}"
    body.append(f"{name} = {op} {', '.join(args)} : {element}")
    return name
