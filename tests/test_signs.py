"""An equation that says one op does not match another: signedness, rounding, NaN, widening.

Every op of the compiler's arith and math dialects stands in a body of its own. Each is run on edge
values, and an equation may match only those that give what the op that it says gives.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  (bfloat16 for numpy)
import numpy as np
import pytest
from iree.compiler.dialects import _arith_ops_gen, _math_ops_gen

from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.run import Options
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.match import indexing
from mlirules.language.faults import MlirulesError
from mlirules.language.loader import load_rule
from mlirules.language.notation import ast
from mlirules.language.notation.parser import parse_statement
from mlirules.language.signs import Said

Signature = tuple[tuple[str, ...], str]

#: What no equation of one result over numbers can say, and why.
LEFT_OUT = {
    "arith.constant": "no operands",
    "arith.addui_extended": "two results",
    "arith.subui_extended": "two results",
    "arith.mulsi_extended": "two results",
    "arith.mului_extended": "two results",
    "math.sincos": "two results",
    "arith.scaling_extf": "types of four and eight bits",
    "arith.scaling_truncf": "types of four and eight bits",
    "arith.index_cast": "of loop indices, which are never negative: both casts agree",
    "arith.index_castui": "of loop indices, which are never negative: both casts agree",
    "arith.convertf": "between types of one width",
}

SIGNATURES: list[Signature] = [
    (("f32",), "f32"),
    (("f32", "f32"), "f32"),
    (("f32", "f32", "f32"), "f32"),
    (("f32", "i32"), "f32"),
    (("f32",), "i1"),
    (("f32", "f32"), "i1"),
    (("i8",), "i8"),
    (("i8", "i8"), "i8"),
    (("i8", "i8"), "i1"),
    (("i1", "i1"), "i1"),
    (("i8",), "i32"),
    (("i32",), "i8"),
    (("i1",), "i32"),
    (("i8",), "f32"),
    (("i1",), "f32"),
    (("f32",), "i8"),
    (("f16",), "f32"),
    (("f32",), "f16"),
    (("i1", "f32", "f32"), "f32"),
    (("f32",), "i32"),
]

FLOATS = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.3, 1.0, -1.0, 2.0, 3.75, 100.0]
FLOATS += [float("nan"), float("inf"), float("-inf")]
INTS = [-128, -100, -7, -3, -1, 0, 1, 2, 3, 5, 7, 100, 127]
NARROW = [-100.0, -2.5, -0.5, 0.0, 0.5, 1.0, 2.5, 100.0]  # what fits an i8, and what differs as ui8


@dataclass(frozen=True)
class Variant:
    """An op over one signature, with its predicate."""

    name: str
    attributes: str = ""

    def __str__(self) -> str:
        return self.name + self.attributes


def all_ops() -> list[str]:
    modules = (_arith_ops_gen, _math_ops_gen)
    found = {getattr(v, "OPERATION_NAME", "") for m in modules for v in vars(m).values()}
    return sorted(n for n in found if n.startswith(("arith.", "math.")))


def predicates(name: str) -> list[str]:
    count = {"arith.cmpf": 16, "arith.cmpi": 10}.get(name)
    return [""] if count is None else [f" {{predicate = {n} : i64}}" for n in range(count)]


def generic(signature: Signature, *ops: Variant) -> str:
    """A function that applies ops to the elements of vectors, with a result for each."""
    operands, result = signature
    vectors = [f"tensor<?x{t}>" for t in operands]
    out, count = f"tensor<?x{result}>", len(ops)
    arguments = ", ".join(f"%a{i}: {t}" for i, t in enumerate(vectors))
    inner = [f"%x{i}: {t}" for i, t in enumerate(operands)]
    inner += [f"%o{n}: {result}" for n in range(count)]
    maps = ", ".join(["affine_map<(i) -> (i)>"] * (len(vectors) + count))
    values = ", ".join(f"%x{i}" for i in range(len(operands)))
    types = f"({', '.join(operands)}) -> {result}"
    body = [f'%v{n} = "{v.name}"({values}){v.attributes} : {types}' for n, v in enumerate(ops)]
    outs = ", ".join([out] * count)
    outs = f"({outs})" if count > 1 else outs
    made = "%r" if count == 1 else ", ".join(f"%r#{n}" for n in range(count))
    lines = "\n        ".join(body)
    return f"""func.func @main({arguments}) -> {outs} {{
      %c0 = arith.constant 0 : index
      %n = tensor.dim %a0, %c0 : {vectors[0]}
      %e = tensor.empty(%n) : {out}
      %r{f":{count}" if count > 1 else ""} = linalg.generic {{indexing_maps = [{maps}],
        iterator_types = ["parallel"]}}
        ins({", ".join(f"%a{i}" for i in range(len(operands)))} : {", ".join(vectors)})
        outs({", ".join(["%e"] * count)} : {", ".join([out] * count)}) {{
      ^bb0({", ".join(inner)}):
        {lines}
        linalg.yield {", ".join(f"%v{n}" for n in range(count))} : {", ".join([result] * count)}
      }} -> {outs}
      return {made} : {", ".join([out] * count)}
    }}"""


@functools.cache
def context() -> Any:
    return compiler.context()


@functools.cache
def parsed(signature: Signature, variant: Variant) -> Any:
    return compiler.parse(generic(signature, variant), "op", context())


@functools.cache
def variants(signature: Signature) -> tuple[Variant, ...]:
    """The ops that are valid over a signature, as the compiler's verifier says."""
    found = []
    for name in all_ops():
        for attributes in predicates(name):
            variant = Variant(name, attributes)
            try:
                parsed(signature, variant)
            except MlirulesError:
                continue
            found.append(variant)
    return tuple(found)


