"""Agents that know what others must learn. They bound what is possible; they are not victims."""

from __future__ import annotations

from torch import Tensor

from mithridate.registry import AGENTS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Observation, Secrets


@AGENTS.register("oracle")
class Oracle:
    """Always the optimal action."""

    light = True

    def reveal(self, secrets: Secrets) -> None:
        self.secrets = secrets

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        pass

    def act(self, obs: Observation) -> Tensor:
        return self.secrets.env.optimal_action(self.secrets.tasks, self.secrets.state)

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        pass
