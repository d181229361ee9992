"""Attention on cpu in one run: torch SDPA as stock IREE, as ``cpu-fast`` makes it, and in PyTorch.

python benchmarks/attention.py                       # 1x20x1024x64 f32
python benchmarks/attention.py --shape 1,8,128,64
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from mlirules.drivers import compiler, runtime, timing
from mlirules.drivers.measuring import relative_error
from mlirules.drivers.pipeline import Pipeline, compile_program
from mlirules.drivers.targets import Target

TEXT = """
func.func @main(%q: TYPE, %k: TYPE, %v: TYPE) -> TYPE {
  %none = torch.constant.none
  %p = torch.constant.float 0.0
  %false = torch.constant.bool false
  %y = torch.aten.scaled_dot_product_attention %q, %k, %v, %none, %p, %false, %none, %false : \
TYPE, TYPE, TYPE, !torch.none, !torch.float, !torch.bool, !torch.none, !torch.bool -> TYPE
  return %y : TYPE
}
"""


def main() -> int:
    """Run the benchmark; exit status 1 when results are apart or the aim is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="1,20,1024,64", help="batch, heads, length, width")
    parser.add_argument("--pipeline", default="cpu-fast")
    parser.add_argument("--rounds", type=int, default=12, metavar="N")
    parser.add_argument("--seconds", type=float, default=60, metavar="S")
    parser.add_argument("--at-least", type=float, default=8, metavar="X", help="times as fast")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    cpu = Target.parse("cpu")
    shape = [int(n) for n in options.shape.split(",")]
    text = TEXT.replace("TYPE", f"!torch.vtensor<{shape},f32>".replace(" ", ""))
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(np.float32) for _ in range(3)]
    query, key, value = (torch.from_numpy(x) for x in inputs)
    with torch.no_grad():
        golden = functional.scaled_dot_product_attention(query, key, value).numpy()
    made, done = compile_program(text, cpu, Pipeline.load(options.pipeline))
    for decision in done.outcome.decisions:
        print(decision)
    programs = {
        "stock": runtime.Program(compiler.compile_module(text, cpu), inputs, cpu.device),
        options.pipeline: runtime.Program(made, inputs, cpu.device),
    }
    errors = {name: relative_error(p.results()[0], golden) for name, p in programs.items()}

    def eager() -> None:
        with torch.no_grad():
            functional.scaled_dot_product_attention(query, key, value)

    found = timing.paired(
        {**programs, "PyTorch": eager}, rounds=options.rounds, seconds=options.seconds
    )
    for name, one in found.timings.items():
        error = f"error {errors[name]:.1e}" if name in errors else ""
        print(f"{name:10} {1e3 * one.median:9.2f} ms  spread {100 * one.spread:4.1f} %  "
              f"{found.ratio(name)} times stock's speed  {error}")  # fmt: skip
    print(f"drift {found.drift:.2f}, {len(found['stock'].samples)} rounds")
    if options.json:
        report = {"shape": shape, "errors": errors, **found.as_json()}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    good = max(errors.values()) < 1e-4
    return 0 if good and found.ratio(options.pipeline).median >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
