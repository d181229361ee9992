"""A block of an SDXL-like UNet with random weights: a residual block, then a transformer block.

3x3 convolutions, group norm, a time embedding, self-attention, cross-attention to a text, GEGLU.
``mlirules import examples/models/unet_block.py:unet_block -o unet.mlir --golden unet.npz``;
``--arg size=small`` for a tiny one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    """Channels in and out, pixels of a side, heads, groups of the norms, text tokens and width."""

    inside: int
    channels: int
    pixels: int
    heads: int
    groups: int
    tokens: int
    text: int
    batch: int = 1


SIZES = {
    "full": Size(320, 640, 32, 10, 32, 77, 768),
    "small": Size(16, 32, 8, 2, 8, 7, 24),
}


class ResidualBlock(nn.Module):
    """Group norm, silu, 3x3 convolution, twice, with the time embedding added in between."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(size.groups, size.inside)
        self.conv1 = nn.Conv2d(size.inside, size.channels, 3, padding=1)
        self.time = nn.Linear(4 * size.inside, size.channels)
        self.norm2 = nn.GroupNorm(size.groups, size.channels)
        self.conv2 = nn.Conv2d(size.channels, size.channels, 3, padding=1)
        self.shortcut = nn.Conv2d(size.inside, size.channels, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """``N x inside x H x W`` to ``N x channels x H x W``."""
        inner = self.conv1(functional.silu(self.norm1(x)))
        inner = inner + self.time(functional.silu(time))[:, :, None, None]
        inner = self.conv2(functional.silu(self.norm2(inner)))
        out: torch.Tensor = inner + self.shortcut(x)
        return out


class Attention(nn.Module):
    """Multi-head attention of a sequence to another one (or to itself)."""

    def __init__(self, hidden: int, other: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(other, hidden, bias=False)
        self.value = nn.Linear(other, hidden, bias=False)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """``N x tokens x hidden``, whatever the length of the other sequence."""

        def split(y: torch.Tensor) -> torch.Tensor:
            return y.view(y.shape[0], y.shape[1], self.heads, -1).transpose(1, 2)

        mixed = functional.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(other)), split(self.value(other))
        )
        out: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(x.shape))
        return out


class TransformerBlock(nn.Module):
    """Self-attention, cross-attention and GEGLU over the pixels as a sequence."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        hidden = size.channels
        self.norm = nn.GroupNorm(size.groups, hidden, eps=1e-6)
        self.enter = nn.Linear(hidden, hidden)
        self.norm1 = nn.LayerNorm(hidden)
        self.itself = Attention(hidden, hidden, size.heads)
        self.norm2 = nn.LayerNorm(hidden)
        self.cross = Attention(hidden, size.text, size.heads)
        self.norm3 = nn.LayerNorm(hidden)
        self.geglu = nn.Linear(hidden, 8 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)
        self.leave = nn.Linear(hidden, hidden)

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """``N x channels x H x W`` to the same."""
        batch, channels, height, width = x.shape
        y = self.norm(x).permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        y = self.enter(y)
        normed = self.norm1(y)
        y = y + self.itself(normed, normed)
        y = y + self.cross(self.norm2(y), text)
        value, gate = self.geglu(self.norm3(y)).chunk(2, dim=-1)
        y = y + self.down(value * functional.gelu(gate))
        y = self.leave(y).reshape(batch, height, width, channels).permute(0, 3, 1, 2)
        out: torch.Tensor = x + y
        return out


class UNetBlock(nn.Module):
    """A residual block and a transformer block."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.residual = ResidualBlock(size)
        self.transformer = TransformerBlock(size)

    def forward(self, x: torch.Tensor, time: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """``N x inside x H x W`` to ``N x channels x H x W``."""
        out: torch.Tensor = self.transformer(self.residual(x, time), text)
        return out

    def example_inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A noisy latent, a time embedding and an embedded text."""
        size = self.size
        return (
            torch.randn(size.batch, size.inside, size.pixels, size.pixels),
            torch.randn(size.batch, 4 * size.inside),
            torch.randn(size.batch, size.tokens, size.text),
        )


def unet_block(size: str = "full") -> UNetBlock:
    """The model in one of SIZES."""
    return UNetBlock(SIZES[size])
