"""Reductions over windows that IREE 3.13 gets wrong for NVIDIA and AMD.

Its code generator shares a reduction among the threads of a subgroup. Where the op reads windows or
in steps (a dim is more than a loop) and is no convolution to it, vectors are not made of it, and
threads add up memory of their own that nobody has written. So a convolution of 1x1 in steps of two
comes out wrong: plain IREE's ResNet-50 is off by 0.3 of the largest number on an H200. What such an
op reads once for a window goes through memory that threads share, which all read before the first
has written it: ``max_pool2d_with_indices`` found no places. These ops get a configuration: a thread
an element, which reads its window by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlirules.drivers.apply.barriers import positions
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import open_ops

__all__ = ["configure_windows", "has_windows"]

#: Threads that run together.
_SUBGROUP = {"cuda": 32, "hip": 64}
_NAME = "compilation_info"


def configure_windows(module: ir.Module, kind: str) -> int:
    """Configure a program's reductions over windows; returns how many. One pass over the ops.

    ``kind``: of target, ``cuda`` or ``hip``.
    The program is best past IREE's global optimisation: a configuration names loops by their
    numbers, and some loops go there.
    """
    found = _found(module)
    for op, loops, made in found:
        op.attributes[_NAME] = _one_each(loops, made, _SUBGROUP[kind], op.context)
    return len(found)


def has_windows(module: ir.Module) -> bool:
    """Whether there is anything that :func:`configure_windows` would configure."""
    return bool(_found(module))


def _found(module: ir.Module) -> list[tuple[ir.Operation, int, list[int]]]:
    """The ops, how many loops each has, and which of them make its result."""
    found = []
    for op in open_ops(module):
        if op.name != "linalg.generic" or _NAME in op.attributes:
            continue
        maps = compiler.indexing_maps(op)
        if not maps or len(maps) != len(op.operands):
            continue
        inputs = len(maps) - len(op.results)
        loops, made = maps[0].n_dims, positions(maps[inputs])
        if not made or len(made) == loops or any(one != maps[inputs] for one in maps[inputs:]):
            continue
        steps = any(positions(one) is None for one in maps[:inputs])
        if steps and not compiler.is_convolution(op):
            found.append((op, loops, made))
    return found


def _one_each(loops: int, made: Sequence[int], together: int, context: ir.Context) -> ir.Attribute:
    """The configuration of a thread an element, along the innermost loop that makes some."""
    last = max(made)
    tiles = [0 if n not in made else together if n == last else 1 for n in range(loops)]
    threads = [int(n in made) for n in range(loops)]
    steps = [int(n not in made) for n in range(loops)]
    return ir.Attribute.parse(
        "#iree_codegen.compilation_info<lowering_config = #iree_gpu.lowering_config<"
        f"{{workgroup = {tiles}, thread = {threads}, reduction = {steps}}}>, "
        "translation_info = #iree_codegen.translation_info<pipeline = "
        f"#iree_gpu.pipeline<TileAndFuse> workgroup_size = [{together}, 1, 1] "
        f"subgroup_size = {together}>>",
        context,
    )
