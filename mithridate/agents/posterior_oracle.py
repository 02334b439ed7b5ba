"""Posterior sampling that knows eps and the attack: what no victim can beat by much.

For an arm with mean μ, a reward is seen with density (1 − ε)·N(μ, s²) + ε·N(μ + φ, s² + σ²). The
posterior of each arm's mean over a grid on [0, 1] is exact; the arm is chosen by sampling from it.

Offsets that are made from the arms' means (`mirror`) give them away to whoever knows them. With
`knows=rule` it knows how they are made, but not the offsets: what can be learned at all from
rewards poisoned like this.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from mithridate.config import Config, Positive
from mithridate.errors import UserError
from mithridate.registry import AGENTS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Observation, Secrets


class PosteriorOracleConfig(Config):
    grid: Positive = 101
    """Values of the mean that are told apart."""
    knows: Literal["offsets", "rule"] = "offsets"
    """What of the attack: its offsets, or how they follow from the arms' means."""


@AGENTS.register("posterior_oracle")
class PosteriorOracle:
    Config = PosteriorOracleConfig

    def __init__(self, config: PosteriorOracleConfig | None = None) -> None:
        self.config = config or PosteriorOracleConfig()

    def reveal(self, secrets: Secrets) -> None:
        self.secrets = secrets

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        noise = getattr(self.secrets.env.config, "noise_std", None)
        if noise is None or spec.observation is not None:
            raise UserError("posterior_oracle needs a bandit with Gaussian noise")
        self._noise = max(float(noise), 1e-3)
        self._rng = rng
        self._rows = torch.arange(batch, device=rng.device)
        self._grid = torch.linspace(0, 1, self.config.grid, device=rng.device)  # (G,)
        self._logs = torch.zeros(batch, spec.n_actions, self.config.grid, device=rng.device)
        self._cdf = self._logs.softmax(2).cumsum(2)

    def act(self, obs: Observation) -> Tensor:
        uniform = self._rng.uniform(self._logs.shape[1])[..., None]  # (B, A, 1)
        place = (self._cdf < uniform).sum(2).clamp(max=self.config.grid - 1)
        return self._grid[place].argmax(1)

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        arm = (self._rows, actions)
        self._logs[arm] += self._log_likelihood(actions, rewards)
        self._cdf[arm] = self._logs[arm].softmax(1).cumsum(1)

    def _log_likelihood(self, actions: Tensor, rewards: Tensor) -> Tensor:
        """(B, G) of the rewards seen, for each value of the pulled arm's mean."""
        residual = rewards[:, None] - self._grid
        eps = torch.as_tensor(self.secrets.eps, dtype=residual.dtype, device=residual.device)
        eps = eps.expand(len(rewards))[:, None]
        clean = (1 - eps).log() + _log_normal(residual, torch.tensor(self._noise))
        attacker = self.secrets.attacker
        if attacker is None:
            return _log_normal(residual, torch.tensor(self._noise))
        offsets: Tensor | None = getattr(attacker, "offsets", None)
        if offsets is None:
            raise UserError(f"posterior_oracle does not know {type(attacker).__name__}'s attacks")
        if self.config.knows == "rule":
            if not hasattr(attacker, "rule"):
                raise UserError("posterior_oracle(knows=rule): this attack has no rule; see mirror")
            shift = attacker.rule(self._grid)
        else:
            shift = offsets[self._rows, actions][:, None]
        spreads: Tensor | None = getattr(attacker, "spreads", None)
        variance = torch.full_like(shift, self._noise**2)
        if spreads is not None:
            variance = variance + spreads[self._rows, actions][:, None] ** 2
        poisoned = eps.log() + _log_normal(residual - shift, variance.sqrt())
        return torch.logaddexp(clean, poisoned)


def _log_normal(x: Tensor, std: Tensor) -> Tensor:
    return -0.5 * (x / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)
