"""Programs to start a search from: from a rule's types, or from a program that it matches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mlirules.drivers.iree.compiler import Op, ir
from mlirules.drivers.match.values import type_info
from mlirules.generator.programs import Leaf, Program, constant, list_of
from mlirules.language.notation import ast
from mlirules.language.operands import Refused
from mlirules.language.rule import Rule
from mlirules.language.sizes import size as computed_size

ELEMENTS = ("f32", "f64", "f16", "bf16", "si64", "si32", "si8", "ui8", "i1", "complex<f32>")


BUILTIN = ("f32", "f64", "f16", "bf16", "i64", "i32", "i8", "i1")


def initial(rule: Rule, by_result: dict[str, tuple[int, int]]) -> Program:
    """A program of default types. Raises KeyError or ValueError where the types say too little."""
    values: dict[str, Leaf] = {}
    results: dict[str, tuple[Leaf, ...]] = {}
    attributes: dict[str, str] = {}
    dims: dict[str, int] = {}

    def size(symbol: str) -> int:
        return dims.setdefault(symbol, (4, 8, 16, 2, 6, 12, 10, 14)[len(dims) % 8])

    def leaf(decl: ast.TypeDecl) -> Leaf:
        if decl.kind in ("vtensor", "tensor"):
            torch = decl.kind == "vtensor"
            known = ELEMENTS if torch else BUILTIN
            element = decl.element if decl.element is not None and decl.element in known else "f32"
            shape: list[int | None] = []
            for d in decl.dims if decl.dims is not None else ():
                if d.pack:
                    shape += [2]
                elif d.expr is not None:
                    for symbol in d.asked():
                        size(symbol.id)
                    try:
                        shape.append(computed_size(d.expr, dims))
                    except Refused as refused:
                        raise ValueError(refused.message) from None
                else:
                    shape.append(size(d.value) if isinstance(d.value, str) else d.value or 4)
            if decl.dims is None:
                shape = [4, 8]
            return Leaf("tensor", tuple(shape), element, torch)
        if decl.kind == "list":
            assert decl.of is not None
            return list_of((leaf(decl.of), leaf(decl.of)))
        plain: dict[str, Any] = {
            "int": 1,
            "float": 0.5,
            "bool": False,
            "number": 1,
            "str": "none",
            "none": None,
        }
        return constant(plain[decl.kind])

    def operand(path: str, arg: ast.Expr) -> None:
        match arg:
            case ast.Name(id=name):
                if by_result.get(name, (len(rule.match) - 1, 0))[0] == len(rule.match) - 1:
                    values[name] = leaf(rule.types[name][1])
            case ast.Literal(value=value):
                values[path] = constant(value)
            case ast.Call():
                op(path, arg, [None])
            case ast.ListExpr(items=items):
                for i, item in enumerate(items):
                    operand(f"{path}/{i}", item)
                values[f"{path}:list"] = list_of(
                    tuple(
                        values.get(f"{path}/{i}") or values[getattr(item, "id", "")]
                        for i, item in enumerate(items)
                    )
                )
            case _:
                raise ValueError(path)

    def op(path: str, call: ast.Call, names: list[str | None]) -> None:
        for i, arg in enumerate(call.args):
            operand(f"{path}/{i}", arg)
        given = []
        for key, value in call.attrs:
            if not isinstance(value, ast.Literal):
                raise KeyError(key)  # an attribute of any kind: only a program has one
            shown = f'"{value.value}"' if isinstance(value.value, str) else str(value.value).lower()
            given.append(f"{key} = {shown}")
        if given:
            attributes[path] = "{" + ", ".join(given) + "}"
        first = next((v for v in values.values() if v.kind == "tensor"), Leaf("tensor", (4, 8)))
        results[path] = tuple(
            leaf(rule.types[n][1])
            if n in rule.types
            and rule.types[n][1].dims is not None
            and not any(d.pack for d in rule.types[n][1].dims or ())
            else replace(first, element=_element(rule, n, first))
            for n in names
        )

    for n, pattern in enumerate(rule.match):
        if pattern.equation.pack:
            raise ValueError("a pack of results")
        op(str(n), pattern.equation.call, list(pattern.equation.results))
    return Program(values, results, attributes)


def _element(rule: Rule, name: str | None, first: Leaf) -> str:
    element = rule.types[name][1].element if name in rule.types else None
    known = ELEMENTS if first.torch else BUILTIN
    return element if element is not None and element in known else first.element


CONSTANT_OPS = (
    "torch.constant.int",
    "torch.constant.float",
    "torch.constant.bool",
    "torch.constant.str",
    "torch.constant.none",
)


def extracted(
    rule: Rule, by_result: dict[str, tuple[int, int]], root: ir.Operation
) -> Program | None:
    """The ops that a rule matches at ``root``, as a program; None when they are not of its form."""
    values: dict[str, Leaf] = {}
    results: dict[str, tuple[Leaf, ...]] = {}
    attributes: dict[str, str] = {}

    def operand(path: str, arg: ast.Expr, value: ir.Value) -> None:
        owner = None if isinstance(value.owner, ir.Block) else value.owner
        match arg:
            case ast.Name(id=name) if by_result.get(name, (len(rule.match) - 1,))[0] < (
                len(rule.match) - 1
            ):
                number = by_result[name][0]
                op(str(number), rule.match[number].equation.call, owner)
            case ast.Call():
                op(path, arg, owner)
            case ast.ListExpr(items=items):
                if owner is None:
                    raise KeyError(path)
                elements = list(owner.operands)
                for i, item in enumerate(items):
                    if isinstance(item, ast.Pack):
                        values[item.id or f"{path}/{i}"] = list_of(
                            tuple(leaf_of(e) for e in elements[i:]), str(value.type)
                        )
                        break
                    operand(f"{path}/{i}", item, elements[i])
                values[f"{path}:list"] = Leaf("list", type=str(value.type))
            case ast.Name(id=name):
                values[name] = leaf_of(value)
            case _:
                values[path] = leaf_of(value)

    def op(path: str, call: ast.Call, found: Op | None) -> None:
        if path in results:
            return
        if found is None:
            raise KeyError(path)
        operands = list(found.operands)
        for i, arg in enumerate(call.args):
            if isinstance(arg, ast.Pack):
                rest = tuple(leaf_of(v) for v in operands[i:])
                values[arg.id or f"{path}/{i}"] = Leaf("list", items=rest)
                break
            operand(f"{path}/{i}", arg, operands[i])
        results[path] = tuple(_typed(v.type) for v in found.results)
        shown = [f"{name} = {value}" for name, value in found.attributes.items()]
        if shown:
            attributes[path] = "{" + ", ".join(shown) + "}"

    try:
        op(str(len(rule.match) - 1), rule.root.equation.call, root)
    except (AttributeError, IndexError, KeyError):
        return None
    return Program(values, results, attributes)


def leaf_of(value: ir.Value) -> Leaf:
    """What a value of a program is: constants and lists by what they hold, the rest by type."""
    owner = None if isinstance(value.owner, ir.Block) else value.owner
    if owner is not None and owner.name in CONSTANT_OPS:
        from mlirules.drivers.match.values import constant_of

        found = constant_of(value)
        if found is None or isinstance(found, (int, float, str)):
            return constant(found)
    if owner is not None and owner.name == "torch.prim.ListConstruct":
        return list_of(tuple(leaf_of(v) for v in owner.operands), str(value.type))
    return _typed(value.type)


def _typed(type_: ir.Type) -> Leaf:
    text, tensor = type_info(type_)
    if tensor is not None and tensor.dims is not None and tensor.dtype is not None:
        dims = tuple(d if isinstance(d, int) else None for d in tensor.dims)
        element = tensor.dtype.torch if tensor.torch else tensor.dtype.mlir
        return Leaf("tensor", dims, element, tensor.torch)
    return Leaf("argument", type=text)
