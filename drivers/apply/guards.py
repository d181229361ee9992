"""What the compiler's code generators get wrong, kept from them: by kinds of target."""

from __future__ import annotations

from mlirules.drivers.apply.complexes import guard_complex
from mlirules.drivers.apply.gathers import configure_gathers
from mlirules.drivers.apply.looporder import order_loops
from mlirules.drivers.apply.rereading import guard_reductions
from mlirules.drivers.apply.slices import guard_slices
from mlirules.drivers.apply.windows import configure_windows, has_windows
from mlirules.drivers.iree.compiler import ir

__all__ = ["guard_program", "needs_guards"]


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
