"""Measure an algorithm of your own: a plain class for a single task is enough. Without an attack,
under attacks that need no learning, and under attackers that are trained against it. The last ones
keep, of all their rounds, those that hurt most."""

import random

import mithridate as mi

TASKS, ROUNDS = 100, 10


class EpsilonGreedy:
    """Explore in one step of ten."""

    def reset(self, n_actions):
        self.sums, self.counts = [0.0] * n_actions, [0] * n_actions
        self.random = random.Random(0)

    def act(self, obs):
        if 0 in self.counts:
            return self.counts.index(0)
        if self.random.random() < 0.1:
            return self.random.randrange(len(self.counts))
        return max(range(len(self.counts)), key=lambda arm: self.sums[arm] / self.counts[arm])

    def observe(self, obs, action, reward, next_obs):
        self.sums[action] += reward
        self.counts[action] += 1


agents = {"AT-DPT": "at-dpt-bandit-s0", "TS": "ts", "eps-greedy": EpsilonGreedy}
attackers = ["none", "uniform", "raise_worst", "lower_best", "swap", "mirror"]
attackers += ["learned(eps-greedy)", "kept(eps-greedy)"]
result = mi.evaluate(
    "bandit", agents, attackers=attackers, eps=0.4, budget=3.0, tasks=TASKS, rounds=ROUNDS, seed=0
)
for agent in result.agents():
    scores = {column: result.cell(agent, column) for column in result.columns()}
    for column, (regret, ci95) in scores.items():
        print(f"{agent:10} {column:20} regret {regret:6.1f} ± {ci95:.1f}")
    worst = max(scores, key=scores.get)
    print(f"{agent:10} worst attack: {worst}, regret {scores[worst][0]:.1f}\n")
