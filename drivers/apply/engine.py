"""The drivers: how a rule set is applied to a module.

``greedy`` is MLIR's own driver running PDL that was generated from the rules; ``walk`` looks at
every op once; ``conversion`` looks again at what rules make, and matches the program as it was;
``saturate`` takes rules for equalities and then the cheapest program.
All of them share one matcher and one set of rewrites, so that a rule means the same everywhere.
"""

from __future__ import annotations

import fnmatch
import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from mlirules.drivers.apply import conversion, kernels
from mlirules.drivers.apply import leftovers as unconverted
from mlirules.drivers.apply import walk as walking
from mlirules.drivers.apply.present import Present, op_names
from mlirules.drivers.apply.run import CONSTANTS, LARGE, Options, Outcome, Run
from mlirules.drivers.iree.compiler import Op, ir, rewrite
from mlirules.drivers.iree.traversal import is_open, ops_below
from mlirules.drivers.match.liveness import Marks
from mlirules.drivers.match.matcher import Matcher
from mlirules.drivers.match.places import Numbered
from mlirules.drivers.match.results import ANYWHERE, Around, Refusal
from mlirules.generator import names
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean
from mlirules.language.library import Entry
from mlirules.language.rule import Rule

if TYPE_CHECKING:
    from mlirules.language.config.op import ConfigRule

AnyRule = TypeVar("AnyRule", bound="Rule | ConfigRule | Entry")


def _fits(rule: AnyRule, glob: str) -> bool:
    if glob.startswith("tag:"):
        return any(fnmatch.fnmatchcase(t, glob[4:]) for t in rule.tags)
    if glob.startswith("kind:"):
        return fnmatch.fnmatchcase(rule.kind, glob[5:])
    return fnmatch.fnmatchcase(rule.name, glob) or fnmatch.fnmatchcase(rule.origin, glob)


def chosen(
    rules: Sequence[AnyRule], only: Sequence[str] = (), skip: Sequence[str] = ()
) -> list[AnyRule]:
    """The rules that filters leave: globs over name, origin, `tag:TAG` or `kind:KIND`."""
    return [
        r
        for r in rules
        if (not only or any(_fits(r, g) for g in only)) and not any(_fits(r, g) for g in skip)
    ]


def select(
    rules: Sequence[AnyRule], only: Iterable[str] = (), skip: Iterable[str] = ()
) -> list[AnyRule]:
    """As :func:`chosen`.

    Raises :class:`MlirulesError` for a filter that fits no rule: it would do nothing, silently.
    """
    only, skip = list(only), list(skip)
    for flag, globs in (("--only", only), ("--skip", skip)):
        for glob in globs:
            if not any(_fits(r, glob) for r in rules):
                raise MlirulesError(
                    Fault(
                        Span(f"{flag} {glob}"),
                        "filter",
                        "fits no rule of the set",
                        did_you_mean(glob, [r.name for r in rules])
                        or "filters are globs over rule names, tag:TAG or kind:KIND",
                    )
                )
    return chosen(rules, only, skip)


class _Frozen:
    """A frozen pattern set, and what must outlive it.

    Destroying a pattern set after its context aborts the process, and the collector that breaks
    cycles promises no order; but it calls finalizers first. The bindings need not keep alive the
    functions that they are given.
    """

    __slots__ = ("_context", "_module", "_natives", "patterns")

    def __init__(
        self,
        patterns: rewrite.FrozenRewritePatternSet,
        module: ir.Module,
        natives: object,
        context: ir.Context,
    ) -> None:
        self.patterns = patterns
        self._module = module
        self._natives = natives
        self._context = context

    def __del__(self) -> None:
        del self.patterns
        del self._module


