"""What matching a rule at an op comes to: a match, a refusal, or all that stands against it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from mlirules.drivers.iree import cpu
from mlirules.drivers.iree.compiler import Op, ir
from mlirules.drivers.match.liveness import is_dead
from mlirules.drivers.match.places import Places
from mlirules.drivers.match.rewrites import Rewrite
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.notation import ast
from mlirules.language.rule import Line, Rule

if TYPE_CHECKING:  # its models are not loaded for a compile
    from mlirules.language.config.op import ConfigRule

__all__ = ["ANYWHERE", "ONLY_TENSORS", "Around", "Bound", "Diagnosis", "Match", "Refusal", "Spot"]

#: What a name of a rule stands for at a match.
Bound: TypeAlias = ir.Value | ir.Attribute


@dataclass(frozen=True, slots=True)
class Spot:
    """An op as it stood in a program, in words.

    An op of the bindings does not keep its module alive: what is read of it once the program is
    gone, or the op erased, is other memory, and may end the process.
    """

    name: str
    #: As MLIR writes it.
    location: str
    #: Results, name, operands and types in a line; without attributes, which may be large.
    text: str

    @classmethod
    def of(cls, op: Op, names: ir.AsmState) -> Spot:
        """Where ``op`` stands; ``names``, the ``AsmState`` of its program, names its values."""
        results = ", ".join(value.get_name(names) for value in op.results)
        operands = ", ".join(value.get_name(names) for value in op.operands)
        takes = ", ".join(str(value.type) for value in op.operands)
        gives = ", ".join(str(value.type) for value in op.results)
        types = " -> ".join(part for part in (takes, gives) if part)
        line = f"{results} = " * bool(results) + f"{op.name} {operands}".rstrip()
        return cls(op.name, str(op.location), f"{line} : {types}" if types else line)


def _settled(op: Op | Spot | None, names: ir.AsmState) -> Spot | None:
    return op if op is None or isinstance(op, Spot) else Spot.of(op, names)


@dataclass
class Refusal:
    """Why a rule does not apply at an op: the line that refused, and how far the match had got.

    The same of config rules, which refuse by a :attr:`part`.
    """

    line: Line | None
    message: str
    expected: str = ""
    found: str = ""
    depth: int = 0
    node: ast.Node | None = None
    #: The op of the program that stands where the rule wants something else, when not the root:
    #: an op, or its :class:`Spot`, as :class:`Diagnosis` says.
    at: Op | Spot | None = field(default=None, repr=False, compare=False)
    suggestion: str = ""
    #: The rule is at fault: it let the op in, and its rewrite does not fit.
    error: MlirulesError | None = None
    #: The rule brings native code to which the user did not agree.
    consent: bool = False
    #: Of a config rule, which has no lines: the part of ``match``, as ``dims.m``.
    part: str = ""

    def fault(self, rule: Rule | ConfigRule) -> Fault:
        """The refusal as a located fault."""
        if self.part:
            parts = [int(p) if p.isdigit() else p for p in self.part.split(".")]
            span = rule.source.span_at(("match", *parts))
            return Fault(span, "no-match", self.message, self.suggestion)
        if self.line is None:
            return Fault(rule.span, "no-match", self.message, self.suggestion)
        span = self.line.span
        if self.node is not None and self.line.section != "rewrite":
            span = self.line.text.span(self.node.pos, max(1, self.node.end - self.node.pos))
        return Fault(span, "no-match", self.message, self.suggestion)


@dataclass
class Diagnosis:
    """How near a rule comes to applying at an op, and all that stands against it.

    ``op`` (as ``at`` of the refusals) is an op for as long as the program stands as it was. What
    outlives that is :meth:`settled`: there it is a :class:`Spot`. None: no op is the candidate.
    ``passed`` of ``total`` parts of the rule (ops, operands, type lines, conditions) hold.
    ``lines`` says of each `types`, `let` and `where` line whether it holds; None: it cannot be
    judged, because what it speaks of was not found.
    """

    op: Op | Spot | None = field(repr=False)
    refusals: list[Refusal]
    passed: int
    total: int
    lines: list[tuple[Line, bool | None]]

    def settled(self, names: ir.AsmState) -> Diagnosis:
        """The same for when the program is gone; ``names`` as :meth:`Spot.of` takes them."""
        refusals = [replace(r, at=_settled(r.at, names)) for r in self.refusals]
        return replace(self, op=_settled(self.op, names), refusals=refusals)

    @property
    def applies(self) -> bool:
        """Whether nothing refuses."""
        return not self.refusals

    @property
    def rank(self) -> tuple[int, float]:
        """Sorts the nearest first. What cannot be judged may refuse as well: it counts."""
        unknown = sum(holds is None for _, holds in self.lines)
        return (len(self.refusals) + unknown, -self.passed / max(1, self.total))


# The inner ops of a match whose operands are tensors alone: none can have become dead.
ONLY_TENSORS: list[Op] = []


@dataclass(slots=True)
class Match:
    """A rule that fits at an op: the values bound, and the rewrite to put there."""

    rule: Rule
    root: ir.Operation
    values: dict[str, Bound]  # by every bound path
    rewrite: Rewrite
    inner: list[Op]  # ops below the root that may become dead
    env: dict[str, object]
    others: list[ir.Operation] = field(
        default_factory=list
    )  # further ops that the rewrite replaces
    anchor: ir.Operation | None = None  # what the rewrite goes before, when that is not the root
    moved: list[ir.Operation] = field(
        default_factory=list
    )  # constants that must go before the anchor


@dataclass(frozen=True)
class Around:
    """What a match depends on besides the op and what feeds it."""

    #: The kind of target that kernels are chosen for.
    target: str = "cpu"
    #: Whether an op is dead: uses by such ops do not count.
    dead: Callable[[Op], bool] = is_dead
    #: Whether conditions on uses are asked: they say where a rule pays, not what it computes, and
    #: where alternatives stand beside each other they would speak of those.
    uses: bool = True
    #: Which op of a block comes first.
    places: Places = field(default_factory=Places)
    #: The architecture of the CPU that kernels are chosen for; empty: this machine's.
    cpu: str = ""

    @functools.cached_property
    def cores(self) -> int:
        """For how many cores kernels divide their work: asked once, for all the ops of a run."""
        return cpu.divided(self.cpu)


ANYWHERE = Around()
