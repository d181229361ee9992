"""The caches as a network leaves them: what a layer reads of weights lies far away.

A network meets each layer once in a call, and goes over all its other weights before it comes
back. A layer that is timed again and again finds its own in the second cache, and a form that has
four times the weights looks fast that a network is slower by.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

__all__ = ["AWAY", "Away", "second_cache"]

#: Bytes that are read between two calls: what a network of some 30 million weights goes over. The
#: second cache alone is not enough, and the third is shared with machines that none of them sees.
#: Winograd's form of 256 filters over 256x14x14, on a 2-core Granite Rapids: 0.78 ms again and
#: again, 0.82, 0.88, 1.53 and 1.67 ms with 8, 32, 128 and 256 MB read between calls, 1.60 ms as one
#: of eight such layers.
AWAY = 128 << 20

_SECOND = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")


def second_cache() -> int | None:
    """The bytes of a core's second cache, where Linux says them."""
    try:
        said = _SECOND.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(said.removesuffix("K")) << 10 if said.endswith("K") else None


class Away:
    """Memory that is read between calls, so that nothing else is left in the caches."""

    def __init__(self) -> None:
        # Four times the second cache: which lines go first is the CPU's own affair.
        size = max(AWAY, 4 * (second_cache() or 0))
        # Small pages, as those of weights, whose addresses have to be looked up again, too.
        self._memory = np.frombuffer(mmap.mmap(-1, size), np.float32)
        # Pages that were never written are all the same one.
        self._memory.fill(1)

    def __call__(self) -> None:
        """Read all of it."""
        self._memory.max()
