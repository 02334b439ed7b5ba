"""RTS, crUCB and the oracle that knows the attack."""

import math

import numpy as np
import pytest
import torch

from mithridate.agents.single_task import Solo
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.evaluation.crossplay import evaluate
from mithridate.registry import AGENTS, ATTACKERS
from mithridate.rng import Rng
from mithridate.rollout import rollout

stats = pytest.importorskip("scipy.stats")


def arms(trajectory, task):
    rewards, actions = trajectory.observed_rewards[task].numpy(), trajectory.actions[task].numpy()
    return [rewards[actions == a].astype(np.float64) for a in range(5)]


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.2, 0.25, 0.4, 0.45])
def test_the_trimmed_mean_is_scipys(alpha):
    """scipy cuts ⌊αn⌋ at each end; where αn is whole (or after cutting the rest) it must agree."""
    env = make_env("bandit", horizon=120)
    agent = AGENTS.create("crucb", alpha=alpha)
    tasks = env.sample_tasks(4, Rng(0))
    t = rollout(env, tasks, agent, ATTACKERS.create("uniform"), 0.4, rng=Rng(1))
    compared = 0
    for task in range(4):
        for a, x in enumerate(arms(t, task)):
            drop = math.ceil(round(alpha * len(x), 6))
            rest = len(x) - 2 * drop
            expected = np.sort(x)[drop : len(x) - drop].mean() if rest > 0 else 0.0
            assert agent.means[task, a].item() == pytest.approx(expected, abs=1e-5)
            if rest > 0 and drop / len(x) < 0.5:
                cut = (drop + 1e-9) / len(x)
                assert agent.means[task, a].item() == pytest.approx(
                    stats.trim_mean(x, cut), abs=1e-5
                )
                compared += 1
    assert compared > 5


def test_floor_and_ceiling_are_exact():
    """floor((1 − 2·0.4)·5) is 1, though floating point says 0.99…, and ceil(0.4·5) is 2."""
    env = make_env("bandit", arms=2, horizon=30)
    agent = AGENTS.create("crucb", alpha=0.4)
    solo = Solo(agent, env.spec)
    for reward in (0.0, 1.0, 2.0, 3.0, 100.0):
        solo.observe(0, reward)
    assert agent.means[0].tolist() == [2.0, 0.0]
    assert agent._dropped(torch.tensor([5.0, 10.0, 11.0])).tolist() == [2.0, 4.0, 5.0]
    other = AGENTS.create("crucb", alpha=0.07)  # 0.07 · 100 is 7.000000000000001
    assert other._dropped(torch.tensor([100.0])).tolist() == [7.0]


@pytest.mark.parametrize(
    ("variant", "bonus"),
    [
        ("modified", lambda h, n: 0.1 * math.sqrt(4 * math.log(h) / math.floor(n * 0.2 + 1e-9))),
        ("low", lambda h, n: 0.1 * math.sqrt(0.2) / 0.2 * math.sqrt(4 * math.log(h) / n)),
        ("original", lambda h, n: 1.0 / 0.2 * math.sqrt(4 * math.log(h) / n)),
    ],
)
def test_crucb_maximises_its_index(variant, bonus):
    """Choices on a recorded history, recomputed from the definition."""
    env = make_env("bandit", horizon=200)
    agent = AGENTS.create("crucb", alpha=0.4, variant=variant)
    t = rollout(env, env.sample_tasks(3, Rng(0)), agent, rng=Rng(1))
    for task in range(3):
        for h in range(80, 200, 7):
            rewards, actions = t.observed_rewards[task, :h].numpy(), t.actions[task, :h].numpy()
            index = []
            for a in range(5):
                x = np.sort(rewards[actions == a].astype(np.float64))
                drop = math.ceil(round(0.4 * len(x), 6))
                rest = x[drop : len(x) - drop]
                if len(rest) == 0 and (variant != "original" or len(x) == 0):
                    index.append(1e6 - len(x))
                else:
                    mean = rest.mean() if len(rest) else 0.0
                    index.append(mean + bonus(h + 1, len(x)))
            assert index[t.actions[task, h]] == pytest.approx(max(index), abs=1e-5)


