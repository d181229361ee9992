"""The compiler's Python bindings, imported without what few programs need.

Importing them imports numpy, which takes longer than they do themselves, for four builders of dense
attributes. Where numpy is not there yet it stays away until one of those is called.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Op", "ir", "passmanager", "rewrite"]


@contextmanager
def _numpy_away() -> Iterator[None]:
    # Another thread that imports numpy meanwhile would not find it.
    if "numpy" in sys.modules or "iree.compiler.ir" in sys.modules or threading.active_count() > 1:
        yield
        return
    # None is what makes an import fail; the stubs know only of modules there.
    sys.modules["numpy"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["numpy"]
    _register_builders()


def _register_builders() -> None:
    """The builders that the bindings leave out where there is no numpy."""
    from iree.compiler import ir

    for name, dtype, type_of in (
        ("F64ElementsAttr", "float64", lambda: ir.F64Type.get()),
        ("I32ElementsAttr", "int32", lambda: ir.IntegerType.get_signless(32)),
        ("I64ElementsAttr", "int64", lambda: ir.IntegerType.get_signless(64)),
        ("IndexElementsAttr", "int64", lambda: ir.IndexType.get()),
    ):
        ir.register_attribute_builder(name)(_dense(dtype, type_of))


def _dense(
    dtype: str, type_of: Callable[[], ir.Type]
) -> Callable[[npt.ArrayLike, ir.Context], ir.Attribute]:
    def build(values: npt.ArrayLike, context: ir.Context) -> ir.Attribute:
        import numpy as np
        from iree.compiler import ir

        with context:
            return ir.DenseElementsAttr.get(np.array(values, dtype=dtype), type=type_of())

    return build


with _numpy_away():
    from iree.compiler import ir, passmanager, rewrite

#: An op, or the view that the bindings have of it by its name: the two are equal, as keys too.
Op: TypeAlias = ir.Operation | ir.OpView

from mlirules.drivers.iree import dialects  # noqa: E402 - it imports the bindings as well

dialects.install()
