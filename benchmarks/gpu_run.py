"""Run compiled programs on a GPU and compare with their golden files: ``gpu_run.py DIR``.

Needs ``iree-base-runtime`` and ``numpy`` only, so that a GPU machine needs neither the compiler
nor mlirules. DIR holds ``X.vmfb`` files, each with ``X.npz`` beside it: inputs ``a0..`` and
results ``r0..``. Every program is run once to compare and then timed. docs/gpu.md says how such a
folder is made.

Exits with 0 when every program ran and agreed, 1 when one did not, 2 when there is nothing to run
or no device to run on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Run compiled programs on a GPU.")
    parser.add_argument("folder", type=Path, help="holds X.vmfb with X.npz beside each")
    parser.add_argument("--device", default="cuda", help="the runtime's device URI (cuda, hip)")
    parser.add_argument("--rtol", type=float, default=1e-3, help="relative tolerance")
    parser.add_argument("--atol", type=float, default=1e-3, help="absolute tolerance")
    parser.add_argument("--repeat", type=int, default=20, help="timed runs of each program")
    parser.add_argument("--json", type=Path, help="write the report here, too")
    options = parser.parse_args()
    programs = sorted(options.folder.glob("*.vmfb"))
    if not programs:
        print(f"{options.folder} holds no .vmfb files", file=sys.stderr)
        return 2
    try:
        device = rt.get_device(options.device)
    except (RuntimeError, ValueError) as error:
        print(f"no device {options.device}: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    report = [check(p, device, options.rtol, options.atol, options.repeat) for p in programs]
    for entry in report:
        timing = f"{entry['median_ms']:9.3f} ms" if "median_ms" in entry else " " * 12
        said = entry["problem"] or f"largest difference {entry['difference']:.2g}"
        print(f"{'FAIL' if entry['problem'] else 'ok  '} {timing}  {entry['program']}  {said}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return int(any(entry["problem"] for entry in report))


def check(path: Path, device: Any, rtol: float, atol: float, repeat: int) -> dict[str, Any]:
    """Run one program: what differs from its golden file, and how long it takes."""
    entry: dict[str, Any] = {"program": path.stem, "problem": ""}
    golden = path.with_suffix(".npz")
    if not golden.exists():
        return entry | {"problem": f"{golden.name} is not beside it"}
    inputs, expected = numbered(golden, "a"), numbered(golden, "r")
    try:
        context = rt.SystemContext(config=rt.Config(device=device))
        context.add_vm_module(rt.VmModule.copy_buffer(context.instance, path.read_bytes()))
        function = context.modules.module["main"]
        held = [rt.asdevicearray(device, value) for value in inputs]
        found = results(function(*held))
        milliseconds = [timed(function, held) for _ in range(repeat)]
    except (RuntimeError, ValueError, KeyError) as error:
        return entry | {"problem": (str(error).splitlines() or [repr(error)])[0]}
    if len(found) != len(expected):
        return entry | {"problem": f"{len(found)} results, {len(expected)} expected"}
    worst = 0.0
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        if a.shape != b.shape:
            return entry | {"problem": f"r{i}: shape {a.shape}, not {b.shape}"}
        difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
        worst = max(worst, float(difference.max(initial=0.0)))
        if not np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True):
            entry["problem"] = f"r{i} differs, by up to {worst:.3g}"
    return entry | {"difference": worst, "median_ms": float(np.median(milliseconds or [0.0]))}


def numbered(path: Path, prefix: str) -> list[Array]:
    """The arrays ``a0``, ``a1``, ... of an .npz, in order."""
    with np.load(path) as data:
        count = sum(name.startswith(prefix) for name in data.files)
        return [data[f"{prefix}{i}"] for i in range(count)]


def results(value: Any) -> list[Array]:
    """What a function returned, as host arrays."""
    values = value if isinstance(value, tuple | list) else (value,)
    return [np.array(v.to_host()) for v in values]


def timed(function: Any, inputs: list[Any]) -> float:
    """Milliseconds of one run, with its first result brought to the host: that waits for it."""
    started = time.perf_counter()
    value = function(*inputs)
    first = value[0] if isinstance(value, tuple | list) else value
    first.to_host()
    return 1000 * (time.perf_counter() - started)


if __name__ == "__main__":
    sys.exit(main())
