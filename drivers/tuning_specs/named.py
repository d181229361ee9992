"""Example programs for rules that go by an op's name, or by the ops that lead to it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.tuning_specs import dag
from mlirules.drivers.tuning_specs.maps import exprs
from mlirules.drivers.tuning_specs.steps import dag_ops
from mlirules.language.faults import MlirulesError
from mlirules.language.typetexts import TensorType, builtin_type

#: The size of a dim that nothing limits.
FREE = 32

#: How many dims the operands of named ops have.
_RANKS = {
    "linalg.matmul": (2, 2, 2),
    "linalg.batch_matmul": (3, 3, 3),
    "linalg.matvec": (2, 1, 1),
    "linalg.vecmat": (1, 2, 1),
    "linalg.batch_matvec": (3, 2, 2),
    "linalg.batch_vecmat": (2, 3, 2),
    "linalg.mmt4d": (4, 4, 4),
    "linalg.batch_mmt4d": (5, 5, 5),
    "linalg.conv_2d_nhwc_hwcf": (4, 4, 4),
    "linalg.conv_2d_nchw_fchw": (4, 4, 4),
    "linalg.depthwise_conv_2d_nhwc_hwc": (4, 3, 4),
    "linalg.pooling_nhwc_sum": (4, 2, 4),
    "linalg.pooling_nhwc_max": (4, 2, 4),
    "linalg.pooling_nchw_sum": (4, 2, 4),
    "linalg.pooling_nchw_max": (4, 2, 4),
}

_BESIDE = """\
func.func @beside(%a: tensor<77xi32>, %b: tensor<77xi32>) -> tensor<77xi32> {
  %e = tensor.empty() : tensor<77xi32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>,
    affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
    ins(%a, %b : tensor<77xi32>, tensor<77xi32>) outs(%e : tensor<77xi32>) {
  ^bb0(%x: i32, %y: i32, %z: i32):
    %s = arith.addi %x, %y : i32
    linalg.yield %s : i32
  } -> tensor<77xi32>
  return %r : tensor<77xi32>
}
"""


def named_tests(match: Mapping[str, Any]) -> list[dict[str, object]]:
    """A positive and a negative test; empty where no program is known."""
    program = match.get("program") or _program(match)
    if program is None:
        return []
    text = _example(match, program)
    if text is None:
        return []
    return [
        {"name": "an op that the entry is for", "input": text},
        {"name": "another op", "unchanged": _BESIDE, "because": _because(match)},
    ]


def _because(match: Mapping[str, Any]) -> str:
    """What refuses the op of the negative test."""
    if match["name"] != "linalg.generic":
        return "name"
    for i, asked in enumerate(match.get("operands") or []):
        if asked is not None:
            return f"operands.{i}"
    if match.get("limits"):
        return "limits.0"
    return "program"


def _program(match: Mapping[str, Any]) -> str | None:
    """A named op by itself."""
    ranks = _RANKS.get(match["name"])
    if ranks is None:
        return None
    asked = list(match.get("operands") or [])
    found = [builtin_type(asked[i] or "") if i < len(asked) else None for i in range(3)]
    given = [t.element for t in found if t is not None]
    element = given[0] if given else "f32"
    last = found[2].element if found[2] is not None else ("f32" if "f" in element else "i32")
    elements = [t.element if t is not None else element for t in found[:2]] + [last]
    types = [TensorType((None,) * rank, e) for rank, e in zip(ranks, elements, strict=True)]
    return (
        f"^bb0(%a: {types[0]}, %b: {types[1]}, %c: {types[2]}):\n"
        f"  %r = {match['name']} ins(%a, %b : {types[0]}, {types[1]}) "
        f"outs(%c : {types[2]}) -> {types[2]}\n"
    )


def _example(match: Mapping[str, Any], program: str) -> str | None:
    """A function around a program, every type of it with sizes that go together."""
    try:
        root, module = dag.parsed(program, compiler.context())
    except MlirulesError:
        return None
    holder = root.parent
    assert holder is not None  # the op that matches the DAG
    block = holder.regions[0].blocks[0]
    ops = dag_ops(holder)
    sizes = _Sizes(ops)
    for i, asked in enumerate(match.get("operands") or []):
        found = builtin_type(asked or "")
        for j, size in enumerate(found.sizes if found is not None else ()):
            if size is not None and i < len(root.operands):
                sizes.ask(root.operands[i], j, size)
    for limit in match.get("limits") or []:
        size = _fitting(limit)
        if size is None or limit["operand"] >= len(root.operands):
            return None
        sizes.ask(root.operands[limit["operand"]], limit["dim"], size)
    values = [*block.arguments, *(result for op in ops for result in op.results)]
    for value in values:
        type_ = sizes.type_of(value)
        if type_ is None:
            return None
        value.set_type(type_)
    return _function(block, ops, module)


def _fitting(limit: Mapping[str, int]) -> int | None:
    step = limit.get("multiple_of") or 1
    low, high = limit.get("min") or 1, limit.get("max")
    size = -(-max(low, min(FREE, high or FREE)) // step) * step
    return size if high is None or size <= high else None


def _function(block: ir.Block, ops: Sequence[ir.Operation], module: ir.Module) -> str | None:
    holder = block.owner.operation
    body = str(holder.get_asm(use_local_scope=True)).split("\n")
    inner = body[1:-1]
    first = re.fullmatch(r"\s*\^bb0\((.*)\):", inner[0])
    result = re.match(r"\s*(%[\w.]+) = ", next((t for t in _tops(inner[1:])[::-1]), ""))
    if first is None or result is None:
        return None
    type_ = ops[-1].results[0].type
    text = "\n".join(
        [
            f"func.func @example({first[1]}) -> {type_} {{",
            *inner[1:],
            f"  return {result[1]} : {type_}",
            "}",
            "",
        ]
    )
    del module
    try:
        compiler.parse(text)
    except MlirulesError:
        return None
    return text


def _tops(lines: Sequence[str]) -> list[str]:
    """The lines of the outermost ops."""
    least = min((len(s) - len(s.lstrip()) for s in lines if s.strip()), default=0)
    return [s for s in lines if len(s) - len(s.lstrip()) == least and "=" in s]


#: A dim of a value, or a loop of an op by its number.
_Place: TypeAlias = tuple[ir.Value | int, int]


class _Sizes:
    """Sizes of values, by the loops that read them; what goes together has one size."""

    def __init__(self, ops: Sequence[ir.Operation]) -> None:
        self.parent: dict[_Place, _Place] = {}
        self.known: dict[_Place, int] = {}
        self.summed: dict[_Place, tuple[int, str]] = {}
        for number, op in enumerate(ops):
            maps = compiler.indexing_maps(op) if op.name.startswith("linalg.") else None
            for i, affine in enumerate(maps or ()):
                if i >= len(op.operands):
                    break
                for j, text in enumerate(exprs(affine)):
                    place = (op.operands[i], j)
                    if re.fullmatch(r"d\d+", text):
                        self.join(place, (number, int(text[1:])))
                    else:
                        self.summed[place] = (number, text)
            if maps:
                tied = list(op.operands)[-len(op.results) :] if len(op.results) else []
                for result, out in zip(op.results, tied, strict=False):
                    shaped = isinstance(result.type, ir.ShapedType)
                    for j in range(ir.ShapedType(result.type).rank if shaped else 0):
                        self.join((result, j), (out, j))
        for op in ops:
            for value in (*op.operands, *op.results):
                type_ = value.type
                if not isinstance(type_, ir.ShapedType):
                    continue
                for j in range(type_.rank):
                    if not type_.is_dynamic_dim(j) and (value, j) not in self.summed:
                        self.ask(value, j, int(type_.get_dim_size(j)))

    def find(self, key: _Place) -> _Place:
        """The representative of what goes together with ``key``."""
        while self.parent.get(key, key) != key:
            key = self.parent[key]
        return key

    def join(self, one: _Place, other: _Place) -> None:
        """Say that two have one size."""
        a, b = self.find(one), self.find(other)
        if a != b:
            self.parent[a] = b
            if a in self.known:
                self.known.setdefault(b, self.known[a])

    def ask(self, value: ir.Value, dim: int, size: int) -> None:
        """Say what size a dim has."""
        self.known[self.find((value, dim))] = size

    def size(self, key: _Place) -> int:
        """The size of a dim or a loop."""
        return self.known.get(self.find(key), FREE)

    def type_of(self, value: ir.Value) -> ir.Type | None:
        """A value's type with its sizes; None: they cannot be told."""
        type_ = value.type
        if not isinstance(type_, ir.ShapedType):
            return type_
        sizes = []
        for j in range(type_.rank):
            if (value, j) not in self.summed or not type_.is_dynamic_dim(j):
                static = None if type_.is_dynamic_dim(j) else int(type_.get_dim_size(j))
                sizes.append(static or self.size((value, j)))
                continue
            number, text = self.summed[value, j]
            total = 1
            for term in text.split("+"):
                loop = re.search(r"d(\d+)", term)
                times = re.search(r"(?:^|[\s*])(\d+)(?:$|[\s*])", term)
                if loop is None:
                    return None
                factor = int(times[1]) if times else 1
                total += (self.size((number, int(loop[1]))) - 1) * factor
            sizes.append(total)
        location = ir.Location.unknown(type_.context)
        return ir.RankedTensorType.get(sizes, type_.element_type, loc=location)
