"""Mutated rule, pipeline, search-space and spec files: whatever stands in one, faults, and soon.

    python benchmarks/fuzz.py --count 50000              # all kinds of file, in turn
    python benchmarks/fuzz.py --count 1000 --seed 7 --keep defects
    python benchmarks/fuzz.py --progress done.json       # goes on where it was stopped

Every file is read and checked as `mlirules check` and `spec check` do; rules are also written as
`fmt` does, and asked about as an editor does. A defect is an exception that is no located fault, a
process that dies, words of the code in a message, more than ten seconds, or a file that appears.
Files run in child processes, so that a crash costs one file. Prints JSON: files of each kind,
seconds (in all, and of the processor), defects. Exit status 1: a defect.
"""

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlirules.drivers.iree import compiler, ops
from mlirules.drivers.quality import completion, symbols
from mlirules.drivers.quality.check import check_rule
from mlirules.drivers.quality.stages import pipeline_faults
from mlirules.drivers.tuning.space import load_space
from mlirules.drivers.tuning_specs.check import check_spec
from mlirules.language.faults import Fault, MlirulesError
from mlirules.language.format import formatted
from mlirules.support import files, package

#: Seconds of processor time that one file may take, and seconds in all on a busy machine.
SECONDS, WALL = 10, 120
#: Files of one child.
BATCH = 500
#: What no message may hold: objects as the code writes them, and its exceptions.
INTERNALS = re.compile(r"\b[A-Z]\w+\(\w+=|<\w[\w.]* object|NoneType|Traceback|\b[A-Z]\w+Error\b")
ROOT = Path(__file__).resolve().parent.parent
HOSTILE = [
    *("...", "_", "none", "*a", "&a", "<<", "%", "$", "$(", "|", ">", "? ", "- ", ": ", "---"),
    *("\t", "\u2028", "\ufeff", "\x00", "\U0001f600", "é", "9" * 400, "1e999", ".inf", "1:2:3"),
    *("no", "=", "**", "[" * 200, "{" * 200, "(" * 200, "not " * 100, "tensor<999999x", "\\"),
    *('"', "'", "`", "@", "#", "^bb0(", "%0 =", "{{", "[[", "-1", "0", "5", "[0, 5]", "null"),
    *("!!python/object:os.system", "CHECK-NOT:", "any: [a, b]", "with: {a: [b, c]}", "$a", "../x"),
]


def _checked_rule(path: Path, text: str, draw: random.Random) -> list[Fault]:
    found = check_rule(path)
    for fault in found:
        symbols.fixes(fault, text)
    if draw.randrange(4) == 0:
        _written_once(path)
    rows = text.split("\n")
    line = draw.randrange(len(rows))
    at = (line, draw.randrange(len(rows[line]) + 1))
    completion.complete(path, text, *at)
    completion.signature(text, *at)
    symbols.outline(path, text)
    return found


def _written_once(path: Path) -> None:
    try:
        after = formatted(path)
        twice = formatted(path, after)
    except MlirulesError:
        return
    if twice != after:
        raise AssertionError("fmt changes a file twice")


def _checked_pipeline(path: Path, text: str, draw: random.Random) -> list[Fault]:
    completion.complete(path, text, draw.randrange(text.count("\n") + 1), draw.randrange(9))
    return pipeline_faults(path)


def _checked_space(path: Path, _: str, __: random.Random) -> list[Fault]:
    try:
        load_space(path)
    except MlirulesError as error:
        return error.faults
    return []


def _checked_spec(path: Path, _: str, __: random.Random) -> list[Fault]:
    try:
        check_spec(str(path))
    except MlirulesError as error:
        return error.faults
    return []


KINDS: dict[str, tuple[str, Callable[[Path, str, random.Random], list[Fault]]]] = {
    "rule": ("rule.yaml", _checked_rule),
    "pipeline": ("line.yaml", _checked_pipeline),
    "space": ("space.yaml", _checked_space),
    "spec": ("spec.mlir", _checked_spec),
}
#: How often each kind comes: most files are rules.
TURNS = ("rule", "rule", "pipeline", "rule", "spec", "rule", "rule", "pipeline", "rule", "space")


def seeds() -> dict[str, list[str]]:
    """Files to begin with, by kind: those that ship, and the tests' faulty ones."""
    tests = ROOT / "tests"
    listed = {
        "rule": [*package.RULES.rglob("*.yaml"), *(tests / "malformed").glob("*.yaml")],
        "pipeline": [
            *(package.SPECS / "pipelines").glob("*.yaml"),
            *ROOT.glob("examples/*/p*.yaml"),
        ],
        "space": [*(package.SPECS / "spaces").glob("*.yaml")],
        "spec": [*(tests / "faulty_specs").glob("*.mlir"), *(tests / "specs").glob("p*.mlir")],
    }
    return {
        kind: [
            path.read_bytes().decode("utf-8", errors="replace")
            for path in sorted(paths)
            if path.stat().st_size < 6000
        ]
        for kind, paths in listed.items()
    }


