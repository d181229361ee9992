"""What programs load by name from archives of weights."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mlirules.drivers.iree.compiler import ir

__all__ = ["named"]

_NAMED = re.compile(
    r'#stream\.parameter\.named<(?:"(?P<scope>[^"]*)"::)?"(?P<name>[^"]*)"> : '
    r"tensor<(?P<sizes>(?:\d+x)*)(?P<element>[^>]+>?)>"
)
_ELEMENTS = (ir.DenseElementsAttr, ir.DenseResourceElementsAttr)


def named(module: ir.Module) -> Iterator[re.Match[str]]:
    """The ``scope``, ``name``, ``sizes`` and ``element`` of each weight that is loaded by name."""
    for op in module.body.operations:
        inner = op.operation
        if inner.name != "util.global" or "initial_value" not in inner.attributes:
            continue
        value = inner.attributes["initial_value"]
        # Printing the values of a constant would take long.
        if not isinstance(value, _ELEMENTS) and (found := _NAMED.match(str(value))) is not None:
            yield found
