"""What the compiler itself states of configurations: constraints on knobs, and what knobs set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from iree.compiler.dialects import iree_codegen
from iree.compiler.dialects.iree_codegen import IntKnobAttr, OneOfKnobAttr

from mlirules.drivers.iree.bindings import ir
from mlirules.drivers.iree.traversal import ops_below

__all__ = ["Plain", "constraints_of", "items", "names", "plain", "smtlib"]

#: What attributes with knobs come to.
Plain: TypeAlias = "bool | int | str | list[Plain] | dict[str, Plain]"


def constraints_of(module: ir.Module) -> Iterator[ir.Operation]:
    """The ops of a module in which the compiler states what configurations must satisfy."""
    yield from (
        op for op in ops_below(module.operation) if op.name == "iree_codegen.smt.constraints"
    )


def smtlib(op: ir.Operation) -> str:
    """What an op of :func:`constraints_of` states, as SMT-LIB text."""
    return iree_codegen.convert_constraints_op_to_smtlib(op)


def items(dictionary: ir.DictAttr) -> Iterator[tuple[str, ir.Attribute]]:
    """The attributes in a dictionary, with their names."""
    for number in range(len(dictionary)):
        item = dictionary[number]
        yield item.name, item.attr


def names(attribute: ir.Attribute) -> set[str]:
    """The knobs in an attribute."""
    if isinstance(attribute, (IntKnobAttr, OneOfKnobAttr)):
        return {attribute.name}
    if isinstance(attribute, ir.DictAttr):
        return set().union(*(names(value) for _, value in items(attribute)))
    if isinstance(attribute, ir.ArrayAttr):
        return set().union(*map(names, attribute))
    return set()


def plain(attribute: ir.Attribute, values: Mapping[str, int]) -> Plain:
    """An attribute with these values for its knobs."""
    if isinstance(attribute, IntKnobAttr):
        return values[attribute.name]
    if isinstance(attribute, OneOfKnobAttr):
        return str(attribute.options[values[attribute.name]])
    if isinstance(attribute, ir.DictAttr):
        return {key: plain(value, values) for key, value in items(attribute)}
    if isinstance(attribute, ir.ArrayAttr):
        return [plain(item, values) for item in attribute]
    if isinstance(attribute, (ir.IntegerAttr, ir.BoolAttr)):
        return attribute.value
    return str(attribute)
