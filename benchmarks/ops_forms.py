"""The forms that the default pipeline chooses from for a convolution or a product, in one process.

What `ops.py --forms`, `ops.py --random` and `cost_model.py` measure: every form is compiled, and
"lost" is what the default takes over the fastest of them. Times are the least processor time of a
thread over many short samples in turns, so that other work on the machine matters little. The limit
is the longer of FLOP over the machine's peak (a large product in numpy) and bytes over its
bandwidth (a large copy), both measured in the same run.
"""

import argparse
import fnmatch
import importlib.util
import json
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from caches import Away
from ops_shapes import OPS, Convolution, Product

from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure.child import relative_error
from mlirules.drivers.pipelines.transform import Pipeline, Recipe
from mlirules.language.faults import MlirulesError
from mlirules.language.stage import Stage
from mlirules.support import files

#: What numpy reads, when it is loaded, of the threads that it may use.
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

#: One thread, whose processor time is that of the program.
DEVICE = "local-sync"
#: How often the programs of an op are given memory of their own.
PLACES = 3
#: Where the default took so many times the fastest, all are timed in further places, so often at
#: most: a fifth of what 50 us take may be luck of pages.
LOST, DOUBTS = 1.05, 3


def program(ops: Mapping[str, tuple[Convolution | Product, list[Any]]]) -> str:
    """A program with a function for each op, by its name; an op comes with its arrays."""
    text = "".join(op.function(arrays[1:], name) for name, (op, arrays) in ops.items())
    held = ", ".join(
        f'{name}_{letter}: "0x04000000{array.tobytes().hex().upper()}"'
        for name, (_, arrays) in ops.items()
        for letter, array in zip("wb", arrays[1:], strict=True)
    )
    return text + "{-# dialect_resources: { builtin: { " + held + " } } #-}\n"


#: What may stand in the place of the pipeline's cost stages for convolutions.
FORMS: dict[str, tuple[str, ...]] = {
    # The stages of kernels as they are, and nothing that is weighed.
    "kernel": ("kernels",),
    "plain": (),
    "im2col": ("linalg/im2col/linalg-im2col-nchw",),
    "winograd": ("linalg/winograd/linalg-winograd-nchw",),
    "one-by-one": (
        "linalg/convolution/linalg-one-by-one-nchw",
        "linalg/convolution/linalg-one-by-one-strided-nchw",
    ),
    "places": ("linalg/depthwise",),
    "channels-last": ("torch/depthwise",),
}


def pipeline_with(base: Pipeline, rules: tuple[str, ...]) -> Pipeline:
    """The pipeline with these rules wherever they fit in the place of what it weighs."""
    chosen: tuple[str, ...] = ("depthwise", "linalg-forms")
    if rules == ("kernels",):
        # Whatever the model says of them: it may be older than they are.
        left = [replace(s, yields=None) for s in base.stages if s.name not in chosen]
        return replace(base, stages=left)
    chosen = (*chosen, "kernels")
    stages = [
        s for s in base.stages if s.name not in chosen and not (s.name or "").endswith("-kernels")
    ]
    if rules:
        form = Stage(name="form", phase="torch", rules=list(rules), driver="greedy")
        first = next(n for n, stage in enumerate(stages) if stage.name == "to-linalg")
        stages.insert(first if rules[0].startswith("torch/") else len(stages), form)
    return replace(base, stages=stages)


def packing(base: Pipeline) -> dict[str, Pipeline]:
    """The two forms of a product: factors packed into blocks, and read as they are."""
    # The compiler's own, without the kernel for products.
    base = replace(base, stages=[s for s in base.stages if s.name not in ("packing", "products")])
    left = [flag for flag in base.flags if flag not in base.large_products]
    free = replace(base, dispensable=[], copying_weights=[], padding_vectors=[], large_products=[])
    return {"packed": replace(base, large_products=[]), "unpacked": replace(free, flags=left)}


