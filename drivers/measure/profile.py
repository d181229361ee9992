"""Where a program's time goes: its dispatches by time, from the runtime's own profiler."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mlirules.drivers.iree import compiler, runtime, threads
from mlirules.drivers.iree.devices import device_name
from mlirules.drivers.iree.targets import Target
from mlirules.drivers.measure import numerics
from mlirules.language.faults import Fault, MlirulesError, Span
from mlirules.support import children


@dataclass(frozen=True)
class Row:
    """One dispatch. Times are milliseconds; ``share`` is of the time of all dispatches.

    ``op`` and ``shape`` are what the compiler named it for: ``matmul``, ``2048x1280x5120``.
    """

    name: str
    op: str
    shape: str
    types: str
    count: int
    total_ms: float
    mean_ms: float
    min_ms: float
    max_ms: float
    share: float


@dataclass
class Profile:
    """A profiled run: what ran where, and its dispatches, the longest first."""

    model: str
    target: str
    device: str
    compiler: str
    calls: int
    #: Milliseconds of one call of the whole function.
    call_ms: float
    rows: list[Row] = field(default_factory=list)

    @property
    def total_ms(self) -> float:
        """Milliseconds of all dispatches together."""
        return sum(row.total_ms for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Plain data that :func:`load` reads back."""
        return {"mlirules_profile": 1, **asdict(self), "total_ms": self.total_ms}


class NoProfiler(MlirulesError):
    """The runtime cannot tell the dispatches of a device apart."""


@dataclass(frozen=True)
class Change:
    """One dispatch in two profiles; a mean is None where the dispatch is not there."""

    name: str
    op: str
    shape: str
    old_ms: float | None
    new_ms: float | None

    @property
    def ratio(self) -> float | None:
        """Old by new mean time: 2.0 is twice as fast now."""
        if self.old_ms is None or not self.new_ms:
            return None
        return self.old_ms / self.new_ms


_NAME = re.compile(
    r"_dispatch_(?P<number>\d+)_(?P<op>[A-Za-z_]+?)"
    r"(?:_(?P<shape>[0-9D]+(?:x[0-9D]+)*))?(?:_(?P<types>[A-Za-z]\w*))?$"
)


def described(name: str) -> tuple[str, str, str]:
    """Op, shape and types of a dispatch from the name that the compiler gave it."""
    found = _NAME.search(name)
    if not found:
        return name, "", ""
    return found["op"].strip("_"), found["shape"] or "", found["types"] or ""


def profile(
    program: runtime.Executable,
    inputs: Sequence[Any],
    target: Target,
    *,
    seconds: float = 1.0,
    model: str = "",
    timeout: float | None = 600,
) -> Profile:
    """Run a program for at least ``seconds`` with the runtime's profiler; ``model`` names it.

    Raises MlirulesError when the runtime does not run it or gives no dispatches, and
    :class:`NoProfiler` for devices whose dispatches it does not time.
    """
    events = "host-execution" if target.kind == "cpu" else "dispatch-events"
    with tempfile.TemporaryDirectory(prefix="mlirules-") as directory:
        folder = Path(directory)
        (folder / "module.vmfb").write_bytes(program.vmfb)
        given = []
        for index, value in enumerate(inputs):
            given.append(f"--input={_written(folder, index, value)}")
        bundle = folder / "run.ireeprof"
        said = _tool(
            "iree-benchmark-module",
            [
                f"--device={target.device}",
                *threads.arguments(),
                f"--module={folder / 'module.vmfb'}",
                f"--function={program.function}",
                *(f"--parameters={runtime.scoped(text)}" for text in program.parameters),
                *given,
                f"--benchmark_min_time={seconds:g}s",
                "--benchmark_format=json",
                f"--device_profiling_mode={events},executable-metadata",
                f"--device_profiling_output={bundle}",
            ],
            timeout,
        )
        if not bundle.exists():
            raise MlirulesError.at(
                "--target", f"the runtime wrote no profile for {target}", code="profile"
            )
        lines = _tool("iree-profile", ["dispatch", "--format=jsonl", str(bundle)], timeout)
    calls, call_ms = _calls(said)
    rows = _rows([json.loads(line) for line in lines.splitlines() if line.startswith("{")])
    if not rows:
        raise MlirulesError.at(
            program.function,
            "the profiler saw no dispatch",
            code="profile",
            suggestion="a program that only copies its inputs has none",
        )
    device = device_name(target.name)
    return Profile(model, target.name, device, compiler.version(), calls, call_ms, rows)


