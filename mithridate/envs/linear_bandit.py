"""The linear bandit of DPT (Lee et al., 2023) and of the paper's section 5.3.

- Action: one of `arms`, each with a feature vector, the same in all tasks and known to agents.
- Observation: none.
- Reward: normal, with mean ⟨ω, features of the arm⟩ and standard deviation `noise_std`.
- Task: ω ~ N(0, I / dimension). The features are drawn from the same distribution, once, by
  `features_seed`: another seed is another environment, and a model is of use only in its own.
- End: after `horizon` steps. The paper states none; DPT's code has 200.
- Metric: cumulative regret, computed from the arm means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from mithridate.config import Positive
from mithridate.envs.bandit_base import Arms, ArmsConfig, ArmTasks, preferred_pulls
from mithridate.envs.bandit_poison import on_good_arms, random_offsets
from mithridate.envs.linear_bandit_actors import (
    Actor,
    FixedPulls,
    IndependentThompson,
    LinearThompson,
    play,
)
from mithridate.envs.presets import (
    PAPER_DISTILL,
    PAPER_PRETRAIN,
    PAPER_TRAIN,
    SMOKE_PRETRAIN,
    SMOKE_TRAIN,
)
from mithridate.registry import ENVS
from mithridate.rng import Rng, TaskStreams
from mithridate.types import Contexts, Poison

BATCHES: dict[str, Any] = {
    "long_batch": 64, "long_every": 2, "short_batch": 128, "short_length": 50,
}  # fmt: skip
LONG = {**BATCHES, "long_every": 1}
DOUBT = (0.6, 2.0)
"""Noise that Thompson sampling believes in where it is to keep looking."""
SMALL: dict[str, Any] = {"env": {"arms": 4, "horizon": 20}, "threads": 1}


class LinearBanditConfig(ArmsConfig):
    name: Literal["linear_bandit"] = "linear_bandit"
    horizon: Positive = 200
    """Pulls per episode (H)."""
    arms: Positive = 10
    """Number of arms (A)."""
    dimension: Positive = 2
    """Length of the feature vectors (D)."""
    features_seed: Annotated[int, Field(ge=0, lt=2**32)] = 1234
    """Of NumPy's RandomState, which draws the features. With 1234 the paper's clean columns of
    LinUCB and of CRLinUCB (v2, v3) come out."""

    def memory(self) -> tuple[float, float]:
        _, each = super().memory()
        d = float(self.dimension)
        return 64.0 * self.arms * d, each + 16 * d * d + 4 * d * (self.arms + TaskStreams.BLOCK)


@dataclass(frozen=True)
class LinearTasks(ArmTasks):
    weights: Tensor
    """(B, D) float32: ω."""


@ENVS.register("linear_bandit")
class LinearBandit(Arms):
    Config = LinearBanditConfig
    config: LinearBanditConfig
    peer = "linucb"

    presets: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "pretrain": {
            "smoke": {**SMOKE_PRETRAIN, **SMALL},
            "laptop": {"steps": 12_000, "batches": BATCHES},
            "paper": {**PAPER_PRETRAIN, "batches": LONG},
        },
        "distill": {
            "smoke": {**SMOKE_PRETRAIN, **SMALL, "tasks": 32, "refresh_every": 10, "pool": 2},
            "laptop": {"steps": 3000, "batches": BATCHES},
            "paper": {**PAPER_DISTILL, "batches": LONG},
        },
        "train": {
            "smoke": {**SMOKE_TRAIN, **SMALL},
            "laptop": {
                "tasks": 400, "rounds": 150, "renew": 0.1, "temperature": 0.7,
                "threats": [
                    {"share": 0.32},
                    {"target": "linucb", "share": 0.1},
                    {"target": "crlinucb(eps={eps})", "share": 0.08},
                    {"target": "lin_ts", "share": 0.07},
                    {"target": "start", "share": 0.07},
                    {"attacker": "few_arms", "share": 0.12},
                    {"attacker": "swap", "share": 0.04},
                    {"attacker": "mirror", "share": 0.04},
                    {"attacker": "none", "share": 0.16},
                ],
                "synthetic": {"rounds": 100, "share": 0.3},
                "optimiser": {"learning_rate": 0.002},
                "batches": BATCHES,
            },
            "paper": {**PAPER_TRAIN, "batches": LONG},
        },
        "attack": {"smoke": {**SMALL, "tasks": 20, "rounds": 3}},
        "evaluate": {
            "smoke": {**SMALL, "tasks": 20, "rounds": 3, "adaptive_rounds": 3},
            "paper": {"replications": 10, "adaptive_rounds": 400},
        },
    }  # fmt: skip

    def __init__(self, config: LinearBanditConfig | None = None) -> None:
        self.config = config or LinearBanditConfig()
        draw = np.random.RandomState(self.config.features_seed)
        shape = (self.config.arms, self.config.dimension)
        self._scale = 1 / math.sqrt(self.config.dimension)
        features = (self._scale * draw.normal(size=shape)).astype(np.float32)
        self.features = torch.from_numpy(features)  # (A, D)
        self.spec = self.make_spec(tuple(map(tuple, features.tolist())))

    def sample_tasks(self, n: int, rng: Rng, first: int = 0) -> LinearTasks:
        ids = torch.arange(first, first + n)
        weights = self._scale * rng.child("weights").streams(ids).normal(self.config.dimension)
        # Not a matrix product: its sums may depend on how many tasks there are.
        means = (weights[:, None, :] * self.features).sum(2)
        return LinearTasks(ids=ids, means=means, weights=weights)

    def sample_contexts(
        self, tasks: LinearTasks, length: int, rng: Rng, poison: Poison | None = None
    ) -> Contexts:
        """Ordered contexts of Thompson sampling; the label of every prefix is the best arm. In two
        of three it takes the arms for independent, with prior N(0, 1), as in DPT. In the others it
        has the exact posterior: like a good model, it soon pulls one arm only, for long.

        Of the poisoned contexts these are half. Under attack such actors soon leave a good arm that
        looks bad, and a robust model should not: in a quarter, one believes in more noise than
        there is, so it keeps looking; a quarter has DPT's pulls for bandits."""
        draw = rng.generator()
        batch, arms = tasks.means.shape
        labels = tasks.means.argmax(1, keepdim=True)
        normal = torch.from_numpy(draw.standard_normal((batch, length, 1), dtype=np.float32))
        noise = self.config.noise_std * normal.to(tasks.device)
        # What every arm would yield, at every step: a context in which all are pulled in turn.
        every = Contexts(
            actions=torch.arange(arms, device=tasks.device).repeat(batch, length),
            rewards=(tasks.means[:, None] + noise).flatten(1),
            labels=labels.expand(batch, length * arms + 1),
        )
        offered = self.poisoned(tasks, every, poison).rewards.view(batch, length, arms)
        other = rng.child("actors").generator()
        noise_std = max(self.config.noise_std, 1e-3)
        actors: list[Actor] = [
            IndependentThompson(arms, np.full(batch, noise_std)),
            LinearThompson(self.features.numpy(), batch, self._scale, noise_std),
        ]
        who = (other.random(batch) < 1 / 3).astype(np.int64)
        if poison is not None:
            actors += [
                IndependentThompson(arms, other.uniform(*DOUBT, batch)),
                FixedPulls(preferred_pulls(batch, length, arms, other).numpy()),
            ]
            attacked = ((poison.eps > 0) & (poison.budget > 0)).cpu().numpy()
            who = np.where(attacked & (other.random(batch) < 0.5), other.integers(2, 4, batch), who)
        actions, rewards = play(offered.cpu().numpy(), actors, who, rng.child("play"))
        return Contexts(
            actions=torch.from_numpy(actions).to(tasks.device),
            rewards=torch.from_numpy(rewards).to(tasks.device),
            labels=labels.expand(batch, length + 1),
            values=tasks.means[:, None],
        )

    def draw_offsets(self, values: Tensor, budget: Tensor, rng: Rng) -> Tensor:
        """Half of them as learned attackers have them here."""
        half = torch.from_numpy(rng.generator().random((len(values), 1))).to(values.device) < 0.5
        few = on_good_arms(values, budget, rng.child("few"))
        return torch.where(half, few, random_offsets(values, budget, rng.child("any")))