def fitting(op: Convolution | Product) -> list[str]:
    """The forms that an op has."""
    if isinstance(op, Product):
        return []
    if op.depthwise:
        places = op.stride == 1 and op.window in (3, 5)
        return ["kernel", "plain", "places" if places else "channels-last"]
    if op.window == 1:
        return ["kernel", "plain", "one-by-one"]
    winograd = op.window == 3 and op.stride == 1 and min(op.channels, op.filters) >= 128
    return ["kernel", "plain", "im2col", *(["winograd"] if winograd else [])]


def kind_of(op: Convolution | Product) -> str:
    """What the regret is summed up by."""
    if isinstance(op, Product):
        return "product"
    if op.depthwise:
        return "depthwise convolution"
    return "1x1 convolution" if op.window == 1 else "3x3 and larger convolution"


def drawn(count: int, seed: int) -> list[Convolution | Product]:
    """Ops of random sizes, as often of one kind as of another: a second to compile at most.

    Channels are no multiples of anything in a third of them; sizes are those of images that were
    halved some times, and any others.
    """
    pick = random.Random(seed)
    made: dict[Convolution | Product, None] = {}

    def channels(most: int) -> int:
        step = pick.choice((1, 8, 16))
        return max(step, step * round(2 ** pick.uniform(3, most) / step))

    while len(made) < count:
        size = pick.choice((7, 14, 28, 56, 112, pick.randint(5, 80)))
        stride = pick.choice((1, 1, 1, 2))
        op: Convolution | Product
        match len(made) % 4:
            case 0:
                op = Convolution(channels(10), size, channels(10), 1, stride)
            case 1:
                window = pick.choice((3, 3, 3, 3, 5, 7))
                op = Convolution(channels(9), size, channels(9), window, stride)
            case 2:
                depth = channels(10)
                op = Convolution(depth, size, depth, pick.choice((3, 3, 5, 7)), stride, True)
            case _:
                rows = pick.choice((1, 1, 7, 32, 77, 128, 197, 256))
                op = Product(rows, channels(11), channels(11))
        if op.flops < 1e9 and op.bytes < 6.4e7 and op not in made:
            made[op] = None
    return list(made)


