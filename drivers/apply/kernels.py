"""Executables of kernel rules in programs: put where their dispatches are."""

from __future__ import annotations

from collections.abc import Iterable

from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.program import entry_points
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.match.rewrites import Rewrite

__all__ = ["place"]


def place(module: ir.Module, rewrites: Iterable[Rewrite]) -> int:
    """Give ``module`` the executables that its dispatches name; returns how many came.

    ``rewrites`` are those of the kernel rules that applied: each holds its executable.
    """
    wanted = _dispatched(module.operation)
    for op in module.body.operations:
        wanted.discard(_symbol(op.operation))
    count = 0
    for rewrite in rewrites:
        for op in list(rewrite.module.body.operations)[1:]:
            name = _symbol(op.operation)
            if name in wanted:
                op.operation.clone(ir.InsertionPoint(module.body))
                wanted.discard(name)
                count += 1
    return count


def _symbol(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["sym_name"]).value if "sym_name" in op.attributes else ""


def _dispatched(operation: ir.Operation) -> set[str]:
    found: set[str] = set()
    for op in ops_below(operation, lambda op: not op.name.startswith("linalg.")):
        if op.name == "flow.dispatch":
            found.update(path[0] for path in entry_points(op) if len(path) > 1)
    return found
