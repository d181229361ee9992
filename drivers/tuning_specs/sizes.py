"""Sizes of dims, collected from several conditions of a matcher."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlirules.drivers.tuning_specs.settings import SettingsReader


class Limits:
    """Sizes of dims, collected from several conditions; what contradicts is a fault."""

    def __init__(self, maker: SettingsReader) -> None:
        self.maker = maker
        self.low: dict[str, int] = {}
        self.high: dict[str, int] = {}
        self.multiples: dict[str, list[int]] = {}
        self.order: dict[str, int] = {}

    def add(
        self, loop: str, at: int, low: int | None, high: int | None, multiple: int | None = None
    ) -> None:
        """Take up a condition on a loop's size; one that contradicts the others is a fault."""
        self.order.setdefault(loop, at)
        if low is not None:
            self.low[loop] = max(self.low.get(loop, low), low)
        if high is not None:
            self.high[loop] = min(self.high.get(loop, high), high)
        if multiple is not None:
            self.multiples.setdefault(loop, []).append(multiple)
        low, high = self.low.get(loop, 1), self.high.get(loop)
        step = _least_common(self.multiples.get(loop, []))
        if high is not None and (high < low or high // step * step < low):
            self.maker.fault(
                at,
                "never-matches",
                f"no size of {loop!r} fits this and what is asked above: this can never match",
            )
        self.maker.mark(("match", "dims", loop), at)

    def as_data(self) -> dict[str, object]:
        """The sizes as a rule's `dims:`."""
        out: dict[str, object] = {}
        for loop in sorted(self.order, key=self.maker.loops.index):
            low, high = self.low.get(loop), self.high.get(loop)
            if low is not None and low == high:
                out[loop] = low
                continue
            step = _least_common(self.multiples.get(loop, []))
            given = {"min": low, "max": high, "multiple_of": step if step > 1 else None}
            out[loop] = {k: v for k, v in given.items() if v is not None}
        return {loop: size for loop, size in out.items() if size != {}}


def _least_common(numbers: Sequence[int]) -> int:
    return math.lcm(*numbers) if numbers else 1
