"""Values that expressions of a rule compute with before any IR exists.

A dim is a Python ``int`` when static and a :class:`Dyn` expression when it is only known at run
time; element types are :class:`DType`; tensors are :class:`Tensor` (their type, not their data).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Dyn:
    """An integer known only at run time.

    ``op`` is ``dim`` (args: value name, axis), ``int`` (args: value name) or an arithmetic
    operator over ints and other :class:`Dyn` values. Structural equality is equality of value.
    """

    op: str
    args: tuple[object, ...]

    def __str__(self) -> str:
        if self.op == "dim":
            return f"dim({self.args[0]}, {self.args[1]})"
        if self.op == "int":
            return str(self.args[0])
        return "(" + f" {self.op} ".join(str(a) for a in self.args) + ")"


Dim = int | Dyn


@dataclass(frozen=True)
class DType:
    """An element type in PyTorch's sense (``si64`` and ``ui8`` differ, ``i1`` is bool)."""

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type."""
        return self.name.startswith(("f", "bf"))

    @property
    def is_bool(self) -> bool:
        """Whether it is the truth type ``i1``."""
        return self.name == "i1"

    @property
    def is_complex(self) -> bool:
        """Whether it is a complex type."""
        return self.name.startswith("complex")

    @property
    def is_int(self) -> bool:
        """Whether it is an integer type (bool is not)."""
        return self.name[0] in "siu" and not self.is_bool and self.name != "index"

    @property
    def is_unsigned(self) -> bool:
        """Whether it is an unsigned integer type (bool counts)."""
        return self.name.startswith("ui") or self.is_bool

    @property
    def width(self) -> int:
        """Its width in bits (for complex types that of both parts)."""
        digits = ""
        for char in self.name.removeprefix("complex").lstrip("bfsui"):
            if not char.isdigit():
                break
            digits += char
        return int(digits) if digits else 64

    @property
    def mlir(self) -> str:
        """The type as signless MLIR text: what linalg, tensor and arith compute with."""
        if self.is_complex:
            return f"complex<f{self.width // 2}>"
        if self.name[:2] in ("si", "ui"):
            return "i" + self.name[2:]
        return self.name

    @property
    def torch(self) -> str:
        """The type as it is spelt inside ``!torch.vtensor``."""
        if self.is_complex:
            return f"complex<f{self.width // 2}>"
        return self.name

    @property
    def lowest(self) -> float | int:
        """The identity of max: minus infinity, or the smallest integer."""
        if self.is_float:
            return -math.inf
        if self.is_unsigned:
            return 0
        return int(-(1 << (self.width - 1)))

    @property
    def highest(self) -> float | int:
        """The identity of min: infinity, or the largest integer."""
        if self.is_float:
            return math.inf
        if self.is_bool:
            return 1
        if self.is_unsigned:
            return int((1 << self.width) - 1)
        return int((1 << (self.width - 1)) - 1)


@dataclass(frozen=True)
class Tensor:
    """A tensor's type; ``dims`` is None when the rank is unknown, ``torch``: a torch vtensor."""

    name: str
    dims: tuple[Dim, ...] | None
    dtype: DType | None
    torch: bool = True
    #: The program knows it: no call brings it. Told only to rules that ask (``fixed``).
    fixed: bool = False
    #: Its numbers stand in the program: no parameter, which is mapped from a file. As above.
    embedded: bool = False

    @property
    def rank(self) -> int:
        """The number of dims. Raises ValueError when it is not known."""
        if self.dims is None:
            raise ValueError(f"the rank of {self.name} is not known")
        return len(self.dims)

    def builtin_type(self) -> str:
        """The builtin tensor type as MLIR text."""
        assert self.dims is not None and self.dtype is not None
        shape = "".join(f"{d if isinstance(d, int) else '?'}x" for d in self.dims)
        return f"tensor<{shape}{self.dtype.mlir}>"

    def torch_type(self) -> str:
        """The torch type as MLIR text."""
        if self.dims is None or self.dtype is None:
            return "!torch.vtensor"
        shape = ",".join(str(d) if isinstance(d, int) else "?" for d in self.dims)
        return f"!torch.vtensor<[{shape}],{self.dtype.torch}>"


@dataclass(frozen=True)
class Scalar:
    """A torch scalar known only at run time: ``kind`` is int, float, bool (or any)."""

    name: str
    kind: str


@dataclass(frozen=True)
class Opaque:
    """A bound value of a type that no expression computes with.

    Of an attribute: ``text`` is its MLIR, where that is short, and ``items`` the elements of a
    small constant tensor of integers, as nested lists.
    """

    name: str
    type: str
    text: str = ""
    items: object = None


@dataclass(frozen=True)
class Arithmetic:
    """What a structured op computes of one element of each of its operands: any such function.

    ``steps`` are ops as MLIR text, ``{0}`` their result and ``{1}`` and so on their operands, each
    with the numbers of the values that stand there. The first values are the inputs.
    """

    inputs: tuple[str, ...]  # builtin element types
    steps: tuple[tuple[str, tuple[int, ...]], ...]
    result: str

    def __str__(self) -> str:
        return f"a function of {len(self.inputs)} numbers"


@dataclass(frozen=True)
class Attribute:
    """An attribute of a new op, as MLIR text."""

    text: str


# PyTorch's numbering of element types (c10/core/ScalarType.h), as it stands in dtype operands.
_TORCH_CODES: dict[int, str] = {
    0: "ui8",
    1: "si8",
    2: "si16",
    3: "si32",
    4: "si64",
    5: "f16",
    6: "f32",
    7: "f64",
    8: "complex32",
    9: "complex64",
    10: "complex128",
    11: "i1",
    15: "bf16",
    23: "f8E5M2",
    24: "f8E4M3FN",
    25: "f8E5M2FNUZ",
    26: "f8E4M3FNUZ",
}


def dtype_of_code(code: int) -> DType | None:
    """The element type that PyTorch numbers ``code``, or None."""
    name = _TORCH_CODES.get(code)
    return DType(name) if name else None


@lru_cache(maxsize=1024)
def dtype_named(name: str) -> DType | None:
    """The element type spelt ``name`` in a rule or in a torch type, or None."""
    if name.startswith("complex<f") and name.endswith(">"):
        return DType(f"complex{2 * int(name[9:-1])}")
    known = {
        *_TORCH_CODES.values(),
        "ui16",
        "ui32",
        "ui64",
        "si4",
        "ui4",
        "i8",
        "i16",
        "i32",
        "i64",
        "index",
    }
    return DType(name) if name in known else None
