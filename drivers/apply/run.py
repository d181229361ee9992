"""One run of a driver: how it is to run, what belongs to it alone, and what it did."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mlirules.drivers.apply import pieces, tracking
from mlirules.drivers.apply.placing import Instantiator
from mlirules.drivers.iree.compiler import Op, ir
from mlirules.drivers.match.liveness import Marks
from mlirules.drivers.match.matcher import Matcher
from mlirules.drivers.match.results import ONLY_TENSORS, Around, Match
from mlirules.language import outputs
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.operands import describe
from mlirules.language.rule import Rule

DriverName = Literal["greedy", "walk", "conversion", "cost", "saturate"]
Order = Literal["top-down", "bottom-up"]


@dataclass
class Options:
    """How a driver runs."""

    driver: DriverName = "greedy"
    order: Order = "top-down"
    #: The kind of target that kernels are chosen for.
    target: str = "cpu"
    #: The architecture of that CPU; empty: this machine's.
    cpu: str = ""
    #: Conversion: every illegal op must be converted (full), or as many as rules can (partial).
    full: bool = False
    #: Greedy: let ops fold themselves, too. Off, so that what changes is what the rules say (a
    #: folder may undo a conversion: a cast of a constant folds back to a torch literal).
    fold: bool = False
    #: Stop after this many applications (for bisection); None: no limit.
    max_rewrites: int | None = None
    #: More applications than this are taken for a loop; None: chosen by the program's size.
    bound: int | None = None
    #: Record every application.
    record: bool = False
    #: Record the IR before and after, too. Printing one op numbers all values of its function.
    texts: bool = True
    #: How many applications went before: their numbers go on from there.
    first: int = 0
    #: Cost: asked with each match whether to go ahead.
    accept: Callable[[Match, Around], bool] | None = None
    #: Saturate: the seconds that an op takes by itself.
    weigh: Callable[[ir.Operation], float] | None = None
    #: Saturate: end with the best so far at so many ops (None: chosen by the program's size), after
    #: so many seconds for a block, so many rounds over the rules, or when the process
    #: has grown by so many 10^6 bytes.
    nodes: int | None = None
    seconds: float = 10.0
    rounds: int = 12
    megabytes: float = 2000.0
    #: Saturate: the gain to exceed, as a part of the cheaper program's time.
    margin: float = 0.0


@dataclass
class Application:
    """One rule firing once."""

    number: int
    rule: str
    benefit: int
    location: str
    op: str
    bindings: dict[str, str] = field(default_factory=dict)
    before: str = ""
    after: str = ""
    driver: str = ""
    order: str = ""
    #: The ops of the original program that it took, by their numbers in printed order.
    consumed: list[int] = field(default_factory=list)
    #: The ops of the final program that it made, by their numbers in printed order.
    made: list[int] = field(default_factory=list)
    #: The earlier applications whose ops it took.
    builds_on: list[int] = field(default_factory=list)

    def as_json(self) -> str:
        """The application as one line of JSON."""
        return json.dumps(self.__dict__, ensure_ascii=False)


@dataclass
class Outcome:
    """What a driver did."""

    counts: Counter[str] = field(default_factory=Counter)
    applications: list[Application] = field(default_factory=list)
    seconds: float = 0.0
    seconds_by_rule: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    stopped: bool = False
    #: Where cost stages applied rules, and where not: ``pipelines.cost.Decision`` and others.
    decisions: list[Any] = field(default_factory=list)
    #: What is to be told besides: rules left out, limits that were hit.
    notes: list[str] = field(default_factory=list)
    #: A limit was hit: another run may do more.
    early: bool = False
    #: No rule could apply: the driver did not even start, and the program is as it was.
    untouched: bool = False

    @property
    def total(self) -> int:
        """The number of applications."""
        return sum(self.counts.values())

    def merge(self, other: Outcome) -> None:
        """Add a later stage's outcome."""
        self.counts.update(other.counts)
        self.applications.extend(other.applications)
        self.decisions.extend(other.decisions)
        self.notes.extend(other.notes)
        self.seconds += other.seconds
        for rule, seconds in other.seconds_by_rule.items():
            self.seconds_by_rule[rule] += seconds
        self.stopped |= other.stopped
        self.early |= other.early


#: Ops that die with what reads them.
CONSTANTS = {
    "torch.constant.int",
    "torch.constant.float",
    "torch.constant.bool",
    "torch.constant.none",
    "torch.constant.str",
    "torch.constant.device",
    "torch.prim.ListConstruct",
}


#: Ops of a program from which on a trace shows what an application changed with names of its own:
#: naming values as the whole program does takes time in proportion to it, for every application.
LARGE = 1000


