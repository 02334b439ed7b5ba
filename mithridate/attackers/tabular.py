"""The learned attacker of Darkroom2 (paper, MDP setting): for each task, state and action a softmax
over the offsets −1, 0 and +1.

It learns by REINFORCE on the true rewards, like the Gaussian attacker, and with the same choices:
a step's score is weighted by the true rewards that follow, less the mean, and less what is usual
at that step over all tasks: an agent that learns earns more as time goes by, attack or no attack.
The budget B bounds, per task, the norm over states and actions of the *mean* offset. An attack
beyond it is mixed with "no offset" until its norm is B.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mithridate.attackers.budget import IN_ROOMS, excess, mixed, norm
from mithridate.attackers.gaussian import advantages
from mithridate.attackers.per_task import LearnsPerTask, PerTask, adam, moments
from mithridate.config import Config, NonNegativeFloat, Positive, PositiveFloat
from mithridate.errors import UserError
from mithridate.registry import ATTACKERS
from mithridate.rng import TaskStreams
from mithridate.types import EnvSpec, Step, Tasks, Trajectory

OFFSETS = (-1.0, 0.0, 1.0)


class TabularConfig(Config):
    budget: NonNegativeFloat = IN_ROOMS
    """Bound B on the norm of the mean offsets."""
    penalty: NonNegativeFloat = 10.0
    """λ, the price of exceeding it."""
    learning_rate: PositiveFloat = 0.03
    """Of Adam, for the logits."""
    iterations: Positive = 20
    """Updates on the same trajectories in a round."""


class OffsetTable:
    """The proposed reward is r − 1, r or r + 1, with probabilities (B, S, A, 3) for each task,
    state and action. Subclasses say what they are."""

    budget: float

    def reset(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> None:
        if spec.n_states is None:
            raise UserError("this attacker needs an environment with numbered states")
        self._rng = rng
        self._index = torch.arange(len(tasks), device=tasks.device)
        self._offsets = torch.tensor(OFFSETS, device=tasks.device)
        self.probabilities = mixed(self.choose(spec, tasks, rng), OFFSETS, self.budget)
        """(B, S, A, 3) of the tasks at hand."""
        self._edges = self.probabilities.cumsum(-1)[..., :-1]

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> Tensor:
        """Probabilities (B, S, A, 3), before they are brought into the budget."""
        raise NotImplementedError

    def poison(self, step: Step) -> Tensor:
        assert isinstance(step.observation, Tensor)
        edges = self._edges[self._index, step.observation, step.actions]  # (B, 2)
        which = (self._rng.uniform() >= edges).sum(1)
        return step.true_rewards + self._offsets[which]

    def cost(self) -> Tensor:
        return norm(mean_offsets(self.probabilities))


@ATTACKERS.register("tabular")
class TabularAttacker(LearnsPerTask, OffsetTable):
    """One attacker for each task it has met."""

    Config = TabularConfig

    def __init__(self, config: TabularConfig | None = None) -> None:
        self.config = config or TabularConfig()
        self.budget = self.config.budget
        self._tasks = PerTask()
        self.learning = False
        """Nothing depends on it: the budget holds in any case."""

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> Tensor:
        assert spec.n_states is not None
        shape = (spec.n_states, spec.n_actions, len(OFFSETS))
        known = self._tasks.state.get("logits")
        if known is not None and known.shape[1:] != shape:
            raise UserError(
                f"these attackers were trained for {known.shape[1]} states and {known.shape[2]} "
                f"actions; the environment has {shape[0]} and {shape[1]}"
            )
        fresh = {"logits": torch.zeros(shape), **moments(math.prod(shape))}
        self._rows = self._tasks.rows(tasks.ids.cpu(), fresh)
        return self._tasks.state["logits"][self._rows].to(tasks.device).softmax(-1)

    def update(self, trajectory: Trajectory) -> dict[str, float]:
        """Learn from the rollout that the last `reset` began. Returns what to log."""
        observations = trajectory.observations_before()
        assert isinstance(observations, Tensor)
        gains = advantages(trajectory.true_rewards.cpu())  # (B, T)
        if len(gains) > 1:  # what all tasks have in common at a step is no merit of the attack
            gains = gains - gains.mean(0)
        weights = gains * trajectory.poisoned.cpu()
        shift = (trajectory.proposed_rewards - trajectory.true_rewards).cpu().round().long() + 1
        mine = self._tasks.at(self._rows)
        logits = mine["logits"]
        batch, states, actions, choices = logits.shape
        place = observations.cpu() * actions + trajectory.actions.cpu()  # (B, T)
        horizon = weights.shape[1]
        zeros = torch.zeros(batch, states * actions * choices)
        taken = zeros.scatter_add(1, place * choices + shift, weights).view(logits.shape) / horizon
        total = taken.sum(-1, keepdim=True)  # of the weights, by state and action
        for _ in range(self.config.iterations):
            gradient = taken - total * logits.softmax(-1)  # of Σ weight · ln p
            with torch.enable_grad():
                x = logits.detach().requires_grad_()
                price = self.config.penalty * excess(
                    mean_offsets(x.softmax(-1)), self.config.budget
                )
                gradient = gradient - torch.autograd.grad(price.sum(), x)[0]
            step = adam(mine, gradient.flatten(1), self.config.learning_rate)
            logits = logits + step.view(logits.shape)
        self._tasks.put(self._rows, mine | {"logits": logits})
        lengths = norm(mean_offsets(mixed(logits.softmax(-1), OFFSETS, self.config.budget)))
        return {"norm_mean": lengths.mean().item(), "norm_max": lengths.max().item()}


def mean_offsets(probabilities: Tensor) -> Tensor:
    """(B, S, A): what is added on average."""
    return probabilities @ torch.tensor(OFFSETS, device=probabilities.device)
