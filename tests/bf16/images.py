"""A convolutional network in bf16: what images.mlir and images.npz hold.

mlirules import tests/bf16/images.py:make -o tests/bf16/images.mlir --golden tests/bf16/images.npz
"""

import torch
from torch import nn

SIDE = 31


class Images(nn.Module):
    """An odd number of channels, normalisations, a pool, a sum, a product of all places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(3, 24, 5, stride=2, padding=2, bias=False), nn.BatchNorm2d(24), nn.ReLU()
        )
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.wide = nn.Sequential(nn.Conv2d(24, 40, 3, padding=1), nn.ReLU6())
        self.narrow = nn.Sequential(nn.Conv2d(40, 24, 1, bias=False), nn.BatchNorm2d(24))
        self.pick = nn.Linear(24, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: 2 x 3 x SIDE x SIDE."""
        x = self.pool(self.first(x))
        x = nn.functional.relu(x + self.narrow(self.wide(x)))
        return self.pick(x.flatten(2).transpose(1, 2).contiguous()).mean(1)


def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The network with statistics of its one input, and that."""
    torch.manual_seed(7)
    model, x = Images(), torch.randn(2, 3, SIDE, SIDE)
    with torch.no_grad():
        model(x)
    return model.eval().bfloat16(), (x.bfloat16(),)
