"""Bayes' rule for linear rewards that may be poisoned, with two ways to act on it.

A reward of arm a is taken for (1 − ε)·N(μₐ, s²) + ε·N(μₐ + φₐ, s² + r²) with μ = X w and
w ~ N(0, σ² I); r is the `spread` of what an attacker adds.
The offsets φ are unknown and independent: 0 with probability `untouched`, else N(0, `slab`²). They
are summed out arm by arm, on a grid of means and offsets; what remains is a posterior over a grid
of weights. `mixture_linucb` pulls the arm with the largest mean + `width` · standard deviation of
μₐ; `mixture_lin_ts` draws an arm as often as it is the best one, like a DPT that has learned this
very posterior.

They are the reference for what can be had without knowing the attack. They are told more than
LinUCB: ε, the noise and the prior, but nothing that a model does not learn in its training.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from mithridate.agents.sampling import argmax_random_ties, sample
from mithridate.config import Config, Fraction, NonNegativeFloat, Points, PositiveFloat, Temperature
from mithridate.errors import UserError
from mithridate.model.threads import kernel_threads
from mithridate.native import ALIGNMENT, kernels
from mithridate.registry import AGENTS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Follows, Observation

REACH = 4.0
"""Of the grid of weights, in standard deviations."""
FARTHEST = 3.0
"""Of the grid of offsets, in standard deviations of the slab."""


class MixtureConfig(Config):
    eps: Fraction = 0.4
    """Share of poisoned steps."""
    prior_std: PositiveFloat = math.sqrt(0.5)
    """Standard deviation of each weight."""
    noise_std: PositiveFloat = 0.3
    """Of the rewards' noise."""
    untouched: Fraction = 0.5
    """How probable it is that an arm has no offset."""
    slab: PositiveFloat = 1.5
    """Standard deviation of the others' offsets."""
    spread: NonNegativeFloat = 0.2
    """Of what an attacker adds, around its offset."""
    axis: Points = 49
    """Points of the grid along each axis of the weights."""
    means: Points = 121
    """Values of an arm's mean that are told apart."""
    offsets: Points = 25
    """Values of its offset."""


class MixtureLinUCBConfig(MixtureConfig):
    width: NonNegativeFloat = 1.5
    """Factor of the posterior's standard deviation."""


class MixtureLinTSConfig(MixtureConfig):
    temperature: Temperature = 1.0
    """Below 1 the probabilities of the arms are sharpened, as in-context agents do."""


