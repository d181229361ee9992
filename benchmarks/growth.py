"""Does the cost of an op grow with the program? Drivers and whole pipelines on programs that grow.

Five kinds of program, each of so many blocks:

    residual  every block adds to what the block before it gave: 2 ** blocks paths lead through it
    unread    the same beside a program that does not read it: every op of it is dead
    dense     every block reads the results of the four before it
    fan-out   every block reads the same value
    products  every block multiplies the same value by weights of its own

A cost is fixed in part (patterns are compiled, pieces are weighed), and what is shown is what the
*further* blocks of a larger program cost, an op. Of small programs, whose fixed part hides what
their few ops cost, the best of several runs counts. Every run that is timed is in a process of its
own:

    python benchmarks/growth.py                               # every driver and default pipeline
    python benchmarks/growth.py --what greedy --sizes 10,1000 # microseconds an op
    python benchmarks/growth.py --steps                       # Python calls an op, not time

Exit status 1: an op of the largest program costs more than 1.5 times one of the second smallest.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlirules.drivers.apply.run import DriverName, Order
from mlirules.language.faults import MlirulesError
from mlirules.language.workers import workers
from mlirules.support.pool import Job, Tell, Work, outcomes

TENSOR = "!torch.vtensor<[8,8],f32>"
#: How much more an op of the largest program may cost.
FLAT = 1.5
SIZES = (10, 100, 1000, 3000, 10_000)
#: Small programs are run so often at most.
REPEATS = 5
#: Seconds that a run may take.
LIMIT = 3600.0
#: Enough kinds of rule for every way that a driver has of looking around in a program.
RULES = (
    "torch/fusions/activations/torch-silu-fuse",
    "torch/fusions/matmul/torch-two-mm-fuse",
    "torch/fusions/views/torch-permute-permute-fuse",
    "torch/fusions/casts/torch-to-same-fuse",
    "torch/to-linalg/elementwise/torch-relu-to-linalg",
    "torch/to-linalg/elementwise/torch-sigmoid-to-linalg",
    "torch/to-linalg/elementwise/torch-tanh-to-linalg",
    "torch/to-linalg/elementwise/torch-silu-to-linalg",
    "torch/to-linalg/matmul/torch-mm-to-linalg",
)
DRIVERS: dict[str, tuple[DriverName, Order]] = {
    "greedy": ("greedy", "top-down"),
    "greedy, bottom-up": ("greedy", "bottom-up"),
    "walk": ("walk", "top-down"),
    "conversion": ("conversion", "top-down"),
}
PIPELINES = ("cpu", "cpu-fast", "vulkan")


def _function(rows: list[str], result: str, arguments: str = "%x") -> str:
    listed = ", ".join(f"{name}: {TENSOR}" for name in arguments.split())
    body = "\n".join(f"  {row}" for row in ["%one = torch.constant.int 1", *rows])
    return f"func.func @main({listed}) -> {TENSOR} {{\n{body}\n  return {result} : {TENSOR}\n}}\n"


def _block(n: int, before: str) -> list[str]:
    """`before` plus its SiLU, in parts."""
    return [
        f"%r{n} = torch.aten.relu {before} : {TENSOR} -> {TENSOR}",
        f"%s{n} = torch.aten.sigmoid %r{n} : {TENSOR} -> {TENSOR}",
        f"%m{n} = torch.aten.mul.Tensor %r{n}, %s{n} : {TENSOR}, {TENSOR} -> {TENSOR}",
        _add(n, before, f"%m{n}"),
    ]


def _add(n: int, left: str, right: str) -> str:
    types = f"{TENSOR}, {TENSOR}, !torch.int -> {TENSOR}"
    return f"%y{n} = torch.aten.add.Tensor {left}, {right}, %one : {types}"


def residual(blocks: int) -> str:
    """A chain of residual blocks."""
    rows = [row for n in range(blocks) for row in _block(n, f"%y{n - 1}" if n else "%x")]
    return _function(rows, f"%y{blocks - 1}")


def unread(blocks: int) -> str:
    """A chain of residual blocks whose result nobody reads."""
    rows = [row for n in range(blocks) for row in _block(n, f"%y{n - 1}" if n else "%x")]
    return _function([*rows, f"%z = torch.aten.tanh %x : {TENSOR} -> {TENSOR}"], "%z")


def dense(blocks: int) -> str:
    """Blocks that add up what the four blocks before them gave."""
    rows = []
    names = ["%x"]
    for n in range(blocks):
        total = names[-1]
        for k, name in enumerate(names[-4:-1]):
            types = f"{TENSOR}, {TENSOR}, !torch.int -> {TENSOR}"
            rows.append(f"%t{n}_{k} = torch.aten.add.Tensor {total}, {name}, %one : {types}")
            total = f"%t{n}_{k}"
        rows += _block(n, total)
        names.append(f"%y{n}")
    return _function(rows, names[-1])


def fan_out(blocks: int) -> str:
    """Blocks that all read one value, and a sum of what they give."""
    rows = [f"%w = torch.aten.tanh %x : {TENSOR} -> {TENSOR}"]
    total = "%w"
    for n in range(blocks):
        rows.append(f"%s{n} = torch.aten.sigmoid %w : {TENSOR} -> {TENSOR}")
        rows.append(f"%m{n} = torch.aten.mul.Tensor %w, %s{n} : {TENSOR}, {TENSOR} -> {TENSOR}")
        rows.append(_add(n, total, f"%m{n}"))
        total = f"%y{n}"
    return _function(rows, total)


def products(blocks: int) -> str:
    """Products of one value by weights of their own, and a sum of them."""
    rows = [f"%w = torch.aten.tanh %x : {TENSOR} -> {TENSOR}"]
    total = "%w"
    literal = f"torch.vtensor.literal(dense<0.5> : tensor<8x8xf32>) : {TENSOR}"
    for n in range(blocks):
        rows.append(f"%c{n} = {literal}")
        rows.append(f"%m{n} = torch.aten.mm %w, %c{n} : {TENSOR}, {TENSOR} -> {TENSOR}")
        rows.append(_add(n, total, f"%m{n}"))
        total = f"%y{n}"
    return _function(rows, total)


PROGRAMS: dict[str, Callable[[int], str]] = {
    "residual": residual,
    "unread": unread,
    "dense": dense,
    "fan-out": fan_out,
    "products": products,
}


@dataclass(frozen=True)
class Cost:
    """What one run cost: seconds, or Python calls."""

    blocks: int
    ops: int
    amount: float


class _Steps:
    """Counts calls of Python functions and of what is written in C or C++."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _frame: Any, event: str, _argument: Any) -> None:
        if event in ("call", "c_call"):
            self.calls += 1


