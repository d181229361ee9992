"""Lowered rewrites as IR: parsed once, copied into place for every match.

Cloning a parsed op costs a few microseconds; building it through Python bindings or parsing text
costs hundreds. Most of what a clone costs is the same for one op and for a function full of them,
so a rewrite that is needed often is copied many times at once, and the copies are moved into place
one by one (:class:`_Copies`). Ops of a rewrite that depend on nothing of the match (constants,
empty tensors and their fills) are placed once at the head of the function and shared by all
matches.

A Python object that stands for an op or a value costs ten times as much when many of them are
alive: what runs once an application keeps none.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mlirules.drivers.iree import program
from mlirules.drivers.iree.compiler import ir, parse
from mlirules.generator.lowering.values import Lowered
from mlirules.language.faults import Span

Block = ir.Block
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
class _Step:
    """One op of a rewrite: where its operands come from, and what its regions capture."""

    op: Any
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
class _Rest:
    """What few ops of a rewrite need."""

    captures: list[tuple[tuple[int, ...], int, int]]
    attribute: str | None
    results: list[tuple[int, int]]  # (number, slot) of those that the rewrite returns


# What a copy of one op still needs: operands that are arguments of the rewrite (operand number,
# slot), the slot of its result where it is the only one and the rewrite returns it, and the rest.
_Fill = tuple[list[tuple[int, int]], int | None, _Rest | None]


class _Copies:
    """The ops of a template that every application gets anew, ready to be copied.

    A *block of n copies* is a function whose body is those ops n times over. Its arguments are the
    template's, and after them the results of the ops that are shared. Within a copy the operands
    are in place; no copy may leave its function while it uses an argument.
    """

    #: The largest block has 2 ** LARGEST copies: more gains little and wastes more at the end.
    LARGEST = 6

    def __init__(
        self, function: Any, steps: list[_Step], copied: list[bool], returned: list[int]
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
        self._blocks: list[Any] = []

    def block(self, size: int) -> Any:
        """A new function of 2 ** ``size`` copies, which belongs to the caller."""
        while len(self._blocks) <= size:
            self._blocks.append(self._doubled() if self._blocks else self._one())
        return self._blocks[size].clone(False).operation

    def _one(self) -> Any:
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

    def _doubled(self) -> Any:
        """The largest block so far, and another one after it."""
        new, more = (self._blocks[-1].clone(False).operation for _ in range(2))
        body, source = new.regions[0].blocks[0], more.regions[0].blocks[0]
        for theirs, ours in zip(source.arguments, body.arguments, strict=True):
            theirs.replace_all_uses_with(ours)
        for op in list(source.operations):
            body.append(op.operation)
        return new


def _fill(step: _Step, arguments: range, returned: list[int]) -> _Fill:
    """What a copy of ``step`` needs, where the slots of the rewrite's arguments are given."""
    results = [(n, slot) for n, slot in enumerate(step.slots) if slot in returned]
    only = results.pop()[1] if results and step.results == 1 else None
    captures = [(path, n, slot) for path, n, slot in step.captures if slot in arguments]
    rest = _Rest(captures, step.attribute, results)
    plain = not captures and step.attribute is None and not results
    operands = [(n, slot) for n, slot in step.operands if slot in arguments]
    return operands, only, None if plain else rest


class _Stock:
    """Copies of one template for one function: more at a time the more were needed before."""

    __slots__ = ("_copies", "_function", "_size", "fills", "following", "left", "slots")

    def __init__(self, copies: _Copies, slots: list[Any]) -> None:
        self.fills = copies.fills
        #: The template's slots, with the results of shared ops in place.
        self.slots = slots
        self._copies = copies
        self._size = 0
        self._function: Any = None
        #: How many copies are left.
        self.left = 0
        #: Gives the ops of the copies, one a call; a copy that is begun must be taken whole.
        self.following: Callable[[], Any] = int

    def refill(self) -> None:
        """Make new copies, when none is left."""
        self._function = self._copies.block(self._size)
        body = self._function.regions[0].blocks[0]
        shared = self._copies.shared
        arguments = list(body.arguments)[-len(shared) :] if shared else []
        for slot, argument in zip(shared, arguments, strict=True):
            argument.replace_all_uses_with(self.slots[slot])
        # Not to be passed on as an iterator: `iter` would copy it, with its place.
        self.following = iter(body.operations).__next__
        self.left = 1 << self._size
        self._size = min(self._size + 1, _Copies.LARGEST)


# How to come by an argument: what it is called, the cast to its builtin type, the cast back that
# may have made it, that type. No cast (an empty name): the value as it is.
Read = tuple[Any, str, str, Any]


