"""The learned cost model (docs/cost.md): measured, fitted and held against shapes it has not seen.

    python benchmarks/cost_model.py measure --count 800
    python benchmarks/cost_model.py fit
    python benchmarks/cost_model.py judge --samples FRESH.jsonl
    python benchmarks/cost_model.py report --count 64 --seed 7

`measure` draws sizes as `ops.py --random` does, compiles every form of an op, many ops in a
program, and times the forms in turns on one thread (least processor time), each call as one of a
layer in a network: weights in no cache, its image in them. Each op is a line of a
file in the cache folder: ended at any time, it goes on there. `--target cpu:x86-64-v3` measures
what CPUs with AVX2 run, on one that has more.

`fit` grows the model of those samples in the cache folder, where it goes before what ships
(`--ship` writes that instead). The errors that the file states are those at each fifth of the
shapes of models that were fitted to the other four. With `--kind` the model's other kinds stay as
its file has them: for a kernel that changed. `judge` holds the model in use against samples of
another seed than those it was fitted to. `report` draws shapes of a seed that no sample has, lets
the default pipeline choose, and times what it chose beside every other form; `--write` puts the
tables into docs/cost.md and docs/models.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import ops_forms as single
import sections
from ops_shapes import Convolution, Product
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from mlirules.drivers.iree import cpu, runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import forms, learned, machine
from mlirules.drivers.pipelines import makeway
from mlirules.drivers.pipelines.transform import Pipeline, Recipe
from mlirules.language.faults import MlirulesError
from mlirules.support import files

#: Ops in one program, and the megabytes of their weights.
TOGETHER, MEGABYTES = 12, 24.0
#: Of the ops that a kernel takes, one in so many is compiled as the compiler has it, too.
PLAIN = 3
#: Stages that have nothing to do in a program of one op.
IDLE = (
    *("limits", "integers", "integer-groups", "integer-group-activations"),
    *("integer-group-floats", "integer-activations", "integer-floats", "integer-kernels"),
    *("attention", "algebra", "forms", "gates", "scaled-images"),
)
#: Of fewer samples no model is made.
LEAST_SAMPLES = 100
#: For each form. In eight calls what takes 20 microseconds differs by a fifth: that is no choice.
SECONDS = {"measure": 0.06, "fit": 0.06, "judge": 0.06, "report": 0.4}
COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TimeRemainingColumn(),
)
Op = Convolution | Product


def batches(ops: Sequence[Op]) -> Iterator[list[Op]]:
    """Ops that are compiled together: of one kind, and packed alike."""
    waiting: dict[tuple[str, bool], list[Op]] = {}
    for op in ops:
        held = waiting.setdefault((type(op).__name__, small(op)), [])
        held.append(op)
        if len(held) == TOGETHER or sum(each.bytes for each in held) > 1e6 * MEGABYTES:
            yield waiting.pop((type(op).__name__, small(op)))
    yield from waiting.values()


def small(op: Op) -> bool:
    """Whether the default pipeline leaves a product of this size as it is."""
    return isinstance(op, Convolution) and op.flops / 2 < makeway.SMALL


def lines(base: Pipeline, op: Op) -> dict[str, tuple[Pipeline, tuple[str, ...]]]:
    """The pipeline of each form of an op, and the rules of which one must apply for it."""
    base = replace(base, stages=[s for s in base.stages if s.name not in IDLE])
    packed = single.packing(base)
    if isinstance(op, Product):
        return {name: (line, ()) for name, line in packed.items()}
    line = packed["unpacked" if small(op) else "packed"]
    return {
        name: (single.pipeline_with(line, single.FORMS[name]), single.FORMS[name])
        for name in single.fitting(op)
        if name != "plain" or not _by_kernel(op) or zlib.crc32(op.name.encode()) % PLAIN == 0
    }


def _by_kernel(op: Convolution) -> bool:
    """Whether a kernel takes the op, which is then hardly ever fastest as the compiler has it."""
    return "kernel" in forms.forms(work_of(asdict(op)))


def compiled(
    held: dict[str, tuple[Op, list[Any]]], line: Pipeline, rules: tuple[str, ...], target: Target
) -> dict[str, bytes]:
    """The program of a form, for each op that has it."""
    try:
        binary, done = Recipe(single.program(held), target, line, timeout=300).compile(record=True)
    except MlirulesError:
        if len(held) == 1:
            return {}
        one_by_one = [compiled({name: op}, line, rules, target) for name, op in held.items()]
        return {name: found for each in one_by_one for name, found in each.items()}
    if not rules:
        return dict.fromkeys(held, binary)
    ends, at = {}, 0
    for name, (op, arrays) in held.items():
        ends[name] = at, at + op.function(arrays[1:], name).count("\n")
        at = ends[name][1]
    applied = [
        int(a.location.split(":")[-2])
        for a in done.outcome.applications
        if a.rule.startswith(prefixes(rules))
    ]
    return {
        name: binary
        for name, (first, last) in ends.items()
        if any(first < line_number <= last for line_number in applied)
    }


def prefixes(rules: tuple[str, ...]) -> tuple[str, ...]:
    """What the names of a form's rules begin with."""
    if rules == ("kernels",):
        return ("kernel-",)
    return tuple(
        path.rsplit("/", 1)[-1] if path.count("/") > 1 else path.replace("/", "-") for path in rules
    )


