"""Types of tensors: what the bindings say of them, and what stands in their text alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlirules.drivers.apply.placing import signless
from mlirules.drivers.apply.programs import shared_context
from mlirules.drivers.iree import irtypes
from mlirules.drivers.iree.bindings import ir
from mlirules.drivers.measure import numerics, opcost
from mlirules.generator.lowering.values import tensor_of_type
from mlirules.language.typetexts import (
    TensorType,
    builtin_type,
    torch_kinds,
    torch_type,
    without_sizes,
)
from mlirules.language.values import DType, Tensor

ROOT = Path(__file__).parents[1]
TENSORS = {
    "tensor<f32>": TensorType((), "f32"),
    "tensor<2x?xbf16>": TensorType((2, None), "bf16"),
    "tensor<?x0xcomplex<f32>>": TensorType((None, 0), "complex<f32>"),
    "tensor<4xf8E4M3FNUZ>": TensorType((4,), "f8E4M3FNUZ"),
    "!torch.vtensor<[],si64>": TensorType((), "si64", torch=True),
    "!torch.vtensor<[2,?],complex<f64>>": TensorType((2, None), "complex<f64>", torch=True),
}
#: Types that say no sizes, or are no tensor's.
OTHERS = (
    "tensor<*xf32>",
    "tensor<4xf32, 1 : i64>",
    "memref<4xf32>",
    "vector<4xf32>",
    "f32",
    "!torch.vtensor<*,f32>",
    "!torch.vtensor",
    "!torch.tensor<[2],f32>",
    "!torch.list<vtensor<[2],f32>>",
    "!torch.int",
    "!iree_tensor_ext.dispatch.tensor<readonly:tensor<4xf32>>",
)


def parsed(text: str) -> ir.Type:
    return ir.Type.parse(text, shared_context())


@pytest.mark.parametrize("text", [*TENSORS, *OTHERS])
def test_bindings_and_text_say_the_same(text: str) -> None:
    wanted = TENSORS.get(text)
    assert (torch_type(text) or builtin_type(text)) == wanted
    assert irtypes.tensor_type(parsed(text)) == wanted
    assert irtypes.tensor(parsed(text)) == tensor_of_type("", text)
    assert wanted is None or str(wanted) == text == str(parsed(text))


@pytest.mark.parametrize(
    ("inner", "outer", "within", "meets"),
    [
        ("tensor<2x3xf32>", "tensor<2x?xf32>", True, True),
        ("tensor<2x?xf32>", "tensor<2x3xf32>", False, True),
        ("tensor<2x3xf32>", "tensor<2x4xf32>", False, False),
        ("tensor<2x3xf32>", "tensor<2x3xf16>", False, False),
        ("tensor<2x3xf32>", "tensor<?xf32>", False, False),
    ],
)
def test_types_within_others(inner: str, outer: str, within: bool, meets: bool) -> None:
    a, b = builtin_type(inner), builtin_type(outer)
    assert a is not None
    assert b is not None
    assert (a.within(b), a.meets(b), b.meets(a)) == (within, meets, meets)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("!torch.int", ("int",)),
        ("!torch.vtensor<[2,3],f32>", ("vtensor",)),
        ("!torch.list<int>", ("list", "int")),
        ("!torch.list<vtensor<[2],f32>>", ("list", "vtensor")),
        ("!torch.optional<list<int>>", ("optional", "list", "int")),
        ("tensor<4xf32>", ()),
        ("!torch_c.tensor", ()),
    ],
)
def test_kinds_of_torch(text: str, kinds: tuple[str, ...]) -> None:
    assert torch_kinds(text) == kinds


def test_values_and_variables() -> None:
    values = ["tensor<4xf32>", "tensor<*xf32>", "!torch.vtensor", "!torch.vtensor<[2],f32>"]
    variables = ["!torch.tensor", "!torch.tensor<[2],f32>", "!torch.list<tensor>"]
    neither = ["!torch.list<vtensor>", "!torch.int", "memref<4xf32>", "f32"]
    every = [*values, *variables, *neither]
    assert [t for t in every if irtypes.is_value_tensor(parsed(t))] == values
    assert [t for t in every if irtypes.is_torch_variable(parsed(t))] == variables
    assert [t for t in every if irtypes.is_torch(parsed(t))] == [t for t in every if "!torch." in t]


@pytest.mark.parametrize(
    ("text", "bits"),
    [("i1", 1), ("ui8", 8), ("bf16", 16), ("f8E4M3FN", 8), ("index", 64), ("complex<f32>", 64)],
)
def test_bits_of_elements(text: str, bits: int) -> None:
    assert irtypes.bits(parsed(text)) == bits


def test_no_bits_of_what_is_no_number() -> None:
    with pytest.raises(TypeError, match="memref<4xf32> is no number"):
        irtypes.bits(parsed("memref<4xf32>"))


@pytest.mark.parametrize(
    ("element", "bytes_"), [("f8E4M3FN", 4), ("i1", 4), ("bf16", 8), ("complex64", 32)]
)
def test_bytes_of_a_tensor_of_torch(element: str, bytes_: int) -> None:
    assert opcost._bytes(Tensor("x", (4,), DType(element), True)) == bytes_


@pytest.mark.parametrize("held", ["tensor<4x?xf32>", "tensor<4xcomplex<f32>>"])
def test_what_a_dispatch_is_bound_to(held: str) -> None:
    bound = parsed(f"!iree_tensor_ext.dispatch.tensor<readonly:{held}>")
    assert irtypes.bound(bound) == parsed(held)
    assert irtypes.bound(parsed(held)) is None


def test_sizes_that_are_not_known() -> None:
    known = ["tensor<4xf32>", "!torch.vtensor<[4],f32>", "!torch.int"]
    unknown = [
        "tensor<?xf32>",
        "!torch.vtensor<[?],f32>",
        "!torch.vtensor<*,f32>",
        "!torch.list<vtensor<[2,?],f32>>",
    ]
    every = [*known, *unknown]
    assert [t for t in every if irtypes.of_unknown_size(parsed(t))] == unknown


def test_a_program_without_its_sizes() -> None:
    text, types = without_sizes("%r = op %a : tensor<4x?xf32> -> tensor<i32>")
    assert text == "%r = op %a : tensor<?x?xf32> -> tensor<i32>"
    assert types == [TensorType((4, None), "f32"), TensorType((), "i32")]


def test_arguments_of_a_program() -> None:
    text = """
    func.func private @other(tensor<9xf32>)
    func.func @main(%a: tensor<2x?xf32>, %b: !torch.vtensor<[3],si64>, %c: !torch.float,
        %d: !torch.list<int>) { return }
    """
    arguments = [([2, None], "f32"), ([3], "si64"), ([], "f64")]
    assert numerics.signature(text) == ("main", arguments)
    assert numerics.functions(text) == {"main": arguments}


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("dense<[1, -2]> : tensor<2xsi64>", "dense<[1, -2]> : tensor<2xi64>"),
        ("dense<7> : tensor<ui8>", "dense<7> : tensor<i8>"),
        ("dense<1.000000e+00> : tensor<2xf32>", "dense<1.000000e+00> : tensor<2xf32>"),
        ("3 : si64", "3 : si64"),
    ],
)
def test_constants_without_signs(text: str, plain: str) -> None:
    assert str(signless(ir.Attribute.parse(text, shared_context()))) == plain


def test_bytes_beside_a_program_have_their_signs_there() -> None:
    attribute = ir.Attribute.parse("dense_resource<a> : tensor<2xsi64>", shared_context())
    with pytest.raises(ValueError, match="a resource of signed integers"):
        signless(attribute)


#: Modules whose business is the text of programs, and of types that have no bindings.
TEXTS = {
    "src/mlirules/language/typetexts.py": "the one reader of types' texts",
    "drivers/pipelines/cost.py": "renames constants in a text: their names have no binding",
    "drivers/iree/program.py": "looks for a word in a whole signature",
    "drivers/irdiff/graph.py": "compares printed types",
    "drivers/quality/synthesis.py": "takes types out of a program's text",
}
_READING = ("startswith", "removeprefix", "partition", "split")


def _read_as_text(tree: ast.Module) -> Iterator[int]:
    """The lines that search the text of a type: by a pattern, or by how ``str(x.type)`` begins."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        on = ast.unparse(node.func.value)
        if (
            on == "re"
            and node.args
            and re.search(r"\b[a-z]*tensor<|!torch", ast.unparse(node.args[0]))
        ):
            yield node.lineno
        if node.func.attr in _READING and re.fullmatch(r"str\(\w*(?:\.type|type_)\)", on):
            yield node.lineno


def test_types_are_not_read_as_text() -> None:
    files = [p for f in ("drivers", "generator", "src/mlirules") for p in (ROOT / f).rglob("*.py")]
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in files
        if str(path.relative_to(ROOT)) not in TEXTS
        for line in _read_as_text(ast.parse(path.read_text()))
    }
    assert not found, f"ask drivers.iree.irtypes: {sorted(found)}"


def test_reading_as_text_is_found() -> None:
    text = 're.search(r"tensor<(.*)>", x)\nstr(v.type).startswith("tensor")\nstr(v).startswith("a")'
    assert list(_read_as_text(ast.parse(text))) == [1, 2]
