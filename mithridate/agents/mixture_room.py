"""Bayes' rule for Darkroom2 under attack: the rival that needs no training.

It knows the rules of the room: one cell is worth 1, one is worth 2, each two cells with the same
probability, and rewards are certain. It is told ε, not the budget. With probability ε a reward is
poisoned: an offset −1, 0 or +1 is added, with probabilities p of that cell and action that nobody
knows, p ~ Dirichlet(touched, untouched, touched). So an offset of 0 has probability 1 − ε + ε·p₀,
the others ε·p, and p is integrated out: given what a cell is worth, n₋, n₀ and n₊ offsets at one
cell and action have a likelihood that depends on these counts alone (`log_likelihoods`).

An observation speaks only of the cell that was reached. So the posterior over all pairs of goals is
kept exactly by three numbers for each cell: how well worths of 0, 1 and 2 explain it.

To act, it draws the best goal from the posterior (Thompson sampling), a near one rather than a far
one, goes there and stays for a while. It draws again when that time is over, or when the posterior
turns against its goal: as soon as the goal's probability has fallen by a random factor. With
`keep=0` it draws at every step, and is held to its way by the nearness of where it goes: a policy
without a memory of its own, which a model can be taught (training/teaching.py).
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from mithridate.agents.sampling import sample
from mithridate.config import (
    Config,
    Fraction,
    NonNegative,
    NonNegativeFloat,
    PositiveFloat,
    Temperature,
)
from mithridate.errors import UserError
from mithridate.registry import AGENTS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Follows, Observation

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1), (0, 0))
"""Up, down, left, right, stay: change of row and column."""
LOWEST, SEEN = -1, 5
"""What can be seen: rewards −1, 0, 1, 2, 3. Others say nothing."""
COUNTED = 400
"""Rewards of one cell and action that are counted; by then there is no doubt left."""
SURPRISE = 1e-6
"""No reward is less probable than this: an attack may be none that it can imagine."""


class MixtureRoomConfig(Config):
    eps: Fraction = 0.4
    """Share of poisoned steps."""
    touched: PositiveFloat = 0.3
    """Of the Dirichlet distribution, for the offsets −1 and +1."""
    untouched: PositiveFloat = 0.3
    """The same for an offset of 0."""
    keep: NonNegative = 10
    """Steps that it stays on its goal before it draws again. 0: it draws at every step, and what it
    does depends on nothing but what it has seen and where it is."""
    nearness: NonNegativeFloat = 1.0
    """By how much a step of the way lowers a goal's log-probability of being drawn."""
    temperature: Temperature = 0.7
    """Below 1 the probabilities of the goals are sharpened, as in-context agents do."""


@lru_cache(maxsize=8)
def log_likelihoods(
    eps: float, touched: float, untouched: float, most: int
) -> tuple[Tensor, Tensor]:
    """For counts up to `most`, two tables whose sum is the logarithm of the likelihood of offsets,
    one after the other. By n₀ and n = n₋ + n₊: Σₖ C(n₀, k) (1 − ε)^(n₀−k) ε^(k+n) E[p₀ᵏ (1 − p₀)ⁿ],
    where k of the zeros were poisoned. By n₋ and n₊: how those that are not 0 fall. (In a Dirichlet
    distribution the two are independent.)"""
    eps = min(max(eps, 1e-9), 1 - 1e-9)
    n = torch.arange(most + 1, dtype=torch.float64)
    poisoned, true = torch.tensor([eps, 1 - eps], dtype=torch.float64).log()
    zero, other = torch.tensor([untouched, 2 * touched], dtype=torch.float64)
    moment = _log_beta(zero + n[:, None], other + n) - _log_beta(zero, other)  # (k, n₋ + n₊)
    ways = n.add(1).lgamma()
    rows = []
    for zeros in range(most + 1):
        k = n[: zeros + 1]
        choose = ways[zeros] - ways[: zeros + 1] - ways[: zeros + 1].flip(0)
        terms = choose + (zeros - k) * true + k * poisoned
        rows.append((terms[:, None] + moment[: zeros + 1]).logsumexp(0) + n * poisoned)
    half = torch.tensor(touched, dtype=torch.float64)
    return torch.stack(rows), _log_beta(half + n[:, None], half + n) - _log_beta(half, half)


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return a.lgamma() + b.lgamma() - (a + b).lgamma()


