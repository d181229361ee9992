"""The `saturate` driver on whole models: any order of rules, time and memory, what it gains.

    python benchmarks/zoo.py --mode export --folder ZOO --keep --only 'transformers/bert' ...
    python benchmarks/saturating.py orders ZOO         # 100 orders of all fusions, ten models
    python benchmarks/saturating.py cost ZOO           # seconds and memory, a process a model
    python benchmarks/saturating.py gains ZOO          # what the stage of cpu-fast gains

`orders` gives the driver all rules of `torch/fusions` and `torch/algebra` in random orders, up to
the end, without limits, and compares the programs that come out, letter by letter. It exits with 1
when two of them differ. `cost` is the driver with these rules and their inverses (`torch/unfuse`),
which have no end, as a process of its own has it, on the models and the demo's BERT: seconds from
the parsed program to the chosen one, and memory. `gains` compiles models and patterns by `cpu-fast`
with its stage `algebra` and without, and times both in turns in one process; where the stage takes
no step the programs are the same, and are not timed. It exits with 1 when one is slower by more
than 2 % (in the median, in three rounds of four, and in the fastest), or results differ. ZOO is the
folder of `benchmarks/zoo.py`.
"""

import argparse
import contextlib
import fnmatch
import functools
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import saturating_patterns

from mlirules.drivers.apply.engine import Engine
from mlirules.drivers.apply.programs import load_program, shared_context
from mlirules.drivers.apply.run import Options
from mlirules.drivers.iree import npz, runtime
from mlirules.drivers.iree.compiler import ir
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import numerics, opcost, roofline, timing
from mlirules.drivers.measure.child import relative_error
from mlirules.drivers.pipelines import cost as costing
from mlirules.drivers.pipelines.cost import machine
from mlirules.drivers.pipelines.transform import Recipe, rule_set, transform
from mlirules.language.faults import EXIT_CHECK_FAILED, EXIT_DONE, MlirulesError
from mlirules.language.pipeline import Pipeline
from mlirules.support import package

RULES = ("torch/fusions", "torch/algebra")
INVERSES = ("torch/unfuse",)
MODELS = (
    *("transformers/bert", "transformers/llama", "transformers/gpt2", "transformers/wav2vec2"),
    *("transformers/squeezebert", "transformers/convnext", "transformers/convnextv2"),
    *("transformers/mobilenet_v1", "torchvision/mobilenet_v3_small", "torchvision/resnet18"),
)
DEMO = package.SPECS / "demo" / "bert.mlirbc"


def program(zoo: Path, model: str) -> Path:
    """Where the zoo keeps a model's program."""
    stem = zoo / model.replace("/", "-")
    for path in (stem.with_suffix(".mlirbc"), stem.with_suffix(".mlir")):
        if path.exists():
            return path
    raise MlirulesError.at(
        str(stem),
        f"{model} is not there",
        suggestion=f"python benchmarks/zoo.py --mode export --folder {zoo} --only {model}",
    )


def parsed(path: Path) -> Any:
    """A program, in the context that everything here shares."""
    return ir.Module.parse(path.read_bytes(), shared_context())


def weigher() -> Any:
    """What ops cost on the cpu."""
    return functools.partial(opcost.seconds, known=roofline.parameters("cpu"))


def orders(zoo: Path, count: int, models: list[str]) -> int:
    """Whether all orders give one program, a line for each model. Ctrl-C: of those so far."""
    # One engine for all of them: it keeps what types decide, whatever the order.
    engine = Engine(list(rule_set(RULES)), shared_context())
    given = list(engine.rules)
    programs = {model: parsed(program(zoo, model)) for model in models}
    first: dict[str, str] = {}
    steps: dict[str, int] = {}
    differing: dict[str, list[int]] = {model: [] for model in models}
    early: set[str] = set()
    done = 0
    with contextlib.suppress(KeyboardInterrupt):
        for seed in range(count):
            engine.rules = list(given)
            if seed:
                random.Random(seed).shuffle(engine.rules)
            for model, source in programs.items():
                module = source.operation.clone()
                # No limit may be hit: all that the rules say is found.
                options = Options(driver="saturate", weigh=weigher(), rounds=200, seconds=600)
                outcome = engine.run(module, options)
                early.update(f"{model}: {n}" for n in outcome.notes if "early" in n)
                text = module.get_asm(large_elements_limit=16, large_resource_limit=16)
                steps.setdefault(model, outcome.total)
                if text != first.setdefault(model, text):
                    differing[model].append(seed)
            done = seed + 1
            print(f"order {done} of {count}", file=sys.stderr, flush=True)
    print(f"{len(given)} rules\n")
    print(f"| model | steps | programs of {done} orders |\n|---|---|---|")
    for model in models:
        wrong = differing[model]
        told = f"differ with seeds {wrong}" if wrong else "one"
        print(f"| {model} | {steps[model]} | {told} |")
    for note in sorted(early):
        print(note)
    failed = any(differing.values()) or early or done < count
    return EXIT_CHECK_FAILED if failed else EXIT_DONE


