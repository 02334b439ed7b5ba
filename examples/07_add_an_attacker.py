"""Add an attacker: one class and one decorator, and everything knows it: `evaluate`, `train`,
`stress`, the report. This one lifts the second best arm, which is hard to tell from the best.

For the commands, name this file: MITHRIDATE_IMPORT=my_file mithridate evaluate bandit \\
    --agents ts,at-dpt-bandit-s0 --attackers none,lift_second
Whether it keeps all promises: MITHRIDATE_IMPORT=my_file python -m pytest tests/test_contracts.py"""

import torch

import mithridate as mi
from mithridate.budget import norm, project
from mithridate.config import Config, NonNegativeFloat

TASKS = 200


class LiftSecondConfig(Config):
    budget: NonNegativeFloat = 3.0
    """Bound on the norm of the offsets."""
    share: NonNegativeFloat = 0.3
    """How much of the budget is spent."""


@mi.ATTACKERS.register("lift_second")
class LiftSecond:
    Config = LiftSecondConfig

    def __init__(self, config=None):
        self.config = config or LiftSecondConfig()

    def reset(self, spec, tasks, rng):
        """For B tasks at once. An attacker may know them: here, the arms' means (B, A)."""
        if not hasattr(tasks, "means"):
            raise mi.UserError("attacker 'lift_second' needs arms")
        second = tasks.means.argsort(dim=1, descending=True)[:, 1:2]
        wanted = torch.zeros_like(tasks.means)
        wanted.scatter_(1, second, self.config.share * self.config.budget)
        self.offsets = project(wanted, self.config.budget)

    def poison(self, step):
        """(B,): the rewards that are shown, where a step is poisoned."""
        return step.true_rewards + self.offsets.gather(1, step.actions[:, None]).squeeze(1)

    def cost(self):
        """(B,): the norm of what it adds. Who spends more than the budget is refused."""
        return norm(self.offsets)


agents = {"AT-DPT": "at-dpt-bandit-s0", "mixture TS": "mixture_ts", "TS": "ts"}
attackers = ("none", "swap", "lift_second", "lift_second(share=1)")
result = mi.evaluate("bandit", agents, attackers=attackers, eps=0.4, budget=3.0, tasks=TASKS)
for agent in result.agents():
    for column in result.columns():
        mean, ci95 = result.cell(agent, column)
        print(f"{agent:10} {column:22} regret {mean:6.1f} ± {ci95:.1f}")
