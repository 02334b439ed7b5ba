"""`RobustBandit`: `mixture_ts` for one task, finer where its grid is too coarse; and its files."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import mithridate as mi
from mithridate.agents import mixture_grid
from mithridate.agents.any_bandit import MOST_ARMS, RobustBandit
from mithridate.agents.many_bandits import RobustBandits
from mithridate.agents.mixture_arms import EPS, MixtureTS
from mithridate.agents.named import make_agent
from mithridate.agents.refined_arms import (
    EVERY,
    FARTHEST,
    LOW,
    STEP,
    ArmModel,
    RefinedArm,
    first_refined,
    last_made,
    needs_refining,
    next_made,
)
from mithridate.errors import UserError
from mithridate.registry import AGENTS, ATTACKERS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.tensor_files import write_sealed

SCALES, SPREADS, UNTOUCHED = (0.3, 0.7, 1.4), (0.02, 0.3, 0.6), 0.15


def pulls(means, noise=0.3, eps=0.4, offsets=0.0, steps=500, seed=0, arms=None):
    """A history: arms, rewards, and which of them were poisoned."""
    draw = Rng(seed).generator()
    means = np.array(means)
    chosen = draw.integers(0, len(means), steps) if arms is None else np.array(arms)
    hit = draw.random(steps) < eps
    added = np.broadcast_to(offsets, means.shape)[chosen]
    rewards = means[chosen] + noise * draw.standard_normal(steps) + hit * added
    return chosen, rewards, hit


def taught(history, *arguments, **settings):
    bandit = RobustBandit(*arguments, **settings)
    for arm, reward in zip(*history[:2], strict=True):
        bandit.learn(int(arm), float(reward))
    return bandit


def playing(bandit, means, steps, noise=0.3, seed=3, eps=0.0, offsets=0.0):
    """Its arms, in a loop of one's own."""
    draw = Rng(seed).generator()
    offsets = np.broadcast_to(offsets, len(means))
    chosen = []
    for _ in range(steps):
        arm = bandit.act()
        hit = draw.random() < eps
        bandit.observe(arm, means[arm] + noise * draw.standard_normal() + hit * offsets[arm])
        chosen.append(arm)
    return chosen


# The same as mixture_ts -----------------------------------------------------------------------


@pytest.mark.parametrize("attack", [None, "mirror", "swap"])
def test_it_does_what_mixture_ts_does(attack):
    env = mi.make_env("bandit")  # 5 arms, 500 steps, noise 0.3
    tasks = env.sample_tasks(2, Rng(1))
    attacker = None if attack is None else ATTACKERS.create(attack)
    theirs = rollout(env, tasks, AGENTS.create("mixture_ts"), attacker, 0.4, rng=Rng(2))
    agent = AGENTS.create("robust_bandit")
    mine = rollout(env, tasks, agent, attacker, 0.4, rng=Rng(2))
    assert torch.equal(mine.actions, theirs.actions)
    assert torch.equal(mine.observed_rewards, theirs.observed_rewards)
    known = MixtureTS()
    known.reset(env.spec, 2, Rng(3).streams([0, 1]))
    for actions, rewards in zip(theirs.actions.T, theirs.observed_rewards.T, strict=True):
        known.observe(None, actions, rewards, None)
    assert torch.equal(agent.best().float(), known.best())


def test_settings_follow_from_the_situation_as_those_of_mixture_ts_do():
    told = {"eps": 0.2, "trimmed": 0.2, "noise_std": 0.1}
    agent = make_agent("robust_bandit", told)[1]
    assert (agent.config.corruption, agent.config.noise) == (0.2, 0.1)


