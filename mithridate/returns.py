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


def less_than_the_others(rewards: Tensor, discount: float, episodes: int) -> Tensor:
    """(B, T): how much less was earned after each step than after the same step of the task's other
    episodes, on average; rewards (B, T), with a task's episodes one after the other. In units of
    the standard deviation of all of them."""
    after = returns_after(rewards, discount).view(-1, episodes, rewards.shape[1])
    others = (after.sum(1, keepdim=True) - after) / (episodes - 1)
    lost = (others - after).view(rewards.shape)
    return lost / lost.std(correction=0).clamp(min=1e-6)
