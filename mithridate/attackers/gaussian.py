"""The learned non-adaptive attacker of the bandit setting (paper, sections 3.2 and 4).

For each task and arm a Gaussian offset, N(φ, σ²), added to the true reward; φ and σ are learned
by REINFORCE (Williams, 1992) on the paper's objective (equation 1),

    E[Σ −r̄] − λ·max(0, ‖φ‖₂ − B) − λ·max(0, ‖σ‖₂ − B_σ),

from true rewards r̄ only; the victim is a black box. What the paper leaves open:

- An offset acts on what comes *after* it, and only if its step was contaminated: the score of such
  a step is weighted by the true rewards that follow, minus what they would be if the episode's
  mean went on (a linear baseline), and divided by their standard deviation over the episode.
- Of several episodes of a task, the gradients are averaged.
- One update is not enough for an episode of 500 steps, so a round makes several on the same data.
- The penalty is soft, and dividing by the standard deviation changes the scale it works against:
  norms drift to 5 where 3 is allowed. `project` (default) puts φ and σ back onto the budget after
  every update. At evaluation they are projected in any case.
- An attack that works leaves rewards that are low throughout, and its next gradient is noise: in
  the linear bandit attackers that go on learning lose what they had found. With `keep=best` a
  task's attack is in the end the one under which the victim earned least; by default it is the
  last.
- Independent noise at every step hardly ever looks like a steady shift, which is what hurts, and
  comparing an episode with its own mean cancels an attack that works from the first step to the
  last. With `explore=episode` the luck is in φ, drawn once per episode (in pairs, φ ± noise) and
  kept; what counts is what the victim earned in the whole episode, compared with the task's other
  episodes. That is REINFORCE over the attack's parameters, along the natural gradient of the
  Gaussian that φ is drawn from: its mean and the noise of each arm (Wierstra et al., 2014, the
  separable form). A round makes one update, with a rate that falls to a half. σ is not learned.
- The text calls σ a variance, the hyper-parameters speak of a covariance: `spread_norm` says
  whether the penalty takes standard deviations or variances.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import model_validator
from torch import Tensor

from mithridate.attackers.arm_offsets import NEEDS_ARMS, ArmOffsets, are_arms
from mithridate.attackers.task_parameters import Episodes, LearnsPerTask, PerTask, adam, moments
from mithridate.budget import excess, norm, project
from mithridate.config import Config, NonNegativeFloat, Positive, PositiveFloat
from mithridate.errors import UserError
from mithridate.registry import ATTACKERS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Tasks, Trajectory

PARAMETERS = ("offsets", "log_spreads")
NOISE = (math.log(0.1), 1.0)
"""Between these is the logarithm of the luck in φ, with explore=episode."""
UNMET = 1e9
"""What the victim earned in the best round before the first: more than it ever will."""


class GaussianConfig(Config):
    budget: NonNegativeFloat = 3.0
    """Bound B on the norm of the mean offsets φ."""
    spread_budget: NonNegativeFloat = 1.0
    """Bound B_σ on the norm of the spreads σ."""
    spread_norm: Literal["std", "variance"] = "std"
    """Whether that norm is taken of standard deviations or of variances."""
    penalty: NonNegativeFloat = 10.0
    """λ, the price of exceeding either bound."""
    project: bool = True
    """Put φ and σ back onto their bounds after every update."""
    learning_rate: PositiveFloat = 0.03
    """Of Adam, for φ and ln σ; with explore=episode of the natural gradient, for φ."""
    initial_spread: PositiveFloat = 0.3
    """σ of every arm before the first update; without a spread there is nothing to learn from."""
    iterations: Positive = 20
    """Updates on the same trajectories in a round."""
    explore: Literal["step", "episode"] = "step"
    """Where the luck is that it learns from: in what is added at each step, or in φ itself, drawn
    once per episode."""
    episodes: Positive = 1
    """Of each task in a round; with explore=episode an even number."""
    noise: PositiveFloat = 0.7
    """Standard deviation of the luck in φ at the beginning, with explore=episode."""
    noise_rate: NonNegativeFloat = 0.3
    """How fast it is learned, with explore=episode."""
    rounds: Positive | None = None
    """Over which the rate falls, with explore=episode; null for the run's."""
    keep: Literal["last", "best"] = "last"
    """What is used in the end: the parameters after the last round, or, for each task, those of the
    round in which the victim earned least."""

    @model_validator(mode="after")
    def _episodes_in_pairs(self) -> GaussianConfig:
        by_episode = self.explore == "episode"
        if by_episode and (self.episodes % 2 or self.keep == "best"):
            raise ValueError("explore=episode needs an even number of episodes, and keep=last")
        return self


