"""Inputs of a kernel that lie in another order for it than in the program: ``reorder:``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mlirules.generator.lowering.spelling import float_text
from mlirules.language.evaluate import Evaluator
from mlirules.language.nomatch import NoMatch
from mlirules.language.notation import ast
from mlirules.language.operands import Refused, describe, truth
from mlirules.language.rule import Line, Variant
from mlirules.language.values import DType, Tensor

#: What whole numbers multiplied by a matrix are held in.
_WHOLE = DType("si16")


@dataclass(frozen=True)
class Order:
    """The dims that a tensor's numbers are seen with, and in which order of these they then lie."""

    view: tuple[int, ...]
    permute: tuple[int, ...]
    #: What the numbers are multiplied by along dims of the view, a row for each new place.
    along: Mapping[int, list[list[float]]] = field(default_factory=dict)
    #: The zeros that follow along the tensor's own dims; empty: none.
    pad: tuple[int, ...] = ()

    def of(self, tensor: Tensor) -> Tensor:
        """The tensor as the kernel reads it."""
        sizes = [len(self.along[n]) if n in self.along else d for n, d in enumerate(self.view)]
        made = replace(tensor, dims=tuple(sizes[n] for n in self.permute))
        whole = self.along and made.dtype is not None and made.dtype.is_int
        return replace(made, dtype=_WHOLE) if whole else made

    def put(self, tensor: Tensor, held: str, emit: Callable[[str], str]) -> str:
        """What puts ``held``, of the tensor's own type, in order; the name of the result."""
        if any(self.pad):
            held, tensor = _padded(held, tensor, self.pad, emit)
        flat, seen, made = (
            replace(found, torch=False).builtin_type()
            for found in (
                replace(tensor, dims=(math.prod(self.view),)),
                replace(tensor, dims=self.view),
                self.of(tensor),
            )
        )
        if tensor.rank != 1:
            every = list(range(tensor.rank))
            own = replace(tensor, torch=False).builtin_type()
            held = emit(f"tensor.collapse_shape {held} [{every}] : {own} into {flat}")
        if len(self.view) != 1:
            every, sizes = list(range(len(self.view))), list(self.view)
            held = emit(
                f"tensor.expand_shape {held} [{every}] output_shape {sizes} : {flat} into {seen}"
            )
        for axis, matrix in self.along.items():
            held, seen = _multiplied(held, seen, axis, matrix, emit)
        into = emit(f"tensor.empty() : {made}")
        return emit(
            f"linalg.transpose ins({held} : {seen}) outs({into} : {made}) "
            f"permutation = {list(self.permute)}"
        )


def _padded(
    held: str, tensor: Tensor, pad: tuple[int, ...], emit: Callable[[str], str]
) -> tuple[str, Tensor]:
    """``held`` with zeros behind along its dims: the result's name, and what it is."""
    sizes = [d for d in tensor.dims or () if isinstance(d, int)]
    dims = tuple(d + more for d, more in zip(sizes, pad, strict=True))
    made = replace(tensor, dims=dims)
    before, after = (replace(found, torch=False).builtin_type() for found in (tensor, made))
    element = before.removesuffix(">").rsplit("x", 1)[-1]
    zero = emit(f"arith.constant {'0.0' if 'f' in element else '0'} : {element}")
    indices = ", ".join(f"%mlirules_{n}: index" for n in range(len(pad)))
    return emit(
        f"tensor.pad {held} low[{', '.join('0' for _ in pad)}] high[{', '.join(map(str, pad))}] {{ "
        f"^bb0({indices}): tensor.yield {zero} : {element} }} : {before} to {after}"
    ), made


def _multiplied(
    held: str, type_: str, axis: int, matrix: list[list[float]], emit: Callable[[str], str]
) -> tuple[str, str]:
    """``held`` times a matrix along one of its dims: the result's name and type.

    Bytes become numbers of 16 bits, which hold what they are multiplied by (:func:`_whole_fits`).
    """
    *sizes, element = type_.removeprefix("tensor<").removesuffix(">").split("x")
    sort, wide = ("f", element) if element == "f32" else ("i", _WHOLE.mlir)
    made = f"tensor<{'x'.join([*sizes[:axis], str(len(matrix)), *sizes[axis + 1 :]])}x{wide}>"
    kind = f"tensor<{len(matrix)}x{len(matrix[0])}x{wide}>"
    said: Callable[[float], str] = (
        (lambda n: float_text(float(n))) if sort == "f" else (lambda n: str(int(n)))
    )
    rows = ", ".join(f"[{', '.join(said(n) for n in row)}]" for row in matrix)
    by = emit(f"arith.constant dense<[{rows}]> : {kind}")
    into = emit(f"arith.constant dense<{said(0)}> : {made}")
    outer = [f"d{n}" for n in range(len(sizes))]
    read = [*outer[:axis], "k", *outer[axis + 1 :]]
    loops = f"({', '.join([*outer, 'k'])})"
    maps = ", ".join(
        f"affine_map<{loops} -> ({', '.join(at)})>" for at in (read, [outer[axis], "k"], outer)
    )
    kinds = ", ".join(['"parallel"'] * len(sizes) + ['"reduction"'])
    widened = (
        "" if element == wide else f"%mlirules_w = arith.extsi %mlirules_a : {element} to {wide} "
    )
    factor = "%mlirules_w" if widened else "%mlirules_a"
    return emit(
        f"linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}} "
        f"ins({held}, {by} : {type_}, {kind}) outs({into} : {made}) {{ "
        f"^bb0(%mlirules_a: {element}, %mlirules_b: {wide}, %mlirules_c: {wide}): {widened}"
        f"%mlirules_p = arith.mul{sort} {factor}, %mlirules_b : {wide} "
        f"%mlirules_q = arith.add{sort} %mlirules_c, %mlirules_p : {wide} "
        f"linalg.yield %mlirules_q : {wide} }} -> {made}"
    ), made


