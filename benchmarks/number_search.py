"""Search for wrong numbers: made-up programs under exactly a shipped pipeline, against PyTorch.

Each number makes one small program: a product, a convolution, a pooling, a reduction or a chain of
products, with odd, prime, 1-sized and large sizes, batches, groups, strides and dilations, and what
models put before and after them (softmax, normalisation, residuals, other orders of dims). Each odd
number makes a sequence: ops that compute, and between them ops that move (pads, slices, `cat`,
`roll`, `flip`, reshapes, other orders of dims, parts written into tensors, tensors read in two
orders at once), which compilers fuse with them. Several
are compiled together; what fails together is compiled alone. Results go to a file line by line: run
again to go on.

    python benchmarks/number_search.py --seconds 600 --store numbers.jsonl
    python benchmarks/number_search.py --only 137 --target vulkan --pipeline vulkan
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.fx import fx_import
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import Recipe, default_for
from mlirules.language.faults import MlirulesError
from mlirules.language.pipeline import Pipeline

SIZES = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33, 64, 79, 97, 128, 130)
#: Largest difference that rounding explains, relative to the largest result.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
#: Programs in one compilation.
TOGETHER = 12

Function = Callable[..., torch.Tensor]


@dataclass
class Case:
    """A program: what it computes, in words and as a function of ``inputs``."""

    number: int
    words: str
    function: Function
    inputs: list[torch.Tensor]


class _Module(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


# ---------------------------------------------------------------- programs


def case(number: int) -> Case:
    """The program of a number, always the same one."""
    pick = random.Random(number)
    kinds = [_product, _convolution, _reduction, _chain, _pooling]
    made = _sequence(pick) if number % 2 else pick.choices(kinds, [5, 5, 4, 3, 1])[0](pick)
    words, function, shapes, dtype = made
    generator = torch.Generator().manual_seed(number)
    inputs = [torch.randn(s, generator=generator).to(dtype) for s in shapes]
    return Case(number, f"{words} {shapes} {str(dtype)[6:]}", function, inputs)


_Made = tuple[str, Function, list[tuple[int, ...]], torch.dtype]


def _dtype(pick: random.Random) -> torch.dtype:
    return pick.choices([torch.float32, torch.float16, torch.bfloat16], [8, 1, 1])[0]


def _normalised(x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:])


#: What stands before a factor and after a result, by name.
AROUND: dict[str, Function] = {
    "": lambda x: x,
    "softmax": lambda x: x.softmax(-1),
    "layer norm": _normalised,
    "l2 norm": lambda x: x / (x * x).sum(-1, keepdim=True).sqrt().clamp_min(0.1),
    "tanh": torch.tanh,
    "less its mean": lambda x: x - x.mean(-1, keepdim=True),
    "softmax of columns": lambda x: x.softmax(-2) if x.dim() > 1 else x,
    "doubled": lambda x: x + x,
}
AFTER: dict[str, Function] = {
    **AROUND,
    "sum": lambda x: x.sum(-1),
    "mean of rows": lambda x: x.mean(-2) if x.dim() > 1 else x,
    "largest": lambda x: x.amax(-1),
    "transposed": lambda x: x.transpose(-1, -2) if x.dim() > 1 else x,
}


def _around(pick: random.Random, table: dict[str, Function]) -> tuple[str, Function]:
    name = pick.choice(["", "", *table])
    return name, table[name]


def _batch(pick: random.Random) -> tuple[int, ...]:
    return tuple(pick.choice((1, 2, 3, 4)) for _ in range(pick.choice((0, 1, 1, 2))))


def _product(pick: random.Random) -> _Made:
    m, k, n = (pick.choice(SIZES) for _ in "mkn")
    batch = _batch(pick)
    left, right = pick.random() < 0.25, pick.random() < 0.4
    shared = bool(batch) and pick.random() < 0.25
    (before, f), (beside, g), (after, h) = (_around(pick, t) for t in (AROUND, AROUND, AFTER))

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = f(a), g(b)
        a = a.transpose(-1, -2) if left else a
        b = b.transpose(-1, -2) if right else b
        return h(a @ b)

    shape_a = (*batch, k, m) if left else (*batch, m, k)
    shape_b = (*(() if shared else batch), *((n, k) if right else (k, n)))
    words = f"product of [{before}]{'^T' * left} and [{beside}]{'^T' * right} then [{after}]"
    return words, function, [shape_a, shape_b], _dtype(pick)


def _chain(pick: random.Random) -> _Made:
    """Two products with something between them: attention, perceptrons."""
    m, k, n, p = (pick.choice(SIZES) for _ in "mknp")
    batch = _batch(pick)
    (before, f), (between, g), (after, h) = (_around(pick, t) for t in (AROUND, AROUND, AFTER))

    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return h(g(f(a) @ b.transpose(-1, -2)) @ c)

    words = f"product of [{before}] then [{between}], product, then [{after}]"
    shapes = [(*batch, m, k), (*batch, n, k), (*batch, n, p)]
    return words, function, shapes, _dtype(pick)


def _convolution(pick: random.Random) -> _Made:
    rank = pick.choice((1, 2, 2))
    groups = pick.choice((1, 1, 1, 2, 3, 4, 6, 8, 12, 16, 28))
    inner = pick.choice((1, 1, 2, 3, 5, 8, 16))
    outer = pick.choice((1, 1, 2, 3, 5, 8, 16))
    if groups > 1 and pick.random() < 0.4:
        inner = outer = 1  # depthwise
    transposed = pick.random() < 0.15
    kernel = tuple(pick.choice((1, 1, 2, 3, 3, 4, 5, 7)) for _ in range(rank))
    if rank == 1 and pick.random() < 0.3:
        kernel = (16,)
    stride = pick.choice((1, 1, 2, 3))
    dilation = pick.choice((1, 1, 1, 2, 3))
    padding = tuple(pick.choice((0, k // 2, k // 2)) for k in kernel)
    size = tuple((k - 1) * dilation + pick.choice((1, 2, 5, 8, 13, 16, 31)) for k in kernel)
    bias = pick.random() < 0.5
    after, h = _around(pick, AFTER)
    batch = pick.choice((1, 1, 2, 3))
    op: Any = getattr(functional, f"conv{'_transpose' * transposed}{rank}d")

    def function(x: torch.Tensor, w: torch.Tensor, *b: torch.Tensor) -> torch.Tensor:
        options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        return h(op(x, w, b[0] if b else None, **options))

    ends = (groups * inner, outer) if transposed else (groups * outer, inner)
    shapes: list[tuple[int, ...]] = [(batch, groups * inner, *size), (*ends, *kernel)]
    shapes += [(groups * outer,)] * bias
    words = (
        f"convolution{' transposed' * transposed}, kernel {kernel}, stride {stride}, "
        f"padding {padding}, dilation {dilation}, groups {groups} then [{after}]"
    )
    return words, function, shapes, torch.float32


def _reduction(pick: random.Random) -> _Made:
    shape = tuple(pick.choice(SIZES[:12]) for _ in range(pick.choice((1, 2, 3, 4))))
    while np.prod(shape) > 200_000:
        shape = tuple(max(1, d // 2) for d in shape)
    dims = tuple(d for d in range(len(shape)) if pick.random() < 0.6) or (-1,)
    keep = pick.random() < 0.5
    table: dict[str, Function] = {
        "sum": lambda x: x.sum(dims, keepdim=keep),
        "mean": lambda x: x.mean(dims, keepdim=keep),
        "largest": lambda x: x.amax(dims, keepdim=keep),
        "variance": lambda x: x.var(dims, correction=0, keepdim=keep),
        "log of sums": lambda x: x.logsumexp(dims, keepdim=keep),
        "softmax": lambda x: x.softmax(dims[0]),
        "running sum": lambda x: x.cumsum(dims[0]),
        "norm": lambda x: torch.linalg.vector_norm(x, dim=dims, keepdim=keep),
    }
    name = pick.choice(list(table))
    before, f = _around(pick, AROUND)
    after, h = _ordered(pick)
    reduce = table[name]
    words = f"{name} over {dims} of [{before}]{after}"
    return words, lambda x: h(reduce(f(x))), [shape], torch.float32


def _ordered(pick: random.Random) -> tuple[str, Function]:
    """Half of the time, dims in another order: the same for every result of so many dims."""
    if pick.random() < 0.5:
        return "", lambda x: x
    order = pick.sample(range(4), 4)
    return f", dims by {order}", lambda x: x.permute([d for d in order if d < x.dim()])


def _pooling(pick: random.Random) -> _Made:
    rank = pick.choice((1, 2, 2))
    kernel = tuple(pick.choice((1, 2, 3, 3, 5)) for _ in range(rank))
    stride = pick.choice((1, 2, 2, 3))
    padding = tuple(pick.choice((0, k // 2)) for k in kernel)
    size = tuple(k + pick.choice((1, 2, 5, 8, 13, 16)) for k in kernel)
    name = pick.choice(("avg_pool", "max_pool"))
    op: Any = getattr(functional, f"{name}{rank}d")
    after, h = _ordered(pick)
    shape = (pick.choice((1, 2, 3)), pick.choice((1, 2, 4, 7, 12, 28, 30, 32)), *size)
    words = f"{name}, kernel {kernel}, stride {stride}, padding {padding}{after}"
    return words, lambda x: h(op(x, kernel, stride, padding)), [shape], torch.float32


#: Widths that vectors of four divide, that those of two divide, and odd ones.
WIDTHS = (4, 8, 12, 14, 15, 16, 18, 28, 30, 32, 33, 63, 64, 66, 68)

_Step = tuple[str, Function, list[tuple[int, ...]]]


def _sequence(pick: random.Random) -> _Made:
    """Two to five ops one after the other, of which those that move stand beside all others."""
    rank = pick.choice((2, 3, 3, 4))
    shape = tuple(pick.choice((1, 2, 3, 4, 8, 16)) for _ in range(rank - 2))
    shape += (pick.choice(WIDTHS[:12]), pick.choice(WIDTHS))
    shapes, steps, words = [shape], [], []
    x = torch.zeros(shape)
    for number in range(pick.choice((2, 3, 3, 4, 5))):
        makers = _MOVING if (number % 2) == (pick.random() < 0.3) else _COMPUTING
        said, f, further = pick.choice(makers)(pick, x)
        y = f(x, *(torch.zeros(s) for s in further))
        if not 0 < y.numel() <= 120_000 or y.dim() > 5:
            continue
        x = y
        words.append(said)
        steps.append((f, len(shapes), len(shapes) + len(further)))
        shapes += further

    def function(*inputs: torch.Tensor) -> torch.Tensor:
        value = inputs[0]
        for f, first, end in steps:
            value = f(value, *inputs[first:end])
        return value + value if not steps else value

    return f"sequence {', '.join(words) or 'doubled'}", function, shapes, torch.float32


def _dim(pick: random.Random, x: torch.Tensor) -> int:
    """A dim, the last one most of the time."""
    return pick.choice([-1, -1, -1, *range(-x.dim(), 0)]) if x.dim() else 0


def _padded(pick: random.Random, x: torch.Tensor) -> _Step:
    count = pick.choice([n for n in (1, 1, 2) if n <= x.dim()])
    by = [pick.choice((0, 1, 1, 2, 3)) for _ in range(2 * count)]
    value = pick.choice((0.0, 0.0, 1.5))
    return f"padded by {by} of {value}", lambda t: functional.pad(t, by, value=value), []


def _part(pick: random.Random, x: torch.Tensor) -> _Step:
    dim = _dim(pick, x)
    size = x.shape[dim]
    start = pick.randrange(min(size, 6))
    end, step = size - pick.randrange(min(size - start, 4)), pick.choice((1, 1, 1, 2, 3))

    def function(t: torch.Tensor) -> torch.Tensor:
        places: list[Any] = [slice(None)] * t.dim()
        places[dim] = slice(start, end, step)
        return t[tuple(places)]

    return f"part {start}:{end}:{step} of {dim}", function, []


def _one(pick: random.Random, x: torch.Tensor) -> _Step:
    dim = -pick.randrange(1, x.dim() + 1)
    place = pick.randrange(x.shape[dim])
    if x.dim() < 3:
        return _part(pick, x)
    return f"place {place} of {dim}", lambda t: t.select(dim, place), []


def _joined(pick: random.Random, x: torch.Tensor) -> _Step:
    dim = _dim(pick, x)
    shape = list(x.shape)
    shape[dim] = pick.choice((1, 2, 3, 4, shape[dim]))
    first = pick.random() < 0.5
    words = f"joined along {dim} {'after' if first else 'before'} {shape[dim]}"
    return words, lambda t, y: torch.cat([y, t] if first else [t, y], dim), [tuple(shape)]


def _doubled(pick: random.Random, x: torch.Tensor) -> _Step:
    dim = _dim(pick, x)
    return f"beside its sine along {dim}", lambda t: torch.cat([t, t.sin()], dim), []


def _rolled(pick: random.Random, x: torch.Tensor) -> _Step:
    dim, by = _dim(pick, x), pick.choice((1, 2, 3, -1))
    return f"rolled by {by} along {dim}", lambda t: t.roll(by, dim), []


def _flipped(pick: random.Random, x: torch.Tensor) -> _Step:
    dim = _dim(pick, x)
    return f"flipped along {dim}", lambda t: t.flip(dim), []


def _permuted(pick: random.Random, x: torch.Tensor) -> _Step:
    order = pick.sample(range(x.dim()), x.dim())
    return f"dims by {order}", lambda t: t.permute(order), []


def _reshaped(pick: random.Random, x: torch.Tensor) -> _Step:
    if x.dim() > 1 and pick.random() < 0.6:
        at = pick.randrange(x.dim() - 1)
        return f"dims {at} and {at + 1} as one", lambda t: t.flatten(at, at + 1), []
    dim = pick.randrange(x.dim())
    size = x.shape[dim]
    parts = pick.choice([n for n in (2, 3, 4, 8, size) if n <= size and size % n == 0])
    return f"dim {dim} in {parts}", lambda t: t.unflatten(dim, (parts, size // parts)), []


def _repeated(pick: random.Random, _x: torch.Tensor) -> _Step:
    if pick.random() < 0.5:
        return "in front of itself", lambda t: torch.stack([t, t.tanh()], 1), []
    return "each twice", lambda t: t.repeat_interleave(2, -1), []


def _swapped(_pick: random.Random, _x: torch.Tensor) -> _Step:
    def function(t: torch.Tensor) -> torch.Tensor:
        half = t.shape[-1] // 2
        return torch.cat([-t[..., half:], t[..., :half]], -1)

    return "halves turned", function, []


def _put(pick: random.Random, x: torch.Tensor) -> _Step:
    """A part that is written into zeros, or into what it is a part of."""
    fresh = pick.random() < 0.6
    places: list[Any] = []
    for size in x.shape:
        if pick.random() < 0.4:
            places.append(slice(None))
            continue
        start = pick.randrange(min(size, 4))
        end = size - pick.randrange(min(size - start, 3))
        places.append(slice(start, end, pick.choice((1, 2))))
    at = tuple(places)

    def function(t: torch.Tensor) -> torch.Tensor:
        into = torch.zeros_like(t) if fresh else t.clone()
        into[at] = t[at].tanh()
        return into

    said = ", ".join(f"{p.start or ''}:{p.stop or ''}:{p.step or ''}" for p in places)
    return f"its part {said} into {'zeros' if fresh else 'itself'}", function, []


def _each_with_each(pick: random.Random, x: torch.Tensor) -> _Step:
    """What reads one tensor along two different loops."""
    if x.dim() > 1 and x.shape[-1] == x.shape[-2] and pick.random() < 0.7:
        return "less itself transposed", lambda t: t - t.transpose(-1, -2), []
    if x.dim() > 4:
        return _part(pick, x)
    dim = pick.randrange(x.dim())
    return f"each with each along {dim}", lambda t: t.unsqueeze(dim) - t.unsqueeze(dim + 1), []


def _sorted(pick: random.Random, x: torch.Tensor) -> _Step:
    dim = _dim(pick, x)
    return f"sorted along {dim}", lambda t: t.sort(dim).values, []


def _unary(pick: random.Random, _x: torch.Tensor) -> _Step:
    table: dict[str, Function] = {
        "tanh": torch.tanh,
        "gelu": functional.gelu,
        "relu": torch.relu,
        "silu": functional.silu,
        "times 0.5": lambda t: t * 0.5,
        "sigmoid": torch.sigmoid,
    }
    name = pick.choice(list(table))
    return name, table[name], []


def _added(pick: random.Random, x: torch.Tensor) -> _Step:
    shape = tuple(pick.choice((1, n, n)) for n in x.shape)
    times = pick.random() < 0.5
    words = f"{'times' if times else 'plus'} {shape}"
    return words, lambda t, y: t * y if times else t + y, [shape]


def _multiplied(pick: random.Random, x: torch.Tensor) -> _Step:
    width = pick.choice(WIDTHS)
    scale = x.shape[-1] ** -0.5
    return f"product by {width}", lambda t, w: t @ w * scale, [(x.shape[-1], width)]


def _convolved(pick: random.Random, x: torch.Tensor) -> _Step:
    if x.dim() not in (3, 4):
        return _multiplied(pick, x)
    rank = x.dim() - 2
    kernel = tuple(pick.choice([k for k in (1, 3, 5) if k <= n]) for n in x.shape[2:])
    channels = x.shape[1]
    groups = pick.choice((1, 1, channels))
    filters = channels if groups > 1 else pick.choice((1, 3, 8, 16))
    padding = tuple(pick.choice((0, k // 2)) for k in kernel)
    stride = pick.choice((1, 1, 2))
    op: Any = functional.conv1d if rank == 1 else functional.conv2d
    scale = (channels // groups * int(np.prod(kernel))) ** -0.5
    words = f"convolution, {filters} of {kernel}, stride {stride}, padding {padding}, {groups}"
    return (
        words,
        lambda t, w: op(t, w, None, stride, padding, 1, groups) * scale,
        [(filters, channels // groups, *kernel)],
    )


def _reduced(pick: random.Random, x: torch.Tensor) -> _Step:
    dim, keep = _dim(pick, x), x.dim() < 3 or pick.random() < 0.5
    table: dict[str, Function] = {
        "sum": lambda t: t.sum(dim, keepdim=keep),
        "mean": lambda t: t.mean(dim, keepdim=keep),
        "largest": lambda t: t.amax(dim, keepdim=keep),
        "softmax": lambda t: t.softmax(dim),
        "less its mean": lambda t: t - t.mean(dim, keepdim=True),
        "layer norm": _normalised,
        "running sum": lambda t: t.cumsum(dim),
    }
    name = pick.choice(list(table))
    return f"{name} over {dim}", table[name], []


def _pooled(pick: random.Random, x: torch.Tensor) -> _Step:
    if x.dim() != 4 or min(x.shape[2:]) < 3:
        return _reduced(pick, x)
    stride, padding = pick.choice((1, 2)), pick.choice((0, 1))
    op: Any = pick.choice((functional.avg_pool2d, functional.max_pool2d))
    words = f"{op.__name__}, stride {stride}, padding {padding}"
    return words, lambda t: op(t, 3, stride, padding), []


_MOVING: list[Callable[[random.Random, torch.Tensor], _Step]] = [
    *[_padded, _padded, _part, _part, _one, _joined, _doubled, _rolled, _flipped],
    *[_permuted, _reshaped, _repeated, _swapped, _put, _put, _each_with_each, _each_with_each],
    *[_sorted],
]
_COMPUTING: list[Callable[[random.Random, torch.Tensor], _Step]] = [
    *[_unary, _unary, _added, _multiplied, _multiplied, _convolved, _convolved, _reduced],
    *[_reduced, _pooled],
]


# ---------------------------------------------------------------- running them


def check(cases: Sequence[Case], target: Target, pipeline: Pipeline) -> dict[int, str]:
    """What is wrong with each program, by its number; nothing where it is right."""
    texts, wanted, apart = {}, {}, {}
    for one in cases:
        with torch.no_grad():
            wanted[one.number] = one.function(*one.inputs)
            apart[one.number] = _rounding(one, wanted[one.number])
            exported = torch.export.export(_Module(one.function), tuple(one.inputs))
        imported = fx_import(exported.run_decompositions(), _name(one))
        texts[one.number] = str(imported.module.operation.get_asm())
    together = "".join(_body(text) for text in texts.values())
    try:
        vmfb, _ = Recipe(together, target, pipeline, timeout=300).compile()
    except MlirulesError as error:
        if len(cases) == 1:
            return {cases[0].number: f"does not compile: {str(error).splitlines()[0][:300]}"}
        found = [check([one], target, pipeline) for one in cases]
        return {number: said for problems in found for number, said in problems.items()}
    wrong = {}
    calls = [(_name(one), [_array(x) for x in one.inputs]) for one in cases]
    for one, result in zip(cases, runtime.run_each(vmfb, calls, target), strict=True):
        said = (
            f"does not run: {result}"
            if isinstance(result, MlirulesError)
            else _difference(np.asarray(result[0]), wanted[one.number], apart[one.number])
        )
        if said:
            wrong[one.number] = said
    return wrong


def _name(one: Case) -> str:
    return f"p{one.number}"


def _array(x: torch.Tensor) -> Any:
    if x.dtype == torch.bfloat16:
        return x.float().numpy().astype(runtime.DTYPES["bf16"])
    return x.numpy()


def _body(text: str) -> str:
    """The functions of a module's text: programs here hold no constants of their own."""
    return text.strip().removeprefix("module {").removesuffix("}")


