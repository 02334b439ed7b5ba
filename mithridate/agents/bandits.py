"""Classical bandit algorithms, batched over tasks."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mithridate.agents.sampling import argmax_random_ties
from mithridate.config import Config, NonNegativeFloat, Number, PositiveFloat
from mithridate.registry import AGENTS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Follows, Observation


class ArmStatistics:
    """Counts and sums per arm, which all index policies share."""

    light = True

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        self.rng = rng
        self.horizon = spec.horizon
        self.counts = torch.zeros(batch, spec.n_actions, device=rng.device)  # (B, A)
        self.sums = torch.zeros(batch, spec.n_actions, device=rng.device)  # (B, A)

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        index = actions[:, None]
        self.counts.scatter_add_(1, index, torch.ones_like(rewards)[:, None])
        self.sums.scatter_add_(1, index, rewards[:, None])


@AGENTS.register("uniform")
class UniformAgent:
    """Any action with equal probability."""

    light = True

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        self.rng, self.n_actions = rng, spec.n_actions

    def act(self, obs: Observation) -> Tensor:
        return (self.rng.uniform().squeeze(1) * self.n_actions).long()

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        pass


class ThompsonConfig(Config):
    prior_mean: Number = 0.5
    """Mean of the Gaussian prior on an arm's mean: that of U[0, 1]."""
    prior_std: PositiveFloat = math.sqrt(1 / 12)
    """Its standard deviation: that of U[0, 1]."""
    noise_std: PositiveFloat = 0.3
    """Standard deviation of the reward noise, taken as known."""


@AGENTS.register("ts")
class ThompsonSampling(ArmStatistics):
    """Thompson (1933) with a Gaussian prior and likelihood: sample each arm's mean from its
    posterior, pull the largest. With these constants 9.5 clean, as in the paper (8.7–9.1)."""

    Config = ThompsonConfig
    follows: ClassVar[Follows] = {"noise_std": "noise_std"}

    def __init__(self, config: ThompsonConfig | None = None) -> None:
        self.config = config or ThompsonConfig()

    def act(self, obs: Observation) -> Tensor:
        mean, std = self.posterior()
        return (mean + std * self.rng.normal(mean.shape[1])).argmax(1)

    def posterior(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each arm's posterior, (B, A) each."""
        c = self.config
        prior_precision, noise_precision = c.prior_std**-2, c.noise_std**-2
        precision = prior_precision + noise_precision * self.counts
        mean = (prior_precision * c.prior_mean + noise_precision * self.sums) / precision
        return mean, precision.rsqrt()


class UCBConfig(Config):
    constant: NonNegativeFloat = math.sqrt(2)
    """Factor of the bonus. √2 fits the paper's clean column (16); the original DPT code has 1."""
    form: Literal["fixed", "log"] = "fixed"
    """'fixed': constant / √n; 'log': constant · √(ln t / n), which is UCB1 for constant = √2."""


@AGENTS.register("ucb1")
class UCB(ArmStatistics):
    """UCB (Auer et al., 2002) in the form the paper calls UCB1.0: empirical mean plus
    constant / √n, arms not yet pulled first, ties at random."""

    Config = UCBConfig

    def __init__(self, config: UCBConfig | None = None) -> None:
        self.config = config or UCBConfig()

    def act(self, obs: Observation) -> Tensor:
        n = self.counts.clamp(min=1)
        bonus = self.config.constant * n.rsqrt()
        if self.config.form == "log":
            bonus = bonus * self.counts.sum(1, keepdim=True).clamp(min=1).log().sqrt()
        index = self.sums / n + bonus
        index = torch.where(self.counts == 0, math.inf, index)
        return argmax_random_ties(index, self.rng.uniform())
