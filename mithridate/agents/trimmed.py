"""Rewards in ascending order, and sums of those in the middle, for trimmed means."""

from __future__ import annotations

import torch
from torch import Tensor

from mithridate.native import kernels


def insert(
    ordered: Tensor, actions: Tensor, rewards: Tensor, counts: Tensor, drop: Tensor, steps: int
) -> Tensor:
    """(B,): put a reward of one arm of each task (B,) in its place among those before it, in
    `ordered` (B, A, T), which is padded with infinity; what the arm's rewards add up to without the
    `drop` smallest and largest. `counts` (B,) are the arm's, this one included; nobody has more
    than `steps` rewards. Of more than T, the largest are lost."""
    if ordered.device.type == "cpu" and kernels() is not None:
        total = torch.empty_like(rewards)
        arms, room = ordered.shape[1:]
        words = (ordered, actions, rewards.contiguous(), counts.contiguous(), drop.contiguous())
        kernels().insert_sorted(*words, total, arms, room, 1)  # too little to share out
        return total
    rows = torch.arange(len(actions), device=ordered.device)
    used = min(steps, ordered.shape[2])
    row = ordered[rows, actions, :used]  # (B, T)
    place = torch.searchsorted(row, rewards[:, None])  # (B, 1)
    places = torch.arange(used, device=ordered.device)
    row = torch.where(places < place, row, row.roll(1, 1))
    row = torch.where(places == place, rewards[:, None], row)
    ordered[rows, actions, :used] = row
    kept = (places >= drop[:, None]) & (places < (counts - drop)[:, None])
    return torch.where(kept, row, 0.0).sum(1)
