"""Sums of what is read by a computed index: IREE 3.13 for Vulkan vectorises them and then fails.

Its code generator keeps vectors of indices in memory that SPIR-V does not have ("failed to legalize
operation 'memref.alloc'"), wherever the sizes suit vectors: the product of each row with the factor
of its expert. Such ops are given the configuration that it takes for other sizes: one thread an
element.
"""

from __future__ import annotations

from typing import Any

from mlirules.drivers.apply.barriers import positions
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import SCALAR_BODIES, ops_below

__all__ = ["configure_gathers"]

_THREADS = 64
_NAME = "compilation_info"


def configure_gathers(module: ir.Module) -> int:
    """Configure the reductions of a program whose bodies read tensors; returns how many."""
    found = 0
    for op in ops_below(module.operation, lambda op: not op.name.startswith(SCALAR_BODIES)):
        if op.name != "linalg.generic" or _NAME in op.attributes:
            continue
        maps = compiler.indexing_maps(op)
        made = positions(maps[len(op.operands) - len(op.results)]) if maps else None
        if not maps or not made or len(made) == maps[0].n_dims:
            continue
        if any(inner.name == "tensor.extract" for inner in ops_below(op)):
            op.attributes[_NAME] = _one_each(maps[0].n_dims, made, op.context)
            found += 1
    return found


def _one_each(loops: int, made: list[int], context: Any) -> ir.Attribute:
    """The configuration of a thread an element, along the innermost loop that makes some."""
    last = max(made)
    tiles = [0 if n not in made else _THREADS if n == last else 1 for n in range(loops)]
    threads = [int(n in made) for n in range(loops)]
    return ir.Attribute.parse(
        "#iree_codegen.compilation_info<lowering_config = #iree_codegen.lowering_config<"
        f"tile_sizes = [{tiles}, {threads}]>, translation_info = #iree_codegen.translation_info<"
        "pipeline = #iree_gpu.spirv_pipeline<BaseDistribute> "
        f"workgroup_size = [{_THREADS}, 1, 1]>>",
        context,
    )
