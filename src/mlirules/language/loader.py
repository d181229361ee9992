"""Reading rule files: YAML with marks, the typed model, the notation, and the rule's own logic.

:func:`load_rule` gives a checked :class:`~mlirules.language.rule.Rule` or raises
:class:`~mlirules.language.faults.MlirulesError` with every fault of the file.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from mlirules.language import functions as scalars
from mlirules.language.builtins import FUNCTIONS
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean
from mlirules.language.kernel import Kernel, KernelDoc, KernelObject, KernelVariant
from mlirules.language.model import Body, RuleDoc, RunSpec, Test
from mlirules.language.notation import ast
from mlirules.language.notation.parser import (
    ELEMENT_TYPES,
    NotationError,
    parse_expression,
    parse_statement,
    parse_type,
)
from mlirules.language.rule import (
    BodyText,
    InFile,
    Line,
    OpPattern,
    Rule,
    defined_names,
    nested_calls,
)
from mlirules.language.source import MAX_FAULTS, Path_, SourceFile, Text, load_yaml
from mlirules.support import package

R = TypeVar("R", bound=InFile)

# Says of an op name whether the installed compiler has it, and names near to it.
OpOracle = Callable[[str], tuple[bool, list[str]]]

MAX_SUGGESTIONS = 20  # in one file

LIBRARY = package.RULES

# Functions that compute at run time, each with its fewest and most values. The generator's tables
# say what they become; they import nothing, so that both sides can read them.
RUNTIME_ARITY: dict[str, tuple[int, int]] = {
    **{name: (function.arity, function.arity) for name, function in scalars.SIMPLE.items()},
    **{name: entry[:2] for name, entry in {**scalars.SPECIAL, **scalars.TENSOR}.items()},
}
RUNTIME_FUNCTIONS: frozenset[str] = frozenset(RUNTIME_ARITY)


def load_rule(path: str | Path, text: str | None = None, *, ops: OpOracle | None = None) -> Rule:
    """Read, parse and check one rule file.

    ``ops`` tells whether the installed compiler has an op; without it op names are not checked.
    Raises :class:`MlirulesError` with all faults of the file.
    """
    return rule_of(load_yaml(path, text), ops=ops)


def kind_of(source: SourceFile) -> str:
    """The kind of rule that a file says it holds; empty when it says none."""
    kind = source.data.get("kind") if isinstance(source.data, dict) else None
    return kind if isinstance(kind, str) else ""


def rule_of(source: SourceFile, *, ops: OpOracle | None = None) -> Rule:
    """The rewrite rule that a YAML file holds. Arguments and errors as for :func:`load_rule`."""
    if kind_of(source) == "config":
        raise MlirulesError(
            Fault(
                source.span_at(("kind",)),
                "wrong-kind",
                "a config rule rewrites nothing",
                "it goes into a stage of phase `configuration`, or to --configs",
            )
        )
    if not isinstance(source.data, dict):
        raise MlirulesError(
            Fault(
                source.span_at(()),
                "not-a-rule",
                "a rule file is a mapping of keys to values",
                "it starts with `rule: NAME`",
            )
        )
    source.listed("match", "where", "rewrite")
    doc, errors = _typed(source.data)
    faults = [f for e in errors for f in model_fault(source, e)]
    # All faults in one run: with the model's faults mended, the rest can be judged as well.
    judged = doc if doc is not None else _mended(source.data, errors)
    checker = _Checker(source, source.data, ops)
    for loc in map(_location, errors):
        if loc and loc[0] in _NOTATION:
            checker.skip(Line(str(loc[0]), (*loc, "")[1], source.text_at(loc)))
    rule = None
    if judged is None:
        checker.notation_only()
    else:
        rule = checker.rule(judged)
    broken = {f.span.line for f in faults}
    if any(_location(e)[-1:] in (("tests",), ("input",), ("unchanged",)) for e in errors):
        checker.faults = [f for f in checker.faults if f.code not in _OF_ALL_TESTS]
    faults += [f for f in checker.faults if doc is not None or f.span.line not in broken]
    if faults:
        raise MlirulesError(_in_order(faults))
    assert rule is not None
    return rule


def _in_order(faults: Iterable[Fault]) -> list[Fault]:
    unique = dict.fromkeys(faults)
    return sorted(unique, key=lambda f: (f.span.line, f.span.column, f.code))


def _typed(data: object) -> tuple[RuleDoc | None, list[Any]]:
    kernel = isinstance(data, dict) and data.get("kind") == "kernel"
    try:
        return (KernelDoc if kernel else RuleDoc).model_validate(data), []
    except pydantic.ValidationError as error:
        return None, list(error.errors(include_url=False))[:MAX_FAULTS]


# Faults that may only follow from a test that the model refused.
_OF_ALL_TESTS = ("no-positive-test", "no-negative-test", "test-input")

_NOTATION = ("types", "match", "let", "where", "rewrite")

_PLACEHOLDERS: dict[str, object] = {
    "rule": "unnamed",
    "kind": "conversion",
    "summary": "missing",
    "reason": "missing",
    "name": "missing",
}


def _mended(data: dict[str, Any], errors: list[Any]) -> RuleDoc | None:
    """The rule without the keys that the model refused, or None when too little is left."""
    data = copy.deepcopy(data)
    for error in errors:
        loc = _location(error)
        holder: Any = data
        for part in loc[:-1]:
            try:
                holder = holder[part]
            except (KeyError, IndexError, TypeError):
                break
        else:
            if not loc or not isinstance(holder, dict):
                return None
            if loc[-1] in _PLACEHOLDERS:
                holder[loc[-1]] = _PLACEHOLDERS[loc[-1]]
            elif loc == ("tests",):
                holder["tests"] = [{"name": "missing"}]
            else:
                holder.pop(loc[-1], None)
    return _typed(data)[0]


def _location(error: Any) -> Path_:
    """Where the model refused the file, without pydantic's names for branches and keys."""
    loc: list[str | int] = [
        p
        for p in error["loc"]
        if not (isinstance(p, str) and (p in ("Body", "[key]") or "constrained-" in p))
    ]
    if loc and loc[0] == "let":
        loc = loc[:2]
    if loc and loc[0] == "rewrite" and len(loc) > 2 and error["type"] == "model_type":
        loc = loc[:2]
    return tuple(loc)


