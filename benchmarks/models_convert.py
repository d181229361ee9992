"""Whole models: do the rules convert them, how fast, and do the numbers stay PyTorch's?

For each model of `examples/models`, before and after PyTorch's decompositions, in one run:

    left      torch ops that no rule converts
    first     seconds from text to text, templates of the rules being made on the way
    again     the same once the templates are there (the fastest of `--repeat`)
    C++       the same text through IREE's own conversion in its place: `torch-to-iree`, and the
              pass `convert-torch-to-linalg` of it alone, which leaves other ops as they are
    error     the largest difference from PyTorch's results, over the largest of them, by target

Other targets than cpu run the small size before decomposition: decomposed, the decoder does not
compile for Vulkan, with the rules or without (a select against a tensor of rank 0).

    python benchmarks/models_convert.py                              # all four, full size
    python benchmarks/models_convert.py --size small --models resnet18
"""

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from mlirules.drivers.frontend.torch import Imported, Options, import_model
from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.compiler import compile_module, context, parse, run_passes
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.pipelines.transform import transform
from mlirules.language.faults import MlirulesError

MODELS = Path(__file__).resolve().parents[1] / "examples" / "models"
NAMES = ("resnet18", "bert_encoder", "llama_decoder", "unet_block")
ON_DEVICE = ("resnet18", "llama_decoder")
CPP = {
    "C++ all": "builtin.module(torch-to-iree)",
    "C++ linalg": "builtin.module(func.func(convert-torch-to-linalg))",
}


@dataclass
class Row:
    """One model in one form. ``cpp`` is seconds by pipeline, None where it fails."""

    model: str
    form: str
    size: str
    ops: int
    left: list[str]
    first: float
    again: float
    cpp: dict[str, float | None] = field(default_factory=dict)
    error: dict[str, float | str] = field(default_factory=dict)


def seconds(work: Callable[[], object]) -> float:
    """How long ``work`` takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def cpp(text: str, pipeline: str) -> None:
    """Text to text through the compiler's own passes."""
    module = parse(text, "<model>", context())
    run_passes(module, pipeline)
    str(module)


def best(work: Callable[[], object], repeat: int) -> float | None:
    """The fastest of some runs, None when the work fails."""
    try:
        return min(seconds(work) for _ in range(repeat))
    except MlirulesError:
        return None


def error(text: str, model: Imported, target: Target) -> float | str:
    """The largest difference from PyTorch's results, relative to the largest of them."""
    try:
        found = runtime.run(compile_module(text, target), list(model.inputs), target)
    except MlirulesError as fault:
        return str(fault).splitlines()[0]
    worst = 0.0
    for mine, golden in zip(found, model.results, strict=True):
        if mine.shape != golden.shape:
            return f"shape {list(mine.shape)}, not {list(golden.shape)}"
        scale = float(np.abs(golden).max()) or 1.0
        worst = max(worst, float(np.abs(mine - golden).max()) / scale)
    return worst


def measure(name: str, form: str, size: str, targets: list[Target], repeat: int) -> Row:
    """Import one model, convert it, and run it on ``targets``."""
    model = import_model(
        f"{MODELS / name}.py:{name}", Options(arguments={"size": size}, decompose=form == "core")
    )
    done = []
    first = seconds(lambda: done.append(transform(model.text, "cpu", path=name)))
    again = min(seconds(lambda: transform(model.text, "cpu", path=name)) for _ in range(repeat))
    row = Row(name, form, size, sum(model.ops.values()), done[0].leftovers, first, again)
    for shown, pipeline in CPP.items():
        row.cpp[shown] = best(functools.partial(cpp, model.text, pipeline), repeat)
    for target in targets:
        row.error[target.name] = error(done[0].text, model, target)
    return row


def shown(value: float | str | None) -> str:
    """A cell of the table."""
    if value is None:
        return "fails"
    return value if isinstance(value, str) else f"{value:.2g}"


def report(row: Row) -> None:
    """Print one row as a line."""
    times = {"first": row.first, "again": row.again, **row.cpp}
    cells = [f"{k} {shown(v)} s" if v is not None else f"{k} fails" for k, v in times.items()]
    cells += [f"error on {k} {shown(v)}" for k, v in row.error.items()]
    left = ", ".join(row.left) or "nothing"
    print(
        f"{row.model:14} {row.form:4} {row.size:5} {row.ops:5} ops  left: {left}  "
        + "  ".join(cells),
        flush=True,
    )


def main() -> int:
    """Run the benchmark; exit status 1 when something is left or numbers differ by 1e-3."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(NAMES), help="names, by commas")
    parser.add_argument("--size", default="full", choices=["full", "small"])
    parser.add_argument("--forms", default="core,aten", help="core, aten, by commas")
    parser.add_argument("--target", default="vulkan", help="besides cpu, small; none for no other")
    parser.add_argument("--repeat", type=int, default=3, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    options = parser.parse_args()
    rows: list[Row] = []
    cpu = Target.parse("cpu")
    transform("func.func @main() { return }", "cpu")  # the rules are read outside the numbers
    for name in options.models.split(","):
        for form in options.forms.split(","):
            rows.append(measure(name, form, options.size, [cpu], options.repeat))
            report(rows[-1])
        if options.target != "none" and name in ON_DEVICE:
            device = Target.parse(options.target)
            missing = device.available()
            if missing:
                print(f"{name}: not run on {options.target}: {missing}")
                continue
            rows.append(measure(name, "aten", "small", [device], 1))
            report(rows[-1])
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in rows], indent=1), encoding="utf-8")
    wrong = any(not isinstance(e, float) or not e < 1e-3 for r in rows for e in r.error.values())
    return 1 if wrong or any(r.left for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
