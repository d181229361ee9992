"""Attention as PyTorch programs spell it; the .mlir files beside this are what import makes of it.

mlirules import tests/attention/spellings.py:sdpa -o tests/attention/sdpa.core.mlir
mlirules import tests/attention/spellings.py:sdpa --no-decompose -o tests/attention/sdpa.aten.mlir
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

BATCH, HEADS, SHARED, LENGTH, WIDTH = 1, 8, 2, 512, 64
ROOT = math.sqrt(WIDTH)
INF = float("inf")
LEAST = torch.finfo(torch.float32).min


class Spelling(nn.Module):
    """One function of queries, keys, values and perhaps a mask (``added`` or ``chosen``)."""

    def __init__(self, compute: Callable[..., Tensor], mask: str, shared: bool) -> None:
        super().__init__()
        self.compute, self.mask, self.shared = compute, mask, shared

    def forward(self, *inputs: Tensor) -> Tensor:
        """What the spelling computes."""
        return self.compute(*inputs)

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Random tensors; a chosen mask hides later keys."""
        keys = (BATCH, SHARED if self.shared else HEADS, LENGTH, WIDTH)
        inputs = [torch.randn(BATCH, HEADS, LENGTH, WIDTH), torch.randn(keys), torch.randn(keys)]
        if self.mask == "added":
            inputs.append(torch.randn(BATCH, 1, LENGTH, LENGTH))
        if self.mask == "chosen":
            inputs.append(torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())
        return tuple(inputs)


SPELLINGS: dict[str, Spelling] = {}


def spelling(
    *, mask: str = "", shared: bool = False
) -> Callable[[Callable[..., Tensor]], Spelling]:
    """Make a spelling of a function, by its name."""

    def made(compute: Callable[..., Tensor]) -> Spelling:
        SPELLINGS[compute.__name__] = Spelling(compute, mask, shared)
        return SPELLINGS[compute.__name__]

    return made


def interleaved(x: Tensor) -> Tensor:
    """Each head of keys for its group, by PyTorch's op."""
    return x.repeat_interleave(HEADS // SHARED, dim=1)


def expanded(x: Tensor) -> Tensor:
    """Each head of keys for its group, by a new dim."""
    batch, heads, length, width = x.shape
    group = HEADS // heads
    x = x[:, :, None, :, :].expand(batch, heads, group, length, width)
    return x.reshape(batch, heads * group, length, width)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


@spelling()
def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v)


@spelling()
def sdpa_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@spelling(mask="added")
def sdpa_mask(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=m)


@spelling(mask="chosen")
def sdpa_bool_mask(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=m)


@spelling(shared=True)
def sdpa_gqa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


@spelling(shared=True)
def sdpa_interleaved(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(
        q, interleaved(k), interleaved(v), is_causal=True
    )


@spelling(shared=True)
def sdpa_expanded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, expanded(k), expanded(v), is_causal=True)


@spelling()
def scores_divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(q @ k.transpose(2, 3) / ROOT) @ v


@spelling()
def scores_multiplied(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(q @ k.transpose(-2, -1) * WIDTH**-0.5) @ v


@spelling()
def queries_scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax((q * WIDTH**-0.5) @ k.transpose(-2, -1)) @ v


@spelling()
def both_scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax((q * WIDTH**-0.25) @ (k.transpose(-2, -1) * WIDTH**-0.25)) @ v


@spelling()
def scale_in_a_tensor(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(q @ k.transpose(-2, -1) / torch.full([], ROOT)) @ v


@spelling()
def three_dimensional(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.reshape(BATCH * HEADS, -1, WIDTH) for x in (q, k, v))
    weights = softmax(torch.bmm(q, k.transpose(1, 2)) / ROOT)
    return torch.bmm(weights, v).view(BATCH, HEADS, LENGTH, WIDTH)


@spelling()
def scaled_by_baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.reshape(BATCH * HEADS, -1, WIDTH) for x in (q, k, v))
    none = torch.zeros(BATCH * HEADS, LENGTH, LENGTH)
    scores = torch.baddbmm(none, q, k.transpose(1, 2), beta=0, alpha=WIDTH**-0.5)
    return torch.bmm(softmax(scores), v).view(BATCH, HEADS, LENGTH, WIDTH)


@spelling()
def dropout_at_inference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = softmax(q @ k.transpose(2, 3) / ROOT)
    return functional.dropout(weights, 0.1, training=False) @ v


@spelling(mask="added", shared=True)
def llama(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = q @ expanded(k).transpose(2, 3) / ROOT + m
    weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return weights @ expanded(v)


@spelling(mask="added", shared=True)
def llama_type_as(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = q @ interleaved(k).transpose(2, 3) * WIDTH**-0.5 + m
    return softmax(scores.float()).type_as(q) @ interleaved(v)


@spelling(shared=True)
def causal_added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = torch.full((LENGTH, LENGTH), -INF).triu(1)
    return softmax(q @ interleaved(k).transpose(2, 3) / ROOT + hidden) @ interleaved(v)


@spelling()
def causal_filled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = torch.tril(torch.ones(LENGTH, LENGTH)) == 0
    return softmax((q @ k.transpose(2, 3) / ROOT).masked_fill(hidden, -INF)) @ v


@spelling()
def causal_filled_bool(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)
    return softmax((q @ k.transpose(2, 3) / ROOT).masked_fill(hidden, -INF)) @ v


@spelling(mask="chosen")
def filled(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return softmax((q @ k.transpose(2, 3) / ROOT).masked_fill(~m, -INF)) @ v


@spelling(mask="chosen")
def filled_least(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return softmax((q @ k.transpose(2, 3) / ROOT).masked_fill(m == 0, LEAST)) @ v


@spelling(mask="chosen")
def where(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return softmax(torch.where(m, q @ k.transpose(2, 3) / ROOT, -INF)) @ v


@spelling(mask="chosen")
def where_not(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return softmax(torch.where(~m, -INF, q @ k.transpose(2, 3) / ROOT)) @ v


@spelling(mask="chosen")
def where_full(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / torch.full([], ROOT)
    weights = softmax(torch.where(m[None, None], scores, torch.full([], LEAST)))
    return weights.type(v.dtype) @ v


@spelling(mask="chosen")
def bert(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return softmax(q @ k.transpose(-1, -2) / ROOT + (1.0 - m.float()) * LEAST) @ v


globals().update(SPELLINGS)