_TYPES = {
    "string_type": ("a text", "write a text; quote it if it looks like a number or a list"),
    "int_type": ("a whole number", ""),
    "int_from_float": ("a whole number", ""),
    "float_type": ("a number", ""),
    "finite_number": ("a finite number", ""),
    "bool_type": ("true or false", ""),
    "list_type": ("a list", "put each item on a line of its own, after '- '"),
    "dict_type": ("a mapping", "write `key: value` lines"),
    "model_type": ("a mapping", "write `key: value` lines"),
    "model_attributes_type": ("a mapping", "write `key: value` lines"),
}
_MISSING = {
    "rule": "name it as the file: lower-case words and digits joined by '-'",
    "kind": "`kind: conversion` (op to op), `kind: fusion` (DAG to DAG) or `kind: kernel`",
    "kernel": "a kernel rule says in `kernel:` what is dispatched in place of the match",
    "inputs": "list the tensors that the kernel reads",
    "variants": "write the kernel once for each kind of target",
    "targets": "list the kinds of target that the variant is for",
    "grid": "say how many workgroups there are: `grid: [M // TM]`",
    "body": "write the MLIR of one workgroup",
    "summary": "say in one sentence what the rule does",
    "reason": "say why the rule exists: what it makes possible or faster",
    "match": "list the ops to find, the root last: `- c = torch.aten.mm(a, b)`",
    "rewrite": "list the equations that define the root's results",
    "tests": "every rule has at least one positive and one negative test",
    "name": "say what the test shows",
}


def _model_at(loc: Path_) -> Any:
    match loc:
        case ("tests", int(), "run", *_):
            return RunSpec
        case ("tests", *_):
            return Test
        case ("rewrite", *_):
            return Body
        case ("kernel", "variants", int(), "object", *_):
            return KernelObject
        case ("kernel", "variants", int(), *_):
            return KernelVariant
        case ("kernel", *_):
            return Kernel
    return RuleDoc


