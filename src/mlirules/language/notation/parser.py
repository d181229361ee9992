"""Parser of the notation: a hand-written lexer and a precedence parser.

Nothing is evaluated here. Every fault carries the offset it stands at, so that the caller can map
it to ``file:line:col``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from mlirules.language.faults import did_you_mean
from mlirules.language.notation import ast

MAX_LENGTH = 4000
MAX_NESTING = 60
MAX_CHAIN = 100  # operators in a row, as in a + b + c

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<comment>\#[^\n]*)
  | (?P<number>\d+\.\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+
      |0x[0-9a-fA-F]+|\d+)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_0-9][A-Za-z0-9_]*)*)
  | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
  | (?P<punct>\.\.\.|==|!=|<=|>=|\+=|\*=|-=|//|\*\*|[-+*/%()\[\]{},=<>:?|!])
    """,
    re.VERBOSE,
)

_GLUED = re.compile(r"[A-Z](x[A-Z]|x[a-z]+\d+)+$")  # MxKxf32, for M x K x f32

_LARGEST = float(1 << 1000)  # far beyond any dim, and ints stay comparable with floats

_REDUCERS = {"max", "min", "and", "or", "xor"}
REDUCTION_OPS = ("=", "+=", "*=", "max=", "min=", "and=", "or=", "xor=")

SCALAR_KINDS = ("int", "float", "bool", "number", "str", "none", "device", "any", "generator")

ELEMENT_TYPES = (
    "f16",
    "bf16",
    "f32",
    "f64",
    "f8E4M3FN",
    "f8E5M2",
    "f8E4M3FNUZ",
    "f8E5M2FNUZ",
    "si4",
    "si8",
    "si16",
    "si32",
    "si64",
    "ui4",
    "ui8",
    "ui16",
    "ui32",
    "ui64",
    "i1",
    "i8",
    "i16",
    "i32",
    "i64",
    "index",
    "complex32",
    "complex64",
    "complex128",
)


class NotationError(Exception):
    """A fault in a text of the notation; ``pos`` and ``length`` are in characters."""

    def __init__(self, message: str, pos: int, length: int = 1, suggestion: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.pos = pos
        self.length = max(1, length)
        self.suggestion = suggestion


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    pos: int

    @property
    def end(self) -> int:
        return self.pos + len(self.text)


_INSTEAD = {
    "&": "write 'and'",
    "$": "'$' stands only in a `body:`",
    ";": "one equation a list item",
    "^": "powers are pow(a, b) in an equation",
    "≤": "write <=",
    "≥": "write >=",
    "≠": "write !=",
    "\u00d7": "write * in an expression, x between dims",
    "·": "write *",
    "\u2212": "write -",
    "\u201c": "use plain quotes",
    "\u2018": "use plain quotes",
}


def _unexpected(text: str, pos: int) -> NotationError:
    if text[pos] in "\"'":
        return NotationError("this quote is not closed", pos, len(text) - pos)
    return NotationError(
        f"unexpected character {text[pos]!r}", pos, suggestion=_INSTEAD.get(text[pos], "")
    )


def _tokenize(text: str) -> list[_Token]:
    if len(text) > MAX_LENGTH:
        raise NotationError(f"longer than {MAX_LENGTH} characters", 0)
    tokens: list[_Token] = []
    pos = 0
    while pos < len(text):
        found = _TOKEN.match(text, pos)
        if not found:
            raise _unexpected(text, pos)
        kind = found.lastgroup or ""
        if kind not in ("space", "comment"):
            tokens.append(_Token(kind, found.group(), pos))
        pos = found.end()
    tokens.append(_Token("end", "", len(text)))
    return tokens


# Loosest first. Comparisons do not chain.
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("or",),
    ("and",),
    ("==", "!=", "<=", ">=", "<", ">", "in", "not in"),
    ("+", "-"),
    ("*", "/", "//", "%"),
)