def measured(
    ops: Sequence[Op], base: Pipeline, target: Target, network: single.Network, seconds: float
) -> Iterator[dict[str, Any]]:
    """What the forms of ops take, an op at a time."""
    held = {f"op{n}": (op, op.arrays()) for n, op in enumerate(ops)}
    wanted: dict[str, tuple[Pipeline, tuple[str, ...], dict[str, tuple[Op, list[Any]]]]] = {}
    for name, (op, arrays) in held.items():
        for form, (line, rules) in lines(base, op).items():
            wanted.setdefault(form, (line, rules, {}))[2][name] = (op, arrays)
    binaries = {
        form: compiled(which, line, rules, target) for form, (line, rules, which) in wanted.items()
    }
    for name, (op, arrays) in held.items():
        contenders = {
            form: runtime.Program(found[name], arrays[:1], single.DEVICE, name)
            for form, found in binaries.items()
            if name in found
        }
        if not contenders:
            continue
        times = single.cold_race(contenders, network, seconds, hopeless=4)
        yield {
            "op": op.name,
            "kind": single.kind_of(op),
            "sizes": asdict(op),
            "cold": True,
            "ms": {form: float(f"{1e3 * took:.4g}") for form, took in times.items()},
        }


def measure(options: argparse.Namespace, console: Console) -> int:
    """Time the forms of ops that are not in the file of samples yet."""
    target, base = Target.parse(options.target), Pipeline.load("cpu-fast")
    path: Path = options.samples
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {sample["op"] for sample in cold(read_samples(path), path, console)}
    ops = [op for op in asked_for(options) if op.name not in known]
    network = single.Network(target)
    with Progress(*COLUMNS, console=console) as progress, path.open("a", encoding="utf-8") as file:
        task = progress.add_task("measuring", total=len(ops))
        for batch in batches(ops):
            for sample in measured(batch, base, target, network, options.seconds):
                file.write(json.dumps(sample) + "\n")
                file.flush()
                progress.advance(task)
    console.print(f"{path}: {len(read_samples(path))} samples")
    return 0


def asked_for(options: argparse.Namespace) -> list[Op]:
    """The ops to measure: so many of those that have the form, or are of the kind."""
    most = options.count
    if not (options.form or options.kind):
        return single.drawn(most, options.seed)
    found: list[Op] = []
    for op in single.drawn(160 * most, options.seed):
        work = work_of(asdict(op))
        held = not options.form or options.form in forms.forms(work)
        if held and forms.kind(work).startswith(options.kind):
            found.append(op)
    return found[:most]


