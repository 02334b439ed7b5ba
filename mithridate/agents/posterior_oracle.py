"""Posterior sampling that knows eps and the attack: what no victim can beat by much.

For an arm with mean μ, a reward is seen with density (1 − ε)·N(μ, s²) + ε·N(μ + φ, s² + σ²). The
posterior over a grid is exact: of each arm's mean on [0, 1], or, where arms have features, of the
weights, which all arms share. The arm is chosen by sampling from it.

Offsets that are made from the arms' means (`mirror`) give them away to whoever knows them. With
`knows=rule` it knows how they are made, but not the offsets: what can be learned at all from
rewards poisoned like this.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from mithridate.agents.oracle_grid import NativeGrid, attack_on
from mithridate.capabilities import has_rule, is_transparent
from mithridate.config import Config, Points
from mithridate.errors import UserError
from mithridate.native import kernels
from mithridate.registry import AGENTS
from mithridate.rng import TaskStreams
from mithridate.tables import Playing, unchanged
from mithridate.types import EnvSpec, Observation, Secrets


class PosteriorOracleConfig(Config):
    grid: Points = 101
    """Values of the mean that are told apart."""
    axis: Points = 41
    """Where arms have features: points along each axis of the weights' grid."""
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
        noise = self.secrets.env.config.facts().get("noise_std")
        if noise is None or spec.observation is not None:
            raise UserError("posterior_oracle needs a bandit with Gaussian noise")
        self._noise = noise
        self._rows, self._arms = torch.arange(batch, device=rng.device), spec.n_actions
        self.belief: _Arms | _Weights | NativeGrid
        if spec.features is None:
            self.belief = _Arms(spec, batch, self.config.grid, rng)
        elif self._in_kernels(spec, rng):
            features, reach = torch.tensor(spec.features), _Weights.REACH
            self.belief = NativeGrid(features, batch, self.config.axis, reach, noise, rng)
        else:
            self.belief = _Weights(spec, batch, self.config.axis, rng)

    def _in_kernels(self, spec: EnvSpec, rng: TaskStreams) -> bool:
        plain = self.config.knows == "offsets" and self._noise > 0 and rng.device.type == "cpu"
        two = spec.features is not None and len(spec.features[0]) == 2
        return plain and two and kernels() is not None

    def act(self, obs: Observation) -> Tensor:
        if isinstance(self.belief, NativeGrid):
            return self.belief.act()
        return self.belief.sample().argmax(1)

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None:
        if isinstance(self.belief, NativeGrid):
            self.belief.observe(actions, rewards, attack_on(*self._attack(), self._noise))
        else:
            self.belief.update(actions, self._evidence(actions, rewards))

    def _attack(self) -> tuple[Tensor, Tensor, Tensor]:
        """What it is at this moment: the share of poisoned steps (B, 1), what is added to each
        arm's rewards, and their standard deviations (B, A)."""
        attacker = self.secrets.attacker
        if attacker is None:
            std = self._rows.new_full((len(self._rows), self._arms), self._noise, dtype=torch.float)
            return torch.zeros_like(std[:, :1]), torch.zeros_like(std), std
        if not is_transparent(attacker):
            raise UserError(f"posterior_oracle does not know {type(attacker).__name__}'s attacks")
        added = attacker.adds()
        shift = added.mean[:, 0]
        variance = torch.full_like(shift, self._noise**2)
        if added.spread is not None:
            variance = variance + added.spread[:, 0] ** 2
        eps = torch.as_tensor(self.secrets.eps, dtype=shift.dtype, device=shift.device)
        return eps.expand(len(shift))[:, None], shift, variance.sqrt()

    def _evidence(self, actions: Tensor, rewards: Tensor) -> Evidence:
        """What the rewards say, given what the attack is at this moment."""
        noise = torch.tensor(self._noise, device=rewards.device)
        attacker = self.secrets.attacker
        if attacker is None:
            return lambda means: _log_normal(rewards[:, None] - means, noise)
        eps, shifts, stds = self._attack()
        rule: Callable[[Tensor], Tensor] | None = None
        if self.config.knows == "rule":
            if not has_rule(attacker):
                raise UserError("posterior_oracle(knows=rule): this attack has no rule; see mirror")
            rule = attacker.rule
        shift, std = (x[self._rows, actions][:, None] for x in (shifts, stds))  # (B, 1)

        def log_likelihood(means: Tensor) -> Tensor:
            residual = rewards[:, None] - means
            moved = residual - (shift if rule is None else rule(means))
            clean = (1 - eps).log() + _log_normal(residual, noise)
            poisoned = eps.log() + _log_normal(moved, std)
            return torch.logaddexp(clean, poisoned)

        return log_likelihood

    # Whole episodes in the kernels -------------------------------------------------------------

    def plays(self, steps: int) -> bool:
        asked = ("reveal", "reset", "act", "observe", "_attack", "_in_kernels")
        known = self.secrets.attacker is None or is_transparent(self.secrets.attacker)
        ours = unchanged(self, PosteriorOracle, *asked)
        return ours and known and type(self.belief) is NativeGrid

    def playing(self, steps: int) -> Playing:
        """Attacks that are tables are fixed. What it knows afterwards is what it would know."""
        assert isinstance(self.belief, NativeGrid)
        attack = attack_on(*self._attack(), self._noise)
        player, uniforms = self.belief.player(steps, attack)
        return Playing(player, 1.0, uniforms, "")


