"""Kernels whose every access is compared with the buffer that it goes to, for tests.

A copy of the program and of its kernels is made in which an access beyond its buffer is not done
but noted, in one more result of the program: which access, in which dim, with which index. The
program itself stays as it is, and both compile together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mlirules.drivers.iree import irtypes
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.program import entry_points
from mlirules.drivers.iree.traversal import ops_below
from mlirules.language.faults import Fault, Span
from mlirules.language.grid import READS, TARGET, WRITES
from mlirules.language.rule import Rule

__all__ = ["Checked", "with_checks"]

_SUFFIX = "_checked"
_SLT, _SGT = 2, 4  # of arith.cmpi
_INT32 = 2**31 - 1
_COLUMNS = 4  # of notes: 1 where there is one, the first index, the last, how many there are
#: Ops that give another view of a buffer, which is their first operand.
_VIEWS = frozenset(
    f"memref.{name}"
    for name in (
        "cast",
        "collapse_shape",
        "expand_shape",
        "memory_space_cast",
        "subview",
        "transpose",
        "assume_alignment",
    )
)
_RECAST = "memref.reinterpret_cast"
_METADATA = "iree_codegen.extract_strided_metadata"
#: What leads from a view to its buffer.
_THROUGH = _VIEWS | {_RECAST, _METADATA}
_HARMLESS = _VIEWS | frozenset(
    [
        _METADATA,
        "memref.alloc",
        "memref.alloca",
        "memref.dealloc",
        "memref.dim",
        "memref.prefetch",
        "scf.for",
        "scf.if",
        "scf.while",
        "scf.yield",
        "stream.binding.subspan",
    ]
)


@dataclass(frozen=True)
class _Row:
    """What one row of the notes is about: an access, and one dim of its buffer."""

    span: Span
    op: str
    writes: bool
    dim: int
    buffer: str


@dataclass
class Checked:
    """The checked copy of a program."""

    function: str
    #: Of each dispatch, in the order of the further results: the rows of its notes.
    rows: list[list[_Row]] = field(default_factory=list)
    #: What is not checked, at its place.
    unchecked: list[tuple[Span, str]] = field(default_factory=list)

    def faults(self, results: Sequence[npt.ArrayLike]) -> list[Fault]:
        """The accesses beyond their buffers that a call of the checked copy noted."""
        out = []
        for rows, noted in zip(self.rows, results[len(results) - len(self.rows) :], strict=True):
            for row, note in zip(rows, np.asarray(noted).tolist(), strict=False):
                found, first, last, size = note
                if not found:
                    continue
                at = f"index {first}" if first == last else f"indices {first} to {last}"
                does = "takes" if row.op in _VIEWS else "writes" if row.writes else "reads"
                out.append(
                    Fault(
                        row.span,
                        "bounds",
                        f"{row.op} {does} {at} of dim {row.dim} of {row.buffer}, whose extent is "
                        f"{size}",
                    )
                )
        return list(dict.fromkeys(out))


def with_checks(module: ir.Module, rule: Rule) -> Checked | None:
    """Add to a program a copy whose kernels note accesses beyond their buffers; None: no kernel."""
    with module.context, ir.Location.unknown(module.context):
        kernels = {
            ir.StringAttr(op.operation.attributes["sym_name"]).value: op.operation
            for op in module.body.operations
            if TARGET in op.operation.attributes
        }
        functions = (op.operation for op in module.body.operations)
        plain = next((op for op in functions if op.name in ("func.func", "util.func")), None)
        if not kernels or plain is None:
            return None
        copy = plain.clone(ir.InsertionPoint(module.body)).operation
        name = ir.StringAttr(copy.attributes["sym_name"]).value + _SUFFIX
        copy.attributes["sym_name"] = ir.StringAttr.get(name)
        made = Checked(name)
        checked: dict[str, list[_Row]] = {}
        block = copy.regions[0].blocks[0]
        notes = []
        for view in list(block.operations):
            op = view.operation
            if op.name != "flow.dispatch":
                continue
            symbol = entry_points(op)[0][0]
            if symbol not in kernels:
                continue
            if symbol not in checked:
                checked[symbol] = _checked_kernel(kernels[symbol], symbol, rule, made)
            if checked[symbol]:
                notes.append(_dispatched(op, symbol, len(checked[symbol])))
                made.rows.append(checked[symbol])
        if not notes:
            copy.erase()
            return made if made.unchecked else None
        _returned(copy, notes)
    return made


# ---------------------------------------------------------------- what surrounds the kernel


def _dispatched(op: ir.Operation, symbol: str, rows: int) -> ir.Value:
    """A dispatch with a buffer for notes, in place of ``op``; returns the notes."""
    sizes = [int(n) for n in ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])]
    operands = list(op.operands)
    tensors = sum(
        isinstance(v.type, ir.RankedTensorType) for v in operands[sizes[0] : sizes[0] + sizes[1]]
    )
    i32 = ir.IntegerType.get_signless(32)
    type_ = ir.RankedTensorType.get([rows, _COLUMNS], i32)
    emit = _Emit(op)
    zero = ir.DenseElementsAttr.get_splat(type_, ir.IntegerAttr.get(i32, 0))
    (none,) = emit.op("arith.constant", [], [type_], {"value": zero})
    operands.insert(sizes[0] + tensors, none)
    sizes[1] += 1
    attributes = {name: op.attributes[name] for name in op.attributes}
    tied = [-1] * len(op.results) + [tensors]
    index = ir.IndexType.get()
    attributes |= {
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get(sizes),
        "tied_operands": ir.ArrayAttr.get([ir.IntegerAttr.get(index, n) for n in tied]),
        "entry_points": ir.Attribute.parse(f"[@{symbol}{_SUFFIX}::@{symbol}{_SUFFIX}]"),
    }
    types = [v.type for v in op.results]
    results = emit.op("flow.dispatch", operands, [*types, type_], attributes)
    for old, new in zip(op.results, results, strict=False):
        old.replace_all_uses_with(new)
    op.erase()
    return results[-1]


def _returned(function: ir.Operation, notes: list[ir.Value]) -> None:
    """Give a function the notes as further results."""
    block = function.regions[0].blocks[0]
    last = list(block.operations)[-1].operation
    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    if any(irtypes.is_torch(t) for t in [*kind.inputs, *kind.results]):
        emit = _Emit(last)
        notes = [
            emit.op(
                "torch_c.from_builtin_tensor",
                [note],
                [
                    ir.Type.parse(
                        f"!torch.vtensor<[{ir.ShapedType(note.type).get_dim_size(0)},{_COLUMNS}],si32>"
                    )
                ],
            )[0]
            for note in notes
        ]
    given = [*last.operands, *notes]
    _Emit(last).op(last.name, given, [])
    last.erase()
    made = ir.FunctionType.get(kind.inputs, [v.type for v in given])
    function.attributes["function_type"] = ir.TypeAttr.get(made)
    for name in ("res_attrs", "tied_operands"):
        if name in function.attributes:
            del function.attributes[name]


# ---------------------------------------------------------------- the kernel


def _checked_kernel(executable: ir.Operation, symbol: str, rule: Rule, made: Checked) -> list[_Row]:
    """A copy of an executable, beside it, that notes what it would have done wrong."""
    copy = executable.clone(ir.InsertionPoint.after(executable)).operation
    name = symbol + _SUFFIX
    copy.attributes["sym_name"] = ir.StringAttr.get(name)
    export, inner = (op.operation for op in list(copy.regions[0].blocks[0].operations)[:2])
    export.attributes["sym_name"] = ir.StringAttr.get(name)
    export.attributes["function_ref"] = ir.FlatSymbolRefAttr.get(name)
    function = next(
        op.operation
        for op in inner.regions[0].blocks[0].operations
        if len(op.operation.regions[0].blocks)
    )
    function.attributes["sym_name"] = ir.StringAttr.get(name)
    accesses = []
    for op in list(ops_below(function)):
        found = _reach(op)
        if found is not None:
            accesses.append((op, found))
        elif op.name == _RECAST and _is_whole(op):
            continue
        elif op.name not in _HARMLESS and any(_is_memref(v) for v in op.operands):
            made.unchecked.append((_span(op, rule), f"{op.name} is not checked for bounds"))
    read, written = (
        [ir.StringAttr(name).value for name in ir.ArrayAttr(executable.attributes[mark])]
        for mark in (READS, WRITES)
    )
    names = [*read, *written]
    rows = [row for op, found in accesses for row in _rows(op, found, rule, names)]
    if not rows:
        copy.erase()
        return []
    notes = _noted(function, len(rows), len(read))
    number = 0
    beyond: dict[ir.Value, ir.Value] = {}
    for op, found in accesses:
        _guard(op, found, notes, number, beyond)
        number += len(found.indices)
    return rows


def _noted(function: ir.Operation, rows: int, inputs: int) -> ir.Value:
    """Give a kernel's function a buffer for notes, after those that it reads."""
    block = function.regions[0].blocks[0]
    place = ir.Location.unknown()
    after = list(block.arguments)[inputs:]
    binding = ir.Type.parse("!stream.binding")
    added = block.add_argument(binding, place)
    for old in after:
        old.replace_all_uses_with(block.add_argument(old.type, place))
    for _ in after:
        block.erase_argument(inputs)
    taken = [argument.type for argument in block.arguments]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(taken, []))
    emit = _Emit(block.operations[0].operation)
    type_ = ir.MemRefType.get([rows, _COLUMNS], ir.IntegerType.get_signless(32))
    added = block.arguments[inputs]
    return emit.op("stream.binding.subspan", [added, emit.index(0)], [type_])[0]


