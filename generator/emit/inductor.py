"""Rules over torch ops as a Python module for Inductor's pattern matcher, which needs torch alone.

No text of a rule is pasted as code: what reaches the module is an identifier that was checked, or
the ``repr`` of a checked constant. What the module cannot say is refused with the rule's line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mlirules.generator import names
from mlirules.generator.render import Templates, shipped
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.notation import ast
from mlirules.language.rule import BodyText, Line, Rule, nested_calls
from mlirules.language.values import dtype_named

TEMPLATE = "inductor.py.j2"

#: Ops that exchange operands are registered in both orders, up to so many of them in a rule.
MAX_COMMUTING = 4

#: The functions of conditions that the template's `_FUNCTIONS` holds.
FUNCTIONS = frozenset(
    [
        "abs",
        "all_equal",
        "at_least",
        "axes",
        "axis",
        "bitwidth",
        "broadcasts",
        "ceildiv",
        "concat",
        "constant",
        "dim",
        "distinct",
        "divisible",
        "drop",
        "dtype",
        "expanded",
        "highest",
        "insert",
        "is_bool",
        "is_complex",
        "is_float",
        "is_int",
        "is_permutation",
        "is_tensor",
        "last",
        "len",
        "lowest",
        "max",
        "min",
        "numel",
        "permute",
        "positions",
        "present",
        "product",
        "range",
        "rank",
        "repeat",
        "reversed",
        "shape",
        "skip",
        "sqrt",
        "static",
        "sum",
        "swap",
        "take",
    ]
)
_STRUCTURAL = frozenset(("one_use", "inside", "unused"))
_SCALARS = frozenset(("int", "float", "bool", "number", "str"))
_BINARY = {"+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod"}
_COMPARED = ("<", "<=", ">", ">=")
_OP = re.compile(r"torch\.(aten|prims)\.([A-Za-z_][A-Za-z0-9_]*)(?:\.([A-Za-z_][A-Za-z0-9_]*))?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Of the torch dialect and of PyTorch's interpreter, on what is no tensor: FX has no such node.
_NOT_IN_FX = frozenset(("Int", "Float", "Bool", "ScalarImplicit", "IntImplicit", "FloatImplicit"))


@dataclass
class Written:
    """What the template shows of one rule; all but ``summary`` and ``location`` is Python."""

    name: str
    quoted: str
    ident: str
    summary: str
    location: str
    arguments: list[str]
    named: str
    results: str
    search: list[str]
    found: str
    types: str
    let: list[tuple[str, str]]
    where: list[str]
    replace: list[str]
    result: str


def inductor(
    rules: Sequence[Rule], *, origin: str, templates: Templates | None = None
) -> tuple[str, list[str], list[Fault]]:
    """The module's text, the names of the rules in it, and what it cannot say.

    The text is empty when there is no rule that can be said.
    """
    written: list[Written] = []
    faults: list[Fault] = []
    for rule in sorted(rules, key=lambda r: (-r.benefit, r.order)):
        try:
            written.append(_Writer(rule).write())
        except MlirulesError as error:
            faults += error.faults
    if not written:
        return "", [], faults
    text = (templates or shipped()).render(TEMPLATE, rules=written, origin=_comment(origin))
    return text, [w.name for w in written], faults


def _comment(text: str) -> str:
    """Text for one line of a comment: nothing in it ends the line."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def _refusal(line: Line, why: str, node: ast.Node | None = None) -> MlirulesError:
    span = line.span
    if node is not None and node.end > node.pos:
        span = line.text.span(node.pos, node.end - node.pos)
    return MlirulesError(
        Fault(span, "not-in-inductor", why, "the drivers of mlirules apply this rule")
    )


