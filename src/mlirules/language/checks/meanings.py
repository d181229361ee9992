"""Checks of what an equation means: places of tensors, loops, sums, types, conditions.

Only what is certain from the declared types is told: a name whose type is not declared, or whose
rank is open, may be anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mlirules.language.checks.checker import Checker
from mlirules.language.notation import ast
from mlirules.language.notation.parser import ELEMENT_TYPES
from mlirules.language.rule import Line, Rule, defined_names

__all__ = ["meanings"]

_ORDER = ("<", "<=", ">", ">=")
_ARITHMETIC = ("+", "-", "*", "/", "//", "%", "**")
_MEMBER = ("in", "not in")


@dataclass(frozen=True)
class _Tensor:
    """A tensor's declared shape; ``rank`` is None where packs or optional values leave it open."""

    shape: str
    rank: int | None


_Kinds = Mapping[str, "_Tensor | str"]


def meanings(checker: Checker, rule: Rule) -> None:
    """Note what the lines of a rule say that can mean nothing."""
    kinds = _kinds(rule)
    for line, equation in rule.index_match:
        _Equation(checker, rule, kinds, line, equation).check()
    for line, statement in rule.rewrite:
        if isinstance(statement, ast.IndexEquation):
            _Equation(checker, rule, kinds, line, statement).check()
    for line, condition in rule.where:
        _known_before(checker, kinds, line, condition)
        _condition(checker, line, condition)
    for _, line, value, _ in rule.let:
        if value is not None:
            _known_before(checker, kinds, line, value)


def _kinds(rule: Rule) -> _Kinds:
    """What each name certainly is: a tensor, a `dim` or an `element` type. Others are left out."""
    tensors: dict[str, _Tensor] = {}
    dims: set[str] = set()
    elements: set[str] = set()
    packs: set[str] = set()
    for name, (line, decl) in rule.types.items():
        if decl.kind in ("vtensor", "tensor"):
            declared = decl.dims
            fixed = declared is not None and not decl.optional and not any(d.pack for d in declared)
            rank = len(declared) if declared is not None and fixed else None
            tensors[name] = _Tensor(line.text.value[decl.pos : decl.end], rank)
        for dim in decl.dims or ():
            if isinstance(dim.value, str):
                (packs if dim.pack else dims).add(dim.value)
        if decl.element and decl.kind in ("vtensor", "tensor"):
            elements.add(decl.element)
    out: dict[str, _Tensor | str] = {}
    for name in {*tensors, *dims, *elements}:
        found = [name in tensors, name in dims, name in elements, name in packs]
        if sum(found) == 1:
            out[name] = tensors.get(name, "dim" if name in dims else "element")
    return out


