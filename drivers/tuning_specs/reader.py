"""Reading a tuning spec: each entry of its ``foreach_match`` as what it asks and what it sets."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mlirules.drivers.iree import compiler
from mlirules.drivers.tuning_specs import attributes as attrtext
from mlirules.drivers.tuning_specs.attributes import Attr, AttrError
from mlirules.generator.emit.tuning_spec import MARKER
from mlirules.language.faults import Fault, MlirulesError, Span

DEFAULT_ENTRY = "iree_codegen.tuning_spec_with_default_entrypoint"
ENTRY = "iree_codegen.tuning_spec_entrypoint"

_TYPED = {
    "transform.iree.match.contraction": ("contraction", ("lhs", "rhs", "output")),
    "transform.iree.match.convolution": ("convolution", ("lhs", "rhs", "output")),
    "transform.iree.match.attention": ("plain-attention", ("query", "key", "value", "output")),
    "transform.iree.match.online_attention": (
        "attention",
        ("query", "key", "value", "scale", "output", "max", "sum"),
    ),
}


@dataclass
class Limit:
    """A condition on an operand: its type, or the size of one of its dims."""

    operand: int
    offset: int
    dim: int | None = None
    type: str = ""
    low: int | None = None
    high: int | None = None
    multiple: int | None = None


@dataclass
class SpecEntry:
    """One matcher with its action. Offsets are places in the file's text."""

    matcher: str
    action: str
    offset: int  # of the matcher
    use: int  # of its mention in the entry point
    guarded: bool = False
    op_class: str = ""
    names: list[str] = field(default_factory=list)
    root: int = 0  # where the op is asked for
    types: dict[str, str] = field(default_factory=dict)
    maps: list[Any] = field(default_factory=list)
    sizes: list[tuple[int, list[int], int]] = field(default_factory=list)  # group, sizes, offset
    limits: list[Limit] = field(default_factory=list)
    #: Ops that are not understood here.
    strange: list[tuple[str, int]] = field(default_factory=list)
    config: Attr | None = None
    decomposition: Attr | None = None
    marks: list[str] = field(default_factory=list)  # attributes set without a value
    consumes: bool = False  # the matcher takes its operand away
    rule: str = ""  # the config rule it was generated from
    #: The attributes themselves, beside their text.
    config_value: Any = field(default=None, repr=False)
    decomposition_value: Any = field(default=None, repr=False)


@dataclass
class Spec:
    """A tuning spec that parses."""

    path: str
    text: str
    entries: list[SpecEntry]
    entry_points: list[tuple[str, int]]
    strict: bool  # the module says that it has the default entry point
    module: Any = field(repr=False)

    def span(self, offset: int, length: int | None = None) -> Span:
        """A place in the file; by default the word that stands there."""
        line, column, source_line = place(self.text, offset)
        if length is None:
            word = re.match(r"[\w.!%@#$-]+|[^\s]", source_line[column - 1 :])
            length = len(word[0]) if word else 1
        return Span(self.path, line, column, length, source_line)


def place(text: str, offset: int) -> tuple[int, int, str]:
    """Line and column, from 1, of a character, and its line."""
    starts = [0, *(m.end() for m in re.finditer("\n", text))]
    line = bisect.bisect_right(starts, offset)
    start = starts[line - 1]
    return line, offset - start + 1, text[start:].split("\n", 1)[0]


def read_spec(text: str, path: str) -> Spec:
    """Read a spec. Raises :class:`MlirulesError`, located, when it does not parse or verify."""
    module = compiler.parse(text, path)
    reader = _Reader(text, path, module)
    reader.run()
    if reader.faults:
        raise MlirulesError(reader.faults)
    return reader.spec


