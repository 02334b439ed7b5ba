"""Bandit algorithms meant to withstand corruption (paper, appendix A), batched over tasks."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mithridate.agents.bandits import ArmStatistics, ThompsonConfig, ThompsonSampling
from mithridate.agents.sampling import argmax_random_ties
from mithridate.agents.trimmed import insert
from mithridate.config import Config, Fraction, NonNegativeFloat, PositiveFloat
from mithridate.registry import AGENTS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Follows, Observation


class RobustThompsonConfig(ThompsonConfig):
    level: Literal["tuned", "unknown", "known"] = "tuned"
    """How C is chosen: 0.5, tuned by the paper's authors; sqrt(H ln A / A) for unknown corruption;
    eps·H·B / A for known corruption."""
    tuned: NonNegativeFloat = 0.5
    """C of the tuned level."""
    eps: Fraction = 0.4
    """Share of poisoned steps, for the known level."""
    budget: NonNegativeFloat = 3.0
    """Norm of the attack, for the known level."""
    delay: NonNegativeFloat = 4.0
    """k in the bonus C / (n + k). 4 fits the paper's clean columns, 1 does not."""


@AGENTS.register("rts")
class RobustThompsonSampling(ThompsonSampling):
    """Robust Thompson sampling (Xu et al., 2024): TS whose posterior means are raised by
    C / (n + k), so that no arm is given up on because of a few corrupted rewards."""

    Config = RobustThompsonConfig
    config: RobustThompsonConfig
    follows: ClassVar[Follows] = {**ThompsonSampling.follows, "eps": "eps", "budget": "budget"}

    def __init__(self, config: RobustThompsonConfig | None = None) -> None:
        super().__init__(config or RobustThompsonConfig())

    def corruption(self) -> float:
        """C."""
        c, arms = self.config, self.counts.shape[1]
        if c.level == "tuned":
            return c.tuned
        if c.level == "unknown":
            return math.sqrt(self.horizon * math.log(arms) / arms)
        return c.eps * self.horizon * c.budget / arms

    def posterior(self) -> tuple[Tensor, Tensor]:
        mean, std = super().posterior()
        return mean + self.corruption() / (self.counts + self.config.delay), std


class TrimmedUCBConfig(Config):
    alpha: Annotated[float, Field(ge=0, lt=0.5)] = 0.4
    """Share trimmed at each end: the share of poisoned steps, but less than half."""
    variant: Literal["modified", "low", "original"] = "modified"
    """The bonus, see the class."""
    sigma: PositiveFloat | None = None
    """σ₀; null for 1.0 in the original and 0.1 in the others."""


@AGENTS.register("crucb")
class TrimmedUCB(ArmStatistics):
    """crUCB (Niss and Tewari, 2020) with the α-trimmed mean: of an arm's n rewards the ⌈αn⌉
    smallest and largest are dropped, the rest averaged. At step h the bonus is

    - original: σ₀ / (1 − 2α) · sqrt(4 ln h / n), and an empty rest counts as mean 0;
    - low: the same with σ₀ · sqrt(1 − 2α);
    - modified (the paper's algorithm 3): σ₀ · sqrt(4 ln h / ⌊(1 − 2α) n⌋);

    in the last two an arm with an empty rest comes first, the least pulled of several. Without
    that rule the paper's clean columns do not come out.
    """

    Config = TrimmedUCBConfig
    follows: ClassVar[Follows] = {"alpha": "trimmed"}

    def __init__(self, config: TrimmedUCBConfig | None = None) -> None:
        self.config = config or TrimmedUCBConfig()

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        super().reset(spec, batch, rng)
        # Rewards in ascending order, padded with infinity. One arm changes in a step.
        self._sorted = torch.full((batch, spec.n_actions, spec.horizon), math.inf).to(rng.device)
        self.means = torch.zeros(batch, spec.n_actions, device=rng.device)  # (B, A) trimmed
        self._steps = 0

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        super().observe(obs, actions, rewards, next_obs)
        self._steps += 1
        n = self.counts.gather(1, actions[:, None]).long()  # (B, 1)
        drop = self._dropped(n)
        total = insert(self._sorted, actions, rewards, n.squeeze(1), drop.squeeze(1), self._steps)
        self.means.scatter_(1, actions[:, None], total[:, None] / (n - 2 * drop).clamp(min=1))

    def _dropped(self, n: Tensor) -> Tensor:
        """⌈αn⌉, exactly: αn may come out a rounding error too large."""
        return (self.config.alpha * n.double() - 1e-9).ceil().clamp(min=0).to(n.dtype)

    def act(self, obs: Observation) -> Tensor:
        c, n = self.config, self.counts
        kept = 1 - 2 * c.alpha
        log = 4 * math.log(max(1, self._steps + 1))
        empty = n - 2 * self._dropped(n) <= 0  # (B, A)
        if c.variant == "modified":
            sigma = 0.1 if c.sigma is None else c.sigma
            effective = (kept * n.double() + 1e-9).floor().clamp(min=1).to(n.dtype)
            bonus = sigma * (log / effective).sqrt()
        else:
            low = c.variant == "low"
            sigma = (0.1 if low else 1.0) if c.sigma is None else c.sigma
            sigma *= math.sqrt(kept) if low else 1.0
            bonus = sigma / kept * (log / n.clamp(min=1)).sqrt()
            if not low:
                empty = n == 0
        index = self.means + bonus
        # First the arms with nothing to go by, the least pulled of them; then by index.
        rank = torch.where(empty, 1e6 - n, index)
        return argmax_random_ties(rank, self.rng.uniform())
