"""A transformer layer whose linear layers PT2E quantized: what block.mlir and block.npz hold.

mlirules import tests/int8/block.py:make -o tests/int8/block.mlir --golden tests/int8/block.npz
"""

import torch
from quantized import quantized
from torch import nn

WIDTH, HEADS, TOKENS = 32, 4, 12


class Block(nn.Module):
    """Attention and a perceptron, each with what it is added to; one linear layer has no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.pick = nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: 2 x TOKENS x WIDTH."""
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.project(self.norm(x)).chunk(3, -1)
        )
        held = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(held.transpose(1, 2).flatten(2))
        x = x + self.down(nn.functional.relu(self.up(x)))
        return self.pick(x)


def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The layer, quantized with the scales of its one input."""
    torch.manual_seed(7)
    model, x = Block().eval(), torch.randn(2, TOKENS, WIDTH)
    return quantized(model, x)