class _Equation:
    """One index equation."""

    def __init__(
        self, checker: Checker, rule: Rule, kinds: _Kinds, line: Line, equation: ast.IndexEquation
    ) -> None:
        self.checker, self.rule, self.kinds = checker, rule, kinds
        self.defined = {name for _, made in rule.rewrite for name in defined_names(made)}
        self.line, self.equation = line, equation

    def check(self) -> None:
        """Note what is wrong with it."""
        made = self.equation
        target = ast.Name(made.pos, made.pos + len(made.target), made.target)
        self.places(target, made.indices)
        for node in ast.walk_expression(made.value):
            if isinstance(node, ast.Access) and isinstance(node.base, ast.Name):
                self.places(node.base, node.items)
            elif isinstance(node, ast.Call) and node.fn == "cast" and len(node.args) == 2:
                self.cast(node.args[1])
            elif isinstance(node, ast.Call) and self.kinds.get(node.fn) == "dim":
                self.fault(
                    ast.Node(node.pos, node.pos + len(node.fn)),
                    "unknown-function",
                    f"{node.fn} is a size, not a function",
                    f"write {node.fn} * (...), or cast(..., T)",
                )
            elif isinstance(node, ast.Binary) and node.op in _MEMBER:
                self.member(node)
        for item in made.indices:
            self.written(item)
        for scalar in _scalars(made.value):
            self.bare(scalar)
        read = {n for item in made.indices for n in _names(item)} | set(_names(made.value))
        for bound in made.bounds:
            self.bound(bound)
            if bound.id.isidentifier() and bound.id not in read:
                self.fault(
                    ast.Node(bound.pos, bound.pos + len(bound.id)),
                    "unused-index",
                    f"{bound.id} runs over {self.text(bound.limit)}, and nothing in the equation "
                    "depends on it",
                    "remove the bound, or use the index",
                )
        self.summed()

    def text(self, node: ast.Node) -> str:
        """What a node reads in the file."""
        return self.line.text.value[node.pos : node.end]

    def written(self, item: ast.Expr) -> None:
        """What a result is written at: loop indices and 0."""
        sums = isinstance(item, ast.Binary) and item.op in _ARITHMETIC
        far = isinstance(item, ast.Literal) and type(item.value) is int and item.value != 0
        if (sums or far) and self.equation.target not in self.written_before():
            self.fault(
                item,
                "not-an-index",
                f"a result is written at loop indices, not at {self.text(item)}",
                "write the index alone, and compute with it on the right-hand side",
            )

    def written_before(self) -> set[str]:
        """What earlier lines of the rewrite define: parts of it may be written again."""
        out: set[str] = set()
        for line, made in self.rule.rewrite:
            if line is self.line:
                break
            out |= defined_names(made)
        return out if any(line is self.line for line, _ in self.rule.rewrite) else {"*"}

    def fault(self, node: ast.Node, code: str, message: str, hint: str) -> None:
        """Note a fault of the equation."""
        self.checker.fault(self.line, node, code, message, hint)

    def tensor(self, node: ast.Expr) -> _Tensor | None:
        """The tensor that a bare name certainly is."""
        found = self.kinds.get(node.id) if isinstance(node, ast.Name) else None
        return found if isinstance(found, _Tensor) else None

    def places(self, base: ast.Name, items: Iterable[ast.Expr]) -> None:
        """The indices of one element: as many as the tensor has dims, and whole numbers."""
        listed = list(items)
        tensor = self.tensor(base)
        if tensor is None:
            return
        for item in listed:
            self.index(item)
        if tensor.rank is None or any(isinstance(i, (ast.Call, ast.ListExpr)) for i in listed):
            return
        given = sum(not isinstance(item, ast.Pack) for item in listed)
        packs = len(listed) - given
        if given > tensor.rank or (not packs and given < tensor.rank):
            count = f"{tensor.rank} dim" + "s" * (tensor.rank != 1)
            few = given < tensor.rank
            self.fault(
                ast.Node(base.pos, listed[-1].end if listed else base.end),
                "wrong-rank",
                f"{base.id} has {count}, {tensor.shape}: {given} "
                f"{'index stands' if given == 1 else 'indices stand'} here",
                "give every dim an index, or write `...` for the others"
                if few
                else "remove an index, or declare the tensor with as many dims",
            )

    def index(self, item: ast.Expr) -> None:
        """An index is a whole number, or made of loop indices."""
        wrong = ""
        if isinstance(item, ast.ListExpr):
            wrong = "a list"
        elif isinstance(item, ast.Literal) and type(item.value) is not int:
            wrong = {float: "a float", bool: "a truth value", str: "a text"}.get(
                type(item.value), "none"
            )
        elif (tensor := self.tensor(item)) is not None and tensor.rank != 0:
            wrong = f"the whole tensor {item.id}" if isinstance(item, ast.Name) else ""
        elif isinstance(item, ast.Name) and self.kinds.get(item.id) == "element":
            wrong = "an element type"
        if wrong:
            hint = "write a loop index or a whole number"
            if isinstance(item, ast.ListExpr) and len(item.items) == 1:
                only = item.items[0]
                hint = f"write {self.line.text.value[only.pos : only.end]}, without its brackets"
            elif wrong.startswith("the whole"):
                hint = "an element of it is read as x[i, j]"
            self.fault(item, "not-an-index", f"{wrong} cannot be an index", hint)

    def cast(self, to: ast.Expr) -> None:
        """The second value of `cast` is an element type."""
        wrong = ""
        if isinstance(to, ast.Name):
            kind = self.kinds.get(to.id)
            if isinstance(kind, _Tensor):
                wrong = f"the tensor {to.id}"
            elif kind == "dim":
                wrong = f"the size {to.id}"
        elif isinstance(to, ast.Literal):
            wrong = "none" if to.value is None else f"{to.value!r}"
        if wrong:
            self.fault(
                to,
                "not-a-type",
                f"cast makes numbers of an element type, and {wrong} is none",
                "for example cast(x[i], f32), or a symbol of `types:` such as T",
            )

    def member(self, node: ast.Binary) -> None:
        """`in` asks about what is known before the program runs."""
        for inner in ast.walk_expression(node.left):
            if isinstance(inner, ast.Access) and self.tensor(inner.base) is not None:
                self.fault(
                    node,
                    "not-known",
                    f"`{node.op}` asks about what is known before the program runs, and elements "
                    "of tensors are not",
                    "compare them one by one: x[i] == a or x[i] == b",
                )
                return

    def bare(self, node: ast.Expr) -> None:
        """A whole tensor, a list or nothing where a number must stand."""
        wordless = isinstance(node, ast.Literal) and (
            node.value is None or isinstance(node.value, str)
        )
        if isinstance(node, ast.ListExpr) or wordless:
            self.fault(
                node,
                "not-an-element",
                f"{self.text(node)} is no number: an equation computes elements",
                "write a number, an element of a tensor, or a function of them",
            )
            return
        tensor = self.tensor(node)
        if isinstance(node, ast.Name) and tensor is not None and tensor.rank:
            places = ", ".join("ijklmnpq"[: tensor.rank]) if tensor.rank <= 8 else "..."
            self.fault(
                node,
                "not-an-element",
                f"{node.id} is a whole tensor, {tensor.shape}: an equation computes elements",
                f"write {node.id}[{places}], or {node.id}[...]",
            )

    def bound(self, bound: ast.Bound) -> None:
        """What a loop index runs up to is a whole number; for a pack it is a list of them."""
        limit = bound.limit
        if bound.pack:
            if isinstance(limit, ast.Name) and self.kinds.get(limit.id) == "dim":
                self.fault(
                    limit,
                    "not-a-size",
                    f"{bound.id}... runs up to a list, and {limit.id} is one size",
                    f"write {bound.id} < {limit.id}, or {bound.id}... < [{limit.id}]",
                )
            return
        wrong = ""
        if self.tensor(limit) is not None and isinstance(limit, ast.Name):
            wrong = f"the tensor {limit.id}"
        elif isinstance(limit, ast.Name) and self.kinds.get(limit.id) == "element":
            wrong = f"the element type {limit.id}"
        elif isinstance(limit, ast.ListExpr):
            wrong = "a list"
        elif isinstance(limit, ast.Literal) and type(limit.value) is not int:
            wrong = f"{limit.value!r}"
        if wrong:
            self.fault(
                limit,
                "not-a-size",
                f"{bound.id} runs up to a whole number, and {wrong} is none",
                "for example a dim of `types:`, a constant, or dim(x, 0)",
            )

    def summed(self) -> None:
        """Loop indices that the target lacks are summed over: that is not what `=` says."""
        made = self.equation
        if made.op != "=":
            return
        own = {n for item in made.indices for n in _names(item)}
        free: dict[str, ast.Node] = {}
        for node in ast.walk_expression(made.value):
            if isinstance(node, ast.Access) and self.tensor(node.base) is not None:
                for found in (n for item in node.items for n in ast.walk_expression(item)):
                    if isinstance(found, (ast.Name, ast.Pack)) and found.id:
                        free.setdefault(found.id, found)
        known = {*own, *self.rule.names, *self.rule.types, *self.checker.unread, *self.defined}
        known |= {*ELEMENT_TYPES}
        for name, place in free.items():
            if name in known:
                continue
            self.fault(
                place,
                "not-summed",
                f"{made.target} has no index {name}: `=` says one value for each of its elements",
                f"write += to sum over {name} (max=, min=, *= likewise), or give {made.target} the "
                "index",
            )


