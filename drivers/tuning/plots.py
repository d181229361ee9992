"""The plots of a search as views: what is drawn where, in the units of the picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import roofline as model
from mlirules.drivers.tuning.outcome import Tuned
from mlirules.drivers.tuning.store import Measured
from mlirules.language.faults import MlirulesError

__all__ = ["Picture", "distribution", "progress", "roofline"]

_BLUE, _GREEN, _GREY, _RED = "#2f6fbb", "#11734b", "#8795a5", "#a12626"


@dataclass(frozen=True)
class Frame:
    """A picture's size, and the edges of the area within its axes."""

    width: int = 460
    height: int = 260
    left: int = 56
    right: int = 446
    top: int = 14
    bottom: int = 218


@dataclass(frozen=True)
class Tick:
    """A value that an axis names, and where it is."""

    at: float
    label: str


@dataclass(frozen=True)
class Dot:
    """A circle; ``label`` is told when one points at it."""

    shape: ClassVar[str] = "dot"
    x: float
    y: float
    radius: float
    colour: str
    label: str


@dataclass(frozen=True)
class Path:
    """A line through points; ``dash`` as SVG has it, empty for a solid one."""

    shape: ClassVar[str] = "path"
    points: tuple[tuple[float, float], ...]
    colour: str
    dash: str


@dataclass(frozen=True)
class Bar:
    """A bar that stands on the lower axis."""

    shape: ClassVar[str] = "bar"
    x: float
    y: float
    width: float
    height: float
    colour: str
    label: str


Mark = Dot | Path | Bar


