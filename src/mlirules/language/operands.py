"""What expressions compute with before any IR exists: numbers, lists, tensors, operators."""

from __future__ import annotations

from typing import Any

from mlirules.language.notation import ast
from mlirules.language.values import DType, Dyn, Opaque, Scalar, Tensor


class Refused(Exception):
    """An expression that has no value for this match: the rule does not apply, and why."""

    def __init__(self, message: str, node: ast.Node | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.node = node


def number(value: object, what: str = "value") -> int | float:
    """``value`` as a number known now; raises :class:`Refused` when it is not."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, (Dyn, Scalar)):
        raise Refused(f"{what} {value if isinstance(value, Dyn) else value.name} is not constant")
    raise Refused(f"{what} is {describe(value)}, not a number")


def integer(value: object, what: str = "value") -> int:
    """``value`` as an integer known now; raises :class:`Refused` when it is not."""
    found = number(value, what)
    if isinstance(found, float):
        raise Refused(f"{what} is {found}, not a whole number")
    return found


def sequence(value: object, what: str = "value") -> list[Any]:
    """``value`` as a list; raises :class:`Refused` when it is not one."""
    if isinstance(value, (list, tuple)):
        return list(value)
    raise Refused(f"{what} is {describe(value)}, not a list")


def tensor(value: object) -> Tensor:
    """``value`` as a ranked tensor of known element type; raises :class:`Refused` otherwise."""
    if not isinstance(value, Tensor):
        raise Refused(f"{describe(value)} is not a tensor")
    if value.dims is None:
        raise Refused(f"the rank of {value.name} is not known")
    if value.dtype is None:
        raise Refused(f"the element type of {value.name} is not known")
    return value


def dtype(value: object) -> DType:
    """``value`` (an element type, or a tensor that has one) as an element type."""
    if isinstance(value, DType):
        return value
    if isinstance(value, Tensor) and value.dtype is not None:
        return value.dtype
    raise Refused(f"{describe(value)} has no element type")


def describe(value: object) -> str:
    """``value`` in words that a rule's author understands."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Tensor):
        return value.torch_type() if value.torch else value.builtin_type()
    if isinstance(value, Scalar):
        return f"a {value.kind} known only at run time"
    if isinstance(value, Dyn):
        return "a number known only at run time"
    if isinstance(value, Opaque):
        return value.type
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(describe(v) for v in value) + "]"
    if type(value).__module__.startswith("iree."):
        return f"the attribute {value}"
    return str(value)


def truth(value: object) -> bool:
    """``value`` as a truth value known now; raises :class:`Refused` when it is not."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (Scalar, Dyn)):
        raise Refused(f"{value.name if isinstance(value, Scalar) else value} is not constant")
    raise Refused(f"{describe(value)} is not true or false")


def equal(a: object, b: object) -> bool:
    """Equality of two values as far as it is known now; raises :class:`Refused` when unknown."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (Dyn, Scalar)) or isinstance(b, (Dyn, Scalar)):
        if a == b:
            return True
        if a is None or b is None:
            return False
        raise Refused(f"{describe(a)} and {describe(b)} cannot be compared before run time")
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    return bool(a == b)


def arith(op: str, a: Any, b: Any) -> Any:
    """``a op b`` on numbers and dims; run-time numbers give a :class:`Dyn`."""
    if isinstance(a, bool):
        a = int(a)
    if isinstance(b, bool):
        b = int(b)
    for v in (a, b):
        if not isinstance(v, (int, float, Dyn)):
            raise Refused(f"{describe(v)} is not a number")
    if isinstance(a, Dyn) or isinstance(b, Dyn):
        if isinstance(a, float) or isinstance(b, float):
            raise Refused("a run-time dim cannot be combined with a fraction")
        if op == "/":
            raise Refused("run-time dims are divided with //")
        if op in "+-" and b == 0:
            return a
        if op == "+" and a == 0:
            return b
        if op in ("*", "//") and b == 1:
            return a
        if op == "*" and a == 1:
            return b
        if op == "*" and (a == 0 or b == 0):
            return 0
        if op == "-" and a == b:
            return 0
        # (d + 2) - 2: keep chains short so that equal dims stay equal.
        if (
            op in "+-"
            and isinstance(b, int)
            and isinstance(a, Dyn)
            and a.op == "+"
            and isinstance(a.args[1], int)
        ):
            rest = a.args[1] + b if op == "+" else a.args[1] - b
            return a.args[0] if rest == 0 else Dyn("+", (a.args[0], rest))
        if op == "-" and isinstance(b, int):
            return Dyn("+", (a, -b))
        return Dyn(op, (a, b))
    if op == "+":
        return a + b
    if op == "-":
        return a - b
    if op == "*":
        out = a * b
        if isinstance(out, int) and abs(out) > 1 << 128:
            raise Refused("the number is too large")
        return out
    if b == 0:
        raise Refused("division by zero")
    if op == "/":
        return a / b
    if op == "//":
        return a // b
    if op == "%":
        return a % b
    raise Refused(f"unknown operator {op}")


def compare(op: str, a: Any, b: Any) -> bool:
    """An ordering of numbers known now."""
    x, y = number(a), number(b)
    return {"<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y}[op]
