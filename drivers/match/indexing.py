"""Finding a computation however it is spelt: an index equation against structured ops.

``c[m, n] += a[m, k] * b[k, n]`` matches ``linalg.matmul``, a ``linalg.generic`` with renamed or
permuted loops, commuted operands, or narrow inputs extended inside the body. The op's indexing
maps and its body are compared with the equation, with backtracking over commutative operators.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlirules.drivers.iree.compiler import indexing_maps, ir
from mlirules.drivers.match.bodies import Node, Unsaid, body, op_for
from mlirules.drivers.match.comparing import READS, Comparing, either, spelt
from mlirules.drivers.match.indices import Env, Furthest, Miss, indices, linear
from mlirules.language.notation import ast
from mlirules.language.signs import NOTHING, UNSIGNED, Said

__all__ = ["Found", "Miss", "all_matches", "match_equation"]

_REDUCERS = {
    "+=": "+",
    "*=": "*",
    "max=": "max",
    "min=": "min",
    "and=": "and",
    "or=": "or",
    "xor=": "xor",
}


@dataclass(frozen=True)
class Found:
    """A structured op that computes an equation."""

    inputs: dict[str, ir.Value]  # tensor name -> the operand
    symbols: dict[str, object]  # what the equation leaves open: strides, functions
    init: ir.Value


def match_equation(
    equation: ast.IndexEquation, op: ir.Operation, *, said: Said = NOTHING, any_start: bool = False
) -> Found | Miss:
    """Match one op. The op's results are the equation's target.

    ``said`` is what the rule says of element types. ``any_start``: a reduction may go on from any
    value, not only from its identity.
    """
    found = all_matches(equation, op, said=said, any_start=any_start)
    return found if isinstance(found, Miss) else found[0]


def all_matches(
    equation: ast.IndexEquation, op: ir.Operation, *, said: Said = NOTHING, any_start: bool = False
) -> list[Found] | Miss:
    """Every way in which one op computes the equation: factors may stand in either order."""
    maps = indexing_maps(op)
    if maps is None:
        return Miss("the op has no indexing maps", 0, "a structured op")
    if len(op.results) != 1:
        return Miss(f"the op has {len(op.results)} results, not 1", 1)
    block = op.regions[0].blocks[0]
    operands = list(op.operands)
    loops = maps[0].n_dims if maps else 0
    accesses = []
    for m in maps:
        items = [i for e in m.results if (i := linear(e)) is not None]
        if len(items) != len(m.results):
            return Miss("an indexing map is not linear", 1)
        accesses.append(items)
    tree = body(block)
    if tree is None:
        return Miss("the body is not a single expression", 1)
    out = len(operands) - 1
    furthest = Furthest(Miss("the body or the indexing maps differ from the equation", 4))
    comparing = Comparing(said, accesses, furthest, operands)
    sign = said.sign(equation.target) or said.signs(equation.value)
    candidates: list[Node] = []
    if equation.op == "=":
        if _reads(tree, out):
            return Miss(
                "the op accumulates, the equation does not", 2, "=", f"{tree.op} into the result"
            )
        candidates = [tree]
    else:
        reducer = _REDUCERS[equation.op]
        wanted = op_for(reducer, tree.kind, sign)
        if isinstance(wanted, Unsaid) and tree.op in (wanted.signed, wanted.unsigned):
            return Miss(
                f"the equation does not say whether {equation.target} holds signed or unsigned "
                f"integers, and {equation.op} depends on it",
                3,
                either(equation.target),
                tree.op,
            )
        if tree.op != wanted or len(tree.args) != 2:
            return Miss(
                f"the op computes {spelt(tree)}, it does not reduce with {equation.op}",
                2,
                equation.op,
                spelt(tree),
            )
        for a, b in (tree.args, tree.args[::-1]):
            if a.op == "arg" and a.value == out and not _reads(b, out):
                candidates.append(b)
        if not candidates:
            return Miss("the body does not accumulate into the result", 2)
        identity = any_start or _identity_fill(operands[out], equation.op, sign)
        if not identity:
            return Miss(
                "the reduction does not start from its identity",
                3,
                f"a linalg.fill with the identity of {equation.op}",
                _start(operands[out]),
            )
    matches: list[Found] = []
    for candidate in candidates:
        state: Env = {}
        comparing.bind_type(said.elements.get(equation.target), tree.type, state)
        for env in indices(equation.target, equation.indices, accesses[out], state, furthest):
            for final in comparing.unify(equation.value, candidate, env, sign, READS):
                bound = {k[2:]: v for k, v in final.items() if k.startswith("i:")}
                packed = {d for k, v in final.items() if k.startswith("p:") for d in v}
                named = len(set(bound.values()) | packed)
                if named != loops:
                    furthest.note(
                        final,
                        f"the op has {loops} loops, the equation {named}",
                        f"{named} loops",
                        f"{loops} loops",
                    )
                    continue
                inputs = {k[2:]: operands[v] for k, v in final.items() if k.startswith("v:")}
                symbols = {k[2:]: v for k, v in final.items() if k.startswith("s:")}
                matches.append(Found(inputs, symbols, operands[out]))
    return matches or furthest.miss


def _start(value: ir.Value) -> str:
    owner = value.owner
    if isinstance(owner, ir.Block):
        return "an argument"
    if owner.name != "linalg.fill":
        return f"the result of {owner.name}"
    filled = owner.operands[0].owner
    if isinstance(filled, ir.Block) or filled.name != "arith.constant":
        return "a linalg.fill with a value known only at run time"
    return f"a linalg.fill with {getattr(filled.attributes['value'], 'value', '?')}"


def _reads(node: Node, argument: int) -> bool:
    pending, seen = [node], set()
    while pending:
        part = pending.pop()
        if id(part) in seen:  # what is read twice stands in the tree twice
            continue
        seen.add(id(part))
        if part.op == "arg" and part.value == argument:
            return True
        pending.extend(part.args)
    return False


def _identity_fill(value: ir.Value, op: str, sign: str | None) -> bool:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "linalg.fill":
        return False
    filled = owner.operands[0].owner
    if isinstance(filled, ir.Block) or filled.name != "arith.constant":
        return False
    attribute = filled.attributes["value"]
    number: int | float | None = getattr(attribute, "value", None)
    if op in ("+=", "or=", "xor="):
        return number == 0
    if op == "*=":
        return number == 1
    if isinstance(attribute, ir.FloatAttr):
        return number == (float("-inf") if op == "max=" else float("inf"))
    if number is None:
        return False
    width = int(ir.IntegerType(attribute.type).width)
    number = int(number) % (1 << width)
    ones, sign_bit = (1 << width) - 1, 1 << (width - 1)
    if op == "and=":
        return number == ones
    if sign == UNSIGNED or width == 1:
        return number == (0 if op == "max=" else ones)
    return number == (sign_bit if op == "max=" else sign_bit - 1)
