"""Whether weights were written to behind PyTorch's back."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlirules.drivers.iree.runtime import Array

__all__ = ["Samples"]

_WORD = 8
#: How many words of a weight are looked at.
_WORDS = 8


class Samples:
    """Some of the values of arrays, to see whether they are as they were.

    PyTorch counts changes to a tensor, but not those through ``.data`` or a numpy array over its
    memory. Such a change mostly is one of all values: a step of an optimiser, another
    initialisation, a moving average. So eight words of each array are looked at, in one read for
    all of them: microseconds, where a checksum would take as long as the model. A change of a few
    values through ``.data`` is not seen.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = [a for a in arrays if a.nbytes]
        words: list[int] = []
        single: list[int] = []
        for array in self._arrays:
            start, end = array.ctypes.data, array.ctypes.data + array.nbytes
            first, last = -(-start // _WORD), end // _WORD - 1
            if last < first:
                single += range(start, end)
                continue
            count = min(_WORDS, last - first + 1)
            words += {first + (last - first) * k // max(1, count - 1) for k in range(count)}
            single += [*range(start, first * _WORD), *range((last + 1) * _WORD, end)][:_WORDS]
        self._words = _Reader(words, _WORD)
        self._bytes = _Reader(single, 1)

    def same(self) -> bool:
        """Whether nothing is seen to have changed."""
        return self._words.same() and self._bytes.same()


class _Reader:
    """Words of memory at addresses that the arrays cover, read together."""

    def __init__(self, places: Sequence[int], size: int) -> None:
        self._there = bool(places)
        if not places:
            return
        low, high = min(places), max(places)
        # One view from the first to the last address: only the places themselves are ever read.
        kind: Any = ctypes.c_uint64 if size == _WORD else ctypes.c_uint8
        whole: Any = (kind * (high - low + 1)).from_address(low * size)
        self._memory = np.frombuffer(whole, dtype=np.uint64 if size == _WORD else np.uint8)
        self._places = np.asarray(places, dtype=np.intp) - low
        self._then = self._memory.take(self._places)

    def same(self) -> bool:
        return not self._there or bool((self._memory.take(self._places) == self._then).all())
