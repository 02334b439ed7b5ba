"""`mixture_ts` is Bayes' rule: equal to a sum over everything, and right as often as it says."""

import math

import numpy as np
import pytest
import torch

from mithridate.agents.mixture_arms import MixtureTS, MixtureTSConfig
from mithridate.agents.mixture_grid import (
    EVERY,
    FARTHEST,
    POINTS,
    NativePosterior,
    ReferencePosterior,
    make_grid,
    make_posterior,
)
from mithridate.agents.mixture_prior import with_searched
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.native import kernels
from mithridate.registry import AGENTS, ATTACKERS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.scores import step_scores
from mithridate.searched import Searched

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


def test_with_attacks_that_know_the_best_arm_it_is_right_as_often_as_it_says():
    """Tasks and attacks drawn from the grid's prior; 25 pulls at random."""
    n, arms, eps, noise = 3000, 3, 0.4, 0.3
    draw = Rng(6).generator()
    grid = make_grid(arms, noise, (eps,), 0.15, (0.5,), (0.1,), torch.device("cpu"))
    grid = with_searched(grid, LOWERED)
    means = draw.integers(0, POINTS, (n, arms))
    best = means.argmax(1)  # of arms that tie, the first
    kinds = grid.share.sum(1)[:, 0].double().numpy()  # (W,)
    kind = draw.choice(len(kinds), n, p=kinds / kinds.sum())
    offsets = np.empty((n, arms))
    for i, arm in np.ndindex(n, arms):
        density = grid.share if arm == best[i] else grid.rivals
        chances = density[kind[i], :, means[i, arm]].double().numpy()
        offsets[i, arm] = draw.choice(grid.offsets, p=chances / chances.sum())
    found, rows = make_posterior(grid, n), np.arange(n)
    for _ in range(25):
        pulled = draw.integers(0, arms, n)
        added = offsets[rows, pulled] + 0.1 * draw.standard_normal(n)
        rewards = means[rows, pulled] / (POINTS - 1) + noise * draw.standard_normal(n)
        rewards += (draw.random(n) < eps) * added
        found.observe(torch.from_numpy(pulled), torch.from_numpy(rewards).float())
    said = found.best()
    right = torch.from_numpy(best)[:, None] == torch.arange(arms)
    for low, high in ((0.0, 0.1), (0.1, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.01)):
        here = (said >= low) & (said < high)
        expected, count = said[here].mean(), here.sum()
        error = (expected * (1 - expected) / count).sqrt()
        assert count > 100 and abs(right[here].float().mean() - expected) < 4 * error + 0.01


def test_the_searched_prior_needs_to_know_eps():
    with pytest.raises(UserError, match="'searched' needs eps"):
        AGENTS.make("mixture_ts(eps=null,prior=searched)")
    assert AGENTS.make("mixture_ts(prior=searched)").config.eps == 0.4


def test_the_searched_prior_knows_more_under_what_searches_find():
    """As `replay` shows it, on other tasks: the best arm is more probable to it, in nats."""
    env = make_env("bandit", horizon=100)
    tasks = env.sample_tasks(200, Rng(1))
    attack = ATTACKERS.create("replay", budget=3.0)
    pulled = rollout(env, tasks, AGENTS.create("uniform"), attack, 0.4, rng=Rng(2))
    nats = {}
    for prior in ("searched", "unrelated"):
        agent = MixtureTS(MixtureTSConfig(prior=prior))
        agent.reset(env.spec, 200, Rng(3).streams(tasks.ids))
        for t in range(100):
            agent.observe(
                None, pulled.actions[:, t].contiguous(),
                pulled.observed_rewards[:, t].contiguous(), None,
            )  # fmt: skip
        probable = agent._posterior.best().gather(1, tasks.means.argmax(1, keepdim=True))
        nats[prior] = probable.clamp(min=1e-9).log().squeeze(1)
    gain = nats["searched"] - nats["unrelated"]
    assert gain.mean() > 3 * gain.std() / len(gain) ** 0.5


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


# The kernels --------------------------------------------------------------------------------------

LOWERED = Searched(
    torch.tensor([[0.1, 0.3, 0.8], [0.4, 0.5, 0.6], [0.0, 0.2, 0.9], [0.3, 0.6, 0.7]]),
    torch.tensor([[0.8, 0.4, -0.6], [0.5, 0.3, -0.2], [1.2, 0.2, 0.7], [-0.9, 0.5, -1.0]]),
)
"""Attacks by which the best arm passes for a poor one, and others for good ones."""
native = pytest.mark.skipif(kernels() is None, reason="the kernels are not built")


def both(
    batch, arms, eps=(0.4,), scales=(0.3, 0.7, 1.4), spreads=(0.02, 0.3, 0.6), noise=0.3, found=None
):
    grid = make_grid(arms, noise, eps, 0.15, scales, spreads, torch.device("cpu"))
    if found is not None:
        grid = with_searched(grid, found)
    return NativePosterior(grid, batch), ReferencePosterior(grid, batch)


def same(fast, slow, uniforms, temperature=0.35):
    """Equal probabilities, and equal arms but where a uniform number is at an edge."""
    best = slow.best()
    torch.testing.assert_close(fast.best(), best, atol=2e-5, rtol=1e-3)
    chosen, expected = fast.draw(uniforms, temperature), slow.draw(uniforms, temperature)
    edges = torch.softmax(best.clamp(min=1e-20).log() / temperature, 1).cumsum(1)
    close = ((uniforms - edges).abs() < 1e-4).any(1)
    assert torch.equal(chosen[~close], expected[~close])
    return chosen


