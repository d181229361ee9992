"""Lowered rewrites as IR: parsed once, copied into place for every match.

Cloning a parsed op costs a few microseconds; building it through Python bindings or parsing text
costs hundreds. Most of what a clone costs is the same for one op and for a function full of them,
so a rewrite that is needed often is copied many times at once, and the copies are moved into place
one by one (:class:`Copies`). Ops of a rewrite that depend on nothing of the match (constants,
empty tensors and their fills) are placed once at the head of the function and shared by all
matches.

A Python object that stands for an op or a value costs ten times as much when many of them are
alive: what runs once an application keeps none.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any, TypeAlias

from mlirules.drivers.iree.compiler import Op, ir, parse
from mlirules.drivers.iree.traversal import Steps, finish, ops_below
from mlirules.generator.lowering.values import Lowered
from mlirules.language.faults import Span

_HOISTABLE = frozenset(
    [
        "arith.constant",
        "tensor.empty",
        "linalg.fill",
        "complex.constant",
        "torch.constant.int",
        "torch.constant.float",
        "torch.constant.bool",
        "torch.constant.none",
        "torch.constant.str",
    ]
)
_FORMS = {
    "tensor": "torch_c.to_builtin_tensor",
    "i64": "torch_c.to_i64",
    "f64": "torch_c.to_f64",
    "i1": "torch_c.to_i1",
}
_BACK = {
    "torch_c.to_builtin_tensor": "torch_c.from_builtin_tensor",
    "torch_c.to_i64": "torch_c.from_i64",
    "torch_c.to_f64": "torch_c.from_f64",
    "torch_c.to_i1": "torch_c.from_i1",
}


@dataclass
class Step:
    """One op of a rewrite: where its operands come from, and what its regions capture."""

    op: ir.Operation
    operands: list[tuple[int, int]]  # (operand number, slot)
    captures: list[tuple[tuple[int, ...], int, int]]  # (path to the op, operand number, slot)
    first: int  # the slot of its first result
    results: int
    hoist: bool
    key: str  # what a shared op is
    attribute: str | None

    @property
    def slots(self) -> range:
        """The slots of its results."""
        return range(self.first, self.first + self.results)


@dataclass(slots=True)
class Rest:
    """What few ops of a rewrite need."""

    captures: list[tuple[tuple[int, ...], int, int]]
    attribute: str | None
    results: list[tuple[int, int]]  # (number, slot) of those that the rewrite returns


# What a copy of one op still needs: operands that are arguments of the rewrite (operand number,
# slot), the slot of its result where it is the only one and the rewrite returns it, and the rest.
_Fill = tuple[list[tuple[int, int]], int | None, Rest | None]


class Copies:
    """The ops of a rewrite that every application gets anew, ready to be copied.

    A *block of n copies* is a function whose body is those ops n times over. Its arguments are the
    rewrite's, and after them the results of the ops that are shared. Within a copy the operands
    are in place; no copy may leave its function while it uses an argument.
    """

    #: The largest block has 2 ** LARGEST copies: more gains little and wastes more at the end.
    LARGEST = 6

    def __init__(
        self, function: ir.Operation, steps: list[Step], copied: list[bool], returned: list[int]
    ) -> None:
        body = function.regions[0].blocks[0]
        arguments = range(len(body.arguments))
        self.fills: list[_Fill] = [
            _fill(step, arguments, returned) for step in itertools.compress(steps, copied)
        ]
        #: The slots of shared ops' results, in the order of the arguments.
        self.shared = [
            slot for step, own in zip(steps, copied, strict=True) if not own for slot in step.slots
        ]
        self._function = function
        self._copied = copied
        self._blocks: list[ir.Operation] = []

    def without_last(self, steps: list[Step], slot: int) -> Copies:
        """The same without the last op, so that the slot of its operand is what is returned."""
        function = self._function.clone(False).operation
        body = function.regions[0].blocks[0].operations
        end = body[len(body) - 1].operation
        last = ir.OpResult(end.operands[0]).owner
        end.operands[0] = last.operands[0]
        last.erase()
        return Copies(function, steps[:-1], self._copied[:-1], [slot])

    def block(self, size: int) -> ir.Operation:
        """A new function of 2 ** ``size`` copies, which belongs to the caller."""
        while len(self._blocks) <= size:
            self._blocks.append(self._doubled() if self._blocks else self._one())
        return self._blocks[size].clone(False).operation

    def _one(self) -> ir.Operation:
        new = self._function.clone(False).operation
        body = new.regions[0].blocks[0]
        operations = [op.operation for op in body.operations]
        operations.pop().erase()  # the return
        shared = [op for op, own in zip(operations, self._copied, strict=True) if not own]
        for op in shared:
            for value in op.results:
                value.replace_all_uses_with(body.add_argument(value.type, op.location))
        for op in reversed(shared):
            op.erase()
        return new

    def _doubled(self) -> ir.Operation:
        """The largest block so far, and another one after it."""
        new, more = (self._blocks[-1].clone(False).operation for _ in range(2))
        body, source = new.regions[0].blocks[0], more.regions[0].blocks[0]
        for theirs, ours in zip(source.arguments, body.arguments, strict=True):
            theirs.replace_all_uses_with(ours)
        for op in list(source.operations):
            body.append(op.operation)
        return new


def _fill(step: Step, arguments: range, returned: list[int]) -> _Fill:
    """What a copy of ``step`` needs, where the slots of the rewrite's arguments are given."""
    results = [(n, slot) for n, slot in enumerate(step.slots) if slot in returned]
    only = results.pop()[1] if results and step.results == 1 else None
    captures = [(path, n, slot) for path, n, slot in step.captures if slot in arguments]
    rest = Rest(captures, step.attribute, results)
    plain = not captures and step.attribute is None and not results
    operands = [(n, slot) for n, slot in step.operands if slot in arguments]
    return operands, only, None if plain else rest


