"""Single ops on cpu, one thread: the default pipeline, the forms it chose from, PyTorch, the limit.

Convolutions (with bias and relu) whose sizes are those of convolutional networks, depthwise ones
among them, and products of transformers. Every form that the pipeline's stages for convolutions
choose from is compiled, too: "lost" is what the default takes over the fastest form. The limit is
the longer of FLOP over the machine's peak (a large product in numpy) and bytes over its bandwidth
(a large copy), both measured in the same run. Times are the least processor time of a thread over
many short samples in turns, so that other work on the machine matters little; judge ratios alone.

python benchmarks/ops.py                                    # all: some minutes
python benchmarks/ops.py --only 'depthwise*' --json ops.json
python benchmarks/ops.py --random 80 --seed 1               # shapes that nothing was tuned on

With ``--random`` a second table sums up what the choices of the default lose, by kinds of ops: its
regret on shapes that it has not seen.
"""

import argparse
import fnmatch
import json
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure.child import relative_error
from mlirules.drivers.pipelines.transform import Pipeline, Recipe
from mlirules.language.faults import MlirulesError
from mlirules.language.stage import Stage

#: What numpy reads, when it is loaded, of the threads that it may use.
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

#: One thread, whose processor time is that of the program.
DEVICE = "local-sync"


@dataclass(frozen=True)
class Convolution:
    """``channels`` images of ``size`` x ``size`` by ``filters`` windows ``window`` x ``window``."""

    channels: int
    size: int
    filters: int
    window: int
    stride: int = 1
    depthwise: bool = False

    @property
    def name(self) -> str:
        """As ``conv-64x56x56-64-3x3-s1``."""
        kind = "depthwise" if self.depthwise else "conv"
        return (
            f"{kind}-{self.channels}x{self.size}x{self.size}-{self.filters}"
            f"-{self.window}x{self.window}-s{self.stride}"
        )

    @property
    def result(self) -> int:
        """The result's height and width."""
        return (self.size + 2 * (self.window // 2) - self.window) // self.stride + 1

    @property
    def _depth(self) -> int:
        return 1 if self.depthwise else self.channels

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.window**2 * self._depth * self.filters * self.result**2

    @property
    def bytes(self) -> float:
        """What must be read and written."""
        weights = self._depth * self.filters * self.window**2
        return 4.0 * (self.channels * self.size**2 + weights + self.filters * self.result**2)

    def arrays(self) -> list[Any]:
        """The image, the filter, the bias."""
        rng = np.random.default_rng(0)
        shapes = (
            (1, self.channels, self.size, self.size),
            (self.filters, self._depth, self.window, self.window),
            (self.filters,),
        )
        return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]

    def function(self, weights: list[Any], name: str = "main") -> str:
        """With the filter and the bias as constants: see :func:`program`."""
        x = f"!torch.vtensor<[1,{self.channels},{self.size},{self.size}],f32>"
        w = f"!torch.vtensor<[{self.filters},{self._depth},{self.window},{self.window}],f32>"
        b = f"!torch.vtensor<[{self.filters}],f32>"
        y = f"!torch.vtensor<[1,{self.filters},{self.result},{self.result}],f32>"
        ints = "!torch.list<int>"
        return f"""func.func @{name}(%x: {x}) -> {y} {{
  %w = torch.vtensor.literal({_resource(f"{name}_w", weights[0])}) : {w}
  %b = torch.vtensor.literal({_resource(f"{name}_b", weights[1])}) : {b}
  %one = torch.constant.int 1
  %step = torch.constant.int {self.stride}
  %pad = torch.constant.int {self.window // 2}
  %groups = torch.constant.int {self.channels if self.depthwise else 1}
  %false = torch.constant.bool false
  %steps = torch.prim.ListConstruct %step, %step : (!torch.int, !torch.int) -> {ints}
  %pads = torch.prim.ListConstruct %pad, %pad : (!torch.int, !torch.int) -> {ints}
  %ones = torch.prim.ListConstruct %one, %one : (!torch.int, !torch.int) -> {ints}
  %none = torch.prim.ListConstruct : () -> {ints}
  %c = torch.aten.convolution %x, %w, %b, %steps, %pads, %ones, %false, %none, %groups
      : {x}, {w}, {b}, {ints}, {ints}, {ints}, !torch.bool, {ints}, !torch.int -> {y}
  %y = torch.aten.relu %c : {y} -> {y}
  return %y : {y}
}}
"""

    def torch(self, arrays: list[Any]) -> Callable[[], object]:
        """The same in PyTorch."""
        import torch

        x, w, b = (torch.from_numpy(a) for a in arrays)
        groups = self.channels if self.depthwise else 1

        def call() -> object:
            with torch.no_grad():
                return torch.nn.functional.conv2d(
                    x, w, b, self.stride, self.window // 2, groups=groups
                ).relu_()

        return call


@dataclass(frozen=True)
class Product:
    """``rows`` vectors of ``inner`` numbers by a constant of ``columns`` rows, plus a bias."""

    rows: int
    inner: int
    columns: int

    @property
    def name(self) -> str:
        """As ``product-128x512x2048``."""
        return f"product-{self.rows}x{self.inner}x{self.columns}"

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.rows * self.inner * self.columns

    @property
    def bytes(self) -> float:
        """What must be read and written."""
        return 4.0 * (self.rows * self.inner + self.inner * self.columns + self.rows * self.columns)

    def arrays(self) -> list[Any]:
        """The vectors, the matrix, the bias."""
        rng = np.random.default_rng(0)
        shapes = ((self.rows, self.inner), (self.columns, self.inner), (self.columns,))
        return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]

    def function(self, weights: list[Any], name: str = "main") -> str:
        """With the matrix and the bias as constants: see :func:`program`."""
        x = f"!torch.vtensor<[{self.rows},{self.inner}],f32>"
        w = f"!torch.vtensor<[{self.columns},{self.inner}],f32>"
        b = f"!torch.vtensor<[{self.columns}],f32>"
        y = f"!torch.vtensor<[{self.rows},{self.columns}],f32>"
        return f"""func.func @{name}(%x: {x}) -> {y} {{
  %w = torch.vtensor.literal({_resource(f"{name}_w", weights[0])}) : {w}
  %b = torch.vtensor.literal({_resource(f"{name}_b", weights[1])}) : {b}
  %y = torch.aten.linear %x, %w, %b : {x}, {w}, {b} -> {y}
  return %y : {y}
}}
"""

    def torch(self, arrays: list[Any]) -> Callable[[], object]:
        """The same in PyTorch."""
        import torch

        x, w, b = (torch.from_numpy(a) for a in arrays)

        def call() -> object:
            with torch.no_grad():
                return torch.nn.functional.linear(x, w, b)

        return call