@native
@pytest.mark.parametrize("isa", kernels().instruction_sets() if kernels() else [])
@pytest.mark.parametrize(
    ("batch", "arms", "settings"),
    [
        (1, 1, {}), (1, 2, {}), (7, 5, {}), (5, 20, {}), (64, 3, {}),
        (6, 4, {"eps": (0.0, 0.1, 0.2, 0.3, 0.4, 0.48)}),  # of which the first is soon ruled out
        (6, 5, {"scales": (0.5,), "spreads": (0.1,)}),
        (6, 5, {"scales": tuple(0.2 * i for i in range(1, 9)), "spreads": (0.02, 1.0)}),
        (6, 5, {"found": LOWERED}), (7, 3, {"found": LOWERED, "eps": (0.0, 0.2, 0.48)}),
        (6, 5, {"eps": (0.0,), "noise": 1.0}), (6, 5, {"eps": (1.0,)}), (6, 5, {"noise": 0.05}),
    ],
)  # fmt: skip
def test_the_kernels_do_what_the_reference_does(batch, arms, settings, isa):
    """On 60 rewards of arms that each half of the time is drawn, or is the same again."""
    draw = Rng(3).generator()
    before = kernels().active()
    kernels().use(isa)
    try:
        fast, slow = both(batch, arms, **settings)
        means = draw.random((batch, arms))
        for _ in range(60):
            uniforms = torch.from_numpy(draw.random((batch, 1))).float()
            actions = same(fast, slow, uniforms)
            if draw.random() < 0.5:
                actions = torch.from_numpy(draw.integers(0, arms, batch))
            paid = means[range(batch), actions] + 0.3 * draw.standard_normal(batch)
            paid += (draw.random(batch) < 0.4) * draw.normal(0.0, 1.5, batch)
            rewards = torch.from_numpy(paid).float()
            fast.observe(actions, rewards)
            slow.observe(actions, rewards)
        torch.testing.assert_close(fast.beliefs[..., :POINTS], slow.beliefs, atol=1e-4, rtol=1e-3)
        assert (fast.beliefs[..., POINTS:] == 0).all()
    finally:
        kernels().use(before)


@native
@pytest.mark.parametrize("reward", [5.0, -40.0, 1e6, -3e38, math.inf])
def test_a_reward_from_far_away_says_what_it_says_in_the_reference(reward):
    fast, slow = both(2, 3)
    for arm, paid in ((0, 0.9), (1, reward), (0, reward), (1, 0.2), (1, reward), (2, 0.4)):
        for known in (fast, slow):
            known.observe(torch.tensor([arm, 2]), torch.tensor([paid, 0.5]))
        same(fast, slow, torch.tensor([[0.3], [0.8]]))
    assert fast.best().isfinite().all()


@native
def test_what_is_not_a_number_stays_in_its_task():
    fast, slow = both(3, 4)
    for known in (fast, slow):
        known.observe(torch.tensor([0, 1, 2]), torch.tensor([0.3, math.nan, 0.6]))
        known.observe(torch.tensor([2, 1, 0]), torch.tensor([0.3, 0.1, 0.6]))
    assert torch.equal(fast.best().isnan(), slow.best().isnan())
    assert fast.best().isnan().any(1).tolist() == [False, True, False]
    uniforms = torch.full((3, 1), 0.9)
    assert torch.equal(fast.draw(uniforms, 0.35), slow.draw(uniforms, 0.35))


@native
def test_threads_and_the_batch_change_nothing():
    found = []
    for threads, parts in ((1, [range(11)]), (3, [range(11)]), (2, [range(1), range(1, 11)])):
        torch.set_num_threads(threads)
        draw = Rng(4).generator()
        paid = torch.from_numpy(draw.normal(0.5, 0.8, (30, 11))).float()
        arms = torch.from_numpy(draw.integers(0, 5, (30, 11)))
        tasks = []
        for part in parts:
            known = both(len(part), 5)[0]
            for t in range(30):
                known.observe(arms[t, list(part)], paid[t, list(part)])
            tasks.append(known.best())
        found.append(torch.cat(tasks))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


class Asked(MixtureTS):
    """The same, but it is asked at every step."""

    def act(self, obs):
        return super().act(obs)


@native
@pytest.mark.parametrize("attack", [None, "uniform", "mirror"])
@pytest.mark.parametrize("settings", [{}, {"eps": None, "temperature": 1.0}])
def test_whole_episodes_are_what_the_loop_does(attack, settings):
    env = make_env("bandit", horizon=60)
    tasks = env.sample_tasks(9, Rng(1))
    attacker = None if attack is None else ATTACKERS.create(attack)
    config = MixtureTSConfig(**settings)
    played, asked = (
        rollout(env, tasks, kind(config), attacker, 0.4, rng=Rng(2)) for kind in (MixtureTS, Asked)
    )
    assert torch.equal(played.actions, asked.actions)
    assert torch.equal(played.observed_rewards, asked.observed_rewards)
    spent = MixtureTS(config)
    rollout(env, tasks, spent, rng=Rng(2))
    with pytest.raises(UserError, match="reset it first"):
        spent.best()


@native
def test_the_kernels_refuse_what_does_not_fit():
    fast, _ = both(2, 3)
    for actions, rewards in (([0, 3], [0.1, 0.2]), ([0, -1], [0.1, 0.2]), ([0, 1], [0.1])):
        with pytest.raises(ValueError, match="out of range|elements"):
            fast.observe(torch.tensor(actions), torch.tensor(rewards))
    line = torch.linspace(0, 1, 8)
    with pytest.raises(ValueError, match="no grid"):
        kernels().ArmMixture(2, 1, 0.3, line[:1], line[:1], line, line, line[:1], None)
