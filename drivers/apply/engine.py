"""The drivers: how a rule set is applied to a module.

``greedy`` is MLIR's own driver running PDL that was generated from the rules; ``walk`` looks at
every op once; ``conversion`` is MLIR's dialect conversion with a torch-to-builtin type converter.
All of them share one matcher and one set of templates, so that a rule means the same everywhere.
"""

from __future__ import annotations

import fnmatch
import gc
import json
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from mlirules.drivers.apply import conversion, kernels, pieces, tracking
from mlirules.drivers.apply import leftovers as unconverted
from mlirules.drivers.apply import rewrites as templates
from mlirules.drivers.apply import walk as walking
from mlirules.drivers.iree.compiler import ir, rewrite
from mlirules.drivers.iree.traversal import SCALAR_BODIES, ops_below
from mlirules.drivers.match.liveness import Marks
from mlirules.drivers.match.matcher import ANYWHERE, ONLY_TENSORS, Around, Match, Matcher, Refusal
from mlirules.generator.emit import pdll
from mlirules.language.config.rule import ConfigRule
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean
from mlirules.language.library import Entry
from mlirules.language.operands import describe
from mlirules.language.rule import Rule

DriverName = Literal["greedy", "walk", "conversion", "cost"]
Order = Literal["top-down", "bottom-up"]


@dataclass
class Options:
    """How a driver runs."""

    driver: DriverName = "greedy"
    order: Order = "top-down"
    #: The kind of target that kernels are chosen for.
    target: str = "cpu"
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
    #: Where cost stages applied rules, and where not: ``pipeline.cost.Decision``.
    decisions: list[Any] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The number of applications."""
        return sum(self.counts.values())

    def merge(self, other: Outcome) -> None:
        """Add a later stage's outcome."""
        self.counts.update(other.counts)
        self.applications.extend(other.applications)
        self.decisions.extend(other.decisions)
        self.seconds += other.seconds
        for rule, seconds in other.seconds_by_rule.items():
            self.seconds_by_rule[rule] += seconds
        self.stopped |= other.stopped


AnyRule = TypeVar("AnyRule", bound=Rule | ConfigRule | Entry)


def select(
    rules: Sequence[AnyRule], only: Iterable[str] = (), skip: Iterable[str] = ()
) -> list[AnyRule]:
    """The rules that filters leave: globs over name, origin, `tag:TAG` or `kind:KIND`.

    Raises :class:`MlirulesError` for a filter that fits no rule: it would do nothing, silently.
    """

    def fits(rule: AnyRule, glob: str) -> bool:
        if glob.startswith("tag:"):
            return any(fnmatch.fnmatchcase(t, glob[4:]) for t in rule.tags)
        if glob.startswith("kind:"):
            return fnmatch.fnmatchcase(rule.kind, glob[5:])
        return fnmatch.fnmatchcase(rule.name, glob) or fnmatch.fnmatchcase(rule.origin, glob)

    only, skip = list(only), list(skip)
    for flag, globs in (("--only", only), ("--skip", skip)):
        for glob in globs:
            if not any(fits(r, glob) for r in rules):
                raise MlirulesError(
                    Fault(
                        Span(f"{flag} {glob}"),
                        "filter",
                        "fits no rule of the set",
                        did_you_mean(glob, [r.name for r in rules])
                        or "filters are globs over rule names, tag:TAG or kind:KIND",
                    )
                )
    return [
        r
        for r in rules
        if (not only or any(fits(r, g) for g in only)) and not any(fits(r, g) for g in skip)
    ]


class _Frozen:
    """A frozen pattern set, and what must outlive it.

    Destroying a pattern set after its context aborts the process, and the collector that breaks
    cycles promises no order; but it calls finalizers first. The bindings need not keep alive the
    functions that they are given.
    """

    __slots__ = ("_context", "_module", "_natives", "patterns")

    def __init__(self, patterns: Any, module: Any, natives: Any, context: Any) -> None:
        self.patterns = patterns
        self._module = module
        self._natives = natives
        self._context = context

    def __del__(self) -> None:
        self.patterns = None
        self._module = None