#: A value of the kernel, or a number that is known.
_Number: TypeAlias = ir.Value | int


@dataclass(frozen=True)
class _Reach:
    """Where an access goes: its buffer, the index in each dim, and how far it goes from there.

    ``extents``: a number; a size and a stride; None: as far as it likes, it looks after that
    itself. In the last dim those ``lanes`` of a vector count that ``mask`` lets.
    """

    base: ir.Value
    indices: Sequence[_Number]
    extents: Sequence[int | tuple[_Number, _Number] | None]
    writes: bool = False
    mask: ir.Value | None = None
    lanes: ir.Value | None = None


def _is_memref(value: ir.Value) -> bool:
    with suppress(ValueError):
        ir.MemRefType(value.type)
        return True
    return False


def _is_whole(op: ir.Operation) -> bool:
    """Whether a recast is all of a buffer in another shape, row by row: `%x_base`, `%x_offset`.

    Such a view goes nowhere that its own extents do not say.
    """
    base, *rest = op.operands
    if isinstance(base.owner, ir.Block) or base.owner.name != _METADATA:
        return False
    told = base.owner
    sizes, strides, offsets = (
        list(ir.DenseI64ArrayAttr(op.attributes[key]))
        for key in ("static_sizes", "static_strides", "static_offsets")
    )
    dynamic = ir.ShapedType.get_dynamic_size()
    buffer = ir.MemRefType(told.operands[0].type)
    if not buffer.has_static_shape or dynamic in sizes or rest != [told.results[1]]:
        return False
    rows = [math.prod(sizes[n + 1 :]) for n in range(len(sizes))]
    held = math.prod(buffer.shape)
    shape = list(buffer.shape)
    plain = [math.prod(shape[n + 1 :]) for n in range(len(shape))]
    return bool(
        strides == rows
        and math.prod(sizes) == held
        and offsets == [dynamic]
        and buffer.get_strides_and_offset()[0] == plain
    )


