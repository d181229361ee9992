"""Large pages under the memory that a loaded program keeps, where Linux has them.

Kernels read weights and images in strides that are pages apart, and with pages of 4 KiB a part of
their time goes into finding where these lie. Linux backs memory with pages of 2 MiB where it is
asked to (``madvise``, which the usual setting of ``transparent_hugepage`` waits for). numpy asks
for its large arrays, the runtime for nothing. What changes is the speed alone, and up to a page
more memory for each piece; where the system has no such pages, nothing changes.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

__all__ = ["LARGE", "Kept", "Piece", "anonymous", "around", "of_host", "without"]

#: A large page, in bytes: what lies in a smaller piece is left as it is.
LARGE = 2 << 20

#: Linux's ``MADV_COLLAPSE`` (since 6.1): what is there already moves to large pages now.
_COLLAPSE = 25

_MAPS = Path("/proc/self/maps")

#: The address where a piece of memory begins, and the one behind its end.
Piece: TypeAlias = tuple[int, int]


def of_host(uri: str) -> bool:
    """Whether a device's memory is the host's; ``uri`` is a runtime's device URI."""
    return uri.partition("://")[0] in ("local-task", "local-sync")


def anonymous(maps: str, *, heap: bool = True) -> list[Piece]:
    """What is memory of no file and may be written, of ``/proc/self/maps``, in order.

    ``heap`` says whether what the C library gives out piece by piece is among it.
    """
    names = ("", "[heap]") if heap else ("",)
    found = []
    for line in maps.splitlines():
        where, rights, _, _, inode, *name = line.split(None, 5)
        if rights == "rw-p" and inode == "0" and "".join(name).strip() in names:
            start, _, end = where.partition("-")
            found.append((int(start, 16), int(end, 16)))
    return found


def _pieces(*, heap: bool = True) -> list[Piece]:
    try:
        return anonymous(_MAPS.read_text(), heap=heap)
    except OSError:
        return []


def without(pieces: Iterable[Piece], known: Sequence[Piece]) -> list[Piece]:
    """What of ``pieces`` is in none of ``known``; both are in order and do not overlap."""
    left = []
    at = 0
    for first, end in pieces:
        start = first
        while at < len(known) and known[at][1] <= start:
            at += 1
        while at < len(known) and known[at][0] < end:
            if known[at][0] > start:
                left.append((start, known[at][0]))
            start = max(start, known[at][1])
            if known[at][1] > end:
                break
            at += 1
        if start < end:
            left.append((start, end))
    return left


def around(pieces: Sequence[Piece], places: Iterable[Piece]) -> list[Piece]:
    """Those of ``pieces`` in which one of ``places`` begins."""
    starts = [start for start, _ in pieces]
    found = {bisect_right(starts, start) - 1 for start, end in places if end > start}
    return [pieces[at] for at in sorted(found) if at >= 0]


class Kept:
    """The memory that a program keeps: what is made between here and :meth:`settle`.

    ``uri`` is a runtime's device URI, of a device that is there: the stacks of its workers are not
    the program's. ``also`` are further pieces, which were there before, as weights that are used
    where they lie.
    """

    def __init__(self, uri: str, also: Sequence[Piece] = ()) -> None:
        # What is new may lie where the heap had room.
        asks = sys.platform == "linux" and of_host(uri)
        self._before = _pieces(heap=False) if asks else None
        self._also = also
        self._called = False

    def settle(self) -> bool:
        """Before each call: at the second one ask for large pages; whether one is still to come.

        What calls share is there when the first has ended. A program that is called once is done.
        """
        if self._before is None:
            return False
        if not self._called:
            self._called = True
            return True
        now = _pieces()
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for start, end in [*without(now, self._before), *around(now, self._also)]:
            if end - start >= LARGE:
                # Refused where there are no such pages, or another thread has given the memory
                # back since: all stays as it is.
                advise(start, end - start, mmap.MADV_HUGEPAGE)
                advise(start, end - start, _COLLAPSE)
        self._before = None
        return False