@dataclass(frozen=True)
class Picture:
    """A plot as the template draws it. ``marks`` lie one upon the other, the last on top."""

    frame: ClassVar[Frame] = Frame()
    title: str
    caption: str
    x_label: str
    y_label: str
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class _Axis:
    label: str
    low: float
    high: float
    log: bool = False

    def at(self, value: float, start: float, stop: float) -> float:
        low, high, value = (
            (math.log10(v) for v in (self.low, self.high, value))
            if self.log
            else (self.low, self.high, value)
        )
        share = (value - low) / ((high - low) or 1)
        return start + share * (stop - start)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            made = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5)]
            inside = [t for t in made if self.low <= t <= self.high * 1.0001]
            tens = [t for t in inside if f"{t:e}".startswith("1.0")]
            return inside if len(inside) <= 9 else tens
        step = 10.0 ** math.floor(math.log10((self.high - self.low) or 1))
        if (self.high - self.low) / step > 5:
            step *= 2
        elif (self.high - self.low) / step < 2.5:
            step /= 2
        first = math.ceil(self.low / step)
        return [step * i for i in range(first, int(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class _Axes:
    """Two axes: what is given in their units becomes marks in the picture's."""

    x: _Axis
    y: _Axis

    def place(self, x: float, y: float) -> tuple[float, float]:
        frame = Picture.frame
        return self.x.at(x, frame.left, frame.right), self.y.at(y, frame.bottom, frame.top)

    def dot(self, at: tuple[float, float], colour: str, label: str, radius: float) -> Dot:
        return Dot(*self.place(*at), radius, colour, label)

    def path(self, points: Sequence[tuple[float, float]], colour: str, dash: str = "") -> Path:
        return Path(tuple(self.place(x, y) for x, y in points), colour, dash)

    def bar(self, start: float, stop: float, height: float, colour: str, label: str) -> Bar:
        (left, top), (right, _) = self.place(start, height), self.place(stop, height)
        stands = max(Picture.frame.bottom - top, 0)
        return Bar(left + 0.5, top, max(right - left - 1, 0.5), stands, colour, label)

    def picture(self, title: str, caption: str, marks: Sequence[Mark]) -> Picture:
        x, y = self.x, self.y
        return Picture(
            title,
            caption,
            x.label,
            y.label,
            tuple(Tick(self.place(t, y.low)[0], f"{t:g}") for t in x.ticks()),
            tuple(Tick(self.place(x.low, t)[1], f"{t:g}") for t in y.ticks()),
            tuple(marks),
        )


def progress(tuned: Tuned) -> Picture:
    """How fast each candidate is that ran, and the best so far."""
    ratios = [
        (i, m.result.ratio or 0.0, m)
        for i, m in enumerate(tuned.measured, 1)
        if m.result.tuned_ms and m.result.ratio
    ]
    top = max(r for _, r, _ in ratios)
    low = min(min(r for _, r, _ in ratios), 1.0)
    end = max(len(tuned.measured), 1)
    axes = _Axes(
        _Axis("candidates tried", 0, end),
        _Axis("times as fast as the default", low * 0.9, max(top, 1.0) * 1.1, log=True),
    )
    marks: list[Mark] = []
    best = 0.0
    line: list[tuple[float, float]] = []
    for i, ratio, m in ratios:
        marks.append(axes.dot((i, ratio), _GREY, f"{m.candidate.label}: {ratio:.2f}", 2.2))
        if ratio > best and m.result.state == "ok":
            if line:
                line.append((i, best))
            best = ratio
            line.append((i, best))
    if line:
        line.append((len(tuned.measured), best))
        marks.append(axes.path(line, _BLUE))
    marks.append(axes.path([(0, 1.0), (end, 1.0)], _RED, "4 3"))
    return axes.picture(
        "best so far by candidate",
        "Best so far (line) and every candidate that ran (dots). Dashed: default.",
        marks,
    )


def distribution(timed: Sequence[Measured]) -> Picture:
    """How many of the candidates with times are how fast."""
    logs = sorted(math.log2(m.result.ratio or 1.0) for m in timed)
    low, high = min(logs[0], 0.0), max(logs[-1], 0.0)
    if high - low < 0.2:
        low, high = low - 0.1, high + 0.1
    count = min(24, max(6, len(logs)))
    width = (high - low) / count
    bins = [0] * count
    for value in logs:
        bins[min(count - 1, int((value - low) / width))] += 1
    axes = _Axes(
        _Axis("times as fast as the default", 2**low, 2**high, log=True),
        _Axis("candidates", 0, max(bins) * 1.1),
    )
    marks = []
    for index, number in enumerate(bins):
        if number:
            start, stop = 2 ** (low + index * width), 2 ** (low + (index + 1) * width)
            colour = _GREEN if start >= 1 else _GREY
            label = f"{number}: {start:.2f} to {stop:.2f}"
            marks.append(axes.bar(start, stop, number, colour, label))
    return axes.picture(
        "distribution of candidates",
        "How many candidates are how fast. Green: faster than the default.",
        marks,
    )


def roofline(tuned: Tuned, timed: Sequence[Measured], target: Target) -> Picture | None:
    """Candidates beside what the device can do; None where nothing is known of its peak."""
    root = tuned.task.root
    try:
        known = model.parameters(target.kind)
    except (MlirulesError, OSError):
        return None
    peak, wide = known.peak(root.elements[0]) / 1e9, known.bandwidth_gbs
    intensity = root.flops / root.bytes
    rates = [root.flops / ((m.result.tuned_ms or 1) * 1e6) for m in timed]
    default = root.flops / (tuned.default_ms * 1e6)
    fastest = max(*rates, default)
    ridge = peak / wide
    x = _Axis(
        "operations for each byte",
        min(intensity / 8, ridge / 4),
        max(intensity * 8, ridge * 4),
        log=True,
    )
    y = _Axis(
        "10^9 operations a second",
        min([*rates, default, wide * x.low]) * 0.7,
        max(peak, fastest) * 1.5,
        log=True,
    )
    axes = _Axes(x, y)
    marks: list[Mark] = [
        axes.path([(x.low, wide * x.low), (ridge, peak), (x.high, peak)], _BLUE),
        *(
            axes.dot((intensity, rate), _GREY, f"{m.candidate.label}: {rate:.1f}", 2.2)
            for rate, m in zip(rates, timed, strict=True)
        ),
        axes.dot((intensity, default), _RED, f"default: {default:.1f}", 4.5),
    ]
    if tuned.winner is not None:
        won = root.flops / (tuned.winner.tuned_ms * 1e6)
        marks.append(axes.dot((intensity, won), _GREEN, f"winner: {won:.1f}", 4.5))
    return axes.picture(
        "roofline",
        f"Line: what this device can do ({peak:g} billion operations and {wide:g} GB a second). "
        "Red: default, green: winner, grey: other candidates.",
        marks,
    )
