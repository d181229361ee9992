"""Types of tensors as rule files and programs spell them: the one place that reads them as text.

What has the type itself asks ``drivers.iree.irtypes``. That comes here for torch's types alone, of
which the compiler's bindings know nothing but their text.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

_BUILTIN = re.compile(r"tensor<((?:(?:\?|\d+)x)*)([a-zA-Z]\w*(?:<\w+>)?)>")
_TORCH = re.compile(r"!torch\.vtensor<\[(.*)\],(.+)>")
_KINDS = re.compile(r"!torch\.((?:\w+<)*\w*)")


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a tensor of known rank.

    ``sizes`` are None where they vary, ``element`` is spelt as in the type (``si64``, ``i64``), and
    ``torch`` tells torch's value tensors from builtin ones.
    """

    sizes: tuple[int | None, ...]
    element: str
    torch: bool = False

    def __str__(self) -> str:
        sizes = ["?" if size is None else str(size) for size in self.sizes]
        if self.torch:
            return f"!torch.vtensor<[{','.join(sizes)}],{self.element}>"
        return f"tensor<{''.join(size + 'x' for size in sizes)}{self.element}>"

    def within(self, other: TensorType) -> bool:
        """Whether every tensor of this type can be cast to ``other``."""
        return self._alike(other) and all(
            asked in (None, have) for have, asked in zip(self.sizes, other.sizes, strict=True)
        )

    def meets(self, other: TensorType) -> bool:
        """Whether a tensor can be of both types."""
        return self._alike(other) and all(
            a is None or b is None or a == b for a, b in zip(self.sizes, other.sizes, strict=True)
        )

    def _alike(self, other: TensorType) -> bool:
        return (self.element, self.torch, len(self.sizes)) == (
            other.element,
            other.torch,
            len(other.sizes),
        )


@functools.lru_cache(maxsize=20_000)
def builtin_type(text: str) -> TensorType | None:
    """The builtin type that a text spells, if a tensor's of known rank without an encoding."""
    found = _BUILTIN.fullmatch(text)
    return None if found is None else _builtin(found)


@functools.lru_cache(maxsize=20_000)
def torch_type(text: str) -> TensorType | None:
    """The type of torch that a text spells, if a value tensor's of known rank."""
    found = _TORCH.fullmatch(text)
    if found is None:
        return None
    sizes = tuple(None if d == "?" else int(d) for d in found[1].split(",") if d)
    return TensorType(sizes, found[2], torch=True)


@functools.lru_cache(maxsize=20_000)
def torch_kinds(text: str) -> tuple[str, ...]:
    """What a type of torch is, and what it holds: ``list`` and ``int`` of ``!torch.list<int>``.

    Of several that it holds the first; none for what is no type of torch.
    """
    found = _KINDS.match(text)
    return () if found is None else tuple(k for k in found[1].split("<") if k)


def without_sizes(program: str) -> tuple[str, list[TensorType]]:
    """The text of a program with a `?` for every size of a builtin tensor, and those types."""
    types = [_builtin(m) for m in _BUILTIN.finditer(program)]
    text = _BUILTIN.sub(lambda m: str(_any_size(_builtin(m))), program)
    return text, types


def _builtin(found: re.Match[str]) -> TensorType:
    sizes = tuple(None if d == "?" else int(d) for d in found[1].split("x")[:-1])
    return TensorType(sizes, found[2])


def _any_size(type_: TensorType) -> TensorType:
    return TensorType((None,) * len(type_.sizes), type_.element)
