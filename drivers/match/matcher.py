"""Matching a rule against the IR: one matcher for every driver and for explanations.

The generated PDL finds the skeleton (op names and operand structure) fast, in C++; what it finds
comes here to be checked in full. :meth:`Matcher.match` answers with a :class:`Match` or None, and
:meth:`Matcher.explain` says which line of the rule refused.

A rule's verdict and its lowered rewrite depend only on types and constants, so both are computed
once per distinct combination (the *key*) and looked up afterwards.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.match import indexing
from mlirules.drivers.match import rewrites as templates
from mlirules.drivers.match.liveness import is_dead
from mlirules.generator.lowering.kernel import lower_kernel
from mlirules.generator.lowering.lower import lower
from mlirules.generator.lowering.values import LoweringError, tensor_of_type
from mlirules.language import consent, words
from mlirules.language.builtins import FUNCTIONS
from mlirules.language.evaluate import Evaluator
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression
from mlirules.language.operands import Refused, truth
from mlirules.language.rule import Line, OpPattern, Rule, nested_calls
from mlirules.language.signs import said_by
from mlirules.language.unify import NoMatch, bind
from mlirules.language.values import Dyn, Opaque, Scalar, Tensor, dtype_named
from mlirules.language.words import source, spelt

_TORCH_CONSTANTS = {
    "torch.constant.int": "int",
    "torch.constant.float": "float",
    "torch.constant.bool": "bool",
    "torch.constant.str": "str",
    "torch.constant.none": "none",
}


@dataclass
class Refusal:
    """Why a rule does not apply at an op: the line that refused, and how far the match had got."""

    line: Line | None
    message: str
    expected: str = ""
    found: str = ""
    depth: int = 0
    node: ast.Node | None = None
    #: The op of the program that stands where the rule wants something else, when not the root.
    at: Any = None
    suggestion: str = ""
    #: The rule is at fault: it let the op in, and its rewrite does not fit.
    error: MlirulesError | None = None
    #: The rule brings native code to which the user did not agree.
    consent: bool = False

    def fault(self, rule: Rule) -> Fault:
        """The refusal as a located fault."""
        if self.line is None:
            return Fault(rule.span, "no-match", self.message, self.suggestion)
        span = self.line.span
        if self.node is not None and self.line.section != "rewrite":
            span = self.line.text.span(self.node.pos, max(1, self.node.end - self.node.pos))
        return Fault(span, "no-match", self.message, self.suggestion)


@dataclass
class Diagnosis:
    """How near a rule comes to applying at an op, and all that stands against it.

    ``passed`` of ``total`` parts of the rule (ops, operands, type lines, conditions) hold.
    ``lines`` says of each `types`, `let` and `where` line whether it holds; None: it cannot be
    judged, because what it speaks of was not found.
    """

    op: Any
    refusals: list[Refusal]
    passed: int
    total: int
    lines: list[tuple[Line, bool | None]]

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
ONLY_TENSORS: list[Any] = []


@dataclass(slots=True)
class Match:
    """A rule that fits at an op: the values bound, and the rewrite to put there."""

    rule: Rule
    root: Any
    values: dict[str, Any]  # every bound path -> ir.Value or ir.Attribute
    template: templates.Template
    inner: list[Any]  # ops below the root that may become dead
    env: dict[str, Any]
    others: list[Any] = field(default_factory=list)  # further ops that the rewrite replaces
    anchor: Any = None  # what the rewrite goes before, when that is not the root
    moved: list[Any] = field(default_factory=list)  # constants that must go before the anchor


class _Stop(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@functools.lru_cache(maxsize=20_000)
def type_info(type_: Any) -> tuple[str, Tensor | None]:
    """An MLIR type as text, and as a tensor type (unnamed) when it is one."""
    text = str(type_)
    return text, tensor_of_type("", text)


def only_tensors(types: Iterable[Any]) -> bool:
    """Whether types are those of tensors, whose values are neither constants nor lists."""
    return all(
        type_info(t)[0].startswith(("!torch.vtensor", "!torch.tensor", "tensor<")) for t in types
    )


def _named(tensor: Tensor, name: str, *, result: bool) -> Tensor:
    """A tensor type under a name: its dynamic dims become that value's dims."""
    assert tensor.dims is not None
    op = "result" if result else "dim"
    dims = tuple(d if isinstance(d, int) else Dyn(op, (name, i)) for i, d in enumerate(tensor.dims))
    return Tensor(name, dims, tensor.dtype, tensor.torch)


@dataclass(frozen=True)
class Around:
    """What a match depends on besides the op and what feeds it."""

    #: The kind of target that kernels are chosen for.
    target: str = "cpu"
    #: Whether an op is dead: uses by such ops do not count.
    dead: Callable[[Any], bool] = is_dead


ANYWHERE = Around()


@dataclass
class _State:
    """What one attempt has bound so far."""

    around: Around
    verdict: _Verdict | None = None
    values: dict[str, Any] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    ops: dict[int, Any] = field(default_factory=dict)
    inner: list[Any] = field(default_factory=list)
    symbols: dict[str, Any] = field(default_factory=dict)
    depth: int = 0
    # Explaining: what refuses is collected here, and the attempt goes on. None: the first one ends
    # it.
    refusals: list[Refusal] | None = None
    # Explaining: the first two operands of this call are taken in the other order.
    swapped: ast.Call | None = None

    def copy(self) -> _State:
        """A state to go on from; what is bound in it does not show here."""
        return replace(
            self,
            values=dict(self.values),
            lists=dict(self.lists),
            ops=dict(self.ops),
            inner=list(self.inner),
            symbols=dict(self.symbols),
        )


@dataclass
class _Verdict:
    template: templates.Template | None
    refusal: Refusal | None
    env: dict[str, Any]


