"""Which ops PyTorch takes apart before a program is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table

__all__ = ["beyond_core", "dialect_name", "for_autograd"]


def dialect_name(op: torch._ops.OpOverload) -> str:
    """The torch dialect's name of an op: ``torch.aten.add.Tensor``."""
    schema = op._schema
    name = "torch." + schema.name.replace("::", ".")
    return f"{name}.{schema.overload_name}" if schema.overload_name else name


def beyond_core(known: Callable[[str], bool]) -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of ops that are not ``known`` by the dialect's name.

    PyTorch's own table stops at some such ops (``squeeze.dims``), which no later pass converts.
    """
    return {
        op: decomposition
        for op, decomposition in decomposition_table.items()
        if isinstance(op, torch._ops.OpOverload) and not known(dialect_name(op))
    }


def for_autograd(known: Callable[[str], bool]) -> dict[Any, Callable[..., Any]]:
    """Core ATen and what lies beyond it, as AOTAutograd takes them.

    What makes a traced value of a constant stays: AOTAutograd asks of it that it does so.
    """
    found = {**beyond_core(known), **core_aten_decompositions()}
    aten = torch.ops.aten
    for op in (aten.lift.default, aten.lift_fresh.default, aten.lift_fresh_copy.default):
        found.pop(op, None)
    return found
