"""Poisoned contexts of rooms without an attacker: offsets of −1 and +1, drawn at random.

The mean offsets of a task, for each state and action, are

- dense: every state and action at random, as many as a random share says;
- by cell: some cells, and every way into them, are worth one more or one less;
- against the goals: the best goal looks worse, the lesser better, or an empty cell like a goal, in
  any combination;
- both of the last two, on top of a thin dense attack;

brought into the budget, as an attacker's are, and then weakened at random in half of the tasks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mithridate.attackers.budget import project
from mithridate.rng import Rng
from mithridate.types import Contexts


def random_offsets(rewards: Tensor, after: Tensor, budget: Tensor, rng: Rng) -> Tensor:
    """(B, S, A): mean offsets in [−1, 1] with norm up to `budget` (B,), given what cells are worth
    (B, S) and where actions lead (S, A)."""
    draw = rng.generator()
    batch, cells = rewards.shape
    worth = rewards.cpu().numpy()
    ways = after.cpu().numpy()
    shape = (batch, *ways.shape)

    def thin(count: tuple[int, ...], share: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        """−1 and +1 in a share of the places, 0 elsewhere."""
        return draw.choice([-1.0, 1.0], count) * (draw.random(count) < share)

    dense = thin(shape, draw.random((batch, 1, 1)))
    by_cell = thin((batch, cells), draw.random((batch, 1)))
    goals = np.zeros((batch, cells))
    goals -= (worth == 2) * (draw.random((batch, 1)) < 0.7)
    goals += (worth == 1) * (draw.random((batch, 1)) < 0.5)
    fakes = draw.integers(0, 4, (batch, 1))
    empty = np.where(worth == 0, draw.random((batch, cells)), np.inf)
    goals += (empty.argsort(1).argsort(1) < fakes) & (worth == 0)
    mixed = np.where(draw.random((batch, 1, 1)) < 0.5, goals[:, ways], by_cell[:, ways])
    some = thin(shape, 0.5 * draw.random((batch, 1, 1)))
    mixed = np.where(mixed == 0, some, mixed)
    kinds = np.stack([dense, by_cell[:, ways], goals[:, ways], mixed])
    offsets = kinds[draw.integers(0, len(kinds), batch), np.arange(batch)]
    offsets *= np.where(draw.random((batch, 1, 1)) < 0.5, 1.0, draw.random((batch, 1, 1)))
    return project(torch.from_numpy(offsets.astype(np.float32)), budget).to(rewards.device)


def poisoned(
    contexts: Contexts,
    rewards: Tensor,
    after: Tensor,
    *,
    eps: Tensor,
    budget: Tensor,
    switching: float,
    rng: Rng,
) -> Contexts:
    """`contexts` with a share eps (B,) of the rewards corrupted. In a share `switching` of them the
    offsets are others from some moment on."""
    assert contexts.states is not None
    batch, length = contexts.rewards.shape
    device = contexts.rewards.device
    draw = rng.child("steps").generator()
    rows = torch.arange(batch, device=device)[:, None]

    def offsets(name: str) -> Tensor:
        table = random_offsets(rewards, after, budget, rng.child("offsets", name))
        return table[rows, contexts.states, contexts.actions]  # (B, T)

    mean = offsets("first")
    if switching:
        moment = np.where(draw.random(batch) < switching, draw.integers(0, length, batch), length)
        later = torch.arange(length, device=device) >= torch.from_numpy(moment).to(device)[:, None]
        mean = torch.where(later, offsets("second"), mean)
    uniforms = torch.from_numpy(draw.random((2, batch, length), dtype=np.float32)).to(device)
    hit = (uniforms[0] < eps[:, None]) & (uniforms[1] < mean.abs())
    return replace(contexts, rewards=contexts.rewards + hit * mean.sign())
