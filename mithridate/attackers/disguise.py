"""Random attacks that look like what a search finds: small offsets, by which arms pass for others.

Under the worst attacks on agents that know of poisoning, the best arm's poisoned rewards are those
of a poor arm, and all others' poisoned rewards are those of good ones, with much luck in it. The
norm is about half of a budget of 3: what stands out would be seen through. Lengths here are in
units of the distance from the arms' average to the best one, and are those of searches against
`mixture_ts` (docs/attacks.md).

Like `few_arms` it learns nothing and draws anew whenever it is reset: as a threat in adversarial
training it shows the model more such attacks than searches have the time to find.
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

LOWERED = (1.8, 1.0)
"""How far the best arm is lowered: mean and standard deviation of a normal, without its sign."""
CENTRES = (0.0, 1.0)
"""Where the others' poisoned rewards are around, above the arms' average."""
SPREADS = (0.3, 2.0)
"""Their standard deviation in a task."""
UNTOUCHED = 0.4
"""The largest share of the arms that have no offset."""


@ATTACKERS.register("disguise")
class Disguise(ArmOffsets):
    Config = StructuredConfig

    def __init__(self, config: StructuredConfig | None = None) -> None:
        super().__init__()
        self.config = config or StructuredConfig()

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> tuple[Tensor, None]:
        means = arm_means(spec, tasks, "disguise")
        arms = means.shape[1]
        luck, normals = rng.uniform(arms + 3), rng.normal(arms)  # (B, A + 3), (B, A)
        average, best = means.mean(1, keepdim=True), means.amax(1, keepdim=True)
        unit = best - average
        centre = average + _between(luck[:, arms : arms + 1], CENTRES) * unit
        spread = _between(luck[:, arms + 1 : arms + 2], SPREADS) * unit
        lowered = means - (LOWERED[0] + LOWERED[1] * normals).abs() * unit
        poisoned = torch.where(means == best, lowered, centre + spread * normals)
        touched = luck[:, :arms] >= UNTOUCHED * luck[:, -1:]
        return project((poisoned - means) * touched, self.config.budget), None


def _between(uniform: Tensor, ends: tuple[float, float]) -> Tensor:
    return ends[0] + (ends[1] - ends[0]) * uniform
