"""What types, constants and conditions say of a match whose ops are found."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from mlirules.drivers.iree import cpu
from mlirules.drivers.iree.compiler import Op, ir
from mlirules.drivers.match.attempt import PATTERN_HOLDS, State, Stop, Verdict, progress
from mlirules.drivers.match.inference import Inference
from mlirules.drivers.match.results import Around, Bound, Match, Refusal
from mlirules.drivers.match.rewrites import build
from mlirules.drivers.match.structure import Structure
from mlirules.drivers.match.values import (
    MAX_USERS,
    NOT_CONSTANT,
    TORCH_CONSTANTS,
    attribute_value,
    constant_of,
    elements_of,
    in_words,
    is_elements,
    known,
    live_users,
    opaque_attribute,
    owner_of,
    type_info,
    typed,
)
from mlirules.generator.lowering.kernel import lower_kernel
from mlirules.generator.lowering.lower import lower
from mlirules.generator.lowering.values import LoweringError
from mlirules.language import consent, words
from mlirules.language.builtins import FUNCTIONS
from mlirules.language.evaluate import Evaluator
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.grid import FACTS
from mlirules.language.native import native
from mlirules.language.nomatch import NoMatch
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression
from mlirules.language.operands import Refused, truth
from mlirules.language.rule import Line, Rule
from mlirules.language.unify import bind
from mlirules.language.values import Tensor


class Judging:
    """Judges matches of one rule, once for every combination of types and constants."""

    def __init__(self, rule: Rule, structure: Structure, context: ir.Context) -> None:
        self.rule = rule
        self.structure = structure
        self.context = context
        self.cache: dict[object, Verdict] = {}
        self.other_roots = rule.other_roots
        self.root_results = rule.root_results
        # Names that need a look at the defining op: everything that may be a constant or a list.
        self.shallow = {
            name
            for name, (_, decl) in rule.types.items()
            if decl.kind in ("vtensor", "tensor") and not decl.optional
        }
        self.native = native(rule)
        self.inference = Inference(context)
        #: The conditions that ask about uses, which no verdict holds for, and the others.
        self.structural = [c for c in rule.where if asks_structure(c[1])]
        self.plain_where = [c for c in rule.where if not asks_structure(c[1])]
        #: The tensors that the rule asks of whether the program knows them.
        self.fixed = _asked(rule)

    def key(self, op: Op, state: State) -> Any:
        """What a verdict depends on. Opens the lists among the bound values on the way."""
        key: list[object] = []
        expanded: dict[str, object] = {}
        values = state.values
        for name in list(values):
            value = values[name]
            if name in self.shallow and isinstance(value, ir.Value):
                key.append(value.type)
                continue
            key.append(self._key_of(name, value, values, expanded, state))
        for root in (op, *(state.ops[n] for n in self.other_roots)):
            key.extend(value.type for value in root.results)
        key += [known(values.get(name)) for name in self.fixed]
        return (
            tuple(key),
            tuple(len(v) for v in state.lists.values()),
            tuple(state.symbols.values()),
            _aimed(state.around) if self.rule.variants else "",
        )

    def judge(self, op: ir.Operation, state: State) -> Match:
        """The match that an attempt has found at ``op``. Raises :class:`Stop`."""
        whole = self.key(op, state)
        verdict = self.cache.get(whole)
        if verdict is None:
            verdict = self._verdict(op, state)
            # What was refused for want of consent may be asked again with it.
            if verdict.refusal is None or not verdict.refusal.consent:
                self.cache[whole] = verdict
        elif verdict.refusal is None:
            refused = self._unadmitted()
            if refused is not None:
                raise Stop(refused)
        state.verdict = verdict
        if verdict.refusal is not None:
            refusal = verdict.refusal
            raise Stop(
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
            self.check_uses(line, expr, verdict.env, state, op)
        assert verdict.rewrite is not None
        return Match(self.rule, op, state.values, verdict.rewrite, state.inner, verdict.env)

    def _key_of(
        self,
        name: str,
        value: Bound,
        values: dict[str, Bound],
        expanded: dict[str, object],
        state: State,
    ) -> Any:
        """The part of the key that one bound value gives; lists are opened on the way."""
        if not isinstance(value, ir.Value):
            if hasattr(value, "type") and is_elements(value):
                return value.type if elements_of(value) is None else value
            return value
        owner = owner_of(value)
        if owner is None:
            return value.type
        kind = TORCH_CONSTANTS.get(owner.name)
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
    def condition(line: Line, expr: ast.Expr, env: dict[str, object]) -> None:
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

    def _verdict(self, op: Op, state: State) -> Verdict:
        rule = self.rule
        env: dict[str, object] = {}
        try:
            named, results = self.named_values(op, state)
            env = bind(rule, named)
            for line, expr in self.plain_where:
                self.condition(line, expr, env)
            unadmitted = self._unadmitted()
            if unadmitted is not None:
                return Verdict(None, unadmitted, env)
            if rule.variants:
                around = state.around
                lowered = lower_kernel(rule, {**env, **_facts(around)}, results, around.target)
            else:
                lowered = lower(rule, env, results, self.inference)
            try:
                rewrite = build(lowered, self.context, self.rule.made_by.span)
            except MlirulesError as error:
                raise LoweringError(
                    rule.made_by,
                    f"the rewrite gives MLIR that does not verify: {error.faults[0].message}\n"
                    + _numbered(lowered.text),
                ) from None
            return Verdict(rewrite, None, env)
        except NoMatch as no:
            depth = 1 + progress(rule, no.line)
            return Verdict(
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
            return Verdict(None, Refusal(error.line, error.message, depth=99, error=fault), env)

    def named_values(
        self, op: Op, state: State
    ) -> tuple[dict[str, Any], list[tuple[str | None, Any, str]]]:
        """What the names of the match stand for, and the root's results (name, value, type)."""
        named: dict[str, Any] = {k: _listed(v) for k, v in state.symbols.items()}
        for name, paths in state.lists.items():
            if "#" not in name:
                named[name] = [self._value(p, state) for p in paths]
        for name in state.values:
            if "#" not in name and name not in named:
                named[name] = self._value(name, state)
        for name in self.fixed:
            if isinstance(named.get(name), Tensor):
                fixed, embedded = known(state.values.get(name))
                named[name] = replace(named[name], fixed=fixed, embedded=embedded)
        results: list[tuple[str | None, object, str]] = []
        # Their numbers differ only while explaining, after that was noted.
        ends = list(zip(self.structure.names_of_results(op), op.results, strict=False))
        for n in self.other_roots:
            names = self.structure.result_names(self.rule.match[n], state.ops[n])
            ends += zip(names, state.ops[n].results, strict=False)
        for label, value in ends:
            text, tensor = type_info(value.type)
            found: Any = typed(label or "_", text, tensor, result=True)
            results.append((label, found, text))
            if label and "#" in label:
                named.setdefault(label.rsplit("#", 1)[0], []).append(found)
            elif label:
                named[label] = found
        return named, results

    def _value(self, path: str, state: State) -> Any:
        value = state.values[path]
        if not isinstance(value, ir.Value):
            plain = attribute_value(value)
            return plain if plain is not None else opaque_attribute(path, value)
        if path in state.lists:
            return [self._value(p, state) for p in state.lists[path]]
        found = constant_of(value)
        if found is not NOT_CONSTANT:
            return found
        text, tensor = type_info(value.type)
        return typed(path, text, tensor, result=False)

    def check_uses(
        self, line: Line, expr: ast.Expr, env: dict[str, object], state: State, op: Op
    ) -> None:
        """Raise :class:`Stop` unless a condition on uses holds."""
        dead = state.around.dead

        def uses(fn: str, names: list[str]) -> tuple[bool, str]:
            wanted = 1 if fn == "one_use" else 0
            within = [*state.inner, *state.ops.values(), op] if fn == "inside" else []
            said = ""
            names = [path for name in names for path in state.lists.get(name, [name])]
            for name in names:
                value = state.values.get(name)
                if value is None and name in self.root_results:
                    value = op.results[self.root_results.index(name)]
                for n in self.other_roots:
                    results = self.rule.match[n].equation.results
                    if value is None and name in results:
                        value = state.ops[n].results[results.index(name)]
                if not isinstance(value, ir.Value):
                    raise Refused(f"{name} is not a value of the match")
                if fn == "inside":
                    outside = list(
                        itertools.islice(
                            (u for u in live_users(value, dead) if u.operation not in within),
                            MAX_USERS + 1,
                        )
                    )
                    said = f"{_shown(name)} has {in_words(outside)} outside the match"
                    if outside:
                        return False, said
                    continue
                users = list(itertools.islice(live_users(value, dead), MAX_USERS + 1))
                said = f"{_shown(name)} has {in_words(users)}"
                if len(users) != wanted:
                    return False, said
            return True, said

        def ask(fn: str, names: list[str]) -> bool:
            return not state.around.uses or uses(fn, names)[0]

        depth = state.depth + PATTERN_HOLDS + progress(self.rule, line)
        try:
            if truth(Evaluator(env, ask).eval(expr)):
                return
            said = words.explain(expr, env, uses)
        except Refused as refused:
            raise Stop(
                Refusal(line, refused.message, str(line), depth=depth, node=refused.node)
            ) from None
        raise Stop(Refusal(line, said.message, said.expected, said.found, depth, said.node))


