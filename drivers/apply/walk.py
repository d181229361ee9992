"""The walk driver: every op of the program once, in order, the ops of its regions before it.

What a rule makes stands before the op that it replaces, where the walk has been already: it is not
looked at again. The walk is a loop in Python, because a pattern that calls back into Python crosses
the border several times more for every op than looking at the op does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

from mlirules.drivers.apply.placing import ISOLATED, Scope
from mlirules.drivers.apply.run import Run
from mlirules.drivers.apply.uncast import Uncast
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.traversal import EXECUTABLES, Steps, finish
from mlirules.drivers.match.matcher import Matcher
from mlirules.drivers.match.places import following
from mlirules.drivers.match.results import Match
from mlirules.drivers.match.rewrites import Read, Rewrite
from mlirules.drivers.match.values import Tensors
from mlirules.language.rule import Rule

# Ops that cannot have regions, or whose regions are not entered; asking an op costs more than
# comparing its name once.
_FLAT = ("torch.aten.", "torch.constant.", "torch.prims.", "torch_c.", *EXECUTABLES)


@dataclass(slots=True)
class _Plan:
    """What becomes of an op of these types: a rule's rewrite, and how often it did."""

    rule: Rule
    rewrite: Rewrite
    reads: list[Read]  # the rewrite's arguments, by the number of the operand
    result: int  # the slot of its result
    #: It reads torch values where the walk has builtin ones: these are cast before it.
    settles: bool = False
    count: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Site:
    """What there is to know about ops of one name."""

    matchers: list[Matcher]  # in the order in which they are tried
    #: Whether types alone decide, of ops whose operands are tensors.
    by_types: bool
    may_nest: bool
    foreign: bool  # to torch: what it reads and makes may have builtin types
    #: By the types of operands and result: the plan, or None where no rule applies.
    plans: dict[Any, _Plan | None] = field(default_factory=dict)
    #: The types looked up last, and what was found: comparing costs less than hashing.
    last_key: list[Any] = field(default_factory=list)
    last_plan: _Plan | None = None


