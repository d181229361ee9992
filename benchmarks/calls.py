"""What a call from Python costs: a tiny program through the library and torch.compile.

    python benchmarks/calls.py [--seconds 1] [--warm-start resnet50]

The program adds two 4x4 tensors. Beside it stand iree-benchmark-module's time for the same binary,
eager PyTorch and Inductor. Each is timed in rounds, one after the other; the median over rounds of
a round's mean is told, and how many functions of Python and of C a call runs.

With ``--warm-start`` a model is compiled by two processes, the second of which finds its programs
in the cache; what our backend takes of it is told apart from PyTorch.
Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mlirules
from mlirules.api.dynamo.backend import mlirules_backend
from mlirules.drivers.iree import runtime

ROUNDS = 7

WARM = """
import json, sys, time
started = time.perf_counter()
import timm, torch
import mlirules
from mlirules.api.dynamo.backend import mlirules_backend
torch.manual_seed(0)
model = timm.create_model(sys.argv[1], pretrained=False).eval()
x = torch.randn(1, 3, 224, 224)
imported = time.perf_counter()
with torch.no_grad():
    compiled = torch.compile(model, backend=mlirules_backend)
    result = compiled(x)
    done = time.perf_counter()
    for _ in range(3):
        compiled(x)
    again = time.perf_counter()
    close = torch.allclose(result, model(x), rtol=1e-3, atol=1e-3)
report = mlirules.report()
print(json.dumps({
    "first_call_s": done - imported,
    "backend_s": sum(g.seconds for g in report.graphs),
    "call_s": (again - done) / 3,
    "warm": sum(g.warm for g in report.graphs),
    "programs": sum(g.programs for g in report.graphs),
    "as_eager": close,
}))
"""


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The program."""
    return x + y


def timed(call: Callable[[], Any], seconds: float) -> float:
    """The mean time of a call, in microseconds."""
    count = 0
    started = time.perf_counter()
    while (now := time.perf_counter()) - started < seconds:
        for _ in range(50):
            call()
        count += 50
    return 1e6 * (now - started) / count


def counted(call: Callable[[], Any]) -> tuple[int, int]:
    """How many functions of Python and of C a call runs: the same on every machine."""
    kinds: list[str] = []
    before = sys.getprofile()
    sys.setprofile(lambda _frame, kind, _what: kinds.append(kind))
    try:
        call()
    finally:
        sys.setprofile(before)
    # The call itself, and the end of the count.
    return kinds.count("call") - 1, kinds.count("c_call") - 1


def of_tool(binary: bytes, device: str, seconds: float) -> float:
    """What iree-benchmark-module says of the same program, in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "add.vmfb"
        path.write_bytes(binary)
        done = subprocess.run(
            [
                str(runtime.tool_path("iree-benchmark-module")),
                f"--module={path}",
                f"--device={device}",
                "--function=main",
                "--input=4x4xf32=1",
                "--input=4x4xf32=2",
                f"--benchmark_min_time={seconds}s",
                "--benchmark_format=json",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
    found = json.loads(done.stdout[done.stdout.index("{") :])["benchmarks"][0]
    scale = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}[found["time_unit"]]
    return float(found["real_time"]) * scale


def inductor() -> Callable[..., Any] | None:
    """Inductor's function; None where it cannot compile."""
    try:
        made: Callable[..., Any] = torch.compile(add, backend="inductor")
        made(torch.zeros(4, 4), torch.zeros(4, 4))
    except Exception as error:  # noqa: BLE001 - a compiler may be missing in many ways
        print(f"inductor: {str(error).splitlines()[0]}", file=sys.stderr)
        return None
    return made


def calls(seconds: float) -> dict[str, Any]:
    """The time of each way to call, in microseconds."""
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    a, b = x.numpy().copy(), y.numpy().copy()
    library = mlirules.Session().compile(_Add(), (x, y))
    compiled = torch.compile(add, backend=mlirules_backend)
    ways: dict[str, Callable[[], Any]] = {
        "eager": lambda: add(x, y),
        "library, tensors": lambda: library(x, y),
        "library, arrays": lambda: library(a, b),
        "torch.compile, mlirules": lambda: compiled(x, y),
    }
    other = inductor()
    if other is not None:
        ways["torch.compile, inductor"] = lambda: other(x, y)
    rounds: dict[str, list[float]] = {name: [] for name in ("iree-benchmark-module", *ways)}
    with torch.no_grad():
        for call in ways.values():
            call()
        assert np.allclose(library(a, b), a + b)
        for _ in range(ROUNDS):
            rounds["iree-benchmark-module"].append(
                of_tool(library.binary, library.target.device, seconds / 4)
            )
            for name, call in ways.items():
                rounds[name].append(timed(call, seconds / 4))
        told: dict[str, Any] = {
            name: {"median_us": round(statistics.median(v), 1), "min_us": round(min(v), 1)}
            for name, v in rounds.items()
        }
        for name, call in ways.items():
            told[name]["python"], told[name]["c"] = counted(call)
    return told


class _Add(torch.nn.Module):
    """The program as a model."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Add."""
        return x + y


def warm_start(name: str) -> list[dict[str, Any]]:
    """A model compiled by a process, and by another one after it."""
    out = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, "-c", WARM, name],
                env={**os.environ, "MLIRULES_CACHE_DIR": folder},
                capture_output=True,
                text=True,
                check=True,
            )
            out.append(json.loads(done.stdout.splitlines()[-1]))
    return out


def processor() -> str:
    """The CPU's name."""
    try:
        found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--warm-start", metavar="TIMM_MODEL")
    given = parser.parse_args()
    facts: dict[str, Any] = {
        "cpu": processor(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "calls": calls(given.seconds),
    }
    if given.warm_start:
        facts["warm_start"] = warm_start(given.warm_start)
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
