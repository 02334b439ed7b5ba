"""Attacks that searches have found on other tasks, replayed.

Like `few_arms` it learns nothing and draws anew whenever it is reset: as a threat in adversarial
training it shows the model more of the worst attacks than searches have the time to find.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mithridate.attackers.arm_offsets import ArmOffsets, arm_means
from mithridate.budget import project
from mithridate.config import Config, Fraction, NonNegativeFloat, Positive
from mithridate.registry import ATTACKERS
from mithridate.rng import TaskStreams
from mithridate.searched import searched
from mithridate.types import EnvSpec, Tasks


class ReplayConfig(Config):
    budget: NonNegativeFloat = 3.0
    """Bound B on the norm of the offsets."""
    eps: Fraction = 0.4
    """The share of poisoned rewards that the attacks were found at; the nearest there is."""
    nearest: Positive = 25
    """Of so many tasks whose means are most like the task's, one gives its attack."""
    jitter: NonNegativeFloat = 0.1
    """Standard deviation of what is added to each offset."""


@ATTACKERS.register("replay")
class Replay(ArmOffsets):
    """Draws one of the attacks that searches have found on similar tasks, whenever it is reset."""

    Config = ReplayConfig

    def __init__(self, config: ReplayConfig | None = None) -> None:
        super().__init__()
        self.config = config or ReplayConfig()

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> tuple[Tensor, None]:
        means, known = arm_means(spec, tasks, "replay"), searched(self.config.eps)
        arms, count = means.shape[1], min(self.config.nearest, len(known.means))
        ordered, order = means.sort(1)
        away = torch.cdist(_like(ordered, known.means.shape[1]), known.means.to(means))
        near = away.topk(count, largest=False).indices  # (B, count)
        which = (rng.uniform() * count).long().clamp(max=count - 1)  # (B, 1)
        found = near.gather(1, which).squeeze(1)
        offsets = _of_each(ordered, known.means.to(means)[found], known.offsets.to(means)[found])
        offsets = torch.empty_like(means).scatter_(1, order, offsets)
        return project(offsets + self.config.jitter * rng.normal(arms), self.config.budget), None


def _like(ordered: Tensor, arms: int) -> Tensor:
    """(B, `arms`): of the sorted means (B, A), the best one and as many others as asked for, from
    all over."""
    if ordered.shape[1] == arms:
        return ordered
    others = torch.linspace(0, max(0, ordered.shape[1] - 2), arms - 1).round().long()
    return torch.cat([ordered[:, others], ordered[:, -1:]], 1)


def _of_each(ordered: Tensor, means: Tensor, offsets: Tensor) -> Tensor:
    """(B, A): for sorted means (B, A), the offsets of a known attack with sorted `means`. With
    another number of arms the best one has the best one's, and each other arm that of the most
    similar one."""
    if ordered.shape == means.shape:
        return offsets
    nearest = (ordered[:, :-1, None] - means[:, None, :-1]).abs().argmin(2)  # (B, A - 1)
    return torch.cat([offsets[:, :-1].gather(1, nearest), offsets[:, -1:]], 1)
