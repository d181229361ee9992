"""Index equations in `match`: one computation, however it is spelt."""

from __future__ import annotations

import pytest

from mlirules.drivers.iree import compiler
from mlirules.drivers.match import indexing
from mlirules.language.notation import ast
from mlirules.language.notation.parser import parse_statement

MATMUL = "c[m, n] += a[m, k] * b[k, n]"


def program(op: str, *, element: str = "f32", init: str = "0.0", b: str = "8x16") -> str:
    arguments = f"%x: tensor<4x8x{element}>, %y: tensor<{b}x{element}>"
    return f"""func.func @f({arguments}) -> tensor<4x16xf32> {{
      %z = arith.constant {init} : f32
      %e = tensor.empty() : tensor<4x16xf32>
      %f = linalg.fill ins(%z : f32) outs(%e : tensor<4x16xf32>) -> tensor<4x16xf32>
      {op}
      return %c : tensor<4x16xf32>
    }}"""


def generic(maps: str, body: str, *, element: str = "f32", b: str = "8x16") -> str:
    iterators = {"(m, n, k)": "p p r", "(k, n, m)": "r p p"}[maps.split(" ->")[0]]
    spelt = ", ".join('"parallel"' if i == "p" else '"reduction"' for i in iterators.split())
    loop = maps.split(" ->")[0]
    accesses = maps.split(" -> ")[1].split(" ; ")
    listed = ", ".join(f"affine_map<{loop} -> {a}>" for a in accesses)
    return f"""%c = linalg.generic {{indexing_maps = [{listed}], iterator_types = [{spelt}]}}
        ins(%x, %y : tensor<4x8x{element}>, tensor<{b}x{element}>) outs(%f : tensor<4x16xf32>) {{
        ^bb0(%p: {element}, %q: {element}, %acc: f32):
          {body}
          linalg.yield %s : f32
        }} -> tensor<4x16xf32>"""


def found(equation: str, text: str) -> indexing.Found | indexing.Miss:
    statement = parse_statement(equation)
    assert isinstance(statement, ast.IndexEquation)
    module = compiler.parse(text, "program")
    block = module.body.operations[0].regions[0].blocks[0]
    op = list(block.operations)[-2].operation
    result = indexing.match_equation(statement, op)
    if isinstance(result, indexing.Found):
        arguments = list(block.arguments)
        return indexing.Found(
            {n: arguments.index(v) for n, v in result.inputs.items()}, result.symbols, None
        )
    return result


PLAIN = "(m, n, k) -> (m, k) ; (k, n) ; (m, n)"
RENAMED = "(k, n, m) -> (m, k) ; (k, n) ; (m, n)"
MUL_ADD = "%m = arith.mulf %p, %q : f32\n %s = arith.addf %acc, %m : f32"
COMMUTED = "%m = arith.mulf %q, %p : f32\n %s = arith.addf %m, %acc : f32"
EXTENDED = (
    "%u = arith.extf %p : f16 to f32\n %v = arith.extf %q : f16 to f32\n"
    "%m = arith.mulf %u, %v : f32\n %s = arith.addf %acc, %m : f32"
)
NAMED = (
    "%c = linalg.matmul ins(%x, %y : tensor<4x8xf32>, tensor<8x16xf32>) "
    "outs(%f : tensor<4x16xf32>) -> tensor<4x16xf32>"
)


@pytest.mark.parametrize(
    "text",
    [
        program(NAMED),
        program(generic(PLAIN, MUL_ADD)),
        program(generic(RENAMED, MUL_ADD)),
        program(generic(PLAIN, COMMUTED)),
        program(generic(RENAMED, COMMUTED)),
        program(generic(PLAIN, EXTENDED, element="f16"), element="f16"),
    ],
    ids=["named", "generic", "renamed", "commuted", "renamed-commuted", "extended"],
)
def test_a_matmul_is_found_in_every_spelling(text: str) -> None:
    result = found(MATMUL, text)
    assert isinstance(result, indexing.Found), result
    assert result.inputs == {"a": 0, "b": 1}