def _reach(op: ir.Operation) -> _Reach | None:
    """Where an op goes in a buffer; None for one that goes nowhere, or unknown where."""
    operands = list(op.operands)
    name = op.name
    if name == "memref.subview":
        return _view(op)
    writes = name in _WRITES
    at = 1 if name in _VALUE_FIRST else 0
    if name not in _ACCESSES or len(operands) <= at or not _is_memref(operands[at]):
        return None
    base = operands[at]
    rank = ir.MemRefType(base.type).rank
    indices = operands[at + 1 : at + 1 + rank]
    extents: list[int | tuple[_Number, _Number] | None] = [1] * rank
    rest = operands[at + 1 + rank :]
    if name in ("vector.load", "vector.store"):
        type_ = op.results[0].type if not writes else operands[0].type
        shape = _shape(type_)
        if ir.MemRefType(base.type).element_type == type_:
            shape = []  # the buffer holds vectors
        for n, size in enumerate(reversed(shape), 1):
            extents[rank - n] = size
    elif name in ("vector.transfer_read", "vector.transfer_write"):
        shape = _shape(op.results[0].type if not writes else operands[0].type)
        within = [bool(ir.BoolAttr(a).value) for a in ir.ArrayAttr(op.attributes["in_bounds"])]
        masked = len(rest) > (0 if writes else 1)
        exact = isinstance(ir.MemRefType(base.type).element_type, ir.VectorType)
        results = [] if exact else ir.AffineMapAttr(op.attributes["permutation_map"]).value.results
        for expression, size, inside in zip(results, shape, within, strict=False):
            with suppress(ValueError):  # a constant: the vector repeats one element
                dim = ir.AffineDimExpr(expression).position
                extents[dim] = size if inside and not masked else None
    elif name in ("vector.maskedload", "vector.maskedstore"):
        return _Reach(base, indices, extents, writes, mask=rest[0])
    elif name in ("vector.gather", "vector.scatter"):
        return _Reach(base, indices, extents, writes, mask=rest[1], lanes=rest[0])
    return _Reach(base, indices, extents, writes)