@pytest.mark.parametrize("corruption", [0.0, 0.4, None])
def test_without_kernels_it_is_the_same(corruption, monkeypatch):
    history = pulls([0.2, 0.5, 0.7], offsets=[1.0, 0.0, -0.8], steps=60)
    mine = taught(history, 3, corruption=corruption)
    monkeypatch.setattr(mixture_grid, "kernels", lambda: None)
    other = taught(history, 3, corruption=corruption)
    np.testing.assert_allclose(other.best(), mine.best(), atol=1e-4)
    assert other.observe(1, 0.9) == pytest.approx(mine.observe(1, 0.9), abs=1e-3)
    np.testing.assert_allclose(other.poisoned(), mine.poisoned(), atol=1e-3)
    assert other.draw(0.4) == mine.draw(0.4)


# Finer where the grid is too coarse --------------------------------------------------------------


def by_hand(history, arms, eps_grid, noise, per_step=4, per_offset=6):
    """P(best), and of each reward how probable it is that it was poisoned: summed over everything
    on a grid that is as fine everywhere, in double precision."""
    size, width = STEP / per_step, EVERY * STEP / per_offset
    means = LOW + (np.arange(51 * per_step) + 0.5) * size
    reach = (FARTHEST + 0.5) * EVERY * STEP
    values = np.append(np.arange(-reach + width / 2, reach, width), 0.0)  # the last: untouched
    lattice = EVERY * STEP * np.arange(-FARTHEST, FARTHEST + 1)
    scales = np.array(SCALES)
    norm = np.exp(-0.5 * (lattice[:, None] / scales) ** 2).sum(0) * EVERY * STEP
    prior = (1 - UNTOUCHED) * np.exp(-0.5 * (values[:, None] / scales) ** 2) / norm * width
    prior[-1] = UNTOUCHED  # (offsets, W)
    chosen, rewards = history[:2]

    def densities(x, eps):
        """Of one reward: clean (G, 1), and poisoned (R, G, O)."""
        clean = (1 - eps) * np.exp(-0.5 * ((x - means[:, None]) / noise) ** 2) / noise
        away = x - means[:, None] - values
        widths = np.hypot(noise, SPREADS)[:, None, None]
        return clean, eps * np.exp(-0.5 * (away / widths) ** 2) / widths + 1e-20

    kinds = []  # of each ε and w: evidence, P(best), and of each reward
    for eps in eps_grid:
        tables, guilty = [], []
        for arm in range(arms):
            log = sum(np.log(sum(densities(x, eps))) for x in rewards[chosen == arm])
            tables.append((np.exp(log - log.max()), log.max()))
        for w in range(len(scales)):
            joint = [table * prior[:, w] for table, _ in tables]
            marginals = [one.sum((0, 2)) for one in joint]
            total = [marginal.sum() for marginal in marginals]
            evidence = sum(math.log(t) + most for t, (_, most) in zip(total, tables, strict=True))
            marginals = [m / t for m, t in zip(marginals, total, strict=True)]
            below = [m.cumsum() - 0.5 * m for m in marginals]
            wins = np.array([
                (marginals[a] * np.prod([below[b] for b in range(arms) if b != a], 0)).sum()
                for a in range(arms)
            ])  # fmt: skip
            guilty = np.empty(len(rewards))
            for t, (arm, x) in enumerate(zip(chosen, rewards, strict=True)):
                clean, moved = densities(x, eps)
                guilty[t] = (joint[arm] * moved / (clean + moved)).sum() / total[arm]
            kinds.append((evidence, wins / wins.sum(), guilty))
    most = max(evidence for evidence, _, _ in kinds)
    weights = np.array([math.exp(evidence - most) for evidence, _, _ in kinds])
    weights /= weights.sum()
    return tuple(sum(w * kind[i] for w, kind in zip(weights, kinds, strict=True)) for i in (1, 2))


