"""The ways in which one computation can be spelt as a structured op, with dynamic sizes.

What is made here are candidates: whoever asks judges each of them with the driver's matcher.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import EXECUTABLES, ops_below
from mlirules.generator.lowering.lower import lower
from mlirules.generator.lowering.values import LoweringError
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.nomatch import NoMatch
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression
from mlirules.language.rule import STRUCTURED_OPS, Line, Rule
from mlirules.language.values import DType, Dyn, Tensor, dtype_named

__all__ = [
    "MAX_LOOPS",
    "MAX_PARALLEL_LOOPS",
    "PACK_RANKS",
    "environments",
    "ops_of",
    "root_of",
    "spellings",
]

#: Computations with more loops are written out with the loops in the equation's order only.
MAX_LOOPS = 4
#: The same for computations without a reduction: there IREE keeps the loops in the result's order.
MAX_PARALLEL_LOOPS = 2
#: Ranks that a pack (``S...``) is written out for.
PACK_RANKS = (1, 2, 3, 4)

_ELEMENTS = ("f16", "bf16", "f32", "f64", "si8", "si16", "si32", "si64", "i1")
_COMMUTE = frozenset(
    [
        "arith.addf",
        "arith.mulf",
        "arith.addi",
        "arith.muli",
        "arith.maximumf",
        "arith.minimumf",
        "arith.maxnumf",
        "arith.minnumf",
        "arith.maxsi",
        "arith.minsi",
        "arith.maxui",
        "arith.minui",
        "arith.andi",
        "arith.ori",
        "arith.xori",
    ]
)


_CLOSED = ("linalg.", *EXECUTABLES)


def ops_of(operation: ir.Operation) -> Iterator[ir.Operation]:
    """The ops inside an op, except those in bodies of structured ops and of executables."""
    return ops_below(operation, lambda op: not op.name.startswith(_CLOSED))


def root_of(module: ir.Module) -> ir.Operation | None:
    """The last structured op of a candidate."""
    found = None
    for op in ops_of(module.operation):
        if op.name in STRUCTURED_OPS:
            found = op
    return found


def environments(rule: Rule) -> Iterator[dict[str, object]]:
    """Every element type and pack rank that the rule's types leave open, with dynamic dims."""
    elements = list(
        dict.fromkeys(
            d.element
            for _, d in rule.types.values()
            if d.element and dtype_named(d.element) is None and dtype_named("s" + d.element) is None
        )
    )
    packs = list(
        dict.fromkeys(
            str(d.value or "...")
            for _, decl in rule.types.values()
            for d in decl.dims or ()
            if d.pack
        )
    )
    for chosen in itertools.product(_ELEMENTS, repeat=len(elements)):
        types = {e: dtype_named(c) for e, c in zip(elements, chosen, strict=True)}
        for ranks in itertools.product(PACK_RANKS, repeat=len(packs)):
            env: dict[str, object] = dict(types)
            for pack, rank in zip(packs, ranks, strict=True):
                env[f"{pack}..."] = rank
            yield env


def _tensor(rule: Rule, name: str, env: dict[str, Any]) -> Tensor | None:
    if name not in rule.types:
        return None
    decl = rule.types[name][1]
    if decl.kind != "tensor" or decl.dims is None or decl.element is None:
        return None
    dims: list[Any] = []
    for dim in decl.dims:
        if isinstance(dim.value, int):
            dims.append(dim.value)
        else:
            count = env[f"{dim.value or '...'}..."] if dim.pack else 1
            dims += [None] * count
    dtype = env.get(decl.element) or dtype_named(decl.element) or dtype_named("s" + decl.element)
    if not isinstance(dtype, DType):
        return None
    return Tensor(
        name,
        tuple(Dyn("dim", (name, i)) if d is None else d for i, d in enumerate(dims)),
        dtype,
        False,
    )