class Engine:
    """Applies rules to modules of one context. Reusable: it keeps matchers and rewrites."""

    def __init__(self, rules: Sequence[Rule], context: ir.Context) -> None:
        self.rules: list[Rule] = []
        self.context = context
        self.matchers: dict[str, Matcher] = {}
        self.include(rules)
        self._frozen: dict[frozenset[str], _Frozen] = {}
        # The innermost run last: what MLIR calls back belongs to that.
        self._runs: list[Run] = []

    def include(self, rules: Sequence[Rule]) -> None:
        """Take further rules of the same set; those that are here already stay as they are."""
        new = [rule for rule in rules if rule.name not in self.matchers]
        if new:
            self.matchers |= {r.name: Matcher(r, self.context) for r in new}
            self.rules = sorted([*self.rules, *new], key=lambda r: r.order)

    def rule(self, rule: Rule) -> Rule | None:
        """The rule of the same name that this engine applies."""
        found = self.matchers.get(rule.name)
        return found.rule if found is not None else None

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
                if any(r in names for r in rule.root_ops) and rule.op_names <= names | CONSTANTS:
                    chosen.add(rule.name)
                    if not rule.produced_ops <= names:
                        names |= rule.produced_ops
                    grown = True
            if not grown:
                return [r for r in self.rules if r.name in chosen]

    def frozen(self, rules: Sequence[Rule]) -> rewrite.FrozenRewritePatternSet:
        """The rules as a frozen pattern set of PDL, every native bound."""
        key = frozenset(r.name for r in rules)
        found = self._frozen.get(key)
        if found is not None:
            return found.patterns
        from mlirules.generator.emit import pdll  # the walk driver writes no patterns

        text = pdll.pdl(rules)
        natives: dict[str, Callable[..., object]] = {}
        for rule in rules:
            ident = names.identifier(rule.name)
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

        def holds(_rewriter: object, _results: object, values: Sequence[Op]) -> bool:
            # The bindings' convention: True means failure.
            run = runs[-1]
            if run.stop:
                return True
            try:
                root = values[0].operation
                if not matcher.may(root):
                    return True
                match = matcher.match(root, run.around)
            except BaseException as error:  # noqa: BLE001 - must not unwind through the C++ driver
                run.fail(error)
                return True
            if isinstance(match, Refusal):
                if match.error is not None:
                    run.fail(match.error)
                return True
            # What an earlier fusion left without users is no place for another.
            if run.applied and rule.kind == "fusion" and run.around.dead(match.root):
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

        def build(
            rewriter: rewrite.PatternRewriter, _results: object, values: Sequence[Op]
        ) -> None:
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

    def run(self, module: ir.Module, options: Options, present: Present | None = None) -> Outcome:
        """Apply the rules to ``module`` in place.

        ``present`` is what there is in it, where the caller has looked.

        Raises :class:`MlirulesError` when a rule is at fault (its rewrite does not verify) or the
        rule set does not terminate.
        """
        outcome = Outcome()
        if options.driver == "walk" or (
            options.driver == "conversion" and not conversion.may_loop(self.rules)
        ):
            # It meets every op once, so it needs no bound, and sees for itself what there is.
            rules = self.rules
            run = self._new_run(options, outcome, options.bound or sys.maxsize)
        else:
            names = (present or Present(module)).ops
            rules = self.relevant(names)
            if not rules:
                outcome.untouched = True
                return outcome
            size = sum(names.values())
            run = self._new_run(options, outcome, options.bound or max(2000, 40 * size))
            # Symbols of dims may have had no use from the start.
            run.may_leave_dead |= "torch.symbolic_int" in names
        if options.max_rewrites is not None and options.max_rewrites <= 0:
            outcome.stopped = True
            return outcome
        if options.driver != "saturate" and any(
            r.kind == "fusion" or self.matchers[r.name].structural for r in rules
        ):
            run.marks = Marks(module)
            run.around = Around(options.target, run.marks.dead, cpu=options.cpu)
        # A trace shows ops as they stand in the program, without marks.
        if not options.record and options.driver != "saturate":
            run.around = replace(run.around, places=Numbered(module))
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
                conversion.apply(run, module, rules)
            elif options.driver == "walk":
                walking.apply(run, module, rules)
            elif options.driver == "saturate":
                from mlirules.drivers.apply import saturating  # much, and few stages saturate

                saturating.apply(run, module, rules, self._replay)
            else:
                self._greedy(module, rules, options, run)
        except ir.MLIRError as error:
            if run.error is None:
                raise MlirulesError.at(
                    options.driver, f"the driver failed: {error}", code="driver"
                ) from None
        finally:
            self._runs.pop()
            run.instantiator.erase_unused()
            if run.marks is not None:
                run.marks.erase()
            run.around.places.erase()
            if collecting:
                gc.enable()
        run.raise_if_failed()
        if run.applied and run.may_leave_dead:
            sweep(module, run.inner_names)
        if any(self.matchers[name].rule.variants for name in outcome.counts):
            made = [t for r in self.rules if r.variants for t in self.matchers[r.name].rewrites()]
            kernels.place(module, made)
        if options.driver == "conversion" and options.full and not run.stop:
            conversion.check_full(leftovers(module))
        outcome.seconds = time.perf_counter() - started
        return outcome

    def _new_run(self, options: Options, outcome: Outcome, bound: int) -> Run:
        return Run(self.rules, self.matchers, self.context, options, outcome, bound)

    def _greedy(self, module: ir.Module, rules: Sequence[Rule], options: Options, run: Run) -> None:
        config = rewrite.GreedyRewriteConfig()
        config.use_top_down_traversal = options.order == "top-down"
        config.enable_folding = options.fold
        config.enable_constant_cse = False
        config.region_simplification_level = rewrite.GreedySimplifyRegionLevel.DISABLED
        config.max_iterations = -1
        try:
            if _one_by_one(rules, options):
                conversion.apply(run, module, rules)
                if run.stop:
                    return
            rewrite.apply_patterns_and_fold_greedily(module, self.frozen(rules), config)
        except RuntimeError as error:
            if run.error is None and not run.stop:
                raise MlirulesError.at(
                    "greedy", f"the driver failed: {error}", code="driver"
                ) from None

    def _replay(self, rule: Rule, module: ir.Module) -> int:
        """Apply one rule once, as the greedy driver does."""
        return Engine([rule], self.context).run(module, Options(max_rewrites=1)).total

    def explain(self, rule: Rule, op: ir.Operation, around: Around = ANYWHERE) -> Refusal | None:
        """Why ``rule`` does not apply at ``op``; None when it does."""
        return self.matchers[rule.name].explain(op, around)


def _one_by_one(rules: Sequence[Rule], options: Options) -> bool:
    """Whether each rule looks at one op, so that it makes no difference in which order they go.

    Then a walk, which is quicker, does what there is to do, and the driver finds what is left.
    """
    if options.record or options.accept is not None or options.max_rewrites is not None:
        return False
    if options.fold:  # what folds is not for rules
        return False
    return options.order == "top-down" and all(len(rule.match) == 1 for rule in rules)


def sweep(module: ir.Module, names: Iterable[str]) -> int:
    """Erase ops of the given names whose results nobody uses. Returns how many went."""
    wanted = frozenset(names) | _DEAD_CASTS
    below = ops_below(module.operation, lambda op: op.name not in wanted and is_open(op))
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


def convert_returned_constants(module: ir.Module, context: ir.Context) -> int:
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
        sweep(module, CONSTANTS)
    return changed


def leftovers(module: ir.Module) -> Counter[str]:
    """The torch ops that no rule has converted; casts and constants at the border do not count."""
    return unconverted.counted(module, CONSTANTS | _METADATA)


_METADATA = frozenset(["torch.bind_symbolic_shape", "torch.symbolic_int"])
