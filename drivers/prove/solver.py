"""The solver: what follows from assumptions on sizes and indices, each question asked once.

Questions are answered under the assumptions that share a symbol with them: leaving others out can
only lose an answer. So one question on many paths of a proof is one question to the solver.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from mlirules.drivers.prove.expr import Int, Node, Number, Undecided, nodes_in, terms_of

#: What the solver may spend on one question: its own count of steps, so that a verdict does not
#: depend on how busy the machine is, and milliseconds as a last resort.
STEPS, QUESTION = 400_000, 2000

_ARITHMETIC = frozenset(
    ["eq0", "ge0", "req0", "rge0", "rgt0", "not", "and", "or", "fdiv", "min", "holds"]
)


class Witness:
    """Numbers for sizes and indices; what they leave open gets a number when it is asked for."""

    def __init__(self, numbers: dict[str, int], seed: int, least: int) -> None:
        self.least = least
        self.numbers = numbers
        self.count = seed
        self.held: dict[str, bool | None] = {}

    def node(self, node: Node) -> int | None:
        """A node's number; None where it has none."""
        if node.op not in ("dim", "int", "var", "fdiv", "min", "holds"):
            return None
        if node.op == "fdiv":
            a, b = self.number(node.args[0]), self.number(node.args[1])
            return None if a is None or not b else a // b
        if node.op == "min":
            a, b = self.number(node.args[0]), self.number(node.args[1])
            return None if a is None or b is None else min(a, b)
        if node.op == "holds":
            held = self.holds(node.args[0])
            return None if held is None else int(held)
        found = self.numbers.get(node.key)
        if found is None:
            self.count += 1
            if node.op == "dim" and self.count % 9 == 5 and not self.least:
                found = 0
                self.numbers[node.key] = found
                return found
            found = (2, 3, 5, 7, 11, 4, 1, 6)[self.count % 8]
            if node.op == "var":
                size = self.number(node.args[1])
                if size is None or size < 1:
                    return None
                found = (self.count * 7 + 3) % size
            self.numbers[node.key] = found
        return found

    def number(self, value: Int) -> int | None:
        """A polynomial's number."""
        total = 0
        for mono, c in terms_of(value).items():
            if not isinstance(c, int):
                return None
            product = c
            for node, power in mono:
                one = self.node(node)
                if one is None:
                    return None
                product *= one**power
            total += product
        return total

    def holds(self, condition: Node | bool) -> bool | None:
        """Whether a condition holds; None where that is not known."""
        if isinstance(condition, bool):
            return condition
        if condition.key not in self.held:
            self.held[condition.key] = self._holds(condition)
        return self.held[condition.key]

    def _holds(self, condition: Node) -> bool | None:
        match condition.op:
            case "eq0":
                value = self.number(condition.args[0])
                return None if value is None else value == 0
            case "ge0":
                value = self.number(condition.args[0])
                return None if value is None else value >= 0
            case "not":
                held = self.holds(condition.args[0])
                return None if held is None else not held
            case "and":
                parts = [self.holds(c) for c in condition.args]
                return False if False in parts else None if None in parts else True
            case "or":
                parts = [self.holds(c) for c in condition.args]
                return True if True in parts else None if None in parts else False
        return None


