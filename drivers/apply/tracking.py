"""Following ops through a rewrite: marks in their locations, which no pattern looks at.

Before rules run, every op of a recorded program is marked with its number; what an application
makes is marked with the application's. Afterwards the marks tell where everything came from.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from mlirules.drivers.iree.compiler import ir

_MARK = re.compile(r'^loc\("mlirules:(op|made) (\d+)"')


def number(module: Any) -> None:
    """Mark every op with its number, in the order in which the program prints them."""
    count = 0
    context = module.context

    def visit(op: Any) -> None:
        nonlocal count
        op.location = ir.Location.name(f"mlirules:op {count}", op.location, context=context)
        count += 1
        for region in op.regions:
            for block in region.blocks:
                for inner in block.operations:
                    visit(inner.operation)

    visit(module.operation)


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
    count = 0

    def visit(op: Any, owner: int | None) -> None:
        nonlocal count
        marked = read(op)
        if marked is not None:
            owner = marked[1] if marked[0] == "made" else None
        if owner is not None:  # ops in the regions of what was made bear no mark of their own
            found[owner].append(count)
        count += 1
        for region in op.regions:
            for block in region.blocks:
                for inner in block.operations:
                    visit(inner.operation, owner)

    visit(module.operation, None)
    return dict(found)