def read_samples(path: Path) -> list[dict[str, Any]]:
    """The samples of a file, each op once; a line that an interrupt cut off is none."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    read = map(json.loads, text[: text.rfind("\n") + 1].splitlines())
    return list({sample["op"]: sample for sample in read}.values())


def cold(samples: list[dict[str, Any]], path: Path, console: Console) -> list[dict[str, Any]]:
    """Those that were measured as layers of a network, and what is said of the others.

    What was timed again and again, its weights in the caches, is no time of the same thing.
    """
    found = [sample for sample in samples if sample.get("cold")]
    if len(found) < len(samples):
        console.print(
            f"{path}: {len(samples) - len(found)} samples were measured with their weights in the "
            "caches and are left out: measure them again"
        )
    return found


# ---------------------------------------------------------------- fitting

#: Trees of each form, their leaves, the least shapes of a leaf, and what each adds of its value.
TREES, LEAVES, LEAST, RATE = 100, 8, 4, 0.13
#: Random trees of the teacher, and shapes that it is asked about.
TEACHERS, SHAPES = 200, 4000


def work_of(sizes: dict[str, Any]) -> forms.Work:
    """The op of a sample as the model sees it."""
    if "rows" in sizes:
        return forms.Product(**sizes)
    op = Convolution(**sizes)
    image, result = (op.size, op.size), (op.result, op.result)
    return forms.Convolution(
        op.channels, op.filters, op.window, op.stride, *image, *result, op.depthwise
    )


def fitted(samples: Sequence[dict[str, Any]], lanes: int) -> dict[str, Any]:
    """The model of samples, as plain data: see :mod:`mlirules.drivers.measure.learned`."""
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for sample in samples:
        by_kind[sample["kind"]].append(sample)
    asked: dict[str, list[forms.Work]] = defaultdict(list)
    for op in single.drawn(SHAPES, seed=0):
        asked[forms.kind(work_of(asdict(op)))].append(work_of(asdict(op)))
    made: dict[str, Any] = {}
    for which, held in by_kind.items():
        numbers = np.array([forms.features(work_of(s["sizes"]), lanes) for s in held])
        limits = {
            name: [math.floor(100 * low) / 100, math.ceil(100 * high) / 100]
            for name, low, high in zip(forms.FEATURES, numbers.min(0), numbers.max(0), strict=True)
            if name in forms.SIZES
        }
        # Small ones are much alike: what a launch takes.
        limits["flops"][0] = 0.0
        made[which] = {"range": limits, "forms": {}}
        for form in forms.FORMS[which]:
            rows = [n for n, sample in enumerate(held) if form in sample["ms"]]
            if len(rows) >= 3 * LEAST:
                took = np.array([1e-3 * held[n]["ms"][form] for n in rows])
                works = [work_of(held[n]["sizes"]) for n in rows]
                others = [work for work in asked[which] if form in forms.forms(work)]
                made[which]["forms"][form] = fitted_form(works, took, others, form, lanes)
    return made


def fitted_form(
    works: Sequence[forms.Work],
    took: Any,
    others: Sequence[forms.Work],
    form: str,
    lanes: int,
) -> dict[str, Any]:
    """One form: its rough time, and the trees of what that leaves.

    Many random trees foresee shapes that were not measured best, and are too large to ship: they
    teach a few boosted ones, at shapes (``others``) of which none was measured.
    """
    from sklearn.ensemble import ExtraTreesRegressor, GradientBoostingRegressor

    work = np.array([forms.rough(each, form, lanes) for each in works])
    numbers = np.array([forms.features(each, lanes) for each in works])
    scaled = np.stack([np.full(len(took), 1e-6), 1e-9 * work[:, 0], 1e-9 * work[:, 1]], 1)
    # Relative errors count, none of the three may be nothing.
    parts = np.array([2.0, 1 / 50, 1 / 20])
    for _ in range(200):
        guess = scaled @ parts
        share = scaled * parts / guess[:, None]
        step = (share.T @ np.log(took / guess)) / (share.sum(0) + 1)
        parts = np.maximum(parts * np.exp(0.5 * step), 1e-4)
    left = np.log(took / (scaled @ parts))
    teacher = ExtraTreesRegressor(TEACHERS, min_samples_leaf=2, random_state=0).fit(numbers, left)
    asked = np.array([forms.features(each, lanes) for each in others])
    trees = GradientBoostingRegressor(
        n_estimators=TREES,
        learning_rate=RATE,
        max_leaf_nodes=LEAVES,
        max_depth=None,
        min_samples_leaf=LEAST,
        max_features=0.6,
        random_state=0,
    ).fit(
        np.concatenate([numbers, asked]),
        np.concatenate([(left + teacher.predict(numbers)) / 2, teacher.predict(asked)]),
        # What was measured counts twice.
        sample_weight=np.repeat([2.0, 1.0], [len(numbers), len(asked)]),
    )
    start = float(trees.init_.constant_.item())
    return {
        "launch_us": float(f"{parts[0]:.4g}"),
        "gflops": float(f"{1 / parts[1]:.4g}"),
        "gbs": float(f"{1 / parts[2]:.4g}"),
        "trees": [
            float(f"{start:.4g}"),
            *(nested(tree.tree_, 0, RATE) for tree in trees.estimators_.ravel()),
        ],
    }


def nested(tree: Any, at: int, rate: float) -> Any:
    """A tree of scikit-learn as the model's files hold it."""
    if tree.children_left[at] < 0:
        return float(f"{rate * float(tree.value[at].item()):.3g}")
    return [
        int(tree.feature[at]),
        float(f"{tree.threshold[at]:.5g}"),
        nested(tree, tree.children_left[at], rate),
        nested(tree, tree.children_right[at], rate),
    ]


