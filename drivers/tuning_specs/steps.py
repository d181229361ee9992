"""What the sequences of an entry do, followed value by value and through their includes.

Only what a config rule can say is read. Anything else is named with its place, so that the entry
is kept whole instead of being read as less than it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.generator.emit.tuning_spec import MARKER

TYPED = {
    "transform.iree.match.contraction": ("contraction", ("lhs", "rhs", "output")),
    "transform.iree.match.convolution": ("convolution", ("lhs", "rhs", "output")),
    "transform.iree.match.attention": ("plain-attention", ("query", "key", "value", "output")),
    "transform.iree.match.online_attention": (
        "attention",
        ("query", "key", "value", "scale", "output", "max", "sum"),
    ),
}
DAG = "transform.iree.match.cast_compatible_dag_from_root"
#: Includes inside includes, beyond which a sequence is kept unread.
MAX_INCLUDES = 200


@dataclass(frozen=True)
class Unread:
    """What is not read here, and where it stands."""

    what: str
    offset: int


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
class Matcher:
    """What a matcher asks of an op."""

    guarded: bool = False
    op_class: str = ""
    names: list[str] = field(default_factory=list)
    root: int = 0  # where the op is asked for
    types: dict[str, str] = field(default_factory=dict)
    maps: list[ir.AffineMap] = field(default_factory=list)
    sizes: list[tuple[int, list[int], int]] = field(default_factory=list)  # group, sizes, offset
    limits: list[Limit] = field(default_factory=list)
    #: The ops that the root stands at the end of, as text, with the root's number of loops.
    program: str = ""
    loops: int = 0
    unread: list[Unread] = field(default_factory=list)
    #: What it yields: the op, a constant, or something else (None).
    yielded: list[object] = field(default_factory=list)


@dataclass
class Action:
    """What an action sets on the op; constants are the ops that hold them."""

    config: ir.Operation | None = None
    decomposition: ir.Operation | None = None
    #: Other attributes: their values, None for those without.
    annotations: dict[str, tuple[ir.Attribute | None, int]] = field(default_factory=dict)
    rule: str = ""
    unread: list[Unread] = field(default_factory=list)


_OP = object()  # the op that is matched


@dataclass(frozen=True)
class _Operand:
    position: int


@dataclass(frozen=True)
class _Group:
    number: int


class Symbols:
    """Named sequences as seen from a module: each module has its own."""

    def __init__(
        self,
        module: ir.Operation,
        offset: Callable[[ir.Operation], int],
        cache: dict[ir.Operation, Symbols] | None = None,
    ) -> None:
        self.module = module
        self.offset = offset
        self._cache = cache if cache is not None else {}
        self._own: dict[str, ir.Operation] | None = None
        #: What was read of a sequence, by name.
        self._cache[module] = self

    @property
    def own(self) -> dict[str, ir.Operation]:
        """The module's symbols by name."""
        if self._own is None:
            self._own = {
                symbol_of(view.operation): view.operation
                for view in self.module.regions[0].blocks[0].operations
                if "sym_name" in view.operation.attributes
            }
        return self._own

    def get(self, reference: Sequence[str]) -> ir.Operation | None:
        """The named sequence that symbols, the outermost module's first, lead to; None: nothing."""
        scope: Symbols = self
        *outer, last = reference
        for name in outer:
            module = scope.own.get(name)
            if module is None or module.name != "builtin.module":
                return None
            scope = scope.at(module)
        found = scope.own.get(last)
        if found is None or found.name != "transform.named_sequence":
            return None
        return found if found.regions[0].blocks else None

    def at(self, module: ir.Operation) -> Symbols:
        """The symbols of another module."""
        return self._cache.get(module) or Symbols(module, self.offset, self._cache)

    def of(self, sequence: ir.Operation) -> Symbols:
        """The symbols of the module that a sequence stands in."""
        assert sequence.parent is not None
        return self.at(sequence.parent)


def symbol_of(op: ir.Operation) -> str:
    """An op's symbol name; empty when it has none."""
    if "sym_name" not in op.attributes:
        return ""
    return ir.StringAttr(op.attributes["sym_name"]).value


