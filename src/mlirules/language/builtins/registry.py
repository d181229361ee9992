"""How the closed set of functions is made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

#: Longer lists are refused: what a rule says stays small, whatever program it meets.
MAX_LIST = 4096

_Impl = TypeVar("_Impl", bound=Callable[..., Any])


@dataclass(frozen=True)
class Function:
    """A function of the closed set."""

    name: str
    arity: tuple[int, int]
    doc: str
    example: str
    impl: Callable[..., Any] | None
    # Asks about the IR around a match (uses), not about types and constants: never cached.
    structural: bool = False


@dataclass(frozen=True)
class Table:
    """The functions of one module, by name."""

    functions: dict[str, Function] = field(default_factory=dict)

    def function(
        self, name: str, low: int, high: int, doc: str, example: str, *, structural: bool = False
    ) -> Callable[[_Impl], _Impl]:
        """Add the decorated function, which takes ``low`` to ``high`` values."""

        def register(impl: _Impl) -> _Impl:
            self.functions[name] = Function(name, (low, high), doc, example, impl, structural)
            return impl

        return register
