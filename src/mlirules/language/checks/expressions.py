"""Checks of expressions, bodies and functions: what they name is there, as often as it must be."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mlirules.language import functions as scalars
from mlirules.language.builtins import FUNCTIONS
from mlirules.language.checks.checker import Checker
from mlirules.language.notation import ast
from mlirules.language.notation.parser import (
    ELEMENT_TYPES,
    parse_expression,
)
from mlirules.language.rule import (
    Line,
)
from mlirules.language.source import Text

# Functions that compute at run time, each with its fewest and most values. The generator's tables
# say what they become; they import nothing, so that both sides can read them.
RUNTIME_ARITY: dict[str, tuple[int, int]] = {
    **{name: (function.arity, function.arity) for name, function in scalars.SIMPLE.items()},
    **{name: entry[:2] for name, entry in {**scalars.SPECIAL, **scalars.TENSOR}.items()},
}

RUNTIME_FUNCTIONS: frozenset[str] = frozenset(RUNTIME_ARITY)

# What defines a value in a body: `%x =`, `%x:2 =`, `%x, %y =`, `(%x: f32, %y: f32)`.
_BODY_DEFINED = re.compile(r"%([A-Za-z_]\w*)(?=(?::\d+)?\s*(?:,\s*%\w+(?::\d+)?\s*)*=|:)")

_BODY_OP = re.compile(
    r"^[ \t]*(?:%[^=\n]*=[ \t]*)?\"?([a-z_][a-z0-9_]*(?:\.[A-Za-z_0-9]+)+)", re.MULTILINE
)

_CLOSES = {")": "(", "]": "[", "}": "{"}

_ARITHMETIC = frozenset(["+", "-", "*", "/", "//", "%", "**"])


class Expressions(Checker):
    """Checks of what stands on the right of an equation."""

    def ops_of(self, line: Line, call: ast.Call) -> None:
        """Check the op names of a call and of those inside it."""
        if not ast.names_op(call.fn):
            self.fault(
                line,
                call,
                "not-an-op",
                f"{call.fn!r} is not an op",
                "an op's name holds its dialect: torch.aten.mm; a capital letter first stands for "
                "an op of any name: Op(x)",
            )
            return
        if "." in call.fn:
            self.op_name(line, call.fn, call.pos)
        for arg in call.args:
            for inner in arg.items if isinstance(arg, ast.ListExpr) else (arg,):
                if isinstance(inner, ast.Call):
                    self.ops_of(line, inner)

    def op_name(self, line: Line, name: str, pos: int) -> None:
        """Check that the installed compiler has an op."""
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

    def body(self, line: Line, text: str, scope: set[str], roots: set[str]) -> None:
        """Check a raw body: brackets, names, `$` and `%`."""
        for opened, message, hint in unbalanced(text):
            self.fault(line, ast.Node(opened, opened + 1), "syntax", message, hint)
        plain = blanked(text)
        for found in re.finditer(r"\$", plain):
            self.dollar(line, text, found.start(), scope | roots)
        own = set(_BODY_DEFINED.findall(plain))
        # What numbers follow: in rows that stand several times.
        defined = "\n".join(re.findall(r"^([^=\n]*)=", plain, re.MULTILINE))
        stems = set(re.findall(r"%([A-Za-z_]\w*)\$", defined))
        numbered = stems | {re.sub(r"\d+$", "", name) for name in own}
        for args in re.finditer(r"\^\w+\s*\(([^()]*)\)", plain):
            own |= set(re.findall(r"%([A-Za-z_]\w*)\s*:", args.group(1)))
        for found in re.finditer(r"%([A-Za-z_]\w*)", plain):
            name = found.group(1)
            if name in own or name in scope or name in self.unread:
                continue
            counted = plain.startswith("$", found.end())
            if name in numbered if counted else name.rstrip("0123456789") in stems:
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
        self.expression_at(line, found.group(1), found.start(1), scope)

    def expression_at(self, line: Line, source: str, start: int, scope: set[str]) -> None:
        """Check an expression that stands at ``start`` of a body."""
        shifted = Text(
            source,
            line.text.source,
            line.text.line,
            line.text.column,
            places=_shifted(line.text, start, start + len(source)),
        )
        inner = Line(line.section, line.key, shifted)
        expr = self.parsed(inner, parse_expression)
        if expr is not None:
            self.expression(inner, expr, scope, runtime=False)

    def expression(self, line: Line, expr: ast.Expr, scope: set[str], *, runtime: bool) -> None:
        """Check the names and functions of an expression."""
        for node in ast.walk_expression(expr):
            for condition in _conditions(node):
                if _is_number(condition):
                    self.fault(
                        line,
                        condition,
                        "not-a-condition",
                        "a number is neither true nor false",
                        "compare it: > 0, == 0, != 0",
                    )
            if isinstance(node, (ast.Name, ast.Pack)) and node.id:
                if node.id in scope or node.id in ELEMENT_TYPES or node.id in self.unread:
                    continue
                if "." in node.id and not runtime:
                    self.op_name(line, node.id, node.pos)
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
        """Check that a function is known and takes as many values."""
        if node.fn in ("fixed", "embedded") and line.section != "kernel":
            self.fault(
                line,
                ast.Node(node.pos, node.pos + len(node.fn)),
                "syntax",
                f"{node.fn} is asked in the variants of a kernel alone",
                "match the constant: w = torch.vtensor.literal()",
            )
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
                self.near(node.fn, {*known, *scope}) or "see the list in docs/notation.md",
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


def _conditions(node: ast.Expr) -> tuple[ast.Expr, ...]:
    """What must be true or false in an expression, of what stands directly in it."""
    if isinstance(node, ast.Conditional):
        return (node.condition,)
    if isinstance(node, ast.Unary) and node.op == "not":
        return (node.operand,)
    if isinstance(node, ast.Binary) and node.op in ("and", "or"):
        return (node.left, node.right)
    return ()


def _is_number(node: ast.Expr) -> bool:
    """Whether an expression can be nothing but a number."""
    if isinstance(node, ast.Literal):
        return isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
    if isinstance(node, ast.Unary):
        return node.op == "-"
    return isinstance(node, ast.Binary) and node.op in _ARITHMETIC