def _resource(name: str, array: Any) -> str:
    return f"dense_resource<{name}> : tensor<{'x'.join(map(str, array.shape))}xf32>"


def program(ops: Mapping[str, tuple["Convolution | Product", list[Any]]]) -> str:
    """A program with a function for each op, by its name; an op comes with its arrays."""
    text = "".join(op.function(arrays[1:], name) for name, (op, arrays) in ops.items())
    held = ", ".join(
        f'{name}_{letter}: "0x04000000{array.tobytes().hex().upper()}"'
        for name, (_, arrays) in ops.items()
        for letter, array in zip("wb", arrays[1:], strict=True)
    )
    return text + "{-# dialect_resources: { builtin: { " + held + " } } #-}\n"


OPS: tuple[Convolution | Product, ...] = (
    # The image's first convolution.
    Convolution(3, 224, 32, 3, 2),
    Convolution(3, 224, 64, 7, 2),
    # 3x3: SqueezeNet's, ResNet's, and sizes that divide nothing.
    Convolution(16, 55, 64, 3),
    Convolution(32, 27, 128, 3),
    Convolution(48, 13, 192, 3),
    Convolution(64, 13, 256, 3),
    Convolution(64, 56, 64, 3),
    Convolution(128, 28, 128, 3),
    Convolution(256, 14, 256, 3),
    Convolution(64, 56, 128, 3, 2),
    Convolution(128, 7, 128, 3),
    Convolution(32, 112, 32, 3),
    # 1x1, as around depthwise convolutions, and as shortcuts.
    Convolution(16, 112, 96, 1),
    Convolution(144, 56, 24, 1),
    Convolution(64, 27, 32, 1),
    Convolution(384, 13, 48, 1),
    Convolution(384, 14, 64, 1),
    Convolution(960, 7, 320, 1),
    Convolution(64, 56, 128, 1, 2),
    # Depthwise: MobileNet's and EfficientNet's.
    Convolution(32, 112, 32, 3, 1, True),
    Convolution(96, 112, 96, 3, 2, True),
    Convolution(144, 56, 144, 3, 1, True),
    Convolution(144, 56, 144, 5, 2, True),
    Convolution(192, 28, 192, 3, 1, True),
    Convolution(240, 28, 240, 5, 1, True),
    Convolution(240, 28, 240, 3, 2, True),
    Convolution(576, 14, 576, 3, 1, True),
    Convolution(672, 14, 672, 5, 1, True),
    Convolution(672, 14, 672, 5, 2, True),
    Convolution(960, 7, 960, 3, 1, True),
    # BERT's products, and those of one token.
    Product(128, 512, 512),
    Product(128, 512, 2048),
    Product(128, 2048, 512),
    Product(1, 512, 2048),
    Product(1, 2048, 512),
)

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


