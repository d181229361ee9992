"""What is known of a normal form's value where the operands are real numbers."""

from __future__ import annotations

from mlirules.drivers.prove.expr import Int, Poly, atom, nodes_in
from mlirules.drivers.prove.world import World, at_least_zero

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


def finite(world: World, value: Int) -> bool:
    """Whether a value is real for certain: no infinity in it, no maximum of nothing."""
    for n in nodes_in(value):
        if n.op in ("special", "ite"):
            return False
        if n.op == "inv" and not positive(world, n.args[0]):
            return False
        if n.op != "f" or n.args[0] in TOTAL:
            continue
        if n.args[0] not in ("log", "sqrt") or not positive(world, n.args[1][0]):
            return False
    return all(world.nonempty(n.args[0]) for n in nodes_in(value) if n.op == "reduce")


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
