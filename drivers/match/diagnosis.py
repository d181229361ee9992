"""All that keeps a rule from applying at an op, not only the first line that refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.match import indexing
from mlirules.drivers.match.attempt import PATTERN_HOLDS, State, Stop, progress
from mlirules.drivers.match.equations import Equations
from mlirules.drivers.match.judging import Judging, asks_structure
from mlirules.drivers.match.results import Around, Diagnosis, Refusal
from mlirules.drivers.match.structure import Structure
from mlirules.language.nomatch import NoMatch
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression
from mlirules.language.rule import Line, Rule, nested_calls
from mlirules.language.unify import bind
from mlirules.language.values import dtype_named
from mlirules.language.words import source

Explain: TypeAlias = Callable[[ir.Operation, Around], Refusal | None]


@dataclass
class Judged:
    """What types and conditions say of one combination of types and constants."""

    refusals: list[Refusal] = field(default_factory=list)
    lines: dict[tuple[str | int, str], tuple[Line, bool | None]] = field(default_factory=dict)
    env: dict[str, object] = field(default_factory=dict)


class Diagnosing:
    """Diagnoses one rule."""

    def __init__(
        self,
        rule: Rule,
        structure: Structure,
        equations: Equations,
        judging: Judging,
    ) -> None:
        self.rule = rule
        self.structure = structure
        self.equations = equations
        self.judging = judging
        self.judged: dict[object, Judged] = {}
        self.parts = _parts(rule)

    def diagnose(
        self, op: ir.Operation, around: Around, explain: Explain, *, rewrite: bool = True
    ) -> Diagnosis:
        """As :meth:`~mlirules.drivers.match.matcher.Matcher.diagnose` says.

        ``explain`` tells why the rule does not apply at an op, by the attempt that got furthest.
        """
        if self.equations.by_target or self.rule.other_roots or self.structure.several:
            return self._diagnose_whole(op, around, explain)
        if self.rule.equation is not None:
            best = self._diagnose_equation(*self.rule.equation, op, around)
        else:
            choices = self.structure.choices()
            found = [self._attempt_all(op, around, swaps, None) for swaps in choices]
            best = min(found, key=lambda d: d.rank)
            if best.refusals and best.refusals[0].depth < PATTERN_HOLDS:
                best = self._other_order(op, around, best)
        if rewrite and not best.refusals:
            refusal = explain(op, around)  # what only the rewrite tells
            if refusal is not None:
                best.refusals.append(refusal)
        return best

    def holds(self, op: ir.Operation, around: Around, explain: Explain) -> bool:
        """Whether :meth:`diagnose` without the rewrite would find no refusal; ends at the first."""
        if self.equations.by_target or self.rule.other_roots or self.structure.several:
            return explain(op, around) is None
        if self.rule.equation is not None:
            return not self._diagnose_equation(*self.rule.equation, op, around).refusals
        last = len(self.rule.match) - 1
        for swaps in self.structure.choices():
            state = State(around)
            try:
                self.structure.op(self.rule.root, last, op, state, swaps)
            except Stop:
                continue
            state.refusals = []
            if not self._judge_all(op, state).refusals:
                return True
        return False

    def _attempt_all(
        self, op: ir.Operation, around: Around, swaps: tuple[bool, ...], swapped: ast.Call | None
    ) -> Diagnosis:
        state = State(around, refusals=[], swapped=swapped)
        self.structure.op(self.rule.root, len(self.rule.match) - 1, op, state, swaps)
        return self._judge_all(op, state)

    def _other_order(self, op: ir.Operation, around: Around, best: Diagnosis) -> Diagnosis:
        """Whether the rule would fit with two operands exchanged; if so, that is the reason."""
        for pattern in self.rule.match:
            for call in nested_calls(pattern.equation.call):
                if len(call.args) < 2 or call.fn in self.structure.commutative:
                    continue
                for swaps in self.structure.choices():
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

    def _diagnose_whole(self, op: ir.Operation, around: Around, explain: Explain) -> Diagnosis:
        """The reason that an attempt got furthest with, for matches with several ways to go."""
        refusal = explain(op, around)
        lines: list[tuple[Line, bool | None]] = [(n, None) for n in _judged_lines(self.rule)]
        if refusal is None:
            return Diagnosis(op, [], self.parts, self.parts, [(n, True) for n, _ in lines])
        return Diagnosis(op, [refusal], min(refusal.depth, self.parts - 1), self.parts, lines)

    def _diagnose_equation(
        self, line: Line, equation: ast.IndexEquation, op: ir.Operation, around: Around
    ) -> Diagnosis:
        found = indexing.match_equation(equation, op, said=self.equations.said)
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
        symbols: dict[str, object] = {**found.symbols, "op": op.name}
        state = State(around, values=dict(found.inputs), symbols=symbols, depth=10, refusals=[])
        return self._judge_all(op, state)

    def _judge_all(self, op: ir.Operation, state: State) -> Diagnosis:
        """Judge every line that can be judged, not only up to the first that refuses."""
        assert state.refusals is not None
        for refusal in state.refusals:
            refusal.depth = min(refusal.depth, PATTERN_HOLDS - 1)
        key = (self.judging.key(op, state), tuple(state.values))
        judged = self.judged.get(key)
        if judged is None:
            judged = self.judged[key] = self._judged(op, state)
        lines = dict(judged.lines)
        refusals = [*state.refusals, *judged.refusals]
        for line, expr in self.judging.structural:
            names = {n.id for n in walk_expression(expr) if isinstance(n, ast.Name)}
            if any(n not in judged.env and n not in state.values for n in names):
                lines[line.key, line.section] = (line, None)
                continue
            before = len(refusals)
            try:
                self.judging.check_uses(line, expr, judged.env, state, op)
            except Stop as stop:
                refusals.append(stop.refusal)
            lines[line.key, line.section] = (line, len(refusals) == before)
        # One reason has one line: what follows from it on the same line says nothing new.
        unique = {(id(r.line), r.message): r for r in refusals}
        held = sum(1 for _, holds in lines.values() if holds)
        return Diagnosis(
            op, list(unique.values()), state.depth + held, self.parts, list(lines.values())
        )

    def _judged(self, op: ir.Operation, state: State) -> Judged:
        rule = self.rule
        out = Judged()
        named, _ = self.judging.named_values(op, state)
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
            if asks_structure(expr):
                continue
            names = {n.id for n in walk_expression(expr) if isinstance(n, ast.Name)}
            if names & unfit or any(n not in env and dtype_named(n) is None for n in names):
                out.lines[line.key, line.section] = (line, None)
                continue
            try:
                self.judging.condition(line, expr, env)
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
                PATTERN_HOLDS + progress(rule, no.line),
                no.node,
            )
            for no in misses
        ]
        return out


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