def _rounding(one: Case, wanted: torch.Tensor) -> float:
    """How far PyTorch's own f32 is from its f64: all there is where what is summed cancels."""
    if wanted.dtype != torch.float32 or not wanted.numel():
        return 0.0
    exact = one.function(*(x.double() if x.is_floating_point() else x for x in one.inputs))
    return float((wanted.double() - exact).abs().max())


def _difference(found: Any, wanted: torch.Tensor, rounding: float = 0.0) -> str:
    if tuple(found.shape) != tuple(wanted.shape):
        return f"shape {list(found.shape)}, not {list(wanted.shape)}"
    exact = wanted.double().numpy()
    error = np.abs(found.astype(np.float64) - exact)
    scale = max(float(np.max(np.abs(exact), initial=0.0)), 1e-2)
    worst = float(np.max(error, initial=0.0)) / scale
    allowed = TOLERANCE[wanted.dtype]
    if rounding / scale > allowed / 8:  # sums that cancel: what is left is rounding, PyTorch's too
        allowed = max(allowed, 16 * rounding / scale)
    if worst <= allowed:  # NaN fails, too: no input here makes one
        return ""
    return f"wrong by {worst:.3g} of the largest result"


def search(
    numbers: Iterator[int], target: Target, pipeline: Pipeline, until: float
) -> Iterator[tuple[Case, str]]:
    """Each program with what is wrong with it, until the clock (``time.monotonic``) says so."""
    while time.monotonic() < until:
        cases = [case(number) for number, _ in zip(numbers, range(TOGETHER), strict=False)]
        if not cases:
            return
        wrong = check(cases, target, pipeline)
        yield from ((one, wrong.get(one.number, "")) for one in cases)


