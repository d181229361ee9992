"""Programs that PyTorch's PT2E quantized, as they are before they are imported."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

import torch

__all__ = ["register", "without_zero_points"]

_PER_CHANNEL = "quantized_decomposed.dequantize_per_channel.default"
_ZERO_POINTS = 2


def register() -> None:
    """Make the ops ``quantized_decomposed`` known, which a file that was written may hold.

    A PyTorch that keeps them elsewhere says itself which op of a file it does not know.
    """
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("torch.ao.quantization.fx._decomposed")


def without_zero_points(exported: torch.export.ExportedProgram) -> None:
    """Leave out the zero points of channels where all of them are known to be 0.

    The op takes none for that. Rules see an operand that is not there, and no values of a tensor.
    """
    signature = exported.graph_signature
    names = {**signature.inputs_to_buffers, **signature.inputs_to_parameters}
    names |= signature.inputs_to_lifted_tensor_constants
    changed = False
    for node in exported.graph.nodes:
        if not _is_per_channel(node) or len(node.args) <= _ZERO_POINTS:
            continue
        points = node.args[_ZERO_POINTS]
        held = names.get(getattr(points, "name", ""))
        tensor = exported.state_dict.get(held, exported.constants.get(held)) if held else None
        if isinstance(tensor, torch.Tensor) and not torch.any(tensor):
            node.update_arg(_ZERO_POINTS, None)
            changed = True
    if changed:
        exported.graph_module.recompile()


def _is_per_channel(node: Any) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and str(target) == _PER_CHANNEL
