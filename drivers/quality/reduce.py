"""Smaller counterexamples: fewer ops, simpler inputs, with the difference still there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlirules.drivers.iree import compiler, irtypes, npz
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import Steps, finish
from mlirules.drivers.measure import numerics
from mlirules.drivers.quality import torch_reference
from mlirules.drivers.quality.verify import (
    Build,
    Counterexample,
    Reference,
    Settings,
    verify,
)
from mlirules.language import outputs
from mlirules.language.faults import CheckFailed, MlirulesError

Array = npt.NDArray[Any]
#: Rewrites a program as the one at fault was: its text, or what compiles it.
Rewrite = Callable[[str], str | Build]


@dataclass
class Reduced:
    """A reduced counterexample: the program, the inputs, and how many ops were dropped."""

    text: str
    inputs: list[Array]
    ops_before: int
    ops_after: int


def reduce(
    example: Counterexample, rewrite: Rewrite, settings: Settings, *, attempts: int = 40
) -> Reduced:
    """Drop ops, then simplify inputs, as long as the rewritten program still differs.

    Every step is verified by running; at most ``attempts`` programs are compiled.
    """
    left = attempts

    def differs(text: str, inputs: Sequence[Array]) -> bool:
        nonlocal left
        if left <= 0:
            return False
        left -= 1
        try:
            chosen = Settings(
                settings.targets,
                tolerance=settings.tolerance,
                inputs=inputs,
                first=settings.first,
                timeout=settings.timeout,
                stop=True,
                function=example.function,
                isolated=settings.isolated,
                parameters=settings.parameters,
                functions=settings.functions,
            )
            report = verify(text, rewrite(text), chosen)
        except (MlirulesError, CheckFailed):
            return False
        return report.counterexample is not None

    text, inputs = example.text, list(example.inputs)
    before = _count(text)
    text, inputs = _fewer_ops(text, inputs, differs)
    inputs = _simpler(inputs, lambda given: differs(text, given))
    return Reduced(text, inputs, before, _count(text))


def save(folder: Path, reduced: Reduced, example: Counterexample, command: str) -> list[Path]:
    """Write the program, its inputs, and the command that repeats the difference."""
    folder.mkdir(parents=True, exist_ok=True)
    program, arrays, readme = (
        folder / "program.mlir",
        folder / "inputs.npz",
        folder / "repeat.txt",
    )
    outputs.write(program, reduced.text.encode())
    npz.write(arrays, {f"a{i}": a for i, a in enumerate(reduced.inputs)})
    told = json.dumps(example.comparison.as_json(), indent=2)
    outputs.write(readme, f"{command}\n\n{told}\n".encode())
    return [program, arrays, readme]


# ---------------------------------------------------------------- ops

_FREE = ("torch.constant.", "torch.prim.ListConstruct", "torch.vtensor.literal")


def _body(module: ir.Module) -> ir.Block:
    return module.body.operations[0].operation.regions[0].blocks[0]


def _count(text: str) -> int:
    module = compiler.parse(text)
    return len(list(_body(module).operations)) - 1


def _fewer_ops(
    text: str, inputs: list[Array], differs: Callable[[str, Sequence[Array]], bool]
) -> tuple[str, list[Array]]:
    """The smallest run of ops, ending at the first whose value differs, that still differs."""
    module = compiler.parse(text)
    if len(list(module.body.operations)) != 1:
        return text, inputs
    ops = [o.operation for o in _body(module).operations][:-1]
    real = [op for op in ops if not op.name.startswith(_FREE) and _tensors(op)]
    if len(real) <= 1:
        return text, inputs
    # The first op whose value differs: everything up to an op, by bisection over the ops.
    low, high = 0, len(real) - 1
    whole = {op: n for n, op in enumerate(ops)}
    if not differs(piece(text, 0, whole[real[high]])[0], inputs):
        return text, inputs  # it takes several results to see it
    while low < high:
        middle = (low + high) // 2
        if differs(piece(text, 0, whole[real[middle]])[0], inputs):
            high = middle
        else:
            low = middle + 1
    end = whole[real[low]]
    best = (piece(text, 0, end)[0], inputs)
    # And as few ops before it as it takes, with the values that come from further up given.
    for back in (0, 1, 2, 4, 8):
        if back >= low:
            break
        start = whole[real[low - back]]
        try:
            smaller, outer = piece(text, start, end)
            given = _values(text, outer, inputs)
        except MlirulesError:
            continue
        if differs(smaller, given):
            return smaller, given
    return best


def _tensors(op: ir.Operation) -> list[ir.OpResult]:
    return [v for v in op.results if irtypes.is_value_tensor(v.type)]


def piece(text: str, start: int, end: int) -> tuple[str, list[tuple[int, int]]]:
    """Ops ``start`` to ``end`` of a program's function as a program that returns the last ones.

    Also returns where the arguments come from: (op, result), or (-1, argument of the function).
    Constants and what only ops of the piece need are taken along.
    """
    module = compiler.parse(text)
    function = module.body.operations[0].operation
    block = _body(module)
    ops = [o.operation for o in block.operations]
    place = {op: n for n, op in enumerate(ops)}
    wanted: set[int] = set()
    outer: dict[ir.Value, tuple[int, int]] = {}

    def take(n: int) -> Steps:
        if n in wanted:
            return
        wanted.add(n)
        for value in ops[n].operands:
            owner = value.owner
            if isinstance(owner, ir.Block):
                outer.setdefault(value, (-1, ir.BlockArgument(value).arg_number))
                continue
            at = place[owner.operation]
            tensor = irtypes.is_value_tensor(value.type)
            if at >= start or not tensor or ops[at].name.startswith(_FREE):
                yield take(at)
            else:
                outer.setdefault(value, (at, ir.OpResult(value).result_number))

    finish(take(end))
    if start == 0:  # the arguments stay as they are, used or not
        outer = {v: (-1, n) for n, v in enumerate(block.arguments)}
    results = _tensors(ops[end])
    types = [v.type for v in outer]
    context = module.context
    with context, ir.Location.unknown(context):
        made = ir.Module.parse("module {}", context)
        name = ir.StringAttr(function.attributes["sym_name"])
        signature = ir.FunctionType.get(types, [v.type for v in results])
        new = ir.Operation.create(
            "func.func",
            regions=1,
            ip=ir.InsertionPoint(made.body),
            attributes={"sym_name": name, "function_type": ir.TypeAttr.get(signature)},
        )
        body = new.regions[0].blocks.append(*types, arg_locs=[ir.Location.unknown()] * len(types))
        mapped: dict[ir.Value, ir.Value] = dict(zip(outer, body.arguments, strict=True))
        ip = ir.InsertionPoint(body)
        for n in sorted(wanted):
            copy = ops[n].clone(ip)
            for k, value in enumerate(ops[n].operands):
                copy.operands[k] = mapped[value]
            mapped.update(zip(ops[n].results, copy.results, strict=True))
        ir.Operation.create("func.return", operands=[mapped[v] for v in results], ip=ip)
    at = text.rfind("{-#")
    printed = str(made.operation.get_asm())
    if "dense_resource<" in printed and at >= 0 and "{-#" not in printed:
        printed += "\n" + text[at:]
    return printed, list(outer.values())


def _values(text: str, wanted: list[tuple[int, int]], inputs: Sequence[Array]) -> list[Array]:
    """Values in the middle of a program, by the reference."""
    out = []
    for op, index in wanted:
        if op < 0:
            out.append(np.asarray(inputs[index]))
            continue
        upto, _ = piece(text, 0, op)
        order = "torch" if torch_reference.available() is None else "compiler"
        name, _ = numerics.signature(upto)
        _, results = Reference(upto, first=order).results(name, inputs)
        out.append(np.asarray(results[index]))
    return out


# ---------------------------------------------------------------- inputs


def _simpler(inputs: list[Array], differs: Callable[[Sequence[Array]], bool]) -> list[Array]:
    """Inputs with as much set to 0 or 1 as leaves the difference."""
    for n in range(len(inputs)):
        for value in (0, 1):
            plain = np.full_like(inputs[n], value)
            trial = [*inputs[:n], plain, *inputs[n + 1 :]]
            if not np.array_equal(plain, inputs[n]) and differs(trial):
                inputs = trial
                break
        else:
            inputs = _halves(inputs, n, differs)
    return inputs


def _halves(inputs: list[Array], n: int, differs: Callable[[Sequence[Array]], bool]) -> list[Array]:
    """One input with ever smaller stretches set to 0."""
    size = inputs[n].size
    step = size // 2
    while step >= max(1, size // 8):
        for start in range(0, size, step):
            trial = np.array(inputs[n], order="C")
            trial.reshape(-1)[start : start + step] = 0
            if trial.tobytes() == np.ascontiguousarray(inputs[n]).tobytes():
                continue
            if differs([*inputs[:n], trial, *inputs[n + 1 :]]):
                inputs = [*inputs[:n], trial, *inputs[n + 1 :]]
        step //= 2
    return inputs
