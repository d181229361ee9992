"""Tensors between the dispatches of a kernel rule: ``first:``."""

from __future__ import annotations

from typing import Any

from mlirules.generator.lowering.orders import fixed_sizes
from mlirules.language.rule import Variant
from mlirules.language.values import Tensor, dtype_named


def scratch(variant: Variant, env: dict[str, Any]) -> dict[str, Tensor]:
    """What dispatches before the kernel's own write, in order. Raises :class:`NoMatch`."""
    between = "what lies between two dispatches"
    return {
        name: Tensor(
            name,
            tuple(fixed_sizes(made.dims, env, between)),
            dtype_named(made.element),
            torch=False,
        )
        for name, made in variant.first.items()
    }