def inputs(signature: Signature) -> list[Any]:
    """Edge values in all combinations, without those that trap."""
    operands, result = signature
    columns: list[list[Any]] = []
    for operand in operands:
        if operand == "i1":
            columns.append([False, True])
        elif operand.startswith("i"):
            columns.append(INTS)
        else:
            columns.append(NARROW if result.startswith("i") and result != "i1" else FLOATS)
    rows = list(itertools.product(*columns))
    if operands == ("i8", "i8"):
        rows = [(a, b) for a, b in rows if b != 0 and (a, b) != (-128, -1)]
    kinds = {"i1": np.bool_, "i8": np.int8, "i32": np.int32, "f16": np.float16, "f32": np.float32}
    return [np.array([r[i] for r in rows], kinds[t]) for i, t in enumerate(operands)]


#: Ops that the compiler does not lower on the cpu: taken to differ from all others.
NOT_LOWERED = frozenset(
    f"math.{name}"
    for name in ("ipowi", "fpowi", "cbrt", "clampf", "erfc", "isinf", "isnormal", "log10")
) | {"arith.flush_denormals"}


@functools.cache
def results(signature: Signature) -> dict[Variant, bytes]:
    """What each op of a signature gives on the edge values."""
    run = [v for v in variants(signature) if v.name not in NOT_LOWERED]
    cpu = Target.parse("cpu")
    binary = compiler.compile_module(generic(signature, *run), cpu, timeout=300)
    out = {}
    for variant, array in zip(run, runtime.run(binary, inputs(signature), cpu), strict=True):
        if array.dtype.kind == "f":
            array = np.where(np.isnan(array), np.asarray("nan", array.dtype), array)
        out[variant] = array.tobytes()
    return out


UNARY = ["acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp"]
UNARY += ["exp2", "expm1", "floor", "log", "log1p", "log2", "rsqrt", "sin", "sinh", "sqrt", "tan"]
UNARY += ["tanh", "trunc"]

F, S, U, O = "f32", "si8", "ui8", "i8"  # noqa: E741


def cmp(name: str, number: int) -> str:
    return f"{name} {{predicate = {number} : i64}}"


