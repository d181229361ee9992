"""How much memory a process may still take."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["available"]

_SYSTEM = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def available(system: Path = _SYSTEM, group: Path = _GROUP) -> int | None:
    """Bytes that the system can give, swap included, and the process's group may still take.

    None where the system does not say so (Linux does, in ``/proc/meminfo`` and cgroup v2).
    """
    said = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _read(system), re.MULTILINE))
    if "MemAvailable" not in said:
        return None
    free = int(said["MemAvailable"]) + int(said.get("SwapFree", 0)) << 10
    most, taken = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
    if most.isdigit() and taken.isdigit():
        # What it has read of files is counted as taken, and given up when it is wanted.
        kept = re.findall(r"^(?:in)?active_file (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
        free = min(free, max(0, int(most) - int(taken) + sum(map(int, kept))))
    return free


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""  # another system, or another version of its groups