class Matcher:
    """Matches one rule. Keep one instance per rule and context: it holds the caches."""

    def __init__(self, rule: Rule, context: Any) -> None:
        self.rule = rule
        self.context = context
        self.cache: dict[Any, _Verdict] = {}
        self.by_result: dict[str, tuple[int, int]] = {}
        for n, pattern in enumerate(rule.match):
            for i, name in enumerate(pattern.equation.results):
                if name:
                    self.by_result[name] = (n, i)
        # Targets of earlier equations of a match by meaning -> their places.
        self.by_target = {e.target: n for n, (_, e) in enumerate(rule.index_match[:-1])}
        self.other_roots = rule.other_roots
        self.root_results = rule.root_results
        self.commutative = frozenset(rule.doc.commutative)
        # Names that need a look at the defining op: everything that may be a constant or a list.
        self.shallow = {
            name
            for name, (_, decl) in rule.types.items()
            if decl.kind in ("vtensor", "tensor") and not decl.optional
        }
        self.native = consent.native(rule)
        self.structural = [c for c in rule.where if _asks_structure(c[1])]
        self.plain_where = [c for c in rule.where if not _asks_structure(c[1])]
        # A single op without alternatives is the common case, and needs no backtracking.
        self.fast_names = self._simple_operands()
        self.root_op = rule.root.op if self.fast_names is not None else ""
        self.fast_range = range(len(self.fast_names or ()))
        self.one_result = len(self.root_results) == 1
        self.fast: dict[Any, _Verdict] = {}
        self.judged: dict[Any, _Judged] = {}
        self.parts = _parts(rule)
        self.said = said_by(rule)
        self.alternatives = any(p.op in self.commutative for p in rule.match)

    def _simple_operands(self) -> list[str] | None:
        """The operands' names where the pattern is one op over distinct tensors, else None.

        Where the operands are tensors, types alone decide on such a rule, and a match is one look
        into a table.
        """
        if len(self.rule.match) != 1 or self.structural or self.rule.index_match:
            return None
        if self.rule.variants or self.native is not None:  # the target and consent count, too
            return None
        call = self.rule.root.equation.call
        names = [a.id for a in call.args if isinstance(a, ast.Name)]
        plain = len(names) == len(call.args) == len(set(names)) and not call.attrs
        if not plain or call.fn in self.commutative or self.rule.root.equation.pack:
            return None
        return names

    # -- public

    def templates(self) -> list[templates.Template]:
        """What the rule has made of the matches so far, one for each distinct kind of match."""
        return [v.template for v in self.cache.values() if v.template is not None]

    def match(self, op: Any, around: Around = ANYWHERE) -> Match | Refusal:
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
                if verdict.template is None:
                    assert verdict.refusal is not None
                    return verdict.refusal
                return Match(
                    self.rule,
                    op,
                    dict(zip(self.fast_names, values, strict=True)),
                    verdict.template,
                    ONLY_TENSORS,
                    verdict.env,
                )
            state = _State(around)
            found = self._attempt(op, around, state)
            if state.verdict is not None and only_tensors(key):
                self.fast[whole] = state.verdict
                if isinstance(found, Match):
                    found.inner = ONLY_TENSORS
            return found
        return self._attempt(op, around)

    def _attempt(self, op: Any, around: Around, state: _State | None = None) -> Match | Refusal:
        try:
            return self._match(op, around, state)
        except _Stop as stop:
            return stop.refusal

    def explain(self, op: Any, around: Around = ANYWHERE) -> Refusal | None:
        """Why the rule does not apply at ``op``, or None when it does."""
        found = self._attempt(op, around)
        return found if isinstance(found, Refusal) else None

    def trim(self) -> None:
        """Forget what was decided, when that has become much. Not while a run goes on."""
        for cache in (self.cache, self.fast, self.judged):
            if len(cache) > MAX_DECIDED:
                cache.clear()

    def diagnose(self, op: Any, around: Around = ANYWHERE, *, rewrite: bool = True) -> Diagnosis:
        """All that keeps the rule from applying at ``op``, in the rule's order, and how near it is.

        ``op`` has one of the rule's root names. With no refusal the rule applies; ``rewrite=False``
        leaves out what only lowering its rewrite tells, which takes longest.
        """
        if self.by_target or self.other_roots:
            return self._diagnose_whole(op, around)
        if self.rule.equation is not None:
            best = self._diagnose_equation(*self.rule.equation, op, around)
        else:
            found = [self._attempt_all(op, around, swaps, None) for swaps in self._choices()]
            best = min(found, key=lambda d: d.rank)
            if best.refusals and best.refusals[0].depth < PATTERN_HOLDS:
                best = self._other_order(op, around, best)
        if rewrite and not best.refusals:
            refusal = self.explain(op, around)  # what only the rewrite tells
            if refusal is not None:
                best.refusals.append(refusal)
        return best

    def _attempt_all(
        self, op: Any, around: Around, swaps: tuple[bool, ...], swapped: ast.Call | None
    ) -> Diagnosis:
        state = _State(around, refusals=[], swapped=swapped)
        self._op(self.rule.root, len(self.rule.match) - 1, op, state, swaps)
        return self._judge_all(op, state)

    def _other_order(self, op: Any, around: Around, best: Diagnosis) -> Diagnosis:
        """Whether the rule would fit with two operands exchanged; if so, that is the reason."""
        for pattern in self.rule.match:
            for call in nested_calls(pattern.equation.call):
                if len(call.args) < 2 or call.fn in self.commutative:
                    continue
                for swaps in self._choices():
                    trial = self._attempt_all(op, around, swaps, call)
                    if trial.refusals:
                        continue
                    first, second = call.args[:2]
                    node = ast.Node(first.pos, second.end)
                    best.refusals = [
                        Refusal(
                            pattern.line,
                            f"the first two operands of {call.fn} stand in the other order",
                            f"({source(first)}, {source(second)})",
                            f"({source(second)}, {source(first)})",
                            0,
                            node,
                            suggestion="where the order does not matter, say so: "
                            f"`commutative: [{call.fn}]`",
                        )
                    ]
                    return best
        return best

    def _diagnose_whole(self, op: Any, around: Around) -> Diagnosis:
        """The reason that an attempt got furthest with, for matches with several ways to go."""
        refusal = self.explain(op, around)
        lines: list[tuple[Line, bool | None]] = [(n, None) for n in _judged_lines(self.rule)]
        if refusal is None:
            return Diagnosis(op, [], self.parts, self.parts, [(n, True) for n, _ in lines])
        return Diagnosis(op, [refusal], min(refusal.depth, self.parts - 1), self.parts, lines)

    def _diagnose_equation(
        self, line: Line, equation: ast.IndexEquation, op: Any, around: Around
    ) -> Diagnosis:
        found = indexing.match_equation(equation, op, said=self.said)
        if isinstance(found, indexing.Miss):
            lines: list[tuple[Line, bool | None]] = [(n, None) for n in _judged_lines(self.rule)]
            refusal = Refusal(
                line,
                f"{op.name}: {found.message}",
                found.expected or str(line),
                found.found or op.name,
                found.depth,
            )
            return Diagnosis(op, [refusal], found.depth, self.parts, lines)
        symbols: dict[str, Any] = {**found.symbols, "op": op.name}
        state = _State(around, values=dict(found.inputs), symbols=symbols, depth=10, refusals=[])
        return self._judge_all(op, state)

    def _judge_all(self, op: Any, state: _State) -> Diagnosis:
        """Judge every line that can be judged, not only up to the first that refuses."""
        assert state.refusals is not None
        for refusal in state.refusals:
            refusal.depth = min(refusal.depth, PATTERN_HOLDS - 1)
        key = (self._key(op, state), tuple(state.values))
        judged = self.judged.get(key)
        if judged is None:
            judged = self.judged[key] = self._judged(op, state)
        lines = dict(judged.lines)
        refusals = [*state.refusals, *judged.refusals]
        for line, expr in self.structural:
            names = {n.id for n in walk_expression(expr) if isinstance(n, ast.Name)}
            if any(n not in judged.env and n not in state.values for n in names):
                lines[line.key, line.section] = (line, None)
                continue
            before = len(refusals)
            try:
                self._structural(line, expr, judged.env, state, op)
            except _Stop as stop:
                refusals.append(stop.refusal)
            lines[line.key, line.section] = (line, len(refusals) == before)
        # One reason has one line: what follows from it on the same line says nothing new.
        unique = {(id(r.line), r.message): r for r in refusals}
        held = sum(1 for _, holds in lines.values() if holds)
        return Diagnosis(
            op, list(unique.values()), state.depth + held, self.parts, list(lines.values())
        )

    def _judged(self, op: Any, state: _State) -> _Judged:
        rule = self.rule
        out = _Judged()
        named, _ = self._named_values(op, state)
        misses: list[NoMatch] = []
        env = out.env = bind(rule, named, misses)
        refused = {id(no.line): no for no in misses}
        # A value of the wrong kind has no say in conditions: that would tell the reason twice.
        unfit = {name for name, (line, _) in rule.types.items() if id(line) in refused}

        def note(line: Line, known: bool) -> None:
            no = refused.get(id(line))
            out.lines[line.key, line.section] = (line, (no is None) if known or no else None)

        for name, (line, _decl) in rule.types.items():
            note(line, name in named)
        for name, line, _expr, _value in rule.let:
            note(line, name in env)
        for line, expr in rule.where:
            if _asks_structure(expr):
                continue
            names = {n.id for n in walk_expression(expr) if isinstance(n, ast.Name)}
            if names & unfit or any(n not in env and dtype_named(n) is None for n in names):
                out.lines[line.key, line.section] = (line, None)
                continue
            try:
                self._condition(line, expr, env)
            except NoMatch as no:
                misses.append(no)
                out.lines[line.key, line.section] = (line, False)
            else:
                out.lines[line.key, line.section] = (line, True)
        out.refusals = [
            Refusal(
                no.line,
                no.message,
                no.expected,
                no.found,
                PATTERN_HOLDS + _progress(rule, no.line),
                no.node,
            )
            for no in misses
        ]
        return out

    # -- structure

    def _match(self, op: Any, around: Around, first: _State | None = None) -> Match:
        if self.rule.equation is not None:
            return self._match_equation(op, around)
        best: _Stop | None = None
        for swaps in self._choices():
            state = first if first is not None else _State(around)
            try:
                self._op(self.rule.root, len(self.rule.match) - 1, op, state, swaps)
                if not self.other_roots:
                    return self._judge(op, state)
                return self._match_others(op, state, swaps)
            except _Stop as stop:
                if best is None or stop.refusal.depth > best.refusal.depth:
                    best = stop
        assert best is not None
        raise best

    # -- several roots

    def _match_others(self, op: Any, state: _State, swaps: tuple[bool, ...]) -> Match:
        """The match with the first ops that can be its further roots, in the program's order."""
        refusals: list[Refusal] = []
        if not _used(op):
            raise _Stop(Refusal(self.rule.root.line, f"nothing uses the result of {op.name}"))
        for trial in self._others(self.other_roots, op, state, swaps, refusals):
            try:
                match = self._judge(op, trial)
                match.others = [trial.ops[n] for n in self.other_roots]
                self._place(match, op)
            except _Stop as stop:
                refusals.append(stop.refusal)
            else:
                return match
        raise _Stop(max(refusals, key=lambda r: r.depth))

    def _others(
        self,
        left: list[int],
        root: Any,
        state: _State,
        swaps: tuple[bool, ...],
        refusals: list[Refusal],
    ) -> Iterator[_State]:
        if not left:
            yield state
            return
        number, *rest = left
        pattern = self.rule.match[number]
        for candidate in self._candidates(pattern, root, state):
            trial = state.copy()
            try:
                self._op(pattern, number, candidate, trial, swaps)
            except _Stop as stop:
                refusals.append(stop.refusal)
                continue
            yield from self._others(rest, root, trial, swaps, refusals)
        refusals.append(
            Refusal(pattern.line, f"no other {pattern.op} shares these operands", depth=state.depth)
        )

    @staticmethod
    def _candidates(pattern: OpPattern, root: Any, state: _State) -> list[Any]:
        """Ops beside the root that share an operand with what is bound, in program order.

        Of a value that very many ops read, the ops that read it last are looked at.
        """
        call = pattern.equation.call
        shared = [
            (i, state.values[a.id])
            for i, a in enumerate(call.args)
            if isinstance(a, ast.Name) and a.id in state.values
        ]
        taken = list(state.ops.values())
        out: list[Any] = []
        for use in itertools.islice(shared[0][1].uses if shared else (), MAX_LOOKED_AT):
            op = use.owner.operation
            if op.name != call.fn or op.block != root.block or op in taken or op in out:
                continue
            # An op that an earlier application replaced may still stand here.
            if _used(op):
                out.append(op)
                if len(out) == MAX_BESIDE:
                    break
        return sorted(out, key=functools.cmp_to_key(program_order))

    def _place(self, match: Match, root: Any) -> None:
        """Find where the rewrite goes: before the first op that it replaces.

        What it reads must stand there by then; constants can be brought there.
        """
        ops = sorted([root, *match.others], key=functools.cmp_to_key(program_order))
        match.anchor = ops[0]
        moved: dict[Any, None] = {}
        for argument in match.template.lowered.arguments:
            value = match.values[argument.path]
            if isinstance(value, ir.Value) and not _brought(value, match.anchor, moved):
                name = argument.path.partition("#")[0]
                raise _Stop(
                    Refusal(
                        self.rule.root.line,
                        f"{name} is computed after the first of the ops that the rule replaces",
                        depth=PATTERN_HOLDS * 2,
                    )
                )
        match.moved = list(moved)

    # -- index equations

    def _match_equation(self, op: Any, around: Around) -> Match:
        refusals: list[Refusal] = []
        start = _State(around, symbols={"op": op.name}, depth=10)
        for state in self._equation(len(self.rule.index_match) - 1, op, start, refusals):
            try:
                return self._judge(op, state)
            except _Stop as stop:
                refusals.append(stop.refusal)
        raise _Stop(max(refusals, key=lambda r: r.depth))

    def _equation(
        self, number: int, op: Any, state: _State, refusals: list[Refusal]
    ) -> Iterator[_State]:
        """Every way in which ``op`` and what feeds it compute an equation and those before it."""
        line, equation = self.rule.index_match[number]
        if number in state.ops:
            if state.ops[number] == op:
                yield state
            else:
                refusals.append(
                    Refusal(line, "two different ops where the rule has one", depth=state.depth)
                )
            return
        found = indexing.all_matches(equation, op, said=self.said)
        if isinstance(found, indexing.Miss):
            refusals.append(
                Refusal(
                    line,
                    f"{op.name}: {found.message}",
                    found.expected or str(line),
                    found.found or op.name,
                    state.depth - 10 + found.depth,
                    at=op,
                )
            )
            return
        for way in found:
            trial = state.copy()
            trial.ops[number] = op
            trial.depth += 100
            if any(trial.symbols.setdefault(k, v) != v for k, v in way.symbols.items()):
                refusals.append(
                    Refusal(line, "a number differs from another line's", depth=trial.depth)
                )
                continue
            states = iter([trial])
            for name, value in way.inputs.items():
                states = self._inputs(line, name, value, states, refusals)
            yield from states

    def _inputs(
        self,
        line: Line,
        name: str,
        value: Any,
        states: Iterator[_State],
        refusals: list[Refusal],
    ) -> Iterator[_State]:
        """Bind an operand of an equation, through the equation that computes it if there is one."""
        for state in states:
            known = state.values.get(name)
            if known is not None and known != value:
                refusals.append(
                    Refusal(line, f"{name} stands for two different values here", depth=state.depth)
                )
                continue
            trial = state.copy()
            trial.values[name] = value
            number = self.by_target.get(name)
            if number is None:
                yield trial
                continue
            owner = _owner(value)
            if owner is None:
                refusals.append(
                    Refusal(
                        self.rule.index_match[number][0],
                        f"{name} is an argument",
                        depth=state.depth,
                    )
                )
                continue
            trial.inner.append(owner.operation)
            yield from self._equation(number, owner.operation, trial, refusals)

    @staticmethod
    def _refuse(state: _State, refusal: Refusal) -> None:
        """End the attempt, or note why it would have ended and let it go on."""
        if state.refusals is None:
            raise _Stop(refusal)
        state.refusals.append(refusal)

    def _choices(self) -> list[tuple[bool, ...]]:
        if not self.alternatives:
            return [()]
        count = _commutative_count(self.rule, self.commutative)
        return [tuple(bool(n >> i & 1) for i in range(count)) for n in range(1 << min(count, 6))]

    def _op(
        self, pattern: OpPattern, number: int, op: Any, state: _State, swaps: tuple[bool, ...]
    ) -> None:
        line = pattern.line
        if number in state.ops:
            if state.ops[number] != op:
                self._refuse(
                    state,
                    Refusal(
                        line,
                        f"two different {op.name} where the rule has one",
                        "the same op",
                        "another one",
                        state.depth,
                        at=op,
                    ),
                )
            return
        state.ops[number] = op
        if not self._call(line, pattern.equation.call, op, state, swaps):
            return
        results = self.result_names(pattern, op)
        if len(results) != len(op.results):
            self._refuse(
                state,
                Refusal(
                    line,
                    f"{pattern.op} has {len(op.results)} results, not {len(results)}",
                    f"{len(results)} results",
                    f"{len(op.results)} results",
                    state.depth,
                    at=op,
                ),
            )
            return
        for name, value in zip(results, op.results, strict=True):
            if name and number != len(self.rule.match) - 1 and number not in self.other_roots:
                state.values.setdefault(name, value)

    @staticmethod
    def result_names(pattern: OpPattern, op: Any) -> list[str | None]:
        """A name for every result of ``op``; a pack ``ys...`` names the rest ``ys#0``, ``ys#1``."""
        names = list(pattern.equation.results)
        if pattern.equation.pack:
            last = names.pop()
            count = len(op.results) - len(names)
            names += [None if last is None else f"{last}#{i}" for i in range(count)]
        return names

    def names_of_results(self, op: Any) -> list[str | None]:
        """A name for every result of the root."""
        if self.rule.equation is not None:
            return self.root_results
        return self.result_names(self.rule.root, op)

    def _call(
        self, line: Line, call: ast.Call, op: Any, state: _State, swaps: tuple[bool, ...]
    ) -> bool:
        """Match an op and what feeds it. False (explaining only): it is another op altogether."""
        if op.name != call.fn:
            self._refuse(
                state,
                Refusal(
                    line,
                    f"the op is {op.name}, not {call.fn}",
                    call.fn,
                    op.name,
                    state.depth,
                    ast.Node(call.pos, call.pos + len(call.fn)),
                    at=op,
                ),
            )
            return False
        state.depth += 1
        for key, value in call.attrs:
            self._attribute(line, key, value, op, state)
        operands = list(op.operands)
        args = call.args
        if args and isinstance(args[-1], ast.Pack):
            fixed = len(args) - 1
            if len(operands) < fixed:
                self._refuse(
                    state,
                    Refusal(
                        line,
                        f"{call.fn} has {len(operands)} operands, not at least {fixed}",
                        f"at least {fixed} operands",
                        f"{len(operands)} operands",
                        state.depth,
                        call,
                        at=op,
                    ),
                )
                return False
            pack = args[-1]
            if pack.id:
                self._list(pack.id, operands[fixed:], state)
            operands, args = operands[:fixed], args[:-1]
        if len(operands) != len(args):
            self._refuse(
                state,
                Refusal(
                    line,
                    f"{call.fn} has {len(operands)} operands, not {len(args)}",
                    f"{len(args)} operands",
                    f"{len(operands)} operands",
                    state.depth,
                    call,
                    at=op,
                ),
            )
            return False
        if call.fn in self.commutative and len(operands) >= 2 and swaps:
            at = self._swap_index(call)
            if at < len(swaps) and swaps[at]:
                operands[0], operands[1] = operands[1], operands[0]
        elif call is state.swapped and len(operands) >= 2:
            operands[0], operands[1] = operands[1], operands[0]
        for arg, value in zip(args, operands, strict=True):
            self._operand(line, arg, value, state, swaps)
        return True

    def _swap_index(self, call: ast.Call) -> int:
        at = 0
        for pattern in self.rule.match:
            for inner in nested_calls(pattern.equation.call):
                if inner is call:
                    return at
                if inner.fn in self.commutative:
                    at += 1
        return at

    def _operand(
        self, line: Line, arg: ast.Expr, value: Any, state: _State, swaps: tuple[bool, ...]
    ) -> None:
        match arg:
            case ast.Wildcard():
                return
            case ast.Name(id=name):
                defined = self.by_result.get(name)
                if defined is not None and defined[0] != len(self.rule.match) - 1:
                    number, result = defined
                    owner = _owner(value)
                    pattern = self.rule.match[number]
                    head = pattern.equation.call
                    node = ast.Node(head.pos, head.pos + len(head.fn))
                    if owner is None or owner.name != pattern.op:
                        made_by = "an argument" if owner is None else owner.name
                        what = made_by if owner is None else f"the result of {made_by}"
                        self._refuse(
                            state,
                            Refusal(
                                pattern.line,
                                f"{name} is {what}, not of {pattern.op}"
                                if owner is not None
                                else f"{name} is {what}, not the result of {pattern.op}",
                                pattern.op,
                                made_by,
                                state.depth,
                                node,
                                at=owner,
                            ),
                        )
                        return
                    self._op(pattern, number, owner, state, swaps)
                    if owner.results[result] != value:
                        self._refuse(
                            state,
                            Refusal(
                                pattern.line,
                                f"{name} is another result of {pattern.op}",
                                f"result {result}",
                                "another result",
                                state.depth,
                                node,
                                at=owner,
                            ),
                        )
                        return
                    state.inner.append(owner)
                    state.values.setdefault(name, value)
                    return
                known = state.values.get(name)
                if known is not None and known != value:
                    self._refuse(
                        state,
                        Refusal(
                            line,
                            f"{name} stands for two different values here",
                            f"the same value as the other {name}",
                            "another value",
                            state.depth,
                            arg,
                        ),
                    )
                    return
                state.values[name] = value
                state.depth += known is None
            case ast.Call():
                owner = _owner(value)
                if owner is None:
                    self._refuse(
                        state,
                        Refusal(
                            line,
                            f"an argument where the result of {arg.fn} is needed",
                            arg.fn,
                            "an argument",
                            state.depth,
                            arg,
                        ),
                    )
                    return
                self._call(line, arg, owner, state, swaps)
                state.inner.append(owner)
            case ast.ListExpr(items=items):
                owner = _owner(value)
                if owner is None or owner.name != "torch.prim.ListConstruct":
                    made_by = owner.name if owner else "an argument"
                    self._refuse(
                        state,
                        Refusal(
                            line,
                            f"{made_by} where a list made in place is needed",
                            "torch.prim.ListConstruct",
                            made_by,
                            state.depth,
                            arg,
                            at=owner,
                        ),
                    )
                    return
                state.inner.append(owner)
                elements = list(owner.operands)
                if items and isinstance(items[-1], ast.Pack):
                    pack = items[-1]
                    items = items[:-1]
                    if len(elements) < len(items):
                        self._refuse(
                            state,
                            Refusal(
                                line,
                                f"a list of {len(elements)}, not at least {len(items)}",
                                f"at least {len(items)} items",
                                f"{len(elements)} items",
                                state.depth,
                                arg,
                                at=owner,
                            ),
                        )
                        return
                    if pack.id:
                        self._list(pack.id, elements[len(items) :], state)
                    elements = elements[: len(items)]
                if len(elements) != len(items):
                    self._refuse(
                        state,
                        Refusal(
                            line,
                            f"a list of {len(elements)} items, not {len(items)}",
                            f"{len(items)} items",
                            f"{len(elements)} items",
                            state.depth,
                            arg,
                            at=owner,
                        ),
                    )
                    return
                for item, element in zip(items, elements, strict=True):
                    self._operand(line, item, element, state, swaps)
            case ast.Literal(value=wanted):
                found = constant_of(value)
                if found is _NOT_CONSTANT:
                    self._refuse(
                        state,
                        Refusal(
                            line,
                            f"not the constant {spelt(wanted)}, but {_runtime(value)}",
                            spelt(wanted),
                            _runtime(value),
                            state.depth,
                            arg,
                        ),
                    )
                    return
                if type(found) is not type(wanted) or found != wanted:
                    self._refuse(
                        state,
                        Refusal(
                            line,
                            f"the constant is {spelt(found)}, not {spelt(wanted)}",
                            spelt(wanted),
                            spelt(found),
                            state.depth,
                            arg,
                        ),
                    )
                    return
                state.depth += 1
            case _:
                self._refuse(state, Refusal(line, "cannot be matched", node=arg))

    def _list(self, name: str, elements: list[Any], state: _State) -> None:
        paths = []
        for i, element in enumerate(elements):
            path = f"{name}#{i}"
            state.values[path] = element
            paths.append(path)
        state.lists[name] = paths

    def _attribute(self, line: Line, key: str, value: ast.Expr, op: Any, state: _State) -> None:
        try:
            found = op.attributes[key]
        except KeyError:
            self._refuse(
                state,
                Refusal(
                    line,
                    f"the op has no attribute {key}",
                    key,
                    "nothing",
                    state.depth,
                    value,
                    at=op,
                ),
            )
            return
        if isinstance(value, ast.Name):
            state.values[value.id] = found
            return
        if isinstance(value, ast.Wildcard):
            return
        plain = attribute_value(found)
        wanted = Evaluator({}).eval(value)
        if plain != wanted or isinstance(plain, bool) != isinstance(wanted, bool):
            self._refuse(
                state,
                Refusal(
                    line,
                    f"{key} is {spelt(plain)}, not {spelt(wanted)}",
                    f"{key} = {spelt(wanted)}",
                    f"{key} = {spelt(plain)}",
                    state.depth,
                    value,
                    at=op,
                ),
            )
            return
        state.depth += 1

    # -- types, constants, conditions

    def _key(self, op: Any, state: _State) -> Any:
        """What a verdict depends on. Opens the lists among the bound values on the way."""
        key: list[Any] = []
        expanded: dict[str, Any] = {}
        values = state.values
        for name in list(values):
            value = values[name]
            if name in self.shallow and isinstance(value, ir.Value):
                key.append(value.type)
                continue
            key.append(self._key_of(name, value, values, expanded, state))
        for root in (op, *(state.ops[n] for n in self.other_roots)):
            key.extend(value.type for value in root.results)
        return (
            tuple(key),
            tuple(len(v) for v in state.lists.values()),
            tuple(state.symbols.values()),
            state.around.target if self.rule.variants else "",
        )

    def _judge(self, op: Any, state: _State) -> Match:
        whole = self._key(op, state)
        verdict = self.cache.get(whole)
        if verdict is None:
            verdict = self._verdict(op, state)
            # What was refused for want of consent may be asked again with it.
            if verdict.refusal is None or not verdict.refusal.consent:
                self.cache[whole] = verdict
        elif verdict.refusal is None:
            refused = self._unadmitted()
            if refused is not None:
                raise _Stop(refused)
        state.verdict = verdict
        if verdict.refusal is not None:
            refusal = verdict.refusal
            raise _Stop(
                Refusal(
                    refusal.line,
                    refusal.message,
                    refusal.expected,
                    refusal.found,
                    state.depth + refusal.depth,
                    refusal.node,
                    suggestion=refusal.suggestion,
                    error=refusal.error,
                )
            )
        for line, expr in self.structural:
            self._structural(line, expr, verdict.env, state, op)
        assert verdict.template is not None
        return Match(self.rule, op, state.values, verdict.template, state.inner, verdict.env)

    def _key_of(
        self,
        name: str,
        value: Any,
        values: dict[str, Any],
        expanded: dict[str, Any],
        state: _State,
    ) -> Any:
        """The part of the key that one bound value gives; lists are opened on the way."""
        if not isinstance(value, ir.Value):
            return value.type if hasattr(value, "type") and _is_elements(value) else value
        owner = _owner(value)
        if owner is None:
            return value.type
        kind = _TORCH_CONSTANTS.get(owner.name)
        if kind is not None:
            state.inner.append(owner)
            found = constant_of(value)
            return (kind, repr(found) if isinstance(found, float) else found)
        if owner.name == "torch.prim.ListConstruct":
            state.inner.append(owner)
            elements = list(owner.operands)
            paths = []
            out = []
            for i, element in enumerate(elements):
                path = f"{name}#{i}"
                values[path] = element
                paths.append(path)
                out.append(self._key_of(path, element, values, expanded, state))
            state.lists[name] = paths
            return ("list", tuple(out))
        return value.type

    @staticmethod
    def _condition(line: Line, expr: ast.Expr, env: dict[str, Any]) -> None:
        """Raise NoMatch unless a condition on types and constants holds."""
        try:
            if truth(Evaluator(env).eval(expr)):
                return
            said = words.explain(expr, env)
        except Refused as refused:
            raise NoMatch(line, refused.message, expected=str(line), node=refused.node) from None
        raise NoMatch(line, said.message, expected=said.expected, found=said.found, node=said.node)

    def _unadmitted(self) -> Refusal | None:
        """The refusal of native code to which the user did not agree."""
        if self.native is None:
            return None
        try:
            consent.admit(self.native)
        except MlirulesError as error:
            said = error.faults[0].message
            return Refusal(self.rule.made_by, said, depth=99, error=error, consent=True)
        return None

    def _verdict(self, op: Any, state: _State) -> _Verdict:
        rule = self.rule
        env: dict[str, Any] = {}
        try:
            named, results = self._named_values(op, state)
            env = bind(rule, named)
            for line, expr in self.plain_where:
                self._condition(line, expr, env)
            unadmitted = self._unadmitted()
            if unadmitted is not None:
                return _Verdict(None, unadmitted, env)
            if rule.variants:
                lowered = lower_kernel(rule, env, results, state.around.target)
            else:
                lowered = lower(rule, env, results)
            try:
                template = templates.build(lowered, self.context, self.rule.made_by.span)
            except MlirulesError as error:
                raise LoweringError(
                    rule.made_by,
                    f"the rewrite gives MLIR that does not verify: {error.faults[0].message}\n"
                    + _numbered(lowered.text),
                ) from None
            return _Verdict(template, None, env)
        except NoMatch as no:
            depth = 1 + _progress(rule, no.line)
            return _Verdict(
                None, Refusal(no.line, no.message, no.expected, no.found, depth, no.node), env
            )
        except LoweringError as error:
            span = error.line.span
            if error.node is not None:
                span = error.line.text.span(error.node.pos, max(1, error.node.end - error.node.pos))
            fault = MlirulesError(
                Fault(
                    span,
                    "rewrite",
                    f"{rule.name}: {error.message}",
                    "the match was accepted, so the rewrite must fit it: mend the equation, or "
                    "refuse such programs in `where:`",
                )
            )
            return _Verdict(None, Refusal(error.line, error.message, depth=99, error=fault), env)

    def _named_values(
        self, op: Any, state: _State
    ) -> tuple[dict[str, Any], list[tuple[str | None, Any, str]]]:
        """What the names of the match stand for, and the root's results (name, value, type)."""
        named: dict[str, Any] = dict(state.symbols)
        for name, paths in state.lists.items():
            if "#" not in name:
                named[name] = [self._value(p, state) for p in paths]
        for name in state.values:
            if "#" not in name and name not in named:
                named[name] = self._value(name, state)
        results: list[tuple[str | None, Any, str]] = []
        # Their numbers differ only while explaining, after that was noted.
        ends = list(zip(self.names_of_results(op), op.results, strict=False))
        for n in self.other_roots:
            names = self.result_names(self.rule.match[n], state.ops[n])
            ends += zip(names, state.ops[n].results, strict=False)
        for label, value in ends:
            text, tensor = type_info(value.type)
            found: Any = self._typed(label or "_", text, tensor, result=True)
            results.append((label, found, text))
            if label and "#" in label:
                named.setdefault(label.rsplit("#", 1)[0], []).append(found)
            elif label:
                named[label] = found
        return named, results

    def _value(self, path: str, state: _State) -> Any:
        value = state.values[path]
        if not isinstance(value, ir.Value):
            plain = attribute_value(value)
            return plain if plain is not None else Opaque(path, "attribute")
        if path in state.lists:
            return [self._value(p, state) for p in state.lists[path]]
        found = constant_of(value)
        if found is not _NOT_CONSTANT:
            return found
        text, tensor = type_info(value.type)
        return self._typed(path, text, tensor, result=False)

    @staticmethod
    def _typed(name: str, text: str, tensor: Tensor | None, *, result: bool) -> Any:
        if tensor is not None:
            return _named(tensor, name, result=result)
        if text in ("!torch.int", "!torch.float", "!torch.bool"):
            kind = text.removeprefix("!torch.")
            return Dyn("int", (name,)) if kind == "int" else Scalar(name, kind)
        if text.startswith("!torch.vtensor"):
            return Tensor(name, None, None)
        # A result of this type has one value: an optional result that is not asked for.
        return None if result and text == "!torch.none" else Opaque(name, text)

    def _structural(
        self, line: Line, expr: ast.Expr, env: dict[str, Any], state: _State, op: Any
    ) -> None:
        dead = state.around.dead

        def uses(fn: str, names: list[str]) -> tuple[bool, str]:
            wanted = 1 if fn == "one_use" else 0
            within = [*state.inner, *state.ops.values(), op] if fn == "inside" else []
            said = ""
            for name in names:
                value = state.values.get(name)
                if value is None and name in self.root_results:
                    value = op.results[self.root_results.index(name)]
                for n in self.other_roots:
                    results = self.rule.match[n].equation.results
                    if value is None and name in results:
                        value = state.ops[n].results[results.index(name)]
                if value is None:
                    raise Refused(f"{name} is not a value of the match")
                if fn == "inside":
                    outside = list(
                        itertools.islice(
                            (u for u in _live_users(value, dead) if u.operation not in within),
                            MAX_USERS + 1,
                        )
                    )
                    said = f"{name} has {_users(outside)} outside the match"
                    if outside:
                        return False, said
                    continue
                users = list(itertools.islice(_live_users(value, dead), MAX_USERS + 1))
                said = f"{name} has {_users(users)}"
                if len(users) != wanted:
                    return False, said
            return True, said

        def ask(fn: str, names: list[str]) -> bool:
            return uses(fn, names)[0]

        depth = state.depth + PATTERN_HOLDS + _progress(self.rule, line)
        try:
            if truth(Evaluator(env, ask).eval(expr)):
                return
            said = words.explain(expr, env, uses)
        except Refused as refused:
            raise _Stop(
                Refusal(line, refused.message, str(line), depth=depth, node=refused.node)
            ) from None
        raise _Stop(Refusal(line, said.message, said.expected, said.found, depth, said.node))


