"""Which ops a config rule is for, told here and not by the compiler.

The compiler's matchers say nothing when they do not match. This second reading of a rule, against
the same ops, is what its result is held against, and it names the part of `match` that refuses.
"""

from __future__ import annotations

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.match.indexing import Miss, match_equation
from mlirules.drivers.match.results import Refusal
from mlirules.drivers.tuning_specs import dag
from mlirules.generator.emit.tuning_spec import position_of
from mlirules.language.config.model import DimRange
from mlirules.language.config.op import ConfigRule, affine_map
from mlirules.language.notation import ast

_SIZES = {"min", "max", "multiple_of"}
ATTENTION = "iree_linalg_ext.online_attention"


def refusal(rule: ConfigRule, op: ir.Operation, parsed: dag.Parsed | None = None) -> Refusal | None:
    """None when the rule is for ``op``, else the part of the rule that refuses it.

    ``parsed`` keeps what rules say in MLIR from one op of a context to the next.
    """
    parsed = parsed if parsed is not None else dag.Parsed(op.context)
    if rule.match.op == "operation":
        return _by_name(rule, op, parsed)
    refused = _is_class(rule, op)
    if refused is not None:
        return refused
    if rule.match.name is not None and op.name != rule.match.name:
        return _refused("name", f"it is {op.name}")
    maps = _maps_of(op)
    if maps is None:
        return _refused("op", f"{op.name} has no indexing maps")
    wanted = [parsed.map(affine_map(rule, operand)) for operand in rule.operands]
    if len(maps) < len(rule.operands) or _relevant(rule, maps) != wanted:
        return _refused("compute", "its indexing maps differ")
    if rule.match.op == "generic":
        assert rule.equation is not None
        # Where an accumulation starts is not part of what is configured.
        found = match_equation(rule.equation, op, said=rule.said, any_start=True)
        if isinstance(found, Miss):
            return _refused("compute", found.message)
    for i, operand in enumerate(rule.operands):
        element = _element(op.operands[position_of(rule, i)].type)
        if element != operand.element:
            return _refused(
                f"types.{operand.name}",
                f"{operand.name} has elements {element}, not {operand.element}",
            )
    for loop, limits in rule.dims.items():
        size = size_of(rule, op, loop)
        problem = outside(size, limits)
        if problem:
            return _refused(f"dims.{loop}", f"{loop} is {'?' if size is None else size}, {problem}")
    return None


def outside(size: int | None, limits: DimRange) -> str:
    """How a size is outside of limits; empty when it is not. None is a size not known."""
    if limits.min is not None and limits.min == limits.max and size != limits.min:
        return f"not {limits.min}"
    if size is None:
        return "not static"
    if limits.min is not None and size < limits.min:
        return f"below {limits.min}"
    if limits.max is not None and size > limits.max:
        return f"above {limits.max}"
    if limits.multiple_of is not None and size % limits.multiple_of:
        return f"no multiple of {limits.multiple_of}"
    return ""


def size_of(rule: ConfigRule, op: ir.Operation, loop: str) -> int | None:
    """The size of a loop in an op that the rule's maps fit; None when it is dynamic."""
    for i, operand in enumerate(rule.operands):
        for j, index in enumerate(operand.indices):
            if isinstance(index, ast.Name) and index.id == loop:
                type_ = ir.ShapedType(op.operands[position_of(rule, i)].type)
                return None if type_.is_dynamic_dim(j) else type_.get_dim_size(j)
    return None


def _is_class(rule: ConfigRule, op: ir.Operation) -> Refusal | None:
    if rule.match.op == "attention":
        if op.name != ATTENTION:
            return _refused("op", f"{op.name} is no attention")
        masked = len(op.operands) == 8
        if masked != (len(rule.operands) == 5):
            return _refused("compute", "it has a mask" if masked else "it has no mask")
        return None
    if not op.name.startswith("linalg."):
        return _refused("op", f"{op.name} is no linalg op")
    if rule.match.op == "contraction" and not compiler.is_contraction(op):
        return _refused("op", f"{op.name} is no contraction")
    if rule.match.op == "convolution" and not compiler.is_convolution(op):
        return _refused("op", f"{op.name} is no convolution")
    if rule.match.op == "generic" and op.name != "linalg.generic":
        return _refused("op", f"{op.name} is no linalg.generic")
    return None


def _maps_of(op: ir.Operation) -> list[ir.AffineMap] | None:
    if op.name == ATTENTION:
        return [ir.AffineMapAttr(m).value for m in ir.ArrayAttr(op.attributes["indexing_maps"])]
    return compiler.indexing_maps(op)


def _relevant(rule: ConfigRule, maps: list[ir.AffineMap]) -> list[ir.AffineMap]:
    """Those of an op's maps that the rule speaks of."""
    return [maps[position_of(rule, i)] for i in range(len(rule.operands))]


def _refused(part: str, message: str) -> Refusal:
    return Refusal(None, message, part=part)


def _element(type_: ir.Type) -> str:
    return str(getattr(type_, "element_type", type_))


def _by_name(rule: ConfigRule, op: ir.Operation, parsed: dag.Parsed) -> Refusal | None:
    if op.name != rule.match.name:
        return _refused("name", f"it is {op.name}")
    for i, wanted in enumerate(rule.match.operands):
        if wanted is None:
            continue
        have = str(op.operands[i].type) if i < len(op.operands) else "nothing"
        if not dag.castable(have, wanted):
            return _refused(f"operands.{i}", f"operand {i} is {have}, not {wanted}")
    for i, limit in enumerate(rule.match.limits):
        type_ = op.operands[limit.operand].type if limit.operand < len(op.operands) else None
        if not isinstance(type_, ir.ShapedType) or limit.dim >= type_.rank:
            return _refused(f"limits.{i}", f"operand {limit.operand} has no dim {limit.dim}")
        size = None if type_.is_dynamic_dim(limit.dim) else type_.get_dim_size(limit.dim)
        problem = outside(size, DimRange(**limit.model_dump(include=_SIZES)))
        if problem:
            where = f"dim {limit.dim} of operand {limit.operand}"
            return _refused(f"limits.{i}", f"{where} is {'?' if size is None else size}, {problem}")
    if rule.match.program is not None:
        program = parsed.program(rule.match.program)
        problem = dag.difference(program, op, frozenset(rule.settings.annotations))
        if problem:
            return _refused("program", problem)
    return None