class _Reader:
    def __init__(self, text: str, path: str, module: Any) -> None:
        self.text = text
        self.path = path
        self.starts = [0, *(m.end() for m in re.finditer("\n", text))]
        self.aliases = attrtext.aliases_of(text)
        self.faults: list[Fault] = []
        self.sequences: dict[str, Any] = {}
        strict = DEFAULT_ENTRY in module.operation.attributes
        self.spec = Spec(path, text, [], [], strict, module)

    def run(self) -> None:
        entry_points = []
        for op in _nested(self.spec.module.operation):
            if op.name == "transform.named_sequence":
                name = _name(op.attributes["sym_name"])
                self.sequences[name] = op
                if ENTRY in op.attributes:
                    self.spec.entry_points.append((name, self.offset(op)))
                    entry_points.append(op)
        if not entry_points and "__kernel_config" in self.sequences:
            entry_points.append(self.sequences["__kernel_config"])
        if not entry_points:  # what a library is run by, when it has no entry attribute
            entry_points = [
                op
                for op in self.sequences.values()
                if any(o.name == "transform.foreach_match" for o in _nested(op))
            ]
        for entry in entry_points:
            for op in _nested(entry):
                if op.name == "transform.foreach_match":
                    self.foreach(op)

    def offset(self, op: Any) -> int:
        """Where an op's name stands."""
        found = re.search(r'"[^"]*":(\d+):(\d+)', str(op.location))
        if not found:
            return 0
        line, column = int(found[1]), int(found[2])
        if not 1 <= line <= len(self.starts):
            return 0
        return self.starts[line - 1] + column - 1

    def fault(self, offset: int, code: str, message: str) -> None:
        self.faults.append(Fault(self.spec.span(offset), code, message))

    def foreach(self, op: Any) -> None:
        matchers = [_name(a) for a in op.attributes["matchers"]]
        actions = [_name(a) for a in op.attributes["actions"]]
        at = self.offset(op)
        for matcher, action in zip(matchers, actions, strict=True):
            mention = re.compile(rf"@{re.escape(matcher)}\b\s*->").search(self.text, at)
            use = mention.start() if mention else at
            if matcher not in self.sequences or action not in self.sequences:
                self.fault(use, "symbol", f"@{matcher} or @{action} is no named sequence")
                continue
            self.spec.entries.append(self.entry(matcher, action, use))

    def entry(self, matcher: str, action: str, use: int) -> SpecEntry:
        sequence = self.sequences[matcher]
        made = SpecEntry(matcher, action, self.offset(sequence), use)
        if "arg_attrs" in sequence.attributes:
            made.consumes = "transform.consumed" in str(sequence.attributes["arg_attrs"])
        block = sequence.regions[0].blocks[0]
        operands: dict[Any, int] = {}  # value handles of the op's operands
        groups: dict[Any, int] = {}  # parameters that hold the sizes of a group of dims
        yielded: list[Any] = []
        for view in block.operations:
            op = view.operation
            self.matched(op, made, operands, groups)
            if op.name == "transform.yield":
                yielded = list(op.operands)
        self.action(made, self.sequences[action], yielded)
        return made

    def matched(
        self, op: Any, made: SpecEntry, operands: dict[Any, int], groups: dict[Any, int]
    ) -> None:
        attributes = op.attributes
        at = self.offset(op)
        match op.name:
            case "transform.iree.match.has_no_lowering_config":
                made.guarded = True
            case "transform.match.operation_name":
                made.op_class = made.op_class or "operation"
                made.names = [_name(a) for a in attributes["op_names"]]
                made.root = at
            case name if name in _TYPED:
                made.op_class, roles = _TYPED[name]
                made.root = at
                made.types = {role: str(attributes[f"{role}_type"]) for role in roles}
                if "indexing_maps" in attributes:
                    made.maps = [
                        compiler.ir.AffineMapAttr(m).value for m in attributes["indexing_maps"]
                    ]
                groups.update((result, i) for i, result in enumerate(op.results))
            case "transform.iree.match.dims_equal":
                group = groups.get(op.operands[0])
                sizes = (
                    [int(str(n).split(":")[0]) for n in attributes["expected_values"]]
                    if ("expected_values" in attributes)
                    else self.sizes(op)
                )
                if group is None:
                    made.strange.append((op.name, at))
                else:
                    made.sizes.append((group, sizes, at))
            case "transform.get_operand":
                position = re.search(r"-?\d+", self.text[self.text.find("[", at) :])
                operands[op.results[0]] = int(position[0]) if position else 0
            case "transform.iree.match.cast_compatible_type":
                made.limits.append(
                    Limit(operands[op.operands[0]], at, type=str(attributes["target_type"]))
                )
            case "transform.iree.match.dim_bounds":
                limit = Limit(operands[op.operands[0]], at, dim=_int(attributes["dim"]))
                limit.low = _int(attributes["lower_bound"]) if "lower_bound" in attributes else None
                limit.high = (
                    _int(attributes["upper_bound"]) if "upper_bound" in attributes else None
                )
                made.limits.append(limit)
            case "transform.iree.match.dim_is_multiple_of":
                made.limits.append(
                    Limit(
                        operands[op.operands[0]],
                        at,
                        dim=_int(attributes["dim"]),
                        multiple=_int(attributes["size"]),
                    )
                )
            case "transform.param.constant" | "transform.yield" | "transform.print":
                pass
            case _:
                made.strange.append((op.name, at))

    def sizes(self, op: Any) -> list[int]:
        """The sizes of a ``dims_equal``, from its text."""
        found = re.search(r"\[([-\d,\s]*)\]", self.text[self.offset(op) :])
        return [int(n) for n in found[1].split(",") if n.strip()] if found else []

    def action(self, made: SpecEntry, sequence: Any, yielded: list[Any]) -> None:
        block = sequence.regions[0].blocks[0]
        arguments = {argument: i for i, argument in enumerate(block.arguments)}
        for view in block.operations:
            op = view.operation
            if op.name != "transform.annotate":
                continue
            name = _name(op.attributes["name"])
            if len(op.operands) < 2:
                made.marks.append(name)
                continue
            position = arguments.get(op.operands[1])
            value = yielded[position] if position is not None and position < len(yielded) else None
            constant = _defining(value)
            if name in ("compilation_info", "decomposition_config") and constant is not None:
                read = self.constant(constant)
                if name == "compilation_info":
                    made.config, made.config_value = read, constant.attributes["value"]
                else:
                    made.decomposition = read
                    made.decomposition_value = constant.attributes["value"]
            else:
                made.marks.append(name)
                if name == MARKER and constant is not None:
                    made.rule = _name(constant.attributes["value"])

    def constant(self, op: Any) -> Attr | None:
        at = self.offset(op)
        found = re.compile(r"transform\.param\.constant").match(self.text, at)
        try:
            return attrtext.read(self.text, found.end() if found else at, self.aliases)
        except AttrError as error:
            self.fault(error.pos, "attribute", f"cannot be read: {error}")
            return None


def _nested(operation: Any) -> Iterator[Any]:
    for region in operation.regions:
        for block in region.blocks:
            for view in block.operations:
                yield view.operation
                yield from _nested(view.operation)


def _name(attribute: Any) -> str:
    return str(attribute).strip('@"')


def _int(attribute: Any) -> int:
    return int(str(attribute).split(":")[0])


def _defining(value: Any) -> Any:
    if value is None:
        return None
    owner = value.owner
    operation = getattr(owner, "operation", None)
    return (
        operation
        if operation is not None and (operation.name == "transform.param.constant")
        else None
    )
