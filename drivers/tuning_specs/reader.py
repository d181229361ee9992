"""Reading a tuning spec: what each entry asks and sets, as far as rules can say it.

A spec is a program of the transform dialect, so an entry may hold anything. What is read here is
followed value by value, through includes; the rest is not passed over: an entry that holds it is
kept as it stands (:attr:`SpecEntry.kept` says why), and so is a whole spec whose entry point does
more than try entries (:attr:`Part.whole`).
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import ops_below
from mlirules.drivers.tuning_specs import attributes as attrtext
from mlirules.drivers.tuning_specs.attributes import Attr, AttrError
from mlirules.drivers.tuning_specs.steps import (
    Action,
    Limit,
    Matcher,
    Symbols,
    Unread,
    propagates,
    read_action,
    read_matcher,
    symbol_of,
)
from mlirules.language.faults import Fault, MlirulesError, Span
from mlirules.language.source import SourceFile

__all__ = [
    "DEFAULT_ENTRY",
    "ENTRY",
    "Limit",
    "Part",
    "Spec",
    "SpecEntry",
    "read_spec",
]

DEFAULT_ENTRY = "iree_codegen.tuning_spec_with_default_entrypoint"
ENTRY = "iree_codegen.tuning_spec_entrypoint"
KERNEL_CONFIG = "__kernel_config"


@dataclass
class SpecEntry:
    """One matcher with its action. Offsets are places in the file's text."""

    matcher: str
    action: str
    offset: int  # of the matcher
    use: int  # of its mention in the entry point
    #: What the matcher asks and the action does; where they hold more, ``kept`` says what.
    asks: Matcher
    does: Action
    symbols: Symbols = field(repr=False)
    kept: list[Unread] = field(default_factory=list)
    config: Attr | None = None
    decomposition: Attr | None = None
    consumes: bool = False  # the matcher takes its operand away

    @property
    def rule(self) -> str:
        """The config rule it was generated from; empty: none."""
        return self.does.rule

    @property
    def config_value(self) -> ir.Attribute | None:
        """The compilation info itself, beside its text."""
        return self.does.config.attributes["value"] if self.does.config is not None else None

    @property
    def decomposition_value(self) -> ir.Attribute | None:
        """The decomposition config itself."""
        parts = self.does.decomposition
        return parts.attributes["value"] if parts is not None else None


