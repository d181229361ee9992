"""CPUs, described to the compiler so that a program means the same on all of them.

The compiler lets LLVM contract: a product that is added to becomes one fused operation with one
rounding. For 32-bit floats every CPU here does that alike. For f16 only a CPU with arithmetic of
its own (AVX512-FP16) does: LLVM first narrows ``truncf(mulf(extf, extf))`` to a product in f16,
which changes nothing, and then fuses that with the addition after it, which leaves out the rounding
between them that the program asks for. No flag of the compiler turns contraction off, so the
feature is left out of the description: f16 is extended, computed and truncated as on other CPUs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from mlirules.drivers.iree import tools
from mlirules.drivers.iree.ops import revision
from mlirules.support import cache

#: What no description of a CPU holds. SSE4A is AMD's alone, gives a compiler nothing beside what
#: came after it, and would keep programs for ``znver4`` from running anywhere else.
LEFT_OUT = ("-avx512fp16", "-sse4a")

_CPUS = Path("/sys/devices/system/cpu")
_GROUP = Path("/sys/fs/cgroup/cpu.max")
#: A core with nothing left in its own part looks through the others, one after another.
_MOST_PARTS = 8
#: More workgroups than so many cores take have too little to do each.
_MOST_CORES = 64

_LOCAL = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
)
#: Features that code generation for arithmetic uses, by the first letters of their names. The
#: others (user interrupts, enclaves, hints to caches) never appear in a compiled program.
_ARITHMETIC = ("avx", "amx", "bmi", "f16c", "fma", "gfni", "lzcnt", "popcnt", "sse", "ssse", "v")


def flags(architecture: str) -> tuple[str, ...]:
    """What the compiler is told of a CPU: ``architecture``, or the machine's own where empty."""
    if architecture:
        return _named(architecture, ",".join(LEFT_OUT))
    if "avx512_fp16" not in _cpuinfo():
        return (*_LOCAL, "--iree-llvmcpu-target-cpu=host")
    # "host" cannot be combined with features: the machine is spelled out as the compiler sees it.
    name, features = _described("host")
    return _named(name, ",".join([*features, *LEFT_OUT]))


def cores(cpus: Path = _CPUS, group: Path = _GROUP) -> int:
    """The physical cores that this process may use, as its affinity and its group's quota say."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not allowed:
        return os.cpu_count() or 1
    threads = {core_of(cpu, cpus) for cpu in allowed}
    limit, _, period = _read(group).partition(" ")
    if limit.isdigit() and period.isdigit() and int(period):
        return max(1, min(len(threads), -(-int(limit) // int(period))))
    return len(threads)


def core_of(cpu: int, cpus: Path = _CPUS) -> str | int:
    """What is the same for all of Linux's CPUs that are one physical core."""
    return _read(cpus / f"cpu{cpu}" / "topology" / "core_cpus_list") or cpu


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="ascii").strip()
    return ""


def divided(architecture: str) -> int:
    """For how many cores the work of a kernel is divided: two or more, what runs it may be less.

    Those that this process may use, at most 64; two for a named CPU, whose cores nobody knows.
    ``architecture`` is empty for this machine.
    """
    return 2 if architecture else max(2, min(cores(), _MOST_CORES))


def parts(architecture: str) -> int:
    """Into how many parts the workgroups of a kernel are divided; 1: as the runtime takes them.

    As many as this process may use cores, at most eight; two for a named CPU, whose cores nobody
    knows. ``architecture`` is empty for this machine, which may lack what tells cores apart.
    """
    if vector_bytes(architecture) < 32:
        return 1  # no x86-64 with AVX2
    if architecture:
        return 2
    return min(cores(), _MOST_PARTS) if "rdtscp" in _cpuinfo() else 1


def problem(architecture: str) -> str | None:
    """Why programs for ``architecture`` cannot run on this machine; ``None`` when they can."""
    missing = lacking(architecture) if architecture else []
    return f"this CPU lacks {', '.join(missing)}" if missing else None


def lacking(architecture: str) -> list[str]:
    """The arithmetic features of ``architecture`` that this machine does not have, sorted."""
    _, wanted = _described(architecture)
    has = _features("")
    out = {feature[1:] for feature in LEFT_OUT}
    needed = {feature[1:] for feature in wanted if feature[1:].startswith(_ARITHMETIC)}
    return sorted(needed - has - out)


@functools.lru_cache(maxsize=64)
def name(architecture: str) -> str:
    """The compiler's own name for a CPU, as ``znver4``; ``architecture`` is empty for this one."""
    return _described(architecture or "host")[0]


@functools.lru_cache(maxsize=64)
def vector_bytes(architecture: str) -> int:
    """The bytes of the vectors that a CPU multiplies and adds in one operation; 0 where it cannot.

    64 with AVX-512, 32 with AVX2 and FMA, 16 with NEON. ``architecture`` is empty for this machine.
    """
    has = _features(architecture)
    if "avx512f" in has:
        return 64
    if {"avx2", "fma"} <= has:
        return 32
    return 16 if "neon" in has else 0


