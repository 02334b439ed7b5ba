"""Bayes' rule for arms whose rewards may be poisoned: the rival that needs no training.

A reward of arm a is taken for (1 − ε)·N(μₐ, s²) + ε·N(μₐ + φₐ, s² + r²): with μₐ uniform on [0, 1],
the offset φₐ 0 with probability `untouched`, else N(0, w²), and the attacker's spread r one of a
few. How large offsets are (w), and how many rewards are poisoned (ε) if that is not told, is the
same for all arms, so it is learned from all of them: each arm has a table over (ε, r, μ, φ), of
which only the pulled arm's changes; the evidence for each (ε, w) is the product over the arms.

With `prior=searched`, offsets depend on an arm's mean and on whether it is the best one
(mixture_prior.py).

Given (ε, w) arms are independent, so how probable it is that an arm is the best one is a sum over
the grid of μ. The agent draws an arm with this probability, sharpened by a `temperature`: under
attack the posterior stays broad for long, and posterior sampling pays for it at every step.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from mithridate.agents.in_context import SPENT
from mithridate.agents.mixture_grid import NativePosterior, Posterior, make_grid, make_posterior
from mithridate.agents.mixture_prior import with_searched
from mithridate.config import Config, Fraction, PositiveFloat, Temperature, as_tuple
from mithridate.errors import UserError
from mithridate.native import kernels
from mithridate.registry import AGENTS
from mithridate.rng import TaskStreams
from mithridate.searched import searched
from mithridate.tables import Playing, unchanged
from mithridate.types import EnvSpec, Follows, Observation

EPS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.48)
"""Shares of poisoned steps that are told apart, if it is not known."""

Scales = Annotated[
    tuple[PositiveFloat, ...], BeforeValidator(as_tuple), Field(min_length=1, max_length=8)
]


class MixtureTSConfig(Config):
    eps: Fraction | None = 0.4
    """Share of poisoned steps; null to infer it, below one half."""
    noise_std: PositiveFloat = 0.3
    """Of the rewards' noise."""
    untouched: Fraction = 0.15
    """How probable it is that an arm has no offset."""
    scales: Scales = (0.3, 0.7, 1.4)
    """Standard deviations w of the others' offsets, equally probable."""
    spreads: Scales = (0.02, 0.3, 0.6)
    """Standard deviations r of what an attacker adds around its offset, equally probable."""
    prior: Literal["unrelated", "searched"] = "unrelated"
    """Offsets that have nothing to do with the arms' means, or those of attacks that searches have
    found; these are of a budget of 3."""
    temperature: Temperature = 0.6
    """Below 1 the probabilities of the arms are sharpened, as in-context agents do."""

    @model_validator(mode="after")
    def _consistent(self) -> MixtureTSConfig:
        if self.prior == "searched" and self.eps is None:
            raise ValueError("prior: 'searched' needs eps, the share of poisoned steps")
        return self


@AGENTS.register("mixture_ts")
class MixtureTS:
    Config = MixtureTSConfig
    follows: ClassVar[Follows] = {"eps": "eps", "noise_std": "noise_std"}

    def __init__(self, config: MixtureTSConfig | None = None) -> None:
        self.config = config or MixtureTSConfig()

    @property
    def light(self) -> bool:
        """In the kernels, PyTorch has nothing to do."""
        return kernels() is not None

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        if spec.observation is not None or spec.features is not None:
            raise UserError("mixture_ts needs an environment whose arms are independent: a bandit")
        c = self.config
        shares = EPS if c.eps is None else (c.eps,)
        grid = make_grid(
            spec.n_actions, c.noise_std, shares, c.untouched, c.scales, c.spreads, rng.device
        )
        if c.prior == "searched" and c.eps is not None:
            grid = with_searched(grid, searched(c.eps))
        self._rng, self._posterior = rng, make_posterior(grid, batch)
        self._spent = False
        """Whether its episodes were played in the kernels, and nothing is left to ask it about."""

    @property
    def posterior(self) -> Posterior:
        if self._spent:
            raise UserError(SPENT)
        return self._posterior

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        self.posterior.observe(actions, rewards)

    def best(self) -> Tensor:
        """(B, A): how probable it is that each arm is the best one."""
        return self.posterior.best()

    def act(self, obs: Observation) -> Tensor:
        return self.posterior.draw(self._rng.uniform(), self.config.temperature)

    # Whole episodes in the kernels -------------------------------------------------------------

    def plays(self, steps: int) -> bool:
        asked = ("reset", "posterior", "act", "best", "observe")
        return unchanged(self, MixtureTS, *asked) and type(self._posterior) is NativePosterior

    def playing(self, steps: int) -> Playing:
        assert isinstance(self._posterior, NativePosterior)
        self._spent = True
        uniforms = self._rng.ahead("uniform", steps)
        return Playing(self._posterior.player(), self.config.temperature, uniforms, "")
