"""The two attention operations of the library. The versions here are the definition.

- `causal`: full causal self-attention, for training.
- `decode`: one new position against the cache, for rollouts.

The native kernels must equal them; `mithridate.model.dispatch` chooses.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mithridate.model import dispatch


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax(q kᵀ / √d) v under a causal mask; all of shape (B, heads, T, d)."""
    if dispatch.attention_is_native(q):
        return dispatch.NativeCausalAttention.apply(q, k, v)  # type: ignore[no-untyped-call,no-any-return]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def decode(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query per sequence against all n cached positions.

    q: (B, heads, d); keys, values: (B, heads, d, n), positions last. Returns (B, heads, d).
    """
    scores = (q.unsqueeze(2) @ keys).squeeze(2) / math.sqrt(q.shape[-1])  # (B, heads, n)
    weights = torch.softmax(scores, dim=-1)
    return (values @ weights.unsqueeze(3)).squeeze(3)
