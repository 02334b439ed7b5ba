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
from typing import ClassVar

import torch
from torch import Tensor

from mithridate.agents.linear_grid import NativeWeights, tiles
from mithridate.agents.sampling import argmax_random_ties, sample
from mithridate.config import Config, Fraction, NonNegativeFloat, Points, PositiveFloat, Temperature
from mithridate.errors import UserError
from mithridate.native import ALIGNMENT, kernels
from mithridate.registry import AGENTS
from mithridate.rng import TaskStreams
from mithridate.tables import Playing, unchanged
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
        self._functions = self._asked()
        self._native = self._weights_of(prior, batch) if self._in_kernels(len(prior)) else None
        if self._native is None:
            arms = len(features)
            self._logs = prior.repeat(batch, 1)
            self._tables = prior.new_zeros(batch, arms, c.means, len(self._offsets))
            """Log likelihoods."""
            self._said = prior.new_zeros(batch, arms, len(weights))  # of each arm, within `logs`

    def _asked(self) -> Tensor:
        """(K, G): the functions of the weights that it acts on."""
        raise NotImplementedError

    def _in_kernels(self, points: int) -> bool:
        large = min(len(self._values), points) >= ALIGNMENT
        return self._weights.device.type == "cpu" and large and kernels() is not None

    def _weights_of(self, prior: Tensor, batch: int) -> NativeWeights:
        c, ratio, dimension = self.config, self._ratio(), self._features.shape[1]
        scale = math.sqrt(0.5 / math.log(2)) / c.noise_std  # powers of two, of what is squared
        return NativeWeights(
            tiles(c.axis, dimension), prior, self._log_share / math.log(2), self._below,
            self._beyond, self._functions, batch, scale=scale, squeeze=1 / ratio,
            log_clean=math.log2(max(1 - c.eps, 1e-30)),
            log_poisoned=math.log2(max(c.eps, 1e-30) / ratio), grid=self._values,
            moves=self._offsets * (scale / ratio), features=self._products(), dimension=dimension,
        )  # fmt: skip

    def _products(self) -> Tensor | None:
        """(A, K): what an arm's mean and its square are of the functions, if it needs them."""
        return None

    @property
    def logs(self) -> Tensor:
        """(B, G): the posterior, up to a constant."""
        return self._logs if self._native is None else self._native.logs

    def _ratio(self) -> float:
        """Of a poisoned reward's standard deviation to the noise's."""
        return math.hypot(self.config.noise_std, self.config.spread) / self.config.noise_std

    def expected(self) -> Tensor:
        """(B, K): what these functions are on average."""
        if self._native is None:
            return self._logs.softmax(1) @ self._functions.T
        return self._native.expected()

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        if self._native is None:
            self._observe(actions, rewards)
        else:
            self._native.observe(actions, rewards)

    def act(self, obs: Observation) -> Tensor:
        uniforms = self._rng.uniform()
        if self._native is None:
            return self._choose(uniforms)
        return self._native.act(uniforms, self._factor())

    def _choose(self, uniforms: Tensor) -> Tensor:
        """The reference."""
        raise NotImplementedError

    def _factor(self) -> float:
        raise NotImplementedError

    def plays(self, steps: int) -> bool:
        shared = ("reset", "observe", "act", "expected", "logs")
        ours = any(unchanged(self, kind, "_asked", "_products", "_choose", "_factor")
                   for kind in (MixtureLinUCB, MixtureLinTS))  # fmt: skip
        return ours and unchanged(self, MixturePosterior, *shared) and self._native is not None

    def playing(self, steps: int) -> Playing:
        """Whole episodes in the kernels: what it knows afterwards is what it would know."""
        assert self._native is not None
        uniforms = self._rng.ahead("uniform", steps)
        return Playing(self._native.player(), self._factor(), uniforms, "")

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
        self._logs += says - self._said[arm]
        self._said[arm] = says


@AGENTS.register("mixture_linucb")
class MixtureLinUCB(MixturePosterior):
    Config = MixtureLinUCBConfig

    def __init__(self, config: MixtureLinUCBConfig | None = None) -> None:
        self.config: MixtureLinUCBConfig = config or MixtureLinUCBConfig()

    def _asked(self) -> Tensor:
        """Moments: what an arm is worth on average, and its square, follow from these."""
        w = self._weights.T
        return torch.cat([w, (w[:, None] * w).flatten(0, 1)])  # (D + D², G)

    def _products(self) -> Tensor:
        x = self._features
        return torch.cat([x, (x[:, :, None] * x[:, None, :]).flatten(1)], 1)  # (A, D + D²)

    def _choose(self, uniforms: Tensor) -> Tensor:
        d = self._features.shape[1]
        each = self.expected()[:, None] * self._products()  # (B, A, D + D²)
        mean, square = each[..., :d].sum(2), each[..., d:].sum(2)
        variance = (square - mean.square()).clamp(min=0)
        return argmax_random_ties(mean + self._factor() * variance.sqrt(), uniforms)

    def _factor(self) -> float:
        return self.config.width


@AGENTS.register("mixture_lin_ts")
class MixtureLinTS(MixturePosterior):
    Config = MixtureLinTSConfig

    def __init__(self, config: MixtureLinTSConfig | None = None) -> None:
        self.config: MixtureLinTSConfig = config or MixtureLinTSConfig()

    def _asked(self) -> Tensor:
        """Where each arm is the best: on average, how probable that is."""
        best = self._means.argmax(1)  # (G,)
        arms = torch.arange(self._means.shape[1], device=best.device)
        return (arms[:, None] == best).float()  # (A, G)

    def _choose(self, uniforms: Tensor) -> Tensor:
        return sample(self.expected().log() / self._factor(), uniforms)

    def _factor(self) -> float:
        return self.config.temperature
