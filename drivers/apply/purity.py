"""Which ops an e-graph may hold: those whose results follow from what they read, and no other."""

from __future__ import annotations

from collections.abc import Callable

from mlirules.drivers.apply.seen import KNOWN
from mlirules.drivers.iree import irtypes
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.match.values import constant_of

__all__ = ["PURE", "changes_list", "is_pure"]

#: How the names of ops begin that may be such.
PURE = ("torch.aten.", *KNOWN)
#: Ops whose results are not determined by what they read.
_RANDOM = (
    *("rand", "bernoulli", "dropout", "normal", "uniform", "multinomial", "exponential", "rrelu"),
    *("native_dropout", "poisson", "geometric", "cauchy", "log_normal", "empty", "new_empty"),
)


def is_pure(op: ir.Operation, variable: Callable[[ir.Value], bool]) -> bool:
    """Whether an op is one. ``variable`` tells tensors that ops may change from other values."""
    name = op.name
    if not name.startswith(PURE) or len(op.regions) or not len(op.results):
        return False
    if name.startswith("torch.constant."):
        return True
    stem = name.removeprefix("torch.aten.").split(".")[0]
    if name.startswith("torch.aten.") and stem.endswith("_"):
        return False
    # Outside training a dropout gives what it reads.
    still = "dropout" in stem and len(op.operands) > 2 and constant_of(op.operands[2]) is False
    if name.startswith("torch.aten.") and stem.startswith(_RANDOM) and not still:
        return False
    if stem.startswith("scaled_dot_product") and constant_of(op.operands[4]) != 0.0:
        return False
    return not (any(map(variable, op.operands)) or any(map(variable, op.results)))


def changes_list(op: ir.Operation) -> bool:
    """Whether an op changes a list in place."""
    stem = op.name.removeprefix("torch.aten.").split(".")[0]
    return (
        stem in ("append", "extend", "insert", "pop", "clear", "reverse", "_set_item", "sort")
        and len(op.operands) > 0
        and irtypes.torch_kinds(op.operands[0].type)[:1] == ("list",)
    )
