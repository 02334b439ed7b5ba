"""The uniform random attack (paper, section 5.1): an offset per arm, drawn once per task.

φ ~ U[−range, range] per arm, scaled down to ‖φ‖₂ ≤ B; the proposed reward is r + φ(arm). The paper
does not give the range; 1 is close to its column for Thompson sampling.
"""

from __future__ import annotations

from torch import Tensor

from mithridate.attackers.budget import project
from mithridate.attackers.offsets import OffsetAttacker
from mithridate.config import Config, NonNegativeFloat
from mithridate.registry import ATTACKERS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Tasks


class UniformConfig(Config):
    budget: NonNegativeFloat = 3.0
    """Bound B on the norm of the offsets."""
    range: NonNegativeFloat = 1.0
    """Offsets are drawn from [−range, range] before they are brought into the budget."""


@ATTACKERS.register("uniform")
class UniformAttacker(OffsetAttacker):
    Config = UniformConfig

    def __init__(self, config: UniformConfig | None = None) -> None:
        super().__init__()
        self.config = config or UniformConfig()

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> tuple[Tensor, None]:
        raw = (2 * rng.uniform(spec.n_actions) - 1) * self.config.range
        return project(raw, self.config.budget), None