# Beyond what any pattern counts: the ops are right, a type or a condition is not.
PATTERN_HOLDS = 100_000
MAX_USERS = 4
# How many combinations of types and constants a matcher remembers between runs.
MAX_DECIDED = 20_000
# How many users of a shared operand are looked at for a match of several roots, and how many may be
# tried: a rule with three roots tries pairs of them.
MAX_LOOKED_AT = 64
MAX_BESIDE = 16


@dataclass
class _Judged:
    """What types and conditions say of one combination of types and constants."""

    refusals: list[Refusal] = field(default_factory=list)
    lines: dict[tuple[str | int, str], tuple[Line, bool | None]] = field(default_factory=dict)
    env: dict[str, Any] = field(default_factory=dict)


def _judged_lines(rule: Rule) -> list[Line]:
    return [
        *(line for line, _ in rule.types.values()),
        *(entry[1] for entry in rule.let),
        *(line for line, _ in rule.where),
    ]


def _parts(rule: Rule) -> int:
    """How many things of a rule can hold or not: the ops, their operands, every line."""
    total = len(_judged_lines(rule))
    for pattern in rule.match:
        for call in nested_calls(pattern.equation.call):
            total += 1 + len(call.attrs)
            for arg in call.args:
                inner = arg.items if isinstance(arg, ast.ListExpr) else (arg,)
                total += sum(isinstance(a, (ast.Name, ast.Literal)) for a in inner)
    return total + 10 * len(rule.index_match)


