"""Sums of rewards to come."""

from __future__ import annotations

import torch
from torch import Tensor


def discounted_returns(rewards: Tensor, discount: float) -> Tensor:
    """(B, T): what is earned from each step on, the step included; rewards (B, T)."""
    returns = torch.empty_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        running = rewards[:, t] + discount * running
        returns[:, t] = running
    return returns


def returns_after(rewards: Tensor, discount: float) -> Tensor:
    """The same from the next step on, without the step itself."""
    return torch.cat(
        [discounted_returns(rewards, discount)[:, 1:], rewards.new_zeros(len(rewards), 1)], 1
    )
