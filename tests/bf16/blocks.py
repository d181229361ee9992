"""Groups, and normalisations before convolutions, in bf16: what blocks.mlir and blocks.npz hold.

mlirules import tests/bf16/blocks.py:make -o tests/bf16/blocks.mlir --golden tests/bf16/blocks.npz
"""

import torch
from torch import nn


def _groups(channels: int, size: int, step: int) -> nn.Sequential:
    groups = nn.Conv2d(channels, channels, 3, step, 1, groups=channels // size, bias=False)
    return nn.Sequential(groups, nn.BatchNorm2d(channels), nn.ReLU())


class Blocks(nn.Module):
    """Images side by side are normalised for the next layer, whose filters are in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 40, 3, padding=1)
        self.more = nn.Conv2d(40, 16, 1)
        self.norm = nn.BatchNorm2d(56)
        self.wide = nn.Conv2d(56, 48, 1)
        self.eight = _groups(48, 8, 2)
        self.four = _groups(48, 4, 1)
        self.sixteen = _groups(48, 16, 1)
        self.last = nn.BatchNorm2d(48)
        self.pick = nn.Conv2d(48, 32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: 2 x 4 x 15 x 9."""
        x = self.first(x)
        x = torch.cat([x, self.more(x)], 1)
        x = self.wide(nn.functional.relu(self.norm(x)))
        return self.pick(self.last(self.sixteen(self.four(self.eight(x)))))


def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The network with statistics of its one input, and that."""
    torch.manual_seed(5)
    model, x = Blocks(), torch.randn(2, 4, 15, 9)
    with torch.no_grad():
        model(x)
    return model.eval().bfloat16(), (x.bfloat16(),)