class _Writer:
    """Writes one rule as Python."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.arguments: dict[str, None] = {}
        self.results: dict[str, None] = {}
        self.search: list[str] = []
        self.anonymous = 0
        self.commuting = 0

    def write(self) -> Written:
        """The rule. Raises :class:`MlirulesError` at the line that the module cannot say."""
        rule = self.rule
        self._refuse_forms()
        for pattern in rule.match:
            self._match(pattern.line, pattern.equation)
        if self.commuting > MAX_COMMUTING:
            raise _refusal(rule.root.line, f"more than {MAX_COMMUTING} ops exchange operands")
        known = {**self.arguments, **self.results}
        types = []
        for name, (line, decl) in rule.types.items():
            if name in known:
                types.append(f"{_text(line, name)}: {self._type(line, decl)}")
        let = []
        for name, line, expr, value in rule.let:
            said = _constant(line, value) if expr is None else self._expr(line, expr)
            let.append((_text(line, name), said))
        where = [self._expr(line, expr) for line, expr in rule.where]
        replace, result = self._replacement()
        ends = rule.root.equation.results
        found = [f"'': {'v_' + str(ends[0]) if len(ends) == 1 else f't_{self.anonymous}'}"]
        found += [f"{n!r}: v_{n}" for n in self.results if n not in ends]
        return Written(
            rule.name,
            repr(rule.name),
            names.identifier(rule.name),
            _comment(rule.doc.summary),
            _comment(names.location(rule)),
            [f"v_{name}" for name in self.arguments],
            repr(tuple(self.arguments)),
            repr(ends),
            self.search,
            "{" + ", ".join(found) + "}",
            "{" + ", ".join(types) + "}",
            let,
            where,
            replace,
            result,
        )

    def _refuse_forms(self) -> None:
        rule = self.rule
        if rule.variants:
            raise _refusal(rule.made_by, "a kernel is no call of a torch op")
        if rule.index_match:
            raise _refusal(rule.index_match[0][0], "an index equation is no call of a torch op")
        for pattern in rule.match:
            if pattern.equation.each:
                raise _refusal(pattern.line, "an op for every item of a list", pattern.equation)
            for call in nested_calls(pattern.equation.call):
                if "." not in call.fn:
                    raise _refusal(pattern.line, "an op of any name: write it for one", call)
        for line, statement in rule.rewrite:
            if isinstance(statement, ast.OpEquation) and statement.each:
                raise _refusal(line, "an op for every item of a list")
            if isinstance(statement, BodyText):
                raise _refusal(line, "a body of MLIR is no call of a torch op")
            if isinstance(statement, ast.IndexEquation):
                raise _refusal(line, "an index equation is no call of a torch op")
            if isinstance(statement, ast.Erase):
                raise _refusal(line, "an op without results is not replaced")
        if rule.other_roots:
            line = rule.match[rule.other_roots[0]].line
            raise _refusal(line, "several roots: a pattern is found from one")
        root = rule.root
        if root.equation.pack or not any(root.equation.results):
            raise _refusal(root.line, "the root's results are not fixed")

    # ---- match -----------------------------------------------------------------------------

    def _match(self, line: Line, equation: ast.OpEquation) -> None:
        if equation.pack:
            raise _refusal(line, "the number of results is not fixed", equation)
        text = self._call(line, equation.call)
        named = equation.results
        if len(named) == 1:
            name = named[0]
            if name is None:
                raise _refusal(line, "a result without a name", equation)
            self.search.append(f"v_{_text(line, name, quoted=False)} = {text}")
            self.results[name] = None
            return
        self.anonymous += 1
        whole = f"t_{self.anonymous}"
        self.search.append(f"{whole} = {text}")
        for i, name in enumerate(named):
            if name is not None:
                self.results[name] = None
                if equation is self.rule.root.equation:
                    continue
                item = f"_find(operator.getitem, {whole}, {i})"
                self.search.append(f"v_{_text(line, name, quoted=False)} = {item}")

    def _call(self, line: Line, call: ast.Call) -> str:
        args = [_op(line, call), *(self._operand(line, a) for a in call.args)]
        if call.fn in self.rule.commutative and len(call.args) >= 2:
            self.commuting += 1
            args.append("commutes=True")
        return f"_find({', '.join(args)})"

    def _operand(self, line: Line, arg: ast.Expr) -> str:
        match arg:
            case ast.Name(id=name):
                if name not in self.results:
                    self.arguments[name] = None
                return f"v_{_text(line, name, quoted=False)}"
            case ast.Wildcard():
                name = f"any_{len(self.arguments)}"
                while name in self.rule.names or name in self.arguments:
                    name += "_"
                self.arguments[name] = None
                return f"v_{name}"
            case ast.Call():
                return self._call(line, arg)
            case ast.ListExpr(items=items):
                return "[" + ", ".join(self._operand(line, i) for i in items) + "]"
            case ast.Literal(value=value):
                return _constant(line, value, arg)
            case ast.Pack():
                raise _refusal(line, "the number of operands is not fixed", arg)
            case _:
                raise _refusal(line, "no operand of an op", arg)

    # ---- types and conditions ----------------------------------------------------------------

    def _type(self, line: Line, decl: ast.TypeDecl) -> str:
        if decl.kind == "tensor":
            raise _refusal(line, "a tensor of MLIR is no tensor of PyTorch")
        if decl.kind not in (*_SCALARS, "vtensor", "list", "any", "none"):
            raise _refusal(line, f"{decl.kind}: no type that FX shows")
        dims = None
        if decl.dims is not None:
            dims = tuple((_dim(line, d.value), d.pack) for d in decl.dims)
        element = None if decl.element is None else _element(line, decl.element)
        of = "None" if decl.of is None else self._type(line, decl.of)
        fields = (decl.kind, dims, element, decl.constant, decl.optional)
        return "_Type(" + ", ".join(repr(f) for f in fields) + f", {of})"

    def _expr(self, line: Line, expr: ast.Expr) -> str:
        """An expression as Python over ``e``, the match's values by name."""
        match expr:
            case ast.Literal(value=value):
                return _constant(line, value, expr)
            case ast.Name(id=name):
                return self._name(line, expr, name)
            case ast.ListExpr(items=items):
                return "[" + ", ".join(self._item(line, i) for i in items) + "]"
            case ast.Call(fn=fn, args=args) if fn in _STRUCTURAL:
                asked = [a.id for a in args if isinstance(a, ast.Name)]
                if len(asked) != len(args) or any(
                    n not in self.results and n not in self.arguments for n in asked
                ):
                    raise _refusal(line, f"{fn} of what is no value of the match", expr)
                return f"_{fn}(e, {', '.join(_text(line, n) for n in asked)})"
            case ast.Call(fn=fn, args=args):
                if fn not in FUNCTIONS:
                    raise _refusal(line, f"the module has no function {fn}", expr)
                return f"_FUNCTIONS[{fn!r}]({', '.join(self._item(line, a) for a in args)})"
            case ast.Access(base=base, items=(item,)):
                return f"_item({self._expr(line, base)}, {self._expr(line, item)})"
            case ast.Unary(op="not", operand=operand):
                return f"(not _truth({self._expr(line, operand)}))"
            case ast.Unary(op="-", operand=operand):
                return f"_arith(operator.sub, 0, {self._expr(line, operand)})"
            case ast.Binary():
                return self._binary(line, expr)
            case ast.Conditional(condition=c, then=a, otherwise=b):
                then, other = self._expr(line, a), self._expr(line, b)
                return f"({then} if _truth({self._expr(line, c)}) else {other})"
            case _:
                raise _refusal(line, "the module has no such expression", expr)

    def _binary(self, line: Line, expr: ast.Binary) -> str:
        a, b = self._expr(line, expr.left), self._expr(line, expr.right)
        match expr.op:
            case "and" | "or":
                return f"(_truth({a}) {expr.op} _truth({b}))"
            case "==":
                return f"_equal({a}, {b})"
            case "!=":
                return f"(not _equal({a}, {b}))"
            case "in":
                return f"_among({a}, {b})"
            case "not in":
                return f"(not _among({a}, {b}))"
            case op if op in _COMPARED:
                return f"(_number({a}) {op} _number({b}))"
            case op if op in _BINARY:
                return f"_arith(operator.{_BINARY[op]}, {a}, {b})"
        raise _refusal(line, f"the module has no operator {expr.op}", expr)

    def _item(self, line: Line, expr: ast.Expr) -> str:
        if isinstance(expr, ast.Pack) and expr.id is not None:
            return "*" + self._name(line, expr, expr.id)
        return self._expr(line, expr)

    def _name(self, line: Line, node: ast.Node, name: str) -> str:
        symbols = {s for _, decl in self.rule.types.values() for s in decl.symbols()}
        lets = {n for n, *_ in self.rule.let}
        if name in symbols or name in lets or name in self.arguments or name in self.results:
            if name not in lets and dtype_named(name) is not None:
                return repr(name)
            return f"e[{_text(line, name)}]"
        if dtype_named(name) is not None:
            return repr(name)
        raise _refusal(line, f"{name} has no value in the module", node)

    # ---- rewrite ----------------------------------------------------------------------------

    def _replacement(self) -> tuple[list[str], str]:
        ends = self.rule.root.equation.results
        made: dict[str, None] = {}
        lines: list[str] = []
        for line, statement in self.rule.rewrite:
            if isinstance(statement, ast.Assignment):
                if isinstance(statement.value, ast.Call):
                    raise _refusal(line, "a tensor function is no call of a torch op")
                text = self._argument(line, statement.value, made)
                targets: tuple[str | None, ...] = (statement.target,)
            else:
                assert isinstance(statement, ast.OpEquation)
                if statement.pack:
                    raise _refusal(line, "the number of results is not fixed")
                targets = statement.results
                declared = self.rule.types.get(targets[0] or "") if len(targets) == 1 else None
                element = declared[1].element if declared is not None else None
                text = self._made(line, statement.call, made, element)
            shown = ", ".join(
                "_" if t is None else f"n_{_text(line, t, quoted=False)}" for t in targets
            )
            lines.append(f"{shown} = {text}")
            made |= {t: None for t in targets if t is not None}
        if any(name is not None and name not in made for name in ends):
            raise _refusal(self.rule.root.line, "a result is not defined by an op")
        given = ["None" if name is None else f"n_{name}" for name in ends]
        return lines, given[0] if len(given) == 1 else f"[{', '.join(given)}]"

    def _made(
        self, line: Line, call: ast.Call, made: dict[str, None], element: str | None = None
    ) -> str:
        args = [_op(line, call), *(self._argument(line, a, made) for a in call.args)]
        if element is not None:
            args.append(f"element={_element(line, element)!r}")
        return f"call({', '.join(args)})"

    def _argument(self, line: Line, arg: ast.Expr, made: dict[str, None]) -> str:
        match arg:
            case ast.Name(id=name) if name in made:
                return f"n_{_text(line, name, quoted=False)}"
            case ast.Name(id=name) if name in self.results:
                raise _refusal(line, f"the rewrite reads {name}, a value inside the match", arg)
            case ast.Call(fn=fn) if "." in fn:
                return self._made(line, arg, made)
            case ast.ListExpr(items=items):
                parts = []
                for item in items:
                    if isinstance(item, ast.Pack):
                        parts.append(self._item(line, item))
                    else:
                        parts.append(self._argument(line, item, made))
                return "[" + ", ".join(parts) + "]"
            case _:
                return self._expr(line, arg)