class Walk:
    """One walk over a module."""

    def __init__(
        self, run: Run, rules: Sequence[Rule], again: frozenset[str] = frozenset()
    ) -> None:
        self.run = run
        #: Names of ops that are looked at again where a rule makes them.
        self.again = again
        self.instantiator = run.instantiator
        self.sites: dict[str, Site] = {}
        options = run.options
        #: Whether there is something to do, or to stop for, at every single application.
        self.one_by_one = (
            options.record or options.max_rewrites is not None or options.bound is not None
        )
        # What several roots became one of, and is still to be erased: what the loop over the block
        # holds cannot go, nor what it goes on to from there.
        self._replaced: list[Any] = []
        self._several = any(run.matchers[rule.name].other_roots for rule in rules)
        self._plans: list[_Plan] = []
        self._tensors = Tensors()
        #: Results in their builtin types: not where rules look at what reads a value.
        self.uncast = Uncast(self.instantiator.unknown)
        self.uncast.allowed = run.marks is None and not self._several and not self.one_by_one
        self.instantiator.uncast = self.uncast
        self._matchers: dict[str, list[Matcher]] = {}
        for rule in sorted(rules, key=lambda rule: -rule.benefit):
            for name in rule.root_ops:
                self._matchers.setdefault(name, []).append(run.matchers[rule.name])

    def over(self, module: Any) -> None:
        """Visit all ops of ``module``."""
        finish(self._operation(module.operation, None))

    def _operation(self, operation: Any, scope: Scope | None) -> Steps:
        """Visit the ops in the regions of ``operation``; ``scope`` is where it stands."""
        for region in operation.regions:
            blocks = _reachable(region)
            if len(blocks) > 1 or len(region.blocks) > len(blocks):
                self._end_uncast(operation)
            for block in blocks:
                if any(isinstance(a.type, ir.RankedTensorType) for a in block.arguments):
                    self._end_uncast(operation)
                yield self._block(block, scope)

    def _end_uncast(self, op: Any) -> None:
        """From ``op`` on all results are torch values, as those before it that are read later."""
        if self.uncast.allowed:
            self.uncast.end(op)
            for site in self.sites.values():
                site.plans, site.last_key, site.last_plan = {}, [], None

    def _block(self, block: Any, outer: Scope | None) -> Steps:
        """Visit the ops of ``block``, which stands inside ``outer``."""
        run = self.run
        sites = self.sites
        one_by_one = self.one_by_one
        uncast = self.uncast
        scope = self.instantiator.scope_of(block, outer)
        self.instantiator.scope = scope
        for view in block.operations:
            op = view.operation  # classes of ops give some properties another meaning
            if self._replaced and self._erase_replaced(op):
                continue
            name = op.name
            site = sites.get(name)
            if site is None:
                site = sites[name] = self._site(name)
            if site.foreign and uncast.allowed:
                self._end_uncast(op)
            if site.may_nest and len(op.regions):
                if name not in ISOLATED:
                    self._end_uncast(op)
                yield self._operation(op, scope)
                self.instantiator.scope = scope
            if run.stop:
                return
            if site.by_types and not one_by_one:
                self._look_up(site, op)
                continue
            if uncast.torch:
                uncast.settle(op)
            if site.matchers:
                self._match(site, op)
        self._erase_replaced(None)

    def _erase_replaced(self, current: Any, *, keep: bool = False) -> bool:
        """Erase the ops that went with the last root; whether ``current`` was one of them.

        ``keep``: erase all but ``current``, which the walk holds as the next one to visit.
        """
        gone = current in self._replaced
        for op in self._replaced:
            if not (keep and op == current):
                op.erase()
        self._replaced = [current] if keep and gone else []
        return gone

    def _site(self, name: str) -> Site:
        matchers = self._matchers.get(name, [])
        by_types = bool(matchers) and all(
            m.fast_names is not None
            and m.one_result
            and (not self.again or self.again.isdisjoint(m.rule.produced_ops))
            for m in matchers
        )
        foreign = self.uncast.foreign(name)
        return Site(matchers, by_types, not name.startswith(_FLAT), foreign)

    def _match(self, site: Site, op: Any) -> None:
        """Apply the first rule that matches at ``op``, and to what it makes where that counts."""
        run = self.run
        # The loop over the block goes on to this one.
        held = following(op) if self._several else None
        # What is to be looked at, the next one last.
        left = [(site, op)]
        while left and not run.stop:
            site, op = left.pop()
            for matcher in site.matchers:
                if not matcher.may(op):
                    continue
                match = matcher.match(op, run.around)
                if isinstance(match, Match):
                    looks_again = not self.again.isdisjoint(match.rule.produced_ops)
                    self.instantiator.keep = looks_again
                    left += self._apply(match, op, held, looks_again=looks_again)
                    break
                if match.error is not None:
                    run.fail(match.error)
                    break

    def _apply(
        self, match: Match, op: Any, held: Any, *, looks_again: bool
    ) -> list[tuple[Site, Any]]:
        """Put what a rule makes in the place of ``op``; what of that is to be looked at."""
        made = self.run.apply(match, op, partial(self._replace_beside, op))
        created = self._legalised() if looks_again else []
        for result, value in zip(op.results, made, strict=True):
            result.replace_all_uses_with(value)
        op.erase()
        if self._replaced:
            self._erase_replaced(held, keep=True)
        self.instantiator.erase_passed()
        return created

    def _legalised(self) -> list[tuple[Site, Any]]:
        """Those of the ops that were just made that are to be looked at, the first one last."""
        found = []
        for op in reversed(self.instantiator.last_created):
            name = op.name
            if name in self.again:
                site = self.sites.get(name)
                if site is None:
                    site = self.sites[name] = self._site(name)
                found.append((site, op))
        return found

    def _replace_beside(self, root: Any, op: Any, values: list[Any]) -> None:
        """Replace an op that goes with ``root``.

        The walk may hold it as the next one to visit. Then it is erased a step later, and stands
        where ``root`` was: what comes after it is what came after ``root``.
        """
        for result, value in zip(op.results, values, strict=True):
            result.replace_all_uses_with(value)
            self.instantiator.forget(result)
        self.run.around.places.moves(op)
        op.move_before(root)
        self._replaced.append(op)

    def _look_up(self, site: Site, op: Any) -> None:
        """Like :meth:`_match`, for rules that types alone decide: one look into a table."""
        operands = op.operands
        if len(operands) == 1:  # most ops; a loop costs more, and a comprehension is one more call
            value = operands[0]
            values, key = [value], [value.type]
        else:
            values, key = [], []
            for n in range(len(operands)):
                value = operands[n]
                values.append(value)
                key.append(value.type)
        uncast = self.uncast
        try:
            result = op.result
        except ValueError:  # several results, or none, where the rules have one
            if uncast.torch:
                uncast.settle(op)
            self._match(site, op)
            return
        key.append(result.type)
        if key == site.last_key:
            plan = site.last_plan
        else:
            whole = tuple(key)
            if whole not in site.plans and not self._learn(site, op, whole):
                return
            plan = site.last_plan = site.plans[whole]
            site.last_key = key
        if plan is None:
            if uncast.torch:
                uncast.settle(op)
            return
        started = perf_counter()
        if plan.settles:
            uncast.settle(op)
            values = list(op.operands)
        instantiator = self.instantiator
        slots = instantiator.place(plan.rewrite, plan.reads, values, op)
        if self.run.marks is not None:
            self.run.marks.goes(op, [slots[plan.result]])
        result.replace_all_uses_with(slots[plan.result])
        op.erase()
        if instantiator.passed:
            instantiator.erase_passed()
        plan.count += 1
        plan.seconds += perf_counter() - started

    def _learn(self, site: Site, op: Any, types: tuple[Any, ...]) -> bool:
        """Find the plan for an op of these types; False when all is done for this op."""
        uncast = self.uncast
        if not self._tensors.all(types):
            if uncast.torch:
                uncast.settle(op)
            self._match(site, op)
            return False
        torch = (*(uncast.torch.get(t, t) for t in types[:-1]), types[-1])
        if torch == types:
            found = self._plan(site, op, types[-1])
            if self.run.stop:
                return False
            site.plans[types] = found
            return True
        if torch in site.plans:
            site.plans[types] = self._of_builtin(site.plans[torch], types, torch)
            return True
        # The first of its kind, as it was.
        uncast.settle(op)
        self._look_up(site, op)
        return False

    def _plan(self, site: Site, op: Any, torch: Any) -> _Plan | None:
        for matcher in site.matchers:
            match = matcher.match(op, self.run.around)
            if isinstance(match, Match):
                assert matcher.fast_names is not None
                number = {name: n for n, name in enumerate(matcher.fast_names)}
                rewrite = match.rewrite
                # A cast that only fed what a rewrite does not read is dead afterwards.
                self.run.may_leave_dead |= len(rewrite.reads) < len(number)
                reads = [(number[path], *rest) for path, *rest in rewrite.reads]
                if self.uncast.allowed and self.uncast.takes(rewrite.bare, torch):
                    assert rewrite.bare is not None
                    rewrite = rewrite.bare.rewrite
                return self._kept(_Plan(matcher.rule, rewrite, reads, rewrite.returned[0]))
            if match.error is not None:
                self.run.fail(match.error)
                return None
        return None

    def _of_builtin(
        self, plan: _Plan | None, types: tuple[Any, ...], torch: tuple[Any, ...]
    ) -> _Plan | None:
        """The plan where some operands are builtin values."""
        if plan is None:
            return None
        left = {n for n, type_ in enumerate(types) if type_ != torch[n]}
        if any(n in left and type_ != types[n] for n, _, _, type_ in plan.reads):
            return self._kept(replace(plan, settles=True, count=0, seconds=0.0))
        reads = [(n, "", "", t) if n in left else (n, *rest, t) for n, *rest, t in plan.reads]
        return self._kept(replace(plan, reads=reads, count=0, seconds=0.0))

    def _kept(self, plan: _Plan) -> _Plan:
        self._plans.append(plan)
        return plan

    def finish(self) -> None:
        """Put what was counted on the way into the run's statistics."""
        for plan in self._plans:
            if plan.count:
                self.run.count(plan.rule, plan.seconds, plan.count)


def _reachable(region: Any) -> list[Any]:
    """The region's blocks that can be reached from the first one, in their order."""
    blocks = list(region.blocks)
    if len(blocks) < 2:
        return blocks
    found = [blocks[0]]
    for block in found:
        found += [b for b in block.successors if not any(b == seen for seen in found)]
    return [b for b in blocks if any(b == seen for seen in found)]


def over(walk: Walk, module: Any) -> None:
    """Visit all ops of ``module``. What goes wrong is left in the run."""
    run = walk.run
    try:
        walk.over(module)
    except BaseException as error:  # noqa: BLE001 - the caller raises it, as for other drivers
        run.fail(error)
    walk.finish()
    # Symbols of dims may have had no use from the start.
    run.may_leave_dead |= "torch.symbolic_int" in walk.sites


def apply(run: Run, module: Any, rules: Sequence[Rule]) -> None:
    """Apply ``rules`` to ``module`` in place. What goes wrong is left in ``run``."""
    over(Walk(run, rules), module)
