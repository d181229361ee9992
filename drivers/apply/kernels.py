"""Executables of kernel rules in programs: put where their dispatches are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.program import entry_points
from mlirules.drivers.iree.traversal import EXECUTABLES, ops_below
from mlirules.drivers.match.rewrites import Rewrite
from mlirules.language.grid import TARGET

__all__ = ["gather", "place"]

#: So many kernels at most are compiled as one executable.
TOGETHER = 8
#: What the executable of a kernel holds.
_KERNEL = ["stream.executable.export", "builtin.module", "stream.executable.end"]
_CLOSED = ("linalg.", *EXECUTABLES)


def place(module: ir.Module, rewrites: Iterable[Rewrite]) -> int:
    """Give ``module`` the executables that its dispatches name; returns how many came.

    ``rewrites`` are those of the kernel rules that applied: each holds its executable.
    """
    called = [path for op in _dispatches(module) for path in entry_points(op)]
    wanted = {path[0] for path in called if len(path) > 1}
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


def gather(module: ir.Module) -> int:
    """Let kernels for the cpu share executables, in place; returns how many executables went.

    The compiler makes every pass, and verifies what it gives, for each executable anew, and links
    them into one in the end. Those of one executable are not compiled side by side, so they are
    few. A kernel that brings anything but its function stays alone. One walk.
    """
    alone = [op.operation for op in module.body.operations if _is_plain(op.operation)]
    count = -(-len(alone) // TOGETHER)
    shared: dict[str, str] = {}
    for place, op in enumerate(alone[count:]):
        into = alone[place % count]
        shared[_symbol(op)] = _symbol(into)
        export, inner = _parts(op)
        _, own_inner = _parts(into)
        export.move_before(own_inner)
        function = inner.regions[0].blocks[0].operations[0].operation
        function.move_before(own_inner.regions[0].blocks[0].operations[0].operation)
        op.erase()
    if not shared:
        return 0
    with module.context:
        for dispatch in _dispatches(module):
            called = entry_points(dispatch)
            if any(path[0] in shared for path in called):
                paths = [[shared.get(path[0], path[0]), *path[1:]] for path in called]
                dispatch.attributes["entry_points"] = ir.ArrayAttr.get(
                    [ir.SymbolRefAttr.get(path) for path in paths]
                )
    return len(shared)


def _is_plain(op: ir.Operation) -> bool:
    """Whether an executable is a kernel for the cpu with one function and nothing beside."""
    attributes = op.attributes
    if op.name != "stream.executable" or TARGET not in attributes:
        return False
    names = {attributes[n].name for n in range(len(attributes))}
    parts = [each.operation for each in op.regions[0].blocks[0].operations]
    return (
        ir.StringAttr(attributes[TARGET]).value == "cpu"
        and all(n.startswith("mlirules.") for n in names - {"sym_name", "sym_visibility"})
        and [part.name for part in parts] == _KERNEL
        and not len(parts[1].attributes)
        and len(parts[1].regions[0].blocks[0].operations) == 1
    )


def _parts(op: ir.Operation) -> tuple[ir.Operation, ir.Operation]:
    """The first export of an executable of kernels, and the module that holds their functions."""
    exports_and_inner = [each.operation for each in op.regions[0].blocks[0].operations][:-1]
    return exports_and_inner[0], exports_and_inner[-1]


def _symbol(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["sym_name"]).value if "sym_name" in op.attributes else ""


def _dispatches(module: ir.Module) -> Iterator[ir.Operation]:
    below = ops_below(module.operation, lambda op: not op.name.startswith(_CLOSED))
    return (op for op in below if op.name == "flow.dispatch")
