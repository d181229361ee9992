"""A Llama-like decoder with random weights: RMSNorm, rotary positions, causal attention, SwiGLU.

Attention is spelt out (matmul, scale, mask, softmax, matmul) and heads share keys and values in
groups. ``mlirules import examples/models/llama_decoder.py:llama_decoder -o llama.mlir``;
``--arg size=small`` for a tiny one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    """Hidden width, query heads, key and value heads, layers, tokens, vocabulary, sequences."""

    hidden: int
    heads: int
    shared_heads: int
    layers: int
    tokens: int
    vocabulary: int
    batch: int = 1


SIZES = {"full": Size(512, 8, 2, 4, 128, 2048), "small": Size(32, 4, 2, 2, 16, 64)}


class RMSNorm(nn.Module):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension."""

    def __init__(self, hidden: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden) + 0.1 * torch.randn(hidden))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape that ends in ``hidden``."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions: each pair ``(x[i], x[i + half])`` turned by its angle."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class DecoderLayer(nn.Module):
    """Causal self-attention and SwiGLU, each behind RMSNorm and added to what came in."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.width = size.hidden // size.heads
        inner = 8 * size.hidden // 3 // 8 * 8
        self.norm1 = RMSNorm(size.hidden)
        self.query = nn.Linear(size.hidden, size.hidden, bias=False)
        self.key = nn.Linear(size.hidden, size.shared_heads * self.width, bias=False)
        self.value = nn.Linear(size.hidden, size.shared_heads * self.width, bias=False)
        self.out = nn.Linear(size.hidden, size.hidden, bias=False)
        self.norm2 = RMSNorm(size.hidden)
        self.gate = nn.Linear(size.hidden, inner, bias=False)
        self.up = nn.Linear(size.hidden, inner, bias=False)
        self.down = nn.Linear(inner, size.hidden, bias=False)

    def attend(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Grouped-query attention of ``batch x tokens x hidden``."""
        batch, tokens, hidden = x.shape
        query, key, value = (
            linear(x).view(batch, tokens, -1, self.width).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        group = self.size.heads // self.size.shared_heads
        key = key.repeat_interleave(group, dim=1)
        value = value.repeat_interleave(group, dim=1)
        scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(self.width)
        hidden_future = torch.full((tokens, tokens), float("-inf")).triu(1)
        weights = torch.softmax(scores + hidden_future, dim=-1)
        mixed = torch.matmul(weights, value).transpose(1, 2).reshape(batch, tokens, hidden)
        out: torch.Tensor = self.out(mixed)
        return out

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """``batch x tokens x hidden`` to the same."""
        x = x + self.attend(self.norm1(x), cos, sin)
        y = self.norm2(x)
        out: torch.Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return out


class LlamaDecoder(nn.Module):
    """Embedding, decoder layers, RMSNorm, scores of the next token."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        width = size.hidden // size.heads
        self.words = nn.Embedding(size.vocabulary, size.hidden)
        self.layers = nn.ModuleList(DecoderLayer(size) for _ in range(size.layers))
        self.norm = RMSNorm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocabulary, bias=False)
        frequency = 10000.0 ** (-torch.arange(0, width, 2) / width)
        angle = torch.outer(torch.arange(size.tokens).float(), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores, ``batch x tokens x vocabulary``."""
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        scores: torch.Tensor = self.head(self.norm(x))
        return scores

    def example_inputs(self) -> tuple[torch.Tensor]:
        """Random tokens."""
        size = self.size
        return (torch.randint(0, size.vocabulary, (size.batch, size.tokens)),)


def llama_decoder(size: str = "full") -> LlamaDecoder:
    """The model in one of SIZES."""
    return LlamaDecoder(SIZES[size])
