"""Checks of a whole rule: its match, the names it binds, its rewrite and its tests."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mlirules.language.checks.meanings import meanings
from mlirules.language.checks.rewrites import Rewrites, _open_symbols, _targets, _tensor_names
from mlirules.language.checks.shape import _owner_span
from mlirules.language.faults import Fault
from mlirules.language.kernel import KernelDoc
from mlirules.language.model import Body, DraftDoc, RuleDoc, Test
from mlirules.language.notation import ast
from mlirules.language.notation.parser import (
    ELEMENT_TYPES,
    parse_expression,
    parse_statement,
    parse_type,
)
from mlirules.language.rule import (
    BodyText,
    Line,
    OpPattern,
    Rule,
    list_item,
    nested_calls,
)
from mlirules.language.source import Path_

# What may refuse a program: where the line of a `because:` stands.
_SECTIONS = ("types", "match", "let", "where", "rewrite")


class RuleChecker(Rewrites):
    """Parses the notation of a rule and checks its names; collects faults."""

    def notation_only(self) -> None:
        """Parse what can be parsed of a file whose model is wrong."""
        for section, parse in (("match", parse_statement), ("where", parse_expression)):
            items = self.data.get(section)
            if isinstance(items, list):
                for i, item in enumerate(items):
                    if isinstance(item, str):
                        self.parsed(self.line(section, i), parse)
        types = self.data.get("types")
        if isinstance(types, dict):
            for key, value in types.items():
                if isinstance(value, str):
                    self.parsed(self.line("types", key), parse_type)

    def rule(self, doc: RuleDoc) -> Rule | None:
        """The rule with its notation parsed, or None where that cannot be."""
        types: dict[str, tuple[Line, ast.TypeDecl]] = {}
        for name in doc.types:
            line = self.line("types", name)
            decl = self.parsed(line, parse_type)
            if decl is not None:
                types[name] = (line, decl)
                self.type_decl(line, decl)
        match: list[OpPattern] = []
        index_match: list[tuple[Line, ast.IndexEquation]] = []
        lines = [self.line("match", i) for i in range(len(doc.match))]
        statements = [self.parsed(line, parse_statement) for line in lines]
        # `y[i] = F(x[i])` is an index equation where all are.
        each = any(isinstance(s, (ast.OpEquation, ast.Assignment)) for s in statements)
        for line, statement in zip(lines, statements, strict=True):
            if statement is not None and (each or isinstance(statement, ast.Assignment)):
                statement = ast.with_variable(statement)
            if isinstance(statement, ast.OpEquation):
                match.append(OpPattern(line, statement))
            elif isinstance(statement, ast.IndexEquation):
                index_match.append((line, statement))
            elif statement is not None:
                self.fault(
                    line,
                    None,
                    "match",
                    "a match is an op equation or an index equation",
                    "write result = dialect.op(operands)",
                )
                self.skip(line)
        lets: list[tuple[str, Line, ast.Expr | None, object]] = []
        for name, value in doc.let.items():
            line = self.line("let", name)
            if isinstance(value, str):
                expr = self.parsed(line, parse_expression)
                if expr is not None:
                    lets.append((name, line, expr, None))
            else:
                lets.append((name, line, None, value))
        where = []
        for i in range(len(doc.where)):
            line = self.line("where", i)
            expr = self.parsed(line, parse_expression)
            if expr is not None:
                where.append((line, expr))
        variables = {c.fn for p in match for c in nested_calls(p.equation.call) if "." not in c.fn}
        rewrite: list[tuple[Line, ast.Statement | BodyText]] = []
        for i, item in enumerate(doc.rewrite):
            if isinstance(item, Body):
                line = Line("rewrite", i, self.source.text_at(("rewrite", i, "body")))
                rewrite.append((line, BodyText(item.body)))
            else:
                line = self.line("rewrite", i)
                statement = self.parsed(line, parse_statement)
                if statement is not None:
                    made = ast.with_variable(statement)
                    if isinstance(made, ast.OpEquation) and made.call.fn in variables:
                        statement = made
                    rewrite.append((line, statement))
        rule = Rule(doc, self.source, types, match, index_match, lets, where, rewrite)
        self.names(rule)
        if isinstance(doc, KernelDoc):
            from mlirules.language.checks.kernel import kernel_variants  # it uses this module

            rule.variants = kernel_variants(self, rule, doc)
        meanings(self, rule)
        self.tests(doc, refusable=bool(self.unread_sections) or _refusable(rule))
        return rule

    def names(self, rule: Rule) -> None:
        """Check that every name is bound before it is read."""
        bound = self.match_names(rule)
        self.declared(rule, bound)
        symbols: dict[str, Line] = dict(bound)
        local = set(_targets(rule)) - set(bound)
        for name, (line, decl) in rule.types.items():
            # The types of the rewrite's own names bind nothing: they use what is bound.
            if name not in local:
                for symbol in decl.symbols():
                    symbols.setdefault(symbol, line)
        self.computed_dims(rule, bound, local)
        scope = set(symbols)
        if "match" in self.unread_sections:
            scope |= set(rule.types)
        for _, equation in rule.index_match:
            # What the op leaves open (strides), and the name of the op that was found.
            scope |= _open_symbols(equation) | {"op"}
        for let_name, line, let_expr, _ in rule.let:
            name, expr = let_name, let_expr
            key = self.source.span_at(("let", name), key=True)
            if expr is not None:
                self.expression(line, expr, scope, runtime=False)
            if name in scope:
                first = symbols.get(name)
                self.faults.append(
                    Fault(
                        key,
                        "duplicate-name",
                        f"{name!r} already has a meaning",
                        f"line {first.span.line} uses it: choose another name"
                        if first
                        else "choose another name",
                    )
                )
            elif name in ELEMENT_TYPES or name in ("true", "false", "none", "_"):
                self.faults.append(
                    Fault(
                        key,
                        "bad-name",
                        f"{name!r} is a word of the notation",
                        "choose another name",
                    )
                )
            scope.add(name)
        for line, expr in rule.where:
            self.expression(line, expr, scope, runtime=False)
        for name, (line, decl) in rule.types.items():
            if name in local and "match" not in self.unread_sections:
                self.local_type(line, decl, scope)
            for dim in decl.dims or ():
                if dim.expr is not None:
                    self.calls(line, dim.expr, scope)
        self.rewrite(rule, scope)
        for n, op in enumerate(rule.doc.commutative):
            if op not in rule.op_names | rule.variables and not self.unread & set(op.split(".")):
                self.fault(
                    self.line("commutative", n),
                    None,
                    "unbound-name",
                    f"{op!r} does not stand in the match",
                    self.near(op, rule.op_names) or "name an op of `match:`, or remove it",
                )
        rule.names = frozenset(scope)

    def match_names(self, rule: Rule) -> dict[str, Line]:
        """The names that the match binds, each with its line; checks how the ops hang together."""
        bound: dict[str, Line] = {}
        results: dict[str, OpPattern] = {}
        used: set[str] = set()
        for line, equation in rule.index_match:
            bound[equation.target] = line
            for name in _tensor_names(equation.value):
                bound.setdefault(name, line)
        self.variables(rule, bound)
        for pattern in rule.match:
            for result in pattern.equation.results:
                if result is not None and result in results:
                    at = re.search(rf"\b{re.escape(result)}\b", pattern.line.text.value)
                    self.fault(
                        pattern.line,
                        ast.Node(*at.span()) if at else pattern.equation,
                        "duplicate-name",
                        f"{result!r} is defined twice",
                        f"line {results[result].line.span.line} defines it: "
                        "give each result a name of its own",
                    )
                if result is not None:
                    results[result] = pattern
        used_before: set[str] = set()
        for pattern in rule.match:
            self.ops_of(pattern.line, pattern.equation.call)
            here: set[str] = set()
            self.operands(pattern.line, pattern.equation.call, bound, here)
            last = self.has_root(rule) and pattern is rule.root
            self.each(pattern, results, root=last)
            for result in pattern.equation.results:
                if result and result in here:
                    self.fault(
                        pattern.line, None, "cycle", f"{result!r} is an operand of its own op"
                    )
                elif result and result in used_before:
                    self.fault(
                        pattern.line,
                        None,
                        "cycle",
                        f"{result!r} is used before it is defined",
                        "write the ops in the order of the IR: an op after those it uses",
                    )
                if result:
                    bound.setdefault(result, pattern.line)
            used |= here
            used_before |= here
        if rule.index_match and "match" not in self.unread_sections:
            self.equations(rule)
        if self.has_root(rule):
            if not rule.index_match:
                for n, pattern in enumerate(rule.match[:-1]):
                    names = {r for r in pattern.equation.results if r}
                    if n in rule.other_roots and self.shares_operand(rule, n):
                        continue
                    if not names & (used | self.unread):
                        self.fault(
                            pattern.line,
                            None,
                            "unconnected",
                            "no later op of the match uses this op's results",
                            "the ops of a match form one DAG that ends in the last, the root; a "
                            "further root has an operand in common with the others, and the "
                            "rewrite defines its results",
                        )
            erases = rule.doc.kind != "kernel" and any(
                isinstance(s, (ast.Erase, BodyText)) for _, s in rule.rewrite
            )
            if any(rule.root.equation.results):
                for erased, statement in rule.rewrite:
                    if isinstance(statement, ast.Erase):
                        self.fault(
                            erased,
                            statement,
                            "erase",
                            "the root has results: they need values",
                            "`erase` is for ops without results",
                        )
            elif rule.root.equation.results or not erases:
                self.fault(
                    rule.root.line,
                    None,
                    "match",
                    "the root's results have no names",
                    "write c = "
                    + rule.root.line.text.value.removeprefix("_ = ")
                    + " (an op without results: say `erase` in `rewrite:`)",
                )
        return bound

    def variables(self, rule: Rule, bound: dict[str, Line]) -> None:
        """Bind the match's names for ops; check that what must be known of them is."""
        lines = {c.fn: (p.line, c) for p in rule.match for c in nested_calls(p.equation.call)}
        for name in sorted(rule.variables):
            if not ast.names_op(name):
                continue  # no op at all: said of its line
            line, call = lines[name]
            bound.setdefault(name, line)
            one_of = rule.one_of.get(name)
            if one_of is not None:
                for node in ast.walk_expression(one_of.expr):
                    if isinstance(node, ast.Literal) and isinstance(node.value, str):
                        self.op_name(one_of.line, node.value, node.pos + 1)
                continue
            head = ast.Node(call.pos, call.pos + len(name))
            says = f"say which in `where:`: {name} in [torch.aten.relu, torch.aten.sigmoid]"
            if rule.match and rule.root.op == name:
                self.fault(rule.root.line, head, "open-op", f"the root may be any op: {name}", says)
            for made, statement in rule.rewrite:
                if isinstance(statement, ast.OpEquation) and statement.call.fn == name:
                    at = ast.Node(statement.call.pos, statement.call.pos + len(name))
                    what = f"{name} may be any op, and the rewrite makes another one of it"
                    self.fault(made, at, "open-op", what, says)

    def each(self, pattern: OpPattern, results: dict[str, OpPattern], *, root: bool) -> None:
        """Check an op that stands once for every item of a list, and items where there is none."""
        equation = pattern.equation
        lists = 0
        for call in nested_calls(equation.call):
            for arg in call.args:
                for item in arg.items if isinstance(arg, ast.ListExpr) else (arg,):
                    found = list_item(item)
                    if found is None:
                        continue
                    name, index = found
                    lists += 1
                    of = results.get(name)
                    if index != equation.each:
                        self.fault(
                            pattern.line,
                            item,
                            "match",
                            f"{name}[{index}] is an item of a list, and {index!r} no index here",
                            "an op that stands for every item is written ys[i] = op(xs[i])",
                        )
                    elif of is not None and of.equation.each is None:
                        what = f"{name!r} is no list: its line makes one value"
                        hint = f"write {name}[i] = ... in line {of.line.span.line}"
                        self.fault(pattern.line, item, "match", what, hint)
        if equation.each is not None and root:
            self.fault(
                pattern.line,
                equation,
                "match",
                "the root stands for one op, not for every item of a list",
                "let an op that reads the list stand last: c = torch.aten.cat([ys...], d)",
            )
        if equation.each is not None and not lists:
            self.fault(
                pattern.line,
                equation,
                "match",
                "no operand of this op is an item of a list",
                f"write {equation.results[0]}[i] = {equation.call.fn}(xs[i])",
            )

    def shares_operand(self, rule: Rule, number: int) -> bool:
        """Whether a further root can be found from the ops that stand for certain."""
        certain = [p for n, p in enumerate(rule.match) if n not in rule.other_roots]
        others = [rule.match[n] for n in rule.other_roots if n < number]
        names = {
            item.id
            for p in (*certain, *others)
            for call in nested_calls(p.equation.call)
            for item in call.args
            if isinstance(item, ast.Name)
        }
        own = rule.match[number].equation.call.args
        return any(isinstance(a, ast.Name) and a.id in names for a in own)

    def tests(self, doc: RuleDoc, *, refusable: bool) -> None:
        """Check that the tests are there and say what they must.

        A rule that takes every op of its name has no program to refuse: it is not ``refusable``.
        """
        if isinstance(doc, DraftDoc) and not doc.tests:
            return
        positive = [t for t in doc.tests if t.input is not None]
        negative = [t for t in doc.tests if t.unchanged is not None]
        span = self.source.span_at(("tests",), key=True)
        if not positive:
            self.faults.append(
                Fault(
                    span,
                    "no-positive-test",
                    "no test shows the rule applying",
                    "add a test with `input:` and `check:`",
                )
            )
        if not negative and refusable:
            self.faults.append(
                Fault(
                    span,
                    "no-negative-test",
                    "no test shows the rule refusing",
                    "add a test with `unchanged:` and `because:`",
                )
            )
        lines = {str(line) for section in _SECTIONS for line in self.lines(section)}
        if isinstance(doc, KernelDoc):
            for variant in doc.kernel.variants:
                lines |= {str(v) for v in (*variant.where, *variant.grid, *variant.workgroup)}
                lines |= {str(value) for value in variant.let.values()}
                orders = variant.reorder.values()
                lines |= {str(v) for order in orders for v in (order.when, *order.view)}
                steps = variant.first.values()
                lines |= {str(v) for made in steps for v in (*made.dims, *made.grid)}
                lines |= {str(v) for tile in variant.tiles for v in (tile.rows, tile.bytes)}
        names: dict[str, int] = {}
        for i, test in enumerate(doc.tests):
            self.test(i, test, lines)
            if test.name in names:
                first = self.source.span_at(("tests", names[test.name], "name"))
                self.faults.append(
                    Fault(
                        self.source.span_at(("tests", i, "name")),
                        "duplicate-name",
                        f"two tests are named {test.name!r}",
                        f"the first stands in line {first.line}",
                    )
                )
            names.setdefault(test.name, i)

    def lines(self, section: str) -> Iterable[object]:
        """The lines of a section as the file has them, also where the model refused it."""
        found = self.data.get(section)
        if isinstance(found, dict):
            return found.values()
        return found if isinstance(found, list) else [found]

    def test(self, i: int, test: Test, lines: set[str]) -> None:
        """Check one test."""

        def fault(code: str, message: str, hint: str, key: str | None = None) -> None:
            path: Path_ = ("tests", i) if key is None else ("tests", i, key)
            span = self.source.span_at(path, key=True)
            if key is None:
                span = _owner_span(self.source, path)
            self.faults.append(Fault(span, code, message, hint))

        if test.input is None and test.unchanged is None:
            fault(
                "test-input",
                "a test has either `input:` or `unchanged:`",
                "`input:`: a program that the rule rewrites; `unchanged:`: one it must leave",
            )
        if test.input is not None and test.unchanged is not None:
            fault(
                "test-input",
                "a test has either `input:` or `unchanged:`, not both",
                "make it two tests",
                "unchanged",
            )
        elif test.unchanged is not None:
            for key in ("check", "run", "applied"):
                if getattr(test, key) is not None:
                    fault(
                        "test-input",
                        f"an `unchanged:` test has no `{key}:`",
                        "the test passes when the program stays as it is",
                        key,
                    )
        elif test.input is not None:
            if test.because is not None:
                fault(
                    "test-input",
                    "`because:` belongs to an `unchanged:` test",
                    "remove it, or write `unchanged:` for `input:`",
                    "because",
                )
            if test.check is None and test.run is None:
                fault(
                    "test-checks-nothing", "the test checks nothing", "add `check:` lines or `run:`"
                )
        named = {" ".join(line.split()) for line in lines}
        said = " ".join((test.because or "").split())
        if test.unchanged is not None and test.because is not None and said not in named:
            span = self.source.span_at(("tests", i, "because"))
            near = self.near(test.because, lines)
            self.faults.append(
                Fault(
                    span,
                    "because",
                    "no line of the rule reads like this",
                    near or "copy the line that refuses from `where:` or `types:`",
                )
            )
        if test.check is not None and "CHECK" not in test.check:
            fault(
                "test-checks-nothing",
                "`check:` holds no CHECK line",
                "for example `CHECK: linalg.matmul`",
                "check",
            )
        if test.run is not None and test.run.low > test.run.high:
            self.faults.append(
                Fault(
                    self.source.span_at(("tests", i, "run", "low")),
                    "bad-value",
                    f"`low` ({test.run.low:g}) is above `high` ({test.run.high:g})",
                    "",
                )
            )


# Types that every value of an op on scalars has.
_PLAIN = frozenset({"int", "float", "bool", "number", "any"})


def _refusable(rule: Rule) -> bool:
    """Whether a rule asks for more than the name of an op: types of tensors, values, conditions."""
    if rule.where or rule.index_match or rule.variants or len(rule.match) != 1:
        return True
    declared = [decl for _, decl in rule.types.values()]
    if any(d.kind not in _PLAIN or d.constant or d.optional for d in declared):
        return True
    call = rule.match[0].equation.call
    names = [a.id for a in call.args if isinstance(a, (ast.Name, ast.Pack)) and a.id]
    return (
        len(set(names)) != len(call.args)
        or rule.match[0].equation.pack
        or not all(isinstance(value, ast.Name) for _, value in call.attrs)
    )