Evidence = Callable[[Tensor], Tensor]
"""The log likelihood (B, G) of a reward, for what the pulled arm's mean may be (B, G)."""


class _Arms:
    """Independent arms: G values for the mean of each."""

    def __init__(self, spec: EnvSpec, batch: int, grid: int, rng: TaskStreams) -> None:
        self._rng = rng
        self._rows = torch.arange(batch, device=rng.device)
        self._grid = torch.linspace(0, 1, grid, device=rng.device)  # (G,)
        self._logs = torch.zeros(batch, spec.n_actions, grid, device=rng.device)
        self.cdf = self._logs.softmax(2).cumsum(2)  # (B, A, G)

    def update(self, actions: Tensor, evidence: Evidence) -> None:
        arm = (self._rows, actions)
        self._logs[arm] += evidence(self._grid.expand(len(actions), -1))
        self.cdf[arm] = self._logs[arm].softmax(1).cumsum(1)

    def sample(self) -> Tensor:
        """(B, A)."""
        uniform = self._rng.uniform(self.cdf.shape[1])[..., None]  # (B, A, 1)
        place = (self.cdf < uniform).sum(2).clamp(max=len(self._grid) - 1)
        return self._grid[place]


class _Weights:
    """Linear arms with weights from N(0, I / D): a grid around where each task's may be, laid anew,
    and narrower, whenever there are twice as many rewards."""

    REACH = 5.0
    """Of the grid, in standard deviations."""

    def __init__(self, spec: EnvSpec, batch: int, axis: int, rng: TaskStreams) -> None:
        self._rng = rng
        self._features = torch.tensor(spec.features, device=rng.device)  # (A, D)
        dimension = self._features.shape[1]
        if dimension > 2:
            raise UserError("posterior_oracle needs features of at most two dimensions")
        line = torch.linspace(-self.REACH, self.REACH, axis, device=rng.device)
        self._grid = torch.cartesian_prod(*[line] * dimension).view(-1, dimension)  # (G, D)
        self._step = 2 * self.REACH / (axis - 1)
        self._seen: list[tuple[Tensor, Evidence]] = []
        eye = torch.eye(dimension, device=rng.device).expand(batch, -1, -1)
        self._lay(eye.new_zeros(batch, dimension), eye / dimension)

    def _lay(self, centre: Tensor, covariance: Tensor) -> None:
        """A grid around `centre` (B, D), along the axes of `covariance` (B, D, D)."""
        self._root: Tensor = torch.linalg.cholesky(covariance)
        self.weights: Tensor  # (B, G, D)
        self.weights = centre[:, None] + (self._root[:, None] * self._grid[:, None, :]).sum(3)
        self.logs = -0.5 * len(self._features[0]) * self.weights.square().sum(2)  # (B, G): prior
        for actions, evidence in self._seen:
            self.logs += evidence(self._means(actions))

    def _means(self, actions: Tensor) -> Tensor:
        return (self.weights * self._features[actions][:, None, :]).sum(2)

    def update(self, actions: Tensor, evidence: Evidence) -> None:
        self._seen.append((actions, evidence))
        self.logs += evidence(self._means(actions))
        number = len(self._seen)
        if number >= 4 and number & (number - 1) == 0:
            share = self.logs.softmax(1)[..., None]  # (B, G, 1)
            centre = (share * self.weights).sum(1)
            away = self.weights - centre[:, None]
            covariance = (share[..., None] * away[..., :, None] * away[..., None, :]).sum(1)
            # No narrower than what this grid can tell apart.
            cell = self._step * self._root
            cell = (cell[:, :, None] * cell[:, None, :]).sum(3)
            self._lay(centre, covariance + cell / 12)

    def sample(self) -> Tensor:
        """(B, A). Between the points of the grid, anywhere."""
        uniform = self._rng.uniform(1 + self._grid.shape[1])  # (B, 1 + D)
        cdf = self.logs.softmax(1).cumsum(1)
        place = torch.searchsorted(cdf, uniform[:, :1].contiguous()).clamp(max=len(self._grid) - 1)
        jitter = (self._root * (self._step * (uniform[:, None, 1:] - 0.5))).sum(2)  # (B, D)
        index = place[..., None].expand(-1, -1, self.weights.shape[2])
        weights = self.weights.gather(1, index).squeeze(1) + jitter
        return (weights[:, None, :] * self._features).sum(2)


def _log_normal(x: Tensor, std: Tensor) -> Tensor:
    return -0.5 * (x / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)
