"""A convolutional network that PT2E quantized: what images.mlir and images.npz hold.

mlirules import tests/int8/images.py:make -o tests/int8/images.mlir --golden tests/int8/images.npz
"""

import torch
from quantized import quantized
from torch import nn

SIDE = 30


class Images(nn.Module):
    """A pool, a depthwise convolution, a sum, two images that are joined, a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 20, 3, stride=2), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.wide = nn.Sequential(nn.Conv2d(20, 40, 1), nn.ReLU6())
        self.deep = nn.Sequential(nn.Conv2d(40, 40, 3, padding=1, groups=40), nn.ReLU6())
        self.narrow = nn.Conv2d(40, 20, 1)
        self.near = nn.Sequential(nn.Conv2d(20, 16, 1), nn.ReLU())
        self.far = nn.Sequential(nn.Conv2d(20, 16, 3, padding=1), nn.ReLU())
        self.pick = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: 2 x 3 x SIDE x SIDE."""
        x = self.pool(self.first(x))
        x = x + self.narrow(self.deep(self.wide(x)))
        return self.pick(torch.cat([self.near(x), self.far(x)], 1).mean((2, 3)))


def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The network, quantized with the scales of its one input."""
    torch.manual_seed(7)
    model, x = Images().eval(), torch.randn(2, 3, SIDE, SIDE)
    return quantized(model, x)
