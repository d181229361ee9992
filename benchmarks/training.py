"""Small models trained by torch.compile(backend="mlirules") and by eager PyTorch, step by step.

    python benchmarks/training.py [--only lenet,bert] [--steps 10] [--output training.json]

Each model takes ten steps of SGD and ten of Adam from the same weights on the same batches; some
with batches of several sizes. Told for each: the largest difference of a gradient in the first
step and of a weight after the last, relative to the largest value of its tensor, how many ops ran
compiled, and what ran eagerly. Exit status 1: a model differs by more than 1 %.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import mlirules
from mlirules.api.dynamo.backend import backend, mlirules_backend

LIMIT = 1e-2


class Residual(nn.Module):
    """Two convolutions with normalisation beside a way around them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, padding=1),
        )
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        """Classes."""
        return self.head((x + self.body(x)).relu().mean((2, 3)))


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.gate = nn.Sequential(nn.Linear(8, 2), nn.ReLU(), nn.Linear(2, 8), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> Any:
        """Channels, each by its gate."""
        y = self.conv(x)
        return (y * self.gate(y.mean((2, 3)))[:, :, None, None]).mean((2, 3))


class Recurrent(nn.Module):
    """A cell over a few steps."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> Any:
        """The last state."""
        state: Any = None
        for step in range(x.shape[1]):
            state = self.cell(x[:, step]) if state is None else self.cell(x[:, step], state)
        return state[0] if isinstance(state, tuple) else state


class Attention(nn.Module):
    """Self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        """The mean over positions."""
        return self.attention(x, x, x, need_weights=False)[0].mean(1)


class Gated(nn.Module):
    """RMSNorm and SwiGLU, as in decoders."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(8)
        self.up, self.gate = nn.Linear(8, 16, bias=False), nn.Linear(8, 16, bias=False)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        """The block with its residual."""
        h = self.norm(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Mixer(nn.Module):
    """Products along positions, then along channels."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU())
        self.two = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU())

    def forward(self, x: torch.Tensor) -> Any:
        """Both."""
        return self.two(x + self.one(x.transpose(1, 2)).transpose(1, 2))


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.middle = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        """Logits."""
        return functional.linear(self.middle(self.embedding(x)).tanh(), self.embedding.weight)