@dataclass
class Part:
    """A module with an entry point: the file's own, or one nested in it."""

    name: str
    module: ir.Operation = field(repr=False)
    entry: str  # the entry point's name
    offset: int
    strict: bool  # the module says that it has the default entry point
    declared: bool  # the entry point has its attribute
    entries: list[SpecEntry] = field(default_factory=list)
    #: What the entry point does beside trying entries; then it can only be kept as a whole.
    whole: list[Unread] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether it changes nothing: what a tuner writes before it has found anything."""
        return not self.entries and not self.whole


@dataclass
class Spec:
    """A tuning spec that parses."""

    path: str
    text: str
    parts: list[Part]
    module: ir.Module = field(repr=False)

    @property
    def entries(self) -> list[SpecEntry]:
        """The entries of all parts, in the order in which they are tried."""
        return [entry for part in self.parts for entry in part.entries]

    @cached_property
    def source(self) -> SourceFile:
        """The file, for marks of what stands in it."""
        return SourceFile(self.path, self.text)

    @cached_property
    def _starts(self) -> list[int]:
        return _line_starts(self.text)

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.split("\n")

    def span(self, offset: int, length: int | None = None) -> Span:
        """A place in the file; by default the word that stands there."""
        line = bisect.bisect_right(self._starts, offset)
        source_line = self._lines[line - 1]
        before = offset - self._starts[line - 1]
        if length is None:
            word = _WORD.match(source_line, before)
            length = word.end() - before if word else 1
        return Span(self.path, line, before + 1, length, source_line)


_WORD = re.compile(r"[\w.!%@#$-]+|[^\s]")


def _line_starts(text: str) -> list[int]:
    return [0, *(m.end() for m in re.finditer("\n", text))]


def read_spec(text: str, path: str) -> Spec:
    """Read a spec. Raises :class:`MlirulesError`, located, when it does not parse or verify."""
    module = compiler.parse(text, path)
    reader = _Reader(text, path, module)
    reader.run()
    if reader.faults:
        raise MlirulesError(reader.faults)
    return reader.spec


class _Reader:
    def __init__(self, text: str, path: str, module: ir.Module) -> None:
        self.text = text
        self.starts = _line_starts(text)
        self.aliases = attrtext.aliases_of(text)
        self.faults: list[Fault] = []
        self.spec = Spec(path, text, [], module)
        self.constants: dict[int, Attr | None] = {}

    def run(self) -> None:
        found = list(self.parts(self.spec.module.operation))
        # A module that holds other specs is what the compiler's linker takes: those count.
        self.spec.parts = [p for p in found if p.module != self.spec.module.operation] or found
        own = [p for p in found if p.module == self.spec.module.operation]
        if own and len(found) > 1 and own[0].declared:
            self.spec.parts = own  # it reaches the others by include, or not at all
        for part in self.spec.parts:
            self.entry_point(part)

    def parts(self, top: ir.Operation) -> Iterator[Part]:
        """Modules with an entry point, outermost first."""
        waiting = [top]
        while waiting:
            module = waiting.pop(0)
            sequences: list[ir.Operation] = []
            for region in module.regions:
                for block in region.blocks:
                    for view in block.operations:
                        op = view.operation
                        if op.name == "builtin.module":
                            waiting.append(op)
                        elif op.name == "transform.named_sequence" and op.regions[0].blocks:
                            sequences.append(op)
            marked = [s for s in sequences if ENTRY in s.attributes]
            # Without the attribute it is a library, which is run by its sequence's name.
            chosen = (
                marked
                or [s for s in sequences if symbol_of(s) == KERNEL_CONFIG]
                or [s for s in sequences if any(o.name == FOREACH for o in ops_below(s))]
            )
            name = symbol_of(module)
            for sequence in chosen:
                part = Part(
                    name,
                    module,
                    symbol_of(sequence),
                    self.offset(sequence),
                    DEFAULT_ENTRY in module.attributes,
                    bool(marked),
                )
                if len(chosen) > 1:
                    part.whole.append(Unread("several entry points", part.offset))
                yield part

    def offset(self, op: ir.Operation) -> int:
        """Where an op's name stands."""
        place = op.location
        if not isinstance(place, ir.FileLineColLoc):
            return 0
        line, column = int(place.start_line), int(place.start_col)
        if not 1 <= line <= len(self.starts):
            return 0
        return self.starts[line - 1] + column - 1

    def entry_point(self, part: Part) -> None:
        symbols = Symbols(part.module, self.offset)
        reached: list[list[SpecEntry]] = []
        first = symbols.get([part.entry])
        assert first is not None  # where the part was found
        self.walk(part, symbols, first, reached)
        if len(reached) > 1 and not part.whole:
            # One after the other they are as one only if each leaves alone what has a config.
            loose = [e for group in reached[1:] for e in group if e.kept or not e.asks.guarded]
            if loose:
                at = loose[0].use
                part.whole.append(
                    Unread("a later foreach_match may replace what an earlier one has set", at)
                )
        part.entries = [entry for group in reached for entry in group]

    def walk(
        self, part: Part, symbols: Symbols, sequence: ir.Operation, reached: list[list[SpecEntry]]
    ) -> None:
        """The foreach_match ops that an entry point comes to, includes followed."""
        waiting: list[tuple[ir.Operation, Symbols]] = [(sequence, symbols)]
        seen = 0
        lenient = False  # what fails inside an include ends it, and no more
        while waiting:
            sequence, scope = waiting.pop()
            seen += 1
            if seen > 10_000:
                part.whole.append(Unread("includes without end", part.offset))
                return
            block = sequence.regions[0].blocks[0]
            carried: set[ir.Value] = set(block.arguments)
            inner: list[tuple[ir.Operation, Symbols]] = []
            for view in block.operations:
                op = view.operation
                at = self.offset(op)
                operands, results = list(op.operands), list(op.results)
                threaded = len(operands) == 1 and operands[0] in carried and len(results) <= 1
                if op.name == FOREACH and threaded:
                    options = [
                        k for k in ("restrict_root", "flatten_results") if k in op.attributes
                    ]
                    if options:
                        part.whole.append(Unread(f"foreach_match with {options[0]}", at))
                    if inner:
                        part.whole.append(Unread("entries after an include", at))
                    reached.append(list(self.foreach(op, scope, at)))
                elif op.name == "transform.include" and threaded:
                    called = scope.get(ir.SymbolRefAttr(op.attributes["target"]).value)
                    if called is None:
                        part.whole.append(Unread("an include of what is not here", at))
                    else:
                        lenient |= not propagates(op)
                        inner.append((called, scope.of(called)))
                elif op.name == "transform.yield" and set(operands) <= carried:
                    continue
                else:
                    part.whole.append(Unread(f"{op.name} in the entry point", at))
                carried.update(results)
            waiting += reversed(inner)
        if lenient and not part.whole:
            loose = [e for group in reached for e in group if e.kept]
            if loose:
                part.whole.append(Unread("an include that may fail in silence", loose[0].use))

    def foreach(self, op: ir.Operation, symbols: Symbols, at: int) -> Iterator[SpecEntry]:
        matchers = list(ir.ArrayAttr(op.attributes["matchers"]))
        actions = list(ir.ArrayAttr(op.attributes["actions"]))
        pos = at
        for matcher, action in zip(matchers, actions, strict=True):
            mention = self.mention(str(matcher), pos)
            use = at if mention < 0 else mention
            pos = max(pos, mention + 1)
            found, done = (symbols.get(ir.SymbolRefAttr(a).value) for a in (matcher, action))
            if found is None or done is None:
                self.faults.append(
                    Fault(
                        self.spec.span(use),
                        "symbol",
                        f"{matcher} or {action} is no named sequence",
                    )
                )
                continue
            yield self.entry(found, done, use, symbols)

    def mention(self, reference: str, pos: int) -> int:
        """Where an entry point names a matcher, from ``pos`` on; -1: nowhere."""
        while (pos := self.text.find(reference, pos)) >= 0:
            if _ARROW.match(self.text, pos + len(reference)):
                return pos
            pos += 1
        return -1

    def entry(
        self, matcher: ir.Operation, action: ir.Operation, use: int, symbols: Symbols
    ) -> SpecEntry:
        asks = read_matcher(matcher, symbols.of(matcher))
        does = read_action(action, symbols.of(action), asks.yielded)
        made = SpecEntry(
            symbol_of(matcher), symbol_of(action), self.offset(matcher), use, asks, does, symbols
        )
        made.kept = [*asks.unread, *does.unread]
        if "arg_attrs" in matcher.attributes:
            made.consumes = "transform.consumed" in str(matcher.attributes["arg_attrs"])
        if does.config is not None:
            made.config = self.constant(does.config)
        if does.decomposition is not None:
            made.decomposition = self.constant(does.decomposition)
        return made

    def constant(self, op: ir.Operation) -> Attr | None:
        """The value of a constant, with the place of each of its parts."""
        at = self.offset(op)
        if at in self.constants:
            return self.constants[at]
        found = _CONSTANT.match(self.text, at)
        made = None
        try:
            if found:
                made = attrtext.read(self.text, found.end(), self.aliases)
            else:  # the generic form: its parts have no place of their own
                made = attrtext.read_at(str(op.attributes["value"]), at)
        except AttrError as error:
            self.faults.append(
                Fault(self.spec.span(error.pos), "attribute", f"cannot be read: {error}")
            )
        self.constants[at] = made
        return made


FOREACH = "transform.foreach_match"
_ARROW = re.compile(r"\s*->")
_CONSTANT = re.compile(r"transform\.param\.constant\s")


def places(spec: Spec, found: Sequence[Unread]) -> list[str]:
    """What was not read, with its lines, for people."""
    return [f"{one.what} (line {spec.span(one.offset).line})" for one in found]
