"""What the roofline model knows of a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Class", "Parameters"]

Class = Literal[
    "contraction",
    "strided-contraction",
    "swapped-contraction",
    "convolution",
    "strided-convolution",
    "depthwise",
    "scalar-depthwise",
    "attention",
    "reduction",
    "elementwise",
    "other",
]

# What stands in a file of parameters is held against these where it is read: parameters_file.
#: Above 0.
Positive: TypeAlias = float
#: 0 or above.
NotNegative: TypeAlias = float
#: 1 or above.
Count: TypeAlias = int


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What the model knows of a target."""

    #: The kind: cpu, vulkan, cuda, hip.
    target: str
    summary: str
    #: Fitted to measurements, or declared from a data sheet.
    measured: bool
    #: What one more dispatch costs, microseconds.
    launch_us: Positive
    #: Memory traffic, 10^9 bytes a second.
    bandwidth_gbs: Positive
    #: 10^9 operations a second by element type; f32 is among them.
    peak_gflops: dict[str, Positive]
    #: The share of the peak that the compiler's kernels of a class reach.
    efficiency: dict[Class, Positive]
    #: The most places along a row that the compiler's kernels of convolutions compute at once. It
    #: takes a divisor of the row's length, so that no part is left over.
    row_tile: Count = 1
    #: Of rows of which it takes d at once (d / row_tile) ** row_exponent of the efficiency is left.
    row_exponent: NotNegative = 0.0
    #: How many operations an exponential, a logarithm, an erf ... stands for.
    special_flops: Positive
    #: What a dispatch touches up to this size counts as in a cache, 10^6 bytes.
    cache_mb: NotNegative
    #: Traffic with that cache, 10^9 bytes a second.
    cache_gbs: Positive
    #: A result above this size (10^6 bytes) is memory that the process gets anew in each call.
    fresh_mb: NotNegative | None = None
    #: How fast such memory is written the first time, 10^9 bytes a second.
    fresh_gbs: Positive | None = None

    def memory(self, moved: float, results: Sequence[float]) -> float:
        """Seconds for ``moved`` bytes, of which results of these sizes are written."""
        cached = moved <= 1e6 * self.cache_mb
        seconds = moved / (1e9 * (self.cache_gbs if cached else self.bandwidth_gbs))
        if self.fresh_mb is not None and self.fresh_gbs is not None:
            fresh = sum(size for size in results if size > 1e6 * self.fresh_mb)
            seconds += fresh / (1e9 * self.fresh_gbs)
        return seconds

    def of_rows(self, length: int) -> float:
        """The share of a convolution's efficiency that rows of this many places leave."""
        taken = max(d for d in range(1, self.row_tile + 1) if length % d == 0)
        return float((taken / self.row_tile) ** self.row_exponent)

    def peak(self, element: str) -> float:
        """Operations a second for an element type; other types count as f32."""
        return 1e9 * self.peak_gflops.get(element, self.peak_gflops["f32"])