class _Parser:
    """Parses one text. Use the module's ``parse_*`` functions."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokenize(text)
        self.at = 0
        self.depth = 0

    # -- tokens

    @property
    def tok(self) -> _Token:
        return self.tokens[self.at]

    def peek(self, ahead: int = 1) -> _Token:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def take(self) -> _Token:
        token = self.tok
        if token.kind != "end":
            self.at += 1
        return token

    def accept(self, text: str) -> bool:
        if self.tok.text == text and self.tok.kind in ("punct", "name"):
            self.take()
            return True
        return False

    def expect(self, text: str, where: str) -> _Token:
        if self.tok.text != text or self.tok.kind == "string":
            raise self.error(f"expected {text!r} {where}, found {self.shown()}")
        return self.take()

    def shown(self) -> str:
        return repr(self.tok.text) if self.tok.kind != "end" else "the end"

    def error(self, message: str, token: _Token | None = None, hint: str = "") -> NotationError:
        token = token or self.tok
        return NotationError(message, token.pos, len(token.text), hint)

    def finish(self) -> None:
        if self.tok.kind != "end":
            hint = {
                "=": "compare with ==",
                "**": "powers are pow(a, b) in an equation",
                "|": "write 'or'",
                "!": "write 'not'",
                "?": "conditions are written a if c else b",
                "is": "compare with ==",
            }.get(self.tok.text, "")
            raise self.error(f"unexpected {self.shown()} after a complete statement", hint=hint)

    # -- expressions

    def expression(self) -> ast.Expr:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.error(f"nested more than {MAX_NESTING} levels deep")
        try:
            value = self.level(0)
            if self.tok.kind == "name" and self.tok.text == "if":
                self.take()
                condition = self.level(0)
                self.expect("else", "in 'a if condition else b'")
                otherwise = self.expression()
                return ast.Conditional(value.pos, otherwise.end, condition, value, otherwise)
            return value
        finally:
            self.depth -= 1

    def level(self, n: int) -> ast.Expr:
        if n == len(_LEVELS):
            return self.unary()
        left = self.level(n + 1)
        compared = False
        for _ in range(MAX_CHAIN):
            op = self.tok.text if self.tok.kind in ("punct", "name") else ""
            if op == "not" and self.peek().text == "in":
                op = "not in"
            if op not in _LEVELS[n]:
                return left
            if n == 2 and compared:
                raise self.error("comparisons do not chain", hint="write a < b and b < c")
            compared = True
            self.take()
            if op == "not in":
                self.take()
            right = self.level(n + 1)
            left = ast.Binary(left.pos, right.end, op, left, right)
        raise self.error(f"more than {MAX_CHAIN} operators in a row")

    def unary(self) -> ast.Expr:
        token = self.tok
        if token.kind == "punct" and token.text == "-":
            self.take()
            self.depth += 1
            if self.depth > MAX_NESTING:
                raise self.error(f"nested more than {MAX_NESTING} levels deep")
            operand = self.unary()
            self.depth -= 1
            value = operand.value if isinstance(operand, ast.Literal) else None
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return ast.Literal(token.pos, operand.end, -value)
            return ast.Unary(token.pos, operand.end, "-", operand)
        if token.kind == "name" and token.text == "not":
            self.take()
            # `not` binds looser than a comparison, as in Python.
            self.depth += 1
            if self.depth > MAX_NESTING:
                raise self.error(f"nested more than {MAX_NESTING} levels deep")
            operand = self.level(2)
            self.depth -= 1
            return ast.Unary(token.pos, operand.end, "not", operand)
        return self.postfix()

    def postfix(self) -> ast.Expr:
        value = self.primary()
        for _ in range(MAX_CHAIN):
            if self.tok.text != "[" or self.tok.kind != "punct":
                return value
            self.take()
            items = self.items("]")
            end = self.expect("]", "to close the indices").end
            value = ast.Access(value.pos, end, value, items)
        raise self.error(f"more than {MAX_CHAIN} indices in a row")

    def items(self, close: str) -> tuple[ast.Expr, ...]:
        out: list[ast.Expr] = []
        while not (self.tok.text == close and self.tok.kind == "punct"):
            out.append(self.expression())
            if not self.accept(","):
                break
        return tuple(out)

    def primary(self) -> ast.Expr:
        token = self.take()
        if token.kind == "number":
            number = _number(token)
            if abs(number) > _LARGEST or math.isinf(number):
                raise self.error("the number is too large", token)
            return ast.Literal(token.pos, token.end, number)
        if token.kind == "string":
            body = token.text[1:-1]
            return ast.Literal(token.pos, token.end, re.sub(r"\\(.)", r"\1", body))
        if token.kind == "name":
            constant = {"true": True, "false": False, "none": None}
            if token.text in constant:
                return ast.Literal(token.pos, token.end, constant[token.text])
            if token.text in ("True", "False", "None"):
                raise self.error(
                    f"{token.text!r} is Python's spelling", token, f"write {token.text.lower()}"
                )
            if token.text == "_":
                return ast.Wildcard(token.pos, token.end)
            if token.text in ("if", "else", "in", "and", "or", "for"):
                raise self.error(f"unexpected {token.text!r}", token)
            attrs: tuple[tuple[str, ast.Expr], ...] = ()
            if self.tok.text == "{" and "." in token.text:
                attrs = self.attributes()
            if self.tok.text == "(" and self.tok.kind == "punct":
                self.take()
                args = self.items(")")
                end = self.expect(")", f"to close {token.text}(...)").end
                if self.tok.text == "{" and "." in token.text:
                    attrs += self.attributes()
                    end = self.tokens[self.at - 1].end
                return ast.Call(token.pos, end, token.text, args, attrs)
            if attrs:
                raise self.error(f"expected '(' after {token.text}{{...}}")
            if self.tok.text == "..." and self.tok.kind == "punct":
                end = self.take().end
                return ast.Pack(token.pos, end, token.text)
            return ast.Name(token.pos, token.end, token.text)
        if token.text == "(":
            value = self.expression()
            self.expect(")", "to close the parenthesis")
            return value
        if token.text == "[":
            items = self.items("]")
            end = self.expect("]", "to close the list").end
            return ast.ListExpr(token.pos, end, items)
        if token.text == "...":
            return ast.Pack(token.pos, token.end, None)
        if token.kind == "end":
            raise self.error("the text ends where a value is expected", token)
        hint = {"!": "write 'not'", "%": "values have no % outside a `body:`"}.get(token.text, "")
        raise self.error(f"unexpected {token.text!r} where a value is expected", token, hint)

    def attributes(self) -> tuple[tuple[str, ast.Expr], ...]:
        self.expect("{", "to open attributes")
        out: list[tuple[str, ast.Expr]] = []
        while self.tok.text != "}":
            name = self.take()
            if name.kind != "name":
                raise self.error("expected an attribute's name", name)
            self.expect("=", f"after the attribute {name.text}")
            out.append((name.text, self.expression()))
            if not self.accept(","):
                break
        self.expect("}", "to close the attributes")
        return tuple(out)

    # -- statements

    def statement(self) -> ast.Statement:
        start = self.tok
        if start.kind == "name" and self.peek().text == "[" and self.peek().kind == "punct":
            return self.index_equation()
        names: list[str | None] = []
        mark = self.at
        parenthesised = self.accept("(")
        pack = False
        while self.tok.kind == "name":
            token = self.take()
            names.append(None if token.text == "_" else token.text)
            pack = self.accept("...")
            if pack or not self.accept(","):
                break
        if parenthesised and not self.accept(")"):
            names = []
        if not names or not (self.tok.text == "=" and self.tok.kind == "punct"):
            self.at = mark
            names, pack = [], False
        else:
            self.take()
        value = self.expression()
        if self.tok.kind == "punct" and self.tok.text in ("=", "+=", "*=", "-="):
            raise self.error(
                "the left side of an equation is a name, names, or name[indices]", start
            )
        self.finish()
        for name in names:
            if name and "." in name:
                raise self.error(f"{name!r} cannot be bound: it holds a dot", start)
        several = pack or len(names) > 1
        if isinstance(value, ast.Call) and (
            "." in value.fn or (several and ast.names_op(value.fn))
        ):
            return ast.OpEquation(start.pos, value.end, tuple(names), value, pack)
        if pack:
            raise self.error("results are packed only in a match, where an op makes them", start)
        if isinstance(value, ast.Name) and value.id == "erase" and not names:
            return ast.Erase(start.pos, value.end)
        if len(names) == 1 and names[0]:
            return ast.Assignment(start.pos, value.end, names[0], value)
        if not names:
            raise self.error(
                "not an equation", start, "write result = dialect.op(operands) or c[i] = a[i]"
            )
        raise self.error("several results need an op on the right side", start)

    def index_equation(self) -> ast.Statement:
        target = self.take()
        self.take()
        indices = self.items("]")
        self.expect("]", "to close the indices")
        op = self.tok.text
        if self.tok.kind == "name" and op in _REDUCERS:
            self.take()
            self.expect("=", f"after {op!r} in a reduction")
            op += "="
        elif op in ("=", "+=", "*="):
            self.take()
        else:
            raise self.error(
                f"expected =, +=, *=, max=, min=, and=, or=, xor= after the target, "
                f"found {self.shown()}"
            )
        value = self.expression()
        bounds: list[ast.Bound] = []
        if self.tok.kind == "name" and self.tok.text == "for":
            self.take()
            while True:
                name = self.take()
                pack = name.kind == "punct" and name.text == "..."
                if name.kind != "name" and not pack:
                    raise self.error("expected a loop index after 'for'", name)
                pack = self.accept("...") or pack
                self.expect("<", f"after the loop index {name.text}")
                limit = self.level(3)
                bounds.append(ast.Bound(name.pos, limit.end, name.text, pack, limit))
                if not self.accept(","):
                    break
        self.finish()
        made = ast.IndexEquation(
            target.pos, self.tok.end, target.text, indices, op, value, tuple(bounds)
        )
        if isinstance(value, ast.Call) and "." in value.fn:
            # Once for every item of a list.
            each = ast.with_variable(made)
            if each is made:
                raise self.error(
                    f"{value.fn} stands for the items of a list: one index, =, and no range",
                    target,
                    f"write {target.text}[i] = {value.fn}(xs[i])",
                )
            return each
        return made

    # -- types

    def type_decl(self) -> ast.TypeDecl:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise self.error(f"nested more than {MAX_NESTING} levels deep")
        try:
            return self.one_type()
        finally:
            self.depth -= 1

    def one_type(self) -> ast.TypeDecl:
        start = self.tok
        optional = self.accept("optional")
        constant = self.accept("constant")
        token = self.take()
        if token.kind != "name":
            raise self.error("expected a type", token, "for example vtensor<M x K x T>")
        if token.text in SCALAR_KINDS:
            return ast.TypeDecl(
                start.pos, token.end, token.text, constant=constant, optional=optional
            )
        if token.text == "list":
            self.expect("<", "after 'list'")
            of = self.type_decl()
            end = self.expect(">", "to close list<...>").end
            return ast.TypeDecl(start.pos, end, "list", constant=constant, optional=optional, of=of)
        if token.text in ("vtensor", "tensor"):
            if not self.accept("<"):
                return ast.TypeDecl(
                    start.pos, token.end, token.text, constant=constant, optional=optional
                )
            dims, element = self.shape()
            end = self.expect(">", f"to close {token.text}<...>").end
            return ast.TypeDecl(
                start.pos, end, token.text, dims, element, constant=constant, optional=optional
            )
        known = ("vtensor", "tensor", "list", *SCALAR_KINDS)
        hint = did_you_mean(token.text, known)
        hint = hint or "known: vtensor<...>, tensor<...>, list<...>, " + ", ".join(SCALAR_KINDS)
        raise self.error(f"unknown type {token.text!r}", token, hint)

    def shape(self) -> tuple[tuple[ast.DimDecl, ...] | None, str | None]:
        """``M x 3 x S... x T``: dims, then the element type."""
        parts: list[_Token | ast.DimDecl] = []
        while True:
            computed = self.computed_dim()
            if computed is not None:
                parts.append(computed)
                if self.accept("x"):
                    continue
                break
            token = self.take()
            if token.kind == "punct" and token.text == "?":
                parts.append(ast.DimDecl(token.pos, token.end, None))
            elif token.kind == "punct" and token.text == "...":
                parts.append(ast.DimDecl(token.pos, token.end, None, pack=True))
            elif token.kind == "number":
                value = _number(token)
                if not isinstance(value, int):
                    raise self.error("a dim is a whole number, a name, '?' or a pack", token)
                parts.append(ast.DimDecl(token.pos, token.end, value))
            elif token.kind == "name":
                if self.accept("..."):
                    parts.append(ast.DimDecl(token.pos, token.end, token.text, pack=True))
                else:
                    if _GLUED.match(token.text):
                        raise self.error(
                            f"{token.text!r} is one name",
                            token,
                            "put spaces around the x: " + token.text.replace("x", " x "),
                        )
                    parts.append(token)
            else:
                raise self.error(
                    "expected a dim or an element type", token, "for example vtensor<M x K x T>"
                )
            if self.tok.kind == "name" and self.tok.text == "x":
                self.take()
                continue
            if self.tok.kind == "name" and self.tok.text.startswith("x"):
                raise self.error(
                    f"unexpected {self.tok.text!r}", hint="put spaces around the x: M x K x T"
                )
            break
        last = parts.pop()
        if isinstance(last, ast.DimDecl):
            raise NotationError(
                "a tensor type ends with its element type",
                last.pos,
                last.end - last.pos,
                "for example vtensor<M x K x T> or vtensor<... x f32>",
            )
        dims: list[ast.DimDecl] = []
        for part in parts:
            if isinstance(part, ast.DimDecl):
                dims.append(part)
            elif part.text == "_":
                dims.append(ast.DimDecl(part.pos, part.end, None))
            else:
                dims.append(ast.DimDecl(part.pos, part.end, part.text))
        if sum(d.pack for d in dims) > 1:
            second = [d for d in dims if d.pack][1]
            raise NotationError(
                "at most one pack in a type",
                second.pos,
                second.end - second.pos,
                "name the dims of one of them",
            )
        return tuple(dims), None if last.text == "_" else last.text

    def computed_dim(self) -> ast.DimDecl | None:
        """A dim that is an expression (``2*N``, ``(H + 2*p) // s``, ``ceildiv(N, 4)``), or None."""
        start, after = self.tok, self.peek()
        opens = start.kind == "punct" and start.text in ("(", "-")
        if not opens and not (
            start.kind in ("name", "number")
            and after.kind == "punct"
            and after.text in ("+", "-", "*", "/", "//", "%", "(", "[")
        ):
            return None
        value = self.level(3)
        negative = isinstance(value, ast.Literal) and type(value.value) is int and value.value < 0
        if negative or isinstance(value, ast.Unary):
            raise self.error("a dim is at least 0", start)
        for node in ast.walk_expression(value):
            token = _Token("", self.text[node.pos : node.end], node.pos)
            if isinstance(node, ast.Name) and _GLUED.match(node.id):
                hint = "put spaces around the x: " + node.id.replace("x", " x ")
                raise self.error(f"{node.id!r} is one name", token, hint)
            if isinstance(node, ast.Binary) and node.op == "/":
                raise self.error("a dim is a whole number", token, "divide with //")
            if isinstance(node, ast.Literal) and type(node.value) is not int:
                raise self.error("a dim is computed from whole numbers and names", token)
        end = self.tokens[self.at - 1].end
        return ast.DimDecl(start.pos, end, None, expr=value)


def _number(token: _Token) -> int | float:
    text = token.text
    if text.startswith("0x"):
        return int(text, 16)
    if re.fullmatch(r"\d+", text):
        return int(text)
    return float(text)


def parse_statement(text: str) -> ast.Statement:
    """Parse an op equation, index equation or assignment. Raises :class:`NotationError`."""
    return _Parser(text).statement()


def parse_expression(text: str) -> ast.Expr:
    """Parse an expression (a ``where`` predicate or a ``let`` value)."""
    parser = _Parser(text)
    value = parser.expression()
    parser.finish()
    return value


def parse_type(text: str) -> ast.TypeDecl:
    """Parse a declared type."""
    parser = _Parser(text)
    value = parser.type_decl()
    parser.finish()
    return value
