"""Copies of rewrites put into a program, where they share constants, fills and casts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from mlirules.drivers.apply.uncast import Uncast
from mlirules.drivers.iree import program
from mlirules.drivers.iree.compiler import Op, ir
from mlirules.drivers.match.rewrites import Copies, Read, Rest, Rewrite, Step

Argument, Block = ir.BlockArgument, ir.Block
#: The values of a rewrite: what it reads, and what its ops gave so far.
Slots: TypeAlias = list[ir.Value]
#: The results of a function's shared ops, by what they are and what they read.
Shared: TypeAlias = dict[tuple[str, tuple[ir.Value, ...]], list[ir.Value]]


class Given(Protocol):
    """What a rewrite reads, by path or by the number of an operand: values, and attributes."""

    def __getitem__(self, key: Any, /) -> Any: ...


class _Stock:
    """Copies of one rewrite for one function: more at a time the more were needed before."""

    __slots__ = ("_copies", "_function", "_size", "fills", "following", "left", "slots")

    def __init__(self, copies: Copies, slots: Slots) -> None:
        self.fills = copies.fills
        #: The rewrite's slots, with the results of shared ops in place.
        self.slots = slots
        self._copies = copies
        self._size = 0
        self._function: ir.Operation | None = None
        #: How many copies are left.
        self.left = 0
        #: Gives the ops of the copies, one a call; a copy that is begun must be taken whole.
        self.following: Callable[[], Any] = int

    def refill(self) -> None:
        """Make new copies, when none is left."""
        self.erase()
        self._function = self._copies.block(self._size)
        body = self._function.regions[0].blocks[0]
        shared = self._copies.shared
        arguments = list(body.arguments)[-len(shared) :] if shared else []
        for slot, argument in zip(shared, arguments, strict=True):
            argument.replace_all_uses_with(self.slots[slot])
        # Not to be passed on as an iterator: `iter` would copy it, with its place.
        self.following = iter(body.operations).__next__
        self.left = 1 << self._size
        self._size = min(self._size + 1, Copies.LARGEST)

    def erase(self) -> None:
        """Erase the copies that were not needed: they use what the program shares."""
        if self._function is not None:
            self.following, self.left = int, 0
            self._function.erase()
            self._function = None


def _empty(count: int) -> Slots:
    """So many slots. Nobody reads one before it is filled: what an op reads stands before it."""
    slots: list[Any] = [None] * count
    return slots


def _at(op: Op, path: tuple[int, ...]) -> Op:
    for i in range(0, len(path), 3):
        op = op.regions[path[i]].blocks[path[i + 1]].operations[path[i + 2]]
    return op


@dataclass(slots=True)
class Scope:
    """A block that a walk is in, and what may be shared there."""

    head: ir.Block  # the function's block around it, at the start of which shared ops stand
    shared: Shared  # the function's shared ops, by what they are
    stocks: dict[Rewrite, _Stock]  # the function's copies of rewrites
    # torch value -> its builtin value and that one's type: here, and in blocks around it
    casts: list[dict[ir.Value, tuple[ir.Value, ir.Type]]]


class Instantiator:
    """Copies rewrites into one module, sharing what can be shared."""

    def __init__(self, context: ir.Context) -> None:
        self.unknown = ir.Location.unknown(context)
        #: The location of what is made, where the rewrite's own is not wanted.
        self.mark: ir.Location | None = None
        #: Whether to keep what an application makes in ``last_created``; runs that mark it do.
        self.keep = False
        self.last_created: list[ir.Operation] = []
        #: What the results of ops became that still stand in the program.
        self.became: dict[ir.Value, ir.Value] = {}
        #: Results that a walk left in their builtin types.
        self.uncast: Uncast | None = None
        #: Where constants, fills and casts are shared; None: they are not.
        self.scope: Scope | None = None
        #: Casts back to torch that the last application read past, with their results.
        self.passed: list[tuple[ir.Value, ir.OpView]] = []
        self._functions: dict[ir.Operation, tuple[Shared, dict[Rewrite, _Stock]]] = {}
        self._stocks: dict[Rewrite, _Stock] = {}

    def scope_of(self, block: ir.Block, outer: Scope | None = None) -> Scope:
        """The scope for ``block``; ``outer`` is the one of the block around it."""
        head = block
        owner = head.owner.operation
        while owner.name not in ISOLATED:
            head = owner.block
            owner = head.owner.operation
        shared, stocks = self._functions.setdefault(owner, ({}, {}))
        # Of a function's blocks the first one stands before all others.
        head = head.region.blocks[0]
        return Scope(head, shared, stocks, [{}, *(outer.casts if outer else ())])

    def instantiate(
        self, rewrite: Rewrite, values: Given, root: Op, *, earlier: bool = False
    ) -> list[ir.Value]:
        """Put a copy of ``rewrite`` before ``root``; returns the new values of its results.

        ``earlier``: the walk is past ``root``, so what it has cast since may stand too late.
        """
        scope = self.scope
        if earlier and scope is not None:
            self.scope = replace(scope, casts=[{}])
        slots = self.place(rewrite, rewrite.reads, values, root)
        self.scope = scope
        return [slots[s] for s in rewrite.returned]

    def place(self, rewrite: Rewrite, reads: list[Read], values: Given, root: Op) -> list[ir.Value]:
        """Put a copy of ``rewrite`` before ``root``; returns its slots, the returned ones filled.

        ``reads`` says where among ``values`` the arguments are.
        """
        stock = (self.scope.stocks if self.scope else self._stocks).get(rewrite)
        if stock is None:
            stock = self._stock(rewrite)
        slots = stock.slots.copy()
        became = self.became
        for slot, (key, cast, back, type_) in enumerate(reads):
            value = values[key]
            if cast:
                value = self.cast(value, cast, back, type_, root)
            elif became:
                value = self.now(value)
            slots[slot] = value
        if not stock.left:
            stock.refill()
        stock.left -= 1
        following = stock.following
        created = self.last_created = []
        marks = self.keep or self.mark is not None
        for operands, result, rest in stock.fills:
            op = following().operation
            if operands:
                own = op.operands
                for n, slot in operands:
                    own[n] = slots[slot]
            if rest is not None:
                self._fill_rest(op, rest, slots, values)
            op.move_before(root)
            if result is not None:
                slots[result] = op.result
            if marks:
                created.append(op)
                if self.mark is not None:
                    op.location = self.mark
        return slots

    @staticmethod
    def _fill_rest(op: ir.Operation, rest: Rest, slots: Slots, values: Given) -> None:
        """What few ops of a rewrite need beside operands."""
        for path, n, slot in rest.captures:
            _at(op, path).operands[n] = slots[slot]
        if rest.attribute is not None:
            op.attributes["value"] = signless(values[rest.attribute])
        for n, slot in rest.results:
            slots[slot] = op.results[n]

    def cast(self, value: ir.Value, name: str, back: str, type_: ir.Type, root: Op) -> ir.Value:
        """``value`` in its builtin type, past a cast back to torch where one made it."""
        scope = self.scope
        if self.became:
            value = self.now(value)
        # Making an object for a block costs more than all that follows.
        if not isinstance(value, Argument):
            owner = value.owner
            if not isinstance(owner, Block) and owner.name == back:
                source = owner.operands[0]
                if source.type == type_:
                    if scope is not None:
                        self.passed.append((value, owner))
                    return source
        if scope is not None:
            for casts in scope.casts:
                known = casts.get(value)
                if known is not None and (known[1] is type_ or known[1] == type_):
                    return known[0]
        made = ir.Operation.create(
            name,
            results=[type_],
            operands=[value],
            ip=ir.InsertionPoint(root),
            loc=self.mark or self.unknown,
        )
        if scope is not None:
            scope.casts[0][value] = made.result, type_
        return made.result

    def now(self, value: ir.Value) -> ir.Value:
        """What a value became that is still read in the program as it was."""
        became = self.became
        while (known := became.get(value)) is not None:
            value = known
        return value

    def forget(self, value: ir.Value) -> None:
        """Note that ``value`` is about to be erased: what it was cast to is not to be found."""
        for casts in self.scope.casts if self.scope is not None else ():
            casts.pop(value, None)

    def erase_passed(self) -> None:
        """Erase the casts that the last application read past and that nobody else uses."""
        passed = self.passed
        if passed:
            # One cast may have been read twice.
            for value, cast in passed if len(passed) == 1 else dict(passed).items():
                for _ in value.uses:
                    break
                else:
                    if self.uncast is not None:
                        self.uncast.forget(cast.operands[0])
                    cast.erase()
            passed.clear()

    def erase_unused(self) -> None:
        """Erase the copies that no application took.

        They use constants and fills of the program, which MLIR's bytecode writer, that numbers the
        users of a value, never comes to the end of; and no such op would ever look dead.
        """
        for stocks in (self._stocks, *(stocks for _, stocks in self._functions.values())):
            for stock in stocks.values():
                stock.erase()

    def _stock(self, rewrite: Rewrite) -> _Stock:
        """The first copies of ``rewrite``, with the shared ops' results in place."""
        slots = _empty(rewrite.slots)
        scope = self.scope
        if scope is None:
            stock = self._stocks[rewrite] = _Stock(rewrite.every, slots)
            return stock
        for step in rewrite.steps:
            if step.hoist:
                slots[step.first : step.first + step.results] = self.share(
                    step, slots, scope.shared, scope.head
                )
        stock = scope.stocks[rewrite] = _Stock(rewrite.own, slots)
        return stock

    def share(self, step: Step, slots: Slots, shared: Shared, block: ir.Block) -> list[ir.Value]:
        """The results of an op that all rewrites share, made once near the function's head."""
        key = (step.key, tuple([slots[s] for _, s in step.operands]))
        found = shared.get(key)
        if found is None:
            if step.operands:
                # After what it is made of, which stands at the head of the function as well.
                last = ir.OpResult(slots[step.operands[0][1]]).owner
                for _, slot in step.operands[1:]:
                    source = ir.OpResult(slots[slot]).owner
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


#: Ops whose regions use nothing from around them.
ISOLATED = frozenset(
    ["func.func", "builtin.module", "util.func", "torch.nn_module", "flow.dispatch.workgroups"]
)


def signless(attribute: ir.Attribute) -> ir.Attribute:
    """A constant's attribute with signless integers, as arith and linalg want them."""
    type_ = attribute.type
    element = type_.element_type if isinstance(type_, ir.RankedTensorType) else None
    if not isinstance(element, ir.IntegerType) or element.is_signless:
        return attribute
    if program.is_resource(attribute):
        # Programs come with such resources inlined.
        raise ValueError("a resource of signed integers")
    text, context = str(attribute), attribute.context
    with ir.Location.unknown(context):
        plain = ir.RankedTensorType.get(
            ir.ShapedType(type_).shape, ir.IntegerType.get_signless(element.width, context)
        )
    return ir.Attribute.parse(text[: text.rfind(str(type_))] + str(plain), context)
