"""What all bandits share: arms with mean rewards, Gaussian noise, and regret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mithridate.config import EnvConfig, NonNegativeFloat, Positive
from mithridate.envs.poisoned_arms import poisoned
from mithridate.types import Contexts, EnvSpec, Metric, Poison, Tasks, Trajectory


class ArmsConfig(EnvConfig):
    arms: Positive
    """Number of arms (A)."""
    noise_std: NonNegativeFloat = 0.3
    """Standard deviation of the reward noise."""


@dataclass(frozen=True)
class ArmTasks(Tasks):
    means: Tensor
    """(B, A) float32: the arms' mean rewards."""


class Arms:
    """Everything but where tasks and pretraining contexts come from."""

    attacks = ("uniform", "raise_worst", "lower_best", "swap", "mirror")
    learned_attack = "gaussian"
    peer: ClassVar[str | None] = "ts"
    config: ArmsConfig

    def make_spec(self, features: tuple[tuple[float, ...], ...] | None = None) -> EnvSpec:
        return EnvSpec(
            name=self.config.name,
            n_actions=self.config.arms,
            horizon=self.config.horizon,
            metric=Metric("cumulative regret", "lower"),
            observation=None,
            features=features,
            noise_size=1,
        )

    def reset(self, tasks: ArmTasks) -> None:
        return None

    def step(
        self, tasks: ArmTasks, state: None, actions: Tensor, noise: Tensor
    ) -> tuple[None, Tensor]:
        mean = tasks.means.gather(1, actions[:, None]).squeeze(1)  # (B,)
        return None, mean + self.config.noise_std * noise.squeeze(1)

    def observe(self, state: None) -> None:
        return None

    def action_values(self, tasks: ArmTasks, state: None) -> Tensor:
        return tasks.means

    def optimal_action(self, tasks: ArmTasks, state: None) -> Tensor:
        return tasks.means.argmax(1)

    def score(self, tasks: ArmTasks, trajectory: Trajectory) -> Tensor:
        """Regret of each step, (B, T)."""
        best = tasks.means.amax(1, keepdim=True)  # (B, 1)
        return best - tasks.means.gather(1, trajectory.actions)

    def poisoned(self, tasks: ArmTasks, contexts: Contexts, poison: Poison | None) -> Contexts:
        """`contexts` with some of their rewards replaced, whatever the actions were."""
        if poison is None:
            return contexts
        return poisoned(
            contexts, tasks.means, eps=poison.eps, budget=poison.budget,
            spread_budget=poison.budget.clamp(max=1.0), switching=poison.switching, rng=poison.rng,
        )  # fmt: skip