def _shown(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "the truth value " + ("true" if value else "false")
        case int() | float():
            return f"the number {value:.40g}" if isinstance(value, float) else _number(value)
        case str():
            text = value if len(value) <= 40 else value[:37] + "..."
            return f"the text {text!r}"
        case list():
            return "a list"
    return "a mapping"


def _number(value: int) -> str:
    # Python refuses to print very long ones.
    return f"the number {value}" if abs(value) < 10**30 else "a very large number"


def _what(loc: Path_) -> str:
    """The place in words: `match`, an item of `match`."""
    names = [p for p in loc if isinstance(p, str)]
    if loc and isinstance(loc[-1], int):
        return f"an item of `{names[-1]}`"
    return f"`{names[-1]}`" if names else "the file"


def model_fault(
    source: SourceFile, error: Any, *, loc: Path_ | None = None, keys: list[str] | None = None
) -> list[Fault]:
    """What one error of pydantic means for the file, located; nothing when another says it better.

    ``loc`` and ``keys``: the place, and the keys known there, for models other than that of
    rewrite rules.
    """
    loc = _location(error) if loc is None else loc
    kind, found, context = error["type"], error.get("input"), error.get("ctx", {})
    if error["loc"] and error["loc"][-1] == "[key]":
        span = source.span_at(loc, key=True)
        return [
            Fault(
                span,
                "bad-name",
                f"{str(loc[-1])[:60]!r} is not a name",
                "up to 60 letters, digits and _, not starting with a digit",
            )
        ]
    # A union reports every branch: keep the one that fits what was written.
    if loc == ("kernel",) and kind == "extra_forbidden":
        return [
            Fault(
                source.span_at(loc, key=True),
                "unknown-key",
                "`kernel:` belongs to a rule of `kind: kernel`",
                "write `kind: kernel`",
            )
        ]
    if loc == ("rewrite",) and source.data.get("kind") == "kernel":
        return [
            Fault(
                source.span_at(loc, key=True),
                "unknown-key",
                "a rule of `kind: kernel` has no `rewrite:`",
                "`kernel:` stands in its place",
            )
        ]
    if loc[:1] == ("rewrite",) and len(error["loc"]) > 2:
        value = source.data["rewrite"][loc[1]]
        if not isinstance(value, (dict, str)):
            return [
                Fault(
                    source.span_at(loc[:2]),
                    "wrong-type",
                    f"an item of `rewrite` is an equation or a mapping with `body:`, "
                    f"not {_shown(value)}",
                )
            ]
        if isinstance(value, dict) != ("Body" in error["loc"]):
            return []
    if loc[:1] == ("let",) and len(loc) == 2:
        return [
            Fault(
                source.span_at(loc),
                "wrong-type",
                f"a `let` value is an expression, a number or a truth value, "
                f"not {_shown(source.data['let'][loc[1]])}",
                "quote lists: '[1, 2]'" if isinstance(found, list) else "",
            )
        ]
    if kind == "missing":
        return [
            Fault(
                _owner_span(source, loc[:-1]),
                "missing-key",
                f"the key {loc[-1]!r} is missing",
                _MISSING.get(str(loc[-1]), f"add `{loc[-1]}:`"),
            )
        ]
    if kind == "extra_forbidden":
        known = list(_model_at(loc[:-1]).model_fields) if keys is None else keys
        word = str(loc[-1])[:100]
        hint = did_you_mean(word, known) or _elsewhere(word) or "known keys: " + ", ".join(known)
        return [Fault(source.span_at(loc, key=True), "unknown-key", f"unknown key {word!r}", hint)]
    span = source.span_at(loc)
    if found is None or found in ("", [], {}):  # nothing to point at but the key
        span = source.span_at(loc, key=True)
    if kind in _TYPES:
        wanted, hint = _TYPES[kind]
        if found is None:
            hint = "write a value, or remove the key"
        if kind == "list_type" and isinstance(found, str):
            hint = f"put it in a list: `- {found.strip().splitlines()[0][:40]}`" if found else ""
        return [
            Fault(span, "wrong-type", f"{_what(loc)} must be {wanted}, not {_shown(found)}", hint)
        ]
    if kind == "literal_error":
        choices = context.get("expected", "")
        near = did_you_mean(str(found), re.findall(r"'([^']*)'", choices))
        return [
            Fault(span, "bad-value", f"{_what(loc)} must be {choices}, not {_shown(found)}", near)
        ]
    if kind == "string_pattern_mismatch":
        fixed = re.sub(r"[^a-z0-9]+", "-", str(found).lower()).strip("-")
        return [
            Fault(
                span,
                "bad-name",
                f"{str(found)[:60]!r} is not a name: lower-case words and digits joined by '-'",
                f"write {fixed[:60]}" if fixed else "",
            )
        ]
    if kind in ("too_short", "string_too_short"):
        least = context["min_length"]
        if not found:
            return [Fault(span, "empty", f"{_what(loc)} is empty", _MISSING.get(str(loc[-1]), ""))]
        unit = "characters" if kind.startswith("string") else "items"
        return [Fault(span, "bad-value", f"{_what(loc)} has fewer than {least} {unit}")]
    if kind in ("too_long", "string_too_long"):
        unit = "characters" if kind.startswith("string") else "items"
        most = context["max_length"]
        return [Fault(span, "too-large", f"{_what(loc)} has more than {most} {unit}")]
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = context.get("ge", context.get("le"))
        side = "at least" if "ge" in context else "at most"
        return [
            Fault(span, "bad-value", f"{_what(loc)} must be {side} {bound}, not {_shown(found)}")
        ]
    return [Fault(span, "wrong-type", f"{_what(loc)}: {error['msg']}")]


def _elsewhere(word: str) -> str:
    """Where a key belongs that stands in the wrong mapping."""
    for name, model in (("a test", Test), ("a test's `run:`", RunSpec), ("the rule", RuleDoc)):
        if word in model.model_fields:
            return f"{word!r} is a key of {name}"
    return ""


def _owner_span(source: SourceFile, parent: Path_) -> Span:
    """The first key of the mapping that lacks something."""
    first = next(
        (k for k in source.key_marks if len(k) == len(parent) + 1 and k[:-1] == parent), None
    )
    if first is not None:
        return source.span_at(first, key=True)
    return source.span_at(parent) if parent else source.span(1, 1)


class _Checker:
    """Parses the notation of a rule and checks its names; collects faults."""

    def __init__(self, source: SourceFile, data: dict[str, Any], ops: OpOracle | None) -> None:
        self.source = source
        self.data = data
        self.ops = ops
        self.faults: list[Fault] = []
        # Words of lines that could not be read: they may be names, so no fault is made of them.
        self.unread: set[str] = set()
        self.unread_sections: set[str] = set()

    # -- helpers

    def line(self, section: str, key: str | int, *more: str | int) -> Line:
        return Line(section, key, self.source.text_at((section, key, *more)))

    def fault(
        self, line: Line, node: ast.Node | None, code: str, message: str, hint: str = ""
    ) -> None:
        span = line.span
        if node is not None:
            span = line.text.span(node.pos, max(1, node.end - node.pos))
        self.faults.append(Fault(span, code, message, hint))

    def parsed(self, line: Line, parse: Callable[[str], Any]) -> Any:
        try:
            return parse(line.text.value)
        except NotationError as error:
            self.faults.append(
                Fault(
                    line.text.span(error.pos, error.length),
                    "syntax",
                    error.message,
                    error.suggestion,
                )
            )
        self.skip(line)
        return None

    def near(self, word: str, known: Iterable[str]) -> str:
        """A suggestion; none after many faults, because finding one takes time."""
        return did_you_mean(word[:100], known) if len(self.faults) < MAX_SUGGESTIONS else ""

    def skip(self, line: Line) -> None:
        """Note that a line could not be read."""
        self.unread |= set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", line.text.value))
        self.unread_sections.add(line.section)
        if line.section == "let":
            self.unread.add(str(line.key))

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
        rule = Rule(doc, self.source, types, match, index_match, lets, where, rewrite)
        self.names(rule)
        if isinstance(doc, KernelDoc):
            from mlirules.language.checks.kernel import kernel_variants  # it uses this module

            rule.variants = kernel_variants(self, rule, doc)
        self.tests(doc)
        return rule

    def has_root(self, rule: Rule) -> bool:
        """Whether the match's last line was read and is an op equation."""
        return bool(rule.match) and rule.root.line.key == len(rule.doc.match) - 1

    def type_decl(self, line: Line, decl: ast.TypeDecl) -> None:
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

    def ops_of(self, line: Line, call: ast.Call) -> None:
        if "." not in call.fn:
            self.fault(
                line,
                call,
                "not-an-op",
                f"{call.fn!r} is not an op",
                "an op's name holds its dialect: torch.aten.mm",
            )
            return
        self.op_name(line, call.fn, call.pos)
        for arg in call.args:
            for inner in arg.items if isinstance(arg, ast.ListExpr) else (arg,):
                if isinstance(inner, ast.Call):
                    self.ops_of(line, inner)

    def op_name(self, line: Line, name: str, pos: int) -> None:
        if self.ops is None:
            return
        known, near = self.ops(name)
        if not known:
            self.fault(
                line,
                ast.Node(pos, pos + len(name)),
                "unknown-op",
                f"the installed compiler has no op {name!r}",
                self.near(name, near),
            )

    # -- names

    def names(self, rule: Rule) -> None:
        bound = self.match_names(rule)
        self.declared(rule, bound)
        symbols: dict[str, Line] = dict(bound)
        local = set(_targets(rule)) - set(bound)
        for name, (line, decl) in rule.types.items():
            # The types of the rewrite's own names bind nothing: they use what is bound.
            if name not in local:
                for symbol in decl.symbols():
                    symbols.setdefault(symbol, line)
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
        self.rewrite(rule, scope)
        for n, op in enumerate(rule.doc.commutative):
            if op not in rule.op_names and not self.unread & set(op.split(".")):
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

    def rewrite(self, rule: Rule, scope: set[str]) -> None:
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
                        self.bad_operand(line, item, bound)
            elif isinstance(arg, ast.Pack):
                if arg.id:
                    bound.setdefault(arg.id, line)
                    used.add(arg.id)
                if arg is not call.args[-1]:
                    self.fault(line, arg, "match", "a pack of operands stands last")
            elif not isinstance(arg, (ast.Literal, ast.Wildcard)):
                self.bad_operand(line, arg, bound)
        for _, value in call.attrs:
            if isinstance(value, ast.Name):
                bound.setdefault(value.id, line)

    def bad_operand(self, line: Line, node: ast.Expr, bound: dict[str, Line]) -> None:
        for name in _index_names(node):
            bound.setdefault(name, line)
        self.fault(
            line,
            node,
            "match",
            "an operand is a name, a constant, a list, an op, or _",
            "compute with it in `let:` or test it in `where:`",
        )

    def statement(
        self, line: Line, statement: ast.Statement | BodyText, scope: set[str], roots: set[str]
    ) -> None:
        match statement:
            case BodyText(text=text):
                self.body(line, text, scope, roots)
            case ast.OpEquation(call=call):
                self.op_name(line, call.fn, call.pos)
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

    def body(self, line: Line, text: str, scope: set[str], roots: set[str]) -> None:
        for opened, message, hint in unbalanced(text):
            self.fault(line, ast.Node(opened, opened + 1), "syntax", message, hint)
        plain = blanked(text)
        for found in re.finditer(r"\$", plain):
            self.dollar(line, text, found.start(), scope | roots)
        own = set(_BODY_DEFINED.findall(plain))
        for args in re.finditer(r"\^\w+\s*\(([^()]*)\)", plain):
            own |= set(re.findall(r"%([A-Za-z_]\w*)\s*:", args.group(1)))
        for found in re.finditer(r"%([A-Za-z_]\w*)", plain):
            name = found.group(1)
            if name in own or name in scope or name in self.unread:
                continue
            self.fault(
                line,
                ast.Node(*found.span()),
                "unbound-name",
                f"%{name} is neither defined in this body nor a value of the match",
                self.near(name, own | scope),
            )
        for found in _BODY_OP.finditer(plain):
            self.op_name(line, found.group(1), found.start(1))

    def dollar(self, line: Line, text: str, at: int, scope: set[str]) -> None:
        """Check one ``$name`` or ``$(expression)`` of a body."""
        found = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)").match(text, at)
        if found:
            self.expression(
                line, ast.Name(found.start(1), found.end(), found.group(1)), scope, runtime=False
            )
            return
        found = re.compile(r"\$\(([^()]*(?:\([^()]*\)[^()]*)*)\)").match(text, at)
        if not found:
            self.fault(
                line,
                ast.Node(at, at + 1),
                "syntax",
                "a lone '$'",
                "write $name or $(expression), with brackets nested at most once",
            )
            return
        start = found.start(1)
        shifted = Text(
            found.group(1),
            line.text.source,
            line.text.line,
            line.text.column,
            places=_shifted(line.text, start, found.end(1)),
        )
        inner = Line(line.section, line.key, shifted)
        expr = self.parsed(inner, parse_expression)
        if expr is not None:
            self.expression(inner, expr, scope, runtime=False)

    def expression(self, line: Line, expr: ast.Expr, scope: set[str], *, runtime: bool) -> None:
        for node in ast.walk_expression(expr):
            if isinstance(node, (ast.Name, ast.Pack)) and node.id:
                if node.id in scope or node.id in ELEMENT_TYPES or node.id in self.unread:
                    continue
                hint = self.near(node.id, scope)
                if node.id in FUNCTIONS:
                    hint = f"{node.id} is a function: {FUNCTIONS[node.id].example}"
                elif node.id.lower() in ("true", "false", "none", "null"):
                    hint = "the words are true, false and none"
                self.fault(
                    line,
                    ast.Node(node.pos, node.pos + len(node.id)),
                    "unbound-name",
                    f"{node.id!r} stands nowhere in the match",
                    hint,
                )
            elif isinstance(node, ast.Wildcard) and not runtime:
                self.fault(line, node, "syntax", "'_' has no value here")
            elif isinstance(node, ast.Call) and "." not in node.fn:
                self.function(line, node, scope, runtime=runtime)
            elif isinstance(node, ast.Call) and not runtime:
                head = ast.Node(node.pos, node.pos + len(node.fn))
                self.fault(
                    line,
                    head,
                    "syntax",
                    f"the op {node.fn} cannot stand in a condition",
                    "match it in `match:`",
                )

    def function(self, line: Line, node: ast.Call, scope: set[str], *, runtime: bool) -> None:
        head = ast.Node(node.pos, node.pos + len(node.fn))
        known = {*FUNCTIONS, *(RUNTIME_FUNCTIONS if runtime else ("wide",))}
        # A cast: f32(x), T(x). A function stays one where a symbol has its name (`dim(x, dim)`).
        if node.fn in ELEMENT_TYPES or (node.fn in scope and node.fn not in known):
            if not runtime:
                self.fault(
                    line,
                    head,
                    "syntax",
                    f"{node.fn!r} is not a function",
                    "compare types with ==: T == f32",
                )
            return
        if node.fn not in known:
            if node.fn in RUNTIME_FUNCTIONS:
                self.fault(
                    line,
                    head,
                    "unknown-function",
                    f"{node.fn!r} computes at run time: it cannot stand in a condition",
                    "only functions of types and constants can",
                )
                return
            self.fault(
                line,
                head,
                "unknown-function",
                f"unknown function {node.fn!r}",
                self.near(node.fn, known) or "see the list in docs/notation.md",
            )
            return
        if any(isinstance(a, ast.Pack) for a in node.args):
            return  # as many values as the pack holds
        ranges = []
        function = FUNCTIONS.get(node.fn)
        if function is not None:
            ranges.append(function.arity)
        if node.fn in RUNTIME_ARITY and (runtime or function is None):
            ranges.append(RUNTIME_ARITY[node.fn])
        if not ranges or any(low <= len(node.args) <= high for low, high in ranges):
            return
        low, high = ranges[-1]
        takes = f"{low} value" + "s" * (low != 1) if low == high else f"{low} to {high} values"
        self.fault(
            line,
            node,
            "arity",
            f"{node.fn} takes {takes}, not {len(node.args)}",
            f"for example {function.example}" if function else "",
        )

    def tests(self, doc: RuleDoc) -> None:
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
        if not negative:
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
        if test.unchanged is not None and test.because is not None and test.because not in lines:
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


