"""A BERT-like encoder with random weights: embeddings, post-norm attention blocks, a pooler.

Attention is ``scaled_dot_product_attention`` with a padding mask.
``mlirules import examples/models/bert_encoder.py:bert_encoder -o bert.mlir --golden bert.npz``;
``--arg size=small`` for a tiny one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    """Hidden width, attention heads, layers, tokens in a sequence, vocabulary, sequences."""

    hidden: int
    heads: int
    layers: int
    tokens: int
    vocabulary: int
    batch: int = 2


SIZES = {"full": Size(256, 4, 4, 128, 2048), "small": Size(32, 2, 2, 16, 64)}


class EncoderLayer(nn.Module):
    """Self-attention and a two-layer perceptron, each followed by add and layer norm."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.query = nn.Linear(size.hidden, size.hidden)
        self.key = nn.Linear(size.hidden, size.hidden)
        self.value = nn.Linear(size.hidden, size.hidden)
        self.out = nn.Linear(size.hidden, size.hidden)
        self.norm1 = nn.LayerNorm(size.hidden, eps=1e-12)
        self.up = nn.Linear(size.hidden, 4 * size.hidden)
        self.down = nn.Linear(4 * size.hidden, size.hidden)
        self.norm2 = nn.LayerNorm(size.hidden, eps=1e-12)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """``batch x tokens x hidden`` to the same; mask is added to the attention scores."""
        batch, tokens, hidden = x.shape

        def split(y: torch.Tensor) -> torch.Tensor:
            return y.view(batch, tokens, self.heads, hidden // self.heads).transpose(1, 2)

        mixed = functional.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(x)), split(self.value(x)), attn_mask=mask
        )
        attended = self.out(mixed.transpose(1, 2).reshape(batch, tokens, hidden))
        x = self.norm1(x + attended)
        out: torch.Tensor = self.norm2(x + self.down(functional.gelu(self.up(x))))
        return out


class BertEncoder(nn.Module):
    """Token, position and segment embeddings, encoder layers, a tanh pooler."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.words = nn.Embedding(size.vocabulary, size.hidden)
        self.positions = nn.Embedding(size.tokens, size.hidden)
        self.segments = nn.Embedding(2, size.hidden)
        self.norm = nn.LayerNorm(size.hidden, eps=1e-12)
        self.layers = nn.ModuleList(EncoderLayer(size) for _ in range(size.layers))
        self.pooler = nn.Linear(size.hidden, size.hidden)

    def forward(
        self, tokens: torch.Tensor, segments: torch.Tensor, present: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All hidden states and the pooled first one; present is 1 for tokens, 0 for padding."""
        positions = torch.arange(tokens.shape[1])
        x = self.words(tokens) + self.positions(positions) + self.segments(segments)
        x = self.norm(x)
        mask = (1.0 - present[:, None, None, :].to(x.dtype)) * -1e4
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))

    def example_inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Random tokens; the last quarter of each sequence but the first is padding."""
        size = self.size
        shape = (size.batch, size.tokens)
        present = torch.ones(shape, dtype=torch.int64)
        present[1:, -(size.tokens // 4) :] = 0
        return torch.randint(0, size.vocabulary, shape), torch.randint(0, 2, shape), present


def bert_encoder(size: str = "full") -> BertEncoder:
    """The model in one of SIZES."""
    return BertEncoder(SIZES[size])
