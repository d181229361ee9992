"""What the rules add to a compilation: `mlirules compile` over `iree-compile` on the same program.

    python benchmarks/compile_cost.py --rounds 5
    python benchmarks/compile_cost.py examples/hello_nn_world.mlir model.mlir

Without a program: HelloNNWorld, the BERT of the demo, and ResNet-50 where PyTorch and timm are
here. Both are run in turns as processes of their own. The table gives the medians of the seconds
by the clock and of the seconds of processor time (children included, which a busy machine disturbs
less), and their ratios to `iree-compile`, which gets the target's flags and torch input and no
rule; it is the compiler's own binary, and beside it what pip puts on the path, a script that starts
it. The caches (rule sets, costs) are warmed by a run that is not counted; with `--first` every run
finds them empty, as the first compile after an installation does, and with `--new` it finds what
another program left there, as the first compile of a program does. What is measured of a program
is told as soon as it is; the last rows are the geometric means of all programs. One that
`iree-compile` alone does not compile has no ratios.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mlirules.drivers.iree import compiler
from mlirules.drivers.iree.targets import Target
from mlirules.support import cache, package

Seconds = tuple[float, float]  # by the clock, of the processor


class FailedError(Exception):
    """A process that failed, and what it said."""


def run(command: Sequence[str]) -> Seconds:
    """The seconds that a process and its children take. Raises :class:`FailedError`."""
    before, start = os.times(), time.perf_counter()
    # Without byte code every run would read the sources again.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    wall, after = time.perf_counter() - start, os.times()
    if done.returncode:
        raise FailedError(f"{' '.join(command)}:\n{done.stderr}")
    used = after.children_user + after.children_system
    return wall, used - before.children_user - before.children_system


def medians(samples: list[Seconds]) -> Seconds:
    """The medians of the clock's and the processor's seconds."""
    return statistics.median(w for w, _ in samples), statistics.median(c for _, c in samples)


def compiling(
    model: Path, pipelines: Sequence[str], rounds: int, table: Table, before: Path | None = None
) -> dict[str, Seconds]:
    """Rows for one program: iree-compile, and each pipeline. Returns each one's ratios.

    ``before`` holds what every run finds in the caches (default: what the last one left).
    """
    ours = [sys.executable, "-m", "mlirules"]
    with tempfile.TemporaryDirectory() as folder:
        out = ["-o", str(Path(folder) / "model.vmfb")]
        stock = [str(compiler.tool_path("iree-compile")), str(model), "--iree-input-type=torch"]
        ways = {"iree-compile": [*stock, *Target.parse("cpu").flags, *out]}
        # What pip puts on the path is a script in Python, which starts that.
        script = Path(sys.executable).with_name("iree-compile")
        if script.exists():
            ways["iree-compile, pip's"] = [str(script), *ways["iree-compile"][1:]]
        for name in pipelines:
            ways[name] = [*ours, "compile", str(model), "--pipeline", name, *out]
        samples: dict[str, list[Seconds]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            for name, command in list(ways.items()):
                if before is not None:
                    shutil.rmtree(cache.directory(), ignore_errors=True)
                    shutil.copytree(before, cache.directory())
                try:
                    found = run(command)
                except FailedError as failed:
                    if turn or name in pipelines:
                        raise
                    print(f"{model.name}: {str(failed)[-300:]}", file=sys.stderr)
                    del ways[name], samples[name]
                    continue
                if turn:
                    samples[name].append(found)
    base = medians(samples["iree-compile"]) if "iree-compile" in samples else None
    ratios: dict[str, Seconds] = {}
    for name, taken in samples.items():
        wall, used = medians(taken)
        row = [model.name, name, f"{wall:.2f}", f"{used:.2f}"]
        if base is not None:
            ratios[name] = wall / base[0], used / base[1]
            row += [*(f"{ratio:.2f}" for ratio in ratios[name]), f"{used - base[1]:+.2f}"]
        table.add_row(*row)
        print("  ".join(row), file=sys.stderr, flush=True)
    return ratios


def means(ratios: Sequence[dict[str, Seconds]], table: Table) -> None:
    """Rows for the geometric means of all programs' ratios."""
    for name in dict.fromkeys(name for of in ratios for name in of):
        held = [of[name] for of in ratios if name in of]
        mean = [statistics.geometric_mean(ratio[n] for ratio in held) for n in range(2)]
        table.add_row(f"all {len(held)}", name, "", "", *(f"{ratio:.2f}" for ratio in mean), "")


def shipped(folder: Path) -> list[Path]:
    """The programs that are compiled where none is given; what must be imported goes there."""
    root = Path(__file__).resolve().parent.parent
    found = [root / "examples" / "hello_nn_world.mlir", package.SPECS / "demo" / "bert.mlirbc"]
    resnet = folder / "resnet50.mlirbc"
    name = ["timm.models:create_model", "--arg", "model_name=resnet50"]
    given = ["--input", "1x3x224x224xf32", "-o", str(resnet)]
    command = [sys.executable, "-m", "mlirules", "import", *name, *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"without ResNet-50: {done.stderr.strip().splitlines()[0]}", file=sys.stderr)
    else:
        found.append(resnet)
    return found


def others(pipelines: Sequence[str], folder: Path) -> None:
    """Compile programs that have nothing to do with those that are measured."""
    root = Path(__file__).resolve().parent.parent
    for model in (
        package.SPECS / "demo" / "bert.mlirbc",
        root / "examples" / "hello_nn_world.mlir",
    ):
        for name in pipelines:
            out = ["--pipeline", name, "-o", str(folder / "other.vmfb")]
            run([sys.executable, "-m", "mlirules", "compile", str(model), *out])


def commands(rounds: int, table: Table) -> None:
    """Rows for what costs nothing but starting."""
    rules = package.RULES / "torch" / "to-linalg"
    rule = rules / "matmul" / "torch-addbmm-to-linalg.yaml"
    for name, arguments in (("--help", ["--help"]), ("check RULE", ["check", str(rule)])):
        taken = [run([sys.executable, "-m", "mlirules", *arguments]) for _ in range(rounds + 1)]
        wall, used = medians(taken[1:])
        table.add_row("", name, f"{wall:.2f}", f"{used:.2f}", "", "", "")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--pipelines", default="cpu,cpu-fast")
    parser.add_argument("--rounds", type=int, default=5)
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--first", action="store_true", help="with nothing kept from earlier runs")
    kept.add_argument("--new", action="store_true", help="with nothing kept of the program itself")
    given = parser.parse_args()
    table = Table(box=None)
    for column in ("program", "by", "s", "CPU s", "ratio", "CPU ratio", "CPU s more"):
        table.add_column(column, justify="left" if column in ("program", "by") else "right")
    commands(given.rounds, table)
    with tempfile.TemporaryDirectory() as folder:
        pipelines, before = given.pipelines.split(","), None
        if given.first or given.new:
            os.environ["MLIRULES_CACHE_DIR"] = str(Path(folder) / "cache")
            before = Path(folder) / "before"
            before.mkdir()
        if before is not None and given.new:
            others(pipelines, Path(folder))
            shutil.copytree(cache.directory(), before, dirs_exist_ok=True)
        models = given.models or shipped(Path(folder))
        means([compiling(m, pipelines, given.rounds, table, before) for m in models], table)
    Console(width=100).print(table)


if __name__ == "__main__":
    try:
        main()
    except FailedError as failed:
        sys.exit(str(failed))