@pytest.mark.parametrize(("corruption", "offsets"), [(0.4, (-0.2, 0.3)), (None, (0.0, 0.0))])
def test_refined_arms_are_bayes_rule(corruption, offsets):
    """20 rewards of each arm with noise 0.04; 16 are the limit of the grid."""
    arms = [0, 1] * 20
    history = pulls([0.51, 0.53], noise=0.04, offsets=offsets, steps=40, arms=arms)
    bandit = taught(history, 2, noise=0.04, corruption=corruption)
    assert len(bandit._posterior._refined) == 2
    shares = (corruption,) if corruption is not None else EPS
    best, poisoned = by_hand(history, 2, shares, 0.04)
    np.testing.assert_allclose(bandit.best(), best, atol=0.01)
    np.testing.assert_allclose(bandit.poisoned(), poisoned, atol=0.02)


def test_beside_refined_arms_others_keep_their_grid():
    """An arm with few rewards is compared with refined ones."""
    arms = [0] * 40 + [1] * 6 + [2] * 4
    history = pulls([0.5, 0.53, 0.49], noise=0.05, eps=0.0, steps=50, arms=arms)
    bandit = taught(history, 3, noise=0.05)
    assert set(bandit._posterior._refined) == {0}
    best, _ = by_hand(history, 3, (0.4,), 0.05)
    np.testing.assert_allclose(bandit.best(), best, atol=0.01)


def test_arms_with_cells_of_different_sizes():
    arms = [0] * 18 + [1] * 72
    history = pulls([0.505, 0.51], noise=0.04, eps=0.0, steps=90, arms=arms)
    bandit = taught(history, 2, noise=0.04)
    assert [arm.level for arm in bandit._posterior._refined.values()] == [2, 3]
    best, _ = by_hand(history, 2, (0.4,), 0.04)
    np.testing.assert_allclose(bandit.best(), best, atol=0.005)


def test_two_arms_that_lie_between_the_points_of_the_grid():
    """0.01 apart, half a step of the grid of `mixture_ts`, after 4,000 pulls with noise 0.05."""
    means, noise = [0.506, 0.516], 0.05
    history = pulls(means, noise=noise, eps=0.4, offsets=[1.0, -1.0], steps=4000)
    bandit = taught(history, 2, noise=noise)
    assert bandit.best()[1] > 0.99
    env = mi.make_env("bandit", arms=2, noise_std=noise)
    coarse = AGENTS.create("mixture_ts", noise_std=noise)
    coarse.reset(env.spec, 1, Rng(0).streams([0]))
    for arm, reward in zip(*history[:2], strict=True):
        coarse.observe(None, torch.tensor([arm]), torch.tensor([reward]).float(), None)
    assert coarse.best()[0, 1] < 0.9  # which is why


def test_a_long_horizon_of_its_own_choice():
    bandit = RobustBandit(2, noise=0.05, corruption=0.2, seed=5)
    chosen = playing(bandit, [0.50, 0.51], 3000, noise=0.05, eps=0.2, offsets=[0.8, -0.8])
    assert np.mean(chosen[-1000:]) > 0.9
    assert np.bincount(chosen, minlength=2).min() > 0


def test_when_arms_are_made_anew():
    assert (needs_refining(0.3, 900), needs_refining(0.3, 901)) == (False, True)
    assert first_refined(0.3) == 901
    for noise in (0.03, 0.1, 0.3, 1.0):
        assert needs_refining(noise, first_refined(noise))
        assert not needs_refining(noise, first_refined(noise) - 1)
    made = [n for n in range(1, 3000) if last_made(0.3, n) == n]
    assert made[:3] == [901, next_made(901), next_made(next_made(901))]
    assert last_made(0.3, 900) == 0 and last_made(0.3, made[1] - 1) == 901


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.48])
@pytest.mark.parametrize("pulled", [3, 40, 2000])
def test_refining_finds_narrow_peaks(eps, pulled):
    """Far narrower than the cells of the grid, and between them."""
    noise, mean, offset = 0.03, 0.3171, 0.9313
    model = ArmModel.make(noise, (eps,), UNTOUCHED, SCALES, SPREADS)
    _, rewards, _ = pulls([mean], noise=noise, eps=eps, offsets=offset, steps=pulled)
    arm = RefinedArm(model, rewards.tolist())
    weight, _, means, offsets, _ = arm.cells(np.ones((1, 3)))
    here = np.average(means, weights=weight)
    spread = math.sqrt(np.average((means - here) ** 2, weights=weight))
    assert abs(here - mean) < 4 * max(spread, noise / math.sqrt(pulled))
    if pulled == 2000:
        assert spread < 2 * noise / math.sqrt(pulled * (1 - eps))
        found = weight[abs(offsets - offset) < 0.02].sum() / weight.sum()
        assert eps == 0 or found > 0.99
        assert len(means) < 20_000