# What may be brought before the ops that it feeds: it stands anywhere just as well.
_ANYWHERE = frozenset(
    [
        "torch.vtensor.literal",
        "torch.prim.ListConstruct",
        "torch.aten.t",
        "torch.aten.permute",
        "torch.aten.transpose.int",
        "torch.aten.view",
        "torch.aten.to.dtype",
        "arith.constant",
        *_TORCH_CONSTANTS,
    ]
)


def _brought(value: Any, anchor: Any, moved: dict[Any, None]) -> bool:
    """Whether a value stands before ``anchor``, or can; notes the ops to move there, in order."""
    left = [(value, False)]
    while left:
        value, ready = left.pop()
        owner = _owner(value)
        if owner is None:
            continue
        op = owner.operation
        if op in moved or op.block != anchor.block:
            continue
        if ready:
            moved[op] = None
        elif op == anchor or not op.is_before_in_block(anchor):
            if op.name not in _ANYWHERE:
                return False
            left.append((value, True))  # once what it reads is there
            left += [(v, False) for v in reversed(op.operands)]
    return True


def program_order(a: Any, b: Any) -> int:
    """Compares two ops of a block by their places."""
    return 0 if a == b else -1 if a.is_before_in_block(b) else 1


def _live_users(value: Any, dead: Callable[[Any], bool]) -> Iterator[Any]:
    """The ops that use a value, without what earlier applications left dead."""
    return (use.owner for use in value.uses if not dead(use.owner.operation))


