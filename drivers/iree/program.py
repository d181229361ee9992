"""A program as a module of the compiler: read from text or bytecode, asked, and handed on.

What these functions say of a program they read from its ops. Nothing here looks at a program's
text: most of that is weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlirules.drivers.iree import bytecode
from mlirules.drivers.iree.bindings import ir
from mlirules.drivers.iree.bytecode import MAGIC
from mlirules.drivers.iree.traversal import open_ops, ops_below
from mlirules.language.grid import TARGET

__all__ = [
    "MAGIC",
    "Facts",
    "Program",
    "constant_results",
    "entries",
    "entry",
    "entry_points",
    "facts",
    "function_of",
    "inline_resources",
    "is_bytecode",
    "of_bytecode",
]

#: Bytes of a constant that the compiler may put into a dispatch, and some more.
_FEW = 1024


@dataclass(frozen=True)
class Program:
    """A module, and the text or file that the locations of its ops mean."""

    module: ir.Module
    origin: str | Path = ""

    def lines(self) -> list[str]:
        """The lines of the origin; none where it is no text."""
        text = self.origin
        if isinstance(text, Path):
            try:
                text = text.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):  # gone meanwhile, or bytecode
                return []
        return text.split("\n") if text else []


@dataclass(frozen=True)
class Facts:
    """What the flags of a compilation depend on."""

    #: Torch ops or types occur.
    torch: bool
    #: A function that others can call takes or gives 64-bit floats.
    wide: bool
    #: The kinds of target that its kernels are written for.
    kernels: frozenset[str]


def is_bytecode(data: bytes) -> bool:
    """Whether ``data`` (or its beginning) is MLIR bytecode."""
    return data.startswith(MAGIC)


def of_bytecode(path: str | Path, context: ir.Context) -> ir.Module:
    """The module in a bytecode file, whose weights are mapped and not read. Raises MLIRError."""
    return bytecode.parse_file(path, context)


_FUNCTIONS = frozenset(["func.func", "util.func"])


def facts(module: ir.Module) -> Facts:
    """What the flags for compiling ``module`` depend on."""
    torch = wide = False
    kernels = set()
    for op in module.body.operations:
        inner = op.operation
        if TARGET in inner.attributes:
            kernels.add(ir.StringAttr(inner.attributes[TARGET]).value)
        if inner.name not in _FUNCTIONS:
            continue
        # A signature is short, and the bindings cannot look into types of torch.
        signature = str(inner.attributes["function_type"])
        torch = torch or "!torch." in signature
        # `!torch.float` is an f64 too, once converted.
        if re.search(r"f64|!torch\.float\b", signature) and not _is_private(inner):
            wide = True
    torch = torch or any(op.name.startswith(("torch.", "torch_c.")) for op in open_ops(module))
    return Facts(torch, wide, frozenset(kernels))


def entry(module: ir.Module) -> tuple[str, list[ir.Type]] | None:
    """The name of the first function that others can call, and the types of its arguments.

    None for a module without such a function.
    """
    return next(entries(module), None)


def entries(module: ir.Module) -> Iterator[tuple[str, list[ir.Type]]]:
    """The functions that others can call, in order, as :func:`entry` gives the first."""
    for op in module.body.operations:
        inner = op.operation
        if inner.name in _FUNCTIONS and not _is_private(inner):
            type_ = ir.FunctionType(ir.TypeAttr(inner.attributes["function_type"]).value)
            name = ir.StringAttr(inner.attributes["sym_name"]).value
            yield name, type_.inputs


def function_of(module: ir.Module, name: str) -> ir.Operation:
    """The function of that name. Raises KeyError."""
    for op in module.body.operations:
        inner = op.operation
        if inner.name in _FUNCTIONS and ir.StringAttr(inner.attributes["sym_name"]).value == name:
            return inner
    raise KeyError(name)


def constant_results(module: ir.Module, function: str) -> frozenset[int]:
    """The results of a function that depend on none of its arguments; none of several blocks."""
    blocks = list(function_of(module, function).regions[0].blocks)
    if len(blocks) != 1:
        return frozenset()
    varying: set[ir.Value] = set(blocks[0].arguments)
    last = function_of(module, function)
    for op in blocks[0].operations:
        last = op.operation
        # What the ops of its regions use from outside is taken for used by the op.
        used = [*last.operands, *(o for inner in ops_below(last) for o in inner.operands)]
        if any(operand in varying for operand in used):
            varying.update(last.results)
    return frozenset(i for i, value in enumerate(last.operands) if value not in varying)


def entry_points(dispatch: ir.Operation) -> list[list[str]]:
    """What a ``flow.dispatch`` may call, each as its executable's name and the function's in it."""
    return [ir.SymbolRefAttr(a).value for a in ir.ArrayAttr(dispatch.attributes["entry_points"])]


def _is_private(function: ir.Operation) -> bool:
    attributes = function.attributes
    visibility = "sym_visibility"
    return visibility in attributes and ir.StringAttr(attributes[visibility]).value == "private"


def inline_resources(module: ir.Module) -> None:
    """Resources of torch literals that the compiler cannot take as such become literals, in place.

    A literal of signed integers must become one of signless integers, which the bindings cannot do
    for a resource; these are index tables and are small. A few narrow floats (the frequencies of
    rotary embeddings in bf16) are put into the dispatch that reads them, whose narrow arithmetic
    IREE 3.13 widens: a resource stays as narrow as it was ("'arith.constant' op failed to verify
    that all of {value, result} have same type").
    """
    found: dict[ir.Attribute, list[ir.Operation]] = {}
    for op in open_ops(module):
        if op.name != "torch.vtensor.literal":
            continue
        value = op.attributes["value"]
        if _unfit(getattr(value, "type", None)) and is_resource(value):
            found.setdefault(value, []).append(op)
    if not found:
        return
    # The bindings give a resource's bytes in no way but printed; these modules hold nothing else.
    for value, ops in found.items():
        with module.context, ir.Location.unknown(module.context):
            alone = ir.Module.create()
            ops[0].clone(ir.InsertionPoint(alone.body))
            text = str(alone)
            blob = re.search(r'"0x([0-9A-Fa-f]*)"', text[text.rfind("{-#") :])
            if blob is None:  # declared and given no bytes: the compiler says so
                continue
            digits = blob[1][8:]  # after the alignment, 4 bytes
            literal = f'dense<"0x{digits}">' if digits else "dense<>"
            inlined = ir.Attribute.parse(f"{literal} : {value.type}")
        for op in ops:
            op.attributes["value"] = inlined


def _unfit(type_: ir.Type | None) -> bool:
    """Whether a resource of this type is to become a literal."""
    if not isinstance(type_, ir.ShapedType):
        return False
    element = type_.element_type
    if isinstance(element, ir.IntegerType):
        return not element.is_signless
    if not isinstance(element, ir.FloatType) or element.width >= 32:
        return False
    return math.prod(type_.shape) * element.width <= 8 * _FEW


def is_resource(value: ir.Attribute) -> bool:
    """Whether an attribute is the name of bytes kept beside the program."""
    try:
        ir.DenseResourceElementsAttr(value)
    except ValueError:
        return False
    return True
