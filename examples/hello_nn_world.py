"""HelloNNWorld: flatten, one linear layer, relu; the smallest program with weights.

``python examples/hello_nn_world.py`` writes again what lies beside this file:
``hello_nn_world.mlir`` (decomposed to core ATen), ``hello_nn_world.aten.mlir`` (as it was written)
and ``hello_nn_world.npz`` (inputs ``a0..`` and PyTorch's results ``r0..`` of both).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

BATCH = 16


class HelloNNWorld(nn.Module):
    """A digit classifier of one layer: 28x28 pixels to 10 scores."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.linear = nn.Linear(784, 10)
        self.relu = nn.ReLU()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores, ``BATCH x 10``, of images, ``BATCH x 1 x 28 x 28``."""
        scores: torch.Tensor = self.relu(self.linear(self.flatten(images)))
        return scores


def example_inputs() -> tuple[torch.Tensor]:
    """One batch of noise."""
    return (torch.randn(BATCH, 1, 28, 28),)


def main() -> None:
    """Write the programs and the golden values beside this file."""
    from mlirules.drivers.frontend.torch import Options, import_file

    stem = Path(__file__).with_suffix("")
    name = f"{__file__}:HelloNNWorld"
    import_file(name, f"{stem}.mlir", golden=f"{stem}.npz")
    import_file(name, f"{stem}.aten.mlir", Options(decompose=False))


if __name__ == "__main__":
    main()
