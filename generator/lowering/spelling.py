"""How numbers, strings and dims are spelt in MLIR text."""

from __future__ import annotations

import math

from mlirules.language.operands import Refused
from mlirules.language.values import DType


def quoted(text: str) -> str:
    """A string attribute."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def float_text(value: float, t: DType | None = None) -> str:
    """A float as MLIR reads it back without loss; infinities and NaN by their bits."""
    name = t.name if t is not None else "f64"
    if math.isfinite(value):
        if name == "f64":
            text = repr(value)
        else:
            text = f"{value:.17e}" if value != int(value) else repr(value)
            limit = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38}
            if name in limit and abs(value) > limit[name]:
                # PyTorch rounds a number that is too large to infinity.
                return float_text(math.copysign(math.inf, value), t)
        if "e" in text and "." not in text.split("e")[0]:
            text = text.replace("e", ".0e")
        return text
    bits = {
        "f16": (0x7C00, 0xFC00, 0x7E00),
        "bf16": (0x7F80, 0xFF80, 0x7FC0),
        "f32": (0x7F800000, 0xFF800000, 0x7FC00000),
        "f64": (0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000),
        "f8E5M2": (0x7C, 0xFC, 0x7E),
    }.get(name)
    if bits is None:
        # Types without infinity: their largest number.
        if math.isnan(value):
            raise Refused(f"{name} has no such number")
        return repr(math.copysign(448.0 if "E4M3FN" in name else 240.0, value))
    index = 2 if math.isnan(value) else 0 if value > 0 else 1
    digits = {"f16": 4, "bf16": 4, "f32": 8, "f64": 16, "f8E5M2": 2}[name]
    return f"0x{bits[index]:0{digits}X}"


def groups_text(groups: list[list[int]]) -> str:
    """A reassociation as MLIR spells it."""
    return "[" + ", ".join("[" + ", ".join(map(str, g)) + "]" for g in groups) + "]"