def read_matcher(sequence: ir.Operation, symbols: Symbols) -> Matcher:
    """What a matcher asks, includes followed."""
    made = Matcher()
    more = list(sequence.regions[0].blocks[0].arguments)[1:]
    if more:
        made.unread.append(Unread("a matcher of several values", symbols.offset(sequence)))
    made.yielded = _Reading(made).run(sequence, symbols, [_OP] + [None] * len(more))
    return made


class _Reading:
    def __init__(self, made: Matcher) -> None:
        self.made = made
        self.includes = 0

    def run(
        self, sequence: ir.Operation, symbols: Symbols, given: Sequence[object]
    ) -> list[object]:
        """Follow a sequence; returns what it yields."""
        block = sequence.regions[0].blocks[0]
        known: dict[ir.Value, object] = dict(zip(block.arguments, given, strict=True))
        for view in block.operations:
            op = view.operation
            values = [known.get(v) for v in op.operands]
            if op.name == "transform.yield":
                return values
            at = symbols.offset(op)
            if op.name == "transform.include":
                results = self.include(op, symbols, values, at)
            else:
                read = self.step(op, values, at)
                if read is None:
                    self.made.unread.append(Unread(op.name, at))
                results = read or []
            known.update(zip(op.results, results, strict=False))
        return []

    def include(
        self, op: ir.Operation, symbols: Symbols, values: Sequence[object], at: int
    ) -> list[object]:
        self.includes += 1
        called = symbols.get(ir.SymbolRefAttr(op.attributes["target"]).value)
        strict = propagates(op)
        if called is None or not strict or self.includes > MAX_INCLUDES:
            self.made.unread.append(Unread("transform.include that may fail in silence", at))
            return []
        # As deep as a spec's includes go, which the limit bounds.
        return self.run(called, symbols.of(called), values)

    def step(self, op: ir.Operation, values: Sequence[object], at: int) -> list[object] | None:
        """What an op of a matcher gives; None where it is not read."""
        made, attributes = self.made, op.attributes
        about_op = bool(values) and values[0] is _OP
        operand = values[0] if values and isinstance(values[0], _Operand) else None
        match op.name:
            case "transform.param.constant":
                return [op]
            case "transform.iree.match.has_no_lowering_config" if about_op:
                made.guarded = True
            case "transform.match.operation_name" if about_op and not made.names:
                made.names = [ir.StringAttr(a).value for a in ir.ArrayAttr(attributes["op_names"])]
                made.op_class = made.op_class or "operation"
                made.root = made.root or at
            case name if name in TYPED and about_op and made.op_class in ("", "operation"):
                if made.program:
                    return None
                return self.typed(op, at)
            case "transform.iree.match.dims_equal" if isinstance(values[0], _Group):
                sizes = list(ir.DenseI64ArrayAttr(attributes["expected_values"]))
                made.sizes.append((values[0].number, sizes, at))
            case "transform.get_operand" if about_op:
                position = _single(op)
                return None if position is None else [_Operand(position)]
            case "transform.iree.match.cast_compatible_type" if operand is not None:
                type_ = str(attributes["target_type"])
                made.limits.append(Limit(operand.position, at, type=type_))
            case "transform.iree.match.dim_bounds" if operand is not None:
                limit = Limit(operand.position, at, dim=_int(attributes["dim"]))
                limit.low = _int(attributes["lower_bound"]) if "lower_bound" in attributes else None
                limit.high = (
                    _int(attributes["upper_bound"]) if "upper_bound" in attributes else None
                )
                made.limits.append(limit)
            case "transform.iree.match.dim_is_multiple_of" if operand is not None:
                limit = Limit(operand.position, at, dim=_int(attributes["dim"]))
                limit.multiple = _int(attributes["size"])
                made.limits.append(limit)
            case name if name == DAG and about_op and not made.program:
                if made.op_class not in ("", "operation"):
                    return None
                return self.dag(op, at)
            case _:
                return None
        return []

    def typed(self, op: ir.Operation, at: int) -> list[object]:
        made, attributes = self.made, op.attributes
        made.op_class, roles = TYPED[op.name]
        made.root = at
        made.types = {role: str(attributes[f"{role}_type"]) for role in roles}
        if "indexing_maps" in attributes:
            found = ir.ArrayAttr(attributes["indexing_maps"])
            made.maps = [ir.AffineMapAttr(m).value for m in found]
        return [_Group(i) for i in range(len(op.results))]

    def dag(self, op: ir.Operation, at: int) -> list[object] | None:
        ops = dag_ops(op)
        if not ops:
            return None
        root = ops[-1]
        name = root.name
        if self.made.names and self.made.names != [name]:
            return None
        maps = compiler.indexing_maps(root) if name.startswith("linalg.") else None
        if not maps:
            return None
        text = op.get_asm(use_local_scope=True)
        start, end = text.index("{\n") + 2, text.rindex("\n")
        self.made.program = _dedented(text[start:end])
        self.made.loops = maps[0].n_dims
        self.made.names = [name]
        self.made.op_class = "operation"
        self.made.root = at
        return [None, None]