def race(
    contenders: Mapping[str, Callable[[], object]], seconds: float, hopeless: float = float("inf")
) -> dict[str, float]:
    """The least processor time of a call of each, in turns.

    What takes more than ``hopeless`` times the fastest in the first calls is not called again.
    """
    fastest: dict[str, float] = {}
    calls: dict[str, int] = {}
    for name, call in contenders.items():
        call()
        began = time.thread_time()
        call()
        fastest[name] = time.thread_time() - began
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
    op: Convolution | Product, base: Pipeline, options: argparse.Namespace, cpu: Target
) -> dict[str, Any]:
    """All forms of an op: milliseconds, largest error, what was not compiled."""
    arrays = op.arrays()
    text = program({"main": (op, arrays)})
    lines = {"default": base}
    if options.forms and isinstance(op, Product):
        lines |= packing(base)
    elif options.forms:
        lines |= {name: pipeline_with(base, FORMS[name]) for name in fitting(op)}
    contenders: dict[str, Callable[[], object]] = {}
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
        loaded = runtime.Program(binary, arrays[:1], DEVICE)
        results[name] = loaded.results()[0]
        contenders[name] = loaded
    if options.torch:
        call = op.torch(arrays)
        results["torch"] = np.asarray(call())
        contenders["torch"] = call
    reference = next(results[n] for n in ("torch", "plain", *results) if n in results)
    errors = {name: relative_error(found, reference) for name, found in results.items()}
    times = race(contenders, options.seconds)
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


def main() -> int:
    """Run the benchmark; exit status 1 where a form gives other numbers or does not compile."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], metavar="GLOB")
    parser.add_argument("--random", type=int, metavar="N", help="N ops of random sizes instead")
    parser.add_argument("--seed", type=int, default=0, help="of those")
    parser.add_argument("--pipeline", default="cpu-fast")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--no-forms", dest="forms", action="store_false")
    parser.add_argument("--no-torch", dest="torch", action="store_false")
    parser.add_argument("--seconds", type=float, default=0.3, metavar="S", help="for each form")
    parser.add_argument("--json", type=Path, metavar="FILE", help="rows are added to it")
    options = parser.parse_args()
    one = dict.fromkeys(THREADS, "1")
    if any(os.environ.get(name) != value for name, value in one.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **one})
    if options.torch:
        try:
            import torch
        except ImportError:
            options.torch = False
        else:
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
    ops: Sequence[Convolution | Product] = OPS
    if options.random is not None:
        ops = drawn(options.random, options.seed)
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
            options.json.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    if options.random and by_kind:
        print("", *regret(by_kind), sep="\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
