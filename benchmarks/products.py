"""Products by constant weights on one thread: the default's form, libxsmm's, and ONNX Runtime's.

They run in turns in this process, each on the calling thread; what counts is the least of rounds.
Each shape is rows x depth x columns. ONNX Runtime takes part where it is installed.

    taskset -c 1 python benchmarks/products.py
    taskset -c 1 python benchmarks/products.py --shapes 128x512x512,7x512x512 --rounds 40
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import timing
from mlirules.drivers.pipelines.transform import Pipeline, compile_program
from mlirules.generator import xsmm
from mlirules.language.stage import Expect, Stage

SHAPES = (
    "128x512x512,128x512x2048,128x2048x512,128x768x3072,128x3072x768,128x2048x2048,"
    "784x192x768,196x768x192,50x192x768,49x512x512,32x512x512,8x512x512"
)


def _type(*shape: int) -> str:
    return f"!torch.vtensor<[{','.join(map(str, shape))}],f32>"


def program(rows: int, weights: Any, *, added: bool) -> str:
    """A product by constant weights as MLIR, with a row that is added or without."""
    depth, columns = weights.shape
    x, w, d, c = _type(rows, depth), _type(depth, columns), _type(columns), _type(rows, columns)

    def literal(name: str, values: Any, type_: str) -> str:
        sizes = "x".join(map(str, values.shape))
        held = f'dense<"0x{values.tobytes().hex().upper()}"> : tensor<{sizes}xf32>'
        return f"  %{name} = torch.vtensor.literal({held}) : {type_}\n"

    body = literal("w", weights, w)
    if added:
        body += literal("d", np.linspace(-1, 1, columns, dtype=np.float32), d)
        body += "  %one = torch.constant.int 1\n"
        body += f"  %c = torch.aten.addmm %d, %x, %w, %one, %one : {d}, {x}, {w}, "
        body += f"!torch.int, !torch.int -> {c}\n"
    else:
        body += f"  %c = torch.aten.mm %x, %w : {x}, {w} -> {c}\n"
    return f"func.func @main(%x: {x}) -> {c} {{\n{body}  return %c : {c}\n}}\n"


def forms() -> dict[str, Pipeline]:
    """The default pipeline, and the same with every product by libxsmm."""
    line = Pipeline.load("cpu-fast")
    ours = Stage(phase="torch", rules=["libraries/xsmm"], driver="greedy", expect=Expect(applied=1))
    at = [stage.name for stage in line.stages].index("products")
    stages = [*line.stages[:at], ours, *line.stages[at:]]
    return {"default": line, "libxsmm": replace(line, pipeline="libxsmm", stages=stages)}


def other(x: Any, weights: Any, *, added: bool) -> Callable[[], Any] | None:
    """The same by ONNX Runtime; None where it is not installed."""
    try:
        import onnx
        import onnxruntime
    except ImportError:
        return None
    of, float_ = onnx.helper, onnx.TensorProto.FLOAT
    held = [of.make_tensor("w", float_, weights.shape, weights.ravel())]
    node = of.make_node("MatMul", ["x", "w"], ["y"])
    if added:
        row = np.linspace(-1, 1, weights.shape[1], dtype=np.float32)
        held.append(of.make_tensor("d", float_, row.shape, row))
        node = of.make_node("Gemm", ["x", "w", "d"], ["y"])
    graph = of.make_graph(
        [node],
        "product",
        [of.make_tensor_value_info("x", float_, x.shape)],
        [of.make_tensor_value_info("y", float_, None)],
        held,
    )
    model = of.make_model(graph, opset_imports=[of.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return lambda: session.run(None, {"x": x})[0]


def measure(shape: str, rounds: int, *, added: bool) -> dict[str, Any]:
    """One shape: the least seconds of each form, and how far results are from numpy's."""
    rows, depth, columns = map(int, shape.split("x"))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    weights = rng.standard_normal((depth, columns)).astype(np.float32)
    expected = x.astype(np.float64) @ weights
    if added:
        expected += np.linspace(-1, 1, columns, dtype=np.float32)
    text = program(rows, weights, added=added)
    contenders: dict[str, Callable[[], Any]] = {}
    error = 0.0
    for name, line in forms().items():
        binary = compile_program(text, Target.parse("cpu"), line)[0]
        made = runtime.Program(binary, [x], "local-sync")
        found = np.asarray(made.results()[0])
        error = max(error, float(np.abs(found - expected).max() / np.abs(expected).max()))
        contenders[name] = made
    theirs = other(x, weights, added=added)
    if theirs is not None:
        contenders["onnxruntime"] = theirs
    times = timing.paired(contenders, rounds=rounds).timings
    work = 2e-9 * rows * depth * columns
    speeds = {name: work / min(times[name].samples) for name in contenders}
    print(
        f"| {shape} | "
        + " | ".join(f"{speed:.0f}" for speed in speeds.values())
        + f" | {speeds['libxsmm'] / speeds['default']:.2f} |",
        flush=True,
    )
    return {"shape": shape, "gflops": speeds, "error": error}


def main() -> int:
    """Run the benchmark; exit status 1 when results are apart by 1e-5, 2 without libxsmm."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--added", action="store_true", help="with a row that is added")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers")
    options = parser.parse_args()
    if xsmm.generator() is None:
        print(xsmm.MISSING, file=sys.stderr)
        return 2
    print("GFLOP/s: default, libxsmm, ONNX Runtime where it is; libxsmm over default", flush=True)
    rows = [measure(s, options.rounds, added=options.added) for s in options.shapes.split(",")]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["error"] > 1e-5 for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
