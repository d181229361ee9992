"""How fast are rewrites driven from Python? Against the C++ pass, and xDSL, on one program.

The program is a chain of `torch.aten.mm` and `torch.aten.relu` (half of the ops each). Every
engine parses the same text and lowers each mm to `tensor.empty`, `linalg.fill` and
`linalg.matmul`, each relu to `tensor.empty` and `linalg.generic`, between the casts that torch
types ask for:

    walk, greedy, conversion
          mlirules' drivers with the shipped rules for these two ops; constants, empty tensors,
          fills and casts are shared by `walk`, and dead casts are gone at the end
    cpp   IREE's own `convert-torch-to-linalg`, through its pass manager
    cpp-unverified
          the same without the verifier that the pass manager runs after a pass
    xdsl  xDSL's greedy rewriter, over torch ops defined beside this file with IRDL

Each measurement runs in a process of its own, and the fastest of `--repeat` counts. Imports,
reading the rules and generating the text are not in the numbers; what an engine was meant to
rewrite and did not ends the run.

    python benchmarks/rewriting.py                          # the comparison, 40,000 ops each
    python benchmarks/rewriting.py --xdsl-ops 4000          # xDSL on fewer; ratios are per op
    python benchmarks/rewriting.py --growth                 # time per op up to 400,000 ops
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

DriverName = Literal["walk", "greedy", "conversion"]
RULES = [
    "torch/to-linalg/matmul/torch-mm-to-linalg",
    "torch/to-linalg/elementwise/torch-relu-to-linalg",
]
OPS = 40_000
GROWTH = (40_000, 100_000, 200_000, 400_000)


@dataclass(frozen=True)
class Timing:
    """One engine on one program: seconds to parse its text, and to rewrite every op."""

    engine: str
    ops: int
    parse: float
    rewrite: float

    @property
    def both(self) -> float:
        """Seconds from the text to the rewritten module."""
        return self.parse + self.rewrite

    def per_op(self, what: str) -> float:
        """Seconds per op of the program; `what` is `parse`, `rewrite` or `both`."""
        seconds: float = getattr(self, what)
        return seconds / self.ops


def program(ops: int) -> str:
    """Return a torch-dialect function of `ops` ops, mm and relu in turn, each using the last."""
    if ops < 2 or ops % 2:
        raise ValueError(f"the program has an even number of ops, at least 2, not {ops}")
    t = "!torch.vtensor<[8,8],f32>"
    lines = [f"func.func @main(%a0: {t}, %b: {t}) -> {t} {{"]
    for i in range(ops // 2):
        lines.append(f"  %m{i} = torch.aten.mm %a{i}, %b : {t}, {t} -> {t}")
        lines.append(f"  %a{i + 1} = torch.aten.relu %m{i} : {t} -> {t}")
    lines += [f"  return %a{ops // 2} : {t}", "}", ""]
    return "\n".join(lines)


def expect_rewritten(
    engine: str, ops: int, counts: dict[str, int], *, shared: bool = False
) -> None:
    """End the run unless `counts` (op name to number) are those of the whole program, lowered.

    `shared`: equal fills may be one.
    """
    half = ops // 2
    if shared and 1 <= counts.get("linalg.fill", 0) <= half:
        counts = {**counts, "linalg.fill": half}
    wanted = {
        "torch.aten.mm": 0,
        "torch.aten.relu": 0,
        "linalg.fill": half,
        "linalg.matmul": half,
        "linalg.generic": half,
    }
    found = {name: counts.get(name, 0) for name in wanted}
    if found != wanted:
        raise SystemExit(f"{engine} did not lower the program: expected {wanted}, found {found}")


def measure_mlirules(driver: DriverName, ops: int) -> Timing:
    """Measure one of our drivers. Reading the rules and compiling their PDL is not in it."""
    from mlirules.drivers.apply.engine import Engine
    from mlirules.drivers.apply.run import Options
    from mlirules.drivers.iree import compiler
    from mlirules.language.loader import load_rules

    text = program(ops)
    context = compiler.context()
    engine = Engine(load_rules(RULES, ops=compiler.op_oracle), context)
    warm = compiler.parse(program(2), "warm", context)
    engine.run(warm, Options(driver=driver))
    start = time.perf_counter()
    module = compiler.parse(text, "program", context)
    parsed = time.perf_counter()
    engine.run(module, Options(driver=driver))
    done = time.perf_counter()
    expect_rewritten(driver, ops, count_text(str(module)), shared=True)
    return Timing(driver, ops, parsed - start, done - parsed)


def measure_cpp(ops: int, *, verify: bool = True) -> Timing:
    """Measure IREE's `convert-torch-to-linalg`, with the verifier that its manager runs."""
    from iree.compiler import ir
    from iree.compiler.passmanager import PassManager

    text = program(ops)
    context = ir.Context()
    manager = PassManager.parse("builtin.module(func.func(convert-torch-to-linalg))", context)
    manager.enable_verifier(verify)
    start = time.perf_counter()
    module = ir.Module.parse(text, context)
    parsed = time.perf_counter()
    manager.run(module.operation)
    done = time.perf_counter()
    name = "cpp" if verify else "cpp-unverified"
    expect_rewritten(name, ops, count_text(str(module)))
    return Timing(name, ops, parsed - start, done - parsed)


