"""Tensors between the dispatches of a kernel rule: ``first:``."""

from __future__ import annotations

from typing import Any

from mlirules.generator.lowering.orders import value_of
from mlirules.language.nomatch import NoMatch
from mlirules.language.operands import describe
from mlirules.language.rule import Variant
from mlirules.language.values import Tensor, dtype_named


def scratch(variant: Variant, env: dict[str, Any]) -> dict[str, Tensor]:
    """What dispatches before the kernel's own write, in order. Raises :class:`NoMatch`."""
    found = {}
    for name, made in variant.first.items():
        dims = []
        for line, expr in made.dims:
            size = value_of(line, expr, env)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise NoMatch(
                    line,
                    f"{line} is {describe(size)}: what lies between two dispatches has dims known "
                    "when the kernel is compiled",
                    expected="a number from 1 up",
                    found=describe(size),
                )
            dims.append(size)
        found[name] = Tensor(name, tuple(dims), dtype_named(made.element), torch=False)
    return found