def _op(line: Line, call: ast.Call) -> str:
    """An op's overload as an attribute of ``torch.ops``."""
    name = call.fn
    match call.attrs:
        case ():
            pass
        case (("name", ast.Literal(value=str(given))),) if name == "torch.operator":
            name = given  # one that the torch dialect does not know
        case _:
            raise _refusal(line, "FX has no attributes", call)
    found = _OP.fullmatch(name)
    if found is None or found.group(2) in _NOT_IN_FX:
        raise _refusal(line, f"{name} is no op of torch.ops.aten", call)
    return f"_op({found.group(1)!r}, {found.group(2)!r}, {found.group(3) or 'default'!r})"


def _text(line: Line, name: str, *, quoted: bool = True) -> str:
    """A name that was checked to be one, as a literal or as part of an identifier."""
    if not _NAME.fullmatch(name):
        raise _refusal(line, f"{name} is no name")
    return repr(name) if quoted else name


def _dim(line: Line, value: int | str | None) -> int | str | None:
    if isinstance(value, str):
        _text(line, value)
    return value


def _element(line: Line, element: str) -> str:
    if dtype_named(element) is None:
        _text(line, element)
    return element


def _constant(line: Line, value: object, node: ast.Node | None = None) -> str:
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float):
        return (
            f"float({repr(value)!r})"
            if value != value or abs(value) == float("inf")
            else repr(value)
        )
    raise _refusal(line, "no constant of Python", node)
