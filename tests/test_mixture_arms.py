"""`mixture_ts` is Bayes' rule: equal to a sum over everything, and right as often as it says."""

import math

import pytest
import torch

from mithridate.agents.mixture_arms import EVERY, FARTHEST, POINTS, MixtureTS, MixtureTSConfig
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.registry import AGENTS, ATTACKERS
from mithridate.rng import Rng
from mithridate.scores import step_scores

STEP = 1 / (POINTS - 1)


def agent(batch, arms, **settings):
    env = make_env("bandit", arms=arms, horizon=50)
    found = MixtureTS(MixtureTSConfig(**settings))
    found.reset(env.spec, batch, Rng(0).streams(range(batch)))
    return found


def by_hand(pulls, arms, eps_grid, noise, scales, spreads, untouched):
    """P(best) of one task, summed over every ε, w, r, μ and φ in double precision."""
    means = torch.linspace(0, 1, POINTS, dtype=torch.float64)
    offsets = EVERY * STEP * torch.arange(-FARTHEST, FARTHEST + 1, dtype=torch.float64)
    total = torch.zeros(arms, dtype=torch.float64)
    for eps in eps_grid:
        for scale in scales:
            slab = torch.softmax(-0.5 * (offsets / scale) ** 2, 0)
            prior = (1 - untouched) * slab + untouched * (offsets == 0)
            marginals = []
            for arm in range(arms):
                marginal = torch.zeros(POINTS, dtype=torch.float64)
                for spread in spreads:
                    width = math.hypot(noise, spread)
                    likelihood = torch.ones(POINTS, len(offsets), dtype=torch.float64)
                    for pulled, reward in pulls:
                        if pulled == arm:
                            clean = torch.exp(-0.5 * ((reward - means) / noise) ** 2) / noise
                            away = reward - means[:, None] - offsets
                            moved = torch.exp(-0.5 * (away / width) ** 2) / width
                            likelihood *= (1 - eps) * clean[:, None] + eps * moved
                    marginal += (likelihood * prior).sum(1)
                marginals.append(marginal)
            for arm in range(arms):
                wins = marginals[arm].clone()
                for other in range(arms):
                    if other != arm:
                        wins *= marginals[other].cumsum(0) - 0.5 * marginals[other]
                total[arm] += wins.sum()
    return total / total.sum()


@pytest.mark.parametrize("eps", [0.4, None])
def test_it_is_the_posterior(eps):
    pulls = [(0, 0.9), (1, 0.2), (0, -1.3), (2, 0.6), (1, 1.9), (0, 0.7), (1, 0.4), (0, 0.8)]
    found = agent(1, 3, eps=eps, scales=(0.4, 1.5), spreads=(0.1, 0.5))
    for arm, reward in pulls:
        found.observe(None, torch.tensor([arm]), torch.tensor([reward]), None)
    grid = (0.0, 0.1, 0.2, 0.3, 0.4, 0.48) if eps is None else (eps,)
    expected = by_hand(pulls, 3, grid, 0.3, (0.4, 1.5), (0.1, 0.5), 0.15)
    # Where arms tie on the grid, each pair counts half; what is left out is of order 1 / POINTS².
    torch.testing.assert_close(found.best()[0].double(), expected, atol=3e-3, rtol=0)


def test_it_is_right_as_often_as_it_says():
    """Tasks and attacks drawn from what it believes in; 25 pulls at random."""
    n, arms, eps, noise = 4000, 3, 0.3, 0.3
    draw = Rng(5).generator()
    scales, spreads = (0.3, 1.2), (0.02, 0.4)
    means = draw.random((n, arms))
    scale = draw.choice(scales, (n, 1))
    spread = draw.choice(spreads, (n, arms))
    offsets = scale * draw.standard_normal((n, arms)) * (draw.random((n, arms)) > 0.15)
    found = agent(n, arms, eps=eps, scales=scales, spreads=spreads)
    rows = torch.arange(n)
    for _ in range(25):
        pulled = draw.integers(0, arms, n)
        hit = draw.random(n) < eps
        added = offsets[rows, pulled] + spread[rows, pulled] * draw.standard_normal(n)
        rewards = means[rows, pulled] + noise * draw.standard_normal(n) + hit * added
        found.observe(None, torch.from_numpy(pulled), torch.from_numpy(rewards).float(), None)
    said = found.best()
    right = torch.from_numpy(means.argmax(1))[:, None] == torch.arange(arms)
    for low, high in ((0.0, 0.1), (0.1, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.01)):
        here = (said >= low) & (said < high)
        expected, count = said[here].mean(), here.sum()
        error = (expected * (1 - expected) / count).sqrt()
        assert count > 100 and abs(right[here].float().mean() - expected) < 4 * error + 0.01


def test_it_survives_what_deceives_thompson_sampling():
    env = make_env("bandit", horizon=200)
    tasks = env.sample_tasks(40, Rng(1))
    swap = ATTACKERS.create("swap", budget=3.0)
    mine, ts = (
        step_scores(env, tasks, AGENTS.create(name), swap, 0.4, rng=Rng(2)).sum(1).mean()
        for name in ("mixture_ts", "ts")
    )
    assert mine < 0.4 * ts


def test_it_needs_independent_arms():
    env = make_env("darkroom2")
    with pytest.raises(UserError, match="needs an environment whose arms are independent"):
        MixtureTS().reset(env.spec, 2, Rng(0).streams([0, 1]))
