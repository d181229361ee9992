"""Conditions of a proof: over sizes and indices, as nodes or decided."""

from __future__ import annotations

from collections.abc import Iterable

from mlirules.drivers.prove.expr import Int, Node, Poly, Undecided


def is_zero(value: Int) -> Node | bool:
    """The condition that a whole number is 0."""
    if not isinstance(value, Poly):
        return bool(value == 0)
    first = next(iter(value.terms.values()))
    return Node("eq0", value if first > 0 else -value)


def at_least_zero(value: Int) -> Node | bool:
    """The condition that a whole number is not negative."""
    return Node("ge0", value) if isinstance(value, Poly) else bool(value >= 0)


def compared(op: str, a: Int, b: Int) -> Node | bool:
    """A comparison of whole numbers as a condition."""
    match op:
        case "==":
            return is_zero(a - b)
        case "!=":
            return negated(is_zero(a - b))
        case "<":
            return at_least_zero(b - a - 1)
        case "<=":
            return at_least_zero(b - a)
        case ">":
            return at_least_zero(a - b - 1)
        case ">=":
            return at_least_zero(a - b)
    raise Undecided(f"a comparison {op}")


def negated(condition: Node | bool) -> Node | bool:
    """The contrary of a condition."""
    if isinstance(condition, bool):
        return not condition
    if condition.op == "not":
        found = condition.args[0]
        assert isinstance(found, (Node, bool))
        return found
    if condition.op == "ge0":
        return at_least_zero(-condition.args[0] - 1)
    return Node("not", condition)


def any_of(conditions: Iterable[Node | bool]) -> Node | bool:
    """The condition that one of some holds."""
    left = list(conditions)
    if any(c is True for c in left):
        return True
    return Node("or", *[c for c in left if isinstance(c, Node)])


def all_of(conditions: Iterable[Node | bool]) -> Node | bool:
    """The condition that all of some hold."""
    left: dict[str, Node] = {}
    for c in conditions:
        if isinstance(c, bool):
            if not c:
                return False
            continue
        left[c.key] = c
    if not left:
        return True
    if len(left) == 1:
        return next(iter(left.values()))
    return Node("and", *[left[k] for k in sorted(left)])
