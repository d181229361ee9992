"""What tuning gains on this machine's processor, and how soon each order finds a good candidate.

Three steps, each for the shapes named (default: all)::

    python benchmarks/tuning.py search --seconds 150      # again until nothing is left to try
    python benchmarks/tuning.py compare                   # stock, tuned, PyTorch, numpy in one run
    python benchmarks/tuning.py replay                    # orders, from stored measurements

``search`` keeps its results in ``benchmarks/results/tuning.sqlite`` and goes on where it was;
``export`` writes the candidates that the seeded random order tried, which is what ``replay`` needs,
to ``benchmarks/results/tuning-orders.json``. ``compare`` uses the rules in
``benchmarks/results/tuned``. The shapes are those of a Stable Diffusion U-Net; channels of the
convolutions are divided by four.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mlirules.drivers import compiler, configs, profile, runtime, timing
from mlirules.drivers.targets import Target
from mlirules.drivers.tuning import ordering, results, space, tuner
from mlirules.drivers.tuning.measure import Result
from mlirules.drivers.tuning.space import candidate_of
from mlirules.drivers.tuning.store import Measured, Store, root_of
from mlirules.drivers.tuning.workers import workers

HERE = Path(__file__).resolve().parent / "results"
STATE = HERE / "tuning.sqlite"
ORDERS = HERE / "tuning-orders.json"
RULES = HERE / "tuned"
CPU = Target.parse("cpu")

MATMULS = [(2048, 1280, 1280), (2048, 10240, 1280), (2048, 1280, 5120), (8192, 640, 640),
           (128, 1280, 2048)]  # fmt: skip
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


def search(names: list[str], seconds: float, budget: int, order: str, seed: int) -> None:
    """Tune each program in turn until the time is over; write the winners' rules."""
    store, pool = Store(STATE), workers("2")
    until = time.monotonic() + seconds
    try:
        for name in names:
            left = until - time.monotonic()
            if left < 5:
                print(f"{name}: no time left")
                continue
            options = tuner.Options(
                CPU, budget=budget, seconds=left, seed=seed, order=order, rounds=3
            )
            made = tuner.tune(programs()[name], options, store, pool, path=name)
            results.write_rules(made.rules, RULES)
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
                )  # fmt: skip
    finally:
        pool.close()
        store.close()


def export(seed: int, count: int) -> None:
    """Write what the seeded random order measured first, for each op."""
    store = Store(STATE)
    rows = []
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
        rows.append({
            "root": {**_plain(root), "region": "", "captured": ""},
            "space_size": len(space.enumerate_candidates(root, CPU, spaces)),
            "results": [
                {"candidate": m.candidate.as_json(), "state": m.result.state,
                 "ratio": m.result.ratio and round(m.result.ratio, 4)}
                for m in sample
            ],
        })  # fmt: skip
    head = {"device": _device(), "compiler": compiler.version(), "seed": seed, "ops": rows}
    ORDERS.write_text(json.dumps(head, separators=(",", ":")) + "\n")
    print(f"{sum(len(r['results']) for r in rows)} results of {len(rows)} ops")


def _plain(root: Any) -> dict[str, Any]:
    from dataclasses import asdict

    made: dict[str, Any] = json.loads(json.dumps(asdict(root), default=sorted))
    return made


def _device() -> str:
    from mlirules.drivers.tuning.measure import device_name

    return device_name("cpu")


def replay(seeds: int) -> dict[str, Any]:
    """How many candidates each order tries until one is within 5 % of the best, by op."""
    data = json.loads(ORDERS.read_text())
    known = {}
    for row in data["ops"]:
        root = root_of(row["root"])
        measured = [
            Measured(candidate_of(r["candidate"]),
                     Result(candidate_of(r["candidate"]).key, r["state"], ratio=r["ratio"]))
            for r in row["results"]
        ]  # fmt: skip
        known[f"{root.kind} {root.shape}"] = (root, measured)
    out: dict[str, Any] = {"device": data["device"], "ops": {}}
    shares: dict[str, list[float]] = {"heuristic": [], "learned": []}
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
            shares[method] += [
                a / b for a, b in zip(counts[method], counts["random"], strict=True)
            ]
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


def compare(names: list[str], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Time stock, tuned, PyTorch and numpy in turns."""
    rules = configs.config_set([RULES])
    rows = []
    for name in names:
        text = programs()[name]
        function, inputs = profile.random_inputs(text)
        stock = compiler.compile_module(text, CPU)
        tuned, report = configs.compile_with(text, CPU, rules)
        programs_ = {
            "stock": runtime.Program(stock, inputs, CPU.device, function),
            "tuned": runtime.Program(tuned, inputs, CPU.device, function),
        }
        contenders: dict[str, Callable[[], object]] = dict(programs_)
        contenders |= references(name, inputs)
        have, want = programs_["tuned"].results()[0], programs_["stock"].results()[0]
        error = float(np.max(np.abs(have - want)) / np.max(np.abs(want)))
        made = timing.paired(contenders, baseline="stock", rounds=rounds, seconds=seconds)
        row = {"name": name, "hits": len(report.hits), "error": error, "drift": made.drift}
        for other in contenders:
            row[other] = 1e3 * made[other].median
            row[f"{other}_spread"] = made[other].spread
            if other not in ("stock", "tuned"):
                row[f"tuned_over_{other}"] = made.ratio("tuned", other).median
        row["tuned_over_stock"] = made.ratio("tuned").median
        rows.append(row)
        print("  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
                        for k, v in row.items()), flush=True)  # fmt: skip
    return rows


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


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("step", choices=["search", "export", "replay", "compare"])
    parser.add_argument("--shapes", default=",".join(programs()))
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument("--order", default="random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    names = given.shapes.split(",")
    if given.step == "search":
        search(names, given.seconds, given.budget, given.order, given.seed)
    elif given.step == "export":
        export(given.seed, given.budget)
    elif given.step == "replay":
        made: Any = replay(given.seeds)
        print(json.dumps(made, indent=2))
    else:
        made = compare(names, given.rounds, given.seconds)
        kinds = {"all": names, **{k: [n for n in names if n.startswith(k)]
                                  for k in ("mmt", "conv", "attention")}}  # fmt: skip
        for kind, those in kinds.items():
            rows = [r for r in made if r["name"] in those]
            for other in ("stock", "torch", "numpy"):
                ratios = [r[f"tuned_over_{other}"] for r in rows if f"tuned_over_{other}" in r]
                if ratios:
                    middle = math.exp(statistics.fmean(map(math.log, ratios)))
                    print(f"{kind}: tuned is {middle:.2f} times as fast as {other}")
    if given.output and given.step in ("replay", "compare"):
        given.output.write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
