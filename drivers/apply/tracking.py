"""Following ops through a rewrite: marks in their locations, which no pattern looks at.

Before rules run, every op of a recorded program is marked with its number; what an application
makes is marked with the application's. Afterwards the marks tell where everything came from.
"""

from __future__ import annotations

from collections import defaultdict

from mlirules.drivers.iree.compiler import Op, ir
from mlirules.drivers.iree.traversal import ops_below

#: How the name of a marked location begins: ``op NUMBER`` or ``made NUMBER`` goes on.
_MARK = "mlirules:"


def number(module: ir.Module) -> None:
    """Mark every op with its number, in the order in which the program prints them."""
    context = module.context
    for count, op in enumerate([module.operation, *ops_below(module.operation)]):
        op.location = ir.Location.name(f"mlirules:op {count}", op.location, context=context)


def mark(application: int, place: ir.Location, context: ir.Context) -> ir.Location:
    """The location for what an application makes at ``place``."""
    return ir.Location.name(f"mlirules:made {application}", place, context=context)


def read(op: Op) -> tuple[str, int] | None:
    """``("op", number)`` or ``("made", application)`` for a marked op."""
    return _marked(op.location)


def _marked(location: ir.Location) -> tuple[str, int] | None:
    if not isinstance(location, ir.NameLoc) or not location.name_str.startswith(_MARK):
        return None
    what, _, count = location.name_str.removeprefix(_MARK).partition(" ")
    return what, int(count)


def place(op: Op) -> ir.Location:
    """The location of an op without a mark."""
    location = op.location
    while isinstance(location, ir.NameLoc) and _marked(location) is not None:
        location = location.child_loc
    return location


def made(module: ir.Module) -> dict[int, list[int]]:
    """The ops that each application made and that are left, by their numbers in ``module``."""
    found: dict[int, list[int]] = defaultdict(list)
    owners: dict[ir.Operation, int | None] = {}
    for count, op in enumerate([module.operation, *ops_below(module.operation)]):
        parent = op.parent
        owner = owners.get(parent.operation) if parent is not None else None
        marked = read(op)
        if marked is not None:
            owner = marked[1] if marked[0] == "made" else None
        if owner is not None:  # ops in the regions of what was made bear no mark of their own
            found[owner].append(count)
        if len(op.regions):
            owners[op] = owner
    return dict(found)
