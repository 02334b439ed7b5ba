"""Train a robust agent on a task distribution of your own: bandits with one good arm, whose place
and worth nobody knows, among poor ones. First a DPT, then AT-DPT against attackers; minutes each on
two cores. Started again, both go on where they were.

For the commands, name this file: MITHRIDATE_IMPORT=my_file mithridate pretrain one_good_arm"""

import dataclasses
from typing import Literal

import torch

import mithridate as mi
from mithridate.envs.bandit import Bandit, BanditConfig
from mithridate.settings import resolve
from mithridate.stage_config import AdversarialConfig, PretrainConfig
from mithridate.training.adversarial import train_adversarially
from mithridate.training.pretrain import pretrain

PRESET, TASKS = "laptop", 200
SIZE = {"arms": 8, "horizon": 300}


class OneGoodArmConfig(BanditConfig):
    name: Literal["one_good_arm"] = "one_good_arm"


@mi.ENVS.register("one_good_arm")
class OneGoodArm(Bandit):
    Config = OneGoodArmConfig

    def sample_tasks(self, n, rng, first=0):
        """A task depends on `rng` and its number only."""
        tasks = super().sample_tasks(n, rng, first)  # means from U[0, 1]
        luck = rng.child("good").streams(tasks.ids).uniform(2)  # (n, 2)
        good = (luck[:, :1] * self.config.arms).long()
        means = (0.3 * tasks.means).scatter(1, good, 0.5 + 0.5 * luck[:, 1:])
        return dataclasses.replace(tasks, means=means.to(torch.float32))


env = mi.make_env("one_good_arm", **SIZE)
start = resolve(PretrainConfig, "pretrain", env.config, PRESET)
pretrain(start, "runs/one-good-arm")
training = resolve(
    AdversarialConfig, "train", env.config, PRESET, start="runs/one-good-arm", eps=0.3, budget=2.0
)
train_adversarially(training, "runs/one-good-arm-robust")

agents = {"DPT": "runs/one-good-arm", "AT-DPT": "runs/one-good-arm-robust", "TS": "ts"}
result = mi.evaluate(
    env, agents, attackers=("none", "swap", "mirror"), eps=0.3, budget=2.0, tasks=TASKS
)
for agent in result.agents():
    for column in result.columns():
        mean, ci95 = result.cell(agent, column)
        print(f"{agent:6} {column:6} regret {mean:6.1f} ± {ci95:.1f}")
