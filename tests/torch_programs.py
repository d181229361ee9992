"""Programs of one op in torch's dialect."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PAIR = "(!torch.int, !torch.int) -> !torch.list<int>"


def tensor(dims: Sequence[int]) -> str:
    """The type of a tensor of f32."""
    return f"!torch.vtensor<[{','.join(map(str, dims))}],f32>"


def literal(array: np.ndarray) -> str:
    """A constant's elements as MLIR text."""
    sizes = "x".join(map(str, array.shape))
    return f'dense<"0x{array.tobytes().hex().upper()}"> : tensor<{sizes}xf32>'


def sizes(
    images: Sequence[int], filters: Sequence[int], stride: int = 1, pads: Sequence[int] = ()
) -> tuple[int, int, int, int]:
    """The result's dims; without ``pads`` a window stands over every place."""
    above, left = pads or (filters[2] // 2, filters[3] // 2)
    down = (images[2] + 2 * above - filters[2]) // stride + 1
    across = (images[3] + 2 * left - filters[3]) // stride + 1
    return images[0], filters[0], down, across


def convolution(
    images: Sequence[int],
    filters: Sequence[int] | np.ndarray,
    *,
    groups: int = 1,
    stride: int = 1,
    pads: Sequence[int] = (),
    takes: Sequence[tuple[str, Sequence[int]]] = (),
    then: Sequence[str] = (),
) -> str:
    """``func.func @f(%x, %w, ...)``; filters that are an array are a constant of the program.

    ``takes``: further arguments; one called ``b`` that has one dim is the convolution's bias.
    ``then``: what follows the convolution, ``%c`` of type ``{y}``, and ends in ``%y``.
    """
    shape: Sequence[int]
    held, brought = "", not isinstance(filters, np.ndarray)
    if isinstance(filters, np.ndarray):
        shape = filters.shape
        held = f"%w = torch.vtensor.literal({literal(filters)}) : {tensor(shape)}"
    else:
        shape = filters
    above, left = pads or (shape[2] // 2, shape[3] // 2)
    x, w, y = map(tensor, (images, shape, sizes(images, shape, stride, pads)))
    further = "".join(f", %{name}: {tensor(dims)}" for name, dims in takes)
    biases = [tensor(dims) for name, dims in takes if name == "b" and len(dims) == 1]
    bias, kind = ("%b", biases[0]) if biases else ("%none", "!torch.none")
    rows = "\n".join(f"  {row.replace('{y}', y)}" for row in then)
    return f"""
func.func @f(%x: {x}{f", %w: {w}" if brought else ""}{further}) -> {y} {{
  {held}
  %none = torch.constant.none
  %one = torch.constant.int 1
  %step = torch.constant.int {stride}
  %above = torch.constant.int {above}
  %left = torch.constant.int {left}
  %groups = torch.constant.int {groups}
  %false = torch.constant.bool false
  %no = torch.prim.ListConstruct : () -> !torch.list<int>
  %ones = torch.prim.ListConstruct %one, %one : {PAIR}
  %steps = torch.prim.ListConstruct %step, %step : {PAIR}
  %pads = torch.prim.ListConstruct %above, %left : {PAIR}
  %c = torch.aten.convolution %x, %w, {bias}, %steps, %pads, %ones, %false, %no, %groups :
    {x}, {w}, {kind}, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool,
    !torch.list<int>, !torch.int -> {y}
{rows}
  return {"%y" if then else "%c"} : {y}
}}
"""


def product(rows: str = "5", weights: np.ndarray | None = None) -> str:
    """``func.func @main(%x, %w)``, rows of three by 3x4; weights that are given are a constant."""
    x, w, c = (f"!torch.vtensor<[{dims}],f32>" for dims in (f"{rows},3", "3,4", f"{rows},4"))
    takes = f"%x: {x}" if weights is not None else f"%x: {x}, %w: {w}"
    held = "" if weights is None else f"  %w = torch.vtensor.literal({literal(weights)}) : {w}\n"
    return (
        f"func.func @main({takes}) -> {c} {{\n{held}"
        f"  %c = torch.aten.mm %x, %w : {x}, {w} -> {c}\n  return %c : {c}\n}}\n"
    )