def test_an_arm_made_again_is_the_same():
    model = ArmModel.make(0.1, (0.0, 0.3), UNTOUCHED, SCALES, SPREADS)
    _, rewards, _ = pulls([0.4], noise=0.1, eps=0.3, offsets=-0.5, steps=160)
    first = first_refined(0.1)
    live = RefinedArm(model, rewards[:first].tolist())
    for n in range(first, 160):
        if n + 1 == next_made(live.made_with):
            live = RefinedArm(model, rewards[: n + 1].tolist())
        else:
            live.observe(rewards[n])
    again = RefinedArm.again(model, rewards.tolist())
    assert live.made_with == again.made_with == last_made(0.1, 160)
    assert np.array_equal(live.logs, again.logs) and np.array_equal(live.evidence, again.evidence)


# Any range, any number of arms -------------------------------------------------------------------


def test_any_range_of_rewards():
    history = pulls([0.2, 0.5, 0.7], noise=0.1, offsets=[0.9, 0.0, -0.9], steps=300)
    arms, rewards = history[:2]
    plain = taught(history, 3, noise=0.1)
    assert plain._posterior._refined
    doubled = taught((arms, 4 * rewards), 3, reward_range=(0.0, 4.0), noise=0.4)
    assert np.array_equal(doubled.best(), plain.best())
    moved = taught((arms, 250 * rewards - 70), 3, reward_range=(-70, 180), noise=25)
    np.testing.assert_allclose(moved.best(), plain.best(), atol=1e-5)
    np.testing.assert_allclose(moved.poisoned(), plain.poisoned(), atol=1e-4)


@pytest.mark.parametrize(("arms", "corruption"), [(1, 0.4), (2, None), (200, 0.3)])
def test_any_number_of_arms(arms, corruption):
    bandit = RobustBandit(arms, corruption=corruption, noise=0.05)
    means = np.linspace(0, 1, arms)
    chosen = playing(bandit, means, 60, noise=0.05)
    assert min(chosen) >= 0 and max(chosen) < arms
    assert bandit.best().shape == (arms,) and bandit.best().sum() == pytest.approx(1, abs=1e-5)


def test_it_survives_what_deceives_thompson_sampling_with_an_unknown_share():
    bandit = RobustBandit(5, corruption=None, seed=1)
    means = [0.1, 0.3, 0.5, 0.6, 0.9]
    chosen = playing(bandit, means, 500, eps=0.4, offsets=[2.1, 0, 0, 0, -2.1])
    assert np.mean(np.array(chosen[250:]) == 4) > 0.8


# Suspicion ---------------------------------------------------------------------------------------


def test_suspicion_is_what_bayes_rule_says():
    history = pulls([0.3, 0.6], eps=0.3, offsets=[0.8, -0.6], steps=30)
    bandit = RobustBandit(2, corruption=0.3)
    for t in range(30):
        arm, reward = int(history[0][t]), float(history[1][t])
        said = bandit.observe(arm, reward)
    _, expected = by_hand(history, 2, (0.3,), 0.3, per_step=1, per_offset=1)
    assert said == pytest.approx(expected[-1], abs=1e-3)  # of the last one, both know the same
    np.testing.assert_allclose(bandit.poisoned(), expected, atol=2e-3)