def _view(op: ir.Operation) -> _Reach:
    """What a subview takes of its buffer."""
    rest = iter(list(op.operands)[1:])
    dynamic = -(2**63)
    offsets, sizes, strides = (
        [next(rest) if n == dynamic else n for n in ir.DenseI64ArrayAttr(op.attributes[key])]
        for key in ("static_offsets", "static_sizes", "static_strides")
    )
    return _Reach(op.operands[0], offsets, list(zip(sizes, strides, strict=True)))


_VALUE_FIRST = frozenset(
    ["memref.store", "vector.store", "vector.transfer_write", "memref.atomic_rmw"]
)
_WRITES = _VALUE_FIRST | {"vector.maskedstore", "vector.scatter", "memref.generic_atomic_rmw"}
_ACCESSES = _WRITES | {
    "memref.load",
    "vector.load",
    "vector.transfer_read",
    "vector.maskedload",
    "vector.gather",
}


def _shape(type_: ir.Type) -> list[int]:
    with suppress(ValueError):
        return list(ir.VectorType(type_).shape)
    return []


def _rows(op: ir.Operation, found: _Reach, rule: Rule, names: Sequence[str]) -> Iterator[_Row]:
    span = _span(op, rule)
    buffer = _buffer(found.base, names)
    for dim in range(len(found.extents)):
        yield _Row(span, op.name, found.writes, dim, buffer)


def _span(op: ir.Operation, rule: Rule) -> Span:
    place = op.location
    if not isinstance(place, ir.FileLineColLoc):
        return rule.made_by.span
    line, column = place.start_line, place.start_col
    rest = rule.source.span(line, column).source_line.rstrip()[column - 1 :]
    return rule.source.span(line, column, max(1, len(rest)))


def _buffer(value: ir.Value, names: Sequence[str]) -> str:
    """What a buffer is called: the tensor, or its type where it is the kernel's own."""
    shown = str(value.type)
    while not isinstance(value.owner, ir.Block) and value.owner.name in _THROUGH:
        value = value.owner.operands[0]
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "stream.binding.subspan":
        return shown
    return names[ir.BlockArgument(owner.operands[0]).arg_number]


# ---------------------------------------------------------------- text of the checks