@dataclass(eq=False)
class Template:
    """A lowered rewrite, ready to be copied."""

    lowered: Lowered
    module: Any  # keeps the parsed ops alive
    reads: list[Read]  # the arguments, by their paths
    steps: list[_Step]
    returned: list[int]
    slots: int
    #: The ops that every application gets anew: all of them, and without those that are shared.
    every: _Copies
    own: _Copies


def build(lowered: Lowered, context: Any, made_by: Span) -> Template:
    """Parse a lowered rewrite. Raises MlirulesError when its MLIR is not valid.

    ``made_by``: the line of a rule file that the compiler names where it complains of these ops.
    """
    module = parse(lowered.text, "<rewrite>", context)
    place = ir.Location.file(made_by.path, made_by.line, made_by.column, context)
    for op in program.operations(module, bodies=True):
        op.location = place
    function = module.body.operations[0]
    block = function.regions[0].blocks[0]
    slot_of: dict[Any, int] = {}
    hoisted: set[int] = set()
    reads: list[Read] = []
    for argument, value in zip(lowered.arguments, block.arguments, strict=True):
        slot_of[value] = len(slot_of)
        cast = _FORMS.get(argument.form, "")
        reads.append((argument.path, cast, _BACK.get(cast, ""), value.type))
    steps: list[_Step] = []
    named = dict(lowered.slots)
    operations = list(block.operations)
    for op in operations[:-1]:
        operation = op.operation
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
        for value in operation.results:
            if hoist:
                hoisted.add(len(slot_of))
            slot_of[value] = len(slot_of)
        steps.append(
            _Step(
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
    every = _Copies(function.operation, steps, [True] * len(steps), returned)
    own = _Copies(function.operation, steps, [not s.hoist for s in steps], returned)
    return Template(lowered, module, reads, steps, returned, len(slot_of), every, own)


def _captures(operation: Any, slots: dict[Any, int]) -> list[tuple[tuple[int, ...], int, int]]:
    """Uses of outer values inside an op's regions."""
    out: list[tuple[tuple[int, ...], int, int]] = []

    def visit(op: Any, path: tuple[int, ...]) -> None:
        for r, region in enumerate(op.regions):
            for b, block in enumerate(region.blocks):
                for o, inner in enumerate(block.operations):
                    here = (*path, r, b, o)
                    for n, value in enumerate(inner.operands):
                        if value in slots:
                            out.append((here, n, slots[value]))
                    visit(inner, here)

    if len(operation.regions):
        visit(operation, ())
    return out


def _at(op: Any, path: tuple[int, ...]) -> Any:
    for i in range(0, len(path), 3):
        op = op.regions[path[i]].blocks[path[i + 1]].operations[path[i + 2]]
    return op


@dataclass(slots=True)
class Scope:
    """A block that a walk is in, and what may be shared there."""

    head: Any  # the function's block around it, at the start of which shared ops stand
    shared: dict[Any, list[Any]]  # the function's shared ops, by what they are
    stocks: dict[Template, _Stock]  # the function's copies of templates
    casts: list[dict[Any, Any]]  # torch value -> its builtin value: here, and in blocks around it


class Instantiator:
    """Copies templates into one module, sharing what can be shared."""

    def __init__(self, context: Any) -> None:
        self.unknown = ir.Location.unknown(context)
        #: The location of what is made, where the template's own is not wanted.
        self.mark: Any = None
        #: What the last application made, in a run that marks it.
        self.last_created: list[Any] = []
        #: Values that a conversion has converted already: original -> converted.
        self.converted: dict[Any, Any] = {}
        #: Where constants, fills and casts are shared; None: they are not.
        self.scope: Scope | None = None
        # Casts back to torch that the last application read past, with their results.
        self._passed: list[tuple[Any, Any]] = []
        self._functions: dict[Any, tuple[dict[Any, list[Any]], dict[Template, _Stock]]] = {}
        self._stocks: dict[Template, _Stock] = {}

    def scope_of(self, block: Any, outer: Scope | None = None) -> Scope:
        """The scope for ``block``; ``outer`` is the one of the block around it."""
        head = block
        owner = head.owner.operation
        while owner.name not in _ISOLATED:
            head = owner.block
            owner = head.owner.operation
        shared, stocks = self._functions.setdefault(owner, ({}, {}))
        return Scope(head, shared, stocks, [{}, *(outer.casts if outer else ())])

    def instantiate(
        self, template: Template, values: dict[str, Any], root: Any, *, earlier: bool = False
    ) -> list[Any]:
        """Put a copy of ``template`` before ``root``; returns the new values of its results.

        ``earlier``: the walk is past ``root``, so what it has cast since may stand too late.
        """
        scope = self.scope
        if earlier and scope is not None:
            self.scope = replace(scope, casts=[{}])
        slots = self.place(template, template.reads, values, root)
        self.scope = scope
        return [slots[s] for s in template.returned]

    def place(self, template: Template, reads: list[Read], values: Any, root: Any) -> list[Any]:
        """Put a copy of ``template`` before ``root``; returns its slots, the returned ones filled.

        ``reads`` says where among ``values`` the arguments are.
        """
        stock = (self.scope.stocks if self.scope else self._stocks).get(template)
        if stock is None:
            stock = self._stock(template)
        slots = stock.slots.copy()
        for slot, (key, cast, back, type_) in enumerate(reads):
            value = values[key]
            if cast:
                value = self.cast(value, cast, back, type_, root)
            slots[slot] = value
        mark = self.mark
        created = []
        if not stock.left:
            stock.refill()
        stock.left -= 1
        following = stock.following
        for operands, result, rest in stock.fills:
            op = following().operation
            if operands:
                own = op.operands
                for n, slot in operands:
                    own[n] = slots[slot]
            if rest is not None:
                for path, n, slot in rest.captures:
                    _at(op, path).operands[n] = slots[slot]
                if rest.attribute is not None:
                    op.attributes["value"] = signless(values[rest.attribute])
                for n, slot in rest.results:
                    slots[slot] = op.results[n]
            op.move_before(root)
            if result is not None:
                slots[result] = op.result
            if mark is not None:
                op.location = mark
                created.append(op)
        self.last_created = created
        return slots

    def cast(self, value: Any, name: str, back: str, type_: Any, root: Any) -> Any:
        """``value`` in its builtin type, past a cast back to torch where one made it."""
        scope = self.scope
        if scope is None and self.converted:
            known = self.converted.get(value)
            if known is not None and known.type == type_:
                return known
        owner = value.owner
        if not isinstance(owner, Block) and owner.name == back:
            source = owner.operands[0]
            if source.type == type_:
                if scope is not None:
                    self._passed.append((value, owner))
                return source
        if scope is not None:
            for casts in scope.casts:
                known = casts.get(value)
                if known is not None and known.type == type_:
                    return known
        made = ir.Operation.create(
            name,
            results=[type_],
            operands=[value],
            ip=ir.InsertionPoint(root),
            loc=self.mark or self.unknown,
        )
        if scope is not None:
            scope.casts[0][value] = made.result
        return made.result

    def forget(self, value: Any) -> None:
        """Note that ``value`` is about to be erased: what it was cast to is not to be found."""
        for casts in self.scope.casts if self.scope is not None else ():
            casts.pop(value, None)

    def erase_passed(self) -> None:
        """Erase the casts that the last application read past and that nobody else uses."""
        passed = self._passed
        if passed:
            # One cast may have been read twice.
            for value, cast in passed if len(passed) == 1 else dict(passed).items():
                for _ in value.uses:
                    break
                else:
                    cast.erase()
            passed.clear()

    def _stock(self, template: Template) -> _Stock:
        """The first copies of ``template``, with the shared ops' results in place."""
        slots = [None] * template.slots
        scope = self.scope
        if scope is None:
            stock = self._stocks[template] = _Stock(template.every, slots)
            return stock
        for step in template.steps:
            if step.hoist:
                slots[step.first : step.first + step.results] = self.share(
                    step, slots, scope.shared, scope.head
                )
        stock = scope.stocks[template] = _Stock(template.own, slots)
        return stock

    def share(
        self, step: _Step, slots: list[Any], shared: dict[Any, list[Any]], block: Any
    ) -> list[Any]:
        """The results of an op that all templates share, made once near the function's head."""
        key = (step.key, tuple([slots[s] for _, s in step.operands]))
        found = shared.get(key)
        if found is None:
            if step.operands:
                # After what it is made of, which stands at the head of the function as well.
                last = slots[step.operands[0][1]].owner
                for _, slot in step.operands[1:]:
                    source = slots[slot].owner
                    if last.is_before_in_block(source):
                        last = source
                new = step.op.clone(ir.InsertionPoint.after(last))
                for n, slot in step.operands:
                    new.operands[n] = slots[slot]
            else:
                new = step.op.clone(ir.InsertionPoint.at_block_begin(block))
            if self.mark is not None:
                new.location = self.mark
            found = list(new.results)
            shared[key] = found
        return found


_ISOLATED = frozenset(["func.func", "builtin.module", "util.func", "torch.nn_module"])


def signless(attribute: Any) -> Any:
    """A constant's attribute with signless integers, as arith and linalg want them."""
    type_ = str(attribute.type)
    if "xsi" not in type_ and "xui" not in type_ and "<si" not in type_ and "<ui" not in type_:
        return attribute
    text = str(attribute)
    at = text.rfind(type_)
    if isinstance(attribute, ir.DenseResourceElementsAttr):
        # Programs come with such resources inlined: not a fault of the caller's types.
        raise ValueError("a resource of signed integers")  # noqa: TRY004
    plain = re.sub(r"([x<])[su]i", r"\1i", type_)
    return ir.Attribute.parse(text[:at] + plain, attribute.context)
