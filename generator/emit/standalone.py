"""Rules that PDL can say whole: patterns without natives, for any engine that reads PDL.

The pass ``iree-preprocessing-apply-pdl-patterns{patterns-file=F}`` of a plain ``iree-opt`` applies
them without Python. A native that nobody binds never matches and says nothing, so a rule
that would need one is refused, with the line that asks for more than PDL has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mlirules.generator import names
from mlirules.generator.emit import pdll
from mlirules.generator.render import Templates, shipped
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.notation import ast
from mlirules.language.rule import BodyText, Line, OpPattern, Rule, nested_calls


def standalone_pdll(
    rules: Rule | Sequence[Rule], *, form: str = "pdl", templates: Templates | None = None
) -> str:
    """One rule, or several, as PDLL without natives.

    Raises :class:`MlirulesError` naming the line that PDL cannot say; ``form`` is what the user
    asked for, and is named in the fault.
    """
    chosen = [rules] if isinstance(rules, Rule) else list(rules)
    views = [_view(rule, form) for rule in chosen]
    origin = ", ".join(names.location(rule) for rule in chosen)
    return (templates or shipped()).render(pdll.TEMPLATE, rules=views, origin=origin, driver=False)


def _view(rule: Rule, form: str) -> pdll.RuleView:
    for lines, why in (
        ([line for line, _ in rule.types.values()], "a type constraint"),
        ([line for _, line, _, _ in rule.let], "a computed value"),
        ([line for line, _ in rule.where], "a condition"),
        ([line for line, _ in rule.index_match], "an index equation"),
        ([p.line for p in rule.match if p.equation.each], "an op for every item of a list"),
        ([p.line for p in rule.match if _asks(p, _variable)], "an op of any name"),
        ([p.line for p in rule.match if _asks(p, _attributes)], "an attribute of an op"),
        ([p.line for p in rule.match if _asks(p, _any_number)], "a list of any length"),
    ):
        if lines:
            raise _refusal(lines[0], f"PDL has no native-free way to say {why}", form)
    view = pdll.view(rule)
    view.native = False
    view.patterns = [
        _Writer(rule, swapped, form).write(names.identifier(rule.name) + suffix)
        for swapped, suffix in pdll.alternatives(rule)
    ]
    return view


def _asks(pattern: OpPattern, what: Callable[[ast.Call], bool]) -> bool:
    return any(map(what, nested_calls(pattern.equation.call)))


def _variable(call: ast.Call) -> bool:
    return "." not in call.fn


def _attributes(call: ast.Call) -> bool:
    return any(not isinstance(value, ast.Wildcard) for _, value in call.attrs)


def _any_number(call: ast.Call) -> bool:
    items = [i for a in call.args for i in (a.items if isinstance(a, ast.ListExpr) else (a,))]
    return any(isinstance(item, ast.Pack) for item in items)


def _refusal(line: Line, why: str, form: str) -> MlirulesError:
    return MlirulesError(
        Fault(line.span, f"not-in-{form}", why, "the drivers of mlirules apply this rule")
    )


class _Writer:
    """Writes one pattern, match and rewrite, as PDLL."""

    def __init__(self, rule: Rule, swapped: frozenset[int], form: str) -> None:
        self.rule = rule
        self.form = form
        self.skeleton = pdll.Skeleton(rule, swapped)
        self.lines: list[pdll.Op] = []
        self.made: dict[str, pdll.Read] = {}
        self.count = 0

    def write(self, ident: str) -> pdll.Pattern:
        pattern = self.skeleton.pattern(ident)
        root = self.rule.root.equation
        if root.pack:
            raise _refusal(self.rule.root.line, "the number of results is not fixed", self.form)
        # Names for the root's result types: the op that takes its place has the same.
        types = tuple(pdll.Result(f"t{i}", "new") for i in range(len(root.results)))
        *before, last = pattern.lines
        assert isinstance(last, pdll.Op)
        lines = (*before, last._replace(results=types or None))
        for line, statement in self.rule.rewrite:
            self.statement(line, statement)
        values = []
        for name in root.results:
            if name is None or name not in self.made:
                raise _refusal(self.rule.root.line, "a result is not defined by an op", self.form)
            values.append(self.made[name])
        return replace(pattern, lines=lines, rewrite=tuple(self.lines), values=tuple(values))

    def statement(self, line: Line, statement: ast.Statement | BodyText) -> None:
        root = self.rule.root.equation.results
        if isinstance(statement, ast.Assignment) and isinstance(statement.value, ast.Name):
            self.made[statement.target] = self.value(line, statement.value)
            return
        if not isinstance(statement, ast.OpEquation):
            what = "raw MLIR" if isinstance(statement, BodyText) else "an op with a region"
            raise _refusal(line, f"PDL cannot create {what}", self.form)
        if statement.pack or any(name not in root for name in statement.results):
            raise _refusal(line, "PDL cannot compute a type for a new value", self.form)
        if statement.call.attrs:
            raise _refusal(line, "PDL text for this attribute is not known", self.form)
        operands = tuple([self.value(line, arg) for arg in statement.call.args])
        types = tuple(pdll.Result(f"t{root.index(name)}", "known") for name in statement.results)
        op = self.emit(pdll.Op("", statement.call.fn, operands, results=types))
        for i, name in enumerate(statement.results):
            assert name is not None
            self.made[name] = pdll.Read(op, i)

    def emit(self, op: pdll.Op) -> str:
        self.count += 1
        name = f"new_{self.count}"
        self.lines.append(op._replace(name=name))
        return name

    def value(self, line: Line, arg: ast.Expr) -> pdll.Read:
        match arg:
            case ast.Name(id=name) if name in self.made:
                return self.made[name]
            case ast.Name(id=name) if name in self.skeleton.results:
                return pdll.Read(*self.skeleton.results[name])
            case ast.Name(id=name) if f"v_{name}" in self.skeleton.declared:
                return pdll.Read(f"v_{name}")
            case ast.Literal(value=value) if (kind := _constant_type(value)) is not None:
                made = pdll.constant("", value)._replace(results=(pdll.Result(kind, "spelt"),))
                return pdll.Read(self.emit(made), 0)
            case ast.ListExpr(items=items) if items and all(_is_int(i) for i in items):
                inner = tuple([self.value(line, item) for item in items])
                results = (pdll.Result("!torch.list<int>", "spelt"),)
                return pdll.Read(self.emit(pdll.Op("", pdll.LIST, inner, results=results)), 0)
            case _:
                raise _refusal(line, "PDL has no such operand", self.form)


def _is_int(item: ast.Expr) -> bool:
    return (
        isinstance(item, ast.Literal)
        and isinstance(item.value, int)
        and not isinstance(item.value, bool)
    )


def _constant_type(value: object) -> str | None:
    if value is None:
        return "!torch.none"
    if isinstance(value, bool):
        return "!torch.bool"
    if isinstance(value, int):
        return "!torch.int"
    return "!torch.float" if isinstance(value, float) else None
