"""What all bandits share: arms with mean rewards, Gaussian noise, and regret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from mithridate.config import EnvConfig, NonNegativeFloat, Positive
from mithridate.envs.bandit_poison import poisoned, random_offsets
from mithridate.rng import Rng, TaskStreams
from mithridate.tables import WorldTables, unchanged
from mithridate.types import Contexts, EnvSpec, Metric, Poison, Tasks, Trajectory


class ArmsConfig(EnvConfig):
    arms: Positive
    """Number of arms (A)."""
    noise_std: NonNegativeFloat = 0.3
    """Standard deviation of the reward noise."""

    def facts(self) -> dict[str, float]:
        return {"noise_std": max(self.noise_std, 1e-3)}

    def memory(self) -> tuple[float, float]:
        # Draws come in blocks, and contexts have a one-hot vector or an offer for each step.
        return 0.0, 4.0 * self.arms * (TaskStreams.block(self.arms) + 8 + 4 * self.horizon)


@dataclass(frozen=True)
class ArmTasks(Tasks):
    means: Tensor
    """(B, A) float32: the arms' mean rewards."""


class Arms:
    """Everything but where tasks and pretraining contexts come from."""

    attacks = ("uniform", "raise_worst", "lower_best", "swap", "mirror")
    learned_attack = "gaussian"
    budget = 3.0
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

    def attack_key(self, tasks: ArmTasks, state: None) -> Tensor:
        return torch.zeros(len(tasks), dtype=torch.int64, device=tasks.device)

    def action_values(self, tasks: ArmTasks, state: None) -> Tensor:
        return tasks.means

    def optimal_action(self, tasks: ArmTasks, state: None) -> Tensor:
        return tasks.means.argmax(1)

    def tables(self, tasks: ArmTasks) -> WorldTables | None:
        asked = ("reset", "step", "observe", "attack_key", "optimal_action")
        if not unchanged(self, Arms, *asked):
            return None
        best = self.optimal_action(tasks, None)
        return WorldTables(tasks.means[:, None], best[:, None], noise_std=self.config.noise_std)

    def score(self, tasks: ArmTasks, trajectory: Trajectory) -> Tensor:
        """Regret of each step, (B, T)."""
        best = tasks.means.amax(1, keepdim=True)  # (B, 1)
        return best - tasks.means.gather(1, trajectory.actions)

    def draw_offsets(self, values: Tensor, budget: Tensor, rng: Rng) -> Tensor:
        """(B, A) offsets for poisoned contexts, with norms up to `budget` (B,)."""
        return random_offsets(values, budget, rng)

    def poisoned(self, tasks: ArmTasks, contexts: Contexts, poison: Poison | None) -> Contexts:
        """`contexts` with some of their rewards replaced, whatever the actions were."""
        if poison is None:
            return contexts
        return poisoned(
            contexts, tasks.means, eps=poison.eps, budget=poison.budget,
            spread_budget=poison.budget.clamp(max=1.0), switching=poison.switching, rng=poison.rng,
            draw_offsets=self.draw_offsets,
        )  # fmt: skip


def preferred_pulls(batch: int, length: int, arms: int, draw: np.random.Generator) -> Tensor:
    """(B, T): i.i.d. pulls with probabilities (1 − c)·Dirichlet(1) + c·(one arm), c from
    {0, 0.1, …, 1}, as in DPT."""
    c = draw.integers(0, 11, (batch, 1)) / 10
    favourite = np.eye(arms)[draw.integers(0, arms, batch)]  # (B, A)
    p = (1 - c) * draw.dirichlet(np.ones(arms), batch) + c * favourite
    edges = torch.from_numpy(p.cumsum(1)[:, :-1].astype(np.float32))  # (B, A - 1)
    uniforms = torch.from_numpy(draw.random((batch, length, 1), dtype=np.float32)).squeeze(2)
    return torch.searchsorted(edges, uniforms, right=True)
