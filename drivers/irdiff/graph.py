"""A program as a graph of plain Python objects: what a difference is computed on.

Reading through the bindings costs about a microsecond an access, so everything is read once. Big
attributes are kept as digests. Each op knows the lines that print it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import Steps, finish, ops_below

_LONGEST = 400  # characters of an attribute that are kept as they are
#: Follows from the operands and results of an op, which are compared themselves.
SEGMENTS = frozenset(["operandSegmentSizes", "resultSegmentSizes"])


@dataclass(slots=True, eq=False)
class Value:
    """A result of an op or an argument of a block. ``name`` is how the program prints it."""

    owner: Op | Block
    index: int
    type: str
    name: str
    uses: list[tuple[Op, int]] = field(default_factory=list)

    @property
    def op(self) -> Op | None:
        """The op that makes it; None for an argument."""
        return self.owner if isinstance(self.owner, Op) else None


@dataclass(slots=True, eq=False)
class Block:
    """A block; ``index`` counts the blocks of its region in reverse post-order."""

    region: Region
    index: int
    args: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    #: What tells it from the other blocks of its region, wherever it is printed.
    key: int = 0


@dataclass(slots=True, eq=False)
class Region:
    """A region of an op."""

    op: Op
    index: int
    blocks: list[Block] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Op:
    """One op. ``number`` counts the ops of the program in the order in which they are printed."""

    number: int
    name: str
    attributes: dict[str, str]
    operands: list[Value]
    results: list[Value]
    regions: list[Region]
    successors: list[Block]
    parent: Block | None
    symbol: str
    location: str
    #: The lines that print it, [first, end); lines of ops inside are among them.
    first: int = -1
    end: int = -1
    #: Values from outside that its regions read.
    captures: list[Value] = field(default_factory=list)
    depth: int = 0
    #: Whether it or an op inside acts on something besides results; None: not asked yet.
    acts: bool | None = None
    # Filled by the matcher.
    local: int = 0
    up: int = 0
    down: int = 0
    around: int = 0

    @property
    def inputs(self) -> list[Value]:
        """What it reads: operands, then what its regions capture."""
        return self.operands + self.captures if self.captures else self.operands

    @property
    def function(self) -> str:
        """The symbol of the function (or other named op) around it, or its own."""
        op: Op | None = self
        while op is not None:
            if op.symbol:
                return op.symbol
            op = op.parent.region.op if op.parent is not None else None
        return ""

    @property
    def types(self) -> tuple[str, ...]:
        """The types of its results."""
        return tuple(value.type for value in self.results)

    def ordered(self) -> bool:
        """Whether its place among others counts: it acts on something besides its results."""
        return self.name in _CALLS or _acts(self)


_CALLS = frozenset(
    [
        "func.call",
        "util.call",
        "func.call_indirect",
        "torch.operator",
        "torch.aten.append.t",
        "torch.aten._set_item.t",
        "torch.aten.insert.t",
    ]
)
# Values with a state of their own. Not so tensors and torch's value tensors.
_STATEFUL = re.compile(r"memref<|!torch\.tensor|!util\.(?:buffer|list)|!hal\.|!vm\.")
# No results, yet bound to nothing but what they read.
_DECLARATIVE = frozenset(["torch.bind_symbolic_shape", "util.optimization_barrier"])


def _acts(op: Op) -> bool:
    if op.acts is None:
        op.acts = _some_acts(op)
    return op.acts


def _some_acts(op: Op) -> bool:
    left = [op]
    while left:
        op = left.pop()
        if op.acts or (op.acts is None and _acts_itself(op)):
            return True
        if op.acts is False or op.name in _DECLARATIVE:
            continue
        left += [
            inner
            for region in op.regions
            for block in region.blocks
            for inner in block.ops[:-1]
            if inner.regions or not inner.results
        ]
    return False


def _acts_itself(op: Op) -> bool:
    if op.name in _DECLARATIVE:
        return False
    if not op.results and not op.symbol:
        return True
    return any(_STATEFUL.search(value.type) for value in op.operands)


class Program:
    """A program: its ops as a graph, and the lines that print it.

    Raises :class:`MlirulesError`, located, for text that does not parse.
    """

    def __init__(self, text: str, path: str) -> None:
        self.path = path
        self.blobs = _blob_digests(text)
        module = compiler.parse(text, path, compiler.context())
        self.ops: list[Op] = []
        self._texts: dict[ir.Attribute, str] = {}
        self._types: dict[ir.Type, str] = {}
        self._values: dict[ir.Value, Value] = {}
        self._state = ir.AsmState(module.operation)
        self.root = self._op(module.operation, None, 0)
        finish(self._regions(module.operation, self.root))
        self._values.clear()
        # Without aliases: they are no part of the program, and their numbers only distract.
        printed = module.operation.get_asm(
            large_elements_limit=8,
            large_resource_limit=8,
            use_local_scope=True,
            assume_verified=True,
        )
        self.lines: list[str] = printed.split("\n{-#", 1)[0].rstrip().split("\n")
        self._place(printed)

    # -- reading

    def _op(self, op: ir.Operation, parent: Block | None, depth: int) -> Op:
        attributes = {key: self._text(value) for key, value in op.attributes.items()}
        symbol = attributes.get("sym_name", "").strip('"')
        name = op.name
        read = [self._values.get(value) for value in op.operands]
        made = Op(
            len(self.ops),
            name,
            attributes,
            [v for v in read if v is not None],
            [],
            [],
            [],
            parent,
            symbol,
            self._location(op.location),
            depth=depth,
        )
        self.ops.append(made)
        if len(made.operands) < len(read):
            # Used before it is defined, in a graph region: the definition is read later.
            made.operands = [
                v if v is not None else Value(made, -1, self._type(o.type), "%?")
                for v, o in zip(read, op.operands, strict=True)
            ]
        for n, value in enumerate(made.operands):
            value.uses.append((made, n))
        for n, result in enumerate(op.results):
            value = Value(made, n, self._type(result.type), result.get_name(self._state))
            made.results.append(value)
            self._values[result] = value
        return made

    def _regions(self, operation: ir.Operation, op: Op) -> Steps:
        """Read the regions of ``op``."""
        for n, region in enumerate(operation.regions):
            made = Region(op, n)
            op.regions.append(made)
            yield self._region(region, made)

    def _region(self, region: ir.Region, made: Region) -> Steps:
        op = made.op
        blocks = list(region.blocks)
        order = _reverse_post_order(blocks) if len(blocks) > 1 else blocks
        known: dict[ir.Block, Block] = {}
        for n, block in enumerate(order):
            known[block] = Block(made, n)
            made.blocks.append(known[block])
            for a, argument in enumerate(block.arguments):
                value = Value(
                    known[block], a, self._type(argument.type), argument.get_name(self._state)
                )
                known[block].args.append(value)
                self._values[argument] = value
        first = len(self.ops)
        for block in order:
            here = known[block]
            for inner in block.operations:
                operation = inner.operation
                inside = self._op(operation, here, op.depth + 1)
                here.ops.append(inside)
                if len(operation.regions):
                    yield self._regions(operation, inside)
            if len(blocks) > 1 and here.ops:
                last = list(block.operations)[-1].operation
                here.ops[-1].successors = [known[s] for s in last.successors]
        if len(blocks) > 1 and order != blocks:
            self._renumber(first, [known[b] for b in blocks])
        seen: dict[Value, None] = {}
        for block_ in made.blocks:
            for inner_ in block_.ops:
                for value in inner_.inputs:
                    if value.index >= 0 and _outside(value, made):
                        seen[value] = None
        for value in seen:
            if value not in op.operands and value not in op.captures:
                value.uses.append((op, len(op.operands) + len(op.captures)))
                op.captures.append(value)

    def _renumber(self, first: int, blocks: list[Block]) -> None:
        """Ops of a region in printed order, where the blocks are not printed in our order."""
        ops: list[Op] = []
        for block in blocks:
            for op in block.ops:
                ops += walk(op)
        self.ops[first:] = ops
        for n, op in enumerate(ops, first):
            op.number = n

    def _text(self, attribute: ir.Attribute) -> str:
        found = self._texts.get(attribute)
        if found is None:
            found = str(attribute)
            if "dense_resource<" in found:
                found = re.sub(
                    r'dense_resource<("[^"]*"|[^>]*)>',
                    lambda m: f"dense_resource<{self.blobs.get(m[1].strip(chr(34)), m[1])}>",
                    found,
                )
            if len(found) > _LONGEST:
                digest = hashlib.blake2b(found.encode(), digest_size=8).hexdigest()
                found = f"{found[:60]} ... {found[-60:]} (digest {digest})"
            self._texts[attribute] = found
        return found

    def _type(self, type_: ir.Type) -> str:
        found = self._types.get(type_)
        if found is None:
            found = self._types[type_] = str(type_)
        return found

    def _location(self, location: ir.Location) -> str:
        text = str(location).removeprefix("loc(").removesuffix(")")
        # A program that was parsed from text is called "-".
        return text.replace('"-"', self.path).replace('"', "")

    # -- printing

    def _place(self, printed: str) -> None:
        """Find the lines of every op: the printed program, parsed, says where its ops begin."""
        again = compiler.parse(printed, self.path, compiler.context())
        starts: list[int] = []
        for inner in (again.operation, *ops_below(again.operation)):
            place = inner.location
            starts.append(place.start_line - 1 if isinstance(place, ir.FileLineColLoc) else -1)
        for op, start in zip(self.ops, starts, strict=True):
            op.first = start
        self.root.first, self.root.end = 0, len(self.lines)
        for index, line in enumerate(self.lines):  # aliases stand before the module
            if line.startswith("module"):
                self.root.first = index
                break
        # A line is looked at once for every op around it.
        indents = [len(line) - len(line.lstrip(" ")) for line in self.lines]
        for op in self.ops[1:]:
            op.end = self._end(op, indents)

    def _end(self, op: Op, indents: list[int]) -> int:
        if op.first < 0 or op.first >= len(self.lines):
            return op.first
        own = indents[op.first]
        line = op.first + 1
        while line < len(self.lines):
            text = self.lines[line]
            inner = indents[line]
            begins = text[inner : inner + 1]
            closes = inner == own and begins in ("}", ")", "]", ">", "^")
            if not (inner > own or closes) or (begins == "^" and not op.regions):
                break
            line += 1
            if closes and begins != "^" and not text.rstrip().endswith(("{", "(", "[")):
                break
        return line


def walk(op: Op) -> Iterator[Op]:
    """An op and all ops inside it."""
    left = [op]
    while left:
        op = left.pop()
        yield op
        left += [
            inner
            for region in reversed(op.regions)
            for block in reversed(region.blocks)
            for inner in reversed(block.ops)
        ]


def _outside(value: Value, region: Region) -> bool:
    owner = value.owner
    block = owner.parent if isinstance(owner, Op) else owner
    while block is not None:
        if block.region is region:
            return False
        block = block.region.op.parent
    return True


def _reverse_post_order(blocks: list[ir.Block]) -> list[ir.Block]:
    """Blocks with every definition before its uses; blocks that nothing reaches come last."""
    out: list[ir.Block] = []
    seen: set[ir.Block] = set()
    work: list[tuple[ir.Block, bool]] = [(blocks[0], False)]
    while work:
        block, done = work.pop()
        if done:
            out.append(block)
            continue
        if block in seen:
            continue
        seen.add(block)
        work.append((block, True))
        operations = list(block.operations)
        if operations:
            work += [(s, False) for s in reversed(list(operations[-1].operation.successors))]
    out.reverse()
    return out + [b for b in blocks if b not in seen]


def _blob_digests(text: str) -> dict[str, str]:
    """What each resource of a program holds, as a digest: its name is no part of the program."""
    at = text.rfind("{-#")
    if at < 0:
        return {}
    found = re.finditer(r'([\w.\-$]+|"[^"]+"): "0x([0-9A-Fa-f]*)"', text[at:])
    return {
        m[1].strip('"'): hashlib.blake2b(m[2].lower().encode(), digest_size=6).hexdigest()
        for m in found
    }