#: Equations, the types that they are over (operands, result), and the op that they say.
SAYS: list[tuple[str, tuple[str, ...], str]] = [
    *((f"{f}(a[i])", (F, F), f"math.{f}") for f in UNARY),
    ("round(a[i])", (F, F), "math.roundeven"),
    ("abs(a[i])", (F, F), "math.absf"),
    ("-a[i]", (F, F), "arith.negf"),
    ("a[i] + b[i]", (F, F, F), "arith.addf"),
    ("a[i] - b[i]", (F, F, F), "arith.subf"),
    ("a[i] * b[i]", (F, F, F), "arith.mulf"),
    ("a[i] / b[i]", (F, F, F), "arith.divf"),
    ("max(a[i], b[i])", (F, F, F), "arith.maximumf"),
    ("min(a[i], b[i])", (F, F, F), "arith.minimumf"),
    ("maxnum(a[i], b[i])", (F, F, F), "arith.maxnumf"),
    ("minnum(a[i], b[i])", (F, F, F), "arith.minnumf"),
    ("rem(a[i], b[i])", (F, F, F), "arith.remf"),
    ("pow(a[i], b[i])", (F, F, F), "math.powf"),
    ("atan2(a[i], b[i])", (F, F, F), "math.atan2"),
    ("copysign(a[i], b[i])", (F, F, F), "math.copysign"),
    ("fma(a[i], b[i], d[i])", (F, F, F, F), "math.fma"),
    ("select(a[i], b[i], d[i])", ("i1", F, F, F), "arith.select"),
    ("isnan(a[i])", (F, "i1"), "math.isnan"),
    ("isinf(a[i])", (F, "i1"), "math.isinf"),
    ("isfinite(a[i])", (F, "i1"), "math.isfinite"),
    ("a[i] == b[i]", (F, F, "i1"), cmp("arith.cmpf", 1)),
    ("a[i] > b[i]", (F, F, "i1"), cmp("arith.cmpf", 2)),
    ("a[i] >= b[i]", (F, F, "i1"), cmp("arith.cmpf", 3)),
    ("a[i] < b[i]", (F, F, "i1"), cmp("arith.cmpf", 4)),
    ("a[i] <= b[i]", (F, F, "i1"), cmp("arith.cmpf", 5)),
    ("a[i] != b[i]", (F, F, "i1"), cmp("arith.cmpf", 13)),
    ("abs(a[i])", (S, S), "math.absi"),
    *(
        (f"a[i] {op} b[i]", (t, t, t), f"arith.{name}")
        for op, name in (("+", "addi"), ("-", "subi"), ("*", "muli"))
        for t in (S, U)
    ),
    ("bitand(a[i], b[i])", (S, S, S), "arith.andi"),
    ("bitor(a[i], b[i])", (U, U, U), "arith.ori"),
    ("bitxor(a[i], b[i])", (S, S, S), "arith.xori"),
    ("a[i] // b[i]", (S, S, S), "arith.floordivsi"),
    ("a[i] // b[i]", (U, U, U), "arith.divui"),
    ("a[i] % b[i]", (U, U, U), "arith.remui"),
    ("truncdiv(a[i], b[i])", (S, S, S), "arith.divsi"),
    ("truncdiv(a[i], b[i])", (U, U, U), "arith.divui"),
    ("rem(a[i], b[i])", (S, S, S), "arith.remsi"),
    ("rem(a[i], b[i])", (U, U, U), "arith.remui"),
    ("max(a[i], b[i])", (S, S, S), "arith.maxsi"),
    ("max(a[i], b[i])", (U, U, U), "arith.maxui"),
    ("min(a[i], b[i])", (S, S, S), "arith.minsi"),
    ("min(a[i], b[i])", (U, U, U), "arith.minui"),
    ("shl(a[i], b[i])", (S, S, S), "arith.shli"),
    ("shr(a[i], b[i])", (S, S, S), "arith.shrsi"),
    ("shr(a[i], b[i])", (U, U, U), "arith.shrui"),
    ("a[i] == b[i]", (S, S, "i1"), cmp("arith.cmpi", 0)),
    ("a[i] != b[i]", (U, U, "i1"), cmp("arith.cmpi", 1)),
    *(
        (f"a[i] {op} b[i]", (t, t, "i1"), cmp("arith.cmpi", first + n))
        for t, first in ((S, 2), (U, 6))
        for n, op in enumerate(("<", "<=", ">", ">="))
    ),
    ("a[i] and b[i]", ("i1", "i1", "i1"), "arith.andi"),
    ("a[i] or b[i]", ("i1", "i1", "i1"), "arith.ori"),
    ("a[i] != b[i]", ("i1", "i1", "i1"), cmp("arith.cmpi", 1)),
    ("max(a[i], b[i])", ("i1", "i1", "i1"), "arith.ori"),
    *((f"{e}", (S, "si32"), "arith.extsi") for e in ("cast(a[i], si32)", "a[i]")),
    *((f"{e}", (U, "si32"), "arith.extui") for e in ("cast(a[i], si32)", "a[i]")),
    ("cast(a[i], si32)", ("i1", "si32"), "arith.extui"),
    ("cast(a[i], f32)", ("i1", F), "arith.uitofp"),
    ("cast(a[i], si8)", ("si32", S), "arith.trunci"),
    *((f"{e}", (S, F), "arith.sitofp") for e in ("f32(a[i])", "a[i]")),
    *((f"{e}", (U, F), "arith.uitofp") for e in ("f32(a[i])", "a[i]")),
    ("cast(a[i], si8)", (F, S), "arith.fptosi"),
    ("cast(a[i], ui8)", (F, U), "arith.fptoui"),
    ("bitcast(a[i], si32)", (F, "si32"), "arith.bitcast"),
    *((f"{e}", ("f16", F), "arith.extf") for e in ("cast(a[i], f32)", "a[i]")),
    ("cast(a[i], f16)", (F, "f16"), "arith.truncf"),
]

