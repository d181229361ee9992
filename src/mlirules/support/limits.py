"""Child processes with limits: for code that its user trusts, but nobody has checked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Limits", "limited"]


@dataclass(frozen=True)
class Limits:
    """What a child process may use."""

    #: Seconds of processor time, over all its threads.
    cpu_s: int = 900
    #: Seconds until it is stopped, where nothing else is said.
    wall_s: float = 600.0
    #: Bytes of address space; None: as many as there are (drivers of GPUs reserve far more).
    memory: int | None = 32 << 30


# Before the program itself starts, and for all that it starts. No core files: they hold its inputs.
_PREFIX = """\
import os, sys
try:
    import resource
except ImportError:
    pass
else:
    for name, value in (("RLIMIT_CPU", {cpu}), ("RLIMIT_AS", {memory}), ("RLIMIT_CORE", 0)):
        kind = getattr(resource, name)
        most = resource.getrlimit(kind)[1]
        if value is not None:
            if most != resource.RLIM_INFINITY:
                value = min(value, most)
            resource.setrlimit(kind, (value, value))
os.execvp(sys.argv[1], sys.argv[1:])
"""


def limited(command: Sequence[str], limits: Limits) -> list[str]:
    """``command``, started so that it can use no more than ``limits`` allow."""
    code = _PREFIX.format(cpu=limits.cpu_s, memory=limits.memory)
    return [sys.executable, "-I", "-S", "-c", code, *command]
