"""Compiled programs timed in turns, in a process of their own.

What crashes or hangs costs no more than itself, and what the caller has loaded does not count.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlirules.drivers.iree import runtime
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import timing
from mlirules.language.faults import MlirulesError
from mlirules.support import children

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Measured:
    """Timings of programs on the same inputs, and how far their results are apart."""

    comparison: timing.Comparison
    #: The largest difference from the baseline's results, over the largest of them; infinite where
    #: shapes or the places of NaN differ.
    errors: dict[str, float]

    @property
    def error(self) -> float:
        """The largest of the errors."""
        return max(self.errors.values(), default=0.0)


@dataclass(frozen=True)
class Budget:
    """How long timing may take."""

    #: At most.
    rounds: int = 30
    #: No new round begins after so many seconds, but three do.
    seconds: float | None = None
    #: Seconds for all of it.
    timeout: float | None = None


def compare(
    programs: Mapping[str, bytes],
    inputs: Sequence[Array],
    target: Target,
    budget: Budget | None = None,
    *,
    function: str = "main",
    parameters: Sequence[str] = (),
) -> Measured:
    """Run compiled ``programs`` in turns on the same ``inputs``; the first is the baseline.

    ``parameters`` are archives of weights, as :func:`runtime.run` takes them.

    Raises RunError when a program does not run to its end, and MlirulesError when there is no
    device.
    """
    budget = budget or Budget()
    if target.kind != "cpu" and (reason := target.available()) is not None:
        raise MlirulesError.at("--target", reason, code="device")
    with tempfile.TemporaryDirectory(prefix="mlirules-") as directory:
        folder = Path(directory)
        for number, binary in enumerate(programs.values()):
            (folder / f"{number}.vmfb").write_bytes(binary)
        runtime.store_arrays(folder / "inputs", inputs)
        asked = {
            "names": list(programs),
            "device": target.device,
            "function": function,
            "rounds": budget.rounds,
            "seconds": budget.seconds,
            "parameters": list(parameters),
        }
        (folder / "asked.json").write_text(json.dumps(asked))
        command = children.python("mlirules.drivers.measure.child:_child", directory)
        _wait(*runtime.with_limits(command, budget.timeout, target.device))
        answer = json.loads((folder / "answer.json").read_text())
    if "failed" in answer:
        raise runtime.RunError("error", answer["failed"])
    timings = {
        name: timing.Timing(name, tuple(samples), answer["calls"][name])
        for name, samples in answer["samples"].items()
    }
    return Measured(timing.Comparison(next(iter(programs)), timings), answer["errors"])


def _wait(command: Sequence[str], timeout: float | None) -> None:
    try:
        done = children.run(command, timeout=timeout)
    except children.TimedOut as out:
        raise runtime.RunError("timeout", f"timing {out}") from None
    if done.status:
        raise runtime.RunError("crash", f"a program ended its process: {done.ending}")


def _child() -> None:
    """What the child process does: time what the folder named in ``argv`` holds."""
    folder = Path(sys.argv[1])
    asked = json.loads((folder / "asked.json").read_text())
    inputs = runtime.load_arrays(folder / "inputs")
    try:
        answer = _timed(folder, asked, inputs)
    except MlirulesError as error:
        answer = {"failed": error.faults[0].message}
    (folder / "answer.json").write_text(json.dumps(answer))


def _timed(folder: Path, asked: dict[str, Any], inputs: Sequence[Array]) -> dict[str, Any]:
    programs = {
        name: runtime.Program(
            (folder / f"{n}.vmfb").read_bytes(),
            inputs,
            asked["device"],
            asked["function"],
            asked["parameters"],
        )
        for n, name in enumerate(asked["names"])
    }
    results = {name: program.results() for name, program in programs.items()}
    base = results[asked["names"][0]]
    errors = {name: _error(found, base) for name, found in results.items()}
    found = timing.paired(programs, rounds=asked["rounds"], seconds=asked["seconds"])
    return {
        "samples": {name: t.samples for name, t in found.timings.items()},
        "calls": {name: t.calls for name, t in found.timings.items()},
        "errors": errors,
    }


def _error(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    if len(found) != len(wanted):
        return float("inf")
    return max((relative_error(a, b) for a, b in zip(found, wanted, strict=True)), default=0.0)


def relative_error(found: Array, wanted: Array) -> float:
    """The largest difference over the largest magnitude of ``wanted``.

    Infinite where shapes differ, or what is not finite stands in other places.
    """
    if found.shape != wanted.shape:
        return float("inf")
    a, b = (
        np.asarray(x, np.complex128 if x.dtype.kind == "c" else np.float64) for x in (found, wanted)
    )
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    difference = float(np.abs(a[finite] - b[finite]).max())
    scale = float(np.abs(b[finite]).max())
    return difference / scale if scale else difference