class RoomPosterior:
    """What is known of B rooms."""

    def __init__(self, states: int, actions: int, batch: int, tables: tuple[Tensor, Tensor]):
        self._zeros, self._others = tables
        device = self._zeros.device
        self._rows = torch.arange(batch, device=device)
        self._counts = torch.zeros(batch, states, actions, SEEN, dtype=torch.int64, device=device)
        self.evidence = torch.zeros(batch, states, 3, dtype=torch.float64, device=device)
        """(B, S, 3): log-likelihood of what was seen on reaching a cell, if it is worth 0, 1, 2."""

    def observe(self, cells: Tensor, actions: Tensor, rewards: Tensor, reached: Tensor) -> None:
        at = (self._rows, cells, actions)
        before = self._counts[at]  # (B, SEEN)
        seen = torch.arange(LOWEST, LOWEST + SEEN, device=rewards.device) == rewards[:, None]
        seen &= before.sum(1, keepdim=True) < len(self._zeros) - 1
        after = before + seen
        gained = (self._log_likelihood(after) - self._log_likelihood(before)).clamp(
            min=torch.tensor(SURPRISE).log().item()
        )
        # Offsets by more than one change no counts around a worth, and are a surprise there.
        possible = seen.unfold(1, 3, 1).any(2)  # (B, 3)
        gained = torch.where(possible, gained, torch.tensor(SURPRISE, dtype=gained.dtype).log())
        self._counts[at] = after
        self.evidence[self._rows, reached] += torch.where(seen.any(1, keepdim=True), gained, 0.0)

    def _log_likelihood(self, counts: Tensor) -> Tensor:
        """(B, 3): of the counts (B, SEEN) at one cell and action, by what it leads to is worth."""
        minus, zero, plus = counts.unfold(1, 3, 1).unbind(2)  # (B, 3) each
        return self._zeros[zero, minus + plus] + self._others[minus, plus]

    def best(self) -> Tensor:
        """(B, S): the logarithm of the probability that a cell is worth 2."""
        return self._marginal(worth=2, other=1)

    def lesser(self) -> Tensor:
        """(B, S): the same for 1."""
        return self._marginal(worth=1, other=2)

    def _marginal(self, worth: int, other: int) -> Tensor:
        gain = self.evidence[..., 1:] - self.evidence[..., :1]  # (B, S, 2): as against nothing
        mine, theirs = gain[..., worth - 1], gain[..., other - 1]
        nothing = torch.full_like(theirs[:, :1], -torch.inf)
        before = torch.cat([nothing, theirs.logcumsumexp(1)[:, :-1]], 1)
        after = torch.cat([nothing, theirs.flip(1).logcumsumexp(1)[:, :-1]], 1).flip(1)
        # The other goal is any other cell.
        return torch.log_softmax(mine + torch.logaddexp(before, after), 1)


@AGENTS.register("mixture_room")
class MixtureRoom:
    light = True
    Config = MixtureRoomConfig
    follows: ClassVar[Follows] = {"eps": "eps"}

    def __init__(self, config: MixtureRoomConfig | None = None) -> None:
        self.config = config or MixtureRoomConfig()

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None:
        if spec.name != "darkroom2" or spec.n_states is None:
            raise UserError("mixture_room needs a room with two goals: darkroom2")
        c = self.config
        most = min(spec.horizon, COUNTED)
        tables = log_likelihoods(c.eps, c.touched, c.untouched, most)
        self._rng = rng
        self._rows = torch.arange(batch, device=rng.device)
        self.posterior = RoomPosterior(
            spec.n_states, spec.n_actions, batch,
            (tables[0].to(rng.device), tables[1].to(rng.device)),
        )  # fmt: skip
        self._after, self._apart = (table.to(rng.device) for table in _room(spec.n_states))
        self.goal = torch.zeros(batch, dtype=torch.int64, device=rng.device)
        """(B,): the cell that it takes for the best one."""
        self._left = torch.zeros_like(self.goal)  # steps that it still stays there
        self._floor = torch.full((batch,), torch.inf, dtype=torch.float64, device=rng.device)

    def act(self, obs: Observation) -> Tensor:
        assert isinstance(obs, Tensor)
        c, best = self.config, self.posterior.best()
        drawn, doubt = self._rng.uniform(2).double().unbind(1)
        tired = (obs == self.goal) & (self._left == 0)
        again = tired | (best[self._rows, self.goal] < self._floor) | (c.keep == 0)
        logits = best / c.temperature - c.nearness * self._apart[obs]
        self.goal = torch.where(again, sample(logits, drawn[:, None]), self.goal)
        floor = best[self._rows, self.goal] + doubt.clamp(min=1e-6).log()
        self._floor = torch.where(again, floor, self._floor)
        self._left = torch.where(again, c.keep, self._left)
        self._left -= (obs == self.goal).long()
        return self._way(obs, best)

    def _way(self, obs: Tensor, best: Tensor) -> Tensor:
        """(B,): a step of a shortest way to the goal; of several, to the more promising cell. On
        the goal it stays."""
        reached = self._after[obs]  # (B, A)
        far = self._apart[reached, self.goal[:, None]].double()
        worth = (2 * best.exp() + self.posterior.lesser().exp()).gather(1, reached)
        staying = torch.arange(len(MOVES), device=obs.device) == len(MOVES) - 1
        return (far - 0.2 * worth - 0.01 * staying).argmin(1)

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        assert isinstance(obs, Tensor) and isinstance(next_obs, Tensor)
        self.posterior.observe(obs, actions, rewards, next_obs)


@lru_cache(maxsize=8)
def _room(states: int) -> tuple[Tensor, Tensor]:
    """(S, A): the cell that each action leads to; (S, S): steps from one cell to another."""
    size = int(states**0.5)
    cells = torch.arange(states)
    rows, columns = cells // size, cells % size
    after = [
        (rows + down).clamp(0, size - 1) * size + (columns + right).clamp(0, size - 1)
        for down, right in MOVES
    ]
    apart = (rows[:, None] - rows).abs() + (columns[:, None] - columns).abs()
    return torch.stack(after, 1), apart
