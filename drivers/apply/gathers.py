"""Sums of what is read by a computed index: IREE 3.13 for Vulkan vectorises them and then fails.

Its code generator keeps vectors of indices in memory that SPIR-V does not have ("failed to legalize
operation 'memref.alloc'"), wherever the sizes suit vectors: the product of each row with the factor
of its expert. Such ops are given the configuration that it takes for other sizes: one thread an
element. What another op reads by a computed index (`flip`, `roll`, an embedding) is written to
memory before it is summed.
"""

from __future__ import annotations

from mlirules.drivers.apply.barriers import RESHAPES, guard_result, positions
from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import open_ops, ops_below

__all__ = ["configure_gathers"]

_THREADS = 64
_NAME = "compilation_info"
#: More ops than this that read by an index, in front of one op, are not looked up one by one.
_MOST = 16


def configure_gathers(module: ir.Module) -> int:
    """Configure the reductions of a program whose bodies read tensors.

    Returns how many, those counted whose operands are put behind barriers. One pass over the ops.
    """
    found = 0
    #: By what may share a dispatch with them: the ops that read by a computed index.
    read: dict[ir.Value, frozenset[ir.Operation]] = {}
    guarded: dict[ir.Operation, None] = {}
    for op in open_ops(module):
        if op.name in RESHAPES:
            if op.operands[0] in read:
                read[op.results[0]] = read[op.operands[0]]
            continue
        maps = compiler.indexing_maps(op) if op.name.startswith("linalg.") else None
        if not maps or len(maps) != len(op.operands):
            continue
        made = positions(maps[len(op.operands) - len(op.results)])
        by_index = op.name == "linalg.generic" and any(
            inner.name == "tensor.extract" for inner in ops_below(op)
        )
        sources = frozenset[ir.Operation]().union(*(read.get(value, ()) for value in op.operands))
        if made is not None and len(made) == maps[0].n_dims:
            if by_index:
                sources |= {op}
            if len(sources) > _MOST:  # written to memory, whatever reads them
                guarded.update(dict.fromkeys(sources))
            elif sources:
                for result in op.results:
                    read[result] = sources
            continue
        guarded.update(dict.fromkeys(sources))
        if by_index and made and _NAME not in op.attributes:
            op.attributes[_NAME] = _one_each(maps[0].n_dims, made, op.context)
            found += 1
    for op in guarded:
        guard_result(op)
    return found + len(guarded)


def _one_each(loops: int, made: list[int], context: ir.Context) -> ir.Attribute:
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