def _used(op: Any) -> bool:
    return any(next(iter(value.uses), None) is not None for value in op.results)


def _users(users: list[Any]) -> str:
    """``3 uses: torch.aten.mul, torch.aten.add and func.return``, the same on every machine."""
    if not users:
        return "no use"
    names = [user.name for user in reversed(users)]
    count = str(len(names))
    if len(names) > MAX_USERS:
        names, count = names[:MAX_USERS], f"more than {MAX_USERS}"
    return f"{count} use{'s' * (len(names) > 1)}: {', '.join(names)}"


def _progress(rule: Rule, line: Line | None) -> int:
    if line is None:
        return 0
    if line.section == "types":
        return list(rule.types).index(str(line.key)) if line.key in rule.types else 0
    base = {"match": 0, "let": 10, "where": 20, "rewrite": 40}.get(line.section, 0)
    return base + (line.key if isinstance(line.key, int) else 0)


def _numbered(text: str) -> str:
    return "\n".join(f"    {n:>3} | {row}" for n, row in enumerate(text.splitlines(), 1))


class _NotConstant:
    pass


_NOT_CONSTANT = _NotConstant()


def _owner(value: Any) -> Any:
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    return owner


def constant_of(value: Any) -> Any:
    """The Python value of a torch (or arith) constant, or a marker when it is not one."""
    owner = _owner(value)
    if owner is None:
        return _NOT_CONSTANT
    kind = _TORCH_CONSTANTS.get(owner.name)
    if kind is None:
        return _NOT_CONSTANT
    if kind == "none":
        return None
    return attribute_value(owner.attributes["value"])


def attribute_value(attribute: Any) -> Any:
    """A plain attribute (number, truth value, string, type) as a Python value, else None."""
    if isinstance(attribute, ir.BoolAttr):
        return bool(attribute.value)
    if isinstance(attribute, ir.IntegerAttr):
        return int(attribute.value)
    if isinstance(attribute, ir.FloatAttr):
        return float(attribute.value)
    if isinstance(attribute, ir.StringAttr):
        return str(attribute.value)
    return None


def _is_elements(attribute: Any) -> bool:
    return isinstance(attribute, (ir.DenseElementsAttr, ir.DenseResourceElementsAttr))


def _runtime(value: Any) -> str:
    """A value that is no constant, in words."""
    owner = _owner(value)
    return "an argument" if owner is None else f"the result of {owner.name}"


def _asks_structure(expr: ast.Expr) -> bool:
    return any(
        isinstance(n, ast.Call) and n.fn in FUNCTIONS and FUNCTIONS[n.fn].structural
        for n in walk_expression(expr)
    )


def _commutative_count(rule: Rule, commutative: frozenset[str]) -> int:
    return sum(1 for p in rule.match for c in nested_calls(p.equation.call) if c.fn in commutative)