def held_out(samples: Sequence[dict[str, Any]], lanes: int, folds: int = 5) -> dict[str, Any]:
    """What models lose at shapes that they were not fitted to, by kinds of ops."""
    found: dict[str, list[tuple[float, list[float]]]] = defaultdict(list)
    order = np.random.default_rng(0).permutation(len(samples))
    for fold in range(folds):
        left = set(order[fold::folds].tolist())
        made = fitted([s for n, s in enumerate(samples) if n not in left], lanes)
        model = learned.of_kinds(made, 4 * lanes)
        for number in left:
            sample = samples[number]
            said = model.choices(work_of(sample["sizes"]))
            if said:
                found[sample["kind"]].append(judged(said, sample["ms"]))
    return errors_of(found)


def errors_of(found: dict[str, list[tuple[float, list[float]]]]) -> dict[str, Any]:
    """How many choices of each kind of op lose how much, of what :func:`judged` says of them."""
    return {
        which: {
            "shapes": len(pairs),
            "median_error": rounded(statistics.median(e for _, errors in pairs for e in errors)),
            "within_5": sum(lost <= 1.05 for lost, _ in pairs),
            "within_10": sum(lost <= 1.10 for lost, _ in pairs),
            "worst": rounded(max(lost for lost, _ in pairs)),
        }
        for which, pairs in found.items()
    }


def rounded(number: float) -> float:
    """Three digits."""
    return float(f"{number:.3g}")


def judged(said: dict[str, float], ms: dict[str, float]) -> tuple[float, list[float]]:
    """What the choice by these seconds loses over the fastest form, and how far they are off."""
    both = {form: said[form] for form in ms if form in said}
    lost = ms[learned.choice(both)] / min(ms[form] for form in both)
    return lost, [abs(math.log(1e3 * both[form] / ms[form])) for form in both]


def fit(options: argparse.Namespace, console: Console) -> int:
    """Write the model of the samples."""
    samples = cold(read_samples(options.samples), options.samples, console)
    target = Target.parse(options.target)
    if len(samples) < LEAST_SAMPLES:
        console.print(f"{options.samples}: {len(samples)} samples are too few: measure more")
        return 1
    lanes = cpu.vector_bytes(target.architecture) // 4
    path = shipped(target) if options.ship else learned.own() / str(learned.name_of(target))
    said: dict[str, Any] = {
        "processor": options.processor or machine.processor(),
        "machine": machine.machine(),
        "target": target.name,
        "commit": commit(),
        "samples": len(samples),
        "vector_bytes": 4 * lanes,
        "flags": [f for f in Pipeline.load("cpu-fast").large_products if "data-tiling" in f],
        "held_out": held_out(samples, lanes),
        "features": list(forms.FEATURES),
        # Which kinds were measured so: those of older files were not.
        "cold": sorted({sample["kind"] for sample in samples}),
        "kinds": fitted(samples, lanes),
    }
    if options.kind:
        said = renewed(path, said, options.kind)
    files.write(path, written(said))
    learned.read(path)
    console.print(error_table(said["held_out"]))
    console.print(f"{path}: {path.stat().st_size / 1000:.0f} kB, from {len(samples)} samples")
    return 0


def error_table(errors: dict[str, Any]) -> Table:
    """What :func:`errors_of` found, a row for each kind of op."""
    table = Table("kind of op", "shapes", "median error", "within 5 %", "within 10 %", "worst")
    for which, found in errors.items():
        table.add_row(which, *(str(found[key]) for key in found))
    return table