#: Equations that do not say whether integers are signed.
UNSAID = [
    *((f"{f}(a[i], b[i])", (O, O, O)) for f in ("max", "min", "truncdiv", "rem", "shr")),
    ("a[i] // b[i]", (O, O, O)),
    *((f"a[i] {op} b[i]", (O, O, "i1")) for op in ("<", "<=", ">", ">=")),
    ("cast(a[i], si32)", (O, "si32")),
    ("a[i]", (O, "si32")),
    ("cast(a[i], f32)", (O, F)),
    ("cast(a[i], i8)", (F, O)),
]


def signless(element: str) -> str:
    return element.replace("si", "i").replace("ui", "i")


def signature_of(types: tuple[str, ...]) -> Signature:
    return tuple(map(signless, types[:-1])), signless(types[-1])


def matches(value: str, types: tuple[str, ...], variant: Variant) -> bool:
    equation = parse_statement(f"y[i] = {value}")
    assert isinstance(equation, ast.IndexEquation)
    module = parsed(signature_of(types), variant)
    operations = list(module.body.operations[0].regions[0].blocks[0].operations)
    said = Said(
        dict(zip(("a", "b", "d")[: len(types) - 1], types, strict=False)) | {"y": types[-1]}
    )
    found = indexing.match_equation(equation, operations[-2].operation, said=said)
    return isinstance(found, indexing.Found)


def pairs() -> list[Any]:
    made = []
    for value, types, op in SAYS:
        for other in variants(signature_of(types)):
            name = f"{value} {types[0]}->{types[-1]} / {other}"
            made.append(pytest.param(value, types, op, other, id=name.replace(" : i64", "")))
    return made


def test_every_op_of_the_dialects_is_judged() -> None:
    judged = {v.name for s in SIGNATURES for v in variants(s)}
    assert set(all_ops()) == judged | set(LEFT_OUT)
    said = {signature_of(types) for _, types, _ in SAYS}
    assert said <= set(SIGNATURES)


@pytest.mark.parametrize(("value", "types", "op", "other"), pairs())
def test_an_equation_matches_what_it_says_alone(
    value: str, types: tuple[str, ...], op: str, other: Variant
) -> None:
    if str(other) == op:
        assert matches(value, types, other)
        return
    said_in_vain = op.split(" ")[0] in NOT_LOWERED
    given = {} if said_in_vain else results(signature_of(types))
    (said,) = (v for v in variants(signature_of(types)) if str(v) == op)
    if said in given and given.get(other) == given[said]:
        return  # the two agree: either may stand for the other
    assert not matches(value, types, other)


@pytest.mark.parametrize(("value", "types"), UNSAID)
def test_where_the_sign_is_not_said_neither_matches(value: str, types: tuple[str, ...]) -> None:
    signature = signature_of(types)
    assert len(variants(signature)) > 1
    assert not [str(v) for v in variants(signature) if matches(value, types, v)]


def product(body: str, element: str, out: str, zero: str) -> Any:
    """A product of matrices whose body is given."""
    maps = "(m, n, k) -> (m, k)", "(m, n, k) -> (k, n)", "(m, n, k) -> (m, n)"
    left, right = f"tensor<4x8x{element}>", f"tensor<8x5x{element}>"
    return compiler.parse(
        f"""func.func @main(%x: {left}, %y: {right}) -> tensor<4x5x{out}> {{
      %z = arith.constant {zero} : {out}
      %e = tensor.empty() : tensor<4x5x{out}>
      %f = linalg.fill ins(%z : {out}) outs(%e : tensor<4x5x{out}>) -> tensor<4x5x{out}>
      %r = linalg.generic {{indexing_maps = [{", ".join(f"affine_map<{m}>" for m in maps)}],
        iterator_types = ["parallel", "parallel", "reduction"]}}
        ins(%x, %y : {left}, {right}) outs(%f : tensor<4x5x{out}>) {{
      ^bb0(%p: {element}, %q: {element}, %acc: {out}):
        {body}
        linalg.yield %s : {out}
      }} -> tensor<4x5x{out}>
      return %r : tensor<4x5x{out}>
    }}""",
        "product",
        context(),
    )


