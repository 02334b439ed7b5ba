"""Random offsets on few arms, most often good ones, up or down, with nearly all of the budget.

Learned attackers end like this against algorithms that soon know which arms may be good, since
what is never pulled teaches them nothing. This one learns nothing and draws anew whenever it is
reset: as a threat in adversarial training it shows the model its own mistakes under more attacks
than a population of attackers comes up with.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mithridate.attackers.arm_offsets import ArmOffsets, arm_means
from mithridate.attackers.structured_arms import StructuredConfig
from mithridate.budget import project
from mithridate.registry import ATTACKERS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Tasks

MOST = 3
"""Arms with an offset."""


@ATTACKERS.register("few_arms")
class FewArms(ArmOffsets):
    Config = StructuredConfig

    def __init__(self, config: StructuredConfig | None = None) -> None:
        super().__init__()
        self.config = config or StructuredConfig()

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> tuple[Tensor, None]:
        means = arm_means(spec, tasks, "few_arms")
        arms = means.shape[1]
        luck = rng.uniform(arms + 2)  # (B, A + 2)
        gumbel = -(-luck[:, :arms].clamp(1e-7, 1 - 1e-7).log()).log()
        spread = means.std(1, keepdim=True, correction=0).clamp(min=1e-12)
        rank = (means / spread + gumbel).argsort(1, descending=True).argsort(1)
        direction = rng.normal(arms) * (rank < 1 + (MOST * luck[:, arms:-1]).floor())
        length = self.config.budget * luck[:, -1:] ** 0.1
        unit = direction / torch.linalg.vector_norm(direction, dim=1, keepdim=True).clamp(min=1e-12)
        return project(length * unit, self.config.budget), None
