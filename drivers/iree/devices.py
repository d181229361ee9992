"""The devices of this machine, and the runtime's own binaries that tell of them."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import iree._runtime_libs

from mlirules.language.faults import MlirulesError
from mlirules.support import children

__all__ = ["Device", "device_name", "device_problem", "devices", "tool_path"]


@dataclass(frozen=True)
class Device:
    """A device that is here: its driver's name and its URI for the runtime."""

    driver: str
    uri: str


def tool_path(name: str) -> Path:
    """The path of a binary of the runtime's wheel: ``iree-benchmark-module``, ``iree-profile``.

    Raises MlirulesError when the wheel has no such binary.
    """
    path = Path(next(iter(iree._runtime_libs.__path__))) / name
    if not path.is_file():
        raise MlirulesError.at(name, f"the installed runtime has no {name!r}", code="tool")
    return path


@functools.lru_cache(maxsize=16)
def _list_devices(driver: str) -> tuple[tuple[str, ...], str]:
    """The device URIs of ``driver`` and, when there is none, the reason."""
    command = [str(tool_path("iree-run-module")), f"--list_devices={driver}"]
    try:
        asked = children.run(command, timeout=60)
    except children.TimedOut:
        return (), f"the {driver} driver did not answer within 60 s"
    uris = tuple(line for line in asked.stdout.splitlines() if "://" in line and " " not in line)
    if asked.status == 0 and uris:
        return uris, ""
    said = re.search(r"(?:UNAVAILABLE|NOT_FOUND|INTERNAL|INCOMPATIBLE); ([^\n]*)", asked.stderr)
    reason = said[1].split("please")[0].rstrip(";: ") if said else "no device found"
    return (), f"{driver}: {reason}"


def device_problem(driver: str) -> str | None:
    """``None`` when ``driver`` finds a device, else the reason why not. Asked once a process."""
    uris, reason = _list_devices(driver.partition("://")[0])
    return None if uris else reason


def devices() -> list[Device]:
    """Every device that is here, those of the CPU first."""
    drivers = ("local-task", "local-sync", "vulkan", "cuda", "hip")
    return [Device(driver, uri) for driver in drivers for uri in _list_devices(driver)[0]]


@functools.lru_cache(maxsize=16)
def device_name(target: str) -> str:
    """What computes for a target: the processor with its cores, or what the runtime calls it."""
    kind = target.partition(":")[0]
    if kind == "cpu":
        model = platform.processor() or platform.machine()
        with contextlib.suppress(OSError):
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
                if line.startswith("model name"):
                    model = line.partition(":")[2].strip()
                    break
        return f"{model}, {os.cpu_count()} cores"
    names = [d.uri for d in devices() if d.driver == kind]
    return names[0] if names else kind
