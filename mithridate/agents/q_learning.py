"""Tabular Q-learning (Watkins, 1989), which learns for some episodes before it is measured.

Q(s, a) += α·(r + γ·max Q(s', ·) − Q(s, a)), ε-greedy. The paper says neither α nor the exploration;
α = 0.1 and an exploration rate equal to the contamination level, kept in the evaluated episode, fit
its clean column (296/267/223 against 266/242/226). `exploration_after` = 0 is the better choice.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from mithridate.agents.sampling import argmax_random_ties
from mithridate.config import Config, Fraction, NonNegative, Number, PositiveFloat
from mithridate.errors import UserError
from mithridate.registry import AGENTS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Follows, Observation


class QLearningConfig(Config):
    episodes: NonNegative = 100
    """Episodes of learning before the evaluated one."""
    learning_rate: PositiveFloat = 0.1
    """α."""
    discount: Fraction = 0.99
    """γ."""
    exploration: Fraction = 0.4
    """Share of random actions while learning."""
    exploration_after: Fraction | None = None
    """Share of random actions in the evaluated episode; null for the same."""
    initial: Number = 0.0
    """Value of what was never tried; a high one makes the agent try everything."""


@AGENTS.register("q_learning")
class QLearning:
    light = True
    Config = QLearningConfig
    follows: ClassVar[Follows] = {"exploration": "eps"}

    def __init__(self, config: QLearningConfig | None = None) -> None:
        self.config = config or QLearningConfig()
        self.learning_episodes = self.config.episodes

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        if spec.n_states is None:
            raise UserError("q_learning needs an environment with numbered states")
        self._rng = rng
        self._rows = torch.arange(batch, device=rng.device)
        shape = (batch, spec.n_states, spec.n_actions)
        self.values = torch.full(shape, float(self.config.initial), device=rng.device)
        """(B, S, A)."""
        self._episode = -self.learning_episodes - 1

    def end_episode(self) -> None:
        pass

    def begin_episode(self) -> None:
        self._episode += 1

    def act(self, obs: Observation) -> Tensor:
        assert isinstance(obs, Tensor)
        c = self.config
        share = c.exploration
        if self._episode >= 0 and c.exploration_after is not None:
            share = c.exploration_after
        explore, pick, tie = self._rng.uniform(3).unbind(1)  # (B,) each
        actions = self.values.shape[2]
        random = (pick * actions).long().clamp(max=actions - 1)
        greedy = argmax_random_ties(self.values[self._rows, obs], tie[:, None])
        return torch.where(explore < share, random, greedy)

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        assert isinstance(obs, Tensor) and isinstance(next_obs, Tensor)
        at = (self._rows, obs, actions)
        target = rewards + self.config.discount * self.values[self._rows, next_obs].amax(1)
        self.values[at] += self.config.learning_rate * (target - self.values[at])
