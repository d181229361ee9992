"""Torch ops that no rule has converted, by name and by place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from mlirules.drivers.iree.compiler import Program, ir
from mlirules.drivers.iree.traversal import open_ops
from mlirules.language.faults import Fault, Span

__all__ = ["counted", "span", "unruled"]

#: What stands for an op that the torch dialect does not have.
_OPERATOR = "torch.operator"

#: Where a frame is PyTorch's own code, or ours around the model.
_NOT_THE_USERS = ("/site-packages/torch/", "/mlirules/drivers/")


def counted(module: ir.Module, ignored: Collection[str]) -> Counter[str]:
    """How many torch ops of each name are left, but for those ``ignored``.

    Ops that the torch dialect does not know go by their own name.
    """
    found: Counter[str] = Counter()
    for op in open_ops(module):
        name = op.name
        if name.startswith("torch.") and name not in ignored:
            found[_own_name(op) if name == _OPERATOR else name] += 1
    return found


def _own_name(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["name"]).value


def unruled(program: Program, path: str) -> list[Fault]:
    """A fault for each op that the torch dialect does not know and no rule took.

    They stand at the user's own line: of the model, where the program says which that is, else of
    the program, which is called ``path``.
    """
    lines = program.lines()
    return [
        Fault(
            span(str(op.location), path, lines),
            "no-rule",
            f"no rule for {_own_name(op)}",
            "the torch dialect has no such op, so the compiler cannot convert it either",
        )
        for op in open_ops(program.module)
        if op.name == _OPERATOR
    ]


def span(location: str, path: str, lines: list[str]) -> Span:
    """Where the user wrote an op, by its location: in the model, else in ``path`` of ``lines``."""
    # The frames of a call site, the innermost first.
    frames = [
        (file, int(line), int(column))
        for file, line, column in re.findall(r'"?([^"\s()]+)"?:(\d+):(\d+)', location)
    ]
    own = [f for f in frames if not any(part in f[0] for part in _NOT_THE_USERS)] or frames
    if not own or not own[0][1]:
        return Span(path)
    file, line, column = own[0]
    if file in ("-", path):
        file = path
    else:
        try:
            lines = Path(file).read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError):  # the model may have been imported elsewhere
            lines = []
    source = lines[line - 1] if 1 <= line <= len(lines) else ""
    column = column or len(source) - len(source.lstrip()) + 1
    return Span(file, line, column, len(source[column - 1 :].rstrip()) or 1, source)