def regret(rows: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """The table of what the default's choices lose over the fastest form, by kinds of ops."""
    yield "| kind of op | shapes | within 5 % of the fastest form | within 10 % | median | worst |"
    yield "|---|---|---|---|---|---|"
    every = [row for found in rows.values() for row in found]
    for kind, found in (*rows.items(), ("all", every)):
        lost = [row["lost"] for row in found]
        shares = [sum(loss <= most for loss in lost) for most in (1.05, 1.10)]
        worst = max(found, key=lambda row: float(row["lost"]))
        yield (
            f"| {kind} | {len(lost)} | {shares[0]} ({100 * shares[0] / len(lost):.0f} %) "
            f"| {shares[1]} ({100 * shares[1] / len(lost):.0f} %) | {statistics.median(lost):.2f} "
            f"| {worst['lost']:.2f} ({worst['op']}) |"
        )


class Network:
    """What goes before a layer in a network.

    Its weights, its result and its code are in no cache, the runtime's own code and the layer's
    image are: a network's layers follow each other without a word of Python.
    """

    def __init__(self, target: Target) -> None:
        text = """func.func @main(%x: tensor<16xf32>) -> tensor<16xf32> {
  %y = arith.addf %x, %x : tensor<16xf32>
  return %y : tensor<16xf32>
}"""
        binary, _ = Recipe(text, target, Pipeline.load("cpu-fast")).compile()
        self._idle = runtime.Program(binary, [np.ones(16, np.float32)], DEVICE)
        self._away = Away()

    def __call__(self, layer: runtime.Program) -> None:
        """Leave the caches so."""
        self._away()
        layer.touch()
        self._idle()


def cold_race(
    contenders: Mapping[str, runtime.Program],
    network: Network,
    seconds: float,
    hopeless: float = float("inf"),
) -> dict[str, float]:
    """As :func:`race`, each call as that of a layer in a network, and timed by itself."""

    def once(name: str) -> float:
        network(contenders[name])
        return _timed(contenders[name])

    for call in contenders.values():
        call()
    # One call alone may have been held up for a thousand times what it takes: by pages made anew.
    fastest = {name: min(once(name) for _ in range(3)) for name in contenders}
    left = [name for name in contenders if fastest[name] <= hopeless * min(fastest.values())]
    rounds, end = 0, time.monotonic() + seconds * len(left)
    while rounds < 8 or time.monotonic() < end:
        rounds += 1
        for name in left:
            fastest[name] = min(fastest[name], once(name))
    return fastest


def placed_race(
    compiled: Mapping[str, bytes],
    layers: Mapping[str, runtime.Program],
    images: Sequence[Any],
    network: Network,
    seconds: float,
) -> dict[str, float]:
    """As :func:`cold_race`, the least of programs that lie in memory of their own each time.

    In which pages an image and a result lie makes up to a half of what a call takes with nothing in
    the caches, and stays as it is for as long as a program does.
    """
    placed = [layers]
    times = cold_race(layers, network, seconds / PLACES)
    for _ in range(PLACES - 1):
        placed.append({n: runtime.Program(b, images, DEVICE) for n, b in compiled.items()})
        again = cold_race(placed[-1], network, seconds / PLACES)
        times = {name: min(took, again[name]) for name, took in times.items()}
    return times


def _timed(call: Callable[[], object]) -> float:
    """The processor time of a call."""
    began = time.thread_time()
    call()
    return time.thread_time() - began


def race(
    contenders: Mapping[str, Callable[[], object]], seconds: float, hopeless: float = float("inf")
) -> dict[str, float]:
    """The least processor time of a call of each, in turns, with all that it reads in the caches.

    What takes more than ``hopeless`` times the fastest in the first calls is not called again.
    """
    fastest: dict[str, float] = {}
    calls: dict[str, int] = {}
    for name, call in contenders.items():
        call()
        fastest[name] = min(_timed(call) for _ in range(3))
        calls[name] = max(1, int(0.003 / max(fastest[name], 1e-6)))
    most = hopeless * min(fastest.values())
    left = {name: call for name, call in contenders.items() if fastest[name] <= most}
    rounds, end = 0, time.monotonic() + seconds * len(left)
    while rounds < 5 or time.monotonic() < end:
        rounds += 1
        for name, call in left.items():
            began = time.thread_time()
            for _ in range(calls[name]):
                call()
            taken = (time.thread_time() - began) / calls[name]
            fastest[name] = min(taken, fastest.get(name, taken))
    return fastest


def limits(seconds: float) -> tuple[float, float]:
    """The machine's FLOP and bytes a second, on one thread."""
    a, b = (np.random.default_rng(n).random((768, 768), dtype=np.float32) for n in (0, 1))
    c = np.empty_like(a)
    big = np.ones(1 << 24, dtype=np.float32)
    copy = np.empty_like(big)
    found = race(
        {"product": lambda: np.matmul(a, b, out=c), "copy": lambda: np.copyto(copy, big)}, seconds
    )
    return 2 * 768**3 / found["product"], 2 * big.nbytes / found["copy"]


def measure(
    op: Convolution | Product,
    base: Pipeline,
    options: argparse.Namespace,
    cpu: Target,
    network: Network | None = None,
) -> dict[str, Any]:
    """All forms of an op: milliseconds, largest error, what was not compiled.

    With a ``network`` each call is one of a layer in it, which PyTorch's is never.
    """
    arrays = op.arrays()
    text = program({"main": (op, arrays)})
    lines = {"default": base}
    if isinstance(op, Product):
        lines |= packing(base)
    else:
        lines |= {name: pipeline_with(base, FORMS[name]) for name in fitting(op)}
    compiled: dict[str, bytes] = {}
    layers: dict[str, runtime.Program] = {}
    others: dict[str, Callable[[], object]] = {}
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}
    chosen: list[str] = []
    binaries: dict[bytes, str] = {}
    same: dict[str, str] = {}
    for name, line in lines.items():
        try:
            binary, done = Recipe(text, cpu, line, timeout=120).compile()
        except MlirulesError as error:
            failed[name] = str(error).splitlines()[0]
            continue
        if name == "default":
            chosen = [d.rule for d in done.outcome.decisions if d.applies]
        # What is the same program would differ by the noise of timing it twice.
        same[name] = binaries.setdefault(binary, name)
        if same[name] != name:
            if same[name] == "default":
                chosen = [*chosen, name]
            continue
        compiled[name] = binary
        layers[name] = runtime.Program(binary, arrays[:1], DEVICE)
        results[name] = layers[name].results()[0]
    if options.torch:
        call = op.torch(arrays)
        results["torch"] = np.asarray(call())
        others["torch"] = call
    reference = next(results[n] for n in ("torch", "plain", *results) if n in results)
    errors = {name: relative_error(found, reference) for name, found in results.items()}
    if network is None:
        times = race({**layers, **others}, options.seconds)
    else:
        times = placed_race(compiled, layers, arrays[:1], network, options.seconds)
        for _ in range(DOUBTS):
            if not times.get("default", 0.0) > LOST * min(times.values()):
                break
            again = placed_race(compiled, layers, arrays[:1], network, options.seconds)
            times = {name: min(took, again[name]) for name, took in times.items()}
    times |= {name: times[first] for name, first in same.items()}
    forms = [seconds for name, seconds in times.items() if name != "torch"]
    return {
        "lost": times["default"] / min(forms) if "default" in times else float("inf"),
        "op": op.name,
        "flops": op.flops,
        "bytes": op.bytes,
        "chosen": chosen,
        "ms": {name: 1e3 * seconds for name, seconds in times.items()},
        "error": max(errors.values()),
        "failed": failed,
    }