def judge(options: argparse.Namespace, console: Console) -> int:
    """What the model that is in use loses on samples that it was not fitted to."""
    target = Target.parse(options.target)
    model = learned.for_target(target)
    if model is None:
        console.print(f"no model is known for {target}: fit one")
        return 1
    found: dict[str, list[tuple[float, list[float]]]] = defaultdict(list)
    samples = cold(read_samples(options.samples), options.samples, console)
    for sample in samples:
        said = model.choices(work_of(sample["sizes"]))
        if sample["kind"].startswith(options.kind) and len(said.keys() & sample["ms"].keys()) > 1:
            found[sample["kind"]].append(judged(said, sample["ms"]))
    if not found:
        console.print(f"{options.samples}: no sample that {model} chooses a form of")
        return 1
    console.print(error_table(errors_of(found)))
    console.print(f"{options.samples}: {len(samples)} samples, by {model}")
    return 0


def shipped(target: Target, folder: Path = learned.SHIPPED) -> Path:
    """The file that ships for a CPU: its own, or the one of its family that was measured here.

    The compiler may call the machine that such a file was measured on otherwise than the file: a
    virtual one hides what its name hangs on.
    """
    exact = folder / str(learned.name_of(target))
    if not exact.exists():
        for path in sorted(folder.glob(str(learned.name_of(target, like=True)))):
            said = json.loads(path.read_text(encoding="utf-8"))
            if (said["machine"], said["target"]) == (machine.machine(), target.name):
                return path
    return exact


def renewed(path: Path, said: dict[str, Any], kind: str) -> dict[str, Any]:
    """The model of a file with the kinds that begin so as they were measured now."""
    before = json.loads(path.read_text(encoding="utf-8"))
    if any(before[key] != said[key] for key in ("machine", "target", "features", "flags")):
        raise MlirulesError.at(str(path), "is of another machine, or of other features: fit all")
    both: dict[str, Any] = {}
    for part in ("kinds", "held_out"):
        new = {which: held for which, held in said[part].items() if which.startswith(kind)}
        both[part] = before[part] | new
    cold_ones = {which for which in said["cold"] if which.startswith(kind)}
    # Of each kind the last commit, behind the one of those that were never measured again.
    first, *later = before["commit"].split("; ")
    of = dict(part.rsplit(": ", 1) for part in later)
    of |= {which: said["commit"] for which in both["kinds"] if which.startswith(kind)}
    return {
        **before,
        **both,
        "commit": "; ".join([first, *(f"{which}: {commit}" for which, commit in of.items())]),
        "samples": sum(held["shapes"] for held in both["held_out"].values()),
        "cold": sorted(cold_ones | set(before.get("cold", ()))),
    }


def written(said: dict[str, Any]) -> str:
    """A model as JSON: a tree a line."""
    kinds = []
    for which, known in said["kinds"].items():
        parts = []
        for form, found in known["forms"].items():
            trees = ",\n   ".join(json.dumps(t, separators=(",", ":")) for t in found["trees"])
            head = json.dumps({k: v for k, v in found.items() if k != "trees"})[:-1]
            parts.append(f'  {json.dumps(form)}: {head}, "trees": [\n   {trees}]}}')
        limits = json.dumps(known["range"])
        listed = ",\n".join(parts)
        kinds.append(f' {json.dumps(which)}: {{"range": {limits}, "forms": {{\n{listed}}}}}')
    head = json.dumps({k: v for k, v in said.items() if k != "kinds"}, indent=1)
    return head[:-2] + ',\n "kinds": {\n' + ",\n".join(kinds) + "}}\n"


