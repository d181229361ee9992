"""Arrays in ``.npz`` files: a program's inputs ``a0..`` and what it answers, ``r0..``.

numpy's files cannot hold bfloat16 and 8-bit floats. They hold the bits, and a member ``types`` with
a text ``NAME:TYPE`` for each such array, so that a file alone says what it holds.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mlirules.drivers.iree.runtime import Array, dtype_of
from mlirules.language import outputs
from mlirules.language.faults import MlirulesError

__all__ = ["load", "seen", "write"]

_TYPES = "types"

#: What numpy calls types that a package registers, like ml_dtypes.
_REGISTERED = 2


def load(path: str | Path, dtypes: Sequence[str | None] = (), prefix: str = "a") -> list[Array]:
    """The arrays ``a0``, ``a1``, ... of an ``.npz`` file, in order (``prefix`` names others).

    ``dtypes`` are the real element types, in the same order, of arrays stored as their bits
    (bfloat16 as uint16, 8-bit floats as uint8) in files that do not say so themselves; ``None``
    keeps what is stored. Raises MlirulesError when the file cannot be read.
    """
    try:
        with np.load(path) as data:
            names = [name for name in data.files if re.fullmatch(re.escape(prefix) + r"\d+", name)]
            arrays = [data[f"{prefix}{i}"] for i in range(len(names))]
            said = [str(text).partition(":") for text in data[_TYPES]] if _TYPES in data else []
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise MlirulesError.at(str(path), f"cannot read arrays: {error}", code="npz") from error
    types = {f"{prefix}{i}": name for i, name in enumerate(dtypes)}
    types |= {name: dtype for name, _, dtype in said}
    return [seen(array, types.get(f"{prefix}{i}")) for i, array in enumerate(arrays)]


def seen(array: Array, name: str | None) -> Array:
    """What is stored, seen as ``name``, the element type that it is of; None: as it is stored."""
    dtype = dtype_of(name) if name else array.dtype
    bits = array.dtype.kind == "u" and array.dtype.itemsize == dtype.itemsize
    return array.view(dtype) if bits and dtype != array.dtype else array


def write(path: str | Path, named: Mapping[str, Array]) -> None:
    """Write a compressed ``.npz``, whole or not at all; equal arrays give equal bytes.

    Arrays of ``ml_dtypes`` keep their types (see the module).
    """
    stored = {name: np.asanyarray(array) for name, array in named.items()}
    types: list[str] = []
    for name, array in stored.items():
        if array.dtype.isbuiltin == _REGISTERED:
            types.append(f"{name}:{array.dtype.name}")
            stored[name] = array.view(np.dtype(f"u{array.dtype.itemsize}"))
    if types:
        stored[_TYPES] = np.array(types)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in stored.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, array, allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy")  # dated 1980; numpy.savez would date it now
            archive.writestr(info, member.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)
    outputs.write(path, buffer.getvalue())
