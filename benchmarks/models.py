"""Whole models on cpu in one run: stock iree-compile, a pipeline of mlirules, PyTorch eager.

"stock" is iree-compile with its default optimisation flags and target-cpu=host on the very program
that the pipeline gets (before decompositions, weights as constants). All three run in turns, round
by round, on the same inputs; ratios are medians over the rounds. Results are held against
PyTorch's.

    python benchmarks/models.py                                    # all four, full size
    python benchmarks/models.py --models unet_block --pipeline cpu-fast --json models.json
"""

import argparse
import importlib.util
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mlirules.drivers.frontend.torch import Options, import_model
from mlirules.drivers.iree import compiler, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import timing
from mlirules.drivers.measure.child import relative_error
from mlirules.drivers.pipelines import cost
from mlirules.drivers.pipelines.transform import Pipeline, Recipe

MODELS = Path(__file__).resolve().parents[1] / "examples" / "models"
NAMES = ("resnet18", "bert_encoder", "llama_decoder", "unet_block")


def eager(name: str, size: str, inputs: list[Any]) -> Callable[[], object]:
    """The model in PyTorch; its weights are others than the imported ones, its speed is not."""
    spec = importlib.util.spec_from_file_location(name, MODELS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    model = getattr(module, name)(size).eval()
    tensors = [torch.from_numpy(x) for x in inputs]

    def run() -> None:
        with torch.no_grad():
            model(*tensors)

    return run


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One model: compiled both ways, checked, timed."""
    cpu = Target.parse("cpu")
    model = import_model(
        f"{MODELS / name}.py:{name}", Options(arguments={"size": options.size}, decompose=False)
    )
    inputs, line = list(model.inputs), Pipeline.load(options.pipeline)
    costs = cost.Settings(cpu, measure=options.measure)
    made, done = Recipe(model.text, cpu, line, costs=costs).compile()
    programs = {
        "stock": runtime.Program(compiler.compile_module(model.text, cpu), inputs, cpu.device),
        line.pipeline: runtime.Program(made, inputs, cpu.device),
    }
    errors = {
        form: max(relative_error(a, b) for a, b in zip(p.results(), model.results, strict=True))
        for form, p in programs.items()
    }
    found = timing.paired(
        {**programs, "PyTorch": eager(name, options.size, inputs)},
        rounds=options.rounds,
        seconds=options.seconds,
    )
    for decision in done.outcome.decisions:
        print(f"  {decision}")
    ours, eagerly = found.ratio(line.pipeline), found.ratio(line.pipeline, over="PyTorch")
    print(
        f"{name:14} stock {1e3 * found['stock'].median:8.2f} ms  "
        f"{line.pipeline} {1e3 * found[line.pipeline].median:8.2f} ms  "
        f"PyTorch {1e3 * found['PyTorch'].median:8.2f} ms  "
        f"{ours} times stock  {eagerly} times PyTorch  "
        f"error {errors['stock']:.1e} {errors[line.pipeline]:.1e}  drift {found.drift:.2f}",
        flush=True,
    )
    return {
        "model": name,
        "size": options.size,
        "errors": errors,
        **found.as_json(),
        "over_stock": ours.median,
        "over_pytorch": eagerly.median,
        "decisions": [vars(d) for d in done.outcome.decisions],
    }


def main() -> int:
    """Run the benchmark; exit status 1 when results are apart by 1e-3."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(NAMES), help="names, by commas")
    parser.add_argument("--size", default="full", choices=["full", "small"])
    parser.add_argument("--pipeline", default="cpu-fast")
    parser.add_argument("--measure", action="store_true", help="cost stages: time both forms")
    parser.add_argument("--rounds", type=int, default=20, metavar="N")
    parser.add_argument("--seconds", type=float, default=12, metavar="S", help="for each model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers")
    options = parser.parse_args()
    rows = [measure(name, options) for name in options.models.split(",")]
    stock = statistics.geometric_mean(row["over_stock"] for row in rows)
    pytorch = statistics.geometric_mean(row["over_pytorch"] for row in rows)
    print(f"geometric mean: {stock:.2f} times stock, {pytorch:.2f} times PyTorch")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if any(max(row["errors"].values()) > 1e-3 for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
