"""Values, types and constants of a program, as matching reads them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from mlirules.drivers.iree import irtypes
from mlirules.drivers.iree.compiler import Op, ir
from mlirules.generator.lowering.values import tensor_of_type
from mlirules.language.values import Dyn, Opaque, Scalar, Tensor

TORCH_CONSTANTS = {
    "torch.constant.int": "int",
    "torch.constant.float": "float",
    "torch.constant.bool": "bool",
    "torch.constant.str": "str",
    "torch.constant.none": "none",
}
#: So many users are named.
MAX_USERS = 4
#: What the program knows is made of so many ops at most: matching stays linear.
MAX_FIXED = 32


#: What attributes and constants say: numbers, truth values, strings, lists of them.
Plain: TypeAlias = "bool | int | float | str | list[Plain] | None"


class _NotConstant:
    pass


#: What :func:`constant_of` says of a value that is no constant.
NOT_CONSTANT = _NotConstant()


def type_info(type_: ir.Type) -> tuple[str, Tensor | None]:
    """An MLIR type as text, and as a tensor type (unnamed) when it is one."""
    # By its text: a type that was kept would keep its context alive.
    text = str(type_)
    return text, _tensor_of(text)


@functools.lru_cache(maxsize=20_000)
def _tensor_of(text: str) -> Tensor | None:
    return tensor_of_type("", text)


class Tensors:
    """Tells types of tensors, whose values are neither constants nor lists, from others.

    What was told is kept, and with it the types' context: it belongs to what belongs to that.
    """

    def __init__(self) -> None:
        self.known: dict[ir.Type, bool] = {}

    def all(self, types: Iterable[ir.Type]) -> bool:
        """Whether all of the types are those of tensors."""
        known = self.known
        for type_ in types:
            found = known.get(type_)
            if found is None:
                found = known[type_] = irtypes.is_tensor(type_)
            if not found:
                return False
        return True


def owner_of(value: ir.Value) -> ir.OpView | None:
    """The op that makes a value; None for an argument."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    return owner


def constant_of(value: ir.Value) -> Plain | _NotConstant:
    """The Python value of a torch (or arith) constant, or a marker when it is not one."""
    owner = owner_of(value)
    if owner is None:
        return NOT_CONSTANT
    kind = TORCH_CONSTANTS.get(owner.name)
    if kind is None:
        return NOT_CONSTANT
    if kind == "none":
        return None
    return attribute_value(owner.attributes["value"])


def known(value: object) -> tuple[bool, bool]:
    """Whether the program knows a value, and whether its numbers stand in it.

    Few ops make it, and none reads what a call brings; for the second none loads a parameter,
    which is mapped where it lies.
    """
    if not isinstance(value, ir.Value):
        return False, False
    left, seen, embedded = [value], set(), True
    while left:
        owner = left.pop().owner
        if isinstance(owner, ir.Block):
            return False, False
        if owner not in seen:
            seen.add(owner)
            if len(seen) > MAX_FIXED:
                return False, False
            embedded = embedded and owner.name != "util.global.load"
            left += owner.operands
    return True, embedded


def is_fixed(value: object) -> bool:
    """Whether the program knows a value."""
    return known(value)[0]


def attribute_value(attribute: ir.Attribute) -> Plain:
    """A plain attribute (number, truth value, string, type) as a Python value, else None."""
    if isinstance(attribute, ir.BoolAttr):
        return bool(attribute.value)
    if isinstance(attribute, ir.IntegerAttr):
        return int(attribute.value)
    if isinstance(attribute, ir.FloatAttr):
        return float(attribute.value)
    if isinstance(attribute, ir.StringAttr):
        return str(attribute.value)
    if isinstance(attribute, _ARRAYS):
        return list(attribute)
    if isinstance(attribute, ir.ArrayAttr):
        items = [attribute_value(item) for item in attribute]
        return None if None in items else items
    return None


