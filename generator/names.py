"""What rules are called in generated files, and where they stand."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlirules.language.config.op import ConfigRule
    from mlirules.language.rule import Rule

__all__ = ["identifier", "location", "place"]


def identifier(name: str) -> str:
    """A rule's name as an identifier of PDLL and MLIR."""
    return re.sub(r"\W", "_", name)


def place(path: str, line: int) -> str:
    """A place that does not depend on where the checkout stands: output is deterministic."""
    return f"{_file(path)}:{line}"


@functools.lru_cache(maxsize=1024)
def _file(path: str) -> str:
    """A file's path from a folder that is everywhere; a rule's lines ask for the same one."""
    parts = Path(path).parts
    for anchor in ("rules", "specs", "examples", "lit_tests", "tests"):
        if anchor in parts:
            at = len(parts) - 1 - parts[::-1].index(anchor)
            return "/".join(parts[at:])
    return parts[-1] if parts else path


def location(rule: Rule | ConfigRule) -> str:
    """Where a rule stands, the same on every machine: ``rules/torch/to-linalg/mm.yaml:2``."""
    return place(rule.path, rule.span.line)