def commit() -> str:
    """The commit that was measured, with a mark where files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=7"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return done.stdout.strip() or "unknown"


# ---------------------------------------------------------------- the table


def report(options: argparse.Namespace, console: Console) -> int:
    """Hold the default's choices against every form, at shapes that no sample has."""
    target, base = Target.parse(options.target), Pipeline.load("cpu-fast")
    known = {sample["op"] for sample in read_samples(options.samples)}
    ops = [op for op in single.drawn(options.count, options.seed) if op.name not in known]
    if options.only:
        ops = [op for op in ops if op.name in options.only]
    asked = argparse.Namespace(torch=False, seconds=options.seconds)
    network = single.Network(target)
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    held: dict[str, Any] = {}
    if options.json and options.json.exists():
        held = json.loads(options.json.read_text(encoding="utf-8"))
    with Progress(*COLUMNS, console=console) as progress:
        for op in progress.track(ops, description="choosing"):
            if op.name not in held:
                held[op.name] = single.measure(op, base, asked, target, network)
            if options.json:
                files.write(options.json, json.dumps(held, indent=1) + "\n")
    if not options.only:
        reconsider({op.name: held[op.name] for op in ops}, options, console)
        if options.json:
            files.write(options.json, json.dumps(held, indent=1) + "\n")
    for op in ops:
        row = held[op.name]
        rows[single.kind_of(op)].append(row)
        if row["lost"] > single.LOST:
            console.print(f"{op.name}: {row['lost']:.2f}, {row['chosen']}, {row['ms']}")
    found = list(single.regret(rows))
    print(*found, sep="\n")
    if options.write:
        command = f"python benchmarks/cost_model.py report --target {target} "
        command += f"--count {options.count} --seed {options.seed}"
        about = f"`{command}`, {options.processor or machine.processor()}, commit `{commit()}`:"
        for path in options.write:
            mark = f"cost-model-{str(learned.name_of(target)).removesuffix('.json')}"
            begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
            sections.renew(path, begin, end, "\n".join([about, "", *found]))
    return 0


def reconsider(
    rows: dict[str, dict[str, Any]], options: argparse.Namespace, console: Console
) -> None:
    """Time what the default seems to lose on again, in a process that nothing was timed in before.

    Where programs lie after hundreds of others were loaded makes a tenth of what 20 us take, for
    as long as the process runs. All forms of such an op are timed again alike, and the least of
    each counts.
    """
    for _ in range(single.DOUBTS):
        doubted = [name for name, row in rows.items() if row["lost"] > single.LOST]
        if not doubted:
            return
        with tempfile.TemporaryDirectory() as folder:
            found = Path(folder) / "again.json"
            words = ["report", "--target", options.target, "--seed", str(options.seed)]
            words += ["--count", str(options.count), "--seconds", str(options.seconds)]
            words += ["--samples", str(options.samples), "--json", str(found)]
            words += [word for name in doubted for word in ("--only", name)]
            console.print(f"again, in a process of their own: {', '.join(doubted)}")
            subprocess.run(
                [sys.executable, __file__, *words], check=True, stdout=subprocess.DEVNULL
            )
            again = json.loads(found.read_text(encoding="utf-8"))
        for name in doubted:
            took, more = rows[name]["ms"], again[name]["ms"]
            took.update({form: min(took[form], more[form]) for form in took if form in more})
            forms_of = [ms for form, ms in took.items() if form != "torch"]
            rows[name]["lost"] = took["default"] / min(forms_of)


def main() -> int:
    """Run a step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["measure", "fit", "judge", "report"])
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--seconds", type=float, metavar="S", help="for each form")
    parser.add_argument("--kind", default="", help="only of kinds that begin so")
    parser.add_argument("--form", default="", help="measure: only what has this form")
    parser.add_argument(
        "--only", action="append", default=[], metavar="OP", help="report: of these alone"
    )
    parser.add_argument("--samples", type=Path, metavar="FILE")
    parser.add_argument("--ship", action="store_true", help="fit: what ships")
    parser.add_argument("--processor", metavar="NAME", help="what files call this CPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="report: its rows are kept there")
    parser.add_argument("--write", type=Path, action="append", default=[], metavar="DOCUMENT")
    options = parser.parse_args()
    if options.seconds is None:
        options.seconds = SECONDS[options.step]
    if options.samples is None:
        name = learned.name_of(Target.parse(options.target))
        options.samples = learned.own() / f"{str(name).removesuffix('.json')}.samples.jsonl"
    one = dict.fromkeys(single.THREADS, "1")
    if any(os.environ.get(name) != value for name, value in one.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **one})
    console = Console()
    steps = {"measure": measure, "fit": fit, "judge": judge, "report": report}
    try:
        return steps[options.step](options, console)
    except KeyboardInterrupt:
        console.print("ended: what was measured is kept, run it again to go on")
        return 130


if __name__ == "__main__":
    sys.exit(main())