class MixturePosterior:
    """What is known of the weights, which both share."""

    registered_name: str
    config: MixtureConfig
    follows: ClassVar[Follows] = {"eps": "eps", "noise_std": "noise_std"}

    @property
    def light(self) -> bool:
        """In the kernels, PyTorch has little to do."""
        return kernels() is not None

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        if spec.features is None or len(spec.features[0]) > 2:
            raise UserError(
                f"{self.registered_name} needs an environment whose arms have one or two features, "
                "such as linear_bandit"
            )
        c, device = self.config, rng.device
        self._rng, self._rows = rng, torch.arange(batch, device=device)
        features = torch.tensor(spec.features, device=device)  # (A, D)
        line = c.prior_std * torch.linspace(-REACH, REACH, c.axis, device=device)
        weights = torch.cartesian_prod(*[line] * features.shape[1]).view(-1, features.shape[1])
        self._features, self._weights = features, weights
        self._means = weights @ features.T  # (G, A): what each arm is worth for each weight
        prior = -0.5 * weights.square().sum(1) / c.prior_std**2  # (G,)
        self.logs = prior.repeat(batch, 1)
        """(B, G): the posterior, up to a constant."""
        most = self._means.abs().max().item()
        self._values = torch.linspace(-most, most, c.means, device=device)  # (M,)
        place = (self._means.T + most) / (2 * most) * (c.means - 1)  # (A, G), within the values
        self._below = place.floor().long().clamp(0, c.means - 2)
        self._beyond = place - self._below
        farthest = FARTHEST * c.slab
        offsets = torch.linspace(-farthest, farthest, c.offsets, device=device)
        slab = (-0.5 * (offsets / c.slab) ** 2).softmax(0)
        self._offsets = torch.cat([offsets.new_zeros(1), offsets])  # (O,): none, and the slab's
        share = torch.cat([slab.new_tensor([c.untouched]), (1 - c.untouched) * slab])
        self._log_share = share.log()
        arms = len(features)
        self._tables = prior.new_zeros(batch, arms, c.means, len(self._offsets))
        """Log likelihoods; in the kernels offsets come first, and logarithms are to base 2."""
        self._said = prior.new_zeros(batch, arms, len(weights))  # of each arm, within `logs`
        self._native = self._mixture() if self._in_kernels() else None

    def _in_kernels(self) -> bool:
        large = min(len(self._values), self.logs.shape[1]) >= ALIGNMENT
        return self.logs.device.type == "cpu" and large and kernels() is not None

    def _mixture(self) -> Any:
        c, ratio = self.config, self._ratio()
        clean, poisoned = math.log2(max(1 - c.eps, 1e-30)), math.log2(max(c.eps, 1e-30) / ratio)
        return kernels().LinearMixture(
            c.noise_std, ratio, clean, poisoned, self._values, self._offsets / c.noise_std,
            self._log_share / math.log(2), self._below.int(), self._beyond, len(self._below),
        )  # fmt: skip

    def _ratio(self) -> float:
        """Of a poisoned reward's standard deviation to the noise's."""
        return math.hypot(self.config.noise_std, self.config.spread) / self.config.noise_std

    def expected(self, rows: Tensor) -> Tensor:
        """(B, K): what functions of the weights (K, G) are on average."""
        if self._native is None:
            return self.logs.softmax(1) @ rows.T
        found = torch.empty(len(self.logs), len(rows))
        kernels().expectations(self.logs, rows, found, rows.shape[1], kernel_threads())
        return found

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        if self._native is None:
            self._observe(actions, rewards)
            return
        self._native.observe(
            self._tables, self._said, self.logs, actions.contiguous(),
            rewards.float().contiguous(), kernel_threads(),
        )  # fmt: skip

    def _observe(self, actions: Tensor, rewards: Tensor) -> None:
        """The reference."""
        c, arm = self.config, (self._rows, actions)
        away = (rewards[:, None] - self._values) / c.noise_std  # (B, M)
        clean = -0.5 * away.square() + math.log(max(1 - c.eps, 1e-30))
        ratio = self._ratio()
        moved = (away[..., None] - self._offsets / c.noise_std) / ratio  # (B, M, O)
        poisoned = -0.5 * moved.square() + math.log(max(c.eps, 1e-30) / ratio)
        table = self._tables[arm] + torch.logaddexp(clean[..., None], poisoned)
        self._tables[arm] = table
        marginal = torch.logsumexp(table + self._log_share, 2)  # (B, M)
        below, beyond = self._below[actions], self._beyond[actions]  # (B, G)
        low, high = marginal.gather(1, below), marginal.gather(1, below + 1)
        says = low + beyond * (high - low)
        self.logs += says - self._said[arm]
        self._said[arm] = says


@AGENTS.register("mixture_linucb")
class MixtureLinUCB(MixturePosterior):
    Config = MixtureLinUCBConfig

    def __init__(self, config: MixtureLinUCBConfig | None = None) -> None:
        self.config: MixtureLinUCBConfig = config or MixtureLinUCBConfig()

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        super().reset(spec, batch, rng)
        # Of the weights: what an arm is worth on average, and its square, follow from these.
        w, d = self._weights.T, self._weights.shape[1]
        self._moments = torch.cat([w, (w[:, None] * w).flatten(0, 1)])  # (D + D², G)
        x = self._features
        self._pairs = (x[:, :, None] * x[:, None, :]).view(-1, d * d)  # (A, D²)

    def act(self, obs: Observation) -> Tensor:
        found = self.expected(self._moments)
        d = self._features.shape[1]
        first, second = found[:, :d], found[:, d:]
        mean = (first[:, None] * self._features).sum(2)  # (B, A)
        square = (second[:, None] * self._pairs).sum(2)
        variance = (square - mean.square()).clamp(min=0)
        return argmax_random_ties(mean + self.config.width * variance.sqrt(), self._rng.uniform())


@AGENTS.register("mixture_lin_ts")
class MixtureLinTS(MixturePosterior):
    Config = MixtureLinTSConfig

    def __init__(self, config: MixtureLinTSConfig | None = None) -> None:
        self.config: MixtureLinTSConfig = config or MixtureLinTSConfig()

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        super().reset(spec, batch, rng)
        best = self._means.argmax(1)  # (G,)
        arms = torch.arange(self._means.shape[1], device=best.device)
        self._best = (arms[:, None] == best).float()  # (A, G)

    def act(self, obs: Observation) -> Tensor:
        arms = self.expected(self._best)  # (B, A): how probable it is that each is the best
        return sample(arms.log() / self.config.temperature, self._rng.uniform())
