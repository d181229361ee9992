"""What is known of a normal form's value where the operands are real numbers."""

from __future__ import annotations

from collections.abc import Iterator

from mlirules.drivers.prove.conditions import at_least_zero
from mlirules.drivers.prove.expr import Int, Node, Poly, atom
from mlirules.drivers.prove.world import World

#: Functions that give a real number for every real number.
TOTAL = frozenset(
    {
        *("exp", "expm1", "tanh", "erf", "erfc", "abs", "sin", "cos", "sinh", "cosh", "asinh"),
        *("atan", "floor", "ceil", "trunc", "round", "sign", "real", "imag", "max", "min"),
    }
)


def special(value: Int) -> str | None:
    """The infinity or NaN that a normal form is; None where it is none."""
    if not isinstance(value, Poly) or len(value.terms) != 1:
        return None
    ((mono, c),) = value.terms.items()
    if len(mono) == 1 and mono[0][0].op == "special" and mono[0][1] == 1 and c == 1:
        return str(mono[0][0].args[0])
    return None


def real_maximum(world: World, node: Node) -> bool:
    """Whether a maximum that may be minus infinity is a real number on this path."""
    some = world.maxima.get(node.key)
    if some is None:
        if world.lowest is None:
            return False
        world.maxima[node.key] = 0  # as long as it is asked for
        lowest = world.lowest(atom(node))
        if lowest is None:
            del world.maxima[node.key]
            return False
        world.maxima[node.key] = some = 1 - lowest
    if not isinstance(some, Poly):
        return bool(some == 1)
    if len(some.terms) != 1:
        return False
    ((mono, c),) = some.terms.items()
    return c == 1 and all(n.op == "holds" and world.answer(n.args[0]) is True for n, _ in mono)


def outer_nodes(world: World, value: object) -> Iterator[Node]:
    """Every node of a value but those inside of maxima that are real for certain."""
    seen: set[str] = set()
    stack = [value]
    while stack:
        at = stack.pop()
        if isinstance(at, Poly):
            stack.extend(n for m in at.terms for n, _ in m)
        elif isinstance(at, tuple):
            stack.extend(at)
        elif isinstance(at, Node) and at.key not in seen:
            seen.add(at.key)
            if at.op == "reduce" and real_maximum(world, at):
                continue
            yield at
            stack.extend(at.args)


def may_be_infinite(world: World, value: object) -> bool:
    """Whether an infinity or NaN that the program writes occurs in a value."""
    return any(n.op == "special" for n in outer_nodes(world, value))


def finite(world: World, value: Int) -> bool:
    """Whether a value is real for certain: no infinity in it, no maximum of nothing."""
    nodes = list(outer_nodes(world, value))
    for n in nodes:
        if n.op in ("special", "ite"):
            return False
        if n.op == "inv" and not positive(world, n.args[0]):
            return False
        if n.op != "f" or n.args[0] in TOTAL:
            continue
        if n.args[0] not in ("log", "sqrt") or not positive(world, n.args[1][0]):
            return False
    return all(world.nonempty(n.args[0]) for n in nodes if n.op == "reduce")


def positive(world: World, value: Int) -> bool:
    """Whether a value is above 0 for certain: exponentials and sizes, sums and inverses of them."""
    if not isinstance(value, Poly):
        return bool(value > 0)
    if all(n.op == "dim" for m in value.terms for n, _ in m) and all(
        isinstance(c, int) for c in value.terms.values()
    ):
        return world.follows(at_least_zero(value - 1))
    for mono, c in value.terms.items():
        if c < 0:
            return False
        for node, _ in mono:
            if node.op == "exp":
                continue
            if node.op == "f" and node.args[0] == "sqrt" and positive(world, node.args[1][0]):
                continue
            if node.op == "dim" and positive(world, atom(node)):
                continue
            if node.op == "sum" and world.nonempty(node.args[0]) and positive(world, node.args[1]):
                continue
            if node.op == "inv" and positive(world, node.args[0]):
                continue
            return False
    return bool(value.terms)
