"""What is known of a normal form's value where the operands are real numbers."""

from __future__ import annotations

from mlirules.drivers.prove.expr import Int, Poly, nodes_in
from mlirules.drivers.prove.world import World


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
        if n.op in ("special", "ite", "inv"):
            return False
        if n.op == "reduce" and not world.nonempty(n.args[0]):
            return False
    return True


def positive(world: World, value: Int) -> bool:
    """Whether a value is above 0 for certain: exponentials, sums and inverses of them."""
    if not isinstance(value, Poly):
        return bool(value > 0)
    for mono, c in value.terms.items():
        if c < 0:
            return False
        for node, _ in mono:
            if node.op == "f" and node.args[0] == "exp" and finite(world, node.args[1][0]):
                continue
            if node.op == "sum" and world.nonempty(node.args[0]) and positive(world, node.args[1]):
                continue
            if node.op == "inv" and positive(world, node.args[0]):
                continue
            return False
    return bool(value.terms)
