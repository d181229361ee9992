"""Tensors that something is written into while it is still computed from them.

IREE 3.13 does so in place, and reads what it has written:

- A slice that is put beside where it was (`x[:, 1:] = x[:, :-1]`) becomes a copy within one buffer,
  whose ranges overlap: it spreads the first numbers over all.
- What is computed of a tensor and put into rows of it (`x[1:] += x[:-1]`) is computed in its place.
- A scatter of a tensor into itself is one dispatch over one buffer.

There it is written into a copy.
"""

from __future__ import annotations

from mlirules.drivers.apply.barriers import RESHAPES, copy
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import Op, ir
from mlirules.drivers.iree.traversal import open_ops, ops_below

__all__ = ["guard_overwritten"]

_FRESH = ("tensor.empty", "linalg.fill")
_VIEWS = RESHAPES | {
    "tensor.extract_slice",
    "torch_c.to_builtin_tensor",
    "torch_c.from_builtin_tensor",
}
#: Ops before what is written that are looked at: beyond them it is taken as computed of the tensor.
_FAR = 64


def guard_overwritten(module: ir.Module) -> int:
    """Copy what something is written into that is computed of it. Returns how many tensors.

    One pass over the ops, and another where anything is written into a tensor of numbers.
    """
    if not any(_written(op) is not None for op in open_ops(module)):
        return 0
    # Two ops that compute the same are one later on.
    compiler.run_passes(module, "builtin.module(cse)")
    found = [
        op for op in open_ops(module) if (at := _written(op)) is not None and _overwrites(op, at)
    ]
    for op in found:
        at = _written(op)
        assert at is not None
        copy(op, at)
    return len(found)


def _written(op: ir.Operation) -> int | None:
    """Which operand is a tensor that an op writes something into; None: none that holds numbers."""
    if op.name == "tensor.insert_slice":
        number = 1
    elif op.name == "iree_linalg_ext.scatter":
        number = len(op.operands) - 1
    else:
        return None
    owner = _whole(op.operands[number]).owner
    return None if not isinstance(owner, ir.Block) and owner.name in _FRESH else number


def _overwrites(op: ir.Operation, written: int) -> bool:
    """Whether what an op writes, or where, is computed of the tensor that it writes it into."""
    whole = _whole(op.operands[written])
    if not _shared(whole):
        return False
    waiting = [value for number, value in enumerate(op.operands) if number != written]
    seen: set[ir.Value] = set()
    while waiting:
        value = waiting.pop()
        if value == whole or len(seen) > _FAR:
            return True
        owner = value.owner
        if value in seen or isinstance(owner, ir.Block) or _beside(owner, op, whole):
            continue
        seen.add(value)
        waiting += owner.operands
        for inner in ops_below(owner.operation):
            waiting += [read for read in inner.operands if isinstance(read.type, ir.ShapedType)]
    return False


def _beside(read: Op, written: ir.Operation, whole: ir.Value) -> bool:
    """Whether a part of a tensor that is read has nothing of the part that is written."""
    if (read.name, written.name) != ("tensor.extract_slice", "tensor.insert_slice"):
        return False
    if read.operands[0] != whole or written.operands[1] != whole:
        return False
    return any(
        one is not None and other is not None and (one[1] < other[0] or other[1] < one[0])
        for one, other in zip(_ends(read), _ends(written), strict=True)
    )


def _ends(op: Op) -> list[tuple[int, int] | None]:
    """The first and the last place of a slice in each dim, where they are known."""
    offsets, sizes, steps = (
        list(ir.DenseI64ArrayAttr(op.attributes[f"static_{name}"]))
        for name in ("offsets", "sizes", "strides")
    )
    open_ = ir.ShapedType.get_dynamic_size()
    return [
        None if open_ in (first, size, step) else (first, first + (size - 1) * step)
        for first, size, step in zip(offsets, sizes, steps, strict=True)
    ]


def _shared(whole: ir.Value) -> bool:
    """Whether a tensor is read more than once, itself or as a view."""
    uses = 0
    waiting = [whole]
    while waiting and uses < 2:
        for use in waiting.pop().uses:
            if use.owner.name in _VIEWS:
                waiting.append(use.owner.results[0])
            else:
                uses += 1
    return uses > 1


def _whole(value: ir.Value) -> ir.Value:
    """The tensor that a value is a view or a part of."""
    while not isinstance(owner := value.owner, ir.Block) and owner.name in _VIEWS:
        value = owner.operands[0]
    return value