def test_suspicion_is_right_as_often_as_it_says():
    """Attacks drawn from what it believes in."""
    draw = Rng(8).generator()
    said, late, true = [], [], []
    for task in range(60):
        scale, spread = draw.choice(SCALES), draw.choice(SPREADS, 3)
        offsets = scale * draw.standard_normal(3) * (draw.random(3) > UNTOUCHED)
        bandit = RobustBandit(3, corruption=0.3, seed=task)
        means = draw.random(3)
        for _ in range(60):
            arm, hit = int(draw.integers(3)), draw.random() < 0.3
            added = offsets[arm] + spread[arm] * draw.standard_normal()
            reward = means[arm] + 0.3 * draw.standard_normal() + hit * added
            said.append(bandit.observe(arm, reward))
            true.append(hit)
        late.extend(bandit.poisoned())
    true = np.array(true)
    for told in (np.array(said), np.array(late)):
        for low, high in ((0, 0.05), (0.05, 0.2), (0.2, 0.4), (0.4, 0.8), (0.8, 1.01)):
            here = (told >= low) & (told < high)
            expected, count = told[here].mean(), here.sum()
            error = math.sqrt(expected * (1 - expected) / count)
            assert count > 50 and abs(true[here].mean() - expected) < 4 * error + 0.02
    early = -np.log(np.where(true, said, 1 - np.array(said))).mean()
    assert -np.log(np.where(true, late, 1 - np.array(late))).mean() < early


# Clicks ------------------------------------------------------------------------------------------


def test_clicks_are_compared_by_how_often_they_come():
    bandit = RobustBandit(3, feedback="clicks", corruption=0.1)
    draw = Rng(2).generator()
    for _ in range(600):
        arm = bandit.act()
        bandit.observe(arm, draw.random() < (0.2, 0.5, 0.8)[arm])
    assert bandit.best()[2] > 0.99
    assert np.bincount(bandit.history[0])[2] > 400


def test_how_probable_clicks_are_the_best_ones():
    bandit = RobustBandit(3, feedback="clicks")
    counts = [(3, 9), (40, 60), (5, 6)]  # 0 and 1
    for arm, (zeros, ones) in enumerate(counts):
        for click in [0] * zeros + [1] * ones:
            bandit.learn(arm, click)
    draws = (
        Rng(0)
        .generator()
        .beta([1 + ones for _, ones in counts], [1 + zeros for zeros, _ in counts], (200_000, 3))
    )
    expected = np.bincount(draws.argmax(1)) / len(draws)
    np.testing.assert_allclose(bandit.best(), expected, atol=0.005)


def test_suspicion_of_clicks_is_a_sum_over_what_is_possible():
    bandit = RobustBandit(1, feedback="clicks", corruption=0.3)
    for click in (1, 1, 0, 1, 1, 1, 0, 1):
        bandit.learn(0, click)
    line = (np.arange(600) + 0.5) / 600
    mean, share = line[:, None], line  # of the arm, and of the attacker
    rate = 0.7 * mean + 0.3 * share
    weight = rate**6 * (1 - rate) ** 2
    for click, likely in ((1, 0.3 * share / rate), (0, 0.3 * (1 - share) / (1 - rate))):
        expected = (weight * likely).sum() / weight.sum()
        here = bandit._posterior.suspicion(0, click)
        assert here == pytest.approx(expected, abs=2e-3)
        assert bandit.poisoned()[0 if click else 2] == pytest.approx(here)


