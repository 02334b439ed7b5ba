"""Attacks on rooms with goals that need no learning: they know what each cell is worth.

An offset of −1 or +1 is put on every way into a cell (each key, here a cell, and action
that lead there), and mixed with no offset as much as the budget asks for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mithridate.attackers.offset_tables import OffsetTable, certain
from mithridate.config import IN_ROOMS, Config, NonNegativeFloat
from mithridate.errors import UserError
from mithridate.registry import ATTACKERS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Tasks


class RoomConfig(Config):
    budget: NonNegativeFloat = IN_ROOMS
    """Bound B on the norm of the mean offsets."""


class RoomAttacker(OffsetTable):
    """Subclasses say what is added, −1, 0 or 1, for entering each cell: (B, S)."""

    Config = RoomConfig
    registered_name: str

    def __init__(self, config: RoomConfig | None = None) -> None:
        self.config = config or RoomConfig()
        self.budget = self.config.budget

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> Tensor:
        rewards: Tensor | None = getattr(tasks, "rewards", None)
        after: Tensor | None = getattr(tasks, "after", None)
        if rewards is None or after is None:
            raise UserError(f"attacker '{self.registered_name}' needs a room with goals")
        return certain(self.cells(rewards, rng)[:, after])

    def cells(self, rewards: Tensor, rng: TaskStreams) -> Tensor:
        raise NotImplementedError


@ATTACKERS.register("hide_best")
class HideBest(RoomAttacker):
    """−1 on the best goal: it looks like the lesser one."""

    def cells(self, rewards: Tensor, rng: TaskStreams) -> Tensor:
        return -(rewards == 2).float()


@ATTACKERS.register("raise_lesser")
class RaiseLesser(RoomAttacker):
    """+1 on the lesser goal: it looks like the best."""

    def cells(self, rewards: Tensor, rng: TaskStreams) -> Tensor:
        return (rewards == 1).float()


@ATTACKERS.register("swap_goals")
class SwapGoals(RoomAttacker):
    """Both at once."""

    def cells(self, rewards: Tensor, rng: TaskStreams) -> Tensor:
        return (rewards == 1).float() - (rewards == 2).float()


@ATTACKERS.register("fake_goal")
class FakeGoal(RoomAttacker):
    """+1 on the empty cell nearest to the start, which an agent comes by first."""

    def cells(self, rewards: Tensor, rng: TaskStreams) -> Tensor:
        size = int(rewards.shape[1] ** 0.5)
        cell = torch.arange(rewards.shape[1], device=rewards.device)
        far = (cell // size + cell % size).float() + cell / rewards.shape[1]
        far = torch.where(cell == 0, torch.inf, far)
        nearest = torch.where(rewards == 0, far, torch.inf).argmin(1, keepdim=True)
        return torch.zeros_like(rewards).scatter(1, nearest, 1.0)


@ATTACKERS.register("decoys")
class Decoys(RoomAttacker):
    """The goals swapped, and +1 on each empty cell with probability a third: most of the budget."""

    def cells(self, rewards: Tensor, rng: TaskStreams) -> Tensor:
        drawn = rng.uniform(rewards.shape[1]).to(rewards.device) < 1 / 3
        empty = ((rewards == 0) & drawn).float()
        return (rewards == 1).float() - (rewards == 2).float() + empty
