"""Timing that can be believed on a machine that others use, too.

Contenders are timed in turns, round after round, in one process, so that what slows the machine
down slows all of them alike: the ratio of two contenders is taken within each round, and the
median of the rounds counts. How far the rounds are apart, and how far the baseline drifted from
the first rounds to the last, says how much of a difference means anything.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: A sample is repeated calls that last at least this long together: the clock and the start of a
#: call must not matter.
SHORTEST_SAMPLE_S = 0.02

#: Calls that last this long do not care what was in the caches before.
LONG_S = 1.0


@dataclass(frozen=True)
class Timing:
    """What one contender took: seconds for one call, a sample for each round."""

    name: str
    samples: tuple[float, ...]
    #: Calls in each sample.
    calls: int = 1

    @property
    def median(self) -> float:
        """Seconds, the middle sample."""
        return statistics.median(self.samples)

    @property
    def fastest(self) -> float:
        """Seconds, the fastest sample."""
        return min(self.samples)

    @property
    def spread(self) -> float:
        """Half the range of the middle half of the samples, over the median: 0.02 is 2 %."""
        low, high = _quartiles(self.samples)
        return (high - low) / 2 / self.median

    def as_json(self) -> dict[str, Any]:
        """Milliseconds for each number."""
        return {
            "name": self.name,
            "median_ms": 1e3 * self.median,
            "min_ms": 1e3 * self.fastest,
            "spread": self.spread,
            "rounds": len(self.samples),
            "calls": self.calls,
        }


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as the baseline: 2.0 is half of its time. Quartiles of the rounds."""

    median: float
    low: float
    high: float

    def faster(self, by: float = 0.0) -> bool:
        """Whether the gain exceeds ``by`` (0.03: 3 %) in the median, and three rounds in four
        gained."""
        return self.median > 1 + by and self.low > 1

    def slower(self, by: float = 0.0) -> bool:
        """Whether the loss exceeds ``by``, and three rounds in four lost."""
        return self.median < 1 / (1 + by) and self.high < 1

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Comparison:
    """Contenders timed in turns."""

    baseline: str
    timings: dict[str, Timing]
    #: An interrupt ended it early; every timing has the same, smaller number of rounds.
    interrupted: bool = False

    def __getitem__(self, name: str) -> Timing:
        return self.timings[name]

    def ratio(self, name: str, over: str | None = None) -> Ratio:
        """The time of ``over`` (the baseline) by that of ``name``, round by round."""
        base = self.timings[over or self.baseline].samples
        ratios = [b / s for b, s in zip(base, self.timings[name].samples, strict=True)]
        return Ratio(statistics.median(ratios), *_quartiles(ratios))

    @property
    def drift(self) -> float:
        """The baseline in the last third of the rounds over the first third: 1.0 is no drift."""
        samples = self.timings[self.baseline].samples
        third = max(1, len(samples) // 3)
        return statistics.median(samples[-third:]) / statistics.median(samples[:third])

    def as_json(self) -> dict[str, Any]:
        """All numbers, with the ratios to the baseline."""
        rows = []
        for name, timing in self.timings.items():
            ratio = self.ratio(name)
            rows.append(
                {
                    **timing.as_json(),
                    "ratio": ratio.median,
                    "ratio_low": ratio.low,
                    "ratio_high": ratio.high,
                }
            )
        return {
            "baseline": self.baseline,
            "drift": self.drift,
            "interrupted": self.interrupted,
            "timings": rows,
        }


def paired(
    contenders: Mapping[str, Callable[[], object]],
    *,
    baseline: str | None = None,
    rounds: int = 20,
    seconds: float | None = None,
    warmup: int = 1,
    progress: Callable[[], object] = lambda: None,
) -> Comparison:
    """Time ``contenders`` in turns; each is a function that returns when its work is done.

    Every other round runs backwards, so that no contender always follows the same one, and each
    sample of short calls starts with one that is not timed: what ran before has other data in the
    caches and other threads awake.
    ``baseline`` (the first) is what ratios are against. At most ``rounds`` rounds, and no new one
    after ``seconds``, but at least three. ``progress`` is called after each round. An interrupt
    after the first round ends the timing and keeps what is there; before, it is raised.
    """
    if not contenders:
        raise ValueError("no contenders")
    base = next(iter(contenders)) if baseline is None else baseline
    if base not in contenders:
        raise ValueError(f"the baseline {base!r} is no contender")
    calls = {name: _calls(work, warmup) for name, work in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    began = time.perf_counter()
    interrupted = False
    collecting = gc.isenabled()
    gc.disable()
    try:
        for number in range(max(3, rounds)):
            late = seconds is not None and time.perf_counter() - began > seconds
            if late and number >= 3:
                break
            made = {
                name: _sample(contenders[name], calls[name].count, first=calls[name].first)
                for name in order
            }
            for name, sample in made.items():
                samples[name].append(sample)
            order.reverse()
            progress()
    except KeyboardInterrupt:
        if not samples[base]:
            raise
        interrupted = True
    finally:
        if collecting:
            gc.enable()
    rows = min(len(s) for s in samples.values())
    timings = {
        name: Timing(name, tuple(found[:rows]), calls[name].count)
        for name, found in samples.items()
    }
    return Comparison(base, timings, interrupted)


@dataclass(frozen=True)
class _Calls:
    """How many calls make a sample, and whether one that is not timed comes first."""

    count: int
    first: bool


def _calls(work: Callable[[], object], warmup: int) -> _Calls:
    """Warm ``work`` up, and how it is called."""
    for _ in range(max(0, warmup - 1)):
        work()
    once = _sample(work, 1)
    return _Calls(max(1, round(SHORTEST_SAMPLE_S / max(once, 1e-7))), once < LONG_S)


def _sample(work: Callable[[], object], calls: int, *, first: bool = True) -> float:
    if first:
        work()
    began = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - began) / calls


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