def _asked(rule: Rule) -> list[str]:
    """The names that ``fixed`` or ``embedded`` is asked of anywhere in a rule."""
    exprs = [expr for _, expr in rule.where]
    for variant in rule.variants:
        exprs += [expr for _, _, expr, _ in variant.let if expr is not None]
        exprs += [expr for _, expr in variant.where]
        whens = (order.when for order in variant.reorder.values())
        exprs += [when[1] for when in whens if isinstance(when, tuple)]
    calls = (n for e in exprs for n in walk_expression(e) if isinstance(n, ast.Call))
    asked = (a for call in calls if call.fn in ("fixed", "embedded") for a in call.args)
    return sorted({a.id for a in asked if isinstance(a, ast.Name)})


def _shown(path: str) -> str:
    """A value's name as the rule has it: ``xs[1]`` for ``xs#1``."""
    name, hash_, at = path.partition("#")
    return f"{name}[{at}]" if hash_ else name


def asks_structure(expr: ast.Expr) -> bool:
    """Whether a condition asks who uses a value."""
    return any(
        isinstance(n, ast.Call) and n.fn in FUNCTIONS and FUNCTIONS[n.fn].structural
        for n in walk_expression(expr)
    )


def _numbered(text: str) -> str:
    return "\n".join(f"    {n:>3} | {row}" for n, row in enumerate(text.splitlines(), 1))


def _listed(value: object) -> object:
    """An item of an array attribute as a plain value: keys hold tuples for lists."""
    return [_listed(v) for v in value] if isinstance(value, tuple) else value


def _aimed(around: Around) -> tuple[str, str, int]:
    """What a kernel is written for."""
    return around.target, around.cpu, around.cores if around.target == "cpu" else 0


def _facts(around: Around) -> dict[str, int]:
    """What a kernel may ask of the CPU that it is for (``language.grid.FACTS``); 0 elsewhere."""
    if around.target != "cpu":
        return dict.fromkeys(FACTS, 0)
    return {name: around.cores if name == "cores" else cpu.fact(name, around.cpu) for name in FACTS}
