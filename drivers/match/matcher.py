"""Matching a rule against the IR: one matcher for every driver and for explanations.

The generated PDL finds the skeleton (op names and operand structure) fast, in C++; what it finds
comes here to be checked in full. :meth:`Matcher.match` answers with a :class:`Match` or a
:class:`Refusal`, which says which line of the rule refused.

A rule's verdict and its lowered rewrite depend only on types and constants, so both are computed
once per distinct combination (the *key*) and looked up afterwards.
"""

from __future__ import annotations

from typing import Any

from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.match.attempt import State, Stop, Verdict
from mlirules.drivers.match.beside import Beside
from mlirules.drivers.match.diagnosis import Diagnosing
from mlirules.drivers.match.equations import Equations
from mlirules.drivers.match.judging import Judging
from mlirules.drivers.match.results import ANYWHERE, ONLY_TENSORS, Around, Diagnosis, Match, Refusal
from mlirules.drivers.match.rewrites import Rewrite
from mlirules.drivers.match.structure import Structure
from mlirules.drivers.match.values import Tensors, is_used
from mlirules.language.notation import ast
from mlirules.language.rule import Rule

# How many combinations of types and constants a matcher remembers between runs.
MAX_DECIDED = 20_000


class Matcher:
    """Matches one rule. Keep one instance per rule and context: it holds the caches."""

    def __init__(self, rule: Rule, context: ir.Context) -> None:
        self.rule = rule
        self.structure = Structure(rule)
        self.equations = Equations(rule)
        self.beside = Beside(rule, self.structure)
        self.judging = Judging(rule, self.structure, context)
        self.diagnosing = Diagnosing(rule, self.structure, self.equations, self.judging)
        self.other_roots = rule.other_roots
        #: The conditions that ask about uses.
        self.structural = self.judging.structural
        # A single op without alternatives is the common case, and needs no backtracking.
        self.fast_names = self._simple_operands()
        self.root_op = rule.root.op if self.fast_names is not None else ""
        self.fast_range = range(len(self.fast_names or ()))
        self.one_result = len(rule.root_results) == 1
        self._rank = self._result_rank()
        self.fast: dict[object, Verdict] = {}
        self.tensors = Tensors()

    def _simple_operands(self) -> list[str] | None:
        """The operands' names where the pattern is one op over distinct tensors, else None.

        Where the operands are tensors, types alone decide on such a rule, and a match is one look
        into a table.
        """
        if len(self.rule.match) != 1 or self.structural or self.rule.index_match:
            return None
        if self.judging.fixed:
            return None
        # The target and consent count, too.
        if self.rule.variants or self.judging.native is not None:
            return None
        call = self.rule.root.equation.call
        names = [a.id for a in call.args if isinstance(a, ast.Name)]
        plain = len(names) == len(call.args) == len(set(names)) and not call.attrs
        plain = plain and "." in call.fn and self.rule.root.equation.each is None
        if not plain or call.fn in self.structure.commutative or self.rule.root.equation.pack:
            return None
        return names

    def _result_rank(self) -> int | None:
        """How many dims the root's result has by the rule's equation, if that says it."""
        if not self.rule.index_match:
            return None
        indices = self.rule.index_match[-1][1].indices
        return None if any(isinstance(index, ast.Pack) for index in indices) else len(indices)

    def may(self, op: ir.Operation) -> bool:
        """Whether the rule may match at ``op``, by what is seen at once.

        Drivers ask this before :meth:`match`, which takes many times as long to say why not.
        """
        if self._rank is None or len(op.results) != 1:
            return True
        type_ = op.result.type
        return not isinstance(type_, ir.RankedTensorType) or bool(type_.rank == self._rank)

    def rewrites(self) -> list[Rewrite]:
        """What the rule has made of the matches so far, one for each distinct kind of match."""
        return [v.rewrite for v in self.judging.cache.values() if v.rewrite is not None]

    def match(self, op: ir.Operation, around: Around = ANYWHERE) -> Match | Refusal:
        """The rule's match at ``op``, or why there is none.

        A refusal with an ``error`` is a fault of the rule. Nothing of an attempt is kept but what
        types and constants decide.
        """
        if self.fast_names is not None and op.name == self.root_op:
            operands = op.operands
            values = (
                [operands[i] for i in self.fast_range]
                if len(operands) == len(self.fast_range)
                else list(operands)
            )
            key = [v.type for v in values]
            if self.one_result and len(op.results) == 1:
                key.append(op.result.type)
            else:
                key += [v.type for v in op.results]
            whole = tuple(key)
            verdict = self.fast.get(whole)
            if verdict is not None and len(values) == len(self.fast_names):
                if verdict.rewrite is None:
                    assert verdict.refusal is not None
                    return verdict.refusal
                return Match(
                    self.rule,
                    op,
                    dict(zip(self.fast_names, values, strict=True)),
                    verdict.rewrite,
                    ONLY_TENSORS,
                    verdict.env,
                )
            state = State(around)
            found = self._attempt(op, around, state)
            if state.verdict is not None and self.tensors.all(key):
                self.fast[whole] = state.verdict
                if isinstance(found, Match):
                    found.inner = ONLY_TENSORS
            return found
        return self._attempt(op, around)

    def _attempt(
        self, op: ir.Operation, around: Around, state: State | None = None
    ) -> Match | Refusal:
        try:
            return self._match(op, around, state)
        except Stop as stop:
            return stop.refusal

    def explain(self, op: ir.Operation, around: Around = ANYWHERE) -> Refusal | None:
        """Why the rule does not apply at ``op``, or None when it does."""
        found = self._attempt(op, around)
        return found if isinstance(found, Refusal) else None

    def trim(self) -> None:
        """Forget what was decided, when that has become much. Not while a run goes on."""
        kept: tuple[dict[Any, Any], ...] = (
            self.judging.cache,
            self.judging.inference.known,
            self.fast,
            self.tensors.known,
            self.diagnosing.judged,
        )
        for cache in kept:
            if len(cache) > MAX_DECIDED:
                cache.clear()

    def diagnose(
        self, op: ir.Operation, around: Around = ANYWHERE, *, rewrite: bool = True
    ) -> Diagnosis:
        """All that keeps the rule from applying at ``op``, in the rule's order, and how near it is.

        ``op`` has one of the rule's root names. With no refusal the rule applies; ``rewrite=False``
        leaves out what only lowering its rewrite tells, which takes longest.
        """
        return self.diagnosing.diagnose(op, around, self.explain, rewrite=rewrite)

    def holds(self, op: ir.Operation, around: Around = ANYWHERE) -> bool:
        """Whether :meth:`diagnose` without the rewrite would find no refusal, at less cost."""
        return self.diagnosing.holds(op, around, self.explain)

    def _match(self, op: ir.Operation, around: Around, first: State | None = None) -> Match:
        if self.rule.equation is not None:
            return self._match_equation(op, around)
        # Not the exception: the frames that it holds would hold it, and stay for the collector.
        best: Refusal | None = None
        for swaps in self.structure.choices():
            state = first if first is not None else State(around)
            if self.structure.several:
                found = self._match_ways(op, state, swaps)
                if isinstance(found, Match):
                    return found
                if best is None or found.depth > best.depth:
                    best = found
                continue
            try:
                self.structure.op(self.rule.root, len(self.rule.match) - 1, op, state, swaps)
                if not self.other_roots:
                    return self.judging.judge(op, state)
                return self._match_others(op, state, swaps)
            except Stop as stop:
                if best is None or stop.refusal.depth > best.depth:
                    best = stop.refusal
        assert best is not None
        raise Stop(best)

    def _match_ways(
        self, op: ir.Operation, start: State, swaps: tuple[bool, ...]
    ) -> Match | Refusal:
        """The match with the first way to divide its lists that fits, or what came nearest."""
        refusals: list[Refusal] = []
        last = len(self.rule.match) - 1
        for state in self.structure.ways(self.rule.root, last, op, start, swaps, refusals):
            try:
                if self.other_roots:
                    return self._match_others(op, state, swaps)
                return self.judging.judge(op, state)
            except Stop as stop:
                refusals.append(stop.refusal)
                if stop.refusal.error is not None:
                    break
        return max(refusals, key=lambda r: (r.error is not None, r.depth))

    def _match_others(self, op: ir.Operation, state: State, swaps: tuple[bool, ...]) -> Match:
        """The match with the first ops that can be its further roots, in the program's order."""
        refusals: list[Refusal] = []
        if not is_used(op):
            raise Stop(Refusal(self.rule.root.line, f"nothing uses the result of {op.name}"))
        for trial in self.beside.others(self.other_roots, op, state, swaps, refusals):
            try:
                match = self.judging.judge(op, trial)
                match.others = [trial.ops[n].operation for n in self.other_roots]
                self.beside.place(match, op, state.around.places)
            except Stop as stop:
                refusals.append(stop.refusal)
            else:
                return match
        raise Stop(max(refusals, key=lambda r: r.depth))

    def _match_equation(self, op: ir.Operation, around: Around) -> Match:
        refusals: list[Refusal] = []
        start = State(around, symbols={"op": op.name}, depth=10)
        for state in self.equations.ways(len(self.rule.index_match) - 1, op, start, refusals):
            try:
                return self.judging.judge(op, state)
            except Stop as stop:
                refusals.append(stop.refusal)
        raise Stop(max(refusals, key=lambda r: r.depth))
