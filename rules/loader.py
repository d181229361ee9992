"""Reading rule files: YAML with marks, the typed model, the notation, and the rule's own logic.

:func:`load_rule` gives a checked :class:`~mlirules.rules.rule.Rule` or raises
:class:`~mlirules.rules.faults.MlirulesError` with every fault of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pydantic

from mlirules.rules.evaluate import FUNCTIONS
from mlirules.rules.faults import Fault, MlirulesError, Span, did_you_mean
from mlirules.rules.model import Body, RuleDoc
from mlirules.rules.notation import ast
from mlirules.rules.notation.parser import (
    ELEMENT_TYPES,
    NotationError,
    parse_expression,
    parse_statement,
    parse_type,
)
from mlirules.rules.rule import BodyText, Line, OpPattern, Rule
from mlirules.rules.source import Path_, SourceFile, Text, load_yaml

# Says of an op name whether the installed compiler has it, and names near to it.
OpOracle = Callable[[str], tuple[bool, list[str]]]

LIBRARY = Path(__file__).resolve().parent

# Names that stand for run-time functions; kept in step with generator.scalars by a test.
RUNTIME_FUNCTIONS: frozenset[str] = frozenset(
    "exp exp2 expm1 log log2 log1p sqrt rsqrt sin cos tan sinh cosh tanh asin acos atan asinh "
    "acosh atanh erf floor ceil round trunc atan2 copysign pow abs max min maxnum minnum truncdiv "
    "rem bitand bitor bitxor shl shr isnan isinf isfinite cast select sign bitcast real imag "
    "complex reshape pad concatenate literal wide".split()
)


def load_rule(
    path: str | Path, text: str | None = None, *, ops: OpOracle | None = None
) -> Rule:
    """Read, parse and check one rule file.

    ``ops`` tells whether the installed compiler has an op; without it op names are not checked.
    Raises :class:`MlirulesError` with all faults of the file.
    """
    source = load_yaml(path, text)
    if not isinstance(source.data, dict):
        raise MlirulesError(
            Fault(source.span_at(()), "not-a-rule", "a rule file is a mapping",
                  "it starts with `rule: NAME`")
        )  # fmt: skip
    doc, faults = _typed(source)
    if doc is None:
        # Report notation faults of the parts that can be read, too: all faults in one run.
        faults += _Checker(source, source.data, ops).notation_only()
        raise MlirulesError(_in_order(faults))
    checker = _Checker(source, source.data, ops)
    rule = checker.rule(doc)
    if checker.faults:
        raise MlirulesError(_in_order(checker.faults))
    assert rule is not None
    return rule


def _in_order(faults: Iterable[Fault]) -> list[Fault]:
    unique = dict.fromkeys(faults)
    return sorted(unique, key=lambda f: (f.span.line, f.span.column, f.code))


_FIELDS_HINT = {
    "string_type": "write a text here",
    "int_type": "write a whole number here",
    "list_type": "write a list here: each item on a line of its own, after '- '",
    "dict_type": "write a mapping here: `key: value` lines",
    "bool_type": "write true or false",
    "float_type": "write a number here",
}


def _typed(source: SourceFile) -> tuple[RuleDoc | None, list[Fault]]:
    try:
        return RuleDoc.model_validate(source.data), []
    except pydantic.ValidationError as error:
        return None, [f for e in error.errors() for f in _pydantic_fault(source, e)]


def _fields_at(loc: Path_) -> list[str]:
    model: Any = RuleDoc
    if loc and loc[0] == "tests":
        from mlirules.rules.model import RunSpec, Test

        model = RunSpec if "run" in loc[1:] else Test
    elif loc and loc[0] == "rewrite":
        model = Body
    return list(model.model_fields)


def _pydantic_fault(source: SourceFile, error: Any) -> list[Fault]:
    loc: Path_ = tuple(
        p for p in error["loc"] if not (isinstance(p, str) and re.search(r"constrained-|^Body$", p))
    )
    kind, message = error["type"], error["msg"]
    # A union reports every branch: keep the one that fits what was written.
    if loc and loc[0] == "rewrite" and len(loc) >= 2:
        value = source.data
        for part in loc[:2]:
            value = value[part]
        is_body_branch = "Body" in error["loc"]
        if isinstance(value, dict) != is_body_branch:
            return [] if isinstance(value, (dict, str)) else [
                Fault(source.span_at(loc[:2]), "wrong-type",
                      "a rewrite item is an equation or a mapping with `body:`")
            ] if is_body_branch else []  # fmt: skip
    if kind == "missing":
        parent = loc[:-1]
        span = source.span_at(parent) if parent else source.span(1, 1)
        first_key = next((k for k in source.key_marks if k[: len(parent)] == parent), None)
        if first_key:
            span = source.span_at(first_key, key=True)
        hint = {
            "reason": "say why the rule exists: what it makes possible or faster",
            "tests": "every rule has at least one positive and one negative test",
            "kind": "conversion or fusion",
        }.get(str(loc[-1]), f"add `{loc[-1]}:`")
        return [Fault(span, "missing-key", f"the key {loc[-1]!r} is missing", hint)]
    if kind == "extra_forbidden":
        known = _fields_at(loc[:-1])
        word = str(loc[-1])
        hint = did_you_mean(word, known) or "known keys: " + ", ".join(known)
        return [
            Fault(source.span_at(loc, key=True), "unknown-key", f"unknown key {word!r}", hint)
        ]
    if loc and loc[-1] == "[key]":
        loc = loc[:-1]
        return [
            Fault(source.span_at(loc, key=True), "bad-name",
                  f"{loc[-1]!r} is not a name", "letters, digits and _, not starting with a digit")
        ]  # fmt: skip
    hint = _FIELDS_HINT.get(kind, "")
    if kind == "literal_error":
        hint = "one of " + error.get("ctx", {}).get("expected", "")
    if kind == "string_pattern_mismatch":
        hint = "lower-case words and digits joined by '-'"
    if kind == "float_type" or kind == "int_type":
        found = error.get("input")
        message = f"{message}, found {found!r}"
    return [Fault(source.span_at(loc), "wrong-type", message, hint)]


class _Checker:
    """Parses the notation of a rule and checks its names; collects faults."""

    def __init__(self, source: SourceFile, data: dict[str, Any], ops: OpOracle | None) -> None:
        self.source = source
        self.data = data
        self.ops = ops
        self.faults: list[Fault] = []

    # -- helpers

    def line(self, section: str, key: str | int, *more: str | int) -> Line:
        return Line(section, key, self.source.text_at((section, key, *more)))

    def fault(
        self, line: Line, node: ast.Node | None, code: str, message: str, hint: str = ""
    ) -> None:
        if node is None:
            span = line.span
        else:
            span = line.text.span(node.pos, max(1, node.end - node.pos))
        self.faults.append(Fault(span, code, message, hint))

    def parsed(self, line: Line, parse: Callable[[str], Any]) -> Any:
        try:
            return parse(line.text.value)
        except NotationError as error:
            self.faults.append(
                Fault(
                    line.text.span(error.pos, error.length), "syntax", error.message,
                    error.suggestion,
                )
            )  # fmt: skip
        except RecursionError:
            self.faults.append(Fault(line.span, "syntax", "nested too deep"))
        return None

    def notation_only(self) -> list[Fault]:
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
        return self.faults

    # -- the whole

    def rule(self, doc: RuleDoc) -> Rule | None:
        types: dict[str, tuple[Line, ast.TypeDecl]] = {}
        for name in doc.types:
            line = self.line("types", name)
            decl = self.parsed(line, parse_type)
            if decl is not None:
                types[name] = (line, decl)
                self.type_decl(line, decl)
        match: list[OpPattern] = []
        index_match: list[tuple[Line, ast.IndexEquation]] = []
        for i in range(len(doc.match)):
            line = self.line("match", i)
            statement = self.parsed(line, parse_statement)
            if isinstance(statement, ast.OpEquation):
                match.append(OpPattern(line, statement))
            elif isinstance(statement, ast.IndexEquation):
                index_match.append((line, statement))
            elif statement is not None:
                self.fault(
                    line, None, "match", "a match is an op equation or an index equation",
                    "write result = dialect.op(operands)",
                )  # fmt: skip
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
        rewrite: list[tuple[Line, ast.Statement | BodyText]] = []
        for i, item in enumerate(doc.rewrite):
            if isinstance(item, Body):
                line = Line("rewrite", i, self.source.text_at(("rewrite", i, "body")))
                rewrite.append((line, BodyText(item.body)))
            else:
                line = self.line("rewrite", i)
                statement = self.parsed(line, parse_statement)
                if statement is not None:
                    rewrite.append((line, statement))
        if self.faults:
            # Names cannot be judged while lines are missing; op names can.
            for pattern in match:
                self.ops_of(pattern.line, pattern.equation.call)
            return None
        rule = Rule(doc, self.source, types, match, index_match, lets, where, rewrite)
        self.names(rule)
        self.tests(doc)
        return rule

    def type_decl(self, line: Line, decl: ast.TypeDecl) -> None:
        if decl.of is not None:
            self.type_decl(line, decl.of)
        element = decl.element
        if element and element[0].islower() and element not in ELEMENT_TYPES:
            hint = did_you_mean(element, ELEMENT_TYPES) or "an element type, or a capital symbol"
            self.fault(line, decl, "unknown-type", f"unknown element type {element!r}", hint)
        if decl.kind == "vtensor" and element in ("i8", "i16", "i32", "i64", "index"):
            self.fault(
                line, decl, "unknown-type",
                f"a vtensor has signed or unsigned integers, not {element}", f"write s{element}",
            )  # fmt: skip
        if decl.constant and decl.kind in ("vtensor", "tensor"):
            self.fault(line, decl, "wrong-type", "a tensor cannot be declared constant")

    def ops_of(self, line: Line, call: ast.Call) -> None:
        if "." not in call.fn:
            self.fault(
                line, call, "not-an-op", f"{call.fn!r} is not an op",
                "an op's name holds its dialect: torch.aten.mm",
            )  # fmt: skip
            return
        if self.ops is not None:
            known, near = self.ops(call.fn)
            if not known:
                hint = did_you_mean(call.fn, near) or "see `mlirules check --help`"
                head = ast.Node(call.pos, call.pos + len(call.fn))
                self.fault(
                    line, head, "unknown-op",
                    f"the installed compiler has no op {call.fn!r}", hint,
                )  # fmt: skip
        for arg in call.args:
            for inner in arg.items if isinstance(arg, ast.ListExpr) else (arg,):
                if isinstance(inner, ast.Call):
                    self.ops_of(line, inner)

    # -- names

    def names(self, rule: Rule) -> None:
        bound: dict[str, Line] = {}
        results: dict[str, int] = {}
        used_later: set[str] = set()
        for line, equation in rule.index_match:
            bound[equation.target] = line
            for name in _tensor_names(equation.value):
                bound.setdefault(name, line)
        for n, pattern in enumerate(rule.match):
            for name in pattern.equation.results:
                if name is None:
                    continue
                if name in results:
                    self.fault(
                        pattern.line, pattern.equation, "duplicate-name",
                        f"{name!r} is defined twice", "give each result a name of its own",
                    )  # fmt: skip
                results[name] = n
        for pattern in rule.match:
            self.ops_of(pattern.line, pattern.equation.call)
            self.operands(pattern.line, pattern.equation.call, bound, used_later)
            for name in pattern.equation.results:
                if name:
                    bound.setdefault(name, pattern.line)
        if rule.match and not rule.index_match:
            last = len(rule.match) - 1
            for n, pattern in enumerate(rule.match[:-1]):
                names = [r for r in pattern.equation.results if r]
                if not any(name in used_later for name in names):
                    self.fault(
                        pattern.line, None, "unconnected",
                        "no later op of the match uses this op's results",
                        "the ops of a match form one DAG that ends in the last, the root",
                    )  # fmt: skip
            for name, n in results.items():
                if n == last and name in used_later:
                    self.fault(rule.root.line, None, "cycle", f"{name!r} uses itself")
        for name, (line, _) in rule.types.items():
            declared_later = {t for t in _targets(rule)}
            if name not in bound and name not in declared_later:
                self.fault(
                    line, None, "unbound-name", f"{name!r} stands nowhere in the match",
                    did_you_mean(name, bound) or "remove it, or use it",
                )  # fmt: skip
        if rule.match and not any(rule.root.equation.results):
            self.fault(
                rule.root.line, None, "match", "the root's results have no names",
                "write c = " + rule.root.line.text.value,
            )  # fmt: skip
        symbols: dict[str, Line] = dict(bound)
        for line, decl in rule.types.values():
            for symbol in _type_symbols(decl):
                symbols.setdefault(symbol, line)
        for name in rule.types:
            symbols.setdefault(name, rule.types[name][0])
        scope = set(symbols)
        for name, line, expr, _ in rule.let:
            if expr is not None:
                self.expression(line, expr, scope, runtime=False)
            if name in scope:
                self.fault(line, None, "duplicate-name", f"{name!r} already stands in the match")
            scope.add(name)
        for line, expr in rule.where:
            self.expression(line, expr, scope, runtime=False)
        root_results = {
            r for r in (rule.root.equation.results if rule.match else ()) if r
        } or {e.target for _, e in rule.index_match[-1:]}
        scope_now = {s for s in scope if s not in root_results}
        defined: set[str] = set()
        for line, statement in rule.rewrite:
            self.statement(line, statement, scope_now | defined, root_results)
            defined |= _defines(statement, root_results)
        for name in root_results - defined:
            where = rule.rewrite[-1][0]
            self.fault(
                where, None, "undefined-result", f"the rewrite does not define {name!r}",
                f"add an equation `{name}[...] = ...` or `{name} = ...`",
            )  # fmt: skip
        for op in rule.doc.commutative:
            if op not in rule.op_names:
                at = self.line("commutative", rule.doc.commutative.index(op))
                self.fault(
                    at, None, "unbound-name", f"{op!r} does not stand in the match",
                    did_you_mean(op, rule.op_names),
                )  # fmt: skip
        rule.names = frozenset(scope)

    def operands(
        self, line: Line, call: ast.Call, bound: dict[str, Line], used: set[str]
    ) -> None:
        for arg in call.args:
            if isinstance(arg, ast.Name):
                bound.setdefault(arg.id, line)
                used.add(arg.id)
            elif isinstance(arg, ast.Call):
                self.operands(line, arg, bound, used)
            elif isinstance(arg, ast.ListExpr):
                for item in arg.items:
                    if isinstance(item, (ast.Name, ast.Pack)) and item.id:
                        bound.setdefault(item.id, line)
                        used.add(item.id)
                    elif isinstance(item, ast.Call):
                        self.operands(line, item, bound, used)
                    elif not isinstance(item, (ast.Literal, ast.Wildcard)):
                        self.bad_operand(line, item)
            elif isinstance(arg, ast.Pack):
                if arg.id:
                    bound.setdefault(arg.id, line)
                    used.add(arg.id)
                if arg is not call.args[-1]:
                    self.fault(line, arg, "match", "a pack of operands stands last")
            elif not isinstance(arg, (ast.Literal, ast.Wildcard)):
                self.bad_operand(line, arg)
        for _, value in call.attrs:
            if isinstance(value, ast.Name):
                bound.setdefault(value.id, line)

    def bad_operand(self, line: Line, node: ast.Expr) -> None:
        self.fault(
            line, node, "match",
            "an operand is a name, a constant, a list, an op, or _",
            "compute with it in `let:` or test it in `where:`",
        )  # fmt: skip

    def statement(
        self, line: Line, statement: ast.Statement | BodyText, scope: set[str], roots: set[str]
    ) -> None:
        match statement:
            case BodyText(text=text):
                self.body(line, text, scope)
            case ast.OpEquation(call=call):
                self.ops_of(line, call)
                for arg in call.args:
                    self.expression(line, arg, scope, runtime=True)
            case ast.Assignment(value=value):
                self.expression(line, value, scope, runtime=True)
            case ast.IndexEquation():
                loops = {b.id for b in statement.bounds}
                for item in statement.indices:
                    loops |= _index_names(item)
                for node in _walk(statement.value):
                    if isinstance(node, ast.Access):
                        for item in node.items:
                            loops |= _index_names(item)
                for b in statement.bounds:
                    self.expression(line, b.limit, scope, runtime=False)
                for item in statement.indices:
                    self.expression(line, item, scope | loops, runtime=True)
                self.expression(line, statement.value, scope | loops, runtime=True)

    def body(self, line: Line, text: str, scope: set[str]) -> None:
        # Only what follows `$` is ours; SSA names may be the body's own.
        for found in re.finditer(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\(([^()]*(?:\([^()]*\)[^()]*)*)\))", text):
            offset = found.start()
            if found.group(1):
                name = found.group(1)
                node = ast.Node(offset, found.end())
                if name not in scope and name not in ELEMENT_TYPES and not self.known(name):
                    self.fault(
                        line, node, "unbound-name", f"{name!r} stands nowhere in the match",
                        did_you_mean(name, scope),
                    )  # fmt: skip
            else:
                try:
                    expr = parse_expression(found.group(2))
                except NotationError as error:
                    at = found.start(2) + error.pos
                    self.faults.append(
                        Fault(line.text.span(at, error.length), "syntax", error.message,
                              error.suggestion)
                    )  # fmt: skip
                else:
                    shifted = Line(line.section, line.key, line.text)
                    before = len(self.faults)
                    self.expression(shifted, expr, scope, runtime=False)
                    del before

    def known(self, name: str) -> bool:
        root = self.data.get("match")
        return bool(root) and any(
            re.search(rf"\b{re.escape(name)}\b", str(m).split("=")[0]) for m in root
        )

    def expression(
        self, line: Line, expr: ast.Expr, scope: set[str], *, runtime: bool
    ) -> None:
        for node in _walk(expr):
            if isinstance(node, (ast.Name, ast.Pack)) and node.id:
                if node.id in scope or node.id in ELEMENT_TYPES:
                    continue
                self.fault(
                    line, node, "unbound-name", f"{node.id!r} stands nowhere in the match",
                    did_you_mean(node.id, scope),
                )  # fmt: skip
            elif isinstance(node, ast.Call) and "." not in node.fn:
                known = set(FUNCTIONS) | (set(RUNTIME_FUNCTIONS) if runtime else {"wide"})
                known |= {"unused", "one_use"}
                if node.fn in known:
                    function = FUNCTIONS.get(node.fn)
                    packed = any(isinstance(a, ast.Pack) for a in node.args)
                    if function and not packed and node.fn not in RUNTIME_FUNCTIONS:
                        low, high = function.arity
                        if not low <= len(node.args) <= high:
                            takes = str(low) if low == high else f"{low} to {high}"
                            self.fault(
                                line, node, "arity",
                                f"{node.fn} takes {takes} values, not {len(node.args)}",
                                f"for example {function.example}",
                            )  # fmt: skip
                elif node.fn in ELEMENT_TYPES or node.fn in scope:
                    if not runtime:
                        self.fault(line, node, "syntax", f"{node.fn} is not a predicate")
                else:
                    self.fault(
                        line, ast.Node(node.pos, node.pos + len(node.fn)), "unknown-function",
                        f"unknown function {node.fn!r}",
                        did_you_mean(node.fn, known) or "see the list in docs/notation.md",
                    )  # fmt: skip

    def tests(self, doc: RuleDoc) -> None:
        positive = [t for t in doc.tests if t.input is not None]
        negative = [t for t in doc.tests if t.unchanged is not None]
        span = self.source.span_at(("tests",), key=True)
        if not positive:
            self.faults.append(
                Fault(span, "no-positive-test", "no test shows the rule applying",
                      "add a test with `input:` and `check:`")
            )  # fmt: skip
        if not negative:
            self.faults.append(
                Fault(span, "no-negative-test", "no test shows the rule refusing",
                      "add a test with `unchanged:` and `because:`")
            )  # fmt: skip
        lines = {*map(str, doc.where), *map(str, doc.match), *map(str, doc.types.values())}
        lines |= {str(v) for v in doc.let.values()}
        for i, test in enumerate(doc.tests):
            at = self.source.span_at(("tests", i))
            if (test.input is None) == (test.unchanged is None):
                self.faults.append(
                    Fault(at, "test-input", "a test has either `input:` or `unchanged:`")
                )
            if test.unchanged is not None and (test.check or test.run):
                self.faults.append(
                    Fault(at, "test-input", "an `unchanged:` test has no `check:` or `run:`")
                )
            if test.because is not None and test.because not in lines:
                self.faults.append(
                    Fault(
                        self.source.span_at(("tests", i, "because")), "because",
                        "no line of the rule reads like this",
                        did_you_mean(test.because, lines) or "copy the line from `where:`",
                    )
                )  # fmt: skip
            if test.input is not None and test.check is None and test.run is None:
                self.faults.append(
                    Fault(at, "test-checks-nothing", "the test checks nothing",
                          "add `check:` lines or `run:`")
                )  # fmt: skip
            if test.check is not None and "CHECK" not in test.check:
                self.faults.append(
                    Fault(self.source.span_at(("tests", i, "check")), "test-checks-nothing",
                          "`check:` holds no CHECK line", "for example `CHECK: linalg.matmul`")
                )  # fmt: skip


def _walk(node: ast.Expr) -> Iterable[ast.Expr]:
    yield node
    match node:
        case ast.ListExpr(items=items):
            for item in items:
                yield from _walk(item)
        case ast.Call(args=args):
            for item in args:
                yield from _walk(item)
        case ast.Access(base=base, items=items):
            yield from _walk(base)
            for item in items:
                yield from _walk(item)
        case ast.Unary(operand=operand):
            yield from _walk(operand)
        case ast.Binary(left=left, right=right):
            yield from _walk(left)
            yield from _walk(right)
        case ast.Conditional(condition=c, then=a, otherwise=b):
            yield from _walk(c)
            yield from _walk(a)
            yield from _walk(b)


def index_names(items: Iterable[ast.Expr]) -> set[str]:
    """The names in index lists: loop indices, packs, and symbols alike."""
    out: set[str] = set()
    for item in items:
        out |= _index_names(item)
    return out


def _index_names(item: ast.Expr) -> set[str]:
    out: set[str] = set()
    for node in _walk(item):
        if isinstance(node, (ast.Name, ast.Pack)) and node.id:
            out.add(node.id)
    return out


def _tensor_names(value: ast.Expr) -> list[str]:
    return [
        node.base.id
        for node in _walk(value)
        if isinstance(node, ast.Access) and isinstance(node.base, ast.Name)
    ]


def _type_symbols(decl: ast.TypeDecl) -> Iterable[str]:
    for dim in decl.dims or ():
        if isinstance(dim.value, str):
            yield dim.value
    if decl.element:
        yield decl.element
    if decl.of is not None:
        yield from _type_symbols(decl.of)


def _targets(rule: Rule) -> Iterable[str]:
    for _, statement in rule.rewrite:
        yield from _defines(statement, set())


def _defines(statement: ast.Statement | BodyText, roots: set[str]) -> set[str]:
    match statement:
        case BodyText(text=text):
            out: set[str] = set()
            for found in re.finditer(r"^\s*((?:%[\w.]+(?::\d+)?\s*,\s*)*%[\w.]+(?::\d+)?)\s*=", text, re.M):
                out |= {p.strip().lstrip("%").split(":")[0] for p in found.group(1).split(",")}
            return out
        case ast.OpEquation(results=results):
            return {r for r in results if r}
        case _:
            return {statement.target}


# ---- rule sets -------------------------------------------------------------------------------


def rule_files(path: str | Path) -> list[Path]:
    """The rule files of a rule set: a file, a folder, or a name below the shipped library."""
    given = Path(path)
    candidates = [given, LIBRARY / given, LIBRARY / f"{path}.yaml"]
    for candidate in candidates:
        if candidate.is_file():
            return [candidate]
        if candidate.is_dir():
            return sorted(p for p in candidate.rglob("*.yaml") if not p.name.startswith("."))
    known = sorted(
        {str(p.parent.relative_to(LIBRARY)) for p in LIBRARY.rglob("*.yaml")}
    )
    raise MlirulesError(
        Fault(
            Span(str(path)), "no-rules", "no such rule file, folder or shipped rule set",
            did_you_mean(str(path), known) or "shipped: " + ", ".join(known),
        )
    )  # fmt: skip


def load_rules(
    paths: Iterable[str | Path], *, ops: OpOracle | None = None
) -> list[Rule]:
    """Read rule sets in order. Raises :class:`MlirulesError` with the faults of all files."""
    rules: list[Rule] = []
    faults: list[Fault] = []
    seen: dict[str, Rule] = {}
    for path in paths:
        for file in rule_files(path):
            try:
                rule = load_rule(file, ops=ops)
            except MlirulesError as error:
                faults.extend(error.faults)
                continue
            if rule.name in seen:
                if Path(seen[rule.name].path) == file:
                    continue
                faults.append(
                    Fault(rule.span, "duplicate-rule", f"a rule named {rule.name!r} already stands "
                          f"in {seen[rule.name].path}", "give it a name of its own")
                )  # fmt: skip
                continue
            rule.order = len(rules)
            try:
                rule.origin = str(file.resolve().relative_to(LIBRARY).with_suffix(""))
            except ValueError:
                rule.origin = str(file.with_suffix(""))
            seen[rule.name] = rule
            rules.append(rule)
    if faults:
        raise MlirulesError(faults)
    if not rules:
        raise MlirulesError.at(
            ", ".join(map(str, paths)), "holds no rule file", code="no-rules",
            suggestion="rule files end in .yaml",
        )
    return rules