def test_a_transposed_operand_is_another_equation() -> None:
    text = program(generic("(m, n, k) -> (m, k) ; (n, k) ; (m, n)", MUL_ADD, b="16x8"), b="16x8")
    assert isinstance(found(MATMUL, text), indexing.Miss)
    assert isinstance(found("c[m, n] += a[m, k] * b[n, k]", text), indexing.Found)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (program(NAMED, init="1.0"), "identity"),
        (program(generic(PLAIN, MUL_ADD.replace("mulf", "addf"))), "body"),
        (program(generic(PLAIN, MUL_ADD.replace("addf %acc", "maximumf %acc"))), "reduce with"),
        (program(generic(PLAIN, "%s = arith.mulf %p, %q : f32")), "reduce with"),
    ],
    ids=["another-start", "another-product", "another-reduction", "no-reduction"],
)
def test_other_computations_are_refused_with_the_reason(text: str, why: str) -> None:
    result = found(MATMUL, text)
    assert isinstance(result, indexing.Miss)
    assert why in result.message


def test_strides_of_a_window_are_bound() -> None:
    text = """func.func @f(%x: tensor<9xf32>, %w: tensor<3xf32>) -> tensor<4xf32> {
      %z = arith.constant 0.0 : f32
      %e = tensor.empty() : tensor<4xf32>
      %f = linalg.fill ins(%z : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
      %c = linalg.generic {indexing_maps = [affine_map<(i, u) -> (i * 2 + u)>,
        affine_map<(i, u) -> (u)>, affine_map<(i, u) -> (i)>],
        iterator_types = ["parallel", "reduction"]}
        ins(%x, %w : tensor<9xf32>, tensor<3xf32>) outs(%f : tensor<4xf32>) {
        ^bb0(%p: f32, %q: f32, %acc: f32):
          %m = arith.mulf %p, %q : f32
          %s = arith.addf %acc, %m : f32
          linalg.yield %s : f32
      } -> tensor<4xf32>
      return %c : tensor<4xf32>
    }"""
    result = found("y[i] += x[i * s + u] * w[u]", text)
    assert isinstance(result, indexing.Found), result
    assert result.symbols == {"s": 2}
    assert isinstance(found("y[i] += x[i * 3 + u] * w[u]", text), indexing.Miss)


def test_elementwise_of_any_rank() -> None:
    text = """func.func @f(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
      %e = tensor.empty() : tensor<4x8xf32>
      %c = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>,
        affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
        ins(%x : tensor<4x8xf32>) outs(%e : tensor<4x8xf32>) {
        ^bb0(%p: f32, %o: f32):
          %z = arith.constant 0.0 : f32
          %s = arith.maximumf %z, %p : f32
          linalg.yield %s : f32
      } -> tensor<4x8xf32>
      return %c : tensor<4x8xf32>
    }"""
    assert isinstance(found("y[...] = max(x[...], 0)", text), indexing.Found)
    assert isinstance(found("y[...] = max(x[...], 1)", text), indexing.Miss)
    assert isinstance(found("y[...] = min(x[...], 0)", text), indexing.Miss)


SQUARES = """func.func @f(%x: tensor<4xf32>, %e: tensor<4xf32>) -> tensor<4xf32> {
  %y = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]} ins(%x, %x : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %s = arith.mulf %p, %q : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  return %y : tensor<4xf32>
}"""  # noqa: E501


def test_one_value_may_be_two_operands() -> None:
    assert not isinstance(found("y[i] = x[i] * x[i]", SQUARES), indexing.Miss)
    two = SQUARES.replace("%e: tensor<4xf32>)", "%e: tensor<4xf32>, %z: tensor<4xf32>)")
    assert isinstance(
        found("y[i] = x[i] * x[i]", two.replace("ins(%x, %x", "ins(%x, %z")), indexing.Miss
    )


def test_a_reduce_is_a_structured_op() -> None:
    text = """func.func @f(%x: tensor<4x8xf32>) -> tensor<4xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %y = linalg.reduce { arith.addf } ins(%x : tensor<4x8xf32>) outs(%f : tensor<4xf32>) dimensions = [1]
  return %y : tensor<4xf32>
}"""  # noqa: E501
    assert not isinstance(found("y[i] += x[i, j]", text), indexing.Miss)
    assert isinstance(found("y[j] += x[i, j]", text), indexing.Miss)


def test_a_function_without_a_name_is_what_the_body_computes() -> None:
    got = found("y[i] = F(x[i])", SQUARES.replace("%p, %q : f32\n", "%p, %p : f32\n"))
    assert isinstance(got, indexing.Found), got
    function = got.symbols["F"]
    assert function.inputs == ("f32",)
    assert [text.split('"')[1] for text, _ in function.steps] == ["arith.mulf"]
    copy = SQUARES.replace("linalg.yield %s", "linalg.yield %p")
    assert isinstance(found("y[i] = F(x[i])", copy), indexing.Miss)
