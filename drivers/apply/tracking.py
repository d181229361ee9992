"""Following ops through a rewrite: marks in their locations, which no pattern looks at.

Before rules run, every op of a recorded program is marked with its number; what an application
makes is marked with the application's. Afterwards the marks tell where everything came from.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import ops_below

_MARK = re.compile(r'^loc\("mlirules:(op|made) (\d+)"')


def number(module: Any) -> None:
    """Mark every op with its number, in the order in which the program prints them."""
    context = module.context
    for count, op in enumerate([module.operation, *ops_below(module.operation)]):
        op.location = ir.Location.name(f"mlirules:op {count}", op.location, context=context)


def mark(application: int, place: Any, context: Any) -> Any:
    """The location for what an application makes at ``place``."""
    return ir.Location.name(f"mlirules:made {application}", place, context=context)


def read(op: Any) -> tuple[str, int] | None:
    """``("op", number)`` or ``("made", application)`` for a marked op."""
    found = _MARK.match(str(op.location))
    return (found[1], int(found[2])) if found else None


def place(op: Any) -> Any:
    """The location of an op without a mark."""
    location = op.location
    while _MARK.match(str(location)):
        location = location.child_loc
    return location


def made(module: Any) -> dict[int, list[int]]:
    """The ops that each application made and that are left, by their numbers in ``module``."""
    found: dict[int, list[int]] = defaultdict(list)
    owners: dict[Any, int | None] = {}
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
