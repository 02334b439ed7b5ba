"""The uniform random attack (paper, section 5.1): an offset per arm, drawn once per task.

φ ~ U[−range, range] per arm, scaled down to ‖φ‖₂ ≤ B; the proposed reward is r + φ(arm). The paper
does not give the range; 1 is close to its column for Thompson sampling. Where there are keys, an
offset of −1, 0 or +1, with equal probability, for each key and action; the range is not used.
"""

from __future__ import annotations

from torch import Tensor

from mithridate.attackers.arm_offsets import ArmOffsets, are_arms
from mithridate.attackers.offset_tables import SEVERAL, OffsetTable, certain
from mithridate.budget import project
from mithridate.capabilities import Added
from mithridate.config import Config, NonNegativeFloat
from mithridate.errors import UserError
from mithridate.registry import ATTACKERS
from mithridate.rng import TaskStreams
from mithridate.tables import AttackTables, unchanged
from mithridate.types import EnvSpec, Step, Tasks


class UniformConfig(Config):
    budget: NonNegativeFloat = 3.0
    """Bound B on the norm of the offsets."""
    range: NonNegativeFloat = 1.0
    """Offsets are drawn from [−range, range] before they are brought into the budget."""


class _Arms(ArmOffsets):
    def __init__(self, config: UniformConfig) -> None:
        super().__init__()
        self.config = config

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> tuple[Tensor, None]:
        raw = (2 * rng.uniform(spec.n_actions) - 1) * self.config.range
        return project(raw, self.config.budget), None


class _Table(OffsetTable):
    def __init__(self, config: UniformConfig) -> None:
        self.budget = config.budget

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> Tensor:
        drawn = (3 * rng.uniform(spec.n_attack_keys * spec.n_actions)).floor().clamp(max=2) - 1
        return certain(drawn.view(-1, spec.n_attack_keys, spec.n_actions))


@ATTACKERS.register("uniform")
class UniformAttacker:
    Config = UniformConfig
    blind = True

    def __init__(self, config: UniformConfig | None = None) -> None:
        self.config = config or UniformConfig()
        self._attack: _Arms | _Table = _Arms(self.config)

    def reset(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> None:
        if spec.n_attack_keys > 1:
            self._attack = _Table(self.config)
        elif are_arms(spec, tasks):
            self._attack = _Arms(self.config)
        else:
            raise UserError(f"attacker 'uniform' needs arms or {SEVERAL}; here is neither")
        self._attack.reset(spec, tasks, rng)

    def poison(self, step: Step) -> Tensor:
        return self._attack.poison(step)

    def has_tables(self) -> bool:
        return unchanged(self, UniformAttacker, "poison")

    def attack_tables(self, steps: int) -> AttackTables:
        return self._attack.attack_tables(steps)

    def cost(self) -> Tensor:
        return self._attack.cost()

    def adds(self) -> Added:
        return self._attack.adds()
