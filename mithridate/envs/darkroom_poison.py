"""Poisoned contexts of rooms without an attacker: offsets of −1 and +1, drawn at random.

The mean offsets of a task, for each state and action, are

- dense: every state and action at random, as many as a random share says;
- by cell: some cells, and every way into them, are worth one more or one less;
- against the goals: the best goal looks worse, the lesser better, or an empty cell like a goal, in
  any combination;
- both of the last two, on top of a thin dense attack;

brought into the budget, as an attacker's are, and then weakened at random in half of the tasks. In
two thirds of the tasks with a budget there is noise besides, as of attackers that have not learned
much: some of the poisoned steps, or all of them, have an offset of −1, 0 or +1 with equal
probability.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mithridate.budget import project
from mithridate.rng import Rng
from mithridate.types import Poison


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


class RoomPoison:
    """What is added to the rewards of contexts of `length` steps, given what cells are worth (B, S)
    and where actions lead (S, A). In a share of the contexts the offsets are others from some
    moment on."""

    def __init__(self, rewards: Tensor, after: Tensor, length: int, poison: Poison) -> None:
        batch, rng = len(rewards), poison.rng
        draw = rng.child("steps").generator()

        def offsets(name: str) -> np.ndarray:  # type: ignore[type-arg]
            table = random_offsets(rewards, after, poison.budget, rng.child("offsets", name))
            return table.cpu().numpy()

        self._tables = np.stack([offsets("first"), offsets("second")])  # (2, B, S, A)
        changes = draw.random(batch) < poison.switching
        moment = np.where(changes, draw.integers(0, length, batch), length)
        self._later = (np.arange(length) >= moment[:, None]).astype(int)  # (B, T)
        uniforms = draw.random((2, batch, length), dtype=np.float32)
        self._hit = uniforms[0] < poison.eps.cpu().numpy()[:, None]  # (B, T)
        self._strength = uniforms[1]
        self._rows = np.arange(batch)[:, None]
        kind = draw.random((batch, 1))
        share = np.where(kind < 1 / 3, 0.0, np.where(kind > 4 / 5, 1.0, draw.random((batch, 1))))
        some = poison.budget.cpu().numpy()[:, None] > 0
        self._noisy = (draw.random((batch, length)) < share) & some
        self._noise = draw.integers(-1, 2, (batch, length))

    def __call__(self, states: np.ndarray, actions: np.ndarray, first: int = 0) -> np.ndarray:  # type: ignore[type-arg]
        """(B, K): the offsets −1, 0 and +1 of K steps from `first` on."""
        steps = slice(first, first + states.shape[1])
        mean = self._tables[self._later[:, steps], self._rows, states, actions]
        aimed = (self._strength[:, steps] < np.abs(mean)) * np.sign(mean)
        offsets = np.where(self._noisy[:, steps], self._noise[:, steps], aimed)
        result: np.ndarray = (self._hit[:, steps] * offsets).astype(np.float32)  # type: ignore[type-arg]
        return result
