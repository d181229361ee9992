"""What a lowering computes with: values of the rewrite, typed, and what they are in MLIR."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mlirules.language.faults import Span
from mlirules.language.notation import ast
from mlirules.language.rule import Line
from mlirules.language.typetexts import TensorType, builtin_type, torch_type
from mlirules.language.values import DType, Dyn, Tensor, dtype_named

INDEX = DType("index")
#: A torch scalar's builtin type and its own.
TORCH_SCALARS = {
    "int": ("i64", "!torch.int"),
    "float": ("f64", "!torch.float"),
    "bool": ("i1", "!torch.bool"),
}


class LoweringError(Exception):
    """A rewrite that makes no sense for a match that it accepted: the rule is at fault."""

    def __init__(self, line: Line, message: str, node: ast.Node | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.message = message
        self.node = node


@dataclass(frozen=True)
class Argument:
    """One value that a lowered rewrite takes: which bound value, and in which form.

    ``form`` is ``raw`` (as matched), ``tensor`` (a builtin tensor), ``i64``, ``f64`` or ``i1``.
    """

    path: str
    form: str
    ssa: str
    type: str


@dataclass
class Lowered:
    """A rewrite as a function: ``text`` is a module that holds one ``func.func @rewrite``."""

    text: str
    arguments: list[Argument]
    # Ops of the text that take an attribute of the match: (slot name, bound name).
    slots: list[tuple[str, str]]
    env: dict[str, object]
    #: Where lines of the text (from 1) stand in the rule file; others are made by the rule as such.
    places: dict[int, Span] = field(default_factory=dict)


@dataclass(frozen=True)
class Val:
    """A run-time scalar: an SSA value with its element type (in PyTorch's sense)."""

    ssa: str
    dtype: DType

    def __str__(self) -> str:
        return f"a number of type {self.dtype} known only at run time"


@dataclass(frozen=True)
class Affine:
    """A linear combination of loop indices."""

    terms: tuple[tuple[str, int], ...]
    offset: Any = 0  # int or Dyn

    @property
    def plain(self) -> str | None:
        """The loop index that this is, when it is just one."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and self.offset == 0:
            return self.terms[0][0]
        return None

    def __str__(self) -> str:
        names = dict.fromkeys(name.partition(".")[0] for name, _ in self.terms)
        if not names:
            return str(self.offset)
        what = "loop index" if len(names) == 1 else "loop indices"
        return f"{'the' if self.plain else 'computed from the'} {what} {' and '.join(names)}"


@dataclass(frozen=True)
class Local:
    """A tensor that the rewrite made: its type and its SSA value (a builtin tensor)."""

    tensor: Tensor
    ssa: str

    def __str__(self) -> str:
        return f"a tensor of the rewrite, {self.tensor.builtin_type()}"


@dataclass(frozen=True)
class Raw:
    """A value as it stands in the program, not yet read as a tensor or scalar: SSA and type."""

    ssa: str
    type: str

    def __str__(self) -> str:
        return f"a value of type {self.type}"


def wide(t: DType) -> DType:
    """The type to accumulate in, as PyTorch does on CPU."""
    if t.is_float:
        return DType("f32") if t.width < 32 else t
    if t.is_complex:
        return t
    return DType("si64")


#: Integers without a sign, which builtin tensors hold, as torch's that they stand for.
_SIGNED = {f"i{bits}": f"si{bits}" for bits in (8, 16, 32, 64)}


def tensor_of_type(name: str, type_: str) -> Tensor | None:
    """A tensor from its MLIR type text, or None. Dynamic dims get a source of their own."""
    found = torch_type(type_) or builtin_type(type_)
    return None if found is None else tensor_of(name, found)


def tensor_of(name: str, type_: TensorType) -> Tensor | None:
    """A tensor of a type, or None. Dynamic dims get a source of their own."""
    text = type_.element
    element = dtype_named(text if type_.torch else _SIGNED.get(text, text))
    if element is None:
        return None
    dims = (Dyn("dim", (name, i)) if d is None else d for i, d in enumerate(type_.sizes))
    return Tensor(name, tuple(dims), element, type_.torch)
