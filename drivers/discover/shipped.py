"""Shipped rules: which are over a set's ops, which are found again, and what they do."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.present import op_names
from mlirules.drivers.apply.programs import parsed
from mlirules.drivers.apply.run import Options
from mlirules.drivers.apply.session import Session
from mlirules.drivers.discover.opsets import OpSet
from mlirules.drivers.discover.programs import Writer, in_order
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.prove.binding import op_key
from mlirules.language.faults import MlirulesError
from mlirules.language.notation import ast
from mlirules.language.rule import Rule, nested_calls
from mlirules.language.rulefiles import LIBRARY

if TYPE_CHECKING:
    from mlirules.drivers.discover.space import Space

#: The sets that hold rules from torch ops to torch ops.
SETS = ("torch/fusions", "torch/unfuse", "torch/decompose")
#: Programs that a shipped rule is tried on.
TRIED = 60


class Shipped:
    """The rules that ship, beside one set of ops."""

    def __init__(self, ops: OpSet, session: Session) -> None:
        from mlirules.drivers.prove.prove import library

        self._session = session

        self.ops = ops
        self.rules = [r for r in library(list(SETS)) if r.kind == "fusion" or len(r.match) == 1]
        self.fusions = [r for r in self.rules if r.kind == "fusion"]
        self._engine: Engine | None = None
        self._engines: dict[str, Engine] = {}
        self._ops_of: dict[int, dict[int, Counter[str]]] = {}

    @staticmethod
    def has(name: str) -> bool:
        """Whether a shipped file is named so."""
        return any(True for _ in LIBRARY.rglob(f"{name}.yaml"))

    # -- which rules a search could find

    def over_the_set(self) -> list[Rule]:
        """The rules between programs of the set: of its ops and its size, with one result."""
        return [r for r in self.rules if self._within(r)]

    def _within(self, rule: Rule) -> bool:
        found = matched(rule)
        made = rewritten(rule)
        if made is None or rule.other_roots or rule.index_match:
            return False
        if len(rule.root.equation.results) != 1 or len(found) > self.ops.size:
            return False
        return {*found, *made} <= self.ops.ops and len(made) <= max(self.ops.size, len(found))

    # -- as what a search found it

    def found_as(self, rule: Rule, space: Space) -> int | None:
        """A program that the rule rewrites into another one of its class; None: there is none."""
        wanted = Counter(matched(rule))
        terms = space.terms
        tried = 0
        by_ops = self._ops_of.setdefault(id(space), {})

        def ops_of(root: int) -> Counter[str]:
            if root not in by_ops:
                by_ops[root] = Counter(terms[t].op for t in in_order(terms, root) if terms[t].op)
            return by_ops[root]

        for c in space.classes:
            if len(c.members) < 2:
                continue
            for one in c.members:
                term = terms[one]
                if term.size != wanted.total() or not term.matchable or ops_of(one) != wanted:
                    continue
                tried += 1
                if tried > TRIED:
                    return None
                made = self._applied_once(rule, space, one)
                if made is None:
                    continue
                # What it makes is a program of the class, as far as the ops tell.
                if any(m != one and ops_of(m) == made for m in c.members):
                    return one
        return None

    def _applied_once(self, rule: Rule, space: Space, root: int) -> Counter[str] | None:
        """The ops that the rule leaves of a program; None where it does not apply."""
        terms = space.terms
        dims = dict(zip(space.ops.dims, (4, 6, 5, 3, 2, 7), strict=False))
        inputs = [t for t in in_order(terms, root) if not terms[t].op]
        text = Writer(terms, dims, {"c": 0.5, "d": 1.5}).text(root, inputs)
        engine = self._engines.get(rule.name)
        if engine is None:
            engine = self._engines[rule.name] = Engine([rule], self._session.context)
        try:
            module = parsed(text, "<program>", self._session)
            if not engine.run(module, Options(driver="greedy", max_rewrites=1)).total:
                return None
        except MlirulesError:
            return None
        return torch_ops(module)

    # -- what all of them do

    def applied(self, text: str) -> tuple[list[str], str]:
        """The shipped fusions that apply to a program, and what they leave of it."""
        if self._engine is None:
            self._engine = Engine(self.fusions, self._session.context)
        try:
            module = parsed(text, "<program>", self._session)
            outcome = self._engine.run(module, Options(driver="greedy"))
        except MlirulesError:
            return [], text
        return sorted(outcome.counts), str(module) if outcome.total else text


def torch_ops(module: ir.Module) -> Counter[str]:
    """A program's torch ops, without constants and lists."""
    return Counter(
        {
            name: count
            for name, count in op_names(module).items()
            if name.startswith("torch.") and not name.startswith(("torch.constant", "torch.prim"))
        }
    )


def matched(rule: Rule) -> list[str]:
    """The ops that a rule finds."""
    out: list[str] = []
    for pattern in rule.match:
        out += _ops(pattern.equation.call)
    return out


def rewritten(rule: Rule) -> list[str] | None:
    """The ops that a rule makes; None where it makes anything else."""
    out: list[str] = []
    for _, statement in rule.rewrite:
        if isinstance(statement, ast.OpEquation):
            out += _ops(statement.call)
        elif isinstance(statement, ast.Assignment) and isinstance(statement.value, ast.Name):
            continue  # forwards a value
        else:
            return None
    return out


def _ops(call: ast.Call) -> list[str]:
    """An op and those that stand in its operands; functions of the notation are none."""
    return [op_key(c) for c in nested_calls(call) if "." in c.fn]
