"""Example programs for config rules: the smallest op that a rule is for, and one beside it.

An op whose neighbouring loops go together in every operand would be collapsed on its way to where
configurations are chosen. Such an op stands in a dispatch of its own, which is left as it is.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from mlirules.drivers.tuning_specs.named import named_tests
from mlirules.language.config.model import ConfigTest, plain
from mlirules.language.config.op import ConfigRule
from mlirules.language.typetexts import builtin_type

#: The size of a dim that a rule does not limit.
FREE = 32

ATTENTION = "iree_linalg_ext.online_attention"


def example_tests(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A positive and a negative test of a rule that is given as plain data; empty when none fit."""
    match = data["match"]
    if match["op"] == "generic":
        return []
    if match["op"] == "operation":
        return _attention_tests(match) if match["name"] == ATTENTION else named_tests(match)
    loops = _loops(match)
    dims = {loop: _size(match.get("dims", {}).get(loop)) for loop in loops}
    tests = [{"name": "an op that the entry is for", "input": program(match, dims)}]
    for loop, limit in match.get("dims", {}).items():
        other = _outside(limit, dims[loop])
        if other is not None:
            beside = {**dims, loop: other}
            tests.append(
                {
                    "name": f"another size of {loop}",
                    "unchanged": program(match, beside),
                    "because": f"dims.{loop}",
                }
            )
            return tests
    name = next(iter(match["types"]))
    other_type = "bf16" if match["types"][name] == "f16" else "f16"
    types = {n: other_type if n == name else t for n, t in match["types"].items()}
    if match["op"] == "attention":  # its operands have one type
        types = {n: "bf16" if t == "f16" else "f16" for n, t in match["types"].items()}
    tests.append(
        {
            "name": "other element types",
            "unchanged": program({**match, "types": types}, dims),
            "because": f"types.{name}",
        }
    )
    return tests


def with_examples(rule: ConfigRule) -> ConfigRule:
    """A rule with example tests where it has none; with none where no program is known."""
    if rule.tests:
        return rule
    tests = [ConfigTest.model_validate(test) for test in example_tests(plain(rule.doc))]
    return replace(rule, doc=rule.doc.model_copy(update={"tests": tests}))