def main() -> int:
    """Search from the command line; 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--pipeline", help="default: the target's")
    parser.add_argument("--only", type=int, action="append", help="these programs")
    parser.add_argument("--store", type=Path, help="a file of results, to go on from")
    asked = parser.parse_args()
    target = Target.parse(asked.target)
    pipeline = Pipeline.load(asked.pipeline) if asked.pipeline else default_for(target.kind)
    # The programs are small, and stand for products of large ones.
    pipeline = replace(pipeline, large_products=[])
    stored = asked.store.read_text().splitlines() if asked.store and asked.store.exists() else []
    done = {json.loads(line)["number"] for line in stored}
    first = max([asked.first, *(number + 1 for number in done)])
    numbers = iter(asked.only) if asked.only else iter(range(first, sys.maxsize))
    failed = count = 0
    for one, said in search(numbers, target, pipeline, time.monotonic() + asked.seconds):
        count += 1
        failed += bool(said)
        if said:
            print(f"{one.number}: {one.words}: {said}", flush=True)
        if asked.store:
            row = {"number": one.number, "program": one.words, "wrong": said}
            with asked.store.open("a") as file:
                file.write(json.dumps(row) + "\n")
    print(f"{count} programs, {failed} wrong, {pipeline.pipeline} on {target}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