def widened(op: str, element: str, out: str, kind: str) -> str:
    """The factors widened, then multiplied."""
    return (
        f"%u = {op} %p : {element} to {out}\n %v = {op} %q : {element} to {out}\n"
        f"%m = arith.mul{kind} %u, %v : {out}\n %s = arith.add{kind} %acc, %m : {out}"
    )


def afterwards(op: str, element: str, out: str, kind: str) -> str:
    """The factors multiplied, then widened."""
    return (
        f"%m = arith.mul{kind} %p, %q : {element}\n %w = {op} %m : {element} to {out}\n"
        f"%s = arith.add{kind} %acc, %w : {out}"
    )


PLAIN, FIRST = "a[m, k] * b[k, n]", "cast(a[m, k], {0}) * cast(b[k, n], {0})"
LAST = "cast(a[m, k] * b[k, n], {0})"
#: Element and result type as said, the conversion, its kind: which of the equations match the body
#: with widened factors, and which the one that widens the product.
PLACES = [
    ("f16", "f32", "arith.extf", "f", {PLAIN, FIRST}, {LAST}),
    ("bf16", "f32", "arith.extf", "f", {PLAIN, FIRST}, {LAST}),
    ("si8", "si32", "arith.extsi", "i", {PLAIN, FIRST}, {LAST}),
    ("ui8", "si32", "arith.extui", "i", {PLAIN, FIRST}, {LAST}),
    ("si8", "si32", "arith.extui", "i", set(), set()),
    ("ui8", "si32", "arith.extsi", "i", set(), set()),
    ("i8", "i32", "arith.extsi", "i", set(), set()),
]


@pytest.mark.parametrize(("element", "out", "op", "kind", "before", "after"), PLACES)
def test_the_place_of_a_widening_is_part_of_an_equation(
    element: str, out: str, op: str, kind: str, before: set[str], after: set[str]
) -> None:
    said = Said({"a": element, "b": element, "c": out})
    types = signless(element), signless(out)
    zero = "0.0" if kind == "f" else "0"
    for body, wanted in ((widened, before), (afterwards, after)):
        module = product(body(op, *types, kind), *types, zero)
        root = list(module.body.operations[0].regions[0].blocks[0].operations)[-2].operation
        matching = set()
        for value in (PLAIN, FIRST, LAST):
            equation = parse_statement(f"c[m, n] += {value.format(out)}")
            assert isinstance(equation, ast.IndexEquation)
            if isinstance(indexing.match_equation(equation, root, said=said), indexing.Found):
                matching.add(value)
        assert matching == wanted


def one(value: str, types: dict[str, str], body: str) -> indexing.Found | indexing.Miss:
    """An elementwise equation against a body over %a, %b."""
    a, b, y = (signless(types[n]).replace("T", "i8") for n in "aby")
    same = ", ".join(["affine_map<(i) -> (i)>"] * 3)
    text = f"""func.func @main(%x: tensor<4x{a}>, %y: tensor<4x{b}>) -> tensor<4x{y}> {{
      %e = tensor.empty() : tensor<4x{y}>
      %r = linalg.generic {{indexing_maps = [{same}], iterator_types = ["parallel"]}}
        ins(%x, %y : tensor<4x{a}>, tensor<4x{b}>) outs(%e : tensor<4x{y}>) {{
      ^bb0(%a: {a}, %b: {b}, %o: {y}):
        {body}
        linalg.yield %s : {y}
      }} -> tensor<4x{y}>
      return %r : tensor<4x{y}>
    }}"""
    module = compiler.parse(text, "one", context())
    equation = parse_statement(f"y[i] = {value}")
    assert isinstance(equation, ast.IndexEquation)
    op = list(module.body.operations[0].regions[0].blocks[0].operations)[-2].operation
    return indexing.match_equation(equation, op, said=Said(types))


HALVES = {"a": "f16", "b": "f16", "y": "f32"}
EXT = "arith.extf %{} : f16 to f32"