def _whole_fits(along: Mapping[int, list[list[float]]]) -> bool:
    """Whether signed bytes multiplied by these matrices are whole numbers of 16 bits."""
    numbers = [n for matrix in along.values() for row in matrix for n in row]
    most = math.prod(max(sum(map(abs, row)) for row in matrix) for matrix in along.values())
    return all(float(n).is_integer() for n in numbers) and 128 * most < 2**15


def value_of(
    line: Line,
    expr: ast.Expr,
    env: dict[str, Any],
    read: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """What an expression of a variant is for a match. Raises :class:`NoMatch` at its line."""
    try:
        return read(Evaluator(env).eval(expr))
    except Refused as refused:
        raise NoMatch(line, refused.message, expected=str(line), node=refused.node) from None


def fixed_sizes(
    rows: list[tuple[Line, ast.Expr]], env: dict[str, Any], what: str, least: int = 1
) -> list[int]:
    """The dims of ``what``. Raises :class:`NoMatch` at one known only at run time."""
    sizes = []
    for line, expr in rows:
        size = value_of(line, expr, env)
        if not isinstance(size, int) or isinstance(size, bool) or size < least:
            raise NoMatch(
                line,
                f"{line} is {describe(size)}: {what} has dims known when the kernel is compiled",
                expected=f"a number from {least} up",
                found=describe(size),
            )
        sizes.append(size)
    return sizes


def orders(variant: Variant, env: dict[str, Any]) -> dict[str, Order]:
    """The inputs that lie in another order for the kernel. Raises :class:`NoMatch`."""
    found = {}
    for name, order in variant.reorder.items():
        holds = order.when
        if isinstance(holds, tuple):
            line, expr = holds
            holds = value_of(line, expr, env, truth)
        if not holds:
            continue
        sizes = fixed_sizes(order.view, env, "what is put in order")
        tensor = env[name]
        pad = fixed_sizes(order.pad, env, "what is put in order", 0)
        if pad and len(pad) != tensor.rank:
            raise NoMatch(
                order.pad[0][0],
                f"zeros along {len(pad)} dims, and {name} is {describe(tensor)}",
                expected=f"a number for each dim of {name}",
                found=str(len(pad)),
            )
        more = pad or [0] * tensor.rank
        own = [d + n if isinstance(d, int) else 0 for d, n in zip(tensor.dims, more, strict=True)]
        if math.prod(own) != math.prod(sizes):
            shown = " x ".join(map(str, sizes))
            raise NoMatch(
                order.view[0][0],
                f"{shown} are {math.prod(sizes)} numbers, and {name} is {describe(tensor)}"
                + (f" with {' x '.join(map(str, pad))} zeros behind" if any(pad) else ""),
                expected=f"as many numbers as {name} has",
                found=shown,
            )
        element = tensor.dtype.name if tensor.dtype is not None else ""
        for axis, matrix in order.along.items():
            columns, (line, _) = len(matrix[0]), order.view[axis]
            if columns != sizes[axis] or element not in ("f32", "si8"):
                raise NoMatch(
                    line,
                    f"a matrix of {columns} columns goes along dim {axis} of {name}, which is "
                    f"{sizes[axis]} of {describe(tensor)}",
                    expected=f"{columns} of f32 or si8",
                    found=str(sizes[axis]),
                )
            if element == "si8" and not _whole_fits(order.along):
                raise NoMatch(
                    line,
                    f"{name} is of bytes, which times these matrices are not whole numbers of "
                    "16 bits",
                    expected="whole numbers, whose rows' sums times each other are below 256",
                    found=str(matrix),
                )
        found[name] = Order(tuple(sizes), tuple(order.permute), order.along, tuple(pad))
    return found