@ATTACKERS.register("gaussian")
class GaussianAttacker(LearnsPerTask, ArmOffsets):
    """One attacker for each task it has met. Tasks are told apart by their ids, so it may be
    reset with any of them, in any order; a task never met starts from φ = 0."""

    Config = GaussianConfig

    def __init__(self, config: GaussianConfig | None = None) -> None:
        super().__init__()
        self.config = config or GaussianConfig()
        self._tasks = PerTask()
        self.learning = False
        """While learning, nothing is projected that the configuration does not say so."""
        if self.config.episodes > 1:
            self.episodes, self.together = self.config.episodes, False

    # Acting ----------------------------------------------------------------------------------

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> tuple[Tensor, Tensor]:
        if not are_arms(spec, tasks):
            raise UserError(f"attacker 'gaussian' {NEEDS_ARMS}; in rooms use tabular")
        arms, known = spec.n_actions, self._tasks.state.get("offsets")
        if known is not None and known.shape[1] != arms:
            trained = known.shape[1]
            raise UserError(
                f"these attackers were trained for {trained} arms; the environment has {arms}"
            )
        spreads = torch.full((arms,), self.config.initial_spread)
        fresh = {"offsets": torch.zeros(arms), "log_spreads": spreads.log()}
        if self.config.explore == "episode":
            noise = torch.full((arms,), self.config.noise)
            fresh |= {"log_noise": noise.log(), "updates": torch.zeros(1)}
        else:
            fresh |= moments(2 * arms)
        best = self.config.keep == "best"
        if best:
            fresh |= {f"best_{name}": fresh[name] for name in PARAMETERS}
            fresh["least"] = torch.tensor([UNMET])
        self._rows = self._tasks.rows(tasks.ids.cpu(), fresh)
        mine = self._tasks.at(self._rows)
        used = "best_" if best and not self.learning else ""
        offsets, stds = mine[f"{used}offsets"], mine[f"{used}log_spreads"].exp()
        self._horizon = spec.horizon
        if self.learning and self.config.explore == "episode":
            self._luck = _in_pairs(tasks, rng.normal(arms)).cpu()
            noise = mine["log_noise"].exp()  # (B, A)
            offsets = project(offsets + noise * self._luck, self.config.budget)
        elif not self.learning:
            offsets = project(offsets, self.config.budget)
            stds = self._within_spread_budget(stds)
        return offsets.to(tasks.device), stds.to(tasks.device)

    def _within_spread_budget(self, stds: Tensor) -> Tensor:
        if self.config.spread_norm == "variance":
            return project(stds**2, self.config.spread_budget).sqrt()
        return project(stds, self.config.spread_budget)

    # Learning --------------------------------------------------------------------------------

    def update(self, trajectory: Trajectory) -> dict[str, float]:
        """Learn from the rollout that the last `reset` began. Returns what to log."""
        if self.config.explore == "episode":
            return self._update_by_episodes(trajectory)
        weights = advantages(trajectory.true_rewards.cpu()) * trajectory.poisoned.cpu()  # (B, T)
        shift = (trajectory.proposed_rewards - trajectory.true_rewards).cpu()  # (B, T)
        actions = trajectory.actions.cpu()
        episodes = Episodes(self._rows)
        mine = self._tasks.at(episodes.rows)
        if self.config.keep == "best":
            earned = episodes.mean(trajectory.true_rewards.cpu().sum(1, keepdim=True))
            less = earned < mine["least"]
            mine["least"] = torch.where(less, earned, mine["least"])
            for name in PARAMETERS:
                mine[f"best_{name}"] = torch.where(less, mine[name], mine[f"best_{name}"])
        offsets, log_spreads = mine["offsets"], mine["log_spreads"]
        for _ in range(self.config.iterations):
            here = episodes.each(offsets), episodes.each(log_spreads)
            gradient = self._gradient(*here, weights, shift, actions)
            step = adam(mine, episodes.mean(gradient), self.config.learning_rate)
            offsets = offsets + step[:, : offsets.shape[1]]
            log_spreads = log_spreads + step[:, offsets.shape[1] :]
            if self.config.project:
                offsets = project(offsets, self.config.budget)
                log_spreads = self._within_spread_budget(log_spreads.exp()).log()
        self._tasks.put(episodes.rows, mine | {"offsets": offsets, "log_spreads": log_spreads})
        lengths = norm(offsets)
        return {"norm_mean": lengths.mean().item(), "norm_max": lengths.max().item()}

    def _update_by_episodes(self, trajectory: Trajectory) -> dict[str, float]:
        c, episodes = self.config, Episodes(self._rows)
        mine = self._tasks.at(episodes.rows)
        earned = trajectory.true_rewards.cpu()[:, -self._horizon :].sum(1)
        lost = _against_the_others(earned.view(len(episodes.rows), c.episodes))[..., None]
        luck = self._luck.view(*lost.shape[:2], -1)  # (M, E, A)
        age = (mine["updates"] / (c.rounds or 1)).clamp(max=1.0)
        rate = c.learning_rate * (1 - 0.5 * age)
        step = rate * mine["log_noise"].exp() * (lost * luck).mean(1)
        mine["offsets"] = project(mine["offsets"] + step, c.budget)
        wider = c.noise_rate * (lost * (luck**2 - 1)).mean(1)
        mine["log_noise"] = (mine["log_noise"] + wider).clamp(*NOISE)
        mine["updates"] = mine["updates"] + 1
        self._tasks.put(episodes.rows, mine)
        lengths = norm(mine["offsets"])
        return {"norm_mean": lengths.mean().item(), "norm_max": lengths.max().item()}

    def _gradient(
        self, offsets: Tensor, log_spreads: Tensor, weights: Tensor, shift: Tensor, actions: Tensor
    ) -> Tensor:
        """Of the objective with respect to φ and ln σ, (B, 2A), for ascent."""
        c, horizon = self.config, weights.shape[1]
        std = log_spreads.exp()
        z = (shift - offsets.gather(1, actions)) / std.gather(1, actions)  # (B, T)
        zeros = torch.zeros_like(offsets)
        d_offsets = zeros.scatter_add(1, actions, weights * z) / std / horizon
        d_logs = zeros.scatter_add(1, actions, weights * (z**2 - 1)) / horizon
        # The penalties, by autograd: there is no reason to derive a norm by hand.
        with torch.enable_grad():
            o, s = offsets.detach().requires_grad_(), log_spreads.detach().requires_grad_()
            size = s.exp() if c.spread_norm == "std" else (2 * s).exp()
            price = c.penalty * (excess(o, c.budget) + excess(size, c.spread_budget))
            p_offsets, p_logs = torch.autograd.grad(price.sum(), (o, s))
        return torch.cat([d_offsets - p_offsets, d_logs - p_logs], 1)


