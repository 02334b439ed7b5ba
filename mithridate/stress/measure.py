"""Measuring one cell of a suite: an agent under one attack at one level.

The luck of a measurement is nobody's else: no learning and no search has seen it. It comes in two
halves, so that what is chosen on one can be measured on the other. All agents and attacks meet the
same tasks with the same luck.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mithridate.errors import UserError
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.scores import norms_of, score
from mithridate.stress.suites import Suite
from mithridate.types import Agent, Attacker, Env, Tasks, Trajectory

HALVES = 2
POINTS = 25
"""Of a curve over time."""


@dataclass(frozen=True)
class Measured:
    scores: list[list[float]]
    """(halves, tasks): the episode's metric, mean over repeats."""
    curve: list[float]
    """The cumulative metric over time, at POINTS equal distances, mean over everything."""
    norm_mean: float
    norm_max: float
    offsets: list[float]
    """What the attack adds to the reward of the best action, of the second best, …: the mean over
    tasks."""
    spreads: list[float]
    """The standard deviation of the same over tasks."""


def measure(
    suite: Suite,
    env: Env,
    tasks: Tasks,
    agent: Agent,
    attacker: Attacker | None,
    eps: float,
    on_step: Callable[[], None] | None = None,
) -> Measured:
    """`tasks`: those of the suite, or some of them: each has its own luck."""
    at_once = max(1, suite.block // suite.repeats)
    scores, steps, norms, added = [], [], [], _Added(len(tasks), env.spec.n_actions)
    for half in range(HALVES):
        rng = Rng(suite.seed).child("stress", "measure", half)
        for start in range(0, len(tasks), at_once):
            some = tasks.select(slice(start, start + at_once)).repeat(suite.repeats)
            trajectory = rollout(
                env, some, agent, attacker, eps, rng=rng, record_values=True, on_step=on_step
            )
            found = score(env, some, trajectory).double()  # (B, T)
            scores.append(found.sum(1).view(-1, suite.repeats).mean(1))
            steps.append(found.sum(0))
            if attacker is not None:
                norms.append(norms_of(attacker, len(some)))
                added.see(start, suite.repeats, trajectory)
    spent = torch.cat(norms).double() if norms else torch.zeros(1)
    if spent.max().item() > suite.budget * (1 + 1e-6):
        raise UserError(
            f"attacker {type(attacker).__name__} spent {spent.max().item():.3g} of a budget of "
            f"{suite.budget:g}; it has to keep to it (mithridate/budget.py)"
        )
    offsets, spreads = added.by_rank()
    episodes = HALVES * suite.repeats * len(tasks)
    return Measured(
        torch.cat(scores).view(HALVES, -1).tolist(),
        _curve(torch.stack(steps).sum(0) / episodes),
        spent.mean().item(), spent.max().item(), offsets, spreads,
    )  # fmt: skip


def points(horizon: int) -> list[int]:
    """The steps, counted from 1, at which curves have their points."""
    count = min(POINTS, horizon)
    return [round(horizon * (i + 1) / count) for i in range(count)]


def _curve(steps: Tensor) -> list[float]:
    whole = steps.cumsum(0)  # (T,)
    return [whole[at - 1].item() for at in points(len(whole))]


class _Added:
    """What an attacker would add to each action's reward, by the rank of the action's worth."""

    def __init__(self, tasks: int, actions: int) -> None:
        self._sums = torch.zeros(tasks, actions, dtype=torch.float64)
        self._counts = torch.zeros(tasks, actions, dtype=torch.float64)

    def see(self, start: int, repeats: int, trajectory: Trajectory) -> None:
        assert trajectory.values is not None
        values = trajectory.values[:, : trajectory.actions.shape[1]]  # (B, T or 1, A)
        ranks = values.argsort(dim=2, descending=True, stable=True).argsort(2)
        ranks = ranks.expand(-1, trajectory.actions.shape[1], -1)
        rank = ranks.gather(2, trajectory.actions[..., None]).squeeze(2)  # (B, T)
        added = (trajectory.proposed_rewards - trajectory.true_rewards).double()
        shape = (len(rank) // repeats, -1)
        rows = slice(start, start + shape[0])
        self._sums[rows].scatter_add_(1, rank.reshape(shape), added.reshape(shape))
        self._counts[rows].scatter_add_(
            1, rank.reshape(shape), torch.ones_like(added).reshape(shape)
        )

    def by_rank(self) -> tuple[list[float], list[float]]:
        """Means and standard deviations over the tasks in which such an action was taken."""
        means, spreads = [], []
        for sums, counts in zip(self._sums.T, self._counts.T, strict=True):
            known = sums[counts > 0] / counts[counts > 0]
            means.append(known.mean().item() if len(known) else 0.0)
            spreads.append(known.std().item() if len(known) > 1 else 0.0)
        return means, spreads
