"""Point the evaluation at an algorithm of your own: a plain class for a single task is enough."""

import random

import mithridate as mi


class EpsilonGreedy:
    """Explore in one step of ten."""

    def reset(self):
        self.sums, self.counts, self.random = [0.0] * 5, [0] * 5, random.Random(0)

    def act(self, obs):
        if 0 in self.counts:
            return self.counts.index(0)
        if self.random.random() < 0.1:
            return self.random.randrange(5)
        return max(range(5), key=lambda arm: self.sums[arm] / self.counts[arm])

    def observe(self, obs, action, reward, next_obs):
        self.sums[action] += reward
        self.counts[action] += 1


agents = {"DPT": "dpt-bandit-s0", "TS": "ts", "eps-greedy": EpsilonGreedy}
for attacker in ("none", "uniform"):
    result = mi.evaluate("bandit", agents, tasks=100, seed=0, attackers=attacker, eps=0.4)
    for agent, (mean, ci95) in result.summary().items():
        print(f"attacker {attacker:8} {agent:10} regret {mean:6.2f} ± {ci95:.2f}")
