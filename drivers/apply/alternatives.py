"""Which ops a rule's pattern may find in an e-graph: for each operand, every equal op.

The matcher looks at a program, in which an operand is made by one op. Here the pattern's skeleton
(op names and operand structure) is laid over the classes of an e-graph; each way to choose ops for
it is then put into the program and given to the matcher, which checks everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlirules.drivers.apply.egraph import EGraph
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression
from mlirules.language.rule import OpPattern, Rule, nested_calls

__all__ = ["LIST", "Skeleton", "Skeletons", "unsaid", "unsuitable"]

#: By class: the value that stands for it.
Way = dict[int, int]

LIST = "torch.prim.ListConstruct"


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


#: Places of an op's operands in which the pattern wants an op, with what it wants there.
_Order = tuple[tuple[int, "_Sought"], ...]


@dataclass(slots=True, eq=False)
class _Sought:
    """An op of the pattern or a list in it, read once: many nodes are compared with it."""

    #: The names that the op may have; None: any.
    names: frozenset[str] | None
    #: Which of its results it must be, where that matters.
    at: int | None
    args: tuple[ast.Expr, ...]
    commutative: bool
    #: How many operands it has, and whether it may have more.
    count: int = 0
    open: bool = False
    #: The orders that its operands may have; None: not asked for yet.
    orders: list[_Order] | None = None

    def fits(self, count: int) -> bool:
        """Whether it may be an op of so many operands."""
        return count >= self.count if self.open else count == self.count


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
        #: Each op and list of the pattern once, however often it is named, by its identity.
        self._known: dict[tuple[int, int | None], _Sought] = {}
        root = rule.root.equation.call
        #: How many ops and lists of the pattern lie above one another, at most.
        self.depth = self._depth(root)
        self._root = self._sought(root)
        assert self._root is not None  # a call always seeks an op

    def first(self) -> tuple[int, frozenset[str]] | None:
        """An operand of the root and the ops that must make it; None: there is no such operand."""
        root = self._root
        assert root is not None
        orders = self._read(root) if root.orders is None else root.orders
        if len(orders) > 1:
            return None
        return next(((at, each.names) for at, each in orders[0] if each.names is not None), None)

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
        self, graph: EGraph, number: int, names: Sequence[str]
    ) -> Iterator[tuple[Way, tuple[int, ...]]]:
        """Each choice of ops with which the pattern may hold at a node, and the nodes of it.

        One op stands for a class throughout a choice. ``names`` are those of the nodes.
        """
        assert self._root is not None
        nodes_of, find, members = graph.nodes, graph.find, graph.members
        operands = nodes_of[number].operands
        stack: list[tuple[list[tuple[_Sought, int]], Way, tuple[int, ...]]] = [
            (each, {}, (number,)) for each in self._below(self._root, operands)
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
            sought, value = left[-1]
            allowed, at = sought.names, sought.at
            rest: list[tuple[_Sought, int]] | None = None
            root = find(value)
            for member, result in members(root):
                if (allowed is not None and names[member] not in allowed) or (
                    at is not None and at != result
                ):
                    continue
                node = nodes_of[member]
                given = node.results[result]
                if way.get(root, given) != given:
                    continue
                if rest is None:
                    rest = left[:-1]
                taken = nodes if member in nodes else (*nodes, member)
                below = self._below(sought, node.operands)
                stack += [(rest + more, {**way, root: given}, taken) for more in below]

    def _below(self, sought: _Sought, operands: tuple[int, ...]) -> list[list[tuple[_Sought, int]]]:
        """What is sought among the operands of an op, in each order that they may have."""
        orders = sought.orders
        if orders is None:
            orders = self._read(sought)
        if not sought.fits(len(operands)):
            return []
        return [[(each, operands[at]) for at, each in order] for order in orders]

    def _read(self, sought: _Sought) -> list[_Order]:
        """Read what an op of the pattern wants of its operands."""
        args = sought.args
        sought.open = bool(args) and isinstance(args[-1], ast.Pack)
        fixed = args[:-1] if sought.open else args
        sought.count = len(fixed)
        places = list(range(len(fixed)))
        turns = [places]
        if sought.commutative and len(fixed) >= 2:
            turns.append([1, 0, *places[2:]])
        wanted = [self._sought(arg) for arg in fixed]
        sought.orders = [
            tuple((at, each) for at, each in zip(turn, wanted, strict=True) if each is not None)
            for turn in turns
        ]
        return sought.orders

    def _sought(self, arg: ast.Expr) -> _Sought | None:
        """The op or list that an operand must be; None where it may be anything."""
        call, at = self._wanted(arg)
        if call is None and not isinstance(arg, ast.ListExpr):
            return None
        key = id(call if call is not None else arg), at
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._new(call, at, arg)
        return found

    def _new(self, call: ast.Call | None, at: int | None, arg: ast.Expr) -> _Sought:
        if call is not None:
            one_of = self.rule.one_of.get(call.fn)
            names = None if one_of is None else frozenset(one_of.ops)
            if "." in call.fn:
                names = frozenset([call.fn])
            return _Sought(names, at, call.args, call.fn in self._commutative)
        assert isinstance(arg, ast.ListExpr)
        return _Sought(frozenset([LIST]), None, arg.items, commutative=False)

    def _wanted(self, arg: ast.Expr) -> tuple[ast.Call | None, int | None]:
        """The op that an operand must be made by, and which of its results it must be."""
        if isinstance(arg, ast.Call):
            return arg, None
        if isinstance(arg, ast.Name) and arg.id in self._by_result:
            pattern, at = self._by_result[arg.id]
            return pattern.equation.call, at
        return None, None


class Skeletons:
    """Those of all rules that one op can be the root of, by what must make its operands.

    Most rules look for an op that is not there: so nothing is asked of these.
    """

    def __init__(self, skeletons: Sequence[Skeleton]) -> None:
        self._all = list(skeletons)
        self._always: list[int] = []
        self._by_operand: dict[int, dict[str, list[int]]] = {}
        for place, skeleton in enumerate(self._all):
            first = skeleton.first()
            if first is None:
                self._always.append(place)
                continue
            at, names = first
            for name in names:
                self._by_operand.setdefault(at, {}).setdefault(name, []).append(place)

    def at(self, graph: EGraph, number: int, names: Sequence[str]) -> list[Skeleton]:
        """Those that may hold at a node, in their order. ``names`` are those of the nodes."""
        operands = graph.nodes[number].operands
        places = set(self._always)
        for at, by_name in self._by_operand.items():
            if at < len(operands):
                for member, _ in graph.members(operands[at]):
                    places.update(by_name.get(names[member], ()))
        return [self._all[place] for place in sorted(places)]


def _has_op(arg: ast.Expr) -> bool:
    return isinstance(arg, (ast.Call, ast.ListExpr, ast.Name))
