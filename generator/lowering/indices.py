"""Sizes known only at run time as values of index type, in MLIR text."""

from __future__ import annotations

from collections.abc import Callable

from mlirules.language.values import Dyn

#: What the operators of a :class:`Dyn` are called in the dialect arith.
OPERATORS = {
    "+": "addi",
    "-": "subi",
    "*": "muli",
    "//": "floordivsi",
    "%": "remsi",
    "max": "maxsi",
    "min": "minsi",
}


class Indices:
    """Rows of MLIR that compute sizes; each size is computed once.

    ``leaf`` gives the SSA value of a size that is no arithmetic (a dim, an integer of the program).
    """

    def __init__(self, leaf: Callable[[Dyn], str], stem: str) -> None:
        self.leaf = leaf
        self.stem = stem
        self.rows: list[str] = []
        self._known: dict[object, str] = {}

    def fresh(self) -> str:
        """An SSA name not used before."""
        return f"%{self.stem}{len(self.rows)}"

    def value(self, size: int | Dyn) -> str:
        """The SSA value of a size."""
        if size not in self._known:
            self._known[size] = self._computed(size)
        return self._known[size]

    def emit(self, text: str) -> str:
        """A row that gives one value; returns its SSA name."""
        out = self.fresh()
        self.rows.append(f"{out} = {text}")
        return out

    def _computed(self, size: int | Dyn) -> str:
        if isinstance(size, int):
            return self.emit(f"arith.constant {size} : index")
        if size.op not in OPERATORS:
            return self.leaf(size)
        a, b = (self.value(v) for v in size.args if isinstance(v, (int, Dyn)))
        return self.emit(f"arith.{OPERATORS[size.op]} {a}, {b} : index")
