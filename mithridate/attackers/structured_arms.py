"""Attacks that need no learning: they know the arms.

A learned attacker is not the strongest one: with the same budget, raising the worst arm hurts
Thompson sampling more than what REINFORCE finds. So these are part of every robustness figure.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from mithridate.attackers.arm_offsets import ArmOffsets, arm_means
from mithridate.budget import norm, project
from mithridate.config import Config, NonNegativeFloat
from mithridate.registry import ATTACKERS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Tasks


class StructuredConfig(Config):
    budget: NonNegativeFloat = 3.0
    """Bound B on the norm of the offsets; all of it is used."""


class StructuredAttacker(ArmOffsets):
    """`best` and `worst`: what is added to those arms, in units of the budget."""

    Config = StructuredConfig
    registered_name: str
    best: ClassVar[float] = 0.0
    worst: ClassVar[float] = 0.0

    def __init__(self, config: StructuredConfig | None = None) -> None:
        super().__init__()
        self.config = config or StructuredConfig()

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> tuple[Tensor, None]:
        means = arm_means(spec, tasks, self.registered_name)
        offsets = torch.zeros_like(means)
        offsets.scatter_(1, means.argmin(1, keepdim=True), self.worst * self.config.budget)
        offsets.scatter_(1, means.argmax(1, keepdim=True), self.best * self.config.budget)
        return project(offsets, self.config.budget), None


@ATTACKERS.register("raise_worst")
class RaiseWorst(StructuredAttacker):
    """+B on the worst arm."""

    worst = 1.0


@ATTACKERS.register("lower_best")
class LowerBest(StructuredAttacker):
    """−B on the best arm."""

    best = -1.0


@ATTACKERS.register("swap")
class Swap(StructuredAttacker):
    """−B/√2 on the best arm and +B/√2 on the worst."""

    best = -math.sqrt(0.5)
    worst = math.sqrt(0.5)


class MirrorConfig(StructuredConfig):
    budget: NonNegativeFloat = 3.0
    """Bound B on the norm of the offsets; seldom all of it is used."""
    slope: NonNegativeFloat = 2.0
    """How far the arms are moved, in distances from their average."""


@ATTACKERS.register("mirror")
class Mirror(ArmOffsets):
    """Reflects the arms' means at their average: poisoned rewards are what plausible arms would
    yield, only in the opposite order. It is cheap, and hard on whoever looks for outliers."""

    Config = MirrorConfig

    def __init__(self, config: MirrorConfig | None = None) -> None:
        super().__init__()
        self.config = config or MirrorConfig()

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> tuple[Tensor, None]:
        means = arm_means(spec, tasks, "mirror")
        self._centre = means.mean(1, keepdim=True)  # (B, 1)
        wanted = self.config.slope * (self._centre - means)
        offsets = project(wanted, self.config.budget)
        length = norm(wanted).clamp(min=1e-30)
        self._slope = self.config.slope * (norm(offsets) / length)[:, None]
        return offsets, None

    def rule(self, means: Tensor) -> Tensor:
        """(B, G): the offset that an arm with each of these means (B, G) would have."""
        return self._slope * (self._centre - means)
