"""Lists of a match: operands and items divided among packs, and ops that stand for every item."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from mlirules.drivers.iree.compiler import Op, ir
from mlirules.drivers.match.attempt import PATTERN_HOLDS, State, Stop, refuse
from mlirules.drivers.match.results import Refusal
from mlirules.drivers.match.values import owner_of
from mlirules.language.notation import ast
from mlirules.language.rule import Line, OpPattern, Rule, list_item, nested_calls

#: So many ways to divide lists among packs are tried at one op.
MAX_WAYS = 256


class Lists(ABC):
    """Matches lists, operand by operand and item by item."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        #: For each name that an op of the match makes: the op's number, and which result it is.
        self.by_result: dict[str, tuple[int, int]] = {}
        for n, pattern in enumerate(rule.match):
            for i, name in enumerate(pattern.equation.results):
                if name:
                    self.by_result[name] = (n, i)
        inside = [
            list(node.args if isinstance(node, ast.Call) else node.items)
            for p in rule.match
            for node in ast.walk_expression(p.equation.call)
            if isinstance(node, (ast.Call, ast.ListExpr))
        ]
        #: Whether lists can be divided among packs in several ways.
        self.several = any(sum(isinstance(i, ast.Pack) for i in items) > 1 for items in inside)
        #: The lists whose items have names.
        self.lists = {found[0] for items in inside for i in items if (found := list_item(i))}
        self.lists |= {str(p.equation.results[0]) for p in rule.match if p.equation.each}

    @abstractmethod
    def op(
        self, pattern: OpPattern, number: int, op: Op, state: State, swaps: tuple[bool, ...]
    ) -> None:
        """Match an op against the pattern with this number, and what feeds it."""

    @abstractmethod
    def call(
        self, line: Line, call: ast.Call, op: Op, state: State, swaps: tuple[bool, ...]
    ) -> bool:
        """Match an op and what feeds it. False (explaining only): it is another op altogether."""

    @abstractmethod
    def operand(
        self, line: Line, arg: ast.Expr, value: ir.Value, state: State, swaps: tuple[bool, ...]
    ) -> None:
        """Match a value against what the pattern has in its place."""

    def asked(
        self, line: Line, call: ast.Call, op: Op | None, head: ast.Node
    ) -> tuple[Line, ast.Node]:
        """Where the rule asks for another op than ``op``: a condition on the variable, if any."""
        one_of = self.rule.one_of.get(call.fn)
        return (line, head) if op is None or one_of is None else (one_of.line, one_of.expr)

    def ways(
        self,
        pattern: OpPattern,
        number: int,
        op: Op,
        start: State,
        swaps: tuple[bool, ...],
        refusals: list[Refusal],
    ) -> Iterator[State]:
        """Every way to divide lists among several packs so that the pattern fits at ``op``.

        Why others do not is left in ``refusals``.
        """
        divided: dict[tuple[int, int], int] = {}
        for _ in range(MAX_WAYS):
            state = start.copy()
            state.divided = {**start.divided, **divided}
            state.ways = {}
            try:
                self.op(pattern, number, op, state, swaps)
            except Stop as stop:
                refusals.append(stop.refusal)
            else:
                yield state
            # The next way: of the list divided last that has another one.
            known = list(state.ways)
            while known:
                key = known.pop()
                if divided.get(key, 0) + 1 < state.ways[key]:
                    divided = {k: divided.get(k, 0) for k in known} | {key: divided.get(key, 0) + 1}
                    break
            else:
                return
        refusals.append(
            Refusal(
                pattern.line,
                f"its lists divide in more than {MAX_WAYS} ways, and none of the first fits",
                depth=PATTERN_HOLDS,
                at=op,
            )
        )

    def sequence(
        self,
        line: Line,
        node: ast.Call | ast.ListExpr,
        values: Sequence[ir.Value],
        state: State,
        swaps: tuple[bool, ...],
    ) -> bool:
        """Match operands or items, packs among them; of several packs, as ``state`` divides."""
        items = node.args if isinstance(node, ast.Call) else node.items
        packs = sum(isinstance(item, ast.Pack) for item in items)
        fixed = len(items) - packs
        free = len(values) - fixed
        if free < 0 or (free and not packs):
            wanted = f"at least {fixed}" if packs else str(fixed)
            parts, said = "items", f"a list of {len(values)}"
            if isinstance(node, ast.Call):
                parts, said = "operands", f"{node.fn} has {len(values)}"
            refuse(
                state,
                Refusal(
                    line,
                    f"{said} {parts}, not {wanted}",
                    f"{wanted} {parts}",
                    f"{len(values)} {parts}",
                    state.depth,
                    node,
                ),
            )
            return False
        sizes = iter(self._divided(node, packs, free, state))
        at = 0
        # Packs last: what they hold may be ops whose operands the other items bind.
        packed: list[tuple[ast.Pack, Sequence[ir.Value]]] = []
        for item in items:
            if isinstance(item, ast.Pack):
                size = next(sizes)
                packed.append((item, values[at : at + size]))
                at += size
            else:
                self.operand(line, item, values[at], state, swaps)
                at += 1
        for pack, held in packed:
            if pack.id:
                self.bind_list(line, pack, pack.id, list(held), state, swaps)
        return True

    @staticmethod
    def _divided(node: ast.Node, packs: int, free: int, state: State) -> list[int]:
        """How many values each of the packs of a list takes."""
        if packs < 2:
            return [free] * packs
        key = (id(node), state.item)
        state.ways[key] = math.comb(free + packs - 1, packs - 1)
        every = itertools.combinations_with_replacement(range(free + 1), packs - 1)
        cuts = next(itertools.islice(every, state.divided.get(key, 0), None))
        return [b - a for a, b in itertools.pairwise((0, *cuts, free))]

    def bind_list(
        self,
        line: Line,
        node: ast.Node,
        name: str,
        elements: list[ir.Value],
        state: State,
        swaps: tuple[bool, ...],
    ) -> None:
        """Bind a list; where a line of the match says what its items are, match them."""
        paths = state.lists.get(name)
        if paths is None:
            state.lists[name] = paths = [f"{name}#{i}" for i in range(len(elements))]
            state.values.update(zip(paths, elements, strict=True))
        elif [state.values[p] for p in paths] != list(elements):
            refuse(
                state,
                Refusal(
                    line,
                    f"{name} stands for two different lists here",
                    f"the same values as the other {name}",
                    "other values",
                    state.depth,
                    node,
                ),
            )
            return
        made = self.by_result.get(name)
        if made is not None and self.rule.match[made[0]].equation.each is not None:
            self._every(made[0], elements, state, swaps)

    def _every(
        self, number: int, elements: list[ir.Value], state: State, swaps: tuple[bool, ...]
    ) -> None:
        """Match the op that stands for every item of a list."""
        pattern = self.rule.match[number]
        for i, value in enumerate(elements):
            outer, state.item = state.item, i
            self._item(pattern, value, state, swaps)
            state.item = outer
        for call in nested_calls(pattern.equation.call):
            for arg in call.args:
                for item in arg.items if isinstance(arg, ast.ListExpr) else (arg,):
                    listed = list_item(item)
                    if listed is None:
                        continue
                    count = len(state.lists.setdefault(listed[0], []))
                    if count != len(elements):
                        refuse(
                            state,
                            Refusal(
                                pattern.line,
                                f"{listed[0]} has {count} items, not {len(elements)}",
                                f"{len(elements)} items",
                                f"{count} items",
                                state.depth,
                                item,
                            ),
                        )

    def _item(
        self, pattern: OpPattern, value: ir.Value, state: State, swaps: tuple[bool, ...]
    ) -> None:
        """Match the op that makes one item of a list."""
        call = pattern.equation.call
        name = f"{pattern.equation.results[0]}[{state.item}]"
        owner = owner_of(value)
        if owner is None or not self.rule.may_be(call.fn, owner.name):
            made_by = "an argument" if owner is None else f"the result of {owner.name}"
            wanted = self.rule.spelt(call.fn)
            head = ast.Node(call.pos, call.pos + len(call.fn))
            line, at = self.asked(pattern.line, call, owner, head)
            said = f"{name} is {made_by}, not of {wanted}"
            refuse(state, Refusal(line, said, wanted, made_by, state.depth, at, at=owner))
            return
        if len(owner.results) != 1:
            count = len(owner.results)
            refuse(
                state,
                Refusal(
                    pattern.line,
                    f"{owner.name}, which makes {name}, has {count} results, not 1",
                    "1 result",
                    f"{count} results",
                    state.depth,
                    at=owner,
                ),
            )
            return
        self.call(pattern.line, call, owner, state, swaps)
        state.inner.append(owner)

    def bind_item(
        self,
        line: Line,
        node: ast.Node,
        name: str,
        value: ir.Value,
        state: State,
        swaps: tuple[bool, ...],
    ) -> None:
        """Bind one item of a list (``xs[i]``); where a line says what the items are, match it."""
        paths = state.lists.setdefault(name, [])
        path = f"{name}#{state.item}"
        if len(paths) == state.item:
            paths.append(path)
            state.values[path] = value
            state.depth += 1
        elif path not in state.values or state.values[path] != value:
            refuse(
                state,
                Refusal(
                    line,
                    f"{name}[{state.item}] stands for two different values here",
                    f"the same value as the other {name}[{state.item}]",
                    "another value",
                    state.depth,
                    node,
                ),
            )
            return
        made = self.by_result.get(name)
        if made is not None:
            self._item(self.rule.match[made[0]], value, state, swaps)