def advantages(true_rewards: Tensor) -> Tensor:
    """(B, T): how much less than the episode's mean the victim earned after each step, divided by
    its standard deviation over the episode."""
    loss = true_rewards.mean(1, keepdim=True) - true_rewards  # (B, T), sums to zero
    after = loss.flip(1).cumsum(1).flip(1) - loss  # without the step itself
    std = after.std(1, keepdim=True) if after.shape[1] > 1 else torch.ones_like(after)
    return after / std.clamp(min=1e-6)


def _in_pairs(tasks: Tasks, luck: Tensor) -> Tensor:
    """(B, A): luck that two neighbouring episodes of a task have in common, with opposite signs."""
    episode = torch.zeros_like(tasks.ids) if tasks.episodes is None else tasks.episodes
    first = (torch.arange(len(tasks), device=tasks.device) - episode % 2).clamp(min=0)
    return luck[first] * (1 - 2 * (episode % 2))[:, None]


def _against_the_others(earned: Tensor) -> Tensor:
    """(M, E): how much less the victim earned in each episode than in the others of the task, in
    units of their standard deviation; nothing if they are all the same."""
    count = earned.shape[1]
    others = (earned.sum(1, keepdim=True) - earned) / (count - 1)
    return (others - earned) / earned.std(1, keepdim=True).clamp(min=1e-6)
