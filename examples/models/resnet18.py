"""ResNet-18 with random weights, written with torch alone.

``mlirules import examples/models/resnet18.py:resnet18 -o resnet18.mlir --golden resnet18.npz``;
with ``--arg size=small`` an eighth of the channels on 64x64 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Size:
    """Channels of the first stage, pixels of a side, number of classes, images in a batch."""

    width: int
    pixels: int
    classes: int
    batch: int = 1


SIZES = {"full": Size(64, 224, 1000), "small": Size(8, 64, 10)}


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``N x inside x H x W`` to ``N x outside x H/stride x W/stride``."""
        inner = self.relu(self.bn1(self.conv1(x)))
        out: torch.Tensor = self.relu(self.bn2(self.conv2(inner)) + self.shortcut(x))
        return out


class ResNet18(nn.Module):
    """The network of He et al., "Deep Residual Learning", with 18 layers."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        width = size.width
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks: list[nn.Module] = []
        inside = width
        for stage in range(4):
            outside = width << stage
            blocks.append(BasicBlock(inside, outside, 1 if stage == 0 else 2))
            blocks.append(BasicBlock(outside, outside, 1))
            inside = outside
        self.stages = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(inside, size.classes)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                # As if trained: with mean 0 and variance 1 the normalisation would do nothing.
                assert module.running_mean is not None
                assert module.running_var is not None
                nn.init.normal_(module.running_mean, std=0.1)
                nn.init.uniform_(module.running_var, 0.5, 1.5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores, ``N x classes``."""
        features = self.pool(self.stages(self.stem(images)))
        scores: torch.Tensor = self.head(torch.flatten(features, 1))
        return scores

    def example_inputs(self) -> tuple[torch.Tensor]:
        """One batch of noise."""
        size = self.size
        return (torch.randn(size.batch, 3, size.pixels, size.pixels),)


def resnet18(size: str = "full") -> ResNet18:
    """The model in one of SIZES."""
    return ResNet18(SIZES[size])