_ARRAYS = (
    ir.DenseBoolArrayAttr,
    ir.DenseI8ArrayAttr,
    ir.DenseI16ArrayAttr,
    ir.DenseI32ArrayAttr,
    ir.DenseI64ArrayAttr,
    ir.DenseF32ArrayAttr,
    ir.DenseF64ArrayAttr,
)
#: Constant tensors of so many integers are read, and attributes of so many characters copied.
MAX_ELEMENTS, MAX_TEXT = 256, 4096


def opaque_attribute(path: str, attribute: ir.Attribute) -> Opaque:
    """An attribute that is no plain value, with what can be known of it."""
    if not is_elements(attribute):
        text = str(attribute)
        return Opaque(path, "attribute", text if len(text) <= MAX_TEXT else "")
    return Opaque(path, "attribute", items=elements_of(attribute))


def elements_of(attribute: ir.Attribute) -> Plain:
    """The elements of a small constant tensor of integers, as nested lists; None: another one."""
    if not isinstance(attribute, ir.DenseIntElementsAttr) or len(attribute) > MAX_ELEMENTS:
        return None
    shaped = ir.ShapedType(attribute.type)
    if isinstance(shaped.element_type, ir.IntegerType) and shaped.element_type.width == 1:
        return None
    items: list[Plain] = [int(attribute[n]) for n in range(len(attribute))]
    for size in reversed([int(d) for d in shaped.shape][1:]):
        items = [items[n : n + size] for n in range(0, len(items), size)] if size else []
    return items if shaped.rank else items[0]


def is_elements(attribute: ir.Attribute) -> bool:
    """Whether an attribute holds the elements of a tensor."""
    return isinstance(attribute, (ir.DenseElementsAttr, ir.DenseResourceElementsAttr))


def runtime_value(value: ir.Value) -> str:
    """A value that is no constant, in words."""
    owner = owner_of(value)
    return "an argument" if owner is None else f"the result of {owner.name}"


def named(tensor: Tensor, name: str, *, result: bool) -> Tensor:
    """A tensor type under a name: its dynamic dims become that value's dims."""
    assert tensor.dims is not None
    op = "result" if result else "dim"
    dims = tuple(d if isinstance(d, int) else Dyn(op, (name, i)) for i, d in enumerate(tensor.dims))
    return Tensor(name, dims, tensor.dtype, tensor.torch)


def typed(
    name: str, text: str, tensor: Tensor | None, *, result: bool
) -> Tensor | Dyn | Scalar | Opaque | None:
    """What a name stands for whose value has this type."""
    if tensor is not None:
        return named(tensor, name, result=result)
    if text in ("!torch.int", "!torch.float", "!torch.bool"):
        kind = text.removeprefix("!torch.")
        return Dyn("int", (name,)) if kind == "int" else Scalar(name, kind)
    if text.startswith("!torch.vtensor"):
        return Tensor(name, None, None)
    # A result of this type has one value: an optional result that is not asked for.
    return None if result and text == "!torch.none" else Opaque(name, text)


def live_users(value: ir.Value, dead: Callable[[Op], bool]) -> Iterator[ir.OpView]:
    """The ops that use a value, without what earlier applications left dead."""
    return (use.owner for use in value.uses if not dead(use.owner.operation))


def is_used(op: ir.Operation) -> bool:
    """Whether anything uses a result of the op."""
    return any(next(iter(value.uses), None) is not None for value in op.results)


def in_words(users: list[ir.OpView]) -> str:
    """``3 uses: torch.aten.mul, torch.aten.add and func.return``, the same on every machine."""
    if not users:
        return "no use"
    names = [user.name for user in reversed(users)]
    count = str(len(names))
    if len(names) > MAX_USERS:
        names, count = names[:MAX_USERS], f"more than {MAX_USERS}"
    return f"{count} use{'s' * (len(names) > 1)}: {', '.join(names)}"