# Files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arms", "steps", "settings"),
    [
        (5, 0, {}), (5, 40, {"seed": 7}), (3, 400, {"noise": 0.1}),
        (2, 120, {"noise": 0.05, "corruption": None, "reward_range": (-1, 1)}),
        (4, 80, {"feedback": "clicks"}),
    ],
)  # fmt: skip
def test_a_loaded_bandit_goes_on_bit_for_bit(arms, steps, settings, tmp_path):
    means = np.linspace(0.2, 0.8, arms)
    draw = Rng(4).generator()

    def live(bandit, luck):
        found = []
        for noise, uniform in luck:
            arm = bandit.act()
            paid = float(uniform < means[arm]) if settings.get("feedback") else means[arm] + noise
            found.append((arm, bandit.observe(arm, paid)))
        return found

    luck = [(0.1 * draw.standard_normal(), draw.random()) for _ in range(steps + 40)]
    bandit = RobustBandit(arms, **settings)
    live(bandit, luck[:steps])
    path = tmp_path / "my.bandit"
    bandit.save(path)
    loaded = RobustBandit.load(path)
    assert np.array_equal(loaded.best(), bandit.best()) and len(loaded) == steps
    assert live(loaded, luck[steps:]) == live(bandit, luck[steps:])
    assert np.array_equal(loaded.best(), bandit.best())
    assert np.array_equal(loaded.poisoned(), bandit.poisoned())
    assert all(np.array_equal(a, b) for a, b in zip(loaded.history, bandit.history, strict=True))


def test_settings_are_kept(tmp_path):
    settings = {
        "reward_range": (2.0, 6.0), "noise": 0.7, "corruption": None, "feedback": "rewards",
        "seed": 12,
    }  # fmt: skip
    RobustBandit(4, **settings).save(tmp_path / "x")
    loaded = RobustBandit.load(str(tmp_path / "x"))
    assert loaded.n_arms == 4
    assert {name: getattr(loaded, name) for name in settings} == settings


SETTINGS = {
    "n_arms": 3, "reward_range": [0.0, 1.0], "noise": None, "corruption": 0.4,
    "feedback": "rewards", "seed": 0,
}  # fmt: skip


def forged(path, arms=(0, 2), rewards=(0.5, 0.1), kind=torch.int32, meta=None, **settings):
    tensors = {
        "arms": torch.tensor(arms, dtype=kind),
        "rewards": torch.tensor(rewards, dtype=torch.float64),
    }
    said = {"format": "mithridate.RobustBandit", "version": 1, "draws": 2}
    write_sealed(path, tensors, {**said, "settings": {**SETTINGS, **settings}, **(meta or {})})


def test_forged_files_would_be_read_if_they_made_sense(tmp_path):
    forged(tmp_path / "x")
    assert len(RobustBandit.load(tmp_path / "x")) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"arms": (0, 3)}, "arms beyond"), ({"arms": (0, -1)}, "arms beyond"),
        ({"arms": (0, 1, 2)}, "do not fit"), ({"kind": torch.int64}, "do not fit"),
        ({"kind": torch.float32}, "do not fit"), ({"rewards": (0.5, math.nan)}, "not finite"),
        ({"rewards": (0.5, 1e5)}, "range"), ({"rewards": (0.5, 1e300)}, "finite|within"),
        ({"n_arms": 10**9}, "n_arms"), ({"n_arms": "3"}, "n_arms"), ({"n_arms": True}, "n_arms"),
        ({"noise": -1}, "noise"), ({"corruption": 0.7}, "corruption"), ({"seed": -1}, "seed"),
        ({"reward_range": [1, 0]}, "reward_range"), ({"feedback": "praise"}, "feedback"),
        ({"feedback": "clicks"}, "click is 0 or 1"), ({"colour": 3}, "settings must be"),
        ({"meta": {"version": 2}}, "version 2"), ({"meta": {"format": "x"}}, "no file of"),
        ({"meta": {"draws": -1}}, "draws"), ({"meta": {"draws": None}}, "draws"),
        ({"meta": {"settings": None}}, "settings must be"),
    ],
)  # fmt: skip
def test_files_that_make_no_sense_are_refused(words, said, tmp_path):
    forged(tmp_path / "x", **words)
    with pytest.raises(UserError, match=said) as caught:
        RobustBandit.load(tmp_path / "x")
    assert "\n" not in str(caught.value)


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "x"
    RobustBandit(3).save(path)
    whole = path.read_bytes()
    for damaged in (
        b"",
        whole[:40],
        whole + b"x",
        whole.replace(b'\\"seed\\": 0', b'\\"seed\\": 1'),
    ):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="damaged"):
            RobustBandit.load(path)
    for nothing in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match="bandit"):
            RobustBandit.load(nothing)