# What may refuse a program: where the line of a `because:` stands.
_SECTIONS = ("types", "match", "let", "where", "rewrite")

# What defines a value in a body: `%x =`, `%x:2 =`, `%x, %y =`, `(%x: f32, %y: f32)`.
_BODY_DEFINED = re.compile(r"%([A-Za-z_]\w*)(?=(?::\d+)?\s*(?:,\s*%\w+(?::\d+)?\s*)*=|:)")
_BODY_OP = re.compile(
    r"^[ \t]*(?:%[^=\n]*=[ \t]*)?\"?([a-z_][a-z0-9_]*(?:\.[A-Za-z_0-9]+)+)", re.MULTILINE
)
_CLOSES = {")": "(", "]": "[", "}": "{"}


def blanked(text: str) -> str:
    """MLIR text with strings and comments blanked out, character for character."""
    return re.sub(
        r'"(?:[^"\\\n]|\\.)*"|//[^\n]*',
        lambda m: '"' + " " * (len(m[0]) - 2) + '"' if m[0].startswith('"') else " " * len(m[0]),
        text,
    )


def unbalanced(text: str) -> Iterable[tuple[int, str, str]]:
    """Brackets and quotes of MLIR text that do not pair up: (offset, message, suggestion)."""
    plain = blanked(text)
    for row in re.finditer(r"[^\n]+", plain):
        if row.group().count('"') % 2:
            at = row.start() + row.group().rindex('"')
            yield at, "this quote is not closed", 'strings end in the line they start in, with "'
            return
    stack: list[tuple[str, int]] = []
    for found in re.finditer(r"[()\[\]{}]", plain):
        char = found.group()
        if char in "([{":
            stack.append((char, found.start()))
        elif not stack:
            yield found.start(), f"{char!r} closes nothing", ""
            return
        elif stack[-1][0] != _CLOSES[char]:
            opened, _ = stack[-1]
            yield found.start(), f"{char!r} stands where {opened!r} should be closed", ""
            return
        else:
            stack.pop()
    for char, at in stack:
        yield at, f"{char!r} is not closed", ""