class _Emit:
    """Builds ops before an op, or at the end of a block."""

    def __init__(self, at: ir.Operation | ir.Block) -> None:
        self.place: ir.Location = ir.Location.unknown()
        if isinstance(at, ir.Block):
            self.point = ir.InsertionPoint(at)
        else:
            self.point, self.place = ir.InsertionPoint(at), at.location

    def op(
        self,
        name: str,
        operands: Sequence[ir.Value],
        types: Sequence[ir.Type],
        attributes: Mapping[str, ir.Attribute] | None = None,
        regions: int = 0,
    ) -> ir.OpResultList:
        """A new op; returns its results."""
        return self.made(name, operands, types, attributes, regions).results

    def made(
        self,
        name: str,
        operands: Sequence[ir.Value],
        types: Sequence[ir.Type],
        attributes: Mapping[str, ir.Attribute] | None = None,
        regions: int = 0,
    ) -> ir.Operation:
        """A new op."""
        return ir.Operation.create(
            name,
            results=list(types),
            operands=list(operands),
            attributes=attributes or {},
            regions=regions,
            loc=self.place,
            ip=self.point,
        )

    def index(self, value: int) -> ir.Value:
        """A constant of index type."""
        type_ = ir.IndexType.get()
        return self.op("arith.constant", [], [type_], {"value": ir.IntegerAttr.get(type_, value)})[
            0
        ]

    def value(self, index: _Number) -> ir.Value:
        """An index, or a number as one."""
        return self.index(index) if isinstance(index, int) else index

    def compare(self, predicate: int, a: ir.Value, b: ir.Value) -> ir.Value:
        """A comparison of two indices."""
        attributes = {"predicate": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), predicate)}
        return self.op("arith.cmpi", [a, b], [ir.IntegerType.get_signless(1)], attributes)[0]

    def two(self, name: str, a: ir.Value, b: ir.Value) -> ir.Value:
        """An op of dialect arith on two values of one type."""
        return self.op(f"arith.{name}", [a, b], [a.type])[0]

    def when(
        self, condition: ir.Value, types: Sequence[ir.Type] = ()
    ) -> tuple[ir.Operation, list[ir.Block]]:
        """An scf.if with its blocks: one, or two where it gives values."""
        made = self.made("scf.if", [condition], types, regions=2)
        blocks = [region.blocks.append() for region in list(made.regions)[: 1 + bool(types)]]
        return made, blocks


