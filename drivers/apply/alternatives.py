"""Which ops a rule's pattern may find in an e-graph: for each operand, every equal op.

The matcher looks at a program, in which an operand is made by one op. Here the pattern's skeleton
(op names and operand structure) is laid over the classes of an e-graph; each way to choose ops for
it is then put into the program and given to the matcher, which checks everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mlirules.drivers.apply.egraph import EGraph
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression
from mlirules.language.rule import OpPattern, Rule, nested_calls

__all__ = ["Skeleton", "unsaid", "unsuitable"]

#: By class: the value that stands for it.
Way = dict[int, int]


def unsuitable(rule: Rule) -> str | None:
    """Why an e-graph cannot hold a rule; None when it can."""
    if rule.variants or not rule.match or rule.index_match:
        what = "a kernel" if rule.variants else "a match by an equation"
        return f"{what} has no ops that could be equal to others"
    if rule.other_roots:
        return "several ops are replaced at once"
    for pattern in rule.match:
        calls = nested_calls(pattern.equation.call)
        if any("." not in call.fn and call.fn not in rule.one_of for call in calls):
            return "an op of any name is looked for by its name"
        several = any(
            sum(isinstance(i, ast.Pack) for i in items) > 1
            for call in calls
            for items in (call.args, *(a.items for a in call.args if isinstance(a, ast.ListExpr)))
        )
        if pattern.equation.each or several:
            return "the items of a list are not looked at one by one"
    for _, statement in rule.rewrite:
        if isinstance(statement, ast.OpEquation) and statement.each:
            return "makes an op for every item of a list"
        if isinstance(statement, ast.OpEquation) and (
            "." in statement.call.fn or statement.call.fn in rule.one_of
        ):
            continue
        if isinstance(statement, ast.Assignment) and isinstance(statement.value, ast.Name):
            continue
        return "makes ops with bodies, not torch ops alone"
    return None


def unsaid(rule: Rule) -> frozenset[str]:
    """The results that the rule takes nobody to read: what it puts there says nothing."""
    return frozenset(
        arg.id
        for _, expr in rule.where
        for call in walk_expression(expr)
        if isinstance(call, ast.Call) and call.fn == "unused"
        for arg in call.args
        if isinstance(arg, ast.Name)
    )


class Skeleton:
    """The ops of one rule's pattern and how they feed each other."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._commutative = frozenset(rule.commutative)
        self._by_result: dict[str, tuple[OpPattern, int]] = {
            name: (pattern, at)
            for pattern in rule.match[:-1]
            for at, name in enumerate(pattern.equation.results)
            if name
        }
        #: How many ops and lists of the pattern lie above one another, at most.
        self.depth = self._depth(rule.root.equation.call)

    def _depth(self, call: ast.Call) -> int:
        deepest = 1
        left: list[tuple[ast.Expr, int]] = [(call, 1)]
        while left:
            arg, at = left.pop()
            deepest = max(deepest, at)
            items = arg.items if isinstance(arg, ast.ListExpr) else ()
            wanted, _ = self._wanted(arg)
            below = wanted.args if wanted is not None else items
            left += [(each, at + 1 if _has_op(each) else at) for each in below]
        return deepest

    def ways(
        self, graph: EGraph, number: int, name_of: Callable[[int], str]
    ) -> Iterator[tuple[Way, tuple[int, ...]]]:
        """Each choice of ops with which the pattern may hold at a node, and the nodes of it.

        One op stands for a class throughout a choice.
        """
        todo = self._operands(self.rule.root.equation.call, graph.nodes[number].operands)
        stack: list[tuple[list[tuple[ast.Expr, int]], Way, tuple[int, ...]]] = [
            (each, {}, (number,)) for each in todo
        ]
        seen: set[frozenset[tuple[int, int]]] = set()
        while stack:
            left, way, nodes = stack.pop()
            if not left:
                key = frozenset(way.items())
                if key not in seen:
                    seen.add(key)
                    yield way, nodes
                continue
            (arg, value), rest = left[-1], left[:-1]
            call, at = self._wanted(arg)
            if call is None and not isinstance(arg, ast.ListExpr):
                stack.append((rest, way, nodes))
                continue
            name = call.fn if call is not None else "torch.prim.ListConstruct"
            root = graph.find(value)
            for member, result in graph.members(value):
                given = graph.nodes[member].results[result]
                if (
                    not self.rule.may_be(name, name_of(member))
                    or (at is not None and at != result)
                    or way.get(root, given) != given
                ):
                    continue
                operands = graph.nodes[member].operands
                below = (
                    self._operands(call, operands)
                    if call is not None
                    else _items(arg.items, operands)
                    if isinstance(arg, ast.ListExpr)
                    else []
                )
                taken = nodes if member in nodes else (*nodes, member)
                stack += [(rest + more, {**way, root: given}, taken) for more in below]

    def _wanted(self, arg: ast.Expr) -> tuple[ast.Call | None, int | None]:
        """The op that an operand must be made by, and which of its results it must be."""
        if isinstance(arg, ast.Call):
            return arg, None
        if isinstance(arg, ast.Name) and arg.id in self._by_result:
            pattern, at = self._by_result[arg.id]
            return pattern.equation.call, at
        return None, None

    def _operands(
        self, call: ast.Call, operands: tuple[int, ...]
    ) -> list[list[tuple[ast.Expr, int]]]:
        """The operands' patterns with their values, in each order that they may have."""
        found = _items(call.args, operands)
        if call.fn in self._commutative and found and len(found[0]) >= 2:
            (first, one), (second, two), *rest = found[0]
            found.append([(first, two), (second, one), *rest])
        return found


def _has_op(arg: ast.Expr) -> bool:
    return isinstance(arg, (ast.Call, ast.ListExpr, ast.Name))


def _items(
    args: tuple[ast.Expr, ...], operands: tuple[int, ...]
) -> list[list[tuple[ast.Expr, int]]]:
    if args and isinstance(args[-1], ast.Pack):
        fixed = args[:-1]
        return [list(zip(fixed, operands, strict=False))] if len(operands) >= len(fixed) else []
    return [list(zip(args, operands, strict=True))] if len(operands) == len(args) else []
