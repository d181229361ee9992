"""What tuning gains on this machine's processor, and how soon each order finds a good candidate.

Three steps, each for the shapes named (default: all)::

    python benchmarks/tuning.py search --seconds 150      # again until nothing is left to try
    python benchmarks/tuning.py compare                   # stock, tuned, PyTorch, numpy in turns
    python benchmarks/tuning.py replay                    # orders, from stored measurements

``search`` keeps its results in ``benchmarks/results/tuning.sqlite``, goes on where it was, and
writes what won for a shape, rules and flags, as ``benchmarks/results/tuned/SHAPE.cpu.yaml``; a
shape that was searched to its budget is passed over (``--again`` searches it once more).
``compare`` compiles with those, keeps each shape's times in ``benchmarks/results/tuning.json`` as
it goes (``--fresh`` forgets them), and prints the table, the means and which aims were reached; it
ends with 1 when one was not. ``export`` writes the candidates that the seeded random order tried,
which is what ``replay`` needs, to ``benchmarks/results/tuning-orders.json``. The shapes are those
of a Stable Diffusion U-Net; channels of the convolutions are divided by four.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import profile, timing
from mlirules.drivers.pipelines import transform as pipeline
from mlirules.drivers.tuning import ordering, outcome, space, tuner, ways, written
from mlirules.drivers.tuning.measure import Result, Runners
from mlirules.drivers.tuning.space import candidate_of
from mlirules.drivers.tuning.store import Measured, Store, root_of
from mlirules.language import outputs
from mlirules.language.pipeline import Pipeline
from mlirules.language.workers import workers

HERE = Path(__file__).resolve().parent / "results"
STATE = HERE / "tuning.sqlite"
ORDERS = HERE / "tuning-orders.json"
RULES = HERE / "tuned"
TIMES = HERE / "tuning.json"
CPU = Target.parse("cpu")

#: Times as fast: over stock for all shapes and for attention, over PyTorch for products.
AIMS = {("all", "stock"): 2.0, ("attention", "stock"): 5.0, ("mmt", "torch"): 0.9}

MATMULS = [
    (2048, 1280, 1280),
    (2048, 10240, 1280),
    (2048, 1280, 5120),
    (8192, 640, 640),
    (128, 1280, 2048),
]
CONVOLUTIONS = [(2, 32, 32, 320, 320), (2, 64, 64, 160, 160)]
ATTENTIONS = [(20, 1024, 64), (10, 4096, 64)]


def matmul(m: int, n: int, k: int) -> str:
    """``c[m, n] += a[m, k] * b[n, k]``."""
    c = f"tensor<{m}x{n}xf32>"
    ab = f"tensor<{m}x{k}xf32>, tensor<{n}x{k}xf32>"
    maps = ", ".join(f"affine_map<(m, n, k) -> ({i})>" for i in ("m, k", "n, k", "m, n"))
    return f"""func.func @main(%a: tensor<{m}x{k}xf32>, %b: tensor<{n}x{k}xf32>) -> {c} {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : {c}
  %fill = linalg.fill ins(%zero : f32) outs(%empty : {c}) -> {c}
  %r = linalg.matmul indexing_maps = [{maps}] ins(%a, %b : {ab}) outs(%fill : {c}) -> {c}
  return %r : {c}
}}
"""


def convolution(n: int, h: int, w: int, c: int, f: int) -> str:
    """A 3x3 convolution, NCHW; the input is padded already."""
    x, k = f"tensor<{n}x{c}x{h + 2}x{w + 2}xf32>", f"tensor<{f}x{c}x3x3xf32>"
    o = f"tensor<{n}x{f}x{h}x{w}xf32>"
    return f"""func.func @main(%x: {x}, %k: {k}) -> {o} {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : {o}
  %fill = linalg.fill ins(%zero : f32) outs(%empty : {o}) -> {o}
  %r = linalg.conv_2d_nchw_fchw {{dilations = dense<1> : tensor<2xi64>,
      strides = dense<1> : tensor<2xi64>}} ins(%x, %k : {x}, {k}) outs(%fill : {o}) -> {o}
  return %r : {o}
}}
"""


def attention(b: int, s: int, d: int) -> str:
    """Scaled dot-product attention of ``b`` heads."""
    t = f"tensor<{b}x{s}x{d}xf32>"
    maps = ", ".join(
        f"affine_map<(b, m, n, d, s) -> ({i})>"
        for i in ("b, m, d", "b, s, d", "b, s, n", "", "b, m, n")
    )
    return f"""func.func @main(%q: {t}, %k: {t}, %v: {t}) -> {t} {{
  %scale = arith.constant {1 / math.sqrt(d)!r} : f32
  %empty = tensor.empty() : {t}
  %r = iree_linalg_ext.attention <indexing_maps = [{maps}]>
      ins(%q, %k, %v, %scale : {t}, {t}, {t}, f32) outs(%empty : {t}) {{
    ^bb0(%score: f32):
      iree_linalg_ext.yield %score : f32
  }} -> {t}
  return %r : {t}
}}
"""


def programs() -> dict[str, str]:
    """The programs by name."""
    made = {f"mmt-{'x'.join(map(str, s))}": matmul(*s) for s in MATMULS}
    made |= {f"conv-{'x'.join(map(str, s))}": convolution(*s) for s in CONVOLUTIONS}
    made |= {f"attention-{'x'.join(map(str, s))}": attention(*s) for s in ATTENTIONS}
    return made


def search(
    names: list[str], seconds: float, budget: int, order: str, seed: int, again: bool
) -> None:
    """Tune each program in turn until the time is over; write what won."""
    others = ways.load_ways(kind="cpu")
    until = time.monotonic() + seconds
    with (
        contextlib.closing(Store(STATE)) as store,
        Runners() as runners,
        workers("2") as pool,
    ):
        for name in names:
            done = RULES / f"{name}.searched"
            known = json.loads(done.read_text()) if done.exists() else {}
            if known.get("budget", 0) >= budget and not again:
                print(f"{name}: searched already ({known['choice']})", flush=True)
                continue
            left = until - time.monotonic()
            if left < 5:
                print(f"{name}: no time left")
                continue
            options = outcome.Options(
                CPU, budget=budget, seconds=left, seed=seed, order=order, rounds=3
            )
            made = tuner.tune(
                ways.Given(programs()[name]),
                options,
                tuner.Means(store, pool, runners=runners),
                path=name,
                alternatives=others,
            )
            written.write_found(made, RULES, name)
            if not made.tuned:
                print(f"{name}: nothing was tuned: {made.skipped}", flush=True)
            for t in made.tuned:
                best = t.best
                said = f"{best.result.ratio:.2f} ({best.candidate.label})" if best else "none"
                print(
                    f"{name}: {len(t.measured)} of {t.candidates}, default {t.default_ms:.2f} ms, "
                    f"best {said}, "
                    f"kept {t.winner.speedup if t.winner else 0:.2f} {t.why_not} "
                    f"noise {t.noise:.1%} drift {t.drift:.2f} {made.dropped}",
                    flush=True,
                )
            for tried in made.ways:
                if tried.ratio:
                    print(f"{name}: {tried.way.name}: {tried.state}, {tried.ratio:.2f}")
            for c in made.choices:
                print(f"{name}: in the end: {c.name} {c.whole.ratio:.3f} {c.whole.difference}")
            chosen = made.choice.name if made.choice else "the default"
            print(f"{name}: chosen: {chosen}", flush=True)
            if all(len(t.measured) >= min(budget, t.candidates) for t in made.tuned):
                done.write_text(json.dumps({"budget": budget, "choice": chosen}) + "\n")


def export(seed: int, count: int) -> None:
    """Write what the seeded random order measured first, for each op."""
    store = Store(STATE)
    rows: list[dict[str, Any]] = []
    spaces = space.load_spaces()
    for root, measured in store.history("cpu").values():
        known = {m.candidate.key: m for m in measured}
        line = ordering.order(
            "random", space.enumerate_candidates(root, CPU, spaces), root, seed=seed
        )
        sample = [known[c.key] for c in line.take(count) if c.key in known]
        if len(sample) < count:
            print(f"{root.title}: {len(sample)} of {count} measured, left out")
            continue
        rows.append(
            {
                "root": {**_plain(root), "region": "", "captured": ""},
                "space_size": len(space.enumerate_candidates(root, CPU, spaces)),
                "results": [
                    {
                        "candidate": m.candidate.as_json(),
                        "state": m.result.state,
                        "ratio": m.result.ratio and round(m.result.ratio, 4),
                    }
                    for m in sample
                ],
            }
        )
    head = {"device": _device(), "compiler": compiler.version(), "seed": seed, "ops": rows}
    ORDERS.write_text(json.dumps(head, separators=(",", ":")) + "\n")
    print(f"{sum(len(r['results']) for r in rows)} results of {len(rows)} ops")


def _plain(root: Any) -> dict[str, Any]:
    from dataclasses import asdict

    made: dict[str, Any] = json.loads(json.dumps(asdict(root), default=sorted))
    return made


def _device() -> str:
    from mlirules.drivers.iree.devices import device_name

    return device_name("cpu")


def replay(seeds: int) -> dict[str, Any]:
    """How many candidates each order tries until one is within 5 % of the best, by op."""
    data = json.loads(ORDERS.read_text())
    known = {}
    for row in data["ops"]:
        root = root_of(row["root"])
        measured = [
            Measured(
                candidate_of(r["candidate"]),
                Result(candidate_of(r["candidate"]).key, r["state"], ratio=r["ratio"]),
            )
            for r in row["results"]
        ]
        known[f"{root.kind} {root.shape}"] = (root, measured)
    out: dict[str, Any] = {"device": data["device"], "ops": {}}
    shares: dict[str, list[float]] = {m: [] for m in ordering.METHODS if m != "random"}
    for title, (root, measured) in known.items():
        by_key = {m.candidate.key: m for m in measured}
        candidates = [m.candidate for m in measured]
        others = {k: v for k, v in known.items() if k != title}
        counts: dict[str, list[int]] = {m: [] for m in ordering.METHODS}
        for seed in range(seeds):
            for method in ordering.METHODS:
                line = ordering.order(method, candidates, root, seed=seed, history=others)
                counts[method].append(ordering.until_good(line, by_key))
        row = {m: statistics.median(c) for m, c in counts.items()}
        for method in shares:
            shares[method] += [a / b for a, b in zip(counts[method], counts["random"], strict=True)]
        out["ops"][title] = {"candidates": len(candidates), **row}
    medians = {m: statistics.median(v["random"] for v in out["ops"].values()) for m in ("random",)}
    out["median_random"] = medians["random"]
    for method in shares:
        middle = statistics.median(v[method] for v in out["ops"].values())
        out[f"median_{method}"] = middle
        out[f"share_{method}"] = statistics.median(
            v[method] / v["random"] for v in out["ops"].values()
        )
        out[f"share_{method}_by_seed"] = statistics.median(shares[method])
    return out


def compare(
    names: list[str], rounds: int, seconds: float, fresh: bool
) -> dict[str, dict[str, Any]]:
    """Time stock, tuned, PyTorch and numpy in turns, shape by shape; known shapes are kept."""
    head = {"device": _device(), "compiler": compiler.version()}
    kept = json.loads(TIMES.read_text()) if TIMES.exists() and not fresh else {}
    rows: dict[str, dict[str, Any]] = kept["shapes"] if head.items() <= kept.items() else {}
    for number, name in enumerate(names, 1):
        if name in rows:
            continue
        print(f"{number}/{len(names)} {name}", file=sys.stderr, flush=True)
        rows[name] = _times(name, rounds, seconds)
        whole = json.dumps({**head, "shapes": rows}, indent=1) + "\n"
        outputs.write(TIMES, whole.encode())
    return {n: rows[n] for n in names if n in rows}


def _times(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    text = programs()[name]
    function, inputs = profile.random_inputs(text)
    stock = compiler.compile_module(text, CPU)
    path, how = RULES / f"{name}.cpu.yaml", "stock: nothing won"
    tuned = stock
    if path.exists():
        chosen = Pipeline.load(path)
        tuned, _ = pipeline.compile_program(text, CPU, chosen)
        how = chosen.summary
    programs_ = {
        "stock": runtime.Program(stock, inputs, CPU.device, function),
        "tuned": runtime.Program(tuned, inputs, CPU.device, function),
    }
    contenders: dict[str, Callable[[], object]] = {**programs_, **references(name, inputs)}
    have, want = programs_["tuned"].results()[0], programs_["stock"].results()[0]
    error = float(np.max(np.abs(have - want)) / np.max(np.abs(want)))
    made = timing.paired(contenders, baseline="stock", rounds=rounds, seconds=seconds)
    row: dict[str, Any] = {
        "how": how,
        "error": error,
        "drift": made.drift,
        "ms": {c: 1e3 * made[c].median for c in contenders},
        "fastest_ms": {c: 1e3 * made[c].fastest for c in contenders},
        "spread": {c: made[c].spread for c in contenders},
        "tuned_over": {c: made.ratio("tuned", c).median for c in contenders if c != "tuned"},
    }
    if tuned == stock:
        row["tuned_over"]["stock"] = 1.0  # one binary: what differs is noise
    return row


def judge(rows: dict[str, dict[str, Any]]) -> bool:
    """Print the table, the geometric means and the aims. False when one was not reached."""
    others = ("stock", "torch", "numpy")
    print(
        f"{'op':26} "
        + " ".join(f"{c + ' ms':>10}" for c in ("tuned", *others))
        + " ".join(f"{'x ' + c:>8}" for c in others)
        + "  how"
    )
    for name, row in rows.items():
        times = " ".join(f"{row['ms'].get(c, math.nan):10.2f}" for c in ("tuned", *others))
        over = " ".join(f"{row['tuned_over'].get(c, math.nan):8.2f}" for c in others)
        print(f"{name:26} {times}{over}  {row['how']}")
    reached = True
    for kind in ("all", "mmt", "conv", "attention"):
        those = [r for n, r in rows.items() if kind == "all" or n.startswith(kind)]
        for other in others:
            ratios = [r["tuned_over"][other] for r in those if other in r["tuned_over"]]
            if not ratios:
                continue
            middle = math.exp(statistics.fmean(map(math.log, ratios)))
            aim = AIMS.get((kind, other))
            said = ""
            if aim is not None:
                reached &= middle >= aim
                said = f"; the aim of {aim} is {'' if middle >= aim else 'not '}reached"
            print(f"{kind}: tuned is {middle:.2f} times as fast as {other}{said}")
    missing = set(programs()) - set(rows)
    if missing:
        print(f"not measured: {', '.join(sorted(missing))}")
    return reached and not missing


def references(name: str, inputs: list[Any]) -> dict[str, Callable[[], object]]:
    """The same work in PyTorch (where it is installed) and numpy."""
    kind = name.partition("-")[0]
    a = [np.asarray(i) for i in inputs]
    out: dict[str, Callable[[], object]] = {}
    if kind == "mmt":
        out["numpy"] = lambda: a[0] @ a[1].T
    elif kind == "attention":
        scale = 1 / math.sqrt(a[0].shape[-1])

        def plain() -> object:
            scores = (a[0] @ a[1].transpose(0, 2, 1)) * np.float32(scale)
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=-1, keepdims=True)
            return scores @ a[2]

        out["numpy"] = plain
    else:
        windows = np.lib.stride_tricks.sliding_window_view(a[0], (3, 3), axis=(2, 3))
        weights = a[1].reshape(a[1].shape[0], -1)

        def columns() -> object:
            n, c, h, w = windows.shape[:4]
            packed = windows.transpose(0, 1, 4, 5, 2, 3).reshape(n, c * 9, h * w)
            return weights @ packed

        out["numpy"] = columns
    try:
        import torch
    except ImportError:
        return out
    torch.set_grad_enabled(False)
    t = [torch.from_numpy(x) for x in a]
    if kind == "mmt":
        out["torch"] = lambda: t[0] @ t[1].T
    elif kind == "attention":
        q, k, v = (x.unsqueeze(0) for x in t)
        out["torch"] = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)
    else:
        out["torch"] = lambda: torch.nn.functional.conv2d(t[0], t[1])
    return out


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("step", choices=["search", "export", "replay", "compare"])
    parser.add_argument("--shapes", default=",".join(programs()))
    parser.add_argument("--seconds", type=float, default=0, help="150 for search, 40 a shape")
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument("--order", default="random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--again", action="store_true", help="search: what was searched, too")
    parser.add_argument("--fresh", action="store_true", help="compare: forget known times")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    reached = True
    names = given.shapes.split(",")
    given.seconds = given.seconds or (150 if given.step == "search" else 40)
    if given.step == "search":
        search(names, given.seconds, given.budget, given.order, given.seed, given.again)
    elif given.step == "export":
        export(given.seed, given.budget)
    elif given.step == "replay":
        made: Any = replay(given.seeds)
        print(json.dumps(made, indent=2))
    else:
        made = compare(names, given.rounds, given.seconds, given.fresh)
        reached = judge(made)
    if given.output and given.step in ("replay", "compare"):
        given.output.write_text(json.dumps(made, indent=2) + "\n")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
