"""Ops taken out of their program: what they read, copies of them, their text without the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlirules.drivers.iree.compiler import Op, ir
from mlirules.drivers.iree.traversal import ops_below

__all__ = ["owner", "read_by", "remap", "texts"]


def owner(value: ir.Value) -> ir.Operation | None:
    """The op that gives ``value``; None for an argument."""
    found = value.owner
    return None if isinstance(found, ir.Block) else found.operation


def read_by(op: ir.Operation) -> list[ir.Value]:
    """What an op reads, its regions' captures with it."""
    own: set[ir.Value] = set()
    read: list[ir.Value] = []

    for inner in (op, *ops_below(op)):
        read.extend(v for v in inner.operands if v not in own)
        own.update(inner.results)
        for region in inner.regions:
            for block in region.blocks:
                own.update(block.arguments)
    return read


def remap(op: Op, mapped: Mapping[ir.Value, ir.Value]) -> None:
    """Let an op, and what stands in it, read other values."""
    for inner in (op.operation, *ops_below(op.operation)):
        operands = inner.operands
        for n, value in enumerate(operands):
            if value in mapped:
                operands[n] = mapped[value]


def texts(ops: Sequence[Op], context: ir.Context, inputs: list[ir.Value]) -> list[str]:
    """Each op as text, at a cost that does not grow with the program around it.

    Values that come from elsewhere are named ``%arg0``, ``%arg1`` ... by their places in
    ``inputs``, to which those that are not there yet are added; torch constants keep their names.
    To print an op where it stands the compiler numbers every value of its function.
    """
    inside = {op.operation for op in ops}
    constants: list[ir.Operation] = []
    for op in ops:
        for value in read_by(op.operation):
            source = owner(value)
            if source in inside:
                continue
            if source is not None and source.name.startswith("torch.constant."):
                if source not in constants:
                    constants.append(source)
            elif value not in inputs:
                inputs.append(value)
    with context, ir.Location.unknown(context):
        module = ir.Module.create()
        type_ = ir.FunctionType.get([value.type for value in inputs], [])
        named = {"sym_name": ir.StringAttr.get("f"), "function_type": ir.TypeAttr.get(type_)}
        function = ir.Operation.create(
            "func.func", attributes=named, regions=1, ip=ir.InsertionPoint(module.body)
        )
        block = function.regions[0].blocks.append(*[value.type for value in inputs])
        mapped: dict[ir.Value, ir.Value] = dict(zip(inputs, block.arguments, strict=True))
        copies = []
        for op in (*constants, *(op.operation for op in ops)):
            new = op.clone(ir.InsertionPoint(block))
            mapped.update(zip(op.results, new.results, strict=True))
            copies.append(new)
        for new in copies:
            remap(new, mapped)
        return [op.get_asm(assume_verified=True) for op in copies[len(constants) :]]
