"""The Bayesian rival in Darkroom2: its posterior is the right one, and it acts by it."""

from itertools import permutations, product
from math import lgamma

import pytest
import torch

from mithridate.agents.mixture_room import MOVES, MixtureRoom, log_likelihoods
from mithridate.agents.named import make_agent
from mithridate.attackers.offset_tables import OFFSETS
from mithridate.envs import darkroom, make_env
from mithridate.envs.darkroom import STAY, transitions
from mithridate.errors import UserError
from mithridate.evaluation.crossplay import evaluate
from mithridate.registry import AGENTS, ATTACKERS
from mithridate.rng import Rng
from mithridate.rollout import rollout

EPS, TOUCHED, UNTOUCHED = 0.4, 0.3, 0.5


def started(env, batch=1, seed=0, **settings):
    agent = AGENTS.create("mixture_room", **settings)
    agent.reset(env.spec, batch, Rng(seed).streams(torch.arange(batch)))
    return agent


def log_beta(*a):
    return sum(map(lgamma, a)) - lgamma(sum(a))


def by_enumeration(minus, zero, plus):
    """The likelihood of offsets, one after the other: a sum over which zeros were poisoned."""
    alpha = (TOUCHED, UNTOUCHED, TOUCHED)
    found = 0.0
    for poisoned in product((True, False), repeat=zero):
        k = sum(poisoned)
        moment = log_beta(TOUCHED + minus, UNTOUCHED + k, TOUCHED + plus) - log_beta(*alpha)
        found += EPS ** (k + minus + plus) * (1 - EPS) ** (zero - k) * torch.e**moment
    return found


def test_likelihoods_are_those_of_an_enumeration():
    zeros, others = log_likelihoods(EPS, TOUCHED, UNTOUCHED, 12)
    for minus, zero, plus in product(range(4), range(6), range(4)):
        found = zeros[zero, minus + plus] + others[minus, plus]
        assert found.exp().item() == pytest.approx(by_enumeration(minus, zero, plus), rel=1e-9)


def test_the_next_offset_is_one_of_three():
    """Probabilities of what comes next add up to one, also after many observations."""
    zeros, others = log_likelihoods(EPS, TOUCHED, UNTOUCHED, 201)

    def total(minus, zero, plus):
        return zeros[zero, minus + plus] + others[minus, plus]

    for counts in ((0, 0, 0), (3, 10, 1), (80, 110, 10), (0, 200, 0), (0, 0, 200)):
        each = [
            total(*(n + (i == d) for i, n in enumerate(counts))) - total(*counts) for d in range(3)
        ]
        assert torch.stack(each).exp().sum().item() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("eps", [0.0, 1.0])
def test_the_ends_of_eps_are_allowed(eps):
    zeros, others = log_likelihoods(eps, TOUCHED, UNTOUCHED, 50)
    assert zeros.isfinite().all() and others.isfinite().all()


