"""What programs load by name from archives of weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mlirules.drivers.iree import irtypes
from mlirules.drivers.iree.compiler import ir
from mlirules.language.typetexts import TensorType

__all__ = ["Weight", "named"]

# The bindings have no class for this attribute: its names are in its text.
_NAMED = re.compile(r'#stream\.parameter\.named<(?:"([^"]*)"::)?"([^"]*)">')


@dataclass(frozen=True)
class Weight:
    """A weight that a program loads by name; its ``scope`` is empty where it has none."""

    scope: str
    name: str
    type: TensorType


def named(module: ir.Module) -> Iterator[Weight]:
    """Each weight that is loaded by name."""
    for op in module.body.operations:
        inner = op.operation
        if inner.name != "util.global" or "initial_value" not in inner.attributes:
            continue
        value = inner.attributes["initial_value"]
        # Printing the values of a constant would take long.
        if isinstance(value, ir.DenseElementsAttr) or (found := _NAMED.match(str(value))) is None:
            continue
        type_ = irtypes.tensor_type(value.type)
        if type_ is not None:
            yield Weight(found[1] or "", found[2], type_)
