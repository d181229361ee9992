"""A custom op, registered with PyTorch, and a model that uses it."""

import torch
from torch import Tensor, nn


@torch.library.custom_op("mylib::soft_clip", mutates_args=())
def soft_clip(x: Tensor, limit: float) -> Tensor:
    """`limit * tanh(x / limit)`: as `x` near 0, and never beyond `limit`."""
    return limit * torch.tanh(x / limit)


@soft_clip.register_fake
def _(x: Tensor, limit: float) -> Tensor:  # noqa: ARG001 - the op's own signature
    return torch.empty_like(x)


class Model(nn.Module):
    """A linear layer, clipped."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        """The clipped layer, its negative part cut off."""
        return torch.relu(soft_clip(self.linear(x), 3.0))


example_inputs = (torch.randn(2, 6),)