class Engine:
    """Applies rules to modules of one context. Reusable: it keeps matchers and templates."""

    def __init__(self, rules: Sequence[Rule], context: Any) -> None:
        self.rules: list[Rule] = []
        self.context = context
        self.matchers: dict[str, Matcher] = {}
        self.include(rules)
        self._frozen: dict[frozenset[str], _Frozen] = {}
        # The innermost run last: what MLIR calls back belongs to that.
        self._runs: list[_Run] = []

    def include(self, rules: Sequence[Rule]) -> None:
        """Take further rules of the same set; those that are here already stay as they are."""
        new = [rule for rule in rules if rule.name not in self.matchers]
        if new:
            self.matchers |= {r.name: Matcher(r, self.context) for r in new}
            self.rules = sorted([*self.rules, *new], key=lambda r: r.order)

    # -- patterns

    def relevant(self, present: Collection[str]) -> list[Rule]:
        """The rules whose ops may occur: in the program, or made by another relevant rule."""
        names = set(present)
        chosen: set[str] = set()
        while True:
            grown = False
            for rule in self.rules:
                if rule.name in chosen:
                    continue
                if any(r in names for r in rule.root_ops) and rule.op_names <= names | _CONSTANTS:
                    chosen.add(rule.name)
                    if not rule.produced_ops <= names:
                        names |= rule.produced_ops
                    grown = True
            if not grown:
                return [r for r in self.rules if r.name in chosen]

    def frozen(self, rules: Sequence[Rule]) -> Any:
        """The rules as a frozen pattern set of PDL, every native bound."""
        key = frozenset(r.name for r in rules)
        found = self._frozen.get(key)
        if found is not None:
            return found.patterns
        text = pdll.compile_pdll(pdll.pdll(rules))
        natives: dict[str, Callable[..., Any]] = {}
        for rule in rules:
            ident = pdll.identifier(rule.name)
            natives[f"{ident}_holds"] = self._holds(rule)
            natives[f"{ident}_build"] = self._build(rule)
        missing = pdll.natives_of(text) - set(natives)
        if missing:
            # MLIR would take an unbound native for a condition that never holds.
            raise MlirulesError.at(
                "generated PDL",
                f"natives without an implementation: {', '.join(sorted(missing))}",
                code="unbound-native",
            )
        with self.context:
            module = ir.Module.parse(text, self.context)
            patterns = rewrite.PDLModule(module)
        for name, function in natives.items():
            if name.endswith("_holds"):
                patterns.register_constraint_function(name, function)
            else:
                patterns.register_rewrite_function(name, function)
        held = _Frozen(patterns.freeze(), module, natives, self.context)
        self._frozen[key] = held
        return held.patterns

    def _holds(self, rule: Rule) -> Callable[..., bool]:
        matcher = self.matchers[rule.name]
        runs = self._runs

        def holds(_rewriter: Any, _results: Any, values: Any) -> bool:
            # The bindings' convention: True means failure.
            run = runs[-1]
            if run.stop:
                return True
            try:
                match = matcher.match(values[0].operation, run.around)
            except BaseException as error:  # noqa: BLE001 - must not unwind through the C++ driver
                run.fail(error)
                return True
            if isinstance(match, Refusal):
                if match.error is not None:
                    run.fail(match.error)
                return True
            # What an earlier fusion left without users is no place for another.
            if run.applied and rule.doc.kind == "fusion" and run.around.dead(match.root):
                return True
            try:
                if run.options.accept is not None and not run.options.accept(match, run.around):
                    return True
            except BaseException as error:  # noqa: BLE001 - as above
                run.fail(error)
                return True
            run.matched[rule.name] = match
            return False

        return holds

    def _build(self, rule: Rule) -> Callable[..., None]:
        runs = self._runs

        def build(rewriter: Any, _results: Any, values: Any) -> None:
            run = runs[-1]
            root = values[0].operation
            match = run.matched.pop(rule.name, None)
            if match is None:
                return
            try:
                made = run.apply(match, root, rewriter.replace_op)
            except BaseException as error:  # noqa: BLE001 - must not unwind through the C++ driver
                run.fail(error)
                return
            rewriter.replace_op(root, made)

        return build

    # -- running

    def run(self, module: Any, options: Options) -> Outcome:
        """Apply the rules to ``module`` in place.

        Raises :class:`MlirulesError` when a rule is at fault (its rewrite does not verify) or the
        rule set does not terminate.
        """
        outcome = Outcome()
        if options.driver == "walk":
            # It meets every op once, so it needs no bound, and sees for itself what there is.
            rules = self.rules
            run = _Run(self, options, outcome, bound=options.bound or sys.maxsize)
        else:
            present = op_names(module)
            rules = self.relevant(present)
            if not rules:
                return outcome
            size = sum(present.values())
            run = _Run(self, options, outcome, bound=options.bound or max(2000, 40 * size))
            # Symbols of dims may have had no use from the start.
            run.may_leave_dead |= "torch.symbolic_int" in present
        if options.max_rewrites is not None and options.max_rewrites <= 0:
            outcome.stopped = True
            return outcome
        if any(r.doc.kind == "fusion" or self.matchers[r.name].structural for r in rules):
            run.marks = Marks(module)
            run.around = Around(options.target, run.marks.dead)
        if options.record and options.texts:
            run.alone = sum(op_names(module).values()) > LARGE
        started = time.perf_counter()
        if not self._runs:
            for matcher in self.matchers.values():
                matcher.trim()
        self._runs.append(run)
        # Every value that crosses into Python is a new object; collecting them while MLIR's driver
        # runs costs many times what the rewriting does, and frees nothing.
        collecting = gc.isenabled()
        gc.disable()
        try:
            if options.driver == "conversion":
                conversion.apply(self, run, module, rules)
            elif options.driver == "walk":
                walking.apply(self, run, module, rules)
            else:
                self._greedy(module, rules, options, run)
        except ir.MLIRError as error:
            if run.error is None:
                raise MlirulesError.at(
                    options.driver, f"the driver failed: {error}", code="driver"
                ) from None
        finally:
            self._runs.pop()
            if run.marks is not None:
                run.marks.erase()
            if collecting:
                gc.enable()
        run.raise_if_failed()
        if run.applied and run.may_leave_dead:
            sweep(module, run.inner_names)
        if any(self.matchers[name].rule.variants for name in outcome.counts):
            made = [t for r in self.rules if r.variants for t in self.matchers[r.name].templates()]
            kernels.place(module, made)
        if options.driver == "conversion" and options.full and not run.stop:
            conversion.check_full(leftovers(module))
        outcome.seconds = time.perf_counter() - started
        return outcome

    def _greedy(self, module: Any, rules: Sequence[Rule], options: Options, run: _Run) -> None:
        config = rewrite.GreedyRewriteConfig()
        config.use_top_down_traversal = options.order == "top-down"
        config.enable_folding = options.fold
        config.enable_constant_cse = False
        config.region_simplification_level = rewrite.GreedySimplifyRegionLevel.DISABLED
        config.max_iterations = -1
        try:
            rewrite.apply_patterns_and_fold_greedily(module, self.frozen(rules), config)
        except RuntimeError as error:
            if run.error is None and not run.stop:
                raise MlirulesError.at(
                    "greedy", f"the driver failed: {error}", code="driver"
                ) from None

    def explain(self, rule: Rule, op: Any, around: Around = ANYWHERE) -> Refusal | None:
        """Why ``rule`` does not apply at ``op``; None when it does."""
        return self.matchers[rule.name].explain(op, around)


