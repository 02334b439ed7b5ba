"""Poisoned contexts without an attacker: pretraining contexts, corrupted by random offsets.

They cost no rollouts, and show the model far more kinds of attack than a population of learned
attackers does. The offsets of a task are

- dense, in two tasks of five: a random direction in arm space (attackers that learned against
  algorithms for independent arms look like this);
- sparse: one or two arms only;
- opposed: against the arms' values, so that good arms look bad and bad ones good;
- a pair: up on one of the worse arms, down on the best, in a random proportion;

these three in one of five each, with a length up to the budget, mostly close to it (budget ·
u^(1/3), u uniform: attackers spend what they have), and half of the time a spread per arm as well.
An environment may draw some of its offsets in another way (`on_good_arms`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mithridate.rng import Rng
from mithridate.types import Contexts

DrawOffsets = Callable[[Tensor, Tensor, Rng], Tensor]
"""(B, A) offsets, given the arms' values (B, A) and the budgets (B,)."""
KINDS = (0.4, 0.2, 0.2, 0.2)
"""How probable dense, sparse, opposed and paired offsets are."""


def random_offsets(values: Tensor, budget: Tensor, rng: Rng) -> Tensor:
    """(B, A) offsets with norm up to `budget` (B,), given the arms' values (B, A)."""
    draw = rng.generator()
    batch, arms = values.shape
    means = values.cpu().numpy()
    rows = np.arange(batch)
    dense = draw.standard_normal((batch, arms))
    sparse = dense * (draw.random((batch, arms)).argsort(1) < draw.integers(1, 3, (batch, 1)))
    opposed = means.mean(1, keepdims=True) - means + 0.1 * dense
    pair = np.zeros((batch, arms))
    angle = draw.random(batch) * np.pi / 2
    rank = means.argsort(1)
    worse = rank[rows, draw.integers(0, max(1, arms - 1), batch)]
    pair[rows, worse] = np.cos(angle)
    pair[rows, rank[:, -1]] -= np.sin(angle)
    kind = draw.choice(len(KINDS), batch, p=KINDS)
    direction = np.stack([dense, sparse, opposed, pair])[kind, rows]  # (B, A)
    return _scaled(direction, budget, draw.random((batch, 1)) ** (1 / 3))


def on_good_arms(values: Tensor, budget: Tensor, rng: Rng) -> Tensor:
    """Offsets on one to three arms, most often good ones, up or down, with nearly all of the
    budget: what attackers end with against algorithms that soon know which arms may be good."""
    draw = rng.generator()
    batch, arms = values.shape
    means = values.cpu().numpy()
    spread = np.maximum(means.std(1, keepdims=True), 1e-12)
    rank = (-means / spread - draw.gumbel(size=(batch, arms))).argsort(1).argsort(1)
    chosen = rank < draw.integers(1, 4, (batch, 1))
    direction = draw.standard_normal((batch, arms)) * chosen
    return _scaled(direction, budget, draw.random((batch, 1)) ** (1 / 10))


def _scaled(direction: np.ndarray[Any, Any], budget: Tensor, share: np.ndarray[Any, Any]) -> Tensor:
    """`direction` (B, A) with a norm that is a `share` (B, 1) of the budget (B,)."""
    length = budget.double().cpu().numpy()[:, None] * share
    unit = direction / np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-12)
    return torch.from_numpy((length * unit).astype(np.float32)).to(budget.device)


def poisoned(
    contexts: Contexts,
    values: Tensor,
    *,
    eps: Tensor,
    budget: Tensor,
    spread_budget: Tensor,
    rng: Rng,
    switching: float = 0.0,
    draw_offsets: DrawOffsets = random_offsets,
) -> Contexts:
    """`contexts` with a share eps (B,) of the rewards corrupted by random offsets and spreads, each
    within its own budget (B,). In a share `switching` of them the offsets change on the way, or
    follow the rewards."""
    offsets = draw_offsets(values, budget, rng.child("offsets"))
    draw = rng.child("spreads").generator()
    spreads = np.abs(draw.standard_normal(tuple(values.shape)))
    most = spread_budget.double().cpu().numpy()[:, None]
    spreads *= most * draw.random((len(values), 1)) * (draw.random((len(values), 1)) < 0.5)
    length = np.linalg.norm(spreads, axis=1, keepdims=True)
    spreads /= np.where(most > 0, np.maximum(length, most) / np.where(most > 0, most, 1.0), 1.0)
    shape = tuple(contexts.rewards.shape)
    device = contexts.rewards.device
    hit = torch.from_numpy(draw.random(shape, dtype=np.float32)).to(device) < eps[:, None]
    noise = torch.from_numpy(draw.standard_normal(shape, dtype=np.float32)).to(device)
    std = torch.from_numpy(spreads.astype(np.float32)).to(device)
    shift = offsets.gather(1, contexts.actions)
    if switching:
        shift = _adapted(
            shift, contexts, values, budget, switching, rng.child("switch"), draw_offsets
        )
    shift = shift + std.gather(1, contexts.actions) * noise
    return replace(contexts, rewards=contexts.rewards + hit * shift)


def _adapted(
    shift: Tensor, contexts: Contexts, values: Tensor, budget: Tensor, share: float, rng: Rng,
    draw_offsets: DrawOffsets,
) -> Tensor:  # fmt: skip
    """Offsets (B, T) that, in a share of the contexts, are what an adaptive attacker might do:
    half of the time they follow the rewards from the beginning, and they may be others from one or
    two moments on: a fresh attack, one that follows the rewards, or none."""
    batch, length = shift.shape
    draw = rng.generator()
    time = torch.arange(length, device=shift.device)
    changes = draw.random(batch) < share
    for number in range(3):
        fresh = draw_offsets(values, budget, rng.child("offsets", number))
        choices = torch.stack(
            [
                _following(contexts.rewards, values, budget, draw),
                fresh.gather(1, contexts.actions),
                torch.zeros_like(shift),
            ]
        )
        if number == 0:
            kind, moment = np.zeros(batch, dtype=int), np.zeros(batch)
        else:
            # Early moments are as likely as late ones on a scale of ratios: attackers act early.
            kind, moment = draw.integers(0, 3, batch), length * 10 ** (-2 * draw.random(batch))
        moment = np.where(changes & (draw.random(batch) < 0.5), moment, length)
        later = time >= torch.from_numpy(moment).to(shift.device)[:, None]
        shift = torch.where(later, choices[torch.from_numpy(kind), torch.arange(batch)], shift)
    return shift


def _following(
    rewards: Tensor, values: Tensor, budget: Tensor, draw: np.random.Generator
) -> Tensor:
    """(B, T): offsets that pull rewards towards, and beyond, a value near the arms' average."""
    slope, offset = draw.random((2, len(values), 1), dtype=np.float32)
    centre = values.mean(1, keepdim=True) + torch.from_numpy(offset - 0.5).to(values.device)
    strength = torch.from_numpy(0.5 + 3.5 * slope).to(values.device)
    return (strength * (centre - rewards)).clamp(-budget[:, None], budget[:, None])