class Logits(nn.Module):
    """What a model of transformers answers, without its dictionary."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        """The first result."""
        return self.model(x)[0]


def _transformers(kind: str) -> nn.Module:
    import transformers

    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}
    if kind == "bert":
        config = transformers.BertConfig(
            **size, intermediate_size=32, hidden_dropout_prob=0, attention_probs_dropout_prob=0
        )
        return Logits(transformers.BertModel(config, add_pooling_layer=False))
    if kind == "llama":
        config = transformers.LlamaConfig(**size, intermediate_size=32, num_key_value_heads=1)
        config.use_cache = False
        return Logits(transformers.LlamaForCausalLM(config))
    config = transformers.GPT2Config(
        n_embd=16, n_layer=1, n_head=2, vocab_size=20, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    config.use_cache = False
    return Logits(transformers.GPT2LMHeadModel(config))


def _images(batch: int) -> torch.Tensor:
    return torch.randn(batch, 3, 8, 8)


def _rows(batch: int) -> torch.Tensor:
    return torch.randn(batch, 6, 8)


def _words(batch: int) -> torch.Tensor:
    return torch.randint(0, 12, (batch, 6))


Make = Callable[[], nn.Module]
#: Each with what makes a batch, and the sizes of its batches.
MODELS: dict[str, tuple[Make, Callable[[int], torch.Tensor], tuple[int, ...]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)),
        lambda n: torch.randn(n, 8),
        (4, 6, 3),
    ),
    "batch-norm": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 2)),
        lambda n: torch.randn(n, 8),
        (4, 6, 3),
    ),
    "layer-norm": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()),
        lambda n: torch.randn(n, 8),
        (4, 6, 3),
    ),
    "gated": (Gated, _rows, (2, 3, 4)),
    "tied": (Tied, _words, (2, 3, 4)),
    "lenet": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
        ),
        _images,
        (2,),
    ),
    "residual": (Residual, lambda n: torch.randn(n, 4, 6, 6), (2,)),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.Hardswish(), nn.Conv2d(6, 4, 1)),
        _images,
        (2,),
    ),
    "strided": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.SiLU()), _images, (2,)),
    "group-norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ELU()),
        _images,
        (2,),
    ),
    "conv1d": (
        lambda: nn.Sequential(nn.Conv1d(6, 4, 3), nn.LeakyReLU(), nn.AvgPool1d(2)),
        _rows,
        (2,),
    ),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 2, stride=2), _images, (2,)),
    "gate": (Gate, _images, (2,)),
    "autoencoder": (
        lambda: nn.Sequential(nn.Linear(8, 2), nn.Softplus(), nn.Linear(2, 8), nn.Sigmoid()),
        lambda n: torch.randn(n, 8),
        (4,),
    ),
    "mixer": (Mixer, _rows, (2,)),
    "attention": (Attention, _rows, (2,)),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        _rows,
        (2,),
    ),
    "gru": (lambda: Recurrent(nn.GRUCell(8, 8)), _rows, (2,)),
    "lstm": (lambda: Recurrent(nn.LSTMCell(8, 8)), _rows, (2,)),
    "bert": (lambda: _transformers("bert"), _words, (2,)),
    "gpt2": (lambda: _transformers("gpt2"), _words, (2,)),
    "llama": (lambda: _transformers("llama"), _words, (2,)),
}


def off(found: torch.Tensor | None, wanted: torch.Tensor | None) -> float:
    """The largest difference, relative to the largest value wanted."""
    if wanted is None or found is None:
        return 0.0 if wanted is found else float("inf")
    scale = max(float(wanted.abs().max()), 1e-3) if wanted.numel() else 1.0
    return float((found - wanted).abs().max()) / scale if wanted.numel() else 0.0


def trained(name: str, steps: int) -> dict[str, Any]:
    """One model, by both ways."""
    make, batch, sizes = MODELS[name]
    torch._dynamo.reset()
    backend().reports.clear()
    torch.manual_seed(0)
    start = make().train()
    batches = [batch(sizes[step % len(sizes)]) for step in range(steps)]
    gradient = weight = 0.0
    started = time.perf_counter()
    ours = copy.deepcopy(start)
    compiled = torch.compile(ours, backend=mlirules_backend)
    optimisers: list[Callable[[Any], torch.optim.Optimizer]] = [
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        # An epsilon that keeps gradients of rounding alone from deciding a step.
        lambda p: torch.optim.Adam(p, lr=1e-2, eps=1e-3),
    ]
    for optimiser in optimisers:
        theirs = copy.deepcopy(start)
        with torch.no_grad():
            for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
                p.copy_(q)
            for p, q in zip(ours.buffers(), theirs.buffers(), strict=True):
                p.copy_(q)
        pairs = [(compiled, ours, optimiser(ours.parameters()))]
        pairs.append((theirs, theirs, optimiser(theirs.parameters())))
        for number, x in enumerate(batches):
            for call, _, stepping in pairs:
                stepping.zero_grad()
                call(x).square().mean().backward()
            if number == 0:
                both = zip(ours.parameters(), theirs.parameters(), strict=True)
                gradient = max([gradient, *(off(p.grad, q.grad) for p, q in both)])
            for _, _, stepping in pairs:
                stepping.step()
        state = theirs.state_dict()
        weight = max(
            [weight, *(off(v.float(), state[k].float()) for k, v in ours.state_dict().items())]
        )
    report = mlirules.report()
    return {
        "gradient_off": gradient,
        "weight_off": weight,
        "right": max(gradient, weight) < LIMIT,
        "batches": len(set(sizes)),
        "graphs": len(report.graphs),
        "ops": sum(g.ops for g in report.graphs),
        "compiled_ops": sum(g.compiled_ops for g in report.graphs),
        "eager": sorted({f"{e.op}: {e.reason}" for e in report.eager}),
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for name in given.only.split(","):
        try:
            found[name] = trained(name, given.steps)
        except Exception as error:  # noqa: BLE001 - told, and the next model goes on
            found[name] = {"right": False, "error": f"{type(error).__name__}: {error}"[:500]}
        print(name, json.dumps(found[name]), flush=True)
    right = sum(bool(one["right"]) for one in found.values())
    print(f"{right} of {len(found)} as eager, torch {torch.__version__}, {os.cpu_count()} cores")
    if given.output:
        given.output.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if right == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