def mutated(draw: random.Random, text: str, others: list[str]) -> str:
    """The text with one to four changes: rows, words and characters, also those of other files."""
    for _ in range(draw.randrange(1, 5)):
        rows = text.split("\n")
        i, j = draw.randrange(len(rows)), draw.randrange(len(rows))
        match draw.randrange(8):
            case 0:
                del rows[i]
                text = "\n".join(rows)
            case 1:
                rows.insert(j, rows[i])
                text = "\n".join(rows)
            case 2:
                rows[i] = " " * draw.randrange(9) + rows[i].lstrip()
                text = "\n".join(rows)
            case 3:
                rows[i] = draw.choice(draw.choice(others).split("\n"))
                text = "\n".join(rows)
            case 4 | 5:
                parts = re.split(r"(\w+|[^\w\s]+)", text)
                n = draw.randrange(len(parts))
                words = [draw.choice(parts), draw.choice(HOSTILE), ""]
                parts[n] = draw.choice(words)
                text = "".join(parts)
            case 6:
                at = draw.randrange(len(text) + 1)
                text = text[:at] + draw.choice(HOSTILE) + text[at:]
            case _:
                at = draw.randrange(len(text) + 1)
                text = text[:at] + chr(draw.randrange(1, 0x3000)) + text[at + 1 :]
    return text


class _TooLong(Exception):
    pass


def _alarm(*_: object) -> None:
    raise _TooLong


def one(number: int, seed: int, folder: Path, known: dict[str, list[str]]) -> str:
    """What is wrong with how one file is taken; empty: nothing."""
    draw = random.Random(f"{seed} {number}")
    kind = TURNS[number % len(TURNS)]
    name, check = KINDS[kind]
    path = folder / name
    text = mutated(draw, draw.choice(known[kind]), known[kind])
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(WALL)
    try:
        for fault in check(path, text, draw):
            if not fault.message or len(fault.render()) > 20_000:
                return f"a fault without a message, or a very long one: {fault.code}"
            if INTERNALS.search(fault.message) and not INTERNALS.search(text):
                return f"a fault in words of the code: {fault.message}"
    except _TooLong:
        return f"more than {SECONDS} s of processor time, or {WALL} s in all"
    except Exception:  # noqa: BLE001 - that is what is looked for
        return traceback.format_exc(limit=-4)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        path.unlink()
    left = sorted(p.name for p in folder.iterdir())
    return f"wrote {', '.join(left)}" if left else ""


def batch(numbers: range, seed: int, known: dict[str, list[str]], keep: Path | None) -> list[str]:
    """The defects of some files, run in a child that dies alone."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        signal.signal(signal.SIGALRM, _alarm)
        signal.signal(signal.SIGPROF, _alarm)
        with os.fdopen(write, "w") as out, tempfile.TemporaryDirectory() as folder:
            for number in numbers:
                out.write(json.dumps([number, None]) + "\n")
                out.flush()
                if wrong := one(number, seed, Path(folder), known):
                    out.write(json.dumps([number, wrong]) + "\n")
        os._exit(0)
    os.close(write)
    found: dict[int, str] = {}
    last = numbers.start
    with os.fdopen(read) as said:
        for row in said:
            last, wrong = json.loads(row)
            if wrong:
                found[last] = wrong
    _, status = os.waitpid(child, 0)
    if status:
        found[last] = f"the process ended: {os.waitstatus_to_exitcode(status)}"
    for number in found:
        if keep is not None:
            kind = TURNS[number % len(TURNS)]
            draw = random.Random(f"{seed} {number}")
            text = mutated(draw, draw.choice(known[kind]), known[kind])
            keep.mkdir(parents=True, exist_ok=True)
            made = keep / f"{number}-{KINDS[kind][0]}"
            made.write_bytes(text.encode("utf-8", "surrogatepass"))
    defects = [f"file {number}: {wrong}" for number, wrong in found.items()]
    if status and last + 1 < numbers.stop:
        defects += batch(range(last + 1, numbers.stop), seed, known, keep)
    return defects


def _warm() -> None:
    """What takes seconds once; children begin with it."""
    ops.registered_ops()
    ops.known_dialects()
    compiler.known_flags()
    ops.shared_context.cache_clear()  # its threads would be missing in a child


def _listed(progress: Path | None) -> list[Path]:
    own = progress.resolve() if progress is not None else None
    return sorted(path for path in Path.cwd().iterdir() if path != own)


def _processor() -> float:
    return sum(os.times()[:4])


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="where files with defects are written")
    parser.add_argument("--progress", type=Path, help="what is done; read when it is there")
    given = parser.parse_args()
    known = seeds()
    _warm()
    here = _listed(given.progress)
    done: dict[str, Any] = {"next": given.start, "seconds": 0.0, "processor": 0.0, "defects": []}
    if given.progress is not None and given.progress.exists():
        done = json.loads(given.progress.read_text())
    end = given.start + given.count
    while done["next"] < end:
        started, spent = time.perf_counter(), _processor()
        numbers = range(done["next"], min(done["next"] + BATCH, end))
        found = batch(numbers, given.seed, known, given.keep)
        if _listed(given.progress) != here:
            found.append(f"files {numbers.start} to {numbers.stop}: wrote into the working folder")
        done["next"] = numbers.stop
        done["seconds"] += time.perf_counter() - started
        done["processor"] += _processor() - spent
        done["defects"] += found
        if given.progress is not None:
            files.write(given.progress, json.dumps(done))
        said = "".join(f"\n{defect}" for defect in found[-3:])
        counted, spent = numbers.stop - given.start, done["processor"]
        sys.stderr.write(f"{counted} files, {spent:.0f} s, {len(done['defects'])} defects{said}\n")
    kinds = Counter(TURNS[n % len(TURNS)] for n in range(given.start, end))
    seconds = {key: round(done[key], 1) for key in ("seconds", "processor")}
    print(json.dumps({"files": kinds, **seconds, "defects": done["defects"]}, indent=2))
    return 1 if done["defects"] else 0


if __name__ == "__main__":
    sys.exit(main())