_CONSTANTS = {
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


class _Run:
    """The state of one run: counts, limits, the trace, the first error."""

    def __init__(self, engine: Engine, options: Options, outcome: Outcome, bound: int) -> None:
        self.engine = engine
        self.options = options
        self.outcome = outcome
        self.bound = bound
        self.matched: dict[str, Match] = {}
        self.stop = False
        self.error: BaseException | None = None
        # The later half: what started and ended before a loop is not part of it.
        self.recent: deque[str] = deque(maxlen=max(1, min(400, bound // 2)))
        self.inner_names: set[str] = set(_CONSTANTS)
        self.instantiator = templates.Instantiator(engine.context)
        self.applied = 0
        # Ops below a root, constants and lists die with it, and the driver leaves them there.
        self.may_leave_dead = options.driver == "conversion"
        self.seen: set[str] = set()
        #: Whether the program is so large that ops are told apart from it.
        self.alone = False
        self.inputs: list[Any] = []
        self.around = Around(options.target)
        #: Where rules of the run ask how often a value is used: which ops are dead.
        self.marks: Marks | None = None

    def fail(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
        self.stop = True

    def apply(
        self, match: Match, root: Any, replace: Callable[[Any, list[Any]], object]
    ) -> list[Any]:
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
                application.number, tracking.place(root), self.engine.context
            )
        place = root if match.anchor is None else match.anchor
        for op in match.moved:
            op.move_before(place)
        made = self.instantiator.instantiate(
            match.template, match.values, place, earlier=match.anchor is not None
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
        for op in match.inner:
            if op.name not in self.inner_names and op.name.startswith("linalg."):
                self.inner_names |= {op.name, "linalg.fill", "tensor.empty"}
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

    def _describe(self, match: Match, root: Any) -> Application:
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

    def _texts(self, ops: Sequence[Any]) -> list[str]:
        if self.alone:
            return pieces.texts(ops, self.engine.context, self.inputs)
        return [_print(op) for op in ops]

    def _loop(self) -> MlirulesError:
        names = Counter(self.recent)
        rules = {r.name: r for r in self.engine.rules}
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
        if self.error is not None:
            raise self.error


def _print(op: Any) -> str:
    # Most of the time of printing an op goes into verifying the function around it.
    return str(op.get_asm(assume_verified=True))


def _holds_ops(op: Any) -> bool:
    return not op.name.startswith(SCALAR_BODIES)


def op_names(module: Any) -> Counter[str]:
    """How often each op occurs in a module (bodies of structured ops aside)."""
    return Counter(op.name for op in ops_below(module.operation, _holds_ops))


def sweep(module: Any, names: Iterable[str]) -> int:
    """Erase ops of the given names whose results nobody uses. Returns how many went."""
    wanted = frozenset(names) | _DEAD_CASTS
    below = ops_below(module.operation, lambda op: op.name not in wanted and _holds_ops(op))
    gone = 0
    for op in reversed([op for op in below if op.name in wanted]):
        results = op.results
        if len(results) and not any(next(iter(value.uses), None) is not None for value in results):
            op.erase()
            gone += 1
    return gone


_DEAD_CASTS = frozenset(
    [
        "torch_c.from_builtin_tensor",
        "torch_c.to_builtin_tensor",
        "torch_c.to_i64",
        "torch_c.from_i64",
        "torch_c.to_f64",
        "torch_c.from_f64",
        "torch_c.to_i1",
        "torch_c.from_i1",
        "torch.aten.size.int",
        "torch.bind_symbolic_shape",
        "torch.symbolic_int",
    ]
)


_BORDER = {
    "torch.constant.int": ("i64", "torch_c.from_i64"),
    "torch.constant.float": ("f64", "torch_c.from_f64"),
    "torch.constant.bool": ("i1", "torch_c.from_i1"),
}


def convert_returned_constants(module: Any, context: Any) -> int:
    """Torch constants that a function returns, as builtin constants cast at the border.

    While rules run, constants must stay: patterns look for them. Returns how many changed.
    """
    changed = 0
    for function in module.body.operations:
        for region in function.operation.regions:
            for block in region.blocks:
                last = list(block.operations)[-1:]
                for terminator in last:
                    for n, value in enumerate(terminator.operands):
                        owner = value.owner
                        if isinstance(owner, ir.Block) or owner.name not in _BORDER:
                            continue
                        plain, cast = _BORDER[owner.name]
                        type_ = ir.Type.parse(plain, context)
                        attribute = owner.attributes["value"]
                        if plain == "i1":
                            attribute = ir.IntegerAttr.get(type_, int(ir.BoolAttr(attribute).value))
                        ip = ir.InsertionPoint(terminator)
                        constant = ir.Operation.create(
                            "arith.constant",
                            results=[type_],
                            attributes={"value": attribute},
                            ip=ip,
                            loc=owner.location,
                        )
                        made = ir.Operation.create(
                            cast,
                            results=[value.type],
                            operands=[constant.result],
                            ip=ip,
                            loc=owner.location,
                        )
                        terminator.operands[n] = made.result
                        changed += 1
    if changed:
        sweep(module, _CONSTANTS)
    return changed


def leftovers(module: Any) -> Counter[str]:
    """The torch ops that no rule has converted; casts and constants at the border do not count."""
    return unconverted.counted(module, _CONSTANTS | _METADATA)


_METADATA = frozenset(["torch.bind_symbolic_shape", "torch.symbolic_int"])


def write_trace(
    path: str | Path, applications: Sequence[Application], decisions: Sequence[Any] = ()
) -> None:
    """Write applications, and what cost stages decided, as JSON lines; through a temporary file."""
    lines = [item.as_json() + "\n" for item in (*applications, *decisions)]
    pdll.write_atomically(Path(path), "".join(lines))
