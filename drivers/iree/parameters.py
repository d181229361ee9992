"""Archives of weights that compiled programs map: ``.safetensors`` and IREE's ``.irpa``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.bindings import ir
from mlirules.drivers.iree.weights import named
from mlirules.language import outputs
from mlirules.language.faults import Fault, MlirulesError, Span, did_you_mean

__all__ = ["SUFFIXES", "check", "write_archive"]

SUFFIXES = (".safetensors", ".irpa")

#: What the runtime wants addresses to be multiples of, to use mapped memory as it is.
_ALIGNMENT = 64

_SAFETENSORS = {
    "bool": "BOOL",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    "complex64": "C64",
}


def write_archive(path: str | Path, values: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write numpy arrays under their names, whole or not at all, without a copy in memory.

    The suffix of ``path`` says the format. Raises MlirulesError.
    """
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise MlirulesError.at(
            str(path),
            "is no name for an archive of weights",
            code="archive",
            suggestion="let it end in " + " or ".join(SUFFIXES),
        )
    with outputs.replaced(target) as name:
        if target.suffix == ".irpa":
            _write_irpa(str(name), values)
        else:
            _write_safetensors(str(name), values)


def _write_safetensors(path: str, values: Mapping[str, npt.NDArray[Any]]) -> None:
    header: dict[str, object] = {}
    # The format allows no gaps: what has a size of whole lines comes first, aligned.
    ordered = sorted(values.items(), key=lambda item: item[1].nbytes % _ALIGNMENT != 0)
    end = 0
    for name, array in ordered:
        start, end = end, end + array.nbytes
        header[name] = {
            "dtype": _SAFETENSORS[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    with Path(path).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in ordered:
            array.reshape(-1).view(np.uint8).tofile(file)


def _write_irpa(path: str, values: Mapping[str, npt.NDArray[Any]]) -> None:
    from iree.runtime import ParameterIndex

    index = ParameterIndex()
    for name, array in values.items():
        index.add_buffer(name, array.reshape(-1).view(np.uint8))
    index.create_archive_file(path)


def check(module: ir.Module, archives: Sequence[str], path: str) -> None:
    """Compare what a program loads by name with what archives ``[SCOPE=]FILE`` hold.

    Raises MlirulesError for each weight of ``path`` that is missing or of another size.
    """
    held: dict[tuple[str, str], int] = {}
    for archive in archives:
        scope, _, file = runtime.scoped(archive).partition("=")
        for name, entry in runtime.read_archive(file).items():
            held[scope, name] = entry.length
    faults = []
    for found in named(module):
        scope, name = found.scope, found.name
        sizes = (size or 0 for size in found.type.sizes)
        wanted = math.prod(sizes) * runtime.dtype_of(found.type.element).itemsize
        if (scope, name) not in held:
            near = [other for at, other in held if at == scope]
            what = f"no archive holds the weight {name!r} of the scope {scope!r}"
            faults.append(Fault(Span(path), "weight", what, did_you_mean(name, near)))
        elif held[scope, name] != wanted:
            what = f"the weight {name!r} has {held[scope, name]} bytes, the program wants {wanted}"
            faults.append(Fault(Span(path), "weight", what))
    if faults:
        raise MlirulesError(faults)