def _size(limit: Any) -> int:
    """The smallest handy size within a limit."""
    if limit is None:
        return FREE
    if isinstance(limit, int):
        return limit
    step = limit.get("multiple_of") or 1
    low = max(limit.get("min") or 1, min(FREE, limit.get("max") or FREE))
    size = -(-low // step) * step
    high = limit.get("max")
    return size if high is None or size <= high else -(-(limit.get("min") or 1) // step) * step


def _outside(limit: Any, inside: int) -> int | None:
    """A size that a limit excludes."""
    for size in (2 * inside, inside + 1, inside - 1, inside // 2):
        if size < 1:
            continue
        if isinstance(limit, int):
            if size != limit:
                return size
        elif (
            size < (limit.get("min") or 1)
            or size > (limit.get("max") or size)
            or size % (limit.get("multiple_of") or 1)
        ):
            return size
    return None


_ACCESS = re.compile(r"(\w+)\[([^\]]*)\]")


def _accesses(compute: str) -> list[tuple[str, list[str]]]:
    """Operands with their indices: the inputs first, the result last."""
    found = [
        (m[1], [i.strip() for i in m[2].split(",") if i.strip()]) for m in _ACCESS.finditer(compute)
    ]
    return [*{name: (name, items) for name, items in found[1:]}.values(), found[0]]


def _loops(match: Mapping[str, Any]) -> list[str]:
    if match.get("loops"):
        return list(match["loops"])
    *inputs, out = _accesses(match["compute"])
    words = [w for _, items in (out, *inputs) for i in items for w in _names(i)]
    return list(dict.fromkeys(words))


def _names(index: str) -> list[str]:
    return re.findall(r"[A-Za-z_]\w*", index)


def _extent(index: str, dims: Mapping[str, int]) -> int:
    """How many elements an index reaches."""
    total = 1
    for term in index.split("+"):
        names = _names(term)
        factor = next((int(n) for n in re.findall(r"(?<![\w])\d+(?![\w])", term)), 1)
        total += sum((dims[n] - 1) * factor for n in names)
    return total


def program(match: Mapping[str, Any], dims: Mapping[str, int]) -> str:
    """A function that computes what a rule matches, for given sizes of the loops.

    For contractions, convolutions and attention. ``match`` is the rule's as plain data.
    """
    *inputs, out = _accesses(match["compute"])
    loops = _loops(match)
    types: dict[str, str] = dict(match["types"])
    shapes = {name: [_extent(i, dims) for i in items] for name, items in (*inputs, out)}
    tensors = {
        name: f"tensor<{''.join(f'{n}x' for n in shape)}{types[name]}>"
        for name, shape in shapes.items()
    }
    maps = [
        f"affine_map<({', '.join(loops)}) -> ({', '.join(items)})>" for _, items in (*inputs, out)
    ]
    if match["op"] == "attention":
        return _attention(loops, inputs, out, types, tensors, maps)
    element = types[out[0]]
    reduced = {loop for loop in loops if not any(loop in _names(i) for i in out[1])}
    kinds = ['"reduction"' if loop in reduced else '"parallel"' for loop in loops]
    zero = "0.0" if "f" in element else "0"
    body, values = [], []
    for name, _ in inputs:
        value = f"%x{name}"
        if types[name] != element:
            cast = "arith.extf" if "f" in types[name] else "arith.extsi"
            body.append(f"%w{name} = {cast} {value} : {types[name]} to {element}")
            value = f"%w{name}"
        values.append(value)
    kind = "f" if "f" in element else "i"
    result = tensors[out[0]]
    block = ", ".join([f"%x{n}: {types[n]}" for n, _ in inputs] + [f"%acc: {element}"])
    lines = [
        f"%zero = arith.constant {zero} : {element}",
        f"%empty = tensor.empty() : {result}",
        f"%init = linalg.fill ins(%zero : {element}) outs(%empty : {result}) -> {result}",
        f"%r = linalg.generic {{indexing_maps = [{', '.join(maps)}], "
        f"iterator_types = [{', '.join(kinds)}]}} "
        f"ins({', '.join(f'%arg_{n}' for n, _ in inputs)} : "
        f"{', '.join(tensors[n] for n, _ in inputs)}) outs(%init : {result}) {{",
        f"^bb0({block}):",
        *(f"  {line}" for line in body),
        f"  %p = arith.mul{kind} {values[0]}, {values[1]} : {element}",
        f"  %s = arith.add{kind} %acc, %p : {element}",
        f"  linalg.yield %s : {element}",
        f"}} -> {result}",
    ]
    alone = _collapses(loops, reduced, [items for _, items in (*inputs, out)])
    given = {f"arg_{name}": tensors[name] for name, _ in inputs}
    return _function(lines, given, result, alone)


def _attention(
    loops: Sequence[str],
    inputs: Sequence[tuple[str, list[str]]],
    out: tuple[str, list[str]],
    types: Mapping[str, str],
    tensors: Mapping[str, str],
    maps: Sequence[str],
) -> str:
    """An attention; its results have the queries' type, as programs have it."""
    query = types[inputs[0][0]]
    result = tensors[out[0]].removesuffix(f"{types[out[0]]}>") + f"{query}>"
    scale = f"affine_map<({', '.join(loops)}) -> ()>"
    every = [*maps[:3], scale, *maps[3:]]
    names = [f"%arg_{name}" for name, _ in inputs]
    given = {f"arg_{name}": tensors[name] for name, _ in inputs}
    shown = list(given.values())
    lines = [
        f"%scale = arith.constant 0.125 : {query}",
        f"%empty = tensor.empty() : {result}",
        f"%r = iree_linalg_ext.attention <{{indexing_maps = [{', '.join(every)}]}}> "
        f"ins({', '.join([*names[:3], '%scale', *names[3:]])} : "
        f"{', '.join([*shown[:3], query, *shown[3:]])}) outs(%empty : {result}) {{",
        "^bb0(%score: f32):",
        "  iree_linalg_ext.yield %score : f32",
        f"}} -> {result}",
    ]
    reduced = {loop for loop in loops if not any(loop in _names(i) for i in out[1])}
    alone = _collapses(loops, reduced, [items for _, items in (*inputs, out)])
    return _function(lines, given, result, alone)


def _collapses(loops: Sequence[str], reduced: Set[str], operands: Sequence[Sequence[str]]) -> bool:
    """Whether some neighbouring loops are of one kind and go together in every operand."""
    for one, two in itertools.pairwise(loops):
        if (one in reduced) == (two in reduced) and all(
            (one not in items and two not in items)
            or (one in items and items[items.index(one) + 1 : items.index(one) + 2] == [two])
            for items in map(list, operands)
        ):
            return True
    return False


def _function(lines: Sequence[str], inputs: Mapping[str, str], result: str, alone: bool) -> str:
    """A function around lines that compute ``%r``; ``alone``: in a dispatch of their own."""
    arguments = ", ".join(f"%{name}: {type_}" for name, type_ in inputs.items())
    body = _dispatch(lines, inputs, result) if alone else list(lines)
    returned = "%whole" if alone else "%r"
    return (
        "\n".join(
            [
                f"func.func @example({arguments}) -> {result} {{",
                *(f"  {line}" for line in body),
                f"  return {returned} : {result}",
                "}",
            ]
        )
        + "\n"
    )


def _dispatch(lines: Sequence[str], inputs: Mapping[str, str], result: str) -> list[str]:
    def held(type_: str, access: str) -> str:
        return f"!iree_tensor_ext.dispatch.tensor<{access}:{type_}>"

    def whole(type_: str) -> str:
        tensor = builtin_type(type_)
        sizes = [] if tensor is None else [str(size) for size in tensor.sizes]
        return (
            f"offsets = [{', '.join('0' for _ in sizes)}], sizes = [{', '.join(sizes)}], "
            f"strides = [{', '.join('1' for _ in sizes)}]"
        )

    blocks = [f"%in_{name}: {held(t, 'readonly')}" for name, t in inputs.items()]
    blocks.append(f"%out: {held(result, 'writeonly')}")
    loads = [
        f"%{name}_whole = iree_tensor_ext.dispatch.tensor.load %in_{name}, {whole(t)} : "
        f"{held(t, 'readonly')} -> {t}"
        for name, t in inputs.items()
    ]
    # What stands inside may not use the function's own values.
    inside = [
        re.sub(r"(?<=[(, ])%(" + "|".join(inputs) + r")(?=[,) ])", r"%\1_whole", line)
        for line in lines
    ]
    return [
        f"%whole = flow.dispatch.workgroups({', '.join('%' + n for n in inputs)}) : "
        f"({', '.join(inputs.values())}) -> {result} =",
        f"    ({', '.join(blocks)}) {{",
        *(f"  {line}" for line in (*loads, *inside)),
        f"  iree_tensor_ext.dispatch.tensor.store %r, %out, {whole(result)} : {result} -> "
        f"{held(result, 'writeonly')}",
        "  flow.return",
        "} count() -> (index, index, index) {",
        "  %count_x, %count_y, %count_z = iree_tensor_ext.dispatch.workgroup_count_from_slice()",
        "  flow.return %count_x, %count_y, %count_z : index, index, index",
        "}",
    ]


def _attention_tests(match: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tests of a rule that goes by the name of attention."""
    given = list(match.get("operands") or [])
    first = builtin_type(given[0] or "") if given else None
    if first is None or not first.sizes:
        return []
    sizes = [size or 0 for size in first.sizes]
    batch = [f"b{i}" for i in range(len(sizes) - 2)]
    lead = ", ".join(batch) + ", " if batch else ""
    compute = f"o[{lead}m, n] = attention(q[{lead}m, k1], k[{lead}k2, k1], v[{lead}n, k2])"
    dims = dict(zip([*batch, "m", "k1"], [s or 2 for s in sizes], strict=True))
    dims |= {loop: 64 for loop, s in zip(("m", "k1"), sizes[-2:], strict=True) if not s}
    if not sizes[-2]:
        dims["m"] = 128
    dims |= {"n": 64, "k2": 64}
    loops = [*batch, "m", "n", "k1", "k2"]
    tests = []
    for element, key in ((first.element, "input"), ("bf16", "unchanged")):
        shown = {
            "op": "attention",
            "compute": compute,
            "loops": loops,
            "types": dict.fromkeys("qkvo", element),
        }
        tests.append({"name": f"attention of {element}", key: program(shown, dims)})
    tests[1]["because"] = "operands.0"
    return tests
