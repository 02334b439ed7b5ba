"""Algorithms for linear bandits, batched over tasks; all learn one weight vector for all arms.

The inverse of V = λI + Σ x xᵀ is kept by rank-one updates (Sherman and Morrison, 1950).
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mithridate.agents.sampling import argmax_random_ties
from mithridate.config import SMALL, Config, Fraction, NonNegativeFloat, PositiveFloat
from mithridate.errors import UserError
from mithridate.registry import AGENTS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Follows, Observation


class RidgeRegression:
    """What is known of the weights, which all these algorithms share."""

    light = True
    registered_name: str

    def begin(self, spec: EnvSpec, batch: int, rng: TaskStreams, ridge: float) -> None:
        if spec.features is None:
            raise UserError(
                f"{self.registered_name} needs an environment whose arms have features, "
                "such as linear_bandit"
            )
        self.rng, self.horizon = rng, spec.horizon
        self.features = torch.tensor(spec.features, dtype=torch.float64, device=rng.device)
        eye = torch.eye(self.features.shape[1]).to(self.features)
        self.inverse = (eye / ridge).expand(batch, -1, -1).clone()  # (B, D, D): V⁻¹
        self.sums = self.features.new_zeros(batch, len(eye))  # (B, D): Σ x r
        self.steps = 0

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        self.learn(actions, rewards)

    def learn(self, actions: Tensor, rewards: Tensor) -> Tensor:
        """(B,): xᵀ V⁻¹ x of what was pulled, as it was before."""
        x = self.features[actions]  # (B, D)
        along = _times(self.inverse, x)  # (B, D): V⁻¹ x
        width = (x * along).sum(1)
        self.inverse -= along[:, :, None] * along[:, None, :] / (1 + width)[:, None, None]
        self.sums += x * rewards[:, None]
        self.steps += 1
        return width

    def weights(self) -> Tensor:
        """(B, D): V⁻¹ Σ x r."""
        return _times(self.inverse, self.sums)

    def means(self) -> Tensor:
        """(B, A): what the arms seem to be worth."""
        return (self.weights()[:, None, :] * self.features).sum(2)

    def widths(self) -> Tensor:
        """(B, A): √(xᵀ V⁻¹ x), how uncertain that is."""
        inner = (self.inverse[:, None] * self.features[None, :, None, :]).sum(3)  # (B, A, D)
        return (inner * self.features).sum(2).clamp(min=0).sqrt()


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """(B, D) products of (B, D, D) and (B, D), the same in whatever batch a task comes."""
    return (matrix * vector[:, None, :]).sum(2)


class LinUCBConfig(Config):
    width: NonNegativeFloat = 1.0
    """Factor of the confidence width. 1 fits the paper's clean column."""
    ridge: PositiveFloat = 1.0
    """λ."""


@AGENTS.register("linucb")
class LinUCB(RidgeRegression):
    """LinUCB (Li et al., 2010, algorithm 1) with one weight vector: pull the largest
    xᵀθ + α √(xᵀ V⁻¹ x)."""

    Config = LinUCBConfig

    def __init__(self, config: LinUCBConfig | None = None) -> None:
        self.config = config or LinUCBConfig()

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        self.begin(spec, batch, rng, self.config.ridge)

    def act(self, obs: Observation) -> Tensor:
        index = self.means() + self.config.width * self.widths()
        return argmax_random_ties(index, self.rng.uniform())


class RobustLinUCBConfig(Config):
    variant: Literal["v1", "v2", "v3"] = "v2"
    """C', see the class."""
    eps: Fraction = 0.4
    """Share of poisoned steps."""
    budget: NonNegativeFloat = 3.0
    """Norm of the attack."""
    corruption: NonNegativeFloat | None = None
    """C' itself, instead of the variant's."""
    noise: PositiveFloat = 0.01
    """R."""
    ridge: PositiveFloat = 0.1
    """λ."""
    confidence: Annotated[float, Field(ge=SMALL, le=1)] = 0.01
    """δ."""


@AGENTS.register("crlinucb")
class RobustLinUCB(RidgeRegression):
    """CRLinUCB (Ding et al., 2022, section 4): pull the largest xᵀθ + (βₜ + C' √G) w(x), where
    w(x) = √(xᵀ V⁻¹ x), G is the sum of w² over what was pulled, and
    βₜ = R √(D ln((t L²/λ + 1) / δ)) + √λ with L the longest feature vector.

    C', from how much corruption there is, in the paper's three variants (appendix A):

    - v1: ε B H, as Ding et al.'s theorem 1 says. (The paper's clean column would take about 8 in
      its place.)
    - v2: ε B / H, which fits the paper's clean column. Its text, "divided by the time horizon",
      would be ε B, which does not.
    - v3: between them, 4/3 ε B, which fits the clean column at ε = 0.4. (The geometric mean of the
      two is ε B.)
    """

    Config = RobustLinUCBConfig
    follows: ClassVar[Follows] = {"eps": "eps", "budget": "budget"}

    def __init__(self, config: RobustLinUCBConfig | None = None) -> None:
        self.config = config or RobustLinUCBConfig()

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        self.begin(spec, batch, rng, self.config.ridge)
        self._longest = self.features.norm(dim=1).max().item()
        self._spent = self.features.new_zeros(batch)  # (B,): G

    def corruption(self) -> float:
        """C'."""
        if self.config.corruption is not None:
            return self.config.corruption
        amount = self.config.eps * self.config.budget
        return (
            amount * {"v1": self.horizon, "v2": 1 / self.horizon, "v3": 4 / 3}[self.config.variant]
        )

    def act(self, obs: Observation) -> Tensor:
        c, dimension = self.config, self.features.shape[1]
        grown = (self.steps + 1) * self._longest**2 / c.ridge + 1
        beta = c.noise * math.sqrt(dimension * math.log(grown / c.confidence)) + math.sqrt(c.ridge)
        factor = beta + self.corruption() * self._spent.sqrt()  # (B,)
        index = self.means() + factor[:, None] * self.widths()
        return argmax_random_ties(index, self.rng.uniform())

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        self._spent += self.learn(actions, rewards)


class LinearThompsonConfig(Config):
    prior_std: PositiveFloat = math.sqrt(0.5)
    """Standard deviation of each weight: that of N(0, I / 2)."""
    noise_std: PositiveFloat = 0.3
    """Standard deviation of the reward noise, taken as known."""


@AGENTS.register("lin_ts")
class LinearThompsonSampling(RidgeRegression):
    """Thompson sampling for linear rewards (Agrawal and Goyal, 2013) with the exact Gaussian
    posterior: sample weights, pull the arm that is best for them."""

    Config = LinearThompsonConfig
    follows: ClassVar[Follows] = {"noise_std": "noise_std"}

    def __init__(self, config: LinearThompsonConfig | None = None) -> None:
        self.config = config or LinearThompsonConfig()

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        self.begin(spec, batch, rng, (self.config.noise_std / self.config.prior_std) ** 2)

    def act(self, obs: Observation) -> Tensor:
        root = self.config.noise_std * torch.linalg.cholesky(self.inverse)  # (B, D, D)
        drawn = self.weights() + _times(root, self.rng.normal(root.shape[1]))
        return (drawn[:, None, :] * self.features).sum(2).argmax(1)
