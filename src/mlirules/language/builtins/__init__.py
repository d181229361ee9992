"""The functions that ``where``, ``let`` and index lists may use: a closed set."""

from collections.abc import Mapping
from types import MappingProxyType

from mlirules.language.builtins import attributes, lists, shapes, types
from mlirules.language.builtins.registry import Function

FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    shapes.table.functions
    | types.table.functions
    | lists.table.functions
    | attributes.table.functions
)
