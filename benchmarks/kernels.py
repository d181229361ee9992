"""The hand-written kernels against the compiler's own code for the same op, in one run.

For each op: what the target's default pipeline makes of it, and the kernel of ``rules/kernels``, in
turns on the same inputs; ratios are medians over the rounds.

    python benchmarks/kernels.py                             # cpu
    python benchmarks/kernels.py --target vulkan --only attention --json kernels.json
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import child as measuring
from mlirules.drivers.measure import numerics
from mlirules.drivers.pipelines.transform import compile_program, default_for
from mlirules.language.stage import Expect, Stage


def _type(*shape: int) -> str:
    return f"!torch.vtensor<[{','.join(map(str, shape))}],f32>"


def softmax(rows: int, columns: int) -> str:
    """Over the last dim."""
    t = _type(rows, columns)
    return f"""func.func @main(%x: {t}) -> {t} {{
  %dim = torch.constant.int -1
  %false = torch.constant.bool false
  %y = torch.aten._softmax %x, %dim, %false : {t}, !torch.int, !torch.bool -> {t}
  return %y : {t}
}}"""


def gemm(m: int, k: int, n: int) -> str:
    """A product of two matrices."""
    a, b, c = _type(m, k), _type(k, n), _type(m, n)
    return f"""func.func @main(%a: {a}, %b: {b}) -> {c} {{
  %c = torch.aten.mm %a, %b : {a}, {b} -> {c}
  return %c : {c}
}}"""


def attention(heads: int, length: int, width: int) -> str:
    """One batch, no mask."""
    t = _type(1, heads, length, width)
    return f"""func.func @main(%q: {t}, %k: {t}, %v: {t}) -> {t} {{
  %none = torch.constant.none
  %p = torch.constant.float 0.0
  %false = torch.constant.bool false
  %y = torch.aten.scaled_dot_product_attention %q, %k, %v, %none, %p, %false, %none, %false : \
{t}, {t}, {t}, !torch.none, !torch.float, !torch.bool, !torch.none, !torch.bool -> {t}
  return %y : {t}
}}"""


PROGRAMS = {
    "softmax 1024x1024": softmax(1024, 1024),
    "softmax 64x4096": softmax(64, 4096),
    "gemm 256x256x256": gemm(256, 256, 256),
    "gemm 512x512x512": gemm(512, 512, 512),
    "gemm 128x768x768": gemm(128, 768, 768),
    "attention 8x256x64": attention(8, 256, 64),
    "attention 8x1024x64": attention(8, 1024, 64),
}


def measure(name: str, text: str, target: Target, seconds: float) -> dict[str, Any]:
    """One op both ways: milliseconds, the ratio with its quartiles, how far results are apart."""
    line = default_for(target.kind)
    kernels = Stage(phase="torch", rules=["kernels"], driver="greedy", expect=Expect(applied=1))
    ours = replace(line, pipeline="kernel", stages=[kernels, *line.stages])
    programs = {form.pipeline: compile_program(text, target, form)[0] for form in (line, ours)}
    inputs = numerics.random_inputs(numerics.signature(text)[1])
    found = measuring.compare(programs, inputs, target, measuring.Budget(seconds=seconds))
    ratio = found.comparison.ratio("kernel")
    row = {
        "op": name,
        "target": target.name,
        "error": found.error,
        "compiler_ms": 1e3 * found.comparison[line.pipeline].median,
        "kernel_ms": 1e3 * found.comparison["kernel"].median,
        "ratio": ratio.median,
        "low": ratio.low,
        "high": ratio.high,
    }
    print(
        f"{name:20} {line.pipeline} {row['compiler_ms']:9.3f} ms  kernel "
        f"{row['kernel_ms']:9.3f} ms  {ratio} times as fast  error {found.error:.1e}",
        flush=True,
    )
    return row


def main() -> int:
    """Run the benchmark; exit status 1 when results are apart by 1e-4."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--only", default="", help="ops whose name begins so")
    parser.add_argument("--seconds", type=float, default=5, metavar="S", help="for each op")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers")
    options = parser.parse_args()
    target = Target.parse(options.target)
    rows = [
        measure(name, text, target, options.seconds)
        for name, text in PROGRAMS.items()
        if name.startswith(options.only)
    ]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["error"] > 1e-4 for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
