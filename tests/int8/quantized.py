"""How the networks of this folder are quantized."""

import torch
from torch import nn


def quantized(model: nn.Module, x: torch.Tensor) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """``model`` by PT2E, with the scales of its one input ``x``."""
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    with torch.no_grad():
        prepared = prepare_pt2e(torch.export.export(model, (x,)).module(), quantizer)
        prepared(x)
        return convert_pt2e(prepared), (x,)
