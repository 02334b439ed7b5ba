"""What a user's typed code looks like. tests/test_build.py checks it with mypy --strict against the
installed wheel. An `ignore` that is of no use is an error there, so the last lines prove that the
types are seen, and not taken for Any."""

from __future__ import annotations

import mithridate as mi
from mithridate.aggregates import Aggregate
from mithridate.evaluation.crossplay import Evaluation
from mithridate.types import Env


class Greedy:
    def reset(self, n_actions: int) -> None:
        self.best = 0

    def act(self, obs: object) -> int:
        return self.best

    def observe(self, obs: object, action: int, reward: float, next_obs: object) -> None:
        self.best = action if reward > 0 else 0


def worst(env: Env, agents: dict[str, object]) -> tuple[float, float]:
    result: Evaluation = mi.evaluate(env, agents, attackers=("none", "swap"), tasks=4)
    means: dict[str, Aggregate] = mi.read_records(result).interquartile_means()
    low: float | None = means["greedy"].low
    print(low)
    return max(result.summary("swap").values())


def loop(steps: int) -> float:
    env = mi.make_env("bandit", arms=5)
    solo = mi.Solo(mi.load("at-dpt-bandit-s0"), env.spec, seed=1)
    total = 0.0
    for _ in range(steps):
        arm: int = solo.act()
        solo.observe(arm, reward=0.5)
        total += arm
    return total


def stress() -> str:
    name: str = mi.stress_test(Greedy, env="bandit", suite="smoke-v0").worst_attack[0]
    return name


mi.make_env(3)  # type: ignore[arg-type]
mi.evaluate("bandit", ["ts"], preset=5)  # type: ignore[arg-type]
print(mi.load("at-dpt-bandit-s0").no_such_thing)  # type: ignore[attr-defined]