class Solver:
    """z3 for all paths of a proof, and what it has answered."""

    def __init__(self, least: int) -> None:
        import z3

        self.least = least
        #: Numbers that were found: whichever fit a path's assumptions spare it questions.
        self.witnesses = [Witness({}, n, least) for n in range(4)]
        self.asked = 0
        self._z3 = z3
        self._context = z3.Context()
        self._solver = z3.Solver(ctx=self._context)
        self._solver.set("timeout", QUESTION)
        self._solver.set("rlimit", STEPS)
        self._answers: dict[tuple[frozenset[str], str], bool] = {}
        self._consistent: dict[frozenset[str], bool] = {}
        self._leaves: dict[str, frozenset[str]] = {}
        self._formulas: dict[str, object] = {}
        #: By node: the symbol, and what holds of it (its range, what it is the quotient of).
        self._symbols: dict[str, object] = {}
        self._ranges: dict[str, list[object]] = {}

    # -- questions

    def follows(self, condition: Node, facts: Sequence[Node]) -> bool:
        """Whether a condition follows from facts; False also where that is unknown."""
        related = self.related(condition, facts)
        key = (frozenset(f.key for f in related), condition.key)
        held = self._answers.get(key)
        if held is None:
            held = self._ask(condition, related)
            self._answers[key] = held
        return held

    def consistent(self, facts: Sequence[Node]) -> bool:
        """Whether facts may hold together, as far as the solver can tell."""
        key = frozenset(f.key for f in facts)
        held = self._consistent.get(key)
        if held is None:
            held = not self._ask(None, facts)
            self._consistent[key] = held
        return held

    def related(self, condition: Node, facts: Sequence[Node]) -> list[Node]:
        """The facts that share a symbol with a condition, or with one of these."""
        reached = set(self.leaves(condition))
        left = [(f, self.leaves(f)) for f in facts]
        found: list[Node] = []
        grown = True
        while grown and left:
            grown = False
            rest = []
            for f, names in left:
                if names & reached:
                    reached |= names
                    found.append(f)
                    grown = True
                else:
                    rest.append((f, names))
            left = rest
        return found

    def leaves(self, condition: Node) -> frozenset[str]:
        """The symbols that the solver sees in a condition."""
        found = self._leaves.get(condition.key)
        if found is None:
            found = frozenset(n.key for n in nodes_in(condition) if n.op not in _ARITHMETIC)
            self._leaves[condition.key] = found
        return found

    def _ask(self, condition: Node | None, facts: Iterable[Node]) -> bool:
        self.asked += 1
        solver, z3 = self._solver, self._z3
        facts = list(facts)
        solver.push()
        try:
            declared: dict[str, None] = {}
            for fact in facts:
                solver.add(self.encoded(fact))
                self._declared(fact, declared)
            if condition is not None:
                solver.add(z3.Not(self.encoded(condition)))
                self._declared(condition, declared)
            for name in declared:
                for holds in self._ranges.get(name, ()):
                    solver.add(holds)
            answer = solver.check()
            if answer == z3.sat:
                self._witness(solver.model(), facts)
            return bool(answer == z3.unsat)
        finally:
            solver.pop()

    def _declared(self, condition: Node, found: dict[str, None]) -> None:
        for n in nodes_in(condition):
            found[n.key] = None

    def _witness(self, model: Any, facts: Sequence[Node]) -> None:
        numbers: dict[str, int] = {}
        for d in model.decls():
            name = d.name()
            value = model[d]
            if ":" in name and self._z3.is_int_value(value):
                numbers[name.split(":", 1)[1]] = value.as_long()
        made = Witness(numbers, len(self.witnesses), self.least)
        if all(made.holds(f) for f in facts):
            self.witnesses = [*self.witnesses[:4], *self.witnesses[4:][-19:], made]

    # -- the solver's language

    def encoded(self, condition: Node | bool) -> Any:
        """A condition as the solver's formula."""
        if isinstance(condition, bool):
            return self._z3.BoolVal(condition, ctx=self._context)
        found = self._formulas.get(condition.key)
        if found is None:
            found = self._encoded(condition)
            self._formulas[condition.key] = found
        return found

    def _encoded(self, condition: Node) -> Any:
        z3 = self._z3
        match condition.op:
            case "not":
                return z3.Not(self.encoded(condition.args[0]))
            case "and":
                return z3.And(*[self.encoded(c) for c in condition.args])
            case "or":
                return z3.Or(*[self.encoded(c) for c in condition.args])
            case "eq0":
                return self.number(condition.args[0]) == 0
            case "ge0":
                return self.number(condition.args[0]) >= 0
            case "req0":
                return self.number(condition.args[0], real=True) == 0
            case "rge0":
                return self.number(condition.args[0], real=True) >= 0
            case "rgt0":
                return self.number(condition.args[0], real=True) > 0
        return z3.Bool("b:" + condition.key, ctx=self._context)

    def number(self, value: Int, *, real: bool = False) -> Any:
        """A polynomial in the solver's arithmetic."""
        z3 = self._z3

        def constant(c: Number) -> Any:
            if real:
                return z3.RealVal(str(Fraction(c)), ctx=self._context)
            if isinstance(c, Fraction):
                raise Undecided("a fraction among whole numbers")
            return z3.IntVal(c, ctx=self._context)

        parts = []
        for mono, c in terms_of(value).items():
            factors = [] if c == 1 and mono else [constant(c)]
            for node, power in mono:
                factors += [self._symbol(node, real)] * power
            product = factors[0]
            for f in factors[1:]:
                product = product * f
            parts.append(product)
        if not parts:
            return constant(0)
        return parts[0] if len(parts) == 1 else z3.Sum(*parts)

    def _symbol(self, node: Node, real: bool) -> Any:
        z3 = self._z3
        name = f"{node.op}:{node.key}"
        if node.op in ("var", "dim", "int", "fdiv", "min", "pick"):
            symbol = self._symbols.get(name)
            if symbol is None:
                symbol = z3.Int(name, ctx=self._context)
                self._symbols[name] = symbol
                self._ranges[node.key] = self._ranged(node, symbol)
            return z3.ToReal(symbol) if real else symbol
        if node.op == "holds":
            one, zero = (
                (z3.RealVal(1, ctx=self._context), z3.RealVal(0, ctx=self._context))
                if real
                else (z3.IntVal(1, ctx=self._context), z3.IntVal(0, ctx=self._context))
            )
            return z3.If(self.encoded(node.args[0]), one, zero)
        return (z3.Real if real else z3.Int)(f"{name}:{real}", ctx=self._context)

    def _ranged(self, node: Node, symbol: Any) -> list[Any]:
        z3 = self._z3
        match node.op:
            case "dim":
                return [symbol >= self.least]
            case "var":
                return [symbol >= 0, symbol < self.number(node.args[1])]
            case "pick":
                # One of the indices of an axis that has any.
                size = self.number(node.args[1])
                return [z3.Implies(size > 0, z3.And(symbol >= 0, symbol < size))]
            case "fdiv":
                a, b = self.number(node.args[0]), self.number(node.args[1])
                return [z3.Implies(b > 0, z3.And(symbol * b <= a, a < symbol * b + b))]
            case "min":
                a, b = self.number(node.args[0]), self.number(node.args[1])
                return [symbol == z3.If(a <= b, a, b)]
        return []
