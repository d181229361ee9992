"""Workgroups of kernels are taken by parts, so that a core goes on with what it has in its caches.

``generator.sharing`` says how a workgroup is taken. Here a program's kernels get that, the
dispatches their slots, and each function a buffer of counters, which a dispatch of its own sets to
zero. Its operand is behind a barrier: else zeros could be made once, for all calls. It is a tensor:
with a number IREE records a function's dispatches in each call anew.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.program import entry_points
from mlirules.drivers.iree.traversal import ops_below
from mlirules.generator import sharing
from mlirules.language.grid import TARGET

__all__ = ["share"]

_COUNTERS = "mlirules_counters"


def share(module: ir.Module, parts: int) -> int:
    """Have the workgroups of kernels taken by ``parts``, in place; returns how many dispatches do.

    A kernel of one workgroup stays as it is, one whose grid is known only at run time, and one that
    is dispatched within a loop as well, where zeros made outside would serve one turn. One walk.
    """
    with module.context, ir.Location.unknown():
        kernels = {
            ir.StringAttr(op.attributes["sym_name"]).value: op.operation
            for op in module.body.operations
            if op.operation.name == "stream.executable" and TARGET in op.attributes
        }
        found: dict[ir.Block, list[ir.Operation]] = defaultdict(list)
        inputs: dict[str, int] = {}
        elsewhere: set[str] = set()
        for op, block in _dispatches(module):
            for name, *_ in entry_points(op):
                inputs[name] = _tensors(op)
                if block is None:
                    elsewhere.add(name)
            if block is not None:
                found[block].append(op)
        grids = {
            name: grid
            for name, op in kernels.items()
            if name in inputs and name not in elsewhere
            if (grid := _grid(op)) is not None and math.prod(grid) > 1
        }
        chosen = {
            block: kept
            for block, ops in found.items()
            if (kept := [op for op in ops if entry_points(op)[0][0] in grids])
        }
        if not chosen:
            return 0
        # Each function has one buffer, as large as any of them needs.
        numbers = max(map(len, chosen.values())) * parts * sharing.LINE
        for name, grid in grids.items():
            taking = sharing.take(grid, min(parts, math.prod(grid)), numbers)
            _take(kernels[name], inputs[name], taking, numbers)
        for block, dispatches in chosen.items():
            counters = _zeros(block, numbers)
            for number, op in enumerate(dispatches):
                _give(op, counters, number * parts * sharing.LINE)
        made = ir.Module.parse(sharing.zeroes(_COUNTERS, numbers))
        made.body.operations[0].operation.clone(ir.InsertionPoint(module.body))
        return sum(map(len, chosen.values()))


def _dispatches(module: ir.Module) -> Iterator[tuple[ir.Operation, ir.Block | None]]:
    """Dispatches, each with the function's block that it stands in; None: deeper."""
    for view in module.body.operations:
        function = view.operation
        if function.name not in ("func.func", "util.func"):
            continue
        blocks = list(function.regions[0].blocks)
        for op in ops_below(function, lambda op: not op.name.startswith("linalg.")):
            if op.name == "flow.dispatch":
                # Of several blocks one may be run again and again.
                top = len(blocks) == 1 and op.operation.block == blocks[0]
                yield op.operation, blocks[0] if top else None


def _grid(executable: ir.Operation) -> tuple[int, int, int] | None:
    """A kernel's workgroups along each axis, where they are known."""
    export = next(
        op.operation
        for op in executable.regions[0].blocks[0].operations
        if op.operation.name == "stream.executable.export"
    )
    *_, last = export.regions[0].blocks[0].operations
    found = []
    for value in last.operation.operands:
        owner = value.owner
        if isinstance(owner, ir.Block) or owner.name != "arith.constant":
            return None
        found.append(ir.IntegerAttr(owner.attributes["value"]).value)
    x, y, z = found
    return x, y, z


def _tensors(dispatch: ir.Operation) -> int:
    """How many tensors a dispatch reads; its numbers come after them."""
    workload, operands, *_ = ir.DenseI32ArrayAttr(dispatch.attributes["operandSegmentSizes"])
    given = list(dispatch.operands)[workload : workload + operands]
    return sum(isinstance(value.type, ir.RankedTensorType) for value in given)


