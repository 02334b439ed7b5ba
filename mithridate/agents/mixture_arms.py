"""Bayes' rule for arms whose rewards may be poisoned: the rival that needs no training.

A reward of arm a is taken for (1 − ε)·N(μₐ, s²) + ε·N(μₐ + φₐ, s² + r²): with μₐ uniform on [0, 1],
the offset φₐ 0 with probability `untouched`, else N(0, w²), and the attacker's spread r one of a
few. How large offsets are (w), and how many rewards are poisoned (ε) if that is not told, is the
same for all arms, so it is learned from all of them: each arm has a table over (ε, r, μ, φ), of
which only the pulled arm's changes; the evidence for each (ε, w) is the product over the arms.

Given (ε, w) arms are independent, so how probable it is that an arm is the best one is a sum over
the grid of μ. The agent draws an arm with this probability, sharpened by a `temperature`: under
attack the posterior stays broad for long, and posterior sampling pays for it at every step.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from mithridate.agents.sampling import sample
from mithridate.config import Config, Fraction, PositiveFloat, Temperature, as_tuple
from mithridate.errors import UserError
from mithridate.registry import AGENTS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Follows, Observation

EPS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.48)
"""Shares of poisoned steps that are told apart, if it is not known."""
POINTS = 51
"""Values of an arm's mean that are told apart, 0 to 1."""
EVERY = 6
"""Offsets are told apart in so many steps of the grid of means: 0.12."""
FARTHEST = 26
"""The largest offset, in these units: 3.12."""
TINY = 1e-20

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
    temperature: Temperature = 0.35
    """Below 1 the probabilities of the arms are sharpened, as in-context agents do."""


@AGENTS.register("mixture_ts")
class MixtureTS:
    Config = MixtureTSConfig
    follows: ClassVar[Follows] = {"eps": "eps", "noise_std": "noise_std"}

    def __init__(self, config: MixtureTSConfig | None = None) -> None:
        self.config = config or MixtureTSConfig()

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        if spec.observation is not None or spec.features is not None:
            raise UserError("mixture_ts needs an environment whose arms are independent: a bandit")
        c, device, arms = self.config, rng.device, spec.n_actions
        self._rng, self._rows = rng, torch.arange(batch, device=device)
        shares = EPS if c.eps is None else (c.eps,)
        self._eps = torch.tensor(shares, device=device)  # (E,)
        step = 1 / (POINTS - 1)
        self._means = step * torch.arange(POINTS, device=device)  # (G,)
        places = torch.arange(-EVERY * FARTHEST, POINTS + EVERY * FARTHEST, device=device)
        self._places = step * places  # every mean + offset
        self._noise = torch.tensor([c.noise_std], device=device)
        spreads = torch.tensor(c.spreads, device=device)
        self._widths = (spreads.square() + c.noise_std**2).sqrt()  # (R,)
        offsets = EVERY * step * torch.arange(-FARTHEST, FARTHEST + 1, device=device)  # (O,)
        scales = torch.tensor(c.scales, device=device)
        slab = (-0.5 * (offsets / scales[:, None]) ** 2).softmax(1)  # (W, O)
        untouched = (offsets == 0).float()
        share = c.untouched * untouched + (1 - c.untouched) * slab
        self._share = share.T.contiguous()  # (O, W)
        size = (batch, arms, len(shares), len(spreads), POINTS, len(offsets))
        self._tables = torch.ones(size, device=device)
        """(B, A, E, R, G, O): likelihoods, up to a factor for each task and arm."""
        self.beliefs = torch.full(
            (batch, arms, len(shares) * len(scales), POINTS), 1 / POINTS, device=device
        )
        """(B, A, E·W, G): of each arm's mean, given ε and w."""
        self._evidence = torch.zeros(batch, arms, self.beliefs.shape[2], device=device)

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        arm = (self._rows, actions)
        clean = self._density(
            rewards, self._means, self._widths.new_tensor([self.config.noise_std])
        )
        moved = self._density(rewards, self._places, self._widths)  # (B, R, mean + offset)
        # Of the mean g and the offset o, the value at g + EVERY · o: a view, and no copy.
        strides = (moved.stride(0), moved.stride(1), moved.stride(2), EVERY * moved.stride(2))
        shape = (len(rewards), moved.shape[1], POINTS, 2 * FARTHEST + 1)
        moved = moved.as_strided(shape, strides)[:, None]  # (B, 1, R, G, O)
        eps = self._eps[:, None, None, None]
        table = self._tables[arm] * ((1 - eps) * clean[:, None, :, :, None] + (eps * moved + TINY))
        most = table.flatten(1).amax(1)
        table = table / most[:, None, None, None, None]
        self._tables[arm] = table
        belief = (table.sum(2) @ self._share).transpose(2, 3).flatten(1, 2)  # (B, E·W, G)
        total = belief.sum(2)
        # The factors are the same for all ε and w, and so is what they add here.
        self._evidence[arm] = total.clamp(min=TINY).log()
        self.beliefs[arm] = belief / total.clamp(min=TINY)[..., None]

    def _density(self, rewards: Tensor, values: Tensor, widths: Tensor) -> Tensor:
        """(B, widths, values): of the rewards, up to a factor."""
        away = (rewards[:, None, None] - values) / widths[:, None]
        density: Tensor = (-0.5 * away.square()).exp() / widths[:, None]
        return density

    def best(self) -> Tensor:
        """(B, A): how probable it is that each arm is the best one."""
        weights = self._evidence.sum(1).softmax(1)  # (B, E·W)
        below = self.beliefs.cumsum(3) - 0.5 * self.beliefs  # (B, A, E·W, G)
        logs = below.clamp(min=TINY).log()
        others = (logs.sum(1, keepdim=True) - logs).exp()
        wins = (self.beliefs * others).sum(3)  # (B, A, E·W)
        wins = wins / wins.sum(1, keepdim=True)
        return (wins * weights[:, None]).sum(2)

    def act(self, obs: Observation) -> Tensor:
        logits = self.best().clamp(min=TINY).log() / self.config.temperature
        return sample(logits, self._rng.uniform())
