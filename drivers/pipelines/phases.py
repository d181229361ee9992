"""What the phases of the compiler allow the stages after them."""

from __future__ import annotations

from collections.abc import Sequence

from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import ops_below
from mlirules.language.faults import Fault, MlirulesError, Span
from mlirules.language.library import Entry
from mlirules.language.stage import DISPATCHED, Stage

__all__ = ["check_dispatched", "check_rules"]


def check_rules(stage: Stage, number: int, entries: Sequence[Entry]) -> None:
    """Raise :class:`MlirulesError` for a stage whose rules can find nothing in its phase."""
    where = f"stage {number} runs after {stage.phase}"
    torch = [e for e in entries if all(op.startswith("torch.") for op in e.head.root_ops)]
    if entries and len(torch) == len(entries):
        raise MlirulesError(
            Fault(
                torch[0].rule.span,
                "phase",
                f"{where}, where no op of torch is left, and {torch[0].name} starts at one, like "
                "all rules of the stage",
                "`phase: torch`",
            )
        )
    kernels = [e for e in entries if e.kind == "kernel"]
    if kernels and stage.phase in DISPATCHED:
        raise MlirulesError(
            Fault(
                kernels[0].rule.span,
                "phase",
                f"{where}, where dispatches are made, and {kernels[0].name} would make one in one",
                "put it at `phase: global-optimization`, or earlier",
            )
        )


def check_dispatched(module: ir.Module, phase: str) -> None:
    """Raise for what rules have made that computes and that no dispatch holds."""
    for function in module.body.operations:
        if function.operation.name not in ("func.func", "util.func"):
            continue
        for op in ops_below(function.operation, lambda op: op.name != "flow.dispatch.workgroups"):
            if not op.name.startswith(("linalg.", "iree_linalg_ext.")):
                continue
            place = op.location
            span = Span("<program>")
            if isinstance(place, ir.FileLineColLoc):
                span = Span(place.filename, place.start_line, place.start_col)
            raise MlirulesError(
                Fault(
                    span,
                    "phase",
                    f"after {phase} whatever computes stands in a dispatch, and this makes "
                    f"{op.name} outside of them",
                    "put the rule at `phase: global-optimization`, or earlier",
                )
            )