def _written(folder: Path, index: int, value: object) -> str:
    array = np.asarray(value, order="C")
    name = {"bfloat16": "bf16"}.get(array.dtype.name)
    if name is None and array.dtype.kind in "biufc":
        path = folder / f"{index}.npy"
        np.save(path, array)
        return f"@{path}"
    path = folder / f"{index}.bin"
    path.write_bytes(array.tobytes())
    return "x".join([*map(str, array.shape), name or array.dtype.name]) + f"=@{path}"


def _tool(name: str, arguments: Sequence[str], timeout: float | None) -> str:
    command = [str(runtime.tool_path(name)), *arguments]
    device = next((a.partition("=")[2] for a in arguments if a.startswith("--device=")), "local-")
    command, timeout = runtime.with_limits(command, timeout, device)
    try:
        done = children.run(command, timeout=timeout)
    except children.TimedOut as out:
        raise MlirulesError.at(name, str(out), code="timeout") from None
    if done.status:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        message = said[-1].strip() if said else f"exit code {done.status}"
        if "profiling is not implemented" in message:
            raise NoProfiler(
                Fault(
                    Span("--target"),
                    "no-profiler",
                    f"IREE's runtime has no profiler for {device.partition(':')[0]}",
                    "`mlirules bench` times whole programs; the vendor's own profiler (NVIDIA: "
                    "nsys, ncu) shows the dispatches by their names",
                )
            )
        raise MlirulesError.at(name, message[:500], code="profile")
    return done.stdout


def _calls(said: str) -> tuple[int, float]:
    start = said.find("{")
    rows = json.loads(said[start:])["benchmarks"] if start >= 0 else []
    unit = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
    for row in rows:
        if "iterations" in row:
            return int(row["iterations"]), float(row["real_time"]) * unit[row["time_unit"]]
    return 0, 0.0


def _rows(found: Sequence[dict[str, Any]]) -> list[Row]:
    groups = [r for r in found if r.get("type") in ("dispatch_group", "host_dispatch_group")]
    total = sum(float(r.get("total_ns", 0)) for r in groups)
    rows = []
    for r in groups:
        if not r.get("count"):
            continue
        op, shape, types = described(r["key"])
        rows.append(
            Row(
                r["key"],
                op,
                shape,
                types,
                int(r["count"]),
                float(r["total_ns"]) / 1e6,
                float(r["avg_ns"]) / 1e6,
                float(r["min_ns"]) / 1e6,
                float(r["max_ns"]) / 1e6,
                float(r["total_ns"]) / total if total else 0.0,
            )
        )
    return sorted(rows, key=lambda row: -row.total_ms)


def random_inputs(
    source: str | compiler.Program, sizes: Sequence[int] = (), seed: int = 0
) -> tuple[str, list[Any]]:
    """The first function of a program that can be called, and random inputs for it."""
    return next(iter(random_calls(source, sizes, seed).items()))


def random_calls(
    source: str | compiler.Program,
    sizes: Sequence[int] = (),
    seed: int = 0,
    function: str | None = None,
) -> dict[str, list[Any]]:
    """The functions of a program that can be called, or one of them, with random inputs for each.

    Raises :class:`MlirulesError` where there is no such function.
    """
    return {
        name: numerics.random_inputs(arguments, sizes, seed=seed, low=-1.0, high=1.0)
        for name, arguments in numerics.functions(source, function).items()
    }


def merged(profiles: Sequence[Profile]) -> Profile:
    """One profile of several functions of a program: a call of each, their dispatches together."""
    if len(profiles) == 1:
        return profiles[0]
    total = sum(row.total_ms for one in profiles for row in one.rows)
    rows = [
        replace(row, share=row.total_ms / total if total else 0.0)
        for one in profiles
        for row in one.rows
    ]
    return replace(
        profiles[0],
        calls=sum(one.calls for one in profiles),
        call_ms=sum(one.call_ms for one in profiles),
        rows=sorted(rows, key=lambda row: -row.total_ms),
    )


def load(path: str | Path) -> Profile:
    """A saved profile. Raises MlirulesError when the file holds none."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        rows = [Row(**row) for row in data["rows"]]
        return Profile(
            data["model"],
            data["target"],
            data["device"],
            data["compiler"],
            data["calls"],
            data["call_ms"],
            rows,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MlirulesError.at(
            str(path),
            "holds no profile",
            code="profile",
            suggestion="write one with `mlirules profile MODEL --json > FILE`",
        ) from error


def compare(old: Profile, new: Profile) -> list[Change]:
    """Dispatches of two profiles by name: those of ``new`` in its order, then those gone."""
    before = {row.name: row for row in old.rows}
    out = []
    for row in new.rows:
        was = before.pop(row.name, None)
        out.append(Change(row.name, row.op, row.shape, was.mean_ms if was else None, row.mean_ms))
    out += [Change(r.name, r.op, r.shape, r.mean_ms, None) for r in before.values()]
    return out
