"""A layer whose products, attention and softmax run as kernels written by hand.

The rules of ``rules/kernels`` replace them in the graph, and ``pipeline.yaml`` fails the
compilation when one of them did not: two products, one attention, one softmax.

    mlirules import examples/kernels/model.py:Layer --no-decompose -o layer.mlir --golden layer.npz
    for target in cpu vulkan cuda:sm_80 hip:gfx942; do
      mlirules compile layer.mlir --pipeline examples/kernels/pipeline.yaml --target $target \\
        -o layer-${target%%:*}.vmfb
    done
"""

import torch
from torch.nn import functional


class Layer(torch.nn.Module):
    """One attention layer over 64 tokens of width 128 (two heads of 64), then a distribution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = torch.nn.Parameter(torch.randn(128, 384) / 12)
        self.out = torch.nn.Parameter(torch.randn(128, 192) / 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: (64, 128). Returns (64, 192): rows that sum to 1."""
        q, k, v = torch.mm(x, self.qkv).reshape(1, 64, 3, 2, 64).permute(2, 0, 3, 1, 4).unbind(0)
        heads = functional.scaled_dot_product_attention(q, k, v)
        joined = heads.transpose(1, 2).reshape(64, 128)
        return torch.softmax(torch.mm(joined, self.out), dim=-1)


def example_inputs() -> tuple[torch.Tensor]:
    """Tokens."""
    return (torch.randn(64, 128, generator=torch.Generator().manual_seed(1)),)
