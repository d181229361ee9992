"""Types of programs, as the compiler's bindings have them: which tensors, how many bits.

The bindings have no class for types of torch and of IREE's own dialects: what these hold is in
their text alone, which is read here and in ``language.typetexts``.
"""

from __future__ import annotations

from mlirules.drivers.iree.bindings import ir
from mlirules.generator.lowering.values import tensor_of
from mlirules.language import typetexts
from mlirules.language.typetexts import TensorType
from mlirules.language.values import Tensor

_BOUND = "!iree_tensor_ext.dispatch.tensor<"


def tensor_type(type_: ir.Type) -> TensorType | None:
    """The type of a tensor, torch's or builtin; None unless its rank is known, without encoding."""
    if isinstance(type_, ir.RankedTensorType):
        if type_.encoding is not None:
            return None
        sizes = tuple(None if ir.ShapedType.is_dynamic_size(d) else d for d in type_.shape)
        return TensorType(sizes, str(type_.element_type))
    return None if isinstance(type_, ir.ShapedType) else typetexts.torch_type(str(type_))


def tensor(type_: ir.Type) -> Tensor | None:
    """A tensor without a name of that type, as expressions of rules know it; None for others."""
    found = tensor_type(type_)
    return None if found is None else tensor_of("", found)


def torch_kinds(type_: ir.Type) -> tuple[str, ...]:
    """What a type of torch is and holds, as :func:`typetexts.torch_kinds` has it."""
    return typetexts.torch_kinds(str(type_))


def is_torch(type_: ir.Type) -> bool:
    """Whether a type is one of torch's."""
    return bool(torch_kinds(type_))


def is_value_tensor(type_: ir.Type) -> bool:
    """Whether values of a type are tensors that nothing changes, of whatever rank."""
    if isinstance(type_, ir.RankedTensorType | ir.UnrankedTensorType):
        return True
    return torch_kinds(type_)[:1] == ("vtensor",)


def is_tensor(type_: ir.Type) -> bool:
    """Whether values of a type are tensors of whatever rank, also those that ops may change."""
    return is_value_tensor(type_) or torch_kinds(type_)[:1] == ("tensor",)


def is_torch_variable(type_: ir.Type) -> bool:
    """Whether a value is a tensor of torch that ops may change, or a list of them."""
    kinds = torch_kinds(type_)
    return kinds[:1] == ("tensor",) or kinds[:2] == ("list", "tensor")


def of_unknown_size(type_: ir.Type) -> bool:
    """Whether a size of a tensor, or of one that a list holds, is known only when programs run."""
    if isinstance(type_, ir.ShapedType):
        return not type_.has_rank or not type_.has_static_shape
    text = str(type_)
    return "?" in text or "<*" in text


def bits(element: ir.Type) -> int:
    """How many bits an element takes that is a number or an index.

    Raises TypeError for another type.
    """
    if isinstance(element, ir.IntegerType | ir.FloatType):
        return element.width
    if isinstance(element, ir.IndexType):
        return 64
    if isinstance(element, ir.ComplexType):
        return 2 * bits(element.element_type)
    raise TypeError(f"{element} is no number")


def bound(type_: ir.Type) -> ir.Type | None:
    """The type of the tensor that a dispatch is bound to (``readonly:tensor<4xf32>``), or None."""
    text = str(type_)
    if not text.startswith(_BOUND):
        return None
    return ir.Type.parse(text.removesuffix(">").partition(":")[2], type_.context)
