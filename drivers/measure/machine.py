"""Which machine this is: what was timed on another says nothing here."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
from pathlib import Path

__all__ = ["machine", "processor"]


def _described() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""


@functools.cache
def processor() -> str:
    """What the machine's processor is called."""
    found = re.search(r"^model name\s*:\s*(.*)$", _described(), re.MULTILINE)
    return found[1] if found else platform.processor()


@functools.cache
def machine() -> str:
    """The machine's processor and number of cores."""
    flags = re.search(r"^flags\s*:\s*(.*)$", _described(), re.MULTILINE)
    features = hashlib.sha256((flags[1] if flags else "").encode()).hexdigest()[:8]
    return f"{processor()} {features} x{os.cpu_count()}"
