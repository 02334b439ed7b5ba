"""An honest robustness figure for an algorithm of your own: the worst over a suite of attacks, two
of them trained against it. The second keeps, of all its rounds, those that hurt most."""

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


agents = {"AT-DPT": mi.load("at-dpt-bandit-s0"), "eps-greedy": EpsilonGreedy}
attackers = ["none", "uniform", "raise_worst", "lower_best", "swap", "mirror"]
attackers += ["learned(eps-greedy)", "kept(eps-greedy)"]
result = mi.evaluate(
    "bandit", agents, attackers=attackers, eps=0.4, budget=3.0, tasks=50, rounds=10, seed=0
)
for agent in result.agents():
    scores = {column: result.cell(agent, column)[0] for column in result.columns()}
    for column, regret in scores.items():
        print(f"{agent:10} {column:20} regret {regret:6.1f}")
    worst = max(scores, key=scores.get)
    print(f"{agent:10} worst attack: {worst}, regret {scores[worst]:.1f}\n")
