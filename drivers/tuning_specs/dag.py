"""The ops that lead to an op, held against those of a rule's `program:`, as the compiler does."""

from __future__ import annotations

from mlirules.drivers.iree import compiler, irtypes
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.tuning_specs.steps import dag_ops
from mlirules.generator.emit.tuning_spec import MARKER
from mlirules.language import typetexts

#: What configuring leaves on an op: no part of what it computes.
_CONFIGURED = frozenset(
    {
        MARKER,
        "lowering_config",
        "compilation_info",
        "decomposition_config",
        "iree_codegen.ukernel",
    }
)


class Parsed:
    """What rules say in MLIR, in the context of the ops that it is held against, parsed once."""

    def __init__(self, context: ir.Context) -> None:
        self._context = context
        self._maps: dict[str, ir.AffineMap] = {}
        self._programs: dict[str, tuple[ir.Operation, ir.Module]] = {}

    def map(self, text: str) -> ir.AffineMap:
        """An affine map (``affine_map<(d0) -> (d0)>``)."""
        found = self._maps.get(text)
        if found is None:
            found = ir.AffineMapAttr(ir.Attribute.parse(text, self._context)).value
            self._maps[text] = found
        return found

    def program(self, text: str) -> ir.Operation:
        """The last op of a rule's program. Raises as :func:`parsed`."""
        if text not in self._programs:
            self._programs[text] = parsed(text, self._context)
        return self._programs[text][0]


def parsed(program: str, context: ir.Context) -> tuple[ir.Operation, ir.Module]:
    """The last op of a program, and the module that owns it.

    Raises :class:`~mlirules.language.faults.MlirulesError` for a program that does not parse.
    """
    text = (
        "module attributes { transform.with_named_sequence } {\n"
        "transform.named_sequence @m(%op: !transform.any_op {transform.readonly}) {\n"
        "%i, %o = transform.iree.match.cast_compatible_dag_from_root %op {\n"
        f"{program}\n"
        "} : (!transform.any_op) -> (!transform.any_value, !transform.any_value)\n"
        "transform.yield }}"
    )
    module = compiler.parse(text, "program", context)
    sequence = module.body.operations[0].operation
    dag = sequence.regions[0].blocks[0].operations[0].operation
    return dag_ops(dag)[-1], module


def difference(root: ir.Operation, op: ir.Operation, ignored: frozenset[str] = frozenset()) -> str:
    """How the ops that lead to ``op`` differ from those of a program; empty where they do not.

    ``root`` is the program's last op, ``ignored`` are attributes that a rule has set on its ops.
    """
    met: dict[ir.Value, ir.Value] = {}
    waiting = [(root, op)]
    while waiting:
        wanted, have = waiting.pop()
        problem = _differs(wanted, have, ignored)
        if problem:
            return problem
        for asked, given in zip(wanted.operands, have.operands, strict=True):
            if met.setdefault(asked, given) != given:
                return f"{have.name} reads another value than the one before"
            if not _castable(given.type, asked.type):
                return f"{have.name} reads {given.type}, not {asked.type}"
            owner, source = asked.owner, given.owner
            if isinstance(owner, ir.Block):
                continue
            if (
                isinstance(source, ir.Block)
                or ir.OpResult(asked).result_number != ir.OpResult(given).result_number
            ):
                return f"what {have.name} reads is made by no {owner.name}"
            waiting.append((owner.operation, source.operation))
    return ""


def _differs(wanted: ir.Operation, have: ir.Operation, ignored: frozenset[str]) -> str:
    if wanted.name != have.name:
        return f"it is {have.name}, not {wanted.name}"
    if len(wanted.operands) != len(have.operands) or len(wanted.results) != len(have.results):
        return f"{have.name} has other operands"
    one, other = _attributes(wanted), _attributes(have, ignored)
    names = [n for n in {*one, *other} if n not in one or n not in other or one[n] != other[n]]
    if names:
        return f"{have.name} has another {min(names)}"
    for asked, given in zip(wanted.results, have.results, strict=True):
        if not _castable(given.type, asked.type):
            return f"{have.name} gives {given.type}, not {asked.type}"
    if [_body(r) for r in wanted.regions] != [_body(r) for r in have.regions]:
        return f"the body of {have.name} differs"
    return ""


def _attributes(op: ir.Operation, ignored: frozenset[str] = frozenset()) -> dict[str, ir.Attribute]:
    return {n: op.attributes[n] for n in {*op.attributes} - _CONFIGURED - ignored}


def _body(region: ir.Region) -> list[tuple[object, ...]]:
    """What a region computes: its ops over numbered values; values of outside by themselves."""
    numbers: dict[ir.Value, int] = {}
    out: list[tuple[object, ...]] = []
    for block in region.blocks:
        for argument in block.arguments:
            numbers[argument] = len(numbers)
        out.append(tuple(str(a.type) for a in block.arguments))
        for view in block.operations:
            op = view.operation
            reads = tuple(numbers.get(v, str(v.type)) for v in op.operands)
            for result in op.results:
                numbers[result] = len(numbers)
            given = sorted((n, str(a)) for n, a in _attributes(op).items())
            types = tuple(str(r.type) for r in op.results)
            out.append((op.name, reads, tuple(given), types, len(op.regions)))
    return out


def castable(have: str, wanted: str) -> bool:
    """Whether a tensor type can be cast to another: `?` in the wanted one stands for any size."""
    if have == wanted:
        return True
    a, b = typetexts.builtin_type(have), typetexts.builtin_type(wanted)
    return a is not None and b is not None and a.within(b)


def _castable(have: ir.Type, wanted: ir.Type) -> bool:
    if have == wanted:
        return True
    a, b = irtypes.tensor_type(have), irtypes.tensor_type(wanted)
    return a is not None and b is not None and a.within(b)