@pytest.mark.parametrize(
    ("value", "types", "body", "holds"),
    [
        # Widening commutes with a choice, not with a sum.
        (
            "max(a[i], b[i])",
            HALVES,
            "%m = arith.maximumf %a, %b : f16\n %s = arith.extf %m : f16 to f32",
            True,
        ),
        (
            "a[i] + b[i]",
            HALVES,
            "%m = arith.addf %a, %b : f16\n %s = arith.extf %m : f16 to f32",
            False,
        ),
        # What is compared has no type in the result: only what agrees matches.
        (
            "f32(1) if a[i] + b[i] < 1 else f32(0)",
            HALVES,
            "%k = arith.constant 1.0 : f32\n %z = arith.constant 0.0 : f32\n"
            "%u = arith.extf %a : f16 to f32\n %v = arith.extf %b : f16 to f32\n"
            "%m = arith.addf %u, %v : f32\n %c = arith.cmpf olt, %m, %k : f32\n"
            "%s = arith.select %c, %k, %z : f32",
            False,
        ),
        (
            "f32(1) if a[i] < b[i] else f32(0)",
            HALVES,
            "%k = arith.constant 1.0 : f32\n %z = arith.constant 0.0 : f32\n"
            "%u = arith.extf %a : f16 to f32\n %v = arith.extf %b : f16 to f32\n"
            "%c = arith.cmpf olt, %u, %v : f32\n %s = arith.select %c, %k, %z : f32",
            True,
        ),
        # A conversion that rounds, then one that widens, is not one conversion.
        (
            "a[i] + b[i]",
            {"a": "si32", "b": "si32", "y": "f32"},
            "%p = arith.sitofp %a : i32 to f16\n %u = arith.extf %p : f16 to f32\n"
            "%v = arith.sitofp %b : i32 to f32\n %s = arith.addf %u, %v : f32",
            False,
        ),
        # What one name says is held against what the other says.
        (
            "max(a[i], b[i])",
            {"a": "si8", "b": "ui8", "y": "i8"},
            "%s = arith.maxsi %a, %b : i8",
            False,
        ),
        ("max(a[i], b[i])", {"a": "T", "b": "T", "y": "ui8"}, "%s = arith.maxui %a, %b : i8", True),
        # Rounding that is not to the nearest is another conversion.
        (
            "cast(a[i] + b[i], f16)",
            {"a": "f32", "b": "f32", "y": "f16"},
            "%m = arith.addf %a, %b : f32\n %s = arith.truncf %m upward : f32 to f16",
            False,
        ),
        # The sign of a zero, and a number that the type rounds.
        (
            "a[i] + b[i] * 0.1",
            {"a": "f32", "b": "f32", "y": "f32"},
            "%k = arith.constant 0.1 : f32\n %m = arith.mulf %b, %k : f32\n"
            "%s = arith.addf %a, %m : f32",
            True,
        ),
        (
            "a[i] + b[i] + 0",
            {"a": "f32", "b": "f32", "y": "f32"},
            "%k = arith.constant -0.0 : f32\n %m = arith.addf %a, %b : f32\n"
            "%s = arith.addf %m, %k : f32",
            False,
        ),
    ],
)
def test_only_forms_that_agree_match(
    value: str, types: dict[str, str], body: str, holds: bool
) -> None:
    assert isinstance(one(value, types, body), indexing.Found) == holds


RULE = """rule: larger
kind: fusion
summary: A maximum of integers.
reason: To see which maximum is matched.
types: {{a: tensor<N x {0}>, b: tensor<N x {0}>, y: tensor<N x {0}>}}
match: y[i] = max(a[i], b[i])
where: [{1}]
rewrite: y[i] = max(b[i], a[i])
tests:
  - {{name: one, input: "module {{}}", check: "CHECK: module"}}
  - {{name: two, unchanged: "module {{}}"}}
"""


@pytest.mark.parametrize(
    ("element", "where", "wanted"),
    [
        ("si8", "static(a)", ["arith.maxsi"]),
        ("ui8", "static(a)", ["arith.maxui"]),
        ("T", "'T in [si8, si16]'", ["arith.maxsi"]),
        ("T", "static(a)", []),
        ("i8", "static(a)", []),
    ],
)
def test_a_rule_takes_and_writes_the_sign_that_it_says(
    element: str, where: str, wanted: list[str]
) -> None:
    engine = Engine([load_rule("larger.yaml", RULE.format(element, where))], context())
    applied = []
    for op in ("arith.maxsi", "arith.maxui"):
        module = compiler.parse(
            generic((("i8", "i8"), "i8"), Variant(op)).replace("?", "4").replace("(%n)", "()"),
            "program",
            context(),
        )
        if engine.run(module, Options(driver="walk")).total:
            applied.append(op)
            assert str(module).count(op) == 1
    assert applied == wanted
