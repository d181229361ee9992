"""A network of gates and activations that PT2E quantized: what gates.mlir and gates.npz hold.

mlirules import tests/int8/gates.py:make -o tests/int8/gates.mlir --golden tests/int8/gates.npz
"""

import torch
from quantized import quantized
from torch import nn

SIDE = 26


class Gate(nn.Module):
    """Squeeze and excite: a depthwise convolution's result as floats, and its mean of bytes."""

    def __init__(self, channels: int, act: nn.Module, last: nn.Module) -> None:
        super().__init__()
        deep = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.deep = nn.Sequential(deep, act)
        self.squeeze = nn.Conv2d(channels, 20, 1)
        self.excite = nn.Sequential(nn.Conv2d(20, channels, 1), last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: images of ``channels``."""
        x = self.deep(x)
        return x * self.excite(torch.relu(self.squeeze(x.mean((2, 3), keepdim=True))))


class Gates(nn.Module):
    """Each activation behind a convolution and a depthwise one, rounded to bytes and not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 36, 3, stride=2), nn.Hardswish())
        self.deep = nn.Conv2d(36, 36, 5, padding=2, groups=36)
        self.wide = nn.Sequential(nn.Conv2d(36, 40, 1, bias=False), nn.SiLU())
        self.hard = Gate(40, nn.Hardswish(), nn.Hardsigmoid())
        self.soft = Gate(40, nn.SiLU(), nn.Sigmoid())
        self.plain = Gate(40, nn.ReLU(), nn.Sigmoid())
        self.between = nn.Sequential(nn.Conv2d(40, 40, 1), nn.SiLU())
        self.far = nn.Sequential(nn.Conv2d(40, 40, 3, padding=1), nn.Hardswish())
        # Groups of eight, of four, and of ten, which no kernel of bytes takes.
        self.eights = nn.Sequential(nn.Conv2d(40, 40, 3, padding=1, groups=5), nn.ReLU())
        self.fours = nn.Sequential(nn.Conv2d(40, 40, 3, padding=1, groups=10), nn.SiLU())
        self.tens = nn.Conv2d(40, 40, 3, padding=1, groups=4)
        self.floats = nn.Conv2d(40, 40, 3, padding=1)
        self.last = nn.Sequential(nn.Conv2d(40, 40, 1), nn.SiLU())
        self.pick = nn.Linear(40, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x``: 1 x 3 x SIDE x SIDE."""
        x = self.first(x)
        x = nn.functional.silu(self.deep(x))
        x = self.between(self.hard(self.wide(x)))
        x = self.far(self.soft(x))
        x = self.tens(self.fours(self.eights(x)))
        y = self.floats(self.plain(x))
        # Wanted as floats and as bytes.
        return self.pick((torch.tanh(y) + self.last(y)).mean((2, 3)))


def make() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The network, quantized with the scales of its one input."""
    torch.manual_seed(11)
    model, x = Gates().eval(), torch.randn(1, 3, SIDE, SIDE)
    # As the weights are drawn each layer makes its numbers smaller, until activations are lines.
    for name, values in model.named_parameters():
        values.data *= 2.5 if name.endswith("weight") else 1.0
    return quantized(model, x)
