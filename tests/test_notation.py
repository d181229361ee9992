"""The parser of the notation: every production, its places, and what it refuses."""

import ast as python_ast
import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlirules.language import functions as scalars
from mlirules.language.builtins import FUNCTIONS
from mlirules.language.checks.expressions import RUNTIME_ARITY, RUNTIME_FUNCTIONS
from mlirules.language.evaluate import Evaluator
from mlirules.language.notation import ast
from mlirules.language.notation.ast import walk_expression
from mlirules.language.notation.parser import (
    ELEMENT_TYPES,
    MAX_CHAIN,
    MAX_LENGTH,
    MAX_NESTING,
    REDUCTION_OPS,
    SCALAR_KINDS,
    NotationError,
    parse_expression,
    parse_statement,
    parse_type,
)
from mlirules.language.values import dtype_named


def shown(node: Any) -> str:
    """A tree as text, fully bracketed: what the parser understood, without places."""
    match node:
        case ast.Literal(value=value):
            return "none" if value is None else repr(value)
        case ast.Name(id=name):
            return name
        case ast.Wildcard():
            return "_"
        case ast.Pack(id=name):
            return f"{name or ''}..."
        case ast.ListExpr(items=items):
            return f"[{', '.join(map(shown, items))}]"
        case ast.Call(fn=fn, args=args, attrs=attrs):
            tail = " {" + ", ".join(f"{k} = {shown(v)}" for k, v in attrs) + "}" if attrs else ""
            return f"{fn}({', '.join(map(shown, args))}){tail}"
        case ast.Access(base=base, items=items):
            return f"{shown(base)}[{', '.join(map(shown, items))}]"
        case ast.Unary(op=op, operand=operand):
            return f"({op} {shown(operand)})"
        case ast.Binary(op=op, left=left, right=right):
            return f"({shown(left)} {op} {shown(right)})"
        case ast.Conditional(condition=c, then=a, otherwise=b):
            return f"({shown(a)} if {shown(c)} else {shown(b)})"
        case ast.OpEquation(results=results, call=call):
            return f"{', '.join(r or '_' for r in results)} = {shown(call)}"
        case ast.IndexEquation(target=target, indices=indices, op=op, value=value, bounds=bounds):
            tail = ", ".join(f"{b.id}{'...' if b.pack else ''} < {shown(b.limit)}" for b in bounds)
            written = f"{target}[{', '.join(map(shown, indices))}]"
            return f"{written} {op} {shown(value)}" + (f" for {tail}" if tail else "")
        case ast.Assignment(target=target, value=value):
            return f"{target} := {shown(value)}"
        case ast.TypeDecl():
            return _type(node)
    raise AssertionError(node)