# How to come by an argument: what it is called, the cast to its builtin type, the cast back that
# may have made it, that type. No cast (an empty name): the value as it is.
Read: TypeAlias = tuple[Any, str, str, Any]


@dataclass(frozen=True, eq=False)
class Bare:
    """A rewrite whose one result keeps its builtin type, and that type."""

    rewrite: Rewrite
    type: ir.Type


@dataclass(eq=False)
class Rewrite:
    """A lowered rewrite, ready to be copied."""

    lowered: Lowered
    module: ir.Module  # keeps the parsed ops alive
    reads: list[Read]  # the arguments, by their paths
    steps: list[Step]
    returned: list[int]
    slots: int
    #: The ops that every application gets anew: all of them, and without those that are shared.
    every: Copies
    own: Copies

    @functools.cached_property
    def bare(self) -> Bare | None:
        """Without the cast back to torch at its end; None where that does not say all.

        Builtin integers do not tell their signs, and what other matches share is nobody's result.
        """
        step = self.steps[-1] if self.steps else None
        if step is None or step.op.name != _BACK["torch_c.to_builtin_tensor"]:
            return None
        if self.returned != [step.first]:
            return None
        slot = step.operands[0][1]
        made = next((s for s in self.steps[:-1] if slot in s.slots), None)
        if made is None or made.hoist:
            return None
        type_ = made.op.results[slot - made.first].type
        if not isinstance(ir.ShapedType(type_).element_type, ir.FloatType):
            return None
        every = self.every.without_last(self.steps, slot)
        own = self.own.without_last(self.steps, slot)
        steps, slots = self.steps[:-1], self.slots - 1
        kept = Rewrite(self.lowered, self.module, self.reads, steps, [slot], slots, every, own)
        return Bare(kept, type_)


def build(lowered: Lowered, context: ir.Context, made_by: Span) -> Rewrite:
    """Parse a lowered rewrite. Raises MlirulesError when its MLIR is not valid.

    ``made_by``: the line of a rule file that the compiler names where it complains of these ops.
    """
    module = parse(lowered.text, "<rewrite>", context)
    place = _location(made_by, context)
    places = {line: _location(span, context) for line, span in lowered.places.items()}
    for op in ops_below(module.operation):
        op.location = (
            places.get(ir.FileLineColLoc(op.location).start_line, place) if places else place
        )
    function = module.body.operations[0]
    block = function.regions[0].blocks[0]
    slot_of: dict[ir.Value, int] = {}
    hoisted: set[int] = set()
    reads: list[Read] = []
    for argument, value in zip(lowered.arguments, block.arguments, strict=True):
        slot_of[value] = len(slot_of)
        cast = _FORMS.get(argument.form, "")
        reads.append((argument.path, cast, _BACK.get(cast, ""), value.type))
    steps: list[Step] = []
    named = dict(lowered.slots)
    operations = list(block.operations)
    for view in operations[:-1]:
        operation = view.operation
        operands = [(n, slot_of[v]) for n, v in enumerate(operation.operands)]
        captures = _captures(operation, slot_of)
        hoist = (
            operation.name in _HOISTABLE
            and all(slot in hoisted for _, slot in operands)
            and not captures
        )
        attribute = None
        if "mlirules.slot" in operation.attributes:
            attribute = named[ir.StringAttr(operation.attributes["mlirules.slot"]).value]
            del operation.attributes["mlirules.slot"]
            hoist = False
        first = len(slot_of)
        for result in operation.results:
            if hoist:
                hoisted.add(len(slot_of))
            slot_of[result] = len(slot_of)
        steps.append(
            Step(
                operation,
                operands,
                captures,
                first,
                len(slot_of) - first,
                hoist,
                str(operation) if hoist else "",
                attribute,
            )
        )
    returned = [slot_of[v] for v in operations[-1].operands]
    every = Copies(function.operation, steps, [True] * len(steps), returned)
    own = Copies(function.operation, steps, [not s.hoist for s in steps], returned)
    return Rewrite(lowered, module, reads, steps, returned, len(slot_of), every, own)


def _location(span: Span, context: ir.Context) -> ir.Location:
    return ir.Location.file(span.path, span.line, span.column, context)


#: Uses of outer values inside an op's regions: where the op is that reads, which of its operands,
#: and the slot of the value.
_Captures = list[tuple[tuple[int, ...], int, int]]


def _captures(operation: ir.Operation, slots: dict[ir.Value, int]) -> _Captures:
    out: _Captures = []
    if len(operation.regions):
        finish(_inside(operation, (), slots, out))
    return out


def _inside(op: Op, path: tuple[int, ...], slots: dict[ir.Value, int], out: _Captures) -> Steps:
    for r, region in enumerate(op.regions):
        for b, block in enumerate(region.blocks):
            for o, inner in enumerate(block.operations):
                here = (*path, r, b, o)
                for n, value in enumerate(inner.operands):
                    if value in slots:
                        out.append((here, n, slots[value]))
                if len(inner.regions):
                    yield _inside(inner, here, slots, out)
