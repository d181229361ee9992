"""Checks of the rewrite: what it reads is there, what it must define it defines."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mlirules.language.checks.expressions import Expressions
from mlirules.language.faults import Fault
from mlirules.language.kernel import KernelDoc
from mlirules.language.notation import ast
from mlirules.language.notation.parser import (
    ELEMENT_TYPES,
)
from mlirules.language.rule import (
    BodyText,
    Line,
    Rule,
    defined_names,
    list_item,
)
from mlirules.language.sizes import names, order


class Rewrites(Expressions):
    """Checks of `rewrite:`, line by line."""

    def type_decl(self, line: Line, decl: ast.TypeDecl) -> None:
        """Check the element type and dims of a declared type."""
        if decl.of is not None:
            self.type_decl(line, decl.of)
        element = decl.element
        if element:  # it stands last: before the closing bracket
            at = line.text.value.rfind(element, decl.pos, decl.end)
            where = ast.Node(at, at + len(element)) if at >= 0 else decl
        else:
            where = decl
        if element and element[0].islower() and element not in ELEMENT_TYPES:
            hint = self.near(element, ELEMENT_TYPES) or "an element type, or a capital symbol"
            self.fault(line, where, "unknown-type", f"unknown element type {element!r}", hint)
        if decl.kind == "vtensor" and element in ("i8", "i16", "i32", "i64", "index"):
            self.fault(
                line,
                where,
                "unknown-type",
                f"a vtensor has signed or unsigned integers, not {element}",
                f"write s{element}",
            )
        if decl.constant and decl.kind in ("vtensor", "tensor"):
            self.fault(line, decl, "wrong-type", "a tensor cannot be declared constant")

    def equations(self, rule: Rule) -> None:
        """Checks how the index equations of a match hang together."""
        if rule.match:
            self.fault(
                rule.index_match[0][0],
                None,
                "match",
                "index equations and op equations do not mix in a match",
                "say the whole match in one of the two notations",
            )
            return
        for i, (line, equation) in enumerate(rule.index_match):
            later = [n for _, e in rule.index_match[i + 1 :] for n in _tensor_names(e.value)]
            before = [e for _, e in rule.index_match[:i]]
            earlier = [n for e in before for n in (e.target, *_tensor_names(e.value))]
            if equation.target in earlier:
                self.fault(
                    line,
                    None,
                    "duplicate-name",
                    f"{equation.target!r} stands in an earlier line already",
                    "give each result a name of its own, and write what is computed first first",
                )
            elif i + 1 < len(rule.index_match) and equation.target not in later:
                self.fault(
                    line,
                    None,
                    "unconnected",
                    f"no later equation of the match reads {equation.target!r}",
                    "the equations of a match form one DAG that ends in the last, the root",
                )

    def declared(self, rule: Rule, bound: dict[str, Line]) -> None:
        """Check that what `types:` declares stands somewhere."""
        targets = set(_targets(rule))
        for name in rule.types:
            if name not in bound and name not in targets and "match" not in self.unread_sections:
                self.faults.append(
                    Fault(
                        self.source.span_at(("types", name), key=True),
                        "unbound-name",
                        f"{name!r} stands nowhere in the match",
                        self.near(name, bound) or "remove it, or use it",
                    )
                )

    def local_type(self, line: Line, decl: ast.TypeDecl, scope: set[str]) -> None:
        """Check that the symbols of a type that the rewrite makes are bound."""
        for symbol in decl.symbols():
            if symbol in scope or symbol in ELEMENT_TYPES or symbol in self.unread:
                continue
            at = re.compile(rf"\b{re.escape(symbol)}\b").search(line.text.value, decl.pos)
            if symbol[0].islower() and symbol == decl.element:
                continue  # an unknown element type: said already
            self.fault(
                line,
                ast.Node(*at.span()) if at else decl,
                "unbound-name",
                f"{symbol!r} stands nowhere in the match, nor in `let:`",
                self.near(symbol, scope),
            )

    def calls(self, line: Line, expr: ast.Expr, scope: set[str]) -> None:
        """Check the functions of a computed dim; its names are checked with those of the types."""
        self.expression(line, expr, scope | set(names(expr)), runtime=False)

    def computed_dims(self, rule: Rule, bound: dict[str, Line], local: set[str]) -> None:
        """Check that what the dims of a match compute can be told from a program."""
        lines: dict[ast.Expr, Line] = {}
        known = set(bound)
        other: dict[str, str] = {}
        for name, (line, declared) in rule.types.items():
            decl = declared
            if decl.kind not in ("int", "number", "any"):
                other[name] = f"a {decl.kind}"
            while decl.of is not None:
                decl = decl.of
            if decl.element:
                other.setdefault(decl.element, "an element type")
            for dim in decl.dims or ():
                if isinstance(dim.value, str) and dim.pack:
                    other.setdefault(dim.value, "a list of dims")
                if name in local:
                    continue
                if isinstance(dim.value, str):
                    known.add(dim.value)
                if dim.expr is not None:
                    lines[dim.expr] = line
        for expr, line in lines.items():
            for node in ast.walk_expression(expr):
                if not isinstance(node, ast.Name):
                    continue
                if node.id in other and not _inside_call(expr, node):
                    what = f"{node.id!r} is {other[node.id]}, not a number"
                    self.fault(line, node, "wrong-type", what, "a dim is computed from numbers")
        for expr in order(lines, known):
            unknown = " and ".join(n for n in names(expr) if n not in known)
            self.fault(
                lines[expr],
                expr,
                "unsolvable",
                f"a program does not say what {unknown} is: nothing else names it",
                "name it as the dim of another type, or write a sum of one symbol and numbers: "
                "2*N + 1",
            )

    def rewrite(self, rule: Rule, scope: set[str]) -> None:
        """Check every line of the rewrite, and that it defines the results."""
        roots: set[str] = set()
        if self.has_root(rule):
            roots = {r for r in rule.root.equation.results if r}
            for n in rule.other_roots:
                roots |= {r for r in rule.match[n].equation.results if r}
        elif rule.index_match and not rule.match:
            roots = {rule.index_match[-1][1].target}
        defined: set[str] = set()
        for line, statement in rule.rewrite:
            known = scope | defined  # a result's type may be asked for before it is defined
            self.statement(line, statement, known, roots)
            if isinstance(statement, (ast.IndexEquation, ast.Assignment)):
                self.early_reads(line, statement.value, roots - defined)
            defined |= defined_names(statement)
        if "rewrite" in self.unread_sections or isinstance(rule.doc, KernelDoc):
            return
        for name in sorted(roots - defined):
            where = rule.rewrite[-1][0] if rule.rewrite else self.line("rewrite", 0)
            near = self.near(name, defined)
            span = where.span
            if rule.rewrite and isinstance(rule.rewrite[-1][1], BodyText):
                span = self.source.span_at(("rewrite", where.key, "body"), key=True)
            self.faults.append(
                Fault(
                    span,
                    "undefined-result",
                    f"the rewrite does not define {name!r}",
                    near or f"add an equation `{name}[...] = ...` or `{name} = ...`",
                )
            )

    def early_reads(self, line: Line, value: ast.Expr, undefined: set[str]) -> None:
        """Elements of results that no line has defined yet; their types may be asked for."""
        for node in ast.walk_expression(value):
            if isinstance(node, ast.Access) and isinstance(node.base, ast.Name):
                name = node.base.id
                if name in undefined:
                    self.fault(
                        line,
                        node.base,
                        "unbound-name",
                        f"{name!r} is read before the rewrite defines it",
                        "a reduction is written += and reads only its operands",
                    )

    def operands(self, line: Line, call: ast.Call, bound: dict[str, Line], used: set[str]) -> None:
        """Check what an op equation reads."""
        for arg in call.args:
            listed = list_item(arg)
            if isinstance(arg, ast.Name):
                bound.setdefault(arg.id, line)
                used.add(arg.id)
            elif listed is not None:
                bound.setdefault(listed[0], line)
                used.add(listed[0])
            elif isinstance(arg, ast.Call):
                self.operands(line, arg, bound, used)
            elif isinstance(arg, ast.ListExpr):
                for item in arg.items:
                    if isinstance(item, (ast.Name, ast.Pack)) and item.id:
                        bound.setdefault(item.id, line)
                        used.add(item.id)
                    elif isinstance(item, ast.Call):
                        self.operands(line, item, bound, used)
                    elif (found := list_item(item)) is not None:
                        bound.setdefault(found[0], line)
                        used.add(found[0])
                    elif not isinstance(item, (ast.Literal, ast.Wildcard)):
                        self.bad_operand(line, item, bound)
            elif isinstance(arg, ast.Pack):
                if arg.id:
                    bound.setdefault(arg.id, line)
                    used.add(arg.id)
            elif not isinstance(arg, (ast.Literal, ast.Wildcard)):
                self.bad_operand(line, arg, bound)
        for _, value in call.attrs:
            self.attribute_names(line, value, bound)

    def attribute_names(self, line: Line, value: ast.Expr, bound: dict[str, Line]) -> None:
        """The names that an attribute's pattern binds: itself, or items of a list."""
        match value:
            case ast.Name(id=name):
                bound.setdefault(name, line)
            case ast.ListExpr(items=items):
                for item in items:
                    if isinstance(item, ast.Pack) and item is not items[-1]:
                        self.fault(line, item, "match", "a pack of items stands last")
                    self.attribute_names(line, item, bound)
            case ast.Pack(id=rest) if rest:
                bound.setdefault(rest, line)

    def bad_operand(self, line: Line, node: ast.Expr, bound: dict[str, Line]) -> None:
        """Note an operand that no op can take."""
        for name in _index_names(node):
            bound.setdefault(name, line)
        self.fault(
            line,
            node,
            "match",
            "an operand is a name, a constant, a list, an op, or _",
            "compute with it in `let:` or test it in `where:`",
        )

    def each_made(self, line: Line, statement: ast.OpEquation, scope: set[str]) -> None:
        """Check an op that is made once for every item of a list."""
        index = statement.each
        if index in scope:
            self.fault(
                line,
                statement,
                "duplicate-name",
                f"{index!r} already has a meaning",
                "give the index of the items a name of its own",
            )
        items = [list_item(n) for a in statement.call.args for n in ast.walk_expression(a)]
        if not any(item is not None and item[1] == index for item in items):
            self.fault(
                line,
                statement,
                "rewrite",
                "no operand of this op is an item of a list",
                f"write {statement.results[0]}[{index}] = {statement.call.fn}(xs[{index}])",
            )

    def statement(
        self, line: Line, statement: ast.Statement | BodyText, scope: set[str], roots: set[str]
    ) -> None:
        """Check one line of the rewrite."""
        match statement:
            case BodyText(text=text):
                self.body(line, text, scope, roots)
            case ast.OpEquation(call=call):
                if "." in call.fn:
                    self.op_name(line, call.fn, call.pos)
                if statement.each is not None:
                    self.each_made(line, statement, scope)
                    scope = {*scope, statement.each}
                for arg in call.args:
                    self.expression(line, arg, scope, runtime=True)
                    for node in ast.walk_expression(arg):
                        if isinstance(node, ast.Call) and "." in node.fn:
                            self.fault(
                                line,
                                ast.Node(node.pos, node.pos + len(node.fn)),
                                "rewrite",
                                f"the op {node.fn} stands inside another",
                                "give it a line of its own: t = " + node.fn + "(...)",
                            )
                for _, value in call.attrs:
                    self.expression(line, value, scope, runtime=True)
            case ast.Assignment(value=value):
                self.expression(line, value, scope, runtime=True)
            case ast.IndexEquation():
                loops = {b.id for b in statement.bounds}
                for item in statement.indices:
                    loops |= _index_names(item)
                for node in ast.walk_expression(statement.value):
                    if isinstance(node, ast.Access):
                        for item in node.items:
                            loops |= _index_names(item)
                for b in statement.bounds:
                    self.expression(line, b.limit, scope, runtime=False)
                for item in statement.indices:
                    self.expression(line, item, scope | loops, runtime=True)
                self.expression(line, statement.value, scope | loops, runtime=True)