def _type(decl: ast.TypeDecl) -> str:
    words = ["optional"] * decl.optional + ["constant"] * decl.constant
    inner = ""
    if decl.of is not None:
        inner = f"<{_type(decl.of)}>"
    elif decl.dims is not None:
        dims = [
            f"{'?' if d.value is None and not d.pack else d.value or ''}{'...' * d.pack}"
            for d in decl.dims
        ]
        inner = f"<{' x '.join([*dims, decl.element or '_'])}>"
    return " ".join([*words, decl.kind + inner])


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("1", "1"),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("2.", "2.0"),
        ("1e3", "1000.0"),
        ("1.5e-3", "0.0015"),
        ("0x1F", "31"),
        ("-3", "-3"),
        ("- 3.5", "-3.5"),
        ("true", "True"),
        ("false", "False"),
        ("none", "none"),
        ('"a b"', "'a b'"),
        ("'a'", "'a'"),
        (r'"a\"b"', "'a\"b'"),
        ("x", "x"),
        ("_", "_"),
        ("...", "..."),
        ("I...", "I..."),
        ("[]", "[]"),
        ("[a, 1, xs...]", "[a, 1, xs...]"),
        ("[a, b,]", "[a, b]"),
        ("(a)", "a"),
        ("f()", "f()"),
        ("f(a, [b])", "f(a, [b])"),
        ("x[0]", "x[0]"),
        ("x[i, j + 1]", "x[i, (j + 1)]"),
        ("x[...]", "x[...]"),
        ("x[a][b]", "x[a][b]"),
        ("f(x)[0]", "f(x)[0]"),
        ("[1, 2][0]", "[1, 2][0]"),
        ("-x", "(- x)"),
        ("--x", "(- (- x))"),
        ("not a", "(not a)"),
        ("not a == b", "(not (a == b))"),
        ("not not a", "(not (not a))"),
        ("not a and b", "((not a) and b)"),
        ("a or b and c", "(a or (b and c))"),
        ("(a or b) and c", "((a or b) and c)"),
        ("a + b * c", "(a + (b * c))"),
        ("a - b - c", "((a - b) - c)"),
        ("a / b // c % d", "(((a / b) // c) % d)"),
        ("-a * b", "((- a) * b)"),
        ("a + b < c * d", "((a + b) < (c * d))"),
        ("a <= b", "(a <= b)"),
        ("a >= b", "(a >= b)"),
        ("a != b", "(a != b)"),
        ("T in [f16, f32]", "(T in [f16, f32])"),
        ("T not in [f16]", "(T not in [f16])"),
        ("not T in [f16]", "(not (T in [f16]))"),
        ("a == b and c == d", "((a == b) and (c == d))"),
        ("(a < b) == c", "((a < b) == c)"),
        ("a if c else b", "(a if c else b)"),
        ("a if c else b if d else e", "(a if c else (b if d else e))"),
        ("a + 1 if c > 0 else b", "((a + 1) if (c > 0) else b)"),
        ("max(x[i], 0) # relu", "max(x[i], 0)"),
        ("a\n  + b", "(a + b)"),
    ],
)
def test_expressions(text: str, tree: str) -> None:
    assert shown(parse_expression(text)) == tree


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("c = torch.aten.mm(a, b)", "c = torch.aten.mm(a, b)"),
        ("c, d = torch.aten.max.dim(a, 1, true)", "c, d = torch.aten.max.dim(a, 1, True)"),
        ("(c, d) = torch.aten.max.dim(a)", "c, d = torch.aten.max.dim(a)"),
        ("_, d = torch.aten.max.dim(a)", "_, d = torch.aten.max.dim(a)"),
        ("torch.aten.mm(a, b)", " = torch.aten.mm(a, b)"),
        ("c = a.b(x, none, [y, 1])", "c = a.b(x, none, [y, 1])"),
        ("c = a.b(xs...)", "c = a.b(xs...)"),
        ("c = a.b(c.d(x))", "c = a.b(c.d(x))"),
        ("c = a.b(x) {k = 1, l = v}", "c = a.b(x) {k = 1, l = v}"),
        ("c = a.b {k = 1}(x)", "c = a.b(x) {k = 1}"),
        ("c = a.b() {}", "c = a.b()"),
        ("c = a.b._c(x)", "c = a.b._c(x)"),
        ("c[m, n] += a[m, k] * b[k, n]", "c[m, n] += (a[m, k] * b[k, n])"),
        ("y[] = x[i]", "y[] = x[i]"),
        ("y[...] = max(x[...], 0)", "y[...] = max(x[...], 0)"),
        ("y[I..., 0] = x[I..., j]", "y[I..., 0] = x[I..., j]"),
        ("y[i] = x[i*2 + k] for k < K", "y[i] = x[((i * 2) + k)] for k < K"),
        (
            "y[i] += x[i, u] for u < K + 1, U... < kernel",
            "y[i] += x[i, u] for u < (K + 1), U... < kernel",
        ),
        ("y = reshape(x, [2, -1])", "y := reshape(x, [2, -1])"),
        ("y = x", "y := x"),
        ("n = a + b", "n := (a + b)"),
        ("y = a if c else b", "y := (a if c else b)"),
    ],
)
def test_statements(text: str, tree: str) -> None:
    assert shown(parse_statement(text)) == tree


@pytest.mark.parametrize("op", REDUCTION_OPS)
def test_reductions(op: str) -> None:
    statement = parse_statement(f"y[i] {op} x[i, k]")
    assert isinstance(statement, ast.IndexEquation)
    assert statement.op == op


@pytest.mark.parametrize(
    "text",
    [
        "vtensor",
        "vtensor<M x K x T>",
        "vtensor<4 x ? x f32>",
        "vtensor<... x T>",
        "vtensor<S... x N x T>",
        "vtensor<T>",
        "vtensor<M x _>",
        "tensor<M x f32>",
        "list<int>",
        "list<list<int>>",
        "list<vtensor<... x T>>",
        "constant int",
        "optional constant list<int>",
        "optional vtensor<F x T>",
        *SCALAR_KINDS,
    ],
)
def test_types(text: str) -> None:
    assert _type(parse_type(text)) == text


def test_unnamed_dims_and_elements() -> None:
    decl = parse_type("vtensor<_ x ? x _>")
    assert decl.element is None
    assert [d.value for d in decl.dims or ()] == [None, None]