def _shifted(text: Text, start: int, end: int) -> tuple[int, ...]:
    """The places of part of a text."""
    if text.places is not None:
        return text.places[start : end + 1]
    source = text.source
    first = sum(len(row) + 1 for row in source.text.split("\n")[: text.line - 1]) + text.column - 1
    return tuple(range(first + start, first + end + 1))


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
    """Names that multiply a loop index in an equation to find: numbers of the op."""
    out: set[str] = set()
    for node in ast.walk_expression(equation.value):
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
        {
            str(folder.relative_to(LIBRARY))
            for p in LIBRARY.rglob("*.yaml")
            for folder in p.parents
            if LIBRARY in folder.parents
        }
    )
    raise MlirulesError(
        Fault(
            Span(str(path)),
            "no-rules",
            "no such rule file, folder or shipped rule set",
            did_you_mean(str(path), known) or "shipped: " + ", ".join(known),
        )
    )


def holds_config(file: Path) -> bool:
    """Whether a rule file says that it holds a config rule; told without reading it as YAML."""
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            head = opened.read(8192)
    except OSError:
        return False
    return re.search(r"^kind:[ \t]*config[ \t]*$", head, re.MULTILINE) is not None


def join(members: dict[str, R], rule: R, file: Path) -> list[Fault]:
    """Add a rule to a set, by name; a second one of that name in another file is a fault."""
    first = members.get(rule.name)
    if first is not None:
        if Path(first.path) == file:
            return []  # the file was named twice
        return [duplicate(rule, first.path)]
    rule.order = len(members)
    rule.origin = str(origin_of(file.parent) / file.stem)
    members[rule.name] = rule
    return []


