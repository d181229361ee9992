"""Functions of element types."""

from __future__ import annotations

from mlirules.language.builtins.registry import Table
from mlirules.language.operands import Refused, dtype, integer, tensor
from mlirules.language.values import DType, Dyn, Scalar, Tensor, dtype_of_code

table = Table()


@table.function("dtype", 1, 1, "The element type of a tensor.", "dtype(x) == f32")
def _dtype(x: object) -> DType:
    return dtype(x)


@table.function(
    "dtype_of", 1, 1, "The element type that PyTorch numbers n (6 is f32).", "dtype_of(6)"
)
def _dtype_of(code: object) -> DType:
    found = dtype_of_code(integer(code, "the dtype"))
    if found is None:
        raise Refused(f"dtype {code} is not known")
    return found


@table.function(
    "is_float", 1, 1, "A floating-point element type (or a tensor of one).", "is_float(T)"
)
def _is_float(t: object) -> bool:
    if isinstance(t, (int, float)):
        return isinstance(t, float)
    if isinstance(t, Scalar):
        return t.kind == "float"
    if isinstance(t, Dyn):
        return False
    return dtype(t).is_float


@table.function("is_int", 1, 1, "An integer element type; bool is not one.", "is_int(T)")
def _is_int(t: object) -> bool:
    if isinstance(t, (int, float)):
        return isinstance(t, int) and not isinstance(t, bool)
    if isinstance(t, Dyn):
        return True
    if isinstance(t, Scalar):
        return t.kind == "int"
    return dtype(t).is_int


@table.function("is_bool", 1, 1, "The element type i1.", "is_bool(T)")
def _is_bool(t: object) -> bool:
    if isinstance(t, (bool, int, float, Dyn)):
        return isinstance(t, bool)
    if isinstance(t, Scalar):
        return t.kind == "bool"
    return dtype(t).is_bool


@table.function(
    "is_unsigned", 1, 1, "An unsigned integer element type (bool counts).", "is_unsigned(T)"
)
def _is_unsigned(t: object) -> bool:
    return dtype(t).is_unsigned


@table.function("is_complex", 1, 1, "A complex element type.", "not is_complex(T)")
def _is_complex(t: object) -> bool:
    return dtype(t).is_complex


@table.function("bitwidth", 1, 1, "The width of an element type in bits.", "bitwidth(T) >= 32")
def _bitwidth(t: object) -> int:
    return dtype(t).width


@table.function(
    "lowest",
    1,
    1,
    "Minus infinity, or the smallest integer, of an element type.",
    "lowest(T)",
)
def _lowest(t: object) -> int | float:
    return dtype(t).lowest


@table.function(
    "highest", 1, 1, "Infinity, or the largest integer, of an element type.", "highest(T)"
)
def _highest(t: object) -> int | float:
    return dtype(t).highest


@table.function("part", 1, 1, "The float type of a complex type's parts.", "part(T)")
def _part(t: object) -> DType:
    return DType(f"f{dtype(t).width // 2}")


@table.function(
    "opmath", 1, 1, "The type PyTorch computes T in: f32 for f16 and bf16.", "opmath(T)"
)
def _opmath(t: object) -> DType:
    found = dtype(t)
    return DType("f32") if found.is_float and found.width < 32 else found


def _promoted_pair(a: DType, b: DType) -> DType:
    """PyTorch's ``promote_types``."""
    if a == b:
        return a
    if a.is_complex or b.is_complex:
        widths = [t.width if t.is_complex else 2 * t.width if t.is_float else 0 for t in (a, b)]
        return DType(f"complex{max(widths)}")
    if a.is_float and b.is_float:
        return DType("f32") if a.width == b.width else a if a.width > b.width else b
    if a.is_float or b.is_float:
        return a if a.is_float else b
    if a.is_bool or b.is_bool:
        return b if a.is_bool else a
    if a.is_unsigned != b.is_unsigned:
        unsigned, signed = (a, b) if a.is_unsigned else (b, a)
        if unsigned.width > 8:
            raise Refused(f"PyTorch does not promote {a} and {b}")
        return DType(f"si{max(16, signed.width)}")
    return a if a.width > b.width else b


def _promoted_category(high: DType | None, low: DType | None) -> DType | None:
    """What values of a higher rank of priority become beside values of a lower one."""
    if high is None or low is None:
        return high or low
    if high.is_complex or high.is_float:
        wide = low.is_complex and not high.is_complex
        return DType(f"complex{2 * high.width}") if wide else high
    if high.is_bool or low.is_float or low.is_complex:
        return _promoted_pair(high, low)
    return high


@table.function(
    "promoted",
    1,
    8,
    "The element type in which PyTorch combines tensors and numbers.",
    "promoted(x, other)",
)
def _promoted(*values: object) -> DType:
    # Tensors with dims weigh more than rank-0 tensors, and those more than numbers.
    found: list[DType | None] = [None, None, None]
    for value in values:
        if isinstance(value, Tensor):
            level, t = 0 if tensor(value).rank else 1, dtype(value)
        elif isinstance(value, DType):
            level, t = 0, value
        else:
            name = "i1" if _is_bool(value) else "si64" if _is_int(value) else "f32"
            level, t = 2, DType(name)
        held = found[level]
        found[level] = t if held is None else _promoted_pair(held, t)
    out = _promoted_category(found[0], _promoted_category(found[1], found[2]))
    if out is None:
        raise Refused("nothing to promote")
    return out
