"""The learned attacker of Darkroom2 (paper, MDP setting): for each task, key and action a softmax
over the offsets −1, 0 and +1. A key is what the environment tells situations apart by
(`attack_key`; in Darkroom2 the cell); what the agent observes of them does not matter here.

It learns by REINFORCE on the true rewards. A step's score is weighted by the true rewards that
follow, compared with what follows the same action at the same key of the same task: that cancels
most of the luck of where the agent happened to be, and entries that it hardly visits stay as they
are. One episode in a round still says little about the hundreds of entries of a task. `pooled`
attackers, which the paper does not have, therefore also have logits in common, one set for each
kind of entry that the environment tells apart (`tasks.kinds`: in Darkroom2 what the cell that is
reached is worth, and whether the agent stays); these learn from all tasks, and a task's own come on
top. With several episodes of a task in a round (`episodes`), a step is compared with the same step
of the task's other episodes instead, and nothing cancels an attack that works from the first step
to the last: DPT then earns 200 instead of 264 (eps 0.4, budget 10, 40 rounds of 16 episodes).

The budget B bounds, per task, the norm over keys and actions of the *mean* offset. An attack
beyond it is mixed with "no offset" until its norm is B.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mithridate.attackers.offset_tables import OFFSETS, OffsetTable, mean_offsets
from mithridate.attackers.task_parameters import Episodes, LearnsPerTask, PerTask, adam, moments
from mithridate.budget import excess, mixed, norm
from mithridate.config import IN_ROOMS, Config, Fraction, NonNegativeFloat, Positive, PositiveFloat
from mithridate.errors import UserError
from mithridate.registry import ATTACKERS
from mithridate.returns import less_than_the_others, returns_after
from mithridate.rng import TaskStreams
from mithridate.tensor_files import part, prefixed
from mithridate.types import EnvSpec, Tasks, Trajectory

COMMON = "common."


class TabularConfig(Config):
    budget: NonNegativeFloat = IN_ROOMS
    """Bound B on the norm of the mean offsets."""
    penalty: NonNegativeFloat = 10.0
    """λ, the price of exceeding it."""
    learning_rate: PositiveFloat = 0.03
    """Of Adam, for the logits of single tasks."""
    common_learning_rate: NonNegativeFloat = 0.0
    """The same for those that all tasks have in common; 0 for none."""
    discount: Fraction = 0.995
    """How much rewards count that come a step later."""
    iterations: Positive = 10
    """Updates on the same trajectories in a round."""
    episodes: Positive = 1
    """Of each task in a round. Several are compared with each other, step by step, instead of with
    what is usual at the same place."""
    clip: PositiveFloat = 0.3
    """With several episodes: how far probabilities may move in a round before a step says no more
    (Schulman et al., 2017)."""
    rounds: Positive | None = None
    """With several episodes: over which the rates fall to a tenth; null for the run's."""


class PooledConfig(TabularConfig):
    learning_rate: PositiveFloat = 0.01
    common_learning_rate: NonNegativeFloat = 0.03