@contextmanager
def counting() -> Iterator[_Steps]:
    """Counts the calls of the block."""
    steps = _Steps()
    sys.setprofile(steps)
    try:
        yield steps
    finally:
        sys.setprofile(None)


def runner(what: str) -> Callable[[str], Callable[[], object]]:
    """A program made ready for a driver, with a few rules, or for a whole pipeline."""
    from mlirules.drivers.apply.engine import Engine
    from mlirules.drivers.apply.run import Options
    from mlirules.drivers.iree import compiler
    from mlirules.drivers.pipelines.transform import transform
    from mlirules.language.loader import load_rules

    if what in PIPELINES:
        return lambda text: lambda: transform(text, what)
    context = compiler.context()
    engine = Engine(load_rules(RULES, ops=compiler.op_oracle), context)
    driver, order = DRIVERS[what]
    options = Options(driver=driver, order=order)

    def ready(text: str) -> Callable[[], object]:
        module = compiler.parse(text, "<program>", context)
        return lambda: engine.run(module, options)

    return ready


def cost(ready: Callable[[str], Callable[[], object]], text: str, *, steps: bool) -> float:
    """CPU seconds that one run takes in this process, or the calls that it makes."""
    run = ready(text)
    if steps:
        with counting() as counted:
            run()
        return counted.calls
    started = time.process_time()
    run()
    return time.process_time() - started


def growth(what: str, program: str, sizes: tuple[int, ...], *, steps: bool = False) -> list[Cost]:
    """What a driver or pipeline costs on one kind of program, a size at a time."""
    make = PROGRAMS[program]
    if steps:
        counted = [(n, _afresh(what, program, n, sizes[0], steps=True)) for n in sizes]
        return [Cost(n, make(n).count(" = "), calls) for n, calls in counted]
    best: dict[int, float] = {}
    # What a pipeline decides about a piece and makes for a type is kept in its process.
    work = Work("growth:timed", limit=LIMIT, most=1, path=(str(Path(__file__).resolve().parent),))
    jobs = [
        Job((what, program, blocks, sizes[0]))
        for blocks in sizes
        for _ in range(max(1, min(REPEATS, 1000 // blocks)))
    ]
    with workers("1") as pool:
        for done in outcomes(pool, work, jobs):
            blocks = jobs[done.job].value[2]
            if done.ended.fate:
                raise MlirulesError.at(
                    what, f"{program} of {blocks} blocks {done.ended.fate}: {done.ended.why}"
                )
            best[blocks] = min([*done.said, best.get(blocks, math.inf)])
    return [Cost(n, make(n).count(" = "), best[n]) for n in sizes]


def timed(_: None) -> Callable[[tuple[str, str, int, int], Tell], None]:
    """What a worker does: time one run of what it is given, and tell its seconds."""
    return lambda given, tell: tell(_afresh(*given, steps=False))


def _afresh(what: str, program: str, blocks: int, smallest: int, *, steps: bool) -> float:
    """The cost of one program after the smallest one."""
    make = PROGRAMS[program]
    ready = runner(what)
    cost(ready, make(smallest), steps=False)  # reads rules, compiles patterns
    return cost(ready, make(blocks), steps=steps)


def further(costs: list[Cost]) -> list[float]:
    """What an op costs that a larger program has more than the smallest one."""
    base = costs[0]
    return [(c.amount - base.amount) / (c.ops - base.ops) for c in costs[1:]]


def main() -> int:
    """Run what was asked for and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", nargs="*", default=[*DRIVERS, *PIPELINES])
    parser.add_argument("--programs", nargs="*", default=list(PROGRAMS), choices=list(PROGRAMS))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of blocks")
    parser.add_argument("--steps", action="store_true", help="count calls instead of time")
    arguments = parser.parse_args()
    sizes = tuple(int(n) for n in arguments.sizes.split(","))
    print(f"{'calls' if arguments.steps else 'CPU microseconds'} for each further op")
    print(f"{'':18} {'':9}", *(f"{n:>9,}" for n in sizes[1:]), "  largest / smallest")
    bad = 0
    for what in arguments.what:
        for program in arguments.programs:
            found = further(growth(what, program, sizes, steps=arguments.steps))
            ratio = found[-1] / found[0]
            bad += ratio > FLAT
            scale = 1 if arguments.steps else 1e6
            cells = " ".join(f"{scale * f:>9.1f}" for f in found)
            print(f"{what:18} {program:9} {cells}  {ratio:.2f}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
