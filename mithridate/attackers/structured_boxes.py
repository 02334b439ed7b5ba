"""Attacks on Miniworld that need no learning: they know which box is the goal.

An offset of −1 or +1 is put on all that is done at a box, near it and facing it, and mixed with no
offset as much as the budget asks for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mithridate.attackers.offset_tables import OffsetTable, certain
from mithridate.config import Config, NonNegativeFloat
from mithridate.errors import UserError
from mithridate.registry import ATTACKERS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Tasks


class BoxesConfig(Config):
    budget: NonNegativeFloat = 5.0
    """Bound B on the norm of the mean offsets."""


class BoxAttacker(OffsetTable):
    """Subclasses say what is added, −1, 0 or 1, at each key: (B, K)."""

    Config = BoxesConfig
    registered_name: str

    def __init__(self, config: BoxesConfig | None = None) -> None:
        self.config = config or BoxesConfig()
        self.budget = self.config.budget

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> Tensor:
        worth: Tensor | None = getattr(tasks, "worth", None)
        if worth is None:
            raise UserError(f"attacker '{self.registered_name}' needs boxes, as miniworld has")
        return certain(self.boxes(worth)[..., None].expand(-1, -1, spec.n_actions))

    def boxes(self, worth: Tensor) -> Tensor:
        """Given what each key is worth: 2 at the goal, 1 at another box, else 0 (B, K)."""
        raise NotImplementedError


def _one_decoy(worth: Tensor) -> Tensor:
    """(B, K): 1 at the box that comes after the goal, around the room."""
    goal = (worth == 2).long().argmax(1, keepdim=True)
    key = torch.arange(worth.shape[1], device=worth.device)
    ahead = torch.where(worth == 1, (key - goal) % worth.shape[1], worth.shape[1])
    return torch.zeros(worth.shape, device=worth.device).scatter(1, ahead.argmin(1, True), 1.0)


@ATTACKERS.register("hide_goal")
class HideGoal(BoxAttacker):
    """−1 at the goal: it looks like any other box."""

    def boxes(self, worth: Tensor) -> Tensor:
        return -(worth == 2).float()


@ATTACKERS.register("raise_decoy")
class RaiseDecoy(BoxAttacker):
    """+1 at one other box: it looks like the goal."""

    def boxes(self, worth: Tensor) -> Tensor:
        return _one_decoy(worth)


@ATTACKERS.register("swap_boxes")
class SwapBoxes(BoxAttacker):
    """Both at once."""

    def boxes(self, worth: Tensor) -> Tensor:
        return _one_decoy(worth) - (worth == 2).float()


@ATTACKERS.register("all_decoys")
class AllDecoys(BoxAttacker):
    """−1 at the goal, +1 at all other boxes."""

    def boxes(self, worth: Tensor) -> Tensor:
        return (worth == 1).float() - (worth == 2).float()