@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_element_types_have_a_value(name: str) -> None:
    assert parse_type(f"tensor<M x {name}>").element == name
    assert str(dtype_named(name)) == name


@pytest.mark.parametrize(
    ("parse", "text", "pos", "message"),
    [
        (parse_expression, "", 0, "the text ends where a value is expected"),
        (parse_expression, "a +", 3, "the text ends where a value is expected"),
        (parse_expression, "a b", 2, "unexpected 'b' after a complete statement"),
        (parse_expression, "a < b < c", 6, "comparisons do not chain"),
        (parse_expression, "a in b in c", 7, "comparisons do not chain"),
        (parse_expression, "(a", 2, "expected ')' to close the parenthesis, found the end"),
        (parse_expression, "[a", 2, "expected ']' to close the list, found the end"),
        (parse_expression, "f(a", 3, "expected ')' to close f(...), found the end"),
        (parse_expression, "x[a", 3, "expected ']' to close the indices, found the end"),
        (parse_expression, "a if b", 6, "expected 'else' in 'a if condition else b'"),
        (parse_expression, "None", 0, "'None' is Python's spelling"),
        (parse_expression, "a == 'b", 5, "this quote is not closed"),
        (parse_expression, "a @ b", 2, "unexpected character '@'"),
        (parse_expression, "1e999", 0, "the number is too large"),
        (parse_expression, "a = b", 2, "unexpected '='"),
        (parse_expression, "'x' ')'", 4, "unexpected"),
        (parse_statement, "a", 0, "not an equation"),
        (parse_statement, "a.b = c", 0, "'a.b' cannot be bound"),
        (parse_statement, "a, b = c", 0, "several results need an op"),
        (parse_statement, "y[i] = x[i] z", 12, "unexpected 'z'"),
        (parse_statement, "y[i] x", 5, "expected =, +=, *="),
        (parse_statement, "y[i] max x", 9, "expected '=' after 'max' in a reduction"),
        (parse_statement, "y[i] = x[i] for", 15, "expected a loop index after 'for'"),
        (parse_statement, "y[i] = x[i] for k", 17, "expected '<' after the loop index k"),
        (parse_statement, "c = a.b {k}(x)", 10, "expected '=' after the attribute k"),
        (parse_statement, "c = a.b {k = 1}", 15, "expected '(' after a.b{...}"),
        (parse_type, "", 0, "expected a type"),
        (parse_type, "foo", 0, "unknown type 'foo'"),
        (parse_type, "vtensor<M x 4>", 12, "a tensor type ends with its element type"),
        (parse_type, "vtensor<4.5 x T>", 8, "a dim is a whole number"),
        (parse_type, "vtensor<4xT>", 9, "unexpected 'xT'"),
        (parse_type, "vtensor<S... x R... x T>", 15, "at most one pack in a type"),
        (parse_type, "list", 4, "expected '<' after 'list'"),
        (parse_type, "int int", 4, "unexpected 'int'"),
    ],
)
def test_refused(parse: Any, text: str, pos: int, message: str) -> None:
    with pytest.raises(NotationError) as caught:
        parse(text)
    assert message in caught.value.message
    assert caught.value.pos == pos
    assert caught.value.length >= 1


def test_limits() -> None:
    parse_expression("(" * (MAX_NESTING - 1) + "a" + ")" * (MAX_NESTING - 1))
    parse_expression("a" + " + a" * (MAX_CHAIN - 1))
    for text in (
        "(" * MAX_NESTING + "a" + ")" * MAX_NESTING,
        "a" + " + a" * MAX_CHAIN,
        "a" + "[0]" * MAX_CHAIN,
        "not " * MAX_NESTING + "a",
        "-" * MAX_NESTING + "a",
        "a if b else " * MAX_NESTING + "a",
        "f(" * MAX_NESTING + "a" + ")" * MAX_NESTING,
        "a" * (MAX_LENGTH + 1),
    ):
        with pytest.raises(NotationError):
            parse_expression(text)


def _nodes(node: Any) -> Iterator[ast.Node]:
    if isinstance(node, ast.Node):
        yield node
        for field in dataclasses.fields(node):
            yield from _nodes(getattr(node, field.name))
    elif isinstance(node, tuple):
        for item in node:
            yield from _nodes(item)