def spellings(
    rule: Rule, line: Line, equation: ast.IndexEquation, env: dict[str, object], context: ir.Context
) -> Iterator[ir.Module]:
    """Modules whose last structured op may compute the equation: candidates, to be judged."""
    reads = list(
        dict.fromkeys(
            n.base.id
            for n in walk_expression(equation.value)
            if isinstance(n, ast.Access) and isinstance(n.base, ast.Name)
        )
    )
    tensors = {}
    for name in [*reads, equation.target]:
        tensor = _tensor(rule, name, env)
        if tensor is None:
            at = rule.types[name][0] if name in rule.types else line
            raise MlirulesError(
                Fault(
                    at.span,
                    "not-in-transform",
                    f"the type of {name} must give its dims and its element type",
                )
            )
        tensors[name] = tensor
    canonical = _canonical(rule, line, equation, env, tensors, context)
    if canonical is not None:
        yield canonical
    yield from _named_forms(
        [tensors[r] for r in reads], tensors[equation.target], equation, context
    )
    if canonical is not None:
        yield from _generic_forms(str(canonical), context)


def _canonical(
    rule: Rule,
    line: Line,
    equation: ast.IndexEquation,
    env: dict[str, Any],
    tensors: dict[str, Tensor],
    context: ir.Context,
) -> ir.Module | None:
    """The equation as a rewrite would lower it."""
    known: dict[str, object] = {k: v for k, v in env.items() if not k.endswith("...")}
    for name, tensor in tensors.items():
        if name == equation.target:
            continue
        known[name] = tensor
        at = iter(tensor.dims or ())
        for dim in rule.types[name][1].dims or ():
            if dim.pack:
                items = [next(at) for _ in range(env[f"{dim.value or '...'}..."])]
                known.setdefault(str(dim.value), items)
            else:
                value = next(at)
                if isinstance(dim.value, str):
                    known.setdefault(dim.value, value)
    target = tensors[equation.target]
    fake = replace(rule, rewrite=[(line, equation)])
    try:
        lowered = lower(fake, known, [(equation.target, target, target.builtin_type())])
        return compiler.parse(lowered.text, "<spelling>", context)
    except (NoMatch, LoweringError, MlirulesError):
        return None


def _named_forms(
    reads: list[Tensor], target: Tensor, equation: ast.IndexEquation, context: ir.Context
) -> Iterator[ir.Module]:
    """Named ops over the equation's tensors, in either order; most compute something else."""
    if equation.op not in ("=", "+="):
        return
    assert target.dtype is not None
    out, element = target.builtin_type(), target.dtype.mlir
    zero = "0.0" if target.dtype.is_float else ("false" if element == "i1" else "0")
    number = f"{zero} : {element}" if element != "i1" else zero
    for op in STRUCTURED_OPS:
        if op in ("linalg.generic", "linalg.elementwise", "linalg.contract"):
            continue
        for order in itertools.permutations(reads):
            args = ", ".join(f"%a{i}: {t.builtin_type()}" for i, t in enumerate(order))
            names = ", ".join(f"%a{i}" for i in range(len(order)))
            types = ", ".join(t.builtin_type() for t in order)
            init, fill = "%init", ""
            if equation.op == "+=":
                init = "%f"
                fill = (
                    f"  %z = arith.constant {number}\n"
                    f"  %f = linalg.fill ins(%z : {element}) outs(%init : {out}) -> {out}\n"
                )
            text = (
                f"func.func @f({args}, %init: {out}) -> {out} {{\n{fill}"
                f"  %r = {op} ins({names} : {types}) outs({init} : {out}) -> {out}\n"
                f"  return %r : {out}\n}}\n"
            )
            try:
                yield compiler.parse(text, "<spelling>", context)
            except MlirulesError:
                continue


def _generic_forms(text: str, context: ir.Context) -> Iterator[ir.Module]:
    """The computation of a module's last op as ``linalg.generic``, in every order."""
    generic = _generalized(text, context)
    if generic is None:
        return
    held = compiler.parse(generic, "<spelling>", context)  # an op does not keep its module alive
    op = root_of(held)
    assert op is not None  # the generic
    loops = len(ir.ArrayAttr(op.attributes["iterator_types"]))
    inputs = len(op.operands) - 1
    commuting = sum(1 for o in op.regions[0].blocks[0].operations if o.operation.name in _COMMUTE)
    orders: Iterator[tuple[int, ...]] = itertools.permutations(range(loops))
    if loops > (MAX_LOOPS if "reduction" in generic else MAX_PARALLEL_LOOPS):
        orders = iter([tuple(range(loops))])
    for order in orders:
        for operands in itertools.permutations(range(inputs)):
            for swaps in itertools.product((False, True), repeat=min(commuting, 4)):
                copy = compiler.parse(generic, "<spelling>", context)
                spelt = root_of(copy)
                assert spelt is not None
                _respell(spelt, order, operands, swaps)
                yield copy
                if inputs == 2 and not any(swaps):
                    yield from _with_maps(copy, context)