def count_text(text: str) -> dict[str, int]:
    """Count the ops of a printed module, by the names that the comparison looks at."""
    counts: dict[str, int] = {}
    for line in text.splitlines():
        _, equals, right = line.partition(" = ")
        if equals:
            name = right.split(maxsplit=1)[0]
            counts[name] = counts.get(name, 0) + 1
    return counts


def measure_xdsl(ops: int) -> Timing:
    """Measure xDSL: its parser, then its greedy applier under one walk."""
    from rewriting_xdsl import count_ops, make_context, parse, rewrite

    text = program(ops)
    context = make_context()
    start = time.perf_counter()
    module = parse(text, context)
    parsed = time.perf_counter()
    rewrite(module)
    done = time.perf_counter()
    expect_rewritten("xdsl", ops, count_ops(module))
    return Timing("xdsl", ops, parsed - start, done - parsed)


ENGINES: dict[str, Callable[[int], Timing]] = {
    "walk": partial(measure_mlirules, "walk"),
    "greedy": partial(measure_mlirules, "greedy"),
    "conversion": partial(measure_mlirules, "conversion"),
    "cpp": measure_cpp,
    "cpp-unverified": partial(measure_cpp, verify=False),
    "xdsl": measure_xdsl,
}


def measure(engine: str, ops: int, repeat: int) -> Timing:
    """Measure `engine` `repeat` times, each in a new process; the fastest whole run counts."""
    timings = []
    for _ in range(repeat):
        command = [sys.executable, __file__, "--worker", engine, str(ops)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{engine} failed on {ops} ops (exit code {done.returncode})")
        timings.append(Timing(**json.loads(done.stdout.splitlines()[-1])))
    return min(timings, key=lambda timing: timing.both)


def table(rows: list[list[str]]) -> str:
    """Lay out `rows`, the first of which is the heading, in right-aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.rjust(w) for cell, w in zip(r, widths, strict=True)) for r in rows
    )


def compare(timings: list[Timing], base: str) -> str:
    """Show seconds, microseconds per op, and how many times the time of `base` each took."""
    reference = next(timing for timing in timings if timing.engine == base)
    rows = [["engine", "ops", "parse s", "rewrite s", "both s", "us/op"]]
    rows[0] += [f"{what} /{base}" for what in ("parse", "rewrite", "both")]
    for timing in timings:
        row = [timing.engine, f"{timing.ops:,}"]
        row += [f"{seconds:.3f}" for seconds in (timing.parse, timing.rewrite, timing.both)]
        row.append(f"{timing.per_op('both') * 1e6:.1f}")
        for what in ("parse", "rewrite", "both"):
            row.append(f"{timing.per_op(what) / reference.per_op(what):.2f}x")
        rows.append(row)
    return table(rows)


def growth(timings: list[Timing]) -> str:
    """Show the time per op against the size: flat is linear."""
    rows = [["engine", "ops", "parse us/op", "rewrite us/op", "both us/op"]]
    for timing in timings:
        per_op = [f"{timing.per_op(what) * 1e6:.2f}" for what in ("parse", "rewrite", "both")]
        rows.append([timing.engine, f"{timing.ops:,}", *per_op])
    return table(rows)


def main() -> None:
    """Run the comparison, or the growth, and print it; `--json` keeps the numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", type=int, default=OPS, help="ops in the program (%(default)s)")
    parser.add_argument("--xdsl-ops", type=int, help="ops in xDSL's program (as --ops)")
    parser.add_argument(
        "--engines", help=f"which ({','.join(ENGINES)}; for --growth all but xdsl, which is slow)"
    )
    parser.add_argument("--base", default="cpp", help="the engine that is 1.00x (%(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="the fastest of N (%(default)s)")
    parser.add_argument("--xdsl-repeat", type=int, default=1, help="for xDSL (%(default)s)")
    parser.add_argument("--growth", action="store_true", help="time per op at several sizes")
    parser.add_argument("--sizes", default=",".join(map(str, GROWTH)), help="(%(default)s)")
    parser.add_argument("--json", type=Path, help="write every timing to this file")
    parser.add_argument("--worker", nargs=2, metavar=("ENGINE", "OPS"), help=argparse.SUPPRESS)
    args = parser.parse_args()

    if args.worker:
        engine, ops = args.worker
        print(json.dumps(asdict(ENGINES[engine](int(ops)))))
        return

    usual = [engine for engine in ENGINES if engine != "xdsl" or not args.growth]
    engines = args.engines.split(",") if args.engines else usual
    unknown = sorted(set(engines) - set(ENGINES))
    if unknown:
        parser.error(f"unknown engine {', '.join(unknown)}: choose from {', '.join(ENGINES)}")
    if "xdsl" in engines and find_spec("xdsl") is None:
        parser.error("xDSL is not installed: pip install 'mlirules[bench]', or leave it out")
    if args.growth:
        sizes = [int(size) for size in args.sizes.split(",")]
        timings = [measure(engine, size, args.repeat) for engine in engines for size in sizes]
        print(growth(timings))
    else:
        if args.base not in engines:
            parser.error(f"--base {args.base} is not among the engines {', '.join(engines)}")
        timings = []
        for engine in engines:
            xdsl = engine == "xdsl"
            ops = args.xdsl_ops or args.ops if xdsl else args.ops
            timings.append(measure(engine, ops, args.xdsl_repeat if xdsl else args.repeat))
        print(compare(timings, args.base))
    if args.json:
        args.json.write_text(json.dumps([asdict(timing) for timing in timings], indent=2) + "\n")


if __name__ == "__main__":
    main()