def _names(item: ast.Expr) -> Iterator[str]:
    for node in ast.walk_expression(item):
        if isinstance(node, (ast.Name, ast.Pack)) and node.id:
            yield node.id


def _scalars(node: ast.Expr) -> Iterator[ast.Expr]:
    """What stands where numbers are computed: the value itself, and operands below it."""
    match node:
        case ast.Name() | ast.ListExpr() | ast.Literal():
            yield node
        case ast.Unary(operand=inner):
            yield from _scalars(inner)
        case ast.Binary(op=op, left=left, right=right) if op not in _MEMBER:
            yield from _scalars(left)
            yield from _scalars(right)
        case ast.Conditional(then=left, otherwise=right):
            yield from _scalars(left)
            yield from _scalars(right)


def _known_before(checker: Checker, kinds: _Kinds, line: Line, value: ast.Expr) -> None:
    """Conditions and `let:` see types and constants, not the elements of tensors."""
    for node in ast.walk_expression(value):
        if isinstance(node, ast.Access) and isinstance(node.base, ast.Name):
            if isinstance(kinds.get(node.base.id), _Tensor):
                checker.fault(
                    line,
                    node,
                    "not-known",
                    f"an element of {node.base.id} is not known before the program runs",
                    "ask for types and constants here; compute with elements in `rewrite:`",
                )
        elif isinstance(node, ast.Binary) and node.op in (*_ORDER, *_ARITHMETIC):
            for side in (node.left, node.right):
                found = kinds.get(side.id) if isinstance(side, ast.Name) else None
                if found == "element":
                    said = f"the element type {side.id}" if isinstance(side, ast.Name) else ""
                elif isinstance(found, _Tensor) and found.rank != 0:
                    said = f"the tensor {side.id}" if isinstance(side, ast.Name) else ""
                else:
                    continue
                checker.fault(
                    line,
                    side,
                    "no-number",
                    f"{said} is no number: `{node.op}` takes numbers",
                    "types are compared with ==, or asked about: is_float(T), T in [f32, f64]",
                )


def _condition(checker: Checker, line: Line, condition: ast.Expr) -> None:
    """What stands in `where:` is true or false."""
    arithmetic = isinstance(condition, ast.Binary) and condition.op in _ARITHMETIC
    literal = isinstance(condition, ast.Literal) and type(condition.value) is not bool
    if arithmetic or literal or isinstance(condition, ast.ListExpr):
        checker.fault(
            line,
            condition,
            "no-condition",
            "this is neither true nor false",
            "a condition compares, for example M > 1, or asks: static(M)",
        )