def test_a_bandit_that_cannot_be_saved_leaves_what_was_there(tmp_path):
    path = tmp_path / "x"
    RobustBandit(3).save(path)
    before = path.read_bytes()
    (tmp_path / "link").symlink_to(path)
    for wrong in (tmp_path / "link", tmp_path / "no" / "x", tmp_path):
        with pytest.raises(UserError, match="cannot write"):
            RobustBandit(4).save(wrong)
    assert path.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == [
        "link",
        "x",
    ]


# Bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0,), "n_arms"), ((-3,), "n_arms"), ((10**9,), "n_arms"), ((2.5,), "n_arms"),
        (("5",), "n_arms"), ((None,), "n_arms"), ((True,), "n_arms"),
        ((3, (1, 1)), "reward_range"), ((3, (1, 0)), "reward_range"), ((3, 5), "reward_range"),
        ((3, (0, math.nan)), "reward_range"), ((3, (0, math.inf)), "reward_range"),
        ((3, (0, 1), 0), "noise"), ((3, (0, 1), -1), "noise"), ((3, (0, 1), math.nan), "noise"),
        ((3, (0, 1), "loud"), "noise"), ((3, (0, 1), 0.3, 0.5), "corruption"),
        ((3, (0, 1), 0.3, -0.1), "corruption"), ((3, (0, 1), 0.3, math.nan), "corruption"),
        ((3, (0, 1), 0.3, 0.4, "praise"), "feedback"), ((3, (0, 5), 0.3, 0.4, "clicks"), "clicks"),
        ((3, (0, 1), 0.3, 0.4, "rewards", -1), "seed"),
        ((MOST_ARMS, (0, 1), 0.3, None), "n_arms"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(arguments, said):
    with pytest.raises(UserError, match=said) as caught:
        RobustBandit(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("feedback", ["rewards", "clicks"])
@pytest.mark.parametrize(
    ("arm", "reward"),
    [
        (3, 1.0), (-1, 1.0), (0.5, 1.0), ("0", 1.0), (None, 1.0), (True, 1.0), (0, math.nan),
        (0, math.inf), (0, "1"), (0, None), (0, 1e9), (0, -500.0), (0, [1.0]),
    ],
)  # fmt: skip
def test_bad_input_leaves_the_bandit_as_it_was(arm, reward, feedback):
    bandit, twin = (RobustBandit(3, feedback=feedback) for _ in range(2))
    for one in (bandit, twin):
        one.observe(1, 1.0)
    for method in (bandit.observe, bandit.learn):
        with pytest.raises(UserError) as caught:
            method(arm, reward)
        assert "\n" not in str(caught.value)
    assert len(bandit) == 1 and np.array_equal(bandit.best(), twin.best())
    assert bandit.observe(2, 0.0) == twin.observe(2, 0.0)
    assert [bandit.act() for _ in range(9)] == [twin.act() for _ in range(9)]


def test_outliers_within_reason_are_poison():
    bandit = taught(pulls([0.5, 0.5], eps=0, steps=40), 2)
    before = bandit.best()
    assert bandit.observe(0, 90.0) > 0.99
    np.testing.assert_allclose(bandit.best(), before, atol=0.15)


# Others' loops -----------------------------------------------------------------------------------


def test_it_meets_environments_as_a_class_and_as_an_object():
    env = mi.make_env("bandit", arms=3, horizon=30)
    agents = {"class": RobustBandit, "object": RobustBandit(3), "name": "robust_bandit"}
    found = mi.evaluate(env, {**agents, "mixture": "mixture_ts"}, tasks=4, seed=1).summary()
    assert len(set(found.values())) == 1


def test_an_object_keeps_its_settings_and_no_knowledge():
    bandit = taught(pulls([0, 9.0], noise=1.0), 2, (0, 10), noise=2.0, corruption=None)
    agent = make_agent(bandit)[1]
    assert isinstance(agent, RobustBandits)
    env = mi.make_env("bandit", arms=2, horizon=5)
    agent.reset(env.spec, 3, Rng(0).streams(range(3)))
    assert [len(one) for one in agent.bandits] == [0] * 3
    one = agent.bandits[0]
    assert (one.reward_range, one.noise, one.corruption) == ((0, 10), 2.0, None)


def test_whom_it_does_not_fit():
    env = mi.make_env("bandit", arms=3, horizon=5)
    for wrong, said in ((RobustBandit(4), "made for 4"), (RobustBandit(3, feedback="clicks"), "0")):
        with pytest.raises(UserError, match=said):
            mi.evaluate(env, {"mine": wrong}, tasks=2)
    with pytest.raises(UserError, match="draw"):
        RobustBandit(3, feedback="clicks").draw(0.5)
    with pytest.raises(UserError, match="uniform"):
        RobustBandit(3).draw(1.5)


def test_luck_is_the_seeds():
    def acts(seed):
        bandit = RobustBandit(20, seed=seed)
        return [bandit.act() for _ in range(30)]

    assert acts(1) == acts(1) != acts(2)


def test_its_files_say_what_they_are(tmp_path):
    RobustBandit(3).save(tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    length = int.from_bytes(data[:8], "little")
    meta = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["meta"])
    assert (meta["format"], meta["version"]) == ("mithridate.RobustBandit", 1)
    assert meta["settings"] == SETTINGS


# What is said of it ------------------------------------------------------------------------------

ROOT = Path(__file__).parent.parent


def test_the_pages_snippets_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "robust_bandit.md").read_text()
    known = {}
    for snippet in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(snippet, known)
    assert known["bandit"].best().argmax() == 3 and "ours" in capsys.readouterr().out


def table_script(*arguments):
    command = [sys.executable, str(ROOT / "scripts" / "robust_bandit_table.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.splitlines()


def test_the_tables_are_computed_once_and_written_between_their_marks(tmp_path):
    names = ("equal", "short", "middle", "long", "clean", "doubt", "misjudged")
    page = tmp_path / "page.md"
    page.write_text("".join(
        f"before\n<!-- {name}: begin (scripts/robust_bandit_table.py) -->\nstale {name}\n"
        f"<!-- {name}: end -->\nafter\n"
        for name in names
    ))  # fmt: skip
    words = ("--tasks", "2", "--only", "equal", "--out", str(tmp_path / "out"), "--doc", str(page))
    _, measured = table_script(*words)
    assert len(measured) == 6
    first = page.read_text()
    rows = re.findall(r"\| (none|mirror 0.4|swap 0.4) \| (.*?) \| (.*?) \| 0 \|", first)
    assert len(rows) == 3 and all(ours == theirs != "–" for _, ours, theirs in rows)
    assert first.count("before") == first.count("after") == len(names) and "stale" not in first
    next((tmp_path / "out").glob("equal-robust*swap*")).unlink()
    _, measured = table_script(*words)
    assert len(measured) == 1 and page.read_text() == first


def test_the_page_has_all_its_figures():
    page = (ROOT / "docs" / "robust_bandit.md").read_text()
    tables = re.findall(r"<!-- (\w+): begin .*?-->\n(.*?)<!-- \1: end -->", page, re.S)
    assert [name for name, text in tables if "±" in text] == [name for name, _ in tables]
    assert len(tables) == 7
