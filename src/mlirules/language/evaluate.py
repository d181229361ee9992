"""Evaluation of expressions over the symbols of a match, before any IR exists.

There is no ``eval``: the syntax tree is walked, every name is looked up in the match's environment,
and the functions are a closed set (:mod:`mlirules.language.builtins`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlirules.language.builtins import FUNCTIONS
from mlirules.language.builtins.lists import item_at
from mlirules.language.builtins.registry import MAX_LIST
from mlirules.language.notation import ast
from mlirules.language.operands import Refused, arith, compare, equal, number, sequence, truth
from mlirules.language.values import Dyn, dtype_named


class Evaluator:
    """Walks an expression over an environment of names. See the module's docstring."""

    def __init__(
        self,
        names: Mapping[str, object],
        structural: Callable[[str, list[str]], bool] | None = None,
    ) -> None:
        self.names: Mapping[str, Any] = names
        # Answers the functions that ask about the IR around the match (one_use).
        self.structural = structural

    def eval(self, node: ast.Expr) -> Any:
        """The value of ``node``. Raises :class:`Refused` with the node that has none."""
        try:
            return self._eval(node)
        except Refused as refused:
            if refused.node is None:
                refused.node = node
            raise

    def _eval(self, node: ast.Expr) -> Any:
        match node:
            case ast.Literal(value=value):
                return value
            case ast.Name():
                return self.name(node)
            case ast.ListExpr(items=items):
                return self.items(items)
            case ast.Call():
                return self.call(node)
            case ast.Access(base=base, items=items):
                return self.access(node, self.eval(base), items)
            case ast.Unary(op=op, operand=operand):
                return self.unary(op, self.eval(operand))
            case ast.Binary(op=op, left=left, right=right):
                if op in ("and", "or"):
                    return self.logical(op, left, right)
                return self.binary(op, self.eval(left), self.eval(right))
            case ast.Conditional(condition=c, then=a, otherwise=b):
                return self.conditional(self.eval(c), a, b)
            case ast.Pack():
                raise Refused("a pack (I...) can stand only in a list or in indices", node)
            case _:
                raise Refused("'_' has no value", node)

    def name(self, node: ast.Name) -> Any:
        """The value of a name: bound, or an element type."""
        if node.id in self.names:
            return self.names[node.id]
        if "." in node.id:
            return node.id  # an op, as in `Op in [torch.aten.relu]`
        found = dtype_named(node.id)
        if found is not None:
            return found
        raise Refused(f"{node.id} has no value here", node)

    def items(self, items: Sequence[ast.Expr]) -> list[Any]:
        """The values of list items, with packs (``I...``) spliced in."""
        out: list[object] = []
        for item in items:
            if isinstance(item, ast.Pack):
                out.extend(self.pack(item))
            else:
                out.append(self.eval(item))
        return out

    def pack(self, node: ast.Pack) -> list[Any]:
        """The values that a pack stands for."""
        if node.id is None:
            raise Refused("`...` stands for the indices of the left-hand side: it has none", node)
        return sequence(self.name(ast.Name(node.pos, node.end, node.id)), node.id)

    def call(self, node: ast.Call) -> Any:
        """The value of a function of the closed set."""
        function = FUNCTIONS.get(node.fn)
        if function is None or function.impl is None:
            raise Refused(f"unknown function {node.fn}", node)
        if function.structural:
            if self.structural is None:
                raise Refused(f"{node.fn} cannot stand here", node)
            return self.structural(
                node.fn, [a.id for a in node.args if isinstance(a, (ast.Name, ast.Pack)) and a.id]
            )
        args = self.items(node.args)
        low, high = function.arity
        if not low <= len(args) <= high:
            raise Refused(f"{node.fn} takes {low} to {high} values, not {len(args)}", node)
        if any(isinstance(a, list) and len(a) > MAX_LIST for a in args):
            raise Refused(f"a list of more than {MAX_LIST}", node)
        return function.impl(*(self.argument_of(a) for a in args))

    def argument_of(self, value: object) -> Any:
        """``value`` as a function of the closed set takes it."""
        return value

    def access(self, node: ast.Access, base: object, items: Sequence[ast.Expr]) -> Any:
        """An item of a list."""
        where = self.items(items)
        if len(where) != 1:
            raise Refused("a list takes one index", node)
        return item_at(base, where[0])

    def unary(self, op: str, value: object) -> Any:
        """``not`` or ``-``, over lists item by item."""
        if op == "not":
            return not truth(value)
        if isinstance(value, (list, tuple)):
            return [self.unary(op, v) for v in value]
        return arith("-", 0, value) if isinstance(value, Dyn) else -number(value)

    def logical(self, op: str, left: ast.Expr, right: ast.Expr) -> Any:
        """``and`` and ``or``: the right side counts only where the left does not decide."""
        a = truth(self.eval(left))
        if op == "and":
            return a and truth(self.eval(right))
        return a or truth(self.eval(right))

    def joined(
        self, left: ast.Expr, right: ast.Expr, *, over: bool, join: Callable[[Any, Any], Any]
    ) -> Any:
        """``and`` and ``or`` where a side may be known later only: then ``join`` makes the value.

        ``over`` is what decides alone: True for ``or``.
        """
        a = self.eval(left)
        if isinstance(a, bool):
            return a if a == over else self.eval(right)
        b = self.eval(right)
        if isinstance(b, bool):
            return b if b == over else a
        return join(a, b)

    def conditional(self, condition: object, then: ast.Expr, otherwise: ast.Expr) -> Any:
        """One of two expressions; the other is not evaluated."""
        return self.eval(then if truth(condition) else otherwise)

    def binary(self, op: str, a: object, b: object) -> Any:
        """An operator's value, over lists item by item."""
        if op in ("in", "not in"):
            found = any(equal(a, v) for v in sequence(b, "the right side of 'in'"))
            return found if op == "in" else not found
        if op == "==":
            return equal(a, b)
        if op == "!=":
            return not equal(a, b)
        if op in ("<", "<=", ">", ">="):
            return compare(op, a, b)
        if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            if len(a) != len(b):
                raise Refused(f"lists of {len(a)} and {len(b)} items")
            return [self.binary(op, x, y) for x, y in zip(a, b, strict=True)]
        if isinstance(a, (list, tuple)):
            return [self.binary(op, x, b) for x in a]
        if isinstance(b, (list, tuple)):
            return [self.binary(op, a, y) for y in b]
        return arith(op, a, b)
