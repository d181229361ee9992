"""Lowered rewrites as IR: parsed once, cloned into place for every match.

Cloning a parsed op costs about a microsecond; building it through Python bindings or parsing text
costs hundreds. Ops of a rewrite that depend on nothing of the match (constants, empty tensors and
their fills) are placed once at the head of the function and shared by all matches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mlirules.drivers.compiler import ir, parse
from mlirules.generator.lower import Argument, Lowered

_HOISTABLE = frozenset(
    ["arith.constant", "tensor.empty", "linalg.fill", "complex.constant", "torch.constant.int",
     "torch.constant.float", "torch.constant.bool", "torch.constant.none", "torch.constant.str"]
)  # fmt: skip
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
    """One op to clone: where its operands come from, and what its regions capture."""

    op: Any
    operands: list[tuple[int, int]]  # (operand number, slot)
    captures: list[tuple[tuple[int, ...], int, int]]  # (path to the op, operand number, slot)
    first: int  # the slot of its first result
    results: int
    hoist: bool
    key: str  # what a shared op is
    attribute: str | None


@dataclass
class Template:
    """A lowered rewrite, ready to clone."""

    lowered: Lowered
    module: Any  # keeps the parsed ops alive
    arguments: list[tuple[Argument, Any]]  # with the type that a cast to it gives
    steps: list[_Step]
    returned: list[int]
    slots: int
    own_steps: list[_Step]
    #: Results that are casts back to torch: (slot of the cast, slot of what it casts).
    passable: list[tuple[int, int]]


def build(lowered: Lowered, context: Any) -> Template:
    """Parse a lowered rewrite. Raises MlirulesError when its MLIR is not valid."""
    module = parse(lowered.text, "<rewrite>", context)
    function = module.body.operations[0]
    block = function.regions[0].blocks[0]
    slot_of: dict[Any, int] = {}
    hoisted: set[int] = set()
    arguments = []
    for argument, value in zip(lowered.arguments, block.arguments, strict=True):
        slot_of[value] = len(slot_of)
        arguments.append((argument, value.type))
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
            _Step(operation, operands, captures, first, len(slot_of) - first, hoist,
                  str(operation) if hoist else "", attribute)
        )  # fmt: skip
    returned = [slot_of[v] for v in operations[-1].operands]
    return Template(
        lowered, module, arguments, steps, returned, len(slot_of),
        [s for s in steps if not s.hoist],
        [
            (s.first, s.operands[0][1])
            for s in steps
            if s.first in returned and s.op.name in _BACK.values()
        ],
    )  # fmt: skip


def _captures(
    operation: Any, slots: dict[Any, int]
) -> list[tuple[tuple[int, ...], int, int]]:
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


class Instantiator:
    """Clones templates into one module, sharing what can be shared."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.unknown = ir.Location.unknown(context)
        self.last_created: list[Any] = []
        #: A location for all that is made, where a run is recorded.
        self.mark: Any = None
        #: Values that a conversion has converted already: original -> converted.
        self.converted: dict[Any, Any] = {}
        #: Whether constants and fills are shared at the head of the function.
        self.hoist = True
        # By function body: shared ops by what they are, and each template's slots filled with them.
        self.scopes: dict[Any, tuple[dict[Any, list[Any]], dict[int, list[Any]]]] = {}
        # Casts back to torch that a match read past: dead, once their last user has gone.
        self.passed: list[Any] = []
        # A cast back to torch that this run made -> the builtin value it casts.
        self.made: dict[Any, Any] = {}
        self.last_block: Any = None
        self.last_scope: Any = None

    def instantiate(self, template: Template, values: dict[str, Any], root: Any) -> list[Any]:
        """Clone ``template`` before ``root``; returns the new values of its results."""
        ip = ir.InsertionPoint(root)
        slots = self.filled(template, root) if self.hoist else [None] * template.slots
        created: list[Any] = []
        for number, (argument, type_) in enumerate(template.arguments):
            value = values[argument.path]
            if argument.form != "raw":
                value = self.cast(value, _FORMS[argument.form], type_, ip)
            slots[number] = value
        for step in template.steps if not self.hoist else template.own_steps:
            new = step.op.clone(ip)
            if self.mark is not None:
                new.location = self.mark
            if step.operands:
                operands = new.operands
                for n, slot in step.operands:
                    operands[n] = slots[slot]
            for path, n, slot in step.captures:
                _at(new, path).operands[n] = slots[slot]
            if step.attribute is not None:
                new.attributes["value"] = signless(values[step.attribute])
            created.append(new)
            if step.results == 1:
                slots[step.first] = new.results[0]
            elif step.results:
                slots[step.first : step.first + step.results] = new.results
        self.last_created = created
        if self.hoist:
            for result, source in template.passable:
                self.made[slots[result]] = slots[source]
        return [slots[s] for s in template.returned]

    def cast(self, value: Any, name: str, type_: Any, ip: Any) -> Any:
        """``value`` in its builtin type, past a cast back to torch where one made it."""
        if self.hoist:
            known = self.made.get(value)
            if known is not None:
                self.passed.append(value)
                return known
        elif self.converted:
            known = self.converted.get(value)
            if known is not None and known.type == type_:
                return known
        owner = value.owner
        if not isinstance(owner, ir.Block) and owner.name == _BACK[name]:
            source = owner.operands[0]
            if source.type == type_:
                if self.hoist:
                    self.passed.append(value)
                return source
        made = ir.Operation.create(
            name, results=[type_], operands=[value], ip=ip, loc=self.mark or self.unknown
        )
        return made.results[0]

    def erase_passed(self) -> None:
        """Erase the casts that matches read past and that nobody else uses."""
        for value in dict.fromkeys(self.passed):
            if next(iter(value.uses), None) is None:
                value.owner.erase()
        self.passed.clear()
        self.made.clear()

    def filled(self, template: Template, root: Any) -> list[Any]:
        """The template's slots with the shared ops' results in place."""
        block = root.block
        if self.last_block is None or block != self.last_block:
            self.last_block = block
            outer = block
            owner = outer.owner.operation
            while owner.name not in _ISOLATED:
                outer = owner.block
                owner = outer.owner.operation
            self.last_scope = self.scopes.setdefault(owner, ({}, {}))
            self.last_outer = outer
        shared, filled = self.last_scope
        found = filled.get(id(template))
        if found is None:
            found = [None] * template.slots
            for step in template.steps:
                if step.hoist:
                    found[step.first : step.first + step.results] = self.share(
                        step, found, shared, self.last_outer
                    )
            filled[id(template)] = found
        return list(found)

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
