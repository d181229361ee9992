"""Why a config rule is not for the dispatches that the compiler makes of a program."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mlirules.drivers.iree.compiler import Job, ir
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.match.indexing import Miss, match_equation
from mlirules.drivers.match.results import Refusal
from mlirules.drivers.tuning_specs.compile import ConfiguredOp, configure
from mlirules.drivers.tuning_specs.match import refusal
from mlirules.language.config.op import ConfigRule
from mlirules.language.faults import Fault, MlirulesError

# How far a match has got when a part of it refuses.
_STAGES = {"op": 0, "name": 0, "compute": 1, "types": 2, "operands": 2, "dims": 3}


@dataclass
class ConfigDiagnosis:
    """What a config rule says of one op of a dispatch; ``refusal`` None: it is for it."""

    op: ConfiguredOp
    refusal: Refusal | None
    fault: Fault | None
    #: What the op lives in.
    owner: list[ir.Module] = field(repr=False, default_factory=list)

    @property
    def stage(self) -> int:
        """How near: the part of ``match`` that refuses, 4 when none does."""
        return 4 if self.refusal is None else _STAGES[self.refusal.part.partition(".")[0]]


def _deeper(rule: ConfigRule, refused: Refusal, op: ir.Operation) -> str:
    """What differs, where the rule only says that something does."""
    if refused.part == "compute" and rule.equation is not None:
        found = match_equation(rule.equation, op, said=rule.said)
        if isinstance(found, Miss):
            return found.message
    return refused.message


def diagnoses(
    rule: ConfigRule, text: str, target: Target, *, path: str = "<string>"
) -> list[ConfigDiagnosis]:
    """The ops that the compiler would configure for a target, the nearest to the rule first.

    Raises :class:`MlirulesError` when the rule is not for the target, and CompileError when the
    program does not compile.
    """
    if not rule.fits(target.name):
        raise MlirulesError(
            Fault(
                rule.source.span_at(("targets",)),
                "target",
                f"the rule is not for {target}",
                f"--target {rule.doc.targets[0]}",
            )
        )
    report = configure(text, Job(target, path=path), [])
    found = []
    for op in report.ops:
        refused = refusal(rule, op.operation)
        fault = None
        if refused is not None:
            fault = replace(refused.fault(rule), message=_deeper(rule, refused, op.operation))
        found.append(ConfigDiagnosis(op, refused, fault, report.modules))
    return sorted(found, key=lambda d: -d.stage)