def _inside_call(expr: ast.Expr, name: ast.Name) -> bool:
    return any(
        isinstance(node, (ast.Call, ast.Access)) and node.pos <= name.pos < node.end
        for node in ast.walk_expression(expr)
    )


def _index_names(item: ast.Expr) -> set[str]:
    """The names in an index: loop indices, packs, and symbols alike."""
    out: set[str] = set()
    for node in ast.walk_expression(item):
        if isinstance(node, (ast.Name, ast.Pack)) and node.id:
            out.add(node.id)
    return out


def _tensor_names(value: ast.Expr) -> list[str]:
    return [
        node.base.id
        for node in ast.walk_expression(value)
        if isinstance(node, ast.Access) and isinstance(node.base, ast.Name)
    ]


def _targets(rule: Rule) -> Iterable[str]:
    for _, statement in rule.rewrite:
        yield from defined_names(statement)


def _open_symbols(equation: ast.IndexEquation) -> set[str]:
    """What an equation leaves to the op: numbers that multiply a loop index, and functions `F`."""
    out: set[str] = set()
    for node in ast.walk_expression(equation.value):
        if isinstance(node, ast.Call) and node.fn[:1].isupper() and "." not in node.fn:
            out.add(node.fn)
        if isinstance(node, ast.Access):
            for item in node.items:
                for inner in ast.walk_expression(item):
                    if (
                        isinstance(inner, ast.Binary)
                        and inner.op == "*"
                        and isinstance(inner.right, ast.Name)
                    ):
                        out.add(inner.right.id)
    return out