def test_the_posterior_is_that_of_all_pairs():
    """In a room of four cells, against Bayes' rule over the twelve pairs, by the formula for each
    cell and action."""
    env = make_env("darkroom2", size=2, horizon=30)
    tasks = env.sample_tasks(6, Rng(0))
    agent = AGENTS.create("mixture_room", eps=EPS, touched=TOUCHED, untouched=UNTOUCHED)
    walked = rollout(
        env, tasks, AGENTS.create("uniform"), ATTACKERS.create("uniform"), EPS, rng=Rng(1)
    )
    agent.reset(env.spec, 6, Rng(2).streams(tasks.ids))
    path, after = walked.observations[:, 0], transitions(2)
    steps = 14
    for t in range(steps):
        agent.observe(
            path[:, t], walked.actions[:, t], walked.observed_rewards[:, t], path[:, t + 1]
        )
    best, lesser = agent.posterior.best().exp(), agent.posterior.lesser().exp()
    for i in range(6):
        expected = torch.zeros(2, 4, dtype=torch.float64)
        for a, b in permutations(range(4), 2):
            worth = torch.zeros(4)
            worth[a], worth[b] = 1.0, 2.0
            likelihood = 1.0
            for cell, action in product(range(4), range(5)):
                here = (path[i, :steps] == cell) & (walked.actions[i, :steps] == action)
                seen = walked.observed_rewards[i, :steps][here] - worth[after[cell, action]]
                counts = [int((seen == d).sum()) for d in OFFSETS]
                likelihood *= by_enumeration(*counts) if sum(counts) == len(seen) else 0.0
            expected[0, a] += likelihood
            expected[1, b] += likelihood
        expected /= expected[0].sum()
        torch.testing.assert_close(lesser[i], expected[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(best[i], expected[1], atol=1e-4, rtol=1e-4)


def test_the_posterior_is_calibrated():
    """If goals and attacks are drawn as it believes, a cell that it gives a probability p is the
    best one in a share p of the rooms."""
    env = make_env("darkroom2", size=3, horizon=12)
    n = 1500
    tasks = env.sample_tasks(n, Rng(0))
    draw = Rng(1).generator()
    alpha = (TOUCHED, UNTOUCHED, TOUCHED)
    added = torch.from_numpy(draw.dirichlet(alpha, (n, 9, 5))).cumsum(-1)
    agent = started(env, n, eps=EPS, touched=TOUCHED, untouched=UNTOUCHED)
    cell, rows, after = torch.zeros(n, dtype=torch.int64), torch.arange(n), transitions(3)
    for _ in range(12):
        action = torch.from_numpy(draw.integers(0, 5, n))
        which = (torch.from_numpy(draw.random(n))[:, None] >= added[rows, cell, action, :2]).sum(1)
        poisoned = torch.from_numpy(draw.random(n) < EPS)
        reached = after[cell, action]
        true = tasks.rewards[rows, reached]
        agent.observe(cell, action, torch.where(poisoned, true + which - 1, true), reached)
        cell = reached
    for worth, log_p in ((1, agent.posterior.lesser()), (2, agent.posterior.best())):
        p, right = log_p.exp().flatten(), (tasks.rewards == worth).double().flatten()
        for low, high in ((0.0, 0.05), (0.05, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.01)):
            some = (p >= low) & (p < high)
            spread = 4 * (p[some] * (1 - p[some])).sum().sqrt() / some.sum() + 1e-3
            assert some.sum() > 50
            assert abs(p[some].mean() - right[some].mean()) < spread, (worth, low)


def test_what_it_cannot_imagine_says_nothing():
    env = make_env("darkroom2", size=3)
    agent = started(env, 4)
    before = agent.posterior.best()
    zero, one = torch.zeros(4, dtype=torch.int64), torch.full((4,), 1)
    for reward in (17.0, 0.5, -2.0, float("nan")):
        agent.observe(zero, torch.full((4,), 3), torch.full((4,), reward), one)
    torch.testing.assert_close(agent.posterior.best(), before)
    for reward in (3.0, -1.0):  # both at once cannot be: no number fails
        for _ in range(300):
            agent.observe(zero, torch.full((4,), 3), torch.full((4,), reward), one)
    assert agent.posterior.best().isfinite().all()


def test_a_reward_of_three_is_proof():
    env = make_env("darkroom2", size=3)
    agent = started(env, 1)
    agent.observe(torch.tensor([0]), torch.tensor([3]), torch.tensor([3.0]), torch.tensor([1]))
    assert agent.posterior.best().exp()[0, 1] > 0.999


def test_it_knows_the_moves():
    assert MOVES == darkroom.MOVES and MOVES[STAY] == (0, 0)


@pytest.mark.parametrize("seed", [0, 1])
def test_without_an_attack_it_soon_stays_on_the_best_goal(seed):
    env = make_env("darkroom2")
    tasks = env.sample_tasks(40, Rng(seed))
    t = rollout(env, tasks, make_agent("mixture_room", {"eps": 0.4})[1], rng=Rng(seed + 10))
    there = t.true_rewards == 2
    assert there[:, 60:].float().mean() > 0.93
    assert there[:, -20:].all(1).float().mean() > 0.9
    assert (t.actions[:, -20:][there[:, -20:]] == STAY).float().mean() > 0.9


def test_if_nothing_is_poisoned_one_look_is_enough():
    env = make_env("darkroom2")
    tasks = env.sample_tasks(40, Rng(0))
    t = rollout(env, tasks, AGENTS.create("mixture_room", eps=0.0), rng=Rng(1))
    found = (t.true_rewards == 2).int().argmax(1)
    assert found.max() < 60
    for row, first in zip(t.true_rewards, found.tolist(), strict=True):
        assert (row[first:] == 2).all()


@pytest.mark.parametrize("attacker", ["swap_goals", "decoys"])
def test_it_sees_through_attacks_that_swap_the_goals(attacker):
    env = make_env("darkroom2")
    tasks = env.sample_tasks(40, Rng(0))
    agent = AGENTS.create("mixture_room")
    t = rollout(env, tasks, agent, ATTACKERS.create(attacker), 0.4, rng=Rng(1))
    assert (t.true_rewards[:, 100:] == 2).float().mean() > 0.85
    believed = agent.posterior.best().exp()
    assert believed.gather(1, tasks.rewards.argmax(1, keepdim=True)).mean() > 0.9


def test_it_is_told_the_share_of_poisoned_steps():
    assert make_agent("mixture_room", {"eps": 0.1})[1].config.eps == 0.1
    result = evaluate("darkroom2", ["mixture_room"], preset="smoke", threads=1)
    assert result.cell("mixture_room", "none")[0] > 0


@pytest.mark.parametrize("name", ["bandit", "linear_bandit"])
def test_elsewhere_it_says_what_it_needs(name):
    with pytest.raises(UserError, match="mixture_room needs a room with two goals"):
        started(make_env(name))


def test_counting_ends_some_time(monkeypatch):
    """A long episode is no table as long as that."""
    monkeypatch.setattr("mithridate.agents.mixture_room.COUNTED", 5)
    env = make_env("darkroom2", size=2, horizon=100_000)
    agent = started(env)
    here = torch.tensor([0])
    for _ in range(5):
        agent.observe(here, torch.tensor([STAY]), torch.tensor([2.0]), here)
    known = agent.posterior.best()
    agent.observe(here, torch.tensor([STAY]), torch.tensor([2.0]), here)
    assert torch.equal(agent.posterior.best(), known)
    assert isinstance(agent, MixtureRoom)


def test_without_a_memory_of_its_own_it_draws_at_every_step():
    """Two that have seen the same and are in the same cell do the same with the same luck, whatever
    they were about to do."""
    env = make_env("darkroom2")
    tasks = env.sample_tasks(50, Rng(0))
    walked = rollout(env, tasks, AGENTS.create("uniform"), rng=Rng(1))
    cells, steps = walked.observations[:, 0], 12

    def did(keep, told_at):
        """Its goals at the end, if it was asked to act at these steps only."""
        agent = started(env, 50, keep=keep)
        for t in range(steps):
            if t in told_at:
                agent.act(cells[:, t])
            agent.observe(
                cells[:, t], walked.actions[:, t], walked.true_rewards[:, t], cells[:, t + 1]
            )
        agent._rng = Rng(9).streams(tasks.ids)
        agent.act(cells[:, steps])
        return agent.goal

    assert torch.equal(did(0, {0}), did(0, range(12)))
    assert not torch.equal(did(10, {0}), did(0, {0}))
