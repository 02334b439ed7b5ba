"""Natural policy gradient for a tabular softmax policy (Kakade, 2001; Agarwal et al., 2021).

After an episode, Q̂(s, a) and V̂(s) are the means of the discounted rewards-to-go of the visits, and
θ(s, a) += η·(Q̂(s, a) − V̂(s)) where (s, a) was visited. η = 0.01 fits the paper's clean column (246
against 242); 0.1 is much better.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mithridate.agents.sampling import sample
from mithridate.config import Config, Fraction, NonNegative, PositiveFloat
from mithridate.errors import UserError
from mithridate.registry import AGENTS
from mithridate.returns import discounted_returns
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Observation


class NPGConfig(Config):
    episodes: NonNegative = 100
    """Episodes of learning before the evaluated one."""
    learning_rate: PositiveFloat = 0.01
    """η."""
    discount: Fraction = 0.99
    """γ."""


@AGENTS.register("npg")
class NPG:
    light = True
    Config = NPGConfig

    def __init__(self, config: NPGConfig | None = None) -> None:
        self.config = config or NPGConfig()
        self.learning_episodes = self.config.episodes

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        if spec.n_states is None:
            raise UserError("npg needs an environment with numbered states")
        self._rng = rng
        self._rows = torch.arange(batch, device=rng.device)
        self.logits = torch.zeros(batch, spec.n_states, spec.n_actions, device=rng.device)
        """(B, S, A): θ."""
        self._seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def act(self, obs: Observation) -> Tensor:
        assert isinstance(obs, Tensor)
        return sample(self.logits[self._rows, obs], self._rng.uniform())

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        assert isinstance(obs, Tensor)
        self._seen.append((obs, actions, rewards))

    def begin_episode(self) -> None:
        pass

    def end_episode(self) -> None:
        states, actions, rewards = (torch.stack(x, 1) for x in zip(*self._seen, strict=True))
        self._seen = []
        to_go = discounted_returns(rewards, self.config.discount)  # (B, T)
        _, count, width = self.logits.shape
        pair = states * width + actions
        q, visited = _means(pair, to_go, count * width)
        v, _ = _means(states, to_go, count)
        advantage = (q.view(-1, count, width) - v[:, :, None]) * visited.view(-1, count, width)
        self.logits += self.config.learning_rate * advantage


def _means(index: Tensor, values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Mean of values (B, T) for each index (B, size), and whether there were any."""
    zeros = values.new_zeros(len(values), size)
    counts = zeros.scatter_add(1, index, torch.ones_like(values))
    return zeros.scatter_add(1, index, values) / counts.clamp(min=1), counts > 0
