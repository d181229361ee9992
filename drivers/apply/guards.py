"""What the compiler's code generators get wrong, kept from them: by kinds of target."""

from __future__ import annotations

import math

from mlirules.drivers.apply.barriers import positions
from mlirules.drivers.apply.complexes import guard_complex
from mlirules.drivers.apply.copies import guard_copies
from mlirules.drivers.apply.gathers import configure_gathers
from mlirules.drivers.apply.invariant import guard_sums
from mlirules.drivers.apply.leftovers import span
from mlirules.drivers.apply.looporder import order_loops
from mlirules.drivers.apply.overwriting import guard_overwritten
from mlirules.drivers.apply.rereading import guard_reductions
from mlirules.drivers.apply.slices import guard_slices
from mlirules.drivers.apply.twice import guard_twice_read
from mlirules.drivers.apply.windows import configure_windows, has_windows
from mlirules.drivers.iree.compiler import Program, ir
from mlirules.drivers.iree.traversal import open_ops
from mlirules.drivers.match.values import type_info

__all__ = ["guard_early", "guard_program", "known_wrong", "needs_guards"]

#: The longest keys of which IREE 3.13 makes right numbers on CUDA in its fused op of attention.
LONGEST_KEYS = 128


def guard_early(module: ir.Module, kind: str) -> None:
    """Change a program, before IREE's passes, so that it compiles and comes out right."""
    if kind == "cpu":
        guard_sums(module)
        guard_twice_read(module)
    guard_copies(module)
    guard_overwritten(module)


def needs_guards(module: ir.Module, kind: str, left: bool) -> bool:
    """Whether a program for a kind of target is to be looked at past IREE's global optimisation.

    ``left``: it holds torch ops that IREE has yet to convert.
    """
    return kind == "vulkan" or (kind in ("cuda", "hip") and (left or has_windows(module)))


def guard_program(module: ir.Module, kind: str) -> None:
    """Change a program, past IREE's global optimisation, so that it comes out right."""
    if kind == "vulkan":
        order_loops(module)
        guard_reductions(module)
        guard_slices(module)
        guard_complex(module)
        configure_gathers(module)
    else:
        configure_windows(module, kind)


def known_wrong(program: Program, kind: str, path: str) -> list[str]:
    """What there is to say of ops that come out wrong and that nothing here mends.

    ``path``: what the program is called.
    """
    if kind != "cuda":
        return []
    found = []
    for op in open_ops(program.module):
        if op.name == "iree_linalg_ext.attention" and (long := _summed(op)) > LONGEST_KEYS:
            place = span(str(op.location), path, program.lines())
            found.append(
                f"{place}: attention with keys of {long} numbers: IREE 3.13 computes wrong "
                f"ones on NVIDIA devices beyond {LONGEST_KEYS}; products and a softmax are right, "
                "which is what torch.aten.scaled_dot_product_attention becomes"
            )
    return found


def _summed(op: ir.Operation) -> int:
    """How many numbers of a query and a key are multiplied and added; 0 where nobody knows."""
    maps = [ir.AffineMapAttr(one).value for one in ir.ArrayAttr(op.attributes["indexing_maps"])]
    query, key, made = (positions(one) for one in (maps[0], maps[1], maps[-1]))
    tensor = type_info(op.operands[0].type)[1]
    if query is None or key is None or made is None or tensor is None or tensor.dims is None:
        return 0
    sizes = [
        size
        for loop, size in zip(query, tensor.dims, strict=True)
        if loop in key and loop not in made
    ]
    known = [size for size in sizes if isinstance(size, int)]
    return math.prod(known) if len(known) == len(sizes) else 0