def _guard(
    op: ir.Operation, found: _Reach, notes: ir.Value, number: int, beyond: dict[ir.Value, ir.Value]
) -> None:
    """Do an access only within its buffer, and note it otherwise."""
    emit = _Emit(op)
    wrong = _beyond(emit, found.base, beyond)
    indices = [emit.value(index) for index in found.indices]
    extents = found.extents
    used, active = _lanes(emit, found)
    for dim, (index, extent) in enumerate(zip(indices, extents, strict=True)):
        size = emit.op("memref.dim", [found.base, emit.index(dim)], [ir.IndexType.get()])[0]
        first, end = index, None
        if used is not None and dim == len(indices) - 1:
            first = emit.two("addi", index, used[0])
            end = emit.two("addi", index, used[1])
        elif isinstance(extent, tuple):
            size_of, stride = (emit.value(n) for n in extent)
            last = emit.two("muli", emit.two("subi", size_of, emit.index(1)), stride)
            end = emit.two("addi", emit.two("addi", index, last), emit.index(1))
        elif extent is not None:
            end = emit.two("addi", index, emit.index(extent))
        bad = emit.compare(_SLT, first, emit.index(0))
        if end is not None:
            bad = emit.two("ori", bad, emit.compare(_SGT, end, size))
        if active is not None:
            bad = emit.two("andi", bad, active)
        _note(emit, bad, notes, number + dim, (first, end, size))
        wrong = bad if wrong is None else emit.two("ori", wrong, bad)
    if wrong is None:
        return
    if op.name in _VIEWS:
        beyond[op.results[0]] = wrong
        return
    one = ir.IntegerAttr.get(ir.IntegerType.get_signless(1), 1)
    (true,) = emit.op("arith.constant", [], [one.type], {"value": one})
    right = emit.two("xori", wrong, true)
    types = [value.type for value in op.results]
    made, blocks = emit.when(right, types)
    for old, new in zip(op.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    blocks[0].append(op)
    _Emit(blocks[0]).op("scf.yield", op.results, [])
    if types:
        other = _Emit(blocks[1])
        other.op("scf.yield", [_nothing(other, type_) for type_ in types], [])


def _beyond(emit: _Emit, buffer: ir.Value, known: dict[ir.Value, ir.Value]) -> ir.Value | None:
    """Whether one of the views through which a buffer is reached is wrong already."""
    wrong: ir.Value | None = None
    while not isinstance(buffer.owner, ir.Block) and buffer.owner.name in _THROUGH:
        bad = known.get(buffer)
        if bad is not None:
            wrong = bad if wrong is None else emit.two("ori", wrong, bad)
        buffer = buffer.owner.operands[0]
    return wrong


def _lanes(emit: _Emit, found: _Reach) -> tuple[tuple[ir.Value, ir.Value] | None, ir.Value | None]:
    """Of an access by lanes: the first and the end of its offsets, and whether there are any."""
    mask = found.mask
    if mask is None:
        return None, None
    index = ir.IndexType.get()
    shape = _shape(mask.type)
    type_ = ir.VectorType.get(shape, index)
    lanes: ir.Value
    if found.lanes is None:
        lanes = emit.op("vector.step", [], [type_])[0]
    elif found.lanes.type == type_:
        lanes = found.lanes
    else:
        lanes = emit.op("arith.index_cast", [found.lanes], [type_])[0]

    def least(value: int, kind: str) -> ir.Value:
        splat = ir.DenseElementsAttr.get_splat(type_, ir.IntegerAttr.get(index, value))
        (other,) = emit.op("arith.constant", [], [type_], {"value": splat})
        chosen = emit.op("arith.select", [mask, lanes, other], [type_])[0]
        attributes = {"kind": ir.Attribute.parse(f"#vector.kind<{kind}>")}
        return emit.op("vector.reduction", [chosen], [index], attributes)[0]

    low, high = least(_INT32, "minsi"), least(-_INT32, "maxsi")
    end = emit.two("addi", high, emit.index(1))
    attributes = {"kind": ir.Attribute.parse("#vector.kind<or>")}
    bit = ir.IntegerType.get_signless(1)
    active = emit.op("vector.reduction", [mask], [bit], attributes)[0]
    return (low, end), active


def _note(
    emit: _Emit,
    bad: ir.Value,
    notes: ir.Value,
    row: int,
    found: tuple[ir.Value, ir.Value | None, ir.Value],
) -> None:
    first, end, size = found
    _, (block,) = emit.when(bad)
    inside = _Emit(block)
    i32 = ir.IntegerType.get_signless(32)
    at = inside.index(row)
    one = inside.op("arith.constant", [], [i32], {"value": ir.IntegerAttr.get(i32, 1)})[0]
    last = first if end is None else inside.two("subi", end, inside.index(1))
    for column, value in ((1, first), (2, last), (3, size)):
        low = inside.two("maxsi", value, inside.index(-_INT32))
        fits = inside.two("minsi", low, inside.index(_INT32))
        word = inside.op("arith.index_cast", [fits], [i32])[0]
        inside.op("memref.store", [word, notes, at, inside.index(column)], [])
    inside.op("memref.store", [one, notes, at, inside.index(0)], [])
    inside.op("scf.yield", [], [])


def _nothing(emit: _Emit, type_: ir.Type) -> ir.Value:
    """What an access gives that is not done."""
    element = ir.VectorType(type_).element_type if _shape(type_) else type_
    if isinstance(element, ir.FloatType):
        zero: ir.Attribute = ir.FloatAttr.get(element, 0.0)
    elif isinstance(element, (ir.IntegerType, ir.IndexType)):
        zero = ir.IntegerAttr.get(element, 0)
    else:
        return emit.op("ub.poison", [], [type_], {"value": ir.Attribute.parse("#ub.poison")})[0]
    value = ir.DenseElementsAttr.get_splat(type_, zero) if _shape(type_) else zero
    return emit.op("arith.constant", [], [type_], {"value": value})[0]