def duplicate(rule: InFile, path: str) -> Fault:
    """The fault of a rule whose name another one, in the file ``path``, has already."""
    return Fault(
        rule.span,
        "duplicate-rule",
        f"a rule named {rule.name!r} already stands in {path}",
        "give it a name of its own",
    )


def origin_of(folder: Path) -> Path:
    """The path of a folder below the shipped library, or as it is given."""
    try:
        return folder.resolve().relative_to(LIBRARY)
    except ValueError:
        return folder


def no_rules(paths: Iterable[str | Path]) -> MlirulesError:
    """The fault of rule sets in which there is no rule."""
    return MlirulesError.at(
        ", ".join(map(str, paths)),
        "holds no rule file",
        code="no-rules",
        suggestion="rule files end in .yaml",
    )


def load_rules(paths: Iterable[str | Path], *, ops: OpOracle | None = None) -> list[Rule]:
    """Read rule sets in order. Raises :class:`MlirulesError` with the faults of all files."""
    members: dict[str, Rule] = {}
    faults: list[Fault] = []
    for path in paths:
        files = rule_files(path)
        for file in files:
            try:
                source = load_yaml(file)
                if kind_of(source) == "config" and len(files) > 1:
                    continue  # a folder may hold both
                rule = rule_of(source, ops=ops)
            except MlirulesError as error:
                faults.extend(error.faults)
                continue
            faults += join(members, rule, file)
    if faults:
        raise MlirulesError(faults)
    if not members:
        raise no_rules(paths)
    return list(members.values())