@functools.lru_cache(maxsize=64)
def unit_bytes(architecture: str) -> int:
    """The bytes that a CPU multiplies and adds at a time: what it takes its vectors by.

    Of Zen 4's vectors of 64 bytes 32, one half after the other; else :func:`vector_bytes`.
    """
    found = vector_bytes(architecture)
    return 32 if found == 64 and name(architecture) == "znver4" else found


@functools.lru_cache(maxsize=64)
def dot_bytes(architecture: str) -> int:
    """The bytes of the vectors of which a CPU adds products of bytes, by fours, in one operation.

    An unsigned byte by a signed one, without saturation: 64 with AVX512-VNNI, else 0.
    """
    has = _features(architecture)
    return 64 if {"avx512f", "avx512vnni"} <= has else 0


@functools.lru_cache(maxsize=64)
def bf16_bytes(architecture: str) -> int:
    """The bytes of the vectors of which a CPU adds products of bf16, by twos, in one operation.

    To sums of f32: 64 with AVX512-BF16, else 0.
    """
    has = _features(architecture)
    return 64 if {"avx512f", "avx512bf16"} <= has else 0


@functools.lru_cache(maxsize=64)
def bf16_tile_rows(architecture: str) -> int:
    """The rows of a CPU's tile registers where it multiplies tiles of bf16: 16 with AMX, else 0."""
    return _tile_rows(architecture, "amx-bf16")


@functools.lru_cache(maxsize=64)
def byte_tile_rows(architecture: str) -> int:
    """Likewise where it multiplies tiles of bytes."""
    return _tile_rows(architecture, "amx-int8")


def fact(name: str, architecture: str) -> int:
    """What rules and stages may ask of a CPU, by its name in ``language.grid.FACTS``."""
    asked: dict[str, Callable[[str], int]] = {
        "vector_bytes": vector_bytes,
        "unit_bytes": unit_bytes,
        "dot_bytes": dot_bytes,
        "bf16_bytes": bf16_bytes,
        "bf16_tile_rows": bf16_tile_rows,
        "byte_tile_rows": byte_tile_rows,
        "cores": divided,
    }
    return asked[name](architecture)


def _features(architecture: str) -> set[str]:
    """What a CPU has; ``architecture`` is empty for this machine."""
    _, features = _described(architecture or "host")
    return {feature[1:] for feature in features if feature.startswith("+")}


def _tile_rows(architecture: str, operation: str) -> int:
    """AMX beside AVX-512, whose vectors kernels need for what surrounds the products."""
    has = _features(architecture)
    return 16 if {"amx-tile", "avx512f", "avx512bf16", operation} <= has else 0


def _named(name: str, features: str) -> tuple[str, ...]:
    return (
        *_LOCAL,
        f"--iree-llvmcpu-target-cpu={name}",
        f"--iree-llvmcpu-target-cpu-features={features}",
    )


@functools.lru_cache(maxsize=64)
def _described(name: str) -> tuple[str, tuple[str, ...]]:
    """The compiler's own name for a CPU and its features; a later one outdoes an earlier one.

    Kept between runs: the compiler takes longer to start than it takes to say so.
    """
    about = [revision(), name, *(_identity() if name == "host" else ())]
    key = hashlib.sha256("\0".join(about).encode()).hexdigest()[:32]
    data = cache.kept("cpus", key)
    if data is not None:
        known, *features = json.loads(data)
        return str(known), tuple(features)
    known, found = _asked(name)
    cache.keep("cpus", key, json.dumps([known, *found]).encode(), limit=100)
    return known, found


def _asked(name: str) -> tuple[str, tuple[str, ...]]:
    text, _ = tools.run_tool(
        "iree-compile",
        ["-", *_LOCAL, f"--iree-llvmcpu-target-cpu={name}", "--compile-to=preprocessing"],
        stdin="module {}",
        timeout=120,
    )
    cpu = re.search(r'\bcpu = "([^"]*)"', text)
    features = re.search(r'\bcpu_features = "([^"]*)"', text)
    last: dict[str, str] = {}
    for feature in features[1].split(",") if features else ():
        last[feature[1:]] = feature
    return cpu[1] if cpu else "generic", tuple(last.values())


def _identity() -> list[str]:
    """What Linux says of the first CPU that does not change from minute to minute."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(errors="replace").split("\n\n")[0] if path.is_file() else ""
    stays = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
    return [line for line in lines.split("\n") if line.startswith(stays)]


@functools.cache
def _cpuinfo() -> frozenset[str]:
    """What Linux calls the features of this machine's CPU; empty on other systems."""
    path = Path("/proc/cpuinfo")
    return frozenset(path.read_text(errors="replace").split()) if path.is_file() else frozenset()
