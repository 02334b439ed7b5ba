"""The multi-armed Gaussian bandit of DPT (Lee et al., 2023) and of the paper's section 5.2.

- Action: one of `arms`.
- Observation: none.
- Reward: normal, with the arm's mean and standard deviation `noise_std`.
- Task: means drawn independently and uniformly from [0, 1].
- End: after `horizon` steps.
- Metric: cumulative regret, computed from the arm means (not from realised rewards).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch

from mithridate.config import Positive
from mithridate.envs.bandit_base import Arms, ArmsConfig, ArmTasks, preferred_pulls
from mithridate.envs.presets import (
    PAPER_DISTILL,
    PAPER_PRETRAIN,
    PAPER_TRAIN,
    SMALL_BATCHES,
    SMOKE_PRETRAIN,
    SMOKE_TRAIN,
)
from mithridate.registry import ENVS
from mithridate.rng import Rng
from mithridate.types import Contexts, Poison

SMALL: dict[str, Any] = {"env": {"arms": 3, "horizon": 20}, "threads": 1}
SMOKE: dict[str, Any] = {
    **SMOKE_PRETRAIN,
    **SMALL,
    "batches": {**SMALL_BATCHES, "long_batch": 32, "short_batch": 32},
}
STRONG: dict[str, Any] = {
    # Bayes' rule with a prior of attacks that searches have found says what to do in contexts that
    # the model has lived through, most of them under such attacks.
    "teacher": "mixture_ts(prior=searched,temperature=1)",
    "widen": 2,
    "tasks": 160,
    "threats": [
        {"attacker": "replay", "share": 0.32},
        {"attacker": "search(candidates=8)", "share": 0.06},  # 8 episodes of each task
        {"attacker": "disguise", "share": 0.15},
        {"attacker": "mirror", "share": 0.07},
        {"attacker": "few_arms", "share": 0.1},
        {"attacker": "uniform", "share": 0.06},
        {"attacker": "swap", "share": 0.03},
        {"attacker": "lower_best", "share": 0.03},
        {"attacker": "raise_worst", "share": 0.03},
        {"attacker": "gaussian", "share": 0.05},
        {"attacker": "none", "share": 0.1},
    ],
    "renew": 0.15,
    "memory": 30,
    "synthetic": {"rounds": 0, "share": 0.0},
    "rounds": 115,
    "compare_every": 0,
    "evaluate_every": 40,
    "final_tasks": 200,
}


class BanditConfig(ArmsConfig):
    name: Literal["bandit"] = "bandit"
    horizon: Positive = 500
    """Pulls per episode (H)."""
    arms: Positive = 5
    """Number of arms (A)."""


@ENVS.register("bandit")
class Bandit(Arms):
    Config = BanditConfig
    config: BanditConfig

    # What differs from the defaults of mithridate.stage_config, by stage and preset.
    presets: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "pretrain": {
            "smoke": SMOKE,
            "paper": PAPER_PRETRAIN,
        },
        "distill": {
            "smoke": {**SMOKE, "tasks": 32, "refresh_every": 10, "pool": 2},
            "laptop": {"steps": 3000},
            "paper": PAPER_DISTILL,
        },
        "train": {
            "smoke": {**SMOKE_TRAIN, **SMALL},
            "laptop": STRONG,
            "laptop-v1": {},
            "paper": PAPER_TRAIN,
        },
        "attack": {
            "smoke": {**SMALL, "tasks": 20, "rounds": 3},
        },
        "evaluate": {
            "smoke": {**SMALL, "tasks": 20, "rounds": 3, "adaptive_rounds": 3},
            "paper": {"replications": 10, "adaptive_rounds": 400},
        },
    }  # fmt: skip

    def __init__(self, config: BanditConfig | None = None) -> None:
        self.config = config or BanditConfig()
        self.spec = self.make_spec()

    def sample_tasks(self, n: int, rng: Rng, first: int = 0) -> ArmTasks:
        ids = torch.arange(first, first + n)
        means = rng.child("means").streams(ids).ahead("uniform", 1, self.config.arms)  # no more
        return ArmTasks(ids=ids, means=means.view(n, self.config.arms))

    def sample_contexts(
        self, tasks: ArmTasks, length: int, rng: Rng, poison: Poison | None = None
    ) -> Contexts:
        """DPT's contexts: i.i.d. pulls; the label of every prefix, the empty one included, is the
        best arm."""
        batch, arms = tasks.means.shape
        draw = rng.generator()
        actions = preferred_pulls(batch, length, arms, draw)
        noise = torch.from_numpy(draw.standard_normal((batch, length), dtype=np.float32))
        device = tasks.device
        actions, noise = actions.to(device), noise.to(device)
        contexts = Contexts(
            actions=actions,
            rewards=tasks.means.gather(1, actions) + self.config.noise_std * noise,
            labels=tasks.means.argmax(1, keepdim=True).expand(batch, length + 1),
            values=tasks.means[:, None],
        )
        return self.poisoned(tasks, contexts, poison)
