"""Ops that can be compiled in several forms, in numbers: what the learned model looks at.

A *form* is a way to compute an op: by a kernel, as a product of unrolled windows, with factors
packed into blocks. What a form takes depends on the op's sizes, on what they leave over of vectors
and of the code generator's tiles, on steps and bytes: :func:`features` says those by name,
:func:`rough` a first guess of the work of a form, which the model multiplies by what it learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "FEATURES",
    "FORMS",
    "SIZES",
    "Convolution",
    "Product",
    "Work",
    "features",
    "forms",
    "kind",
    "rough",
    "sole",
    "transforms",
]

#: Each kind of op, and its forms.
FORMS: dict[str, tuple[str, ...]] = {
    "1x1 convolution": ("kernel", "plain", "one-by-one"),
    "3x3 and larger convolution": ("kernel", "plain", "im2col", "winograd"),
    "depthwise convolution": ("kernel", "plain", "places", "channels-last"),
    "product": ("packed", "unpacked"),
}


@dataclass(frozen=True)
class Convolution:
    """A convolution of one NCHW image of f32 by square windows."""

    channels: int
    filters: int
    window: int
    stride: int
    #: The image's, without what pads it.
    high: int
    wide: int
    #: The result's.
    height: int
    width: int
    #: Each channel by a window of its own.
    depthwise: bool = False


@dataclass(frozen=True)
class Product:
    """``rows`` vectors of ``inner`` numbers of f32 by a constant of as many columns."""

    rows: int
    inner: int
    columns: int


Work: TypeAlias = Convolution | Product


def kind(work: Work) -> str:
    """The kind of an op, which says what forms it may have."""
    if isinstance(work, Product):
        return "product"
    if work.depthwise:
        return "depthwise convolution"
    return "1x1 convolution" if work.window == 1 else "3x3 and larger convolution"


def forms(work: Work) -> tuple[str, ...]:
    """The forms that the shipped rules have for an op."""
    every = FORMS[kind(work)]
    if isinstance(work, Product):
        return every
    return tuple(form for form in every if _fits(work, form))


def _fits(work: Convolution, form: str) -> bool:
    by_places = work.stride == 1 and work.window in (3, 5)
    match form:
        case "kernel" if work.depthwise:
            return work.width >= 4
        case "kernel":
            return work.height * work.width >= 32 and work.filters >= 4
        case "winograd":
            return work.window == 3 and work.stride == 1 and min(work.channels, work.filters) >= 128
        case "places":
            return by_places
        case "channels-last":
            return not by_places and work.channels >= 8 and min(work.height, work.width) > 1
    return True


def sole(work: Work) -> str | None:
    """The form of an op that is right whatever was learned; None where there are several.

    A 1x1 convolution of 16 channels or more to fewer places than a kernel takes: as a product never
    slower by more than 4 %, and up to four times as fast as what the compiler has (22 shapes on a
    Zen 3), which a model of larger images does not see. Of 8 channels one took 1.34 of the time.
    """
    if isinstance(work, Product) or work.depthwise or work.window > 1:
        return None
    if work.filters < 4 or work.channels < 16:
        return None
    return None if _fits(work, "kernel") else "one-by-one"


def transforms(work: Convolution, lanes: int, *, halves: bool = False) -> bool:
    """Whether the kernel takes Winograd's form: rules/kernels/kernel-convolution says when.

    ``halves``: vectors of so many lanes are taken one half after the other.
    """
    c, f, i, j = work.channels, work.filters, work.height, work.width
    wide = lanes == 16 and not halves
    tiles = -(-i // 4) * -(-j // 4)
    return (
        not work.depthwise
        and (work.window, work.stride) == (3, 1)
        and lanes >= 8
        and f % lanes == 0
        and c >= 16
        and (f >= (64 if wide else 24) or (f >= 32 and c <= 2 * f))
        and (wide or c <= 16 * f)
        and tiles >= (16 if wide else 4)
        and (
            not halves
            or tiles >= 16
            or 5 * i * j >= 64 * tiles
            or c * f >= (60000 if tiles >= 9 else 200000)
        )
        and c * f * i * j >= (1100000 if wide else 200000)
    )


def over(size: int, step: int) -> float:
    """What steps of that length cover over the size itself: 1 where they divide it."""
    return -(-size // step) * step / size


def _divisor(size: int, most: int = 8) -> int:
    """The largest divisor up to a bound: how much of a row IREE takes at once."""
    return max(d for d in range(1, most + 1) if size % d == 0)


#: What the trees may ask, in this order.
FEATURES = (
    "channels",
    "filters",
    "window",
    "stride",
    "width",
    "places",
    "inner",
    "flops",
    "bytes",
    "weights",
    "image",
    "unrolled bytes",
    "gathers",
    "rounds",
    "lanes over",
    "eights over",
    "tiles",
    "channel blocks",
    "filters over vectors",
    "channels over vectors",
    "places over vectors",
    "width over vectors",
    "width divisor",
    "image width divisor",
    "image divisor",
    "height divisor",
    "channels divisor",
    "filters divisor",
    "places divisor",
    "inner divisor",
    "quads over",
)
#: Those of them beyond whose measured values a model says nothing.
SIZES = ("channels", "filters", "window", "stride", "width", "places", "flops")


def features(work: Work, lanes: int) -> tuple[float, ...]:
    """The numbers of :data:`FEATURES`; ``lanes`` is how many f32 a vector of the CPU holds.

    Sizes are logarithms. A product counts as a 1x1 convolution of ``rows`` places.
    """
    if isinstance(work, Product):
        one = Convolution(work.inner, work.columns, 1, 1, 1, work.rows, 1, work.rows)
        return features(one, lanes)
    c, f, q, s, i, j = (
        work.channels,
        work.filters,
        work.window,
        work.stride,
        work.height,
        work.width,
    )
    depth = 1 if work.depthwise else c
    places, inner = i * j, depth * q * q
    tiles = _tiles(work, lanes)
    log = math.log2
    return (
        log(c),
        log(f),
        float(q),
        float(s),
        log(j),
        log(places),
        log(inner),
        log(2.0 * f * inner * places),
        log(_bytes(work)),
        log(4.0 * f * inner),
        log(4.0 * c * work.high * work.wide),
        log(4.0 * inner * places),
        float(tiles.gathers),
        float(tiles.rounds),
        tiles.over,
        over(f, 8),
        log(tiles.count),
        float(-(-depth // max(1, 256 // (q * q)))),
        over(f, lanes),
        over(c, lanes),
        over(places, lanes),
        over(j, lanes),
        float(_divisor(j)),
        float(_divisor(work.wide, 16)),
        float(_divisor(work.high * work.wide, 16)),
        float(_divisor(i)),
        float(_divisor(c, 16)),
        float(_divisor(f, 32)),
        float(_divisor(places, 32)),
        float(_divisor(inner, 32)),
        over(i, 4),
    )


@dataclass(frozen=True)
class _Tiles:
    """How a kernel goes over the places of a result."""

    #: Tiles, the places of each, and what they cover over the result's places.
    count: int
    vector: int
    over: float
    #: Places are gathered one by one.
    gathers: bool
    #: How often what windows cover is laid out: once for all filters of a workgroup.
    rounds: int


def _tiles(work: Convolution, lanes: int) -> _Tiles:
    """As the kernels' rules say: rules/kernels/kernel-convolution, kernel-depthwise."""
    i, j, f = work.height, work.width, work.filters
    if work.depthwise:
        vector = lanes // 2 if lanes == 16 and j <= 8 else lanes
        return _Tiles(-(-j // vector) * i, vector, over(j, vector), False, 1)
    wide = lanes if lanes == 8 else 2 * lanes
    flat = work.stride == 1
    fitting = lanes if j <= lanes else wide
    gathers = not flat and (work.stride > 2 or j * 5 < 3 * fitting * -(-j // fitting))
    rows, length = (1, i * j) if flat or gathers else (i, j)
    vector = lanes if length <= lanes else wide
    count = -(-length // vector) * rows
    parts = -(-f // 256) if count > 8 else f // 128 if f >= 512 else max(1, f // 64)
    return _Tiles(
        count, vector, count * vector / (i * j), gathers, -(-f // (8 * -(-f // (8 * parts))))
    )


def _bytes(work: Convolution) -> float:
    """What must be read and written."""
    depth = 1 if work.depthwise else work.channels
    image = work.channels * work.high * work.wide
    weights = work.filters * depth * work.window**2
    return 4.0 * (image + weights + work.filters * work.height * work.width)


def rough(work: Work, form: str, lanes: int) -> tuple[float, float]:
    """A form's arithmetic with what its tiles leave over, and the bytes that it moves."""
    if isinstance(work, Product):
        pairs = float(work.rows * work.inner * work.columns)
        moved = 4.0 * (
            work.rows * work.inner + work.inner * work.columns + work.rows * work.columns
        )
        if form == "packed":
            pairs *= over(work.columns, lanes)
        return 2 * pairs, moved
    places = work.height * work.width
    inner = (1 if work.depthwise else work.channels) * work.window**2
    flops, moved = 2.0 * work.filters * inner * places, _bytes(work)
    match form:
        case "kernel":
            tiles = _tiles(work, lanes)
            flops *= tiles.over
            if work.depthwise:
                flops *= over(work.height, 4)
            else:
                flops *= over(work.filters, 8)
                laid = 4.0 * inner * tiles.count * tiles.vector * tiles.rounds
                moved += laid * (8 if tiles.gathers else 1)
        case "plain":
            flops /= _divisor(work.width)
        case "im2col" | "one-by-one":
            flops *= over(work.filters, lanes) * over(places, lanes)
            moved += 8.0 * inner * places
        case "winograd":
            squares = -(-work.height // 4) * -(-work.width // 4)
            flops = 72.0 * work.filters * work.channels * squares * over(squares, lanes)
            flops *= over(work.filters, lanes)
            moved += 4.0 * 36 * (2 * (work.channels + work.filters) * squares)
            moved += 4.0 * 27 * work.filters * work.channels
        case "places":
            flops *= over(work.width, lanes)
        case "channels-last":
            flops *= lanes / _divisor(work.channels, lanes)
            moved *= 2
    return flops, moved
