"""The bandit and its classical agents, against theory and independent computation."""

import math

import pytest
import torch

from mithridate.envs import make_env
from mithridate.evaluation.crossplay import evaluate
from mithridate.intervals import mean_ci95
from mithridate.registry import AGENTS
from mithridate.rng import Rng
from mithridate.rollout import rollout


def test_rewards_and_regret():
    env = make_env("bandit", horizon=400)
    tasks = env.sample_tasks(200, Rng(0))
    assert tasks.means.min() >= 0 and tasks.means.max() < 1
    assert abs(tasks.means.mean() - 0.5) < 0.03
    trajectory = rollout(env, tasks, AGENTS.create("uniform"), rng=Rng(1))
    residual = trajectory.true_rewards - tasks.means.gather(1, trajectory.actions)
    assert abs(residual.mean()) < 0.005
    assert abs(residual.std() - 0.3) < 0.005
    regret = env.score(tasks, trajectory)
    assert (regret >= 0).all()
    # A uniform player loses max − mean per step.
    expected = (tasks.means.amax(1) - tasks.means.mean(1)).mean() * 400
    assert abs(regret.sum(1).mean() - expected) < 0.02 * expected


def test_contexts_follow_the_paper():
    """Rewards belong to the pulled arm; a third of the contexts are far from uniform."""
    env = make_env("bandit")
    tasks = env.sample_tasks(400, Rng(0))
    data = env.sample_contexts(tasks, 500, Rng(1))
    residual = data.rewards - tasks.means.gather(1, data.actions)
    assert abs(residual.std() - 0.3) < 0.01
    assert (data.labels == tasks.means.argmax(1, keepdim=True)).all()
    share = torch.nn.functional.one_hot(data.actions, 5).float().mean(1)  # (B, A)
    assert abs(share.mean(0) - 0.2).max() < 0.05
    favourite = share.amax(1)
    # c = 1 (a single arm) has probability 1/11, and c is uniform on its grid.
    assert abs((favourite == 1).float().mean() - 1 / 11) < 0.05
    assert 0.55 < favourite.mean() < 0.75


def test_thompson_posterior_is_bayes_rule():
    env = make_env("bandit", horizon=30)
    agent = AGENTS.create("ts")
    trajectory = rollout(env, env.sample_tasks(3, Rng(0)), agent, rng=Rng(1))
    mean, std = agent.posterior()
    for task in range(3):
        for arm in range(5):
            rewards = trajectory.observed_rewards[task][trajectory.actions[task] == arm]
            precision = 12 + len(rewards) / 0.09
            assert std[task, arm].item() == pytest.approx(precision**-0.5, rel=1e-5)
            expected = (12 * 0.5 + rewards.sum().item() / 0.09) / precision
            assert mean[task, arm].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("form", ["fixed", "log"])
def test_ucb_follows_its_index(form):
    env = make_env("bandit", horizon=60)
    trajectory = rollout(
        env, env.sample_tasks(4, Rng(0)), AGENTS.create("ucb1", form=form), rng=Rng(1)
    )
    for task in range(4):
        assert sorted(trajectory.actions[task, :5].tolist()) == [0, 1, 2, 3, 4]
        for t in range(5, 60):
            index = []
            for arm in range(5):
                rewards = trajectory.observed_rewards[task, :t][trajectory.actions[task, :t] == arm]
                scale = math.log(t) if form == "log" else 1.0
                index.append(rewards.mean().item() + math.sqrt(2 * scale / len(rewards)))
            chosen = trajectory.actions[task, t].item()
            assert index[chosen] == pytest.approx(max(index), abs=1e-5)


def test_clean_regret_matches_the_paper():
    """Paper: TS 8.7–9.1, UCB1.0 16.0 over 10 × 200 tasks; baselines: TS 9.47 over 20,000."""
    result = evaluate("bandit", ["ts", "ucb1", "oracle"], tasks=500, seed=0, threads=1).summary()
    assert 8.7 <= result["ts"][0] <= 10.2
    assert 15 <= result["ucb1"][0] <= 17.5
    assert result["oracle"] == (0, 0)


def test_mean_ci95():
    mean, ci95 = mean_ci95([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5
    assert ci95 == pytest.approx(2 * math.sqrt(5 / 3) / 2)
    assert math.isnan(mean_ci95([1.0])[1])
