"""What ``torch.compile(backend="mlirules")`` did, asked without importing PyTorch before."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlirules.api.dynamo.report import Report

__all__ = ["report"]


def report() -> Report:
    """What of this process's models was compiled, and what runs eagerly, why, and from where."""
    from mlirules.api.dynamo.backend import backend

    return backend().reports.report()
