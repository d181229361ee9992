"""How many threads a program for the CPU runs on, that they are not tied to cores, and who waits.

The runtime makes a worker for each physical core of the machine, whatever part of it this process
may use, and ties each to its core. The thread that calls then waits for a core whose worker works,
and what else runs on a core holds its worker up, and with it all that the next dispatch needs. On
the two cores of a virtual machine single calls took up to twice as long so (docs/performance.md).
Where memory is not the same from every core the runtime's own choice stays.

A worker that ends a call wakes the thread that waits for it and then says that it is done with what
lies on that thread's stack. Linux lets who is woken go first, on the waker's core: the caller then
turns in a loop for that word until the worker gets a core again. A thread of Linux's policy for
batches goes after whom it finds at work: callers have it while they wait.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

from iree.runtime import flags

from mlirules.drivers.iree import cpu

__all__ = ["arguments", "giving_way", "prepare"]

_Given = ParamSpec("_Given")

_NODES = Path("/sys/devices/system/node")
#: What the user says of the workers is not to be said again.
_TOLD = "task_topology"


def arguments(nodes: Path = _NODES) -> list[str]:
    """The runtime's flags; none where the user gave some, or memory is nearer to some cores."""
    told = _TOLD in os.environ.get("IREE_PY_RUNTIME_FLAGS", "")
    if told or len([*nodes.glob("node[0-9]*")]) > 1:
        return []
    return [f"--task_topology_group_count={cpu.cores()}"]


@functools.cache
def prepare() -> None:
    """Tell the runtime, before its first device is made."""
    if said := arguments():
        flags.parse_flags(*said)


def giving_way(call: Callable[_Given, None], uri: str) -> Callable[_Given, None]:
    """A call that waits for the workers of a device, by a thread that does not hold them up.

    Threads of another policy than Linux's usual one (a user's, of real time) keep it, and so does
    every thread where the system knows no such policy or forbids to change it.
    """
    if uri.partition("://")[0] != "local-task" or not hasattr(os, "SCHED_BATCH"):
        return call
    usual, patient, none = os.SCHED_OTHER, os.SCHED_BATCH, os.sched_param(0)
    asked, change = os.sched_getscheduler, os.sched_setscheduler

    def waiting(*arguments: _Given.args, **named: _Given.kwargs) -> None:
        if asked(0) != usual:
            return call(*arguments, **named)
        try:
            change(0, patient, none)
        except OSError:
            return call(*arguments, **named)
        try:
            return call(*arguments, **named)
        finally:
            change(0, usual, none)

    return waiting
