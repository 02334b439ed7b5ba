"""Bandits of many kinds in one: 2 to 20 arms, several levels of noise, up to 1,000 pulls.

For one model that acts in bandits of any size (agents/any_size.py). Every task has labels for the
most arms there may be; its own arms are some of them, drawn at random. Whoever pulls a label
without an arm is paid −1, always, which no arm pays. Pretraining contexts begin with one such pull
of each label without an arm, so a model that is shown these pulls knows from the start which arms
there are.

- Action: one of `arms` labels.
- Observation: none.
- Reward: normal, with the arm's mean and the task's standard deviation; −1 without an arm.
- Task: from `fewest` to `arms` arms, each number as likely; means uniform on [0, 1]; a standard
  deviation from `noises`, equally likely.
- End: after `horizon` steps: 1,000 pulls and 20 labels that are shown.
- Metric: cumulative regret, computed from the means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from mithridate.config import Positive, PositiveFloat, as_tuple
from mithridate.envs.bandit_base import Arms, ArmsConfig, ArmTasks
from mithridate.envs.presets import (
    PAPER_DISTILL,
    PAPER_PRETRAIN,
    PAPER_TRAIN,
    SMOKE_PRETRAIN,
    SMOKE_TRAIN,
)
from mithridate.registry import ENVS
from mithridate.rng import Rng
from mithridate.types import Contexts, Poison

ABSENT = -1.0
"""What a label without an arm pays."""
SMALL: dict[str, Any] = {"env": {"arms": 4, "horizon": 20}, "threads": 1}
BATCHES: dict[str, Any] = {"long_batch": 24, "short_batch": 96, "short_length": 160}


class ManyBanditsConfig(ArmsConfig):
    name: Literal["many_bandits"] = "many_bandits"
    horizon: Positive = 1020
    """Pulls per episode (H), of labels without an arm, too."""
    arms: Positive = 20
    """Labels (A): the most arms that a task may have."""
    fewest: Positive = 2
    """The fewest."""
    noises: Annotated[
        tuple[PositiveFloat, ...], BeforeValidator(as_tuple), Field(min_length=1, max_length=8)
    ] = (0.1, 0.2, 0.3, 0.5)
    """Standard deviations of the reward noise, equally likely."""

    @model_validator(mode="after")
    def _consistent(self) -> ManyBanditsConfig:
        if self.fewest > self.arms:
            raise ValueError(f"fewest {self.fewest} exceeds arms {self.arms}: lower it")
        return self


@dataclass(frozen=True)
class ManyTasks(ArmTasks):
    noise: Tensor
    """(B,) float32: standard deviation of each task's rewards."""

    @property
    def there(self) -> Tensor:
        """(B, A): which labels have an arm."""
        return self.means != ABSENT