def once(path: Path) -> None:
    """One model in this process; prints a line of JSON."""
    engine = Engine(list(rule_set(RULES + INVERSES)), shared_context())
    module = parsed(path)
    size = sum(1 for _ in module.body.operations[0].regions[0].blocks[0].operations)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, cpu = time.perf_counter(), time.process_time()
    outcome = engine.run(module, Options(driver="saturate", weigh=weigher()))
    found = {
        "ops": size,
        "seconds": time.perf_counter() - started,
        "cpu": time.process_time() - cpu,
        "grew_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "steps": outcome.total,
    }
    print(json.dumps(found))


def cost(zoo: Path, models: list[str]) -> int:
    """Seconds and memory, a process for each model."""
    print(f"{machine()}\n")
    print(
        "| model | ops | s | CPU s | MB more | MB in all | steps |\n|---|---|---|---|---|---|---|"
    )
    over = False
    for name, path in [("demo BERT", DEMO), *((m, program(zoo, m)) for m in models)]:
        done = subprocess.run(
            [sys.executable, __file__, "once", str(path)], check=True, capture_output=True
        )
        row = json.loads(done.stdout)
        over |= row["cpu"] > 10 or row["peak_mb"] > 2000
        print(
            f"| {name} | {row['ops']} | {row['seconds']:.1f} | {row['cpu']:.1f} | "
            f"{row['grew_mb']:.0f} | {row['peak_mb']:.0f} | {row['steps']} |",
            flush=True,
        )
    return EXIT_CHECK_FAILED if over else EXIT_DONE


def gains(zoo: Path, models: list[str], rounds: int, seconds: float) -> int:
    """The table of what the stage gains, a row for each model and pattern."""
    target = Target.parse("cpu")
    line = Pipeline.load("cpu-fast")
    stages = [s for s in line.stages if s.name != "algebra"]
    lines = {"without": replace(line, stages=stages), "with": line}
    upto = [s for s in line.stages if s.name in ("attention", "algebra")]
    print(f"{machine()}\n")
    head = ("program", "steps", "stage CPU s", "without ms", "with ms", "times as fast")
    print(f"| {' | '.join(head)} | quartiles | fastest |")
    print("|---|---|---|---|---|---|---|---|")
    slower = 0
    for name, text, inputs in programs(zoo, models):
        before = time.process_time()
        transform(text(), upto[:1], costs=costing.Settings(target))
        between = time.process_time()
        done = transform(text(), upto, costs=costing.Settings(target))
        took = time.process_time() - between - (between - before)
        steps = sum(d.steps for d in done.outcome.decisions)
        if not steps:
            print(f"| {name} | 0 | {took:.2f} | | | 1 (the same program) | | |", flush=True)
            continue
        made = {
            form: runtime.Program(
                Recipe(text(), target, one, costs=costing.Settings(target)).compile()[0],
                inputs,
                target.device,
            )
            for form, one in lines.items()
        }
        error = max(
            relative_error(a, b)
            for a, b in zip(made["with"].results(), made["without"].results(), strict=True)
        )
        found = timing.paired(made, rounds=rounds, seconds=seconds)
        ratio = found.ratio("with")
        # Of what only the machine's other work makes slow the fastest rounds know nothing.
        fastest = found["without"].fastest / found["with"].fastest
        slower += (ratio.slower(0.02) and fastest < 1 / 1.02) or error > 1e-3
        print(
            f"| {name} | {steps} | {took:.2f} | {1e3 * found['without'].median:.3g} | "
            f"{1e3 * found['with'].median:.3g} | {ratio.median:.2f} | "
            f"{ratio.low:.2f} to {ratio.high:.2f} | {fastest:.2f} |"
            + (f" error {error:.1e}" if error > 1e-3 else ""),
            flush=True,
        )
    return EXIT_CHECK_FAILED if slower else EXIT_DONE


def programs(zoo: Path, models: list[str]) -> Iterator[tuple[str, Callable[[], Any], list[Any]]]:
    """Name, program (anew each time, as stages rewrite it in place) and inputs."""
    for name, text in saturating_patterns.PATTERNS.items():
        if models and not any(fnmatch.fnmatch(name, m) for m in models):
            continue
        arguments = numerics.signature(text)[1]
        yield (
            name,
            functools.partial(str, text),
            numerics.random_inputs(arguments, low=-0.1, high=0.1),
        )
    for model in ("demo BERT", *MODELS):
        if models and not any(fnmatch.fnmatch(model, m) for m in models):
            continue
        path = DEMO if model == "demo BERT" else program(zoo, model)
        inputs = npz.load(path.with_suffix(".npz"))
        yield model, functools.partial(load_program, path), inputs


def main() -> int:
    """As the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["orders", "cost", "gains", "once"])
    parser.add_argument("path", type=Path, help="the zoo's folder")
    parser.add_argument(
        "--only", action="append", default=[], metavar="MODEL", help="repeatable; gains: globs"
    )
    parser.add_argument("--orders", type=int, default=100, metavar="N")
    parser.add_argument("--rounds", type=int, default=40, metavar="N")
    parser.add_argument("--seconds", type=float, default=10, metavar="S", help="for each program")
    options = parser.parse_args()
    if options.what == "once":
        once(options.path)
        return EXIT_DONE
    if options.what == "gains":
        return gains(options.path, options.only, options.rounds, options.seconds)
    models = options.only or list(MODELS)
    if options.what == "cost":
        return cost(options.path, models)
    return orders(options.path, options.orders, models)


if __name__ == "__main__":
    sys.exit(main())
