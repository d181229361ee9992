"""How many threads a program for the CPU runs on, and that they are not tied to cores.

The runtime makes a worker for each physical core of the machine, whatever part of it this process
may use, and ties each to its core. The thread that calls then waits for a core whose worker works,
and what else runs on a core holds its worker up, and with it all that the next dispatch needs. On
the two cores of a virtual machine single calls took up to twice as long so (docs/performance.md).
Where memory is not the same from every core the runtime's own choice stays.
"""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path

from iree.runtime import flags

__all__ = ["arguments", "cores", "prepare"]

_CPUS = Path("/sys/devices/system/cpu")
_NODES = Path("/sys/devices/system/node")
_GROUP = Path("/sys/fs/cgroup/cpu.max")
#: What the user says of the workers is not to be said again.
_TOLD = "task_topology"


def cores(cpus: Path = _CPUS, group: Path = _GROUP) -> int:
    """The physical cores that this process may use, as its affinity and its group's quota say."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not allowed:
        return os.cpu_count() or 1
    threads = {_read(cpus / f"cpu{cpu}" / "topology" / "core_cpus_list") or cpu for cpu in allowed}
    limit, _, period = _read(group).partition(" ")
    if limit.isdigit() and period.isdigit() and int(period):
        return max(1, min(len(threads), -(-int(limit) // int(period))))
    return len(threads)


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="ascii").strip()
    return ""


def arguments(nodes: Path = _NODES) -> list[str]:
    """The runtime's flags; none where the user gave some, or memory is nearer to some cores."""
    told = _TOLD in os.environ.get("IREE_PY_RUNTIME_FLAGS", "")
    if told or len([*nodes.glob("node[0-9]*")]) > 1:
        return []
    return [f"--task_topology_group_count={cores()}"]


@functools.cache
def prepare() -> None:
    """Tell the runtime, before its first device is made."""
    if said := arguments():
        flags.parse_flags(*said)
