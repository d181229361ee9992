"""ToyModel: transpose, f16 matmul, cast to f32, matrix-vector product, relu.

``python examples/toy_model.py`` writes again what lies beside this file: ``toy_model.mlir``
(decomposed to core ATen), ``toy_model.aten.mlir`` (as it was written) and ``toy_model.npz``.

The inputs are small multiples of 1/2 and 1/8, so that every product and every partial sum is exact
in f16 and in f32, in whatever order it is added up: PyTorch's results are the only right ones, to
the bit, and no tolerance can hide a wrong rewrite. They repeat with the period of a prime that
divides no dimension, so that rows differ while the golden file stays small.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

M, K, N = 1024, 512, 2048
PERIOD = 1021


class ToyModel(nn.Module):
    """``relu((a^T b) v)``, the matmul in f16, the rest in f32."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """``M`` values of a: ``K x M`` f16, b: ``K x N`` f16 and v: ``N`` f32."""
        product = torch.mm(a.transpose(0, 1), b)
        return torch.relu(torch.mv(product.to(torch.float32), v))


def exact(*shape: int, steps: int, unit: float, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of multiples of ``unit`` from ``-steps`` to ``steps``, repeating after PERIOD."""
    drawn = torch.randint(-steps, steps + 1, (PERIOD,)) * unit
    count = torch.Size(shape).numel()
    return drawn.repeat(-(-count // PERIOD))[:count].reshape(shape).to(dtype)


def example_inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """a, b and v."""
    return (
        exact(K, M, steps=2, unit=0.5, dtype=torch.float16),
        exact(K, N, steps=2, unit=0.5, dtype=torch.float16),
        exact(N, steps=8, unit=0.125, dtype=torch.float32),
    )


def main() -> None:
    """Write the programs and the golden values beside this file."""
    from mlirules.drivers.frontend.torch import Options, import_file

    stem = Path(__file__).with_suffix("")
    name = f"{__file__}:ToyModel"
    import_file(name, f"{stem}.mlir", golden=f"{stem}.npz")
    import_file(name, f"{stem}.aten.mlir", Options(decompose=False))


if __name__ == "__main__":
    main()