def _take(executable: ir.Operation, inputs: int, taking: str, numbers: int) -> None:
    """Have a kernel's function take its workgroup; it gets the counters and a slot."""
    inner = next(
        op.operation
        for op in executable.regions[0].blocks[0].operations
        if op.operation.name == "builtin.module"
    )
    function = next(
        op.operation
        for op in inner.regions[0].blocks[0].operations
        if len(op.operation.regions[0].blocks)
    )
    block = function.regions[0].blocks[0]
    place = function.location
    # What a dispatch reads comes before what it writes, and numbers last.
    after = list(block.arguments)[inputs:]
    block.add_argument(ir.Type.parse("!stream.binding"), place)
    for old in after:
        old.replace_all_uses_with(block.add_argument(old.type, place))
    for _ in after:
        block.erase_argument(inputs)
    slot = block.add_argument(ir.IndexType.get(), place)
    types = [argument.type for argument in block.arguments]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, []))
    first = block.operations[0].operation
    with ir.InsertionPoint(first):
        counters = ir.Operation.create(
            "stream.binding.subspan",
            results=[ir.MemRefType.get([numbers], _i32())],
            operands=[block.arguments[inputs], _index(0)],
        ).result
    asked = [
        op.operation
        for op in block.operations
        if op.operation.name == "stream.dispatch.workgroup.id"
    ]
    parsed = ir.Module.parse(taking)
    source = parsed.body.operations[0].operation.regions[0].blocks[0]
    for argument, value in zip(source.arguments, (counters, slot), strict=True):
        argument.replace_all_uses_with(value)
    *taken, last = (op.operation for op in source.operations)
    for op in taken:
        op.move_before(first)
    for op in asked:
        axis = ir.IntegerAttr(op.attributes["dimension"]).value
        op.results[0].replace_all_uses_with(last.operands[axis])
        op.erase()
    last.erase()


def _zeros(block: ir.Block, numbers: int) -> ir.Value:
    """Counters that are zero whenever a function begins."""
    with ir.InsertionPoint.at_block_begin(block):
        kind = ir.RankedTensorType.get([2], _i32())
        # Of equal numbers IREE would fill a buffer in each call.
        told = ir.Operation.create(
            "arith.constant",
            results=[kind],
            attributes={"value": ir.Attribute.parse("dense<[0, 1]> : tensor<2xi32>")},
        ).result
        given = ir.Operation.create(
            "util.optimization_barrier", results=[kind], operands=[told]
        ).result
        return ir.Operation.create(
            "flow.dispatch",
            results=[ir.RankedTensorType.get([numbers], _i32())],
            operands=[given],
            attributes={
                "entry_points": ir.Attribute.parse(f"[@{_COUNTERS}::@{_COUNTERS}]"),
                "operandSegmentSizes": ir.DenseI32ArrayAttr.get([0, 1, 0, 0]),
            },
        ).result


def _give(dispatch: ir.Operation, counters: ir.Value, slot: int) -> None:
    """Give a dispatch the counters, after the tensors that it reads, and its slot, last."""
    workload, operands, *dims = ir.DenseI32ArrayAttr(dispatch.attributes["operandSegmentSizes"])
    given = list(dispatch.operands)
    tensors = _tensors(dispatch)
    sizes = ir.DenseI32ArrayAttr.get([workload, operands + 2, *dims])
    with ir.InsertionPoint(dispatch):
        given.insert(workload + operands, _index(slot))
        given.insert(workload + tensors, counters)
        made = ir.Operation.create(
            "flow.dispatch",
            results=[value.type for value in dispatch.results],
            operands=given,
            attributes={
                **{name: dispatch.attributes[name] for name in dispatch.attributes},
                "operandSegmentSizes": sizes,
            },
            loc=dispatch.location,
        )
    for old, new in zip(dispatch.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    dispatch.erase()


def _index(value: int) -> ir.Value:
    index = ir.IndexType.get()
    return ir.Operation.create(
        "arith.constant",
        results=[index],
        attributes={"value": ir.IntegerAttr.get(index, value)},
    ).result


def _i32() -> ir.Type:
    return ir.IntegerType.get_signless(32)