def test_rts_raises_the_posterior_mean():
    env = make_env("bandit", horizon=30)
    tasks = env.sample_tasks(3, Rng(0))
    levels = {"tuned": 0.5, "unknown": math.sqrt(30 * math.log(5) / 5), "known": 0.4 * 30 * 3 / 5}
    for level, c in levels.items():
        agent = AGENTS.create("rts", level=level)
        rollout(env, tasks, agent, rng=Rng(1))
        plain = AGENTS.create("ts")
        plain.counts, plain.sums = agent.counts, agent.sums
        mean, std = agent.posterior()
        torch.testing.assert_close(mean - plain.posterior()[0], c / (agent.counts + 4))
        assert torch.equal(std, plain.posterior()[1])


CLEAN = {  # the paper's clean column at eps = 0.4
    "rts": 10.2, "rts(level=unknown)": 48.9, "rts(level=known)": 140.2, "crucb": 15.8,
    "crucb(variant=low)": 15.0, "crucb(variant=original)": 141.4,
}  # fmt: skip


@pytest.mark.slow
def test_clean_columns_are_the_papers():
    result = evaluate("bandit", list(CLEAN), tasks=400, seed=0, threads=1).summary()
    for agent, paper in CLEAN.items():
        mean, ci95 = result[agent]
        allowed = (0.2 if agent.startswith("rts") else 0.1) * paper + ci95
        assert abs(mean - paper) <= allowed, (agent, mean, ci95)


# The oracle ----------------------------------------------------------------------------------


def test_the_oracles_posterior_is_bayes_rule():
    env = make_env("bandit", horizon=25)
    tasks = env.sample_tasks(2, Rng(0))
    agent, attacker = AGENTS.create("posterior_oracle"), ATTACKERS.create("swap", budget=1.0)
    t = rollout(env, tasks, agent, attacker, 0.3, rng=Rng(1))
    grid = np.linspace(0, 1, 101)
    for task in range(2):
        for a, x in enumerate(arms(t, task)):
            phi = attacker.offsets[task, a].item()
            density = np.ones(101)
            for r in x:
                clean = stats.norm.pdf(r, grid, 0.3)
                density *= 0.7 * clean + 0.3 * stats.norm.pdf(r, grid + phi, 0.3)
            expected = (density / density.sum()).cumsum()
            np.testing.assert_allclose(agent.belief.cdf[task, a].numpy(), expected, atol=2e-4)


@pytest.mark.parametrize("attacker", ["raise_worst", "lower_best", "swap"])
def test_knowing_the_attack_is_as_good_as_none(attacker):
    settings = {"tasks": 100, "seed": 0, "threads": 1}
    env = make_env("bandit", horizon=200)
    clean = evaluate(env, ["posterior_oracle"], **settings).summary()["posterior_oracle"][0]
    known = evaluate(env, ["posterior_oracle", "ts"], attackers=attacker, **settings).summary()
    assert known["posterior_oracle"][0] < 1.35 * clean
    assert known["ts"][0] > 2 * known["posterior_oracle"][0]


def test_knowing_the_rule_is_less_than_knowing_the_offsets():
    settings = {"tasks": 100, "seed": 0, "threads": 1, "eps": 0.4}
    env = make_env("bandit", horizon=200)
    agents = {"offsets": "posterior_oracle", "rule": "posterior_oracle(knows=rule)", "ts": "ts"}
    known = evaluate(env, agents, attackers="mirror", **settings).summary()
    assert 1.5 * known["offsets"][0] < known["rule"][0] < known["ts"][0]
    clean = evaluate(env, agents, **settings).summary()
    assert clean["offsets"] == clean["rule"]
    with pytest.raises(UserError, match="has no rule"):
        evaluate(env, agents, attackers="swap", **settings)


def test_the_oracle_says_what_it_cannot_know():
    class Unknown:
        def reset(self, spec, tasks, rng):
            pass

        def poison(self, step):
            return step.true_rewards

    env = make_env("bandit", horizon=5)
    tasks = env.sample_tasks(2, Rng(0))
    with pytest.raises(UserError, match="does not know Unknown"):
        rollout(env, tasks, AGENTS.create("posterior_oracle"), Unknown(), 0.5, rng=Rng(1))