@ATTACKERS.register("tabular")
class TabularAttacker(LearnsPerTask, OffsetTable):
    """One attacker for each task it has met."""

    Config = TabularConfig

    def __init__(self, config: TabularConfig | None = None) -> None:
        self.config = config or TabularConfig()
        self.budget = self.config.budget
        self._tasks = PerTask()
        self._common = PerTask()  # by kind of entry instead of task
        self.learning = False
        """Nothing depends on it: the budget holds in any case."""
        if self.config.episodes > 1:
            self.episodes = self.config.episodes
            self.together = self.config.common_learning_rate > 0

    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors(), **prefixed(COMMON, self._common.tensors())}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        super().load_tensors({k: t for k, t in tensors.items() if not k.startswith(COMMON)})
        self._common.load_tensors(part(tensors, COMMON))

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> Tensor:
        shape = (spec.n_attack_keys, spec.n_actions, len(OFFSETS))
        known = self._tasks.state.get("logits")
        if known is not None and known.shape[1:] != shape:
            raise UserError(
                f"these attackers were trained for {known.shape[1]} keys and {known.shape[2]} "
                f"actions; the environment has {shape[0]} and {shape[1]}"
            )
        fresh = {"logits": torch.zeros(shape), **moments(math.prod(shape))}
        self._rows = self._tasks.rows(tasks.ids.cpu(), fresh)
        kinds = getattr(tasks, "kinds", torch.zeros(len(tasks), *shape[:2], dtype=torch.int64))
        fresh = {"logits": torch.zeros(len(OFFSETS)), **moments(len(OFFSETS))}
        self._kinds = self._common.rows(kinds.cpu(), fresh)  # (B, K, A)
        logits = self._tasks.state["logits"][self._rows]
        common = self._common.state["logits"][self._kinds]
        return (logits + common).softmax(-1).to(tasks.device)

    def update(self, trajectory: Trajectory) -> dict[str, float]:
        """Learn from the rollout that the last `reset` began. Returns what to log."""
        if self.config.episodes > 1:
            return self._update_by_episodes(trajectory)
        episodes = Episodes(self._rows)
        mine, common = self._tasks.at(episodes.rows), dict(self._common.state)
        kinds = episodes.first(self._kinds)  # (M, K, A)
        tasks, keys, actions, choices = mine["logits"].shape
        place = trajectory.keys.cpu() * actions + trajectory.actions.cpu()  # (B, T)
        rewards = trajectory.true_rewards.cpu()
        losses = surprising_losses(rewards, place, keys * actions, self.config.discount, episodes)
        weights = losses * trajectory.poisoned.cpu()
        shift = (trajectory.proposed_rewards.cpu() - rewards).round().long() + 1
        zeros = torch.zeros(len(place), keys * actions * choices)
        taken = zeros.scatter_add(1, place * choices + shift, weights) / weights.shape[1]
        taken = episodes.mean(taken).view(tasks, keys, actions, choices)
        total = taken.sum(-1, keepdim=True)  # of the weights, by key and action
        for _ in range(self.config.iterations):
            with torch.enable_grad():
                x = (mine["logits"] + common["logits"][kinds]).requires_grad_()
                p = x.softmax(-1)
                price = self.config.penalty * excess(mean_offsets(p), self.config.budget)
                gradient = -torch.autograd.grad(price.sum(), x)[0]
            gradient += taken - total * p.detach()  # of Σ weight · ln p
            step = adam(mine, gradient.flatten(1), self.config.learning_rate)
            mine["logits"] = mine["logits"] + step.view(gradient.shape)
            pooled = torch.zeros_like(common["logits"]).index_add(
                0, kinds.flatten(), gradient.view(-1, choices)
            )
            common["logits"] = common["logits"] + adam(
                common, pooled, self.config.common_learning_rate
            )
        return self._keep(episodes, kinds, mine, common)

    def _update_by_episodes(self, trajectory: Trajectory) -> dict[str, float]:
        """What an entry's choices are credited with is how much less was earned after them than at
        the same step of the task's other episodes. Further updates on the same episodes have
        clipped ratios, with the probabilities as they are used, within the budget."""
        c, episodes = self.config, Episodes(self._rows)
        mine, common = self._tasks.at(episodes.rows), dict(self._common.state)
        kinds = episodes.first(self._kinds)  # (M, K, A)
        keys, actions, choices = mine["logits"].shape[1:]
        rewards = trajectory.true_rewards.cpu()
        weights = less_than_the_others(rewards, c.discount, c.episodes) * trajectory.poisoned.cpu()
        shift = (trajectory.proposed_rewards.cpu() - rewards).round().long() + 1
        place = (trajectory.keys.cpu() * actions + trajectory.actions.cpu()) * choices + shift
        zeros = torch.zeros(len(place), keys * actions * choices)
        good, bad = (
            episodes.mean(zeros.scatter_add(1, place, part)).view(mine["logits"].shape)
            for part in (weights.clamp(min=0.0), weights.clamp(max=0.0))
        )
        before = episodes.first(self.probabilities.cpu()).clamp(min=1e-4)
        fall = 1 - 0.9 * (mine["updates"] / (c.iterations * (c.rounds or 1))).clamp(max=1.0)
        for _ in range(c.iterations):
            with torch.enable_grad():
                x = (mine["logits"] + common["logits"][kinds]).requires_grad_()
                p = x.softmax(-1)
                ratio = mixed(p, OFFSETS, c.budget) / before
                gain = good * ratio.clamp(max=1 + c.clip) + bad * ratio.clamp(min=1 - c.clip)
                price = c.penalty * excess(mean_offsets(p), c.budget)
                objective = gain.sum() / rewards.shape[1] - price.sum()
                gradient = torch.autograd.grad(objective, x)[0]
            step = fall * adam(mine, gradient.flatten(1), c.learning_rate)
            mine["logits"] = mine["logits"] + step.view(gradient.shape)
            if c.common_learning_rate:
                pooled = torch.zeros_like(common["logits"]).index_add(
                    0, kinds.flatten(), gradient.view(-1, choices)
                )
                common["logits"] = common["logits"] + fall.mean() * adam(
                    common, pooled, c.common_learning_rate
                )
        return self._keep(episodes, kinds, mine, common)

    def _keep(
        self, episodes: Episodes, kinds: Tensor, mine: dict[str, Tensor], common: dict[str, Tensor]
    ) -> dict[str, float]:
        """What was learned; what to log."""
        self._tasks.put(episodes.rows, mine)
        self._common.state = common
        p = (mine["logits"] + common["logits"][kinds]).softmax(-1)
        lengths = norm(mean_offsets(mixed(p, OFFSETS, self.config.budget)))
        return {"norm_mean": lengths.mean().item(), "norm_max": lengths.max().item()}


@ATTACKERS.register("pooled")
class PooledAttacker(TabularAttacker):
    """Attackers that learn from all tasks together, and stay close to what they have in common."""

    Config = PooledConfig

    def __init__(self, config: PooledConfig | None = None) -> None:
        super().__init__(config or PooledConfig())


def surprising_losses(
    rewards: Tensor, place: Tensor, places: int, discount: float, episodes: Episodes
) -> Tensor:
    """(B, T): how much less was earned after each step than is usual, for all tasks, at that step,
    and, of what is left, than is usual at that place (B, T) of that task. In units of their
    standard deviation."""
    after = returns_after(rewards, discount)
    if len(after) > 1:
        after = after - after.mean(0)
    zeros = torch.zeros(len(rewards), places)
    visits = zeros.scatter_add(1, place, torch.ones_like(after))
    visits, total = episodes.sum(visits), episodes.sum(zeros.scatter_add(1, place, after))
    usual = episodes.each(total / visits.clamp(min=1))
    losses = usual.gather(1, place) - after
    return losses / losses.std(correction=0).clamp(min=1e-6)