def _generalized(text: str, context: ir.Context) -> str | None:
    """A module with its last structured op as a generic (what it starts from stays as it is)."""
    module = compiler.parse(text, "<spelling>", context)
    op = root_of(module)
    if op is None:
        return None
    if op.name != "linalg.generic":
        other = compiler.parse(text, "<spelling>", context)
        compiler.run_passes(other, "builtin.module(func.func(linalg-generalize-named-ops))")
        source = root_of(other)
        if source is None or source.name != "linalg.generic":
            return None
        new = source.clone(ir.InsertionPoint(op))
        for i, value in enumerate(op.operands):
            new.operands[i] = value
        op.results[0].replace_all_uses_with(new.results[0])
        op.erase()
    return str(module)


def _with_maps(module: ir.Module, context: ir.Context) -> Iterator[ir.Module]:
    """A generic over two inputs as the named products that take indexing maps."""
    op = root_of(module)
    assert op is not None  # the generic
    maps = str(op.attributes["indexing_maps"])
    function = module.body.operations[0]
    for name in ("linalg.matmul", "linalg.batch_matmul", "linalg.contract"):
        a, b, init = (str(v.type) for v in op.operands)
        rows = function.operation.get_asm(use_local_scope=True)
        found = re.search(r"%\w+ = linalg\.generic.*?ins\((.*?) :.*?outs\((\S+) :", rows)
        tail = re.search(r"^  \} -> .*?$", rows, re.MULTILINE)
        if found is None or tail is None:
            return
        result = rows[found.start() :].split(" ", 1)[0]
        spelt = (
            f"{result} = {name} indexing_maps = {maps} ins({found[1]} : {a}, {b}) "
            f"outs({found[2]} : {init}) -> {op.results[0].type}"
        )
        try:
            yield compiler.parse(
                rows[: found.start()] + spelt + rows[tail.end() :], "<spelling>", context
            )
        except MlirulesError:
            continue


def _respell(
    op: ir.Operation, order: tuple[int, ...], operands: tuple[int, ...], swaps: tuple[bool, ...]
) -> None:
    """Another spelling of a generic, in place: loops, inputs and commuting operands reordered."""
    place = {old: new for new, old in enumerate(order)}
    with op.context:
        count = len(order)
        renamed = ir.AffineMap.get(count, 0, [ir.AffineDimExpr.get(place[d]) for d in range(count)])
        maps = []
        for attribute in ir.ArrayAttr(op.attributes["indexing_maps"]):
            found = ir.AffineMapAttr(attribute).value
            results = [e.compose(renamed) for e in found.results]
            maps.append(ir.AffineMapAttr.get(ir.AffineMap.get(count, 0, results)))
        kinds = list(ir.ArrayAttr(op.attributes["iterator_types"]))
        op.attributes["iterator_types"] = ir.ArrayAttr.get([kinds[d] for d in order])
        op.attributes["indexing_maps"] = ir.ArrayAttr.get(
            [maps[i] for i in operands] + maps[len(operands) :]
        )
        values = list(op.operands)
        for new, old in enumerate(operands):
            op.operands[new] = values[old]
        block = op.regions[0].blocks[0]
        arguments = list(block.arguments)
        moved: dict[ir.Value, ir.Value] = {
            arguments[old]: arguments[new] for new, old in enumerate(operands)
        }
        number = 0
        for inner in block.operations:
            body = inner.operation
            held = [moved.get(v, v) for v in body.operands]
            if body.name == "linalg.index":
                dim = ir.IntegerAttr(body.attributes["dim"])
                body.attributes["dim"] = ir.IntegerAttr.get(dim.type, place[dim.value])
            if body.name in _COMMUTE:
                if number < len(swaps) and swaps[number]:
                    held.reverse()
                number += 1
            for i, value in enumerate(held):
                body.operands[i] = value