@pytest.mark.parametrize(
    "text",
    [
        "c, _ = torch.aten.foo(a, [x, 1], none, xs...) {k = v}",
        "o[n, f, i] += x[n, i*s + u] * w[f, (u)] if not a in [b, -c] else f(d[0]) for u < K + 1",
        "y = max(a, b) + 2 * (c - 1)",
    ],
)
def test_every_node_knows_its_place(text: str) -> None:
    """The text at a node's place parses to that node again: faults point at what they mean."""
    count = 0
    for node in _nodes(parse_statement(text)):
        assert 0 <= node.pos < node.end <= len(text), node
        if isinstance(node, (ast.Bound, ast.OpEquation, ast.IndexEquation, ast.Assignment)):
            continue
        piece = text[node.pos : node.end]
        opening = piece.count("(") - piece.count(")")  # a place leaves outer brackets out
        again = parse_expression("(" * -opening + piece + ")" * opening)
        assert shown(again) == shown(node), piece
        count += 1
    assert count >= 7


# ---- printing and parsing again --------------------------------------------------------------

_LEAVES = st.sampled_from(["a", "b", "T", "f32", "1", "2.5", "true", "none", "'s'", "I...", "_"])


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.sampled_from(
        ["+", "-", "*", "/", "//", "%", "==", "<", "in", "not in", "and", "or"]
    )
    return st.one_of(
        st.builds("({} {} {})".format, inner, binary, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("(not {})".format, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("f({}, {})".format, inner, inner),
        st.builds("x[{}]".format, inner),
    )


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(st.recursive(_LEAVES, _grown, max_leaves=12))
def test_fully_bracketed_text_keeps_its_meaning(text: str) -> None:
    assert shown(parse_expression(text)) == text.replace("true", "True")


@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(
    st.recursive(
        st.sampled_from(["1", "2", "3", "7"]),
        lambda inner: (
            st.builds(
                "{} {} {}".format,
                inner,
                st.sampled_from(["+", "-", "*", "//", "%"]),
                inner,
            )
            | st.builds("({})".format, inner)
            | st.builds("-{}".format, inner)
        ),
        max_leaves=8,
    )
)
def test_arithmetic_means_what_it_means_in_python(text: str) -> None:
    try:
        wanted = eval(text)
    except ZeroDivisionError:
        return
    assert Evaluator({}).eval(parse_expression(text)) == wanted


# ---- kept in step with the rest --------------------------------------------------------------


def test_runtime_functions_are_those_of_the_generator() -> None:
    lowered = {
        **{name: (f.arity, f.arity) for name, f in scalars.SIMPLE.items()},
        **{name: (low, high) for name, (low, high, _) in scalars.SPECIAL.items()},
        **{name: (low, high) for name, (low, high, _) in scalars.TENSOR.items()},
    }
    assert lowered == RUNTIME_ARITY
    assert frozenset(lowered) == RUNTIME_FUNCTIONS
    # The loader reads the tables: they may not read the loader.
    assert scalars.__file__ is not None
    tree = python_ast.parse(Path(scalars.__file__).read_text(encoding="utf-8"))
    imported = {
        node.module for node in python_ast.walk(tree) if isinstance(node, python_ast.ImportFrom)
    }
    assert not any(str(name).startswith("mlirules") for name in imported)


@pytest.mark.parametrize("name", sorted(RUNTIME_ARITY))
def test_runtime_functions_are_names_of_the_notation(name: str) -> None:
    low, high = RUNTIME_ARITY[name]
    assert 0 < low <= high
    args = ", ".join("abcdefgh"[:low])
    assert shown(parse_expression(f"{name}({args})")) == f"{name}({args})"
    assert name not in ELEMENT_TYPES


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_examples_of_functions_parse(name: str) -> None:
    function = FUNCTIONS[name]
    example = function.example
    tree: Any
    try:
        tree = parse_expression(example)
    except NotationError:
        tree = parse_statement(example)
    calls = [
        node
        for part in _nodes(tree)
        if isinstance(part, ast.Call)
        for node in walk_expression(part)
        if isinstance(node, ast.Call)
    ]
    assert name in {c.fn for c in calls}, example
    low, high = function.arity
    assert low <= high
    for call in calls:
        if call.fn == name and not any(isinstance(a, ast.Pack) for a in call.args):
            assert low <= len(call.args) <= high


def test_parsing_is_deterministic() -> None:
    words = ["a", "(", ")", "[", "]", "+", "==", "in", "not", "if", "else", "1", ",", "f", "="]
    chooser = random.Random(0)
    for _ in range(2000):
        text = " ".join(chooser.choices(words, k=chooser.randrange(1, 12)))
        outcomes = []
        for _ in range(2):
            try:
                outcomes.append(repr(parse_statement(text)))
            except NotationError as error:
                outcomes.append(f"{error.pos}: {error.message}")
        assert outcomes[0] == outcomes[1]