@ENVS.register("many_bandits")
class ManyBandits(Arms):
    Config = ManyBanditsConfig
    config: ManyBanditsConfig

    presets: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "pretrain": {
            "smoke": {**SMOKE_PRETRAIN, **SMALL},
            "laptop": {"batches": BATCHES},
            "paper": PAPER_PRETRAIN,
        },
        "distill": {
            "smoke": {**SMOKE_PRETRAIN, **SMALL, "tasks": 32, "refresh_every": 10, "pool": 2},
            "laptop": {"steps": 3000, "batches": BATCHES},
            "paper": PAPER_DISTILL,
        },
        "train": {
            "smoke": {**SMOKE_TRAIN, **SMALL},
            # Poisoned contexts alone: an attacker would have to be told which labels have arms.
            "laptop": {
                "batches": BATCHES, "synthetic": {"rounds": 150, "share": 1.0}, "rounds": 1,
                "compare_every": 0,
            },
            "paper": PAPER_TRAIN,
        },
        "attack": {"smoke": {**SMALL, "tasks": 20, "rounds": 3}},
        "evaluate": {"smoke": {**SMALL, "tasks": 20, "rounds": 3, "adaptive_rounds": 3}},
    }  # fmt: skip

    def __init__(self, config: ManyBanditsConfig | None = None) -> None:
        self.config = config or ManyBanditsConfig()
        self.spec = self.make_spec()

    def sample_tasks(self, n: int, rng: Rng, first: int = 0) -> ManyTasks:
        c, ids = self.config, torch.arange(first, first + n)
        luck = rng.child("tasks").streams(ids).ahead("uniform", 1, 2 * c.arms + 2)
        luck = luck.view(n, 2 * c.arms + 2)
        count = c.fewest + (luck[:, -1:] * (c.arms - c.fewest + 1)).long()
        there = luck[:, : c.arms].argsort(1).argsort(1) < count  # so many labels, at random
        means = torch.where(there, luck[:, c.arms : -2], ABSENT)
        which = (luck[:, -2] * len(c.noises)).long()
        return ManyTasks(ids=ids, means=means, noise=torch.tensor(c.noises)[which])

    def step(
        self, tasks: ArmTasks, state: None, actions: Tensor, noise: Tensor
    ) -> tuple[None, Tensor]:
        assert isinstance(tasks, ManyTasks)
        return None, _paid(tasks, actions[:, None], noise).squeeze(1)

    def tables(self, tasks: ArmTasks) -> None:
        """The noise differs from task to task."""

    def sample_contexts(
        self, tasks: ManyTasks, length: int, rng: Rng, poison: Poison | None = None
    ) -> Contexts:
        """First the labels without an arm, in a random order, then i.i.d. pulls of arms, as in
        DPT. The label of every prefix, the empty one included, is the best arm."""
        draw = rng.generator()
        there = tasks.there.cpu().numpy()
        pulls = _pulls(there, length, draw)
        order = np.where(there, 2.0, draw.random(there.shape)).argsort(1)  # absent ones first
        shown = (~there).sum(1)
        time = np.arange(length)[None]
        known = np.minimum(time, order.shape[1] - 1)
        announced = time < shown[:, None]
        actions = np.where(announced, order[np.arange(len(order))[:, None], known], pulls)
        noise = draw.standard_normal((len(there), length), dtype=np.float32)
        device = tasks.device
        chosen = torch.from_numpy(actions).to(device)
        rewards = _paid(tasks, chosen, torch.from_numpy(noise).to(device))
        contexts = Contexts(
            actions=chosen,
            rewards=rewards,
            labels=tasks.means.argmax(1, keepdim=True).expand(-1, length + 1),
            values=tasks.means[:, None],
        )
        fooled = self.poisoned(tasks, contexts, poison)
        spared = torch.from_numpy(announced).to(device)
        return replace(fooled, rewards=torch.where(spared, rewards, fooled.rewards))


def _paid(tasks: ManyTasks, actions: Tensor, noise: Tensor) -> Tensor:
    """(B, T) rewards of actions (B, T)."""
    means = tasks.means.gather(1, actions)
    return means + (means != ABSENT) * tasks.noise[:, None] * noise


def _pulls(
    there: np.ndarray[Any, Any], length: int, draw: np.random.Generator
) -> np.ndarray[Any, Any]:
    """(B, T): i.i.d. pulls of the arms that are there, with probabilities (1 − c)·Dirichlet(1) +
    c·(one of them), c from {0, 0.1, …, 1}."""
    batch, arms = there.shape
    c = draw.integers(0, 11, (batch, 1)) / 10
    favourite = np.eye(arms)[(draw.random(there.shape) * there).argmax(1)]
    p = draw.standard_exponential(there.shape) * there
    edges = ((1 - c) * p / p.sum(1, keepdims=True) + c * favourite).cumsum(1)
    uniforms = draw.random((batch, length)) * edges[:, -1:]
    found = (uniforms[:, :, None] >= edges[:, None, :-1]).sum(2)
    # An arm of no width can be met at its edge only: then it is its neighbour that is there.
    some: np.ndarray[Any, Any] = favourite.argmax(1)[:, None]
    return np.where(np.take_along_axis(there, found, 1), found, some)