def shown(row: dict[str, Any]) -> str:
    """A row of the table."""
    took = row["ms"]
    default = took.get("default", float("nan"))
    others = " ".join(f"{k} {v:.3f}" for k, v in took.items() if k not in ("default", "torch"))
    eager = f"{default / took['torch']:.2f}" if "torch" in took else ""
    return (
        f"| {row['op']} | {default:.3f} | {row['flops'] / default / 1e6:.1f} "
        f"| {row['bytes'] / default / 1e6:.1f} | {default / row['limit_ms']:.1f} | {eager} "
        f"| {row['lost']:.2f} | {', '.join(row['chosen'])} | {others} |"
    )


def run(options: argparse.Namespace) -> bool:
    """Measure the forms; whether all compile and give the same numbers.

    ``options`` are those of `ops.py`.
    """
    one = dict.fromkeys(THREADS, "1")
    if any(os.environ.get(name) != value for name, value in one.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **one})
    options.torch = importlib.util.find_spec("torch") is not None
    if options.torch:
        import torch

        torch.set_num_threads(1)
    cpu = Target.parse(options.target)
    base = Pipeline.load(options.pipeline)
    peak, bandwidth = limits(options.seconds)
    print(
        f"one thread: {peak / 1e9:.0f} GFLOP/s in a product, {bandwidth / 1e9:.1f} GB/s in a copy"
    )
    print(
        "| op | ms | GFLOP/s | GB/s | times the limit | times PyTorch | lost | chosen | forms, ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    held: dict[str, Any] = {}
    if options.json and options.json.exists():
        held = json.loads(options.json.read_text(encoding="utf-8"))
    good = True
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    ops: Sequence[Convolution | Product]
    if options.random is not None:
        ops = drawn(options.random, options.seed)
    else:
        ops = [op for op in OPS if isinstance(op, Convolution | Product)]
    for op in ops:
        if options.only and not any(fnmatch.fnmatch(op.name, glob) for glob in options.only):
            continue
        row = measure(op, base, options, cpu)
        row["limit_ms"] = 1e3 * max(op.flops / peak, op.bytes / bandwidth)
        print(shown(row), flush=True)
        for name, reason in row["failed"].items():
            print(f"  {name}: {reason}")
        if not row["error"] < 1e-4:
            print(f"  differs by {row['error']:.2g} of the largest")
        good &= row["error"] < 1e-4 and not row["failed"]
        by_kind[kind_of(op)].append(row)
        held[op.name] = row
        if options.json:
            files.write(options.json, json.dumps(held, indent=1) + "\n")
    if options.random and by_kind:
        print("", *regret(by_kind), sep="\n")
    return good
