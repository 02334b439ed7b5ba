"""Choosing one of A actions for each of B tasks, with randomness that is handed in."""

from __future__ import annotations

import torch
from torch import Tensor


def argmax_random_ties(values: Tensor, uniform: Tensor) -> Tensor:
    """(B,) index of a largest value (B, A); of equal ones, `uniform` (B, 1) picks."""
    best = values == values.amax(1, keepdim=True)  # (B, A)
    rank = best.cumsum(1)  # 1, 2, … along the tied ones
    pick = (uniform * rank[:, -1:]).long() + 1  # (B, 1)
    return ((rank == pick) & best).int().argmax(1)


def sample(logits: Tensor, uniform: Tensor) -> Tensor:
    """(B,) draw from softmax(logits), logits (B, A), by inverse CDF on `uniform` (B, 1)."""
    cdf = torch.softmax(logits, 1).cumsum(1)  # (B, A)
    return (uniform >= cdf[:, :-1]).sum(1)