class Run:
    """The state of one run: counts, limits, the trace, the first error."""

    def __init__(
        self,
        rules: Sequence[Rule],
        matchers: Mapping[str, Matcher],
        context: ir.Context,
        options: Options,
        outcome: Outcome,
        bound: int,
    ) -> None:
        self.rules = rules
        #: By the rules' names.
        self.matchers = matchers
        self.context = context
        self.options = options
        self.outcome = outcome
        self.bound = bound
        self.matched: dict[str, Match] = {}
        self.stop = False
        self.error: BaseException | None = None
        # The later half: what started and ended before a loop is not part of it.
        self.recent: deque[str] = deque(maxlen=max(1, min(400, bound // 2)))
        self.inner_names: set[str] = set(CONSTANTS)
        self.instantiator = Instantiator(context)
        self.applied = 0
        # Ops below a root, constants and lists die with it, and the driver leaves them there.
        self.may_leave_dead = False
        self.seen: set[str] = set()
        #: Whether the program is so large that ops are told apart from it.
        self.alone = False
        self.inputs: list[ir.Value] = []
        self.around = Around(options.target, cpu=options.cpu)
        #: Where rules of the run ask how often a value is used: which ops are dead.
        self.marks: Marks | None = None

    def fail(self, error: BaseException) -> None:
        """Stop, and let :meth:`raise_if_failed` raise the first error."""
        if self.error is None:
            self.error = error
        self.stop = True

    def apply(
        self,
        match: Match,
        root: ir.Operation,
        replace: Callable[[ir.Operation, list[ir.Value]], object],
    ) -> list[ir.Value]:
        """Build the match's rewrite before ``root``, or before the first op that it replaces.

        Returns the values of the root's results: the caller replaces the root. ``replace`` puts
        values in the place of the results of a further op that the rewrite replaces.
        """
        rule = match.rule
        started = time.perf_counter()
        if self.options.record and self.marks is not None:
            self.marks.forget(root)
        application = self._describe(match, root) if self.options.record else None
        if application is not None:
            self.instantiator.mark = tracking.mark(
                application.number, tracking.place(root), self.context
            )
        place = root if match.anchor is None else match.anchor
        for op in match.moved:
            self.around.places.moves(op)
            op.move_before(place)
        made = self.instantiator.instantiate(
            match.rewrite, match.values, place, earlier=match.anchor is not None
        )
        if self.marks is not None:
            for op in (root, *match.others):
                self.marks.goes(op, made)
        at = len(root.results)
        for op in match.others:
            values = made[at : at + len(op.results)]
            at += len(values)
            replace(op, values)
        made = made[: len(root.results)]
        for inner in match.inner:
            if inner.name not in self.inner_names and inner.name.startswith("linalg."):
                self.inner_names |= {inner.name, "linalg.fill", "tensor.empty"}
        if application is not None:
            if self.options.texts:
                application.after = "\n".join(self._texts(self.instantiator.last_created))
            self.outcome.applications.append(application)
        if match.inner is not ONLY_TENSORS:
            # Operands that are not all tensors (`_` among them) go with the op that read them, as
            # does what was computed only for an op without results.
            self.may_leave_dead = True
        self.recent.append(rule.name)
        self.count(rule, time.perf_counter() - started)
        return made

    def count(self, rule: Rule, seconds: float, times: int = 1) -> None:
        """Note that ``rule`` applied so many times and took so long; the limits are checked."""
        name = rule.name
        if name not in self.seen:
            self.seen.add(name)
            self.inner_names |= rule.op_names
        self.applied += times
        self.outcome.counts[name] += times
        self.outcome.seconds_by_rule[name] += seconds
        if self.options.max_rewrites is not None and self.applied >= self.options.max_rewrites:
            self.stop = True
            self.outcome.stopped = True
        elif self.applied >= self.bound:
            self.fail(self._loop())

    def _describe(self, match: Match, root: ir.Operation) -> Application:
        bindings = {name: describe(value) for name, value in match.env.items()}
        before: list[str] = []
        if self.options.texts:
            inner = [o for o in match.inner if not o.name.startswith("torch.constant.")]
            self.inputs = []
            before = self._texts([*reversed(inner), root])
        location = str(tracking.place(root)).removeprefix("loc(").removesuffix(")")
        marks = {mark for op in [*match.inner, root] if (mark := tracking.read(op)) is not None}
        return Application(
            self.options.first + self.applied + 1,
            match.rule.name,
            match.rule.benefit,
            location.replace('"', ""),
            root.name,
            bindings,
            "\n".join(dict.fromkeys(before)),
            "",
            self.options.driver,
            self.options.order if self.options.driver == "greedy" else "",
            consumed=sorted(n for what, n in marks if what == "op"),
            builds_on=sorted(n for what, n in marks if what == "made"),
        )

    def _texts(self, ops: Sequence[Op]) -> list[str]:
        if self.alone:
            return pieces.texts(ops, self.context, self.inputs)
        return [_print(op) for op in ops]

    def _loop(self) -> MlirulesError:
        names = Counter(self.recent)
        rules = {r.name: r for r in self.rules}
        faults = [
            Fault(
                rules[name].span,
                "loop",
                f"{name} is part of a loop: {count} of the last {len(self.recent)} applications "
                f"after {self.applied} in all",
                "a rule must not produce what it (or another rule of the set) matches again",
            )
            for name, count in sorted(names.items())
        ]
        return MlirulesError(faults)

    def raise_if_failed(self) -> None:
        """Raise what stopped the run, if anything did."""
        if self.error is not None:
            raise self.error


def _print(op: Op) -> str:
    # Most of the time of printing an op goes into verifying the function around it.
    return op.get_asm(assume_verified=True)


def write_trace(
    path: str | Path, applications: Sequence[Application], decisions: Sequence[Any] = ()
) -> None:
    """Write applications, and what cost stages decided, as JSON lines; through a temporary file."""
    lines = [item.as_json() + "\n" for item in (*applications, *decisions)]
    outputs.write(path, "".join(lines))
