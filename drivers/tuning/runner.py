"""The child process that runs candidates: requests and answers are lines of JSON.

``load`` (``binary``, ``inputs``, ``seed``, ``device``, ``function``, ``parameters``) loads the
default and keeps its results; ``baseline`` (``rounds``) times it; ``time`` (``binary``,
``rounds``, ``hopeless``) compares a candidate's results with the default's, then times it in turns
with a reference: the default, or a faster candidate, whose times are scaled by how much faster it
is. A candidate that takes ``hopeless`` times as long as the reference is timed once only.
``contest`` (``binaries`` by name, ``rounds``) times several with the default in turns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlirules.drivers.iree.runtime import Array, Program
from mlirules.drivers.measure import numerics, timing
from mlirules.language.faults import MlirulesError
from mlirules.support import children

#: Relative and absolute tolerance by element type; the absolute one is a share of the largest
#: expected number, because sums taken in another order lose what cancels.
TOLERANCE = {"f64": (1e-9, 1e-9), "f32": (1e-4, 2e-5), "f16": (2e-2, 5e-3), "bf16": (5e-2, 2e-2)}


#: A candidate this many times as fast as what candidates are timed against takes its place: a slow
#: default would cost most of the time, and what matters is how good candidates compare.
ADOPT = 1.3


#: A candidate whose first call takes this many times as long as the reference is not called again.
FAR = 5.0

#: Of what takes long, only a candidate that takes less than this share is timed in turns.
NO_GAIN = 0.95


class _State:
    default: Program
    inputs: list[Array]
    expected: list[Array]
    device: str
    function: str
    parameters: list[str]
    seconds: float
    #: What candidates are timed against: the default, or a candidate ``factor`` times as fast.
    reference: Program
    factor: float

    def program(self, path: str) -> Program:
        binary = Path(path).read_bytes()
        return Program(binary, self.inputs, self.device, self.function, self.parameters)


def main() -> None:
    """Answer requests until the input ends."""
    state = _State()

    def answered(request: dict[str, Any]) -> Iterator[dict[str, object]]:
        try:
            yield _HANDLERS[request["do"]](state, request)
        except MlirulesError as error:
            yield {"error": error.faults[0].message}

    children.serve(answered)


def _once(program: Program) -> float:
    began = time.perf_counter()
    program()
    return time.perf_counter() - began


def _load(state: _State, request: dict[str, Any]) -> dict[str, object]:
    arguments = [(shape, element) for shape, element in request["inputs"]]
    state.inputs = numerics.random_inputs(arguments, seed=request["seed"], low=-1.0, high=1.0)
    state.device, state.function = request["device"], request["function"]
    state.parameters = request["parameters"]
    state.default = state.program(request["binary"])
    state.expected = state.default.results()
    state.seconds = min(_once(state.default) for _ in range(2))
    state.reference, state.factor = state.default, 1.0
    return {"seconds": state.seconds}


def _baseline(state: _State, request: dict[str, Any]) -> dict[str, object]:
    made = timing.paired({"default": state.default}, rounds=request["rounds"], seconds=20)
    return {"samples": list(made["default"].samples)}


def _time(state: _State, request: dict[str, Any]) -> dict[str, object]:
    program = state.program(request["binary"])
    began = time.perf_counter()
    found = program.results()
    first = time.perf_counter() - began
    difference = compare(found, state.expected)
    answer: dict[str, object] = {"difference": difference, "hopeless": False}
    if difference:
        return answer
    pace = state.seconds / state.factor
    # Elsewhere the first call may include the driver's own compilation.
    if state.device.startswith("local") and first > FAR * pace:
        return {**answer, "tuned": [first], "default": [pace * state.factor], "hopeless": True}
    tuned, reference = _once(program), _once(state.reference)
    if tuned > request["hopeless"] * reference:
        tuned = min(tuned, _once(program))  # a hiccup of the machine is no verdict
    if tuned > request["hopeless"] * reference:
        return {**answer, "tuned": [tuned], "default": [reference * state.factor], "hopeless": True}
    if reference > timing.LONG_S and tuned > NO_GAIN * reference:
        # Long calls vary little: what is not faster at once is not worth minutes.
        return {**answer, "tuned": [tuned], "default": [reference * state.factor]}
    made = timing.paired(
        {"reference": state.reference, "tuned": program}, rounds=request["rounds"], seconds=4
    )
    scaled = [s * state.factor for s in made["reference"].samples]
    gain = made.ratio("tuned").median
    if gain > ADOPT:
        # Against the default itself: products of gains, each picked for being large, would run
        # away with the noise.
        direct = timing.paired({"default": state.default, "tuned": program}, rounds=3, seconds=4)
        state.reference, state.factor = program, direct.ratio("tuned", "default").median
        return {
            **answer,
            "tuned": list(direct["tuned"].samples),
            "default": list(direct["default"].samples),
        }
    return {**answer, "tuned": list(made["tuned"].samples), "default": scaled}


def _contest(state: _State, request: dict[str, Any]) -> dict[str, object]:
    programs = {"default": state.default}
    differences = {}
    for name, path in request["binaries"].items():
        programs[name] = state.program(path)
        differences[name] = compare(programs[name].results(), state.expected)
    made = timing.paired(programs, baseline="default", rounds=request["rounds"], seconds=20)
    return {
        "samples": {name: list(t.samples) for name, t in made.timings.items()},
        "differences": differences,
        "drift": made.drift,
    }


def compare(found: Sequence[Array], expected: Sequence[Array]) -> str:
    """How results differ from the default's beyond what another order of summing explains."""
    for index, (have, want) in enumerate(zip(found, expected, strict=True)):
        kind = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}.get(
            want.dtype.name
        )
        rtol, share = TOLERANCE[kind] if kind else (0.0, 0.0)
        finite = np.abs(want[np.isfinite(want)].astype(np.float64)) if kind else np.zeros(1)
        atol = share * float(finite.max(initial=0.0))
        problem = numerics.difference(have, want, rtol, atol)
        if problem:
            return f"result {index}: {problem}"
    return ""


_HANDLERS = {"load": _load, "baseline": _baseline, "time": _time, "contest": _contest}
