"""What names of a rule stand for: tensors of symbolic size, and what is not known yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlirules.drivers.prove.expr import Int, Node, Undecided
from mlirules.drivers.prove.scalars import E
from mlirules.language.values import Tensor


@dataclass(frozen=True, eq=False)
class Array(Tensor):
    """A tensor by its sizes and what each element is."""

    elem: Callable[[Sequence[Int]], E] = lambda _: _no_element()
    #: What it is another shape of.
    base: Array | None = None

    @property
    def shape(self) -> list[Int]:
        """The sizes."""
        return list(self.dims or ())


def _no_element() -> E:
    raise Undecided("a tensor whose elements are not known")


@dataclass(eq=False)
class Unknown:
    """An operand that nothing has asked for yet; ``settle`` makes what its type says."""

    name: str
    settle: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Applied:
    """A result of an op of which nothing is known, not even its sizes."""

    call: Node
    at: int
