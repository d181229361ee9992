"""Functions of attributes: the kinds of arrays and numbers that MLIR tells apart."""

from __future__ import annotations

from typing import Any

from mlirules.language.builtins.registry import Table
from mlirules.language.operands import Refused, describe, dtype, integer, number, sequence
from mlirules.language.values import Attribute, DType, Opaque

table = Table()


@table.function(
    "array",
    2,
    2,
    "The attribute array<i64: 1, 0>: a list of one element type.",
    "array(si64, [1, 0])",
)
def _array(t: object, items: object) -> Attribute:
    element, listed = dtype(t), sequence(items, "the array")
    shown = ", ".join(_spelt(element, item) for item in listed)
    return Attribute(f"array<{element.mlir}: {shown}>" if shown else f"array<{element.mlir}>")


@table.function(
    "dense",
    2,
    2,
    "The attribute dense<[[0, 1]]> : tensor<1x2xi64>, of nested lists.",
    "dense(si64, [[0, 1]])",
)
def _dense(t: object, items: object) -> Attribute:
    element = dtype(t)
    shape: list[int] = []
    level = items
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0] if level else None
    dims = "".join(f"{d}x" for d in shape)
    if 0 in shape:
        return Attribute(f"dense<> : tensor<{dims}{element.mlir}>")
    return Attribute(f"dense<{_nested(element, items, shape)}> : tensor<{dims}{element.mlir}>")


@table.function(
    "number", 2, 2, "The attribute 3 : i32: a number of an element type.", "number(si32, 3)"
)
def _number(t: object, value: object) -> Attribute:
    element = dtype(t)
    return Attribute(f"{_spelt(element, value)} : {element.mlir}")


@table.function(
    "mlir", 1, 1, "An attribute as MLIR spells it.", 'mlir("#stablehlo<comparison_direction EQ>")'
)
def _mlir(text: object) -> Attribute:
    if not isinstance(text, str):
        raise Refused(f"mlir takes a text, not {describe(text)}")
    return Attribute(text)


@table.function(
    "elements",
    1,
    1,
    "The elements of a small constant tensor of integers, as nested lists.",
    "elements(padding)",
)
def _elements(value: object) -> Any:
    if isinstance(value, list):
        return value
    if isinstance(value, Opaque) and value.items is not None:
        return value.items
    raise Refused(f"{describe(value)} has no elements that are known now")


def _spelt(element: DType, value: object) -> str:
    if element.is_bool:
        if not isinstance(value, bool):
            raise Refused(f"{describe(value)} is no truth value")
        return str(value).lower()
    if element.is_float:
        return f"{float(number(value, 'the item')):.17e}"
    return str(integer(value, "the item"))


def _nested(element: DType, items: object, shape: list[int]) -> str:
    if not shape:
        return _spelt(element, items)
    if not isinstance(items, list) or len(items) != shape[0]:
        raise Refused("the lists of a dense attribute have different lengths")
    return "[" + ", ".join(_nested(element, item, shape[1:]) for item in items) + "]"
