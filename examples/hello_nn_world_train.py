"""One training step of HelloNNWorld as one program: loss and gradients, weights as arguments.

``python examples/hello_nn_world_train.py`` writes again what lies beside this file:
``hello_nn_world_train.mlir`` (PyTorch's own backward ops), ``hello_nn_world_train.core.mlir`` (the
same decomposed to core ATen), ``hello_nn_world_train.npz`` (inputs and PyTorch's results) and
``hello_nn_world_train_sgd.npz``: ``losses`` before each of ten steps of plain gradient descent from
those inputs with the learning rate ``rate``, and the ``weight`` and ``bias`` they end with.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

BATCH, PIXELS, CLASSES = 16, 784, 10
STEPS, RATE = 10, 0.1


def loss_of(
    images: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """The mean cross-entropy of ``relu(linear(flatten(images)))``."""
    scores = torch.relu(functional.linear(torch.flatten(images, 1), weight, bias))
    return functional.cross_entropy(scores, labels)


def step(
    images: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The loss and its gradients with respect to weight and bias."""
    with torch.enable_grad():
        weight = weight.detach().requires_grad_()
        bias = bias.detach().requires_grad_()
        loss = loss_of(images, labels, weight, bias)
        weight_gradient, bias_gradient = torch.autograd.grad(loss, (weight, bias))
    return loss.detach(), weight_gradient, bias_gradient


def example_inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """One batch of noise with labels, and a fresh linear layer's weight and bias."""
    images = torch.randn(BATCH, 1, 28, 28)
    labels = torch.randint(0, CLASSES, (BATCH,))
    linear = nn.Linear(PIXELS, CLASSES)
    return images, labels, linear.weight.detach(), linear.bias.detach()


def hello_nn_world_train() -> nn.Module:
    """:func:`step` as a graph of ATen ops: autograd has run while it was traced."""
    graph_module = make_fx(step)(*example_inputs())
    # Autograd leaves detach behind; once the gradients are spelt out it means nothing.
    for node in list(graph_module.graph.nodes):
        if node.target == torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            graph_module.graph.erase_node(node)
    graph_module.recompile()
    return graph_module


def descend() -> dict[str, npt.NDArray[np.float32]]:
    """Ten steps of gradient descent in eager PyTorch."""
    torch.manual_seed(0)
    images, labels, weight, bias = example_inputs()
    losses = []
    for _ in range(STEPS):
        loss, weight_gradient, bias_gradient = step(images, labels, weight, bias)
        losses.append(loss.numpy())
        weight, bias = weight - RATE * weight_gradient, bias - RATE * bias_gradient
    return {
        "losses": np.stack(losses),
        "rate": np.asarray(RATE, np.float32),
        "weight": weight.numpy(),
        "bias": bias.numpy(),
    }


def main() -> None:
    """Write the programs and the golden values beside this file."""
    from mlirules.drivers.frontend.torch import Options, import_file
    from mlirules.drivers.iree import npz

    stem = Path(__file__).with_suffix("")
    name = f"{__file__}:hello_nn_world_train"
    import_file(name, f"{stem}.mlir", Options(decompose=False), golden=f"{stem}.npz")
    import_file(name, f"{stem}.core.mlir")
    npz.write(f"{stem}_sgd.npz", descend())


if __name__ == "__main__":
    main()
