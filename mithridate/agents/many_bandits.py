"""A `RobustBandit` for each of many tasks: how it meets our environments and attackers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mithridate.agents.any_bandit import MIXTURE, RobustBandit
from mithridate.config import Config, Number, PositiveFloat
from mithridate.errors import UserError
from mithridate.registry import AGENTS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Follows, Observation

Corruption = Annotated[float, Field(ge=0, lt=0.5, allow_inf_nan=False)]


class RobustBanditConfig(Config):
    corruption: Corruption | None = MIXTURE.eps
    """Share of poisoned rewards; null to infer it."""
    noise: PositiveFloat = MIXTURE.noise_std
    """Standard deviation of the rewards' noise."""
    low: Number = 0.0
    """The smallest mean that an arm may have."""
    high: Number = 1.0
    """The largest."""


@AGENTS.register("robust_bandit")
class RobustBandits:
    """`mixture_ts` with a grid that refines itself. Each task is played by itself, in Python: where
    no arm is pulled 900 times, `mixture_ts` does the same a hundred times as fast."""

    Config = RobustBanditConfig
    light = True
    follows: ClassVar[Follows] = {"corruption": "trimmed", "noise": "noise_std"}

    def __init__(self, config: RobustBanditConfig | None = None) -> None:
        self.config = config or RobustBanditConfig()
        self._arms: int | None = None

    @classmethod
    def like(cls, bandit: RobustBandit | type[RobustBandit]) -> RobustBandits:
        """Bandits that know nothing yet, with the settings of this one."""
        if isinstance(bandit, type):
            return cls()
        if bandit.feedback == "clicks":
            raise UserError("agent RobustBandit: with clicks it needs rewards 0 and 1")
        low, high = bandit.reward_range
        noise = bandit.noise_of_range() * (high - low)
        config = RobustBanditConfig(corruption=bandit.corruption, noise=noise, low=low, high=high)
        found = cls(config)
        found._arms = bandit.n_arms
        return found

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        if spec.observation is not None or spec.features is not None:
            raise UserError(
                "robust_bandit needs an environment whose arms are independent: a bandit"
            )
        if self._arms not in (None, spec.n_actions):
            raise UserError(
                f"agent RobustBandit was made for {self._arms} arms, here are {spec.n_actions}"
            )
        c = self.config
        settings: dict[str, Any] = {"noise": c.noise, "corruption": c.corruption}
        span = (c.low, c.high)
        self._rng = rng
        self.bandits = [RobustBandit(spec.n_actions, span, **settings) for _ in range(batch)]

    def act(self, obs: Observation) -> Tensor:
        luck = self._rng.uniform().squeeze(1).tolist()
        pairs = zip(self.bandits, luck, strict=True)
        actions = [bandit.draw(uniform) for bandit, uniform in pairs]
        return torch.tensor(actions, dtype=torch.int64, device=self._rng.device)

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        each = zip(self.bandits, actions.tolist(), rewards.tolist(), strict=True)
        for bandit, action, reward in each:
            bandit.learn(action, reward)

    def best(self) -> Tensor:
        """(B, A): how probable it is that each arm is the best one."""
        return torch.stack([torch.from_numpy(bandit.best()) for bandit in self.bandits])
