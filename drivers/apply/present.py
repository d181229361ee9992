"""What there is in a program, by which rules are left out that cannot apply: ops, element types."""

from __future__ import annotations

import functools
from collections import Counter

from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import is_open, open_ops
from mlirules.drivers.match.values import type_info
from mlirules.language import elements

__all__ = ["Present", "op_names"]


def op_names(module: ir.Module) -> Counter[str]:
    """How often each op occurs in a module (bodies of structured ops and kernels' code aside)."""
    return Counter(op.name for op in open_ops(module))


class Present:
    """What a program holds while nothing changes it; each is looked for when it is asked for."""

    def __init__(self, module: ir.Module) -> None:
        self._module = module

    @functools.cached_property
    def ops(self) -> Counter[str]:
        """How often each op occurs."""
        return op_names(self._module)

    @functools.cached_property
    def elements(self) -> frozenset[str]:
        """The types of the elements of all tensors, as :mod:`language.elements` has them."""
        types: set[ir.Type] = set()
        for op in open_ops(self._module):
            for value in op.results:
                types.add(value.type)
            if len(op.regions) and is_open(op):
                for region in op.regions:
                    for block in region.blocks:
                        types.update(argument.type for argument in block.arguments)
        tensors = [type_info(type_)[1] for type_ in types]
        return frozenset(
            elements.shown(t.dtype) for t in tensors if t is not None and t.dtype is not None
        )
