"""Bodies of structured ops as trees, and which op of the compiler computes what the notation says.

The same table says what a rule's rewrite makes of a function and what a match takes for it, so that
what is matched means what would be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mlirules.drivers.iree.compiler import Op, ir
from mlirules.language.functions import SIMPLE
from mlirules.language.signs import SIGNED, UNSIGNED
from mlirules.language.values import Arithmetic

FLOAT, INTEGER, BOOL = "float", "integer", "bool"

#: Conversions to a wider type that keep every value.
EXTENSIONS = ("arith.extf", "arith.extsi", "arith.extui")
#: Conversions of integers to floats.
TO_FLOAT = ("arith.sitofp", "arith.uitofp")
NARROWINGS = ("arith.truncf", "arith.trunci", "arith.fptosi", "arith.fptoui")
#: The sign with which a conversion reads an integer.
READ_AS = {
    "arith.extsi": SIGNED,
    "arith.extui": UNSIGNED,
    "arith.sitofp": SIGNED,
    "arith.uitofp": UNSIGNED,
}
#: The sign with which a conversion makes an integer.
MADE_AS = {"arith.fptosi": SIGNED, "arith.fptoui": UNSIGNED}

_FLOAT_OPS = {"+": "addf", "-": "subf", "*": "mulf", "/": "divf", "neg": "negf"}
# One op whatever the sign.
_INTEGER_OPS = {"+": "addi", "-": "subi", "*": "muli"}
_SIGNED_OPS = {"//": "floordivsi", "<": "slt", "<=": "sle", ">": "sgt", ">=": "sge"}
_UNSIGNED_OPS = {
    "//": "divui",
    "%": "remui",
    "<": "ult",
    "<=": "ule",
    ">": "ugt",
    ">=": "uge",
}
_FLOAT_COMPARISONS = {"==": "oeq", "!=": "une", "<": "olt", "<=": "ole", ">": "ogt", ">=": "oge"}
COMPARISONS = frozenset(_FLOAT_COMPARISONS)
_LOGIC = {"and": "bitand", "or": "bitor", "xor": "bitxor"}
_CLASSES = {"isnan": "math.isnan", "isinf": "math.isinf", "isfinite": "math.isfinite"}

# By number, as the attribute `predicate` holds them.
_CMPF: tuple[str, ...] = ("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord")
_CMPF += ("ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true")
_CMPI = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")


@dataclass(frozen=True)
class Node:
    """A part of a body: an op by its name (comparisons with their predicate), or a leaf.

    Leaves are ``arg`` (``value`` is the operand's number), ``const`` (its value) and ``index`` (the
    loop's number). ``type`` is the type of what it gives.
    """

    op: str
    type: ir.Type
    args: tuple[Node, ...] = ()
    value: Any = None
    #: The op itself.
    source: Op | None = field(default=None, compare=False, repr=False)

    @property
    def kind(self) -> str:
        """``float``, ``integer``, ``bool``; anything else gives ``""``."""
        if isinstance(self.type, ir.IntegerType):
            return BOOL if self.type.width == 1 else INTEGER
        return FLOAT if isinstance(self.type, ir.FloatType) else ""


def body(block: ir.Block) -> Node | None:
    """What a body yields; None where it is not a single expression of ops with one result."""
    made: dict[ir.Value, Node] = {
        arg: Node("arg", arg.type, value=i) for i, arg in enumerate(block.arguments)
    }
    *operations, end = block.operations
    for operation in operations:  # a body's ops stand in their order: no recursion
        op = operation.operation
        node = _node(op, made)
        if node is not None:
            made[op.results[0]] = node
    yielded = list(end.operands)
    return _outside(yielded[0], made) if len(yielded) == 1 else None


def _outside(value: ir.Value, made: dict[ir.Value, Node]) -> Node | None:
    """A value of the body, or a constant from outside of it."""
    node = made.get(value)
    if node is None and not isinstance(value.owner, ir.Block):
        node = _constant(value.owner)
    return node


def _constant(op: Op) -> Node | None:
    if op.name != "arith.constant":
        return None
    attribute = op.attributes["value"]
    if isinstance(attribute, (ir.FloatAttr, ir.IntegerAttr, ir.BoolAttr)):
        return Node("const", attribute.type, value=attribute.value, source=op)
    return None


def _node(op: ir.Operation, made: dict[ir.Value, Node]) -> Node | None:
    if op.name == "arith.constant":
        return _constant(op)
    if len(op.results) != 1:
        return None
    type_ = op.results[0].type
    if op.name == "linalg.index":
        return Node("index", type_, value=ir.IntegerAttr(op.attributes["dim"]).value)
    args = []
    for operand in op.operands:
        node = _outside(operand, made)
        if node is None:
            return None
        args.append(node)
    name = op.name
    if name in ("arith.cmpf", "arith.cmpi"):
        number = ir.IntegerAttr(op.attributes["predicate"]).value
        name += " " + (_CMPF if name == "arith.cmpf" else _CMPI)[number]
    if "roundingmode" in op.attributes and ir.IntegerAttr(op.attributes["roundingmode"]).value:
        name = f"{name} {op.attributes['roundingmode']}"  # not to the nearest: another function
    return Node(name, type_, tuple(args), source=op)


@dataclass(frozen=True)
class Unsaid:
    """An integer op whose result depends on the sign, which the equation does not say."""

    signed: str
    unsigned: str


def op_for(fn: str, kind: str, sign: str | None) -> str | Unsaid | None:
    """The op that computes a function of the notation over operands of one kind.

    ``sign`` is what the equation says of integers. None: no single op does; :class:`Unsaid`: which
    one it is depends on the sign.
    """
    fn = _LOGIC.get(fn, fn)
    if fn in _CLASSES:
        return _CLASSES[fn] if kind == FLOAT else None
    if fn == "fma":
        return "math.fma" if kind == FLOAT else None
    simple = SIMPLE.get(fn)
    if kind == FLOAT:
        if fn in COMPARISONS:
            return f"arith.cmpf {_FLOAT_COMPARISONS[fn]}"
        if fn in _FLOAT_OPS:
            return f"arith.{_FLOAT_OPS[fn]}"
        return simple.float_op or None if simple else None
    if kind == BOOL:
        sign = UNSIGNED
        if simple is not None and simple.bool_op:
            return simple.bool_op
    elif kind != INTEGER:
        return None
    if fn in ("==", "!="):
        return "arith.cmpi eq" if fn == "==" else "arith.cmpi ne"
    if fn in _INTEGER_OPS:
        return f"arith.{_INTEGER_OPS[fn]}"
    if simple is not None:
        signed, unsigned = simple.signed_op, simple.unsigned_op
    else:
        prefix = "arith.cmpi " if fn in COMPARISONS else "arith."
        signed = prefix + _SIGNED_OPS[fn] if fn in _SIGNED_OPS else ""
        unsigned = prefix + _UNSIGNED_OPS[fn] if fn in _UNSIGNED_OPS else ""
    if signed == unsigned:
        return signed or None
    if sign is None:
        return Unsaid(signed, unsigned)
    return (unsigned if sign == UNSIGNED else signed) or None


#: The notation's word for an op, where the op has no other reading.
SPELT = {
    **{f"arith.{op}": fn for fn, op in (*_FLOAT_OPS.items(), *_INTEGER_OPS.items())},
    **{f.float_op: f.name for f in SIMPLE.values() if f.float_op},
    **{f"arith.cmpf {op}": fn for fn, op in _FLOAT_COMPARISONS.items()},
    "arith.andi": "and",
    "arith.ori": "or",
    "arith.xori": "xor",
    "arith.select": "select",
}


def operands_of(node: Node) -> list[int] | None:
    """The operands that a part of a body reads, in order; None where it is no function of them."""
    found: set[int] = set()
    pending, seen = [node], set()
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if part.op == "arg":
            found.add(part.value)
        elif part.op == "index" or part.source is None or len(part.source.regions):
            return None
        pending.extend(part.args)
    return sorted(found)


def arithmetic(node: Node, order: Sequence[int]) -> Arithmetic:
    """A part of a body as a function of operands, which it takes in this order."""
    numbers: dict[int, int] = {}
    types: dict[int, str] = {}
    steps: list[tuple[str, tuple[int, ...]]] = []
    pending: list[tuple[Node, bool]] = [(node, False)]
    while pending:  # what a part is made of first
        part, ready = pending.pop()
        if id(part) in numbers:
            continue
        if part.op == "arg":
            numbers[id(part)] = order.index(part.value)
            types[part.value] = str(part.type)
        elif not ready:
            pending += [(part, True), *((arg, False) for arg in part.args)]
        else:
            at = len(order) + len(steps)
            steps.append((_step(part), (at, *(numbers[id(arg)] for arg in part.args))))
            numbers[id(part)] = at
    return Arithmetic(tuple(types[n] for n in order), tuple(steps), str(node.type))


def _step(part: Node) -> str:
    op = part.source
    assert op is not None  # a leaf is no step
    attributes = ", ".join(f"{key} = {op.attributes[key]}" for key in op.attributes)
    operands = ", ".join(f"{{{n + 1}}}" for n in range(len(part.args)))
    types = ", ".join(str(arg.type) for arg in part.args)
    written = attributes.replace("{", "{{").replace("}", "}}")
    return f'{{0}} = "{op.name}"({operands}) {{{{{written}}}}} : ({types}) -> {part.type}'
