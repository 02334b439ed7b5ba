"""The worst that a frozen suite of attacks finds against an algorithm of your own. The suite
`quick-v0` takes less than a minute; quote `standard-v0`."""

import random

import mithridate as mi


class EpsilonGreedy:
    """Explore in one step of ten."""

    def reset(self, n_actions):
        self.sums, self.counts = [0.0] * n_actions, [0] * n_actions

    def act(self, obs):
        if 0 in self.counts:
            return self.counts.index(0)
        if random.random() < 0.1:  # seeded by the stress test
            return random.randrange(len(self.counts))
        return max(range(len(self.counts)), key=lambda arm: self.sums[arm] / self.counts[arm])

    def observe(self, obs, action, reward, next_obs):
        self.sums[action] += reward
        self.counts[action] += 1


if __name__ == "__main__":
    test = mi.stress_test(EpsilonGreedy, env="bandit", suite="quick-v0")
    name, mean, ci95 = test.worst_attack
    print(f"clean {test.entry.clean:.1f}, worst attack {name}: regret {mean:.1f} ± {ci95:.1f}")
    print("each task under its worst attack: {:.1f} ± {:.1f}".format(*test.worst_case))
    for flag in test.flags:
        print(f"{flag.code}: {flag.text}")