def dag_ops(dag: ir.Operation) -> list[ir.Operation]:
    """The ops of a DAG that is matched, its root last."""
    ops = [view.operation for view in dag.regions[0].blocks[0].operations]
    return [op for op in ops if op.name != "transform.yield"]


def _dedented(text: str) -> str:
    lines = [line.rstrip() for line in text.split("\n")]
    indent = min((len(s) - len(s.lstrip()) for s in lines if s), default=0)
    return "\n".join(line[indent:] for line in lines) + "\n"


def read_action(sequence: ir.Operation, symbols: Symbols, given: Sequence[object]) -> Action:
    """What an action sets on the op that the matcher yields."""
    made = Action()
    block = sequence.regions[0].blocks[0]
    bound: dict[ir.Value, object] = dict(zip(block.arguments, given, strict=False))
    waiting = [(list(block.operations), bound, symbols)]
    includes = 0
    while waiting:
        views, known, scope = waiting.pop()
        for number, view in enumerate(views):
            op = view.operation
            at = scope.offset(op)
            values = [known.get(v) for v in op.operands]
            if op.name == "transform.param.constant":
                known[op.results[0]] = op
            elif op.name == "transform.annotate" and values[0] is _OP:
                _annotated(made, op, values, at)
            elif op.name == "transform.include" and not list(op.results):
                called = scope.get(ir.SymbolRefAttr(op.attributes["target"]).value)
                includes += 1
                if called is None or includes > MAX_INCLUDES:
                    made.unread.append(Unread(op.name, at))
                    continue
                inner = called.regions[0].blocks[0]
                waiting.append((views[number + 1 :], known, scope))
                named: dict[ir.Value, object] = dict(zip(inner.arguments, values, strict=True))
                waiting.append((list(inner.operations), named, scope.of(called)))
                break
            elif op.name != "transform.yield" or values:
                what = op.name
                if op.name == "transform.annotate":
                    what = f"{op.attributes['name']} set on something else than the op"
                made.unread.append(Unread(what, at))
    return made


def _annotated(made: Action, op: ir.Operation, values: Sequence[object], at: int) -> None:
    name = ir.StringAttr(op.attributes["name"]).value
    held = values[1] if len(values) > 1 else None
    constant = held if isinstance(held, ir.Operation) else None
    if len(values) > 1 and constant is None:
        made.unread.append(Unread(f"{name!r} with a value that is no constant", at))
    elif name == "compilation_info" and constant is not None and made.config is None:
        made.config = constant
    elif name == "decomposition_config" and constant is not None and made.decomposition is None:
        made.decomposition = constant
    elif name == MARKER and constant is not None:
        made.rule = ir.StringAttr(constant.attributes["value"]).value
    elif name in made.annotations or name in ("compilation_info", "decomposition_config"):
        made.unread.append(Unread(f"{name!r} set twice, or without a value", at))
    else:
        value = None if constant is None else constant.attributes["value"]
        made.annotations[name] = (value, at)


def _single(op: ir.Operation) -> int | None:
    """The one position that a ``get_operand`` asks for; None for any other form."""
    if "is_inverted" in op.attributes or "is_all" in op.attributes:
        return None
    listed = list(ir.DenseI64ArrayAttr(op.attributes["raw_position_list"]))
    return listed[0] if len(listed) == 1 and listed[0] >= 0 else None


def propagates(include: ir.Operation) -> bool:
    """Whether an include that fails makes what includes it fail."""
    return ir.IntegerAttr(include.attributes["failure_propagation_mode"]).value == 1


def _int(attribute: ir.Attribute) -> int:
    return ir.IntegerAttr(attribute).value
