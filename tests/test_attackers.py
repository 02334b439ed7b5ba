"""Attacks and how they are learned: budgets, contamination, REINFORCE against known answers."""

import math
from dataclasses import replace

import pytest
import torch

from mithridate.attackers.gaussian import GaussianAttacker, GaussianConfig, advantages
from mithridate.attackers.population import Population
from mithridate.budget import excess, norm, project
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.registry import AGENTS, ATTACKERS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.searched import searched
from mithridate.types import Trajectory

BEST = {"raise_worst": (0.0, 1.0), "lower_best": (-1.0, 0.0), "swap": (-(0.5**0.5), 0.5**0.5)}


@pytest.fixture
def env():
    return make_env("bandit", horizon=40)


def test_projection_is_the_nearest_point_of_the_ball():
    offsets = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    result = project(offsets, 2.0)
    torch.testing.assert_close(result, torch.tensor([[1.2, 1.6], [0.3, 0.4], [0.0, 0.0]]))
    assert (norm(project(100 * torch.randn(1000, 5), 3.0)) <= 3.0).all(), "not even by rounding"
    torch.testing.assert_close(excess(offsets, 2.0), torch.tensor([3.0, 0.0, 0.0]))


@pytest.mark.parametrize("budget", [0.0, 0.7, 3.0, 5.0])
@pytest.mark.parametrize("name", BEST)
def test_structured_attacks_spend_the_budget_on_the_right_arms(env, name, budget):
    tasks = env.sample_tasks(30, Rng(0))
    attacker = ATTACKERS.create(name, budget=budget)
    attacker.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
    best, worst = BEST[name]
    expected = torch.zeros_like(tasks.means)
    expected.scatter_(1, tasks.means.argmax(1, keepdim=True), best * budget)
    expected.scatter_(1, tasks.means.argmin(1, keepdim=True), worst * budget)
    torch.testing.assert_close(attacker.offsets, expected)
    torch.testing.assert_close(attacker.cost(), torch.full((30,), budget))
    assert (attacker.cost() <= budget).all()


def test_the_mirror_turns_the_order_of_the_arms_around(env):
    tasks = env.sample_tasks(30, Rng(0))
    attacker = ATTACKERS.create("mirror", budget=3.0)
    attacker.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
    seen = tasks.means + attacker.offsets
    assert torch.equal(seen.argsort(1), tasks.means.argsort(1).flip(1))
    torch.testing.assert_close(seen.mean(1), tasks.means.mean(1))
    torch.testing.assert_close(seen.std(1), tasks.means.std(1))
    for budget in (3.0, 0.5):
        some = ATTACKERS.create("mirror", budget=budget)
        some.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
        torch.testing.assert_close(
            torch.stack([some.rule(tasks.means[i])[i] for i in range(30)]), some.offsets
        )
    for parameters, length in (({"budget": 0.5}, 0.5), ({"budget": 3.0, "slope": 0.0}, 0.0)):
        small = ATTACKERS.create("mirror", **parameters)
        small.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
        assert (small.cost() <= length).all()
        assert small.cost().max() >= 0.99 * length


def test_few_arms_are_mostly_good_ones_and_others_each_time(env):
    tasks = env.sample_tasks(3000, Rng(0))
    attacker = ATTACKERS.create("few_arms", budget=2.0)
    attacker.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
    first = attacker.offsets
    touched = first != 0
    assert (attacker.cost() <= 2.0).all()
    assert attacker.cost().mean() == pytest.approx(2.0 * 10 / 11, abs=0.02), "of u^(1/10)"
    for number in (1, 2, 3):
        assert (touched.sum(1) == number).float().mean() == pytest.approx(1 / 3, abs=0.03)
    by_rank = touched.gather(1, tasks.means.argsort(1)).float().mean(0)
    assert (by_rank.diff() > 0.02).all(), by_rank
    assert first[touched].mean().abs() < 0.1, "up as often as down"
    attacker.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
    assert torch.equal(attacker.offsets, first)
    attacker.reset(env.spec, tasks, Rng(2).streams(tasks.ids))
    assert (attacker.offsets != first).any(1).all()
    rooms = make_env("darkroom2")
    with pytest.raises(UserError, match="needs an environment whose tasks are arms"):
        attacker.reset(rooms.spec, rooms.sample_tasks(2, Rng(0)), Rng(1).streams(tasks.ids[:2]))


def test_disguised_arms_pass_for_others(env):
    """Poisoned, the best arm looks poor and the others good; lengths follow the task's own."""
    tasks = env.sample_tasks(3000, Rng(0))
    attacker = ATTACKERS.create("disguise", budget=3.0)
    attacker.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
    offsets = attacker.offsets
    assert (attacker.cost() <= 3.0).all() and 0.5 < attacker.cost().mean() < 2.0
    ranked = tasks.means.argsort(1, descending=True)
    shown = (tasks.means + offsets).gather(1, ranked)
    best, others = offsets.gather(1, ranked)[:, 0], shown[:, 1:]
    assert (best <= 0).all() and (best == 0).float().mean() == pytest.approx(0.2, abs=0.03)
    assert (shown[best < 0, 0] < tasks.means.mean(1)[best < 0]).float().mean() > 0.7
    by_rank = others.mean(0)
    assert by_rank.max() - by_rank.min() < 0.5 * (tasks.means.amax(1) - tasks.means.amin(1)).mean()
    untouched = (offsets.gather(1, ranked)[:, 1:] == 0).float().mean()
    assert untouched == pytest.approx(0.2, abs=0.03)
    narrow = replace(tasks, means=0.5 + 0.1 * (tasks.means - 0.5))
    attacker.reset(env.spec, narrow, Rng(1).streams(tasks.ids))
    bound = offsets.norm(dim=1) < 2.9
    torch.testing.assert_close(attacker.offsets[bound], 0.1 * offsets[bound], atol=1e-4, rtol=1e-3)
    attacker.reset(env.spec, tasks, Rng(2).streams(tasks.ids))
    assert (attacker.offsets != offsets).any(1).all()


def test_what_searches_found_is_replayed_on_similar_tasks(env):
    """In the order of the arms' means, whatever their numbers; something new in every episode."""
    tasks, known = env.sample_tasks(500, Rng(0)), searched(0.4)
    attacker = ATTACKERS.create("replay", budget=3.0, jitter=0.0, nearest=1)
    attacker.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
    ordered, order = tasks.means.sort(1)
    nearest = torch.cdist(ordered, known.means).argmin(1)
    torch.testing.assert_close(attacker.offsets.gather(1, order), known.offsets[nearest])
    varied = ATTACKERS.create("replay", budget=3.0)
    drawn = []
    for seed in (1, 2):
        varied.reset(env.spec, tasks, Rng(seed).streams(tasks.ids))
        drawn.append(varied.offsets)
        assert (varied.cost() <= 3.0).all()
    assert (drawn[0] != drawn[1]).any(1).all()
    small = ATTACKERS.create("replay", budget=0.5)
    small.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
    assert (small.cost() <= 0.5).all()


@pytest.mark.parametrize("arms", [1, 2, 4, 9])
def test_what_searches_found_is_replayed_on_another_number_of_arms(arms):
    """The best arm has the offset of a best arm, each other one that of an arm that is none."""
    env, known = make_env("bandit", arms=arms), searched(0.4)
    tasks = env.sample_tasks(200, Rng(0))
    attacker = ATTACKERS.create("replay", budget=3.0, jitter=0.0)
    attacker.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
    assert attacker.offsets.shape == (200, arms)
    projected = attacker.cost() > 3.0 - 1e-4  # several arms may have the same large offset
    assert projected.float().mean() < 0.3
    best, offsets = tasks.means.argmax(1), attacker.offsets
    for task in torch.nonzero(~projected)[:, 0].tolist():
        rows = torch.isclose(known.offsets[:, -1], offsets[task, best[task]])
        assert rows.any()
        others = known.offsets[rows, :-1].flatten()
        for arm in range(arms):
            if arm != best[task]:
                assert torch.isclose(others, offsets[task, arm]).any()


def test_searched_attacks_are_of_the_nearest_level():
    """They are kept by the share of poisoned rewards; the best arm is lowered in most of them."""
    for asked, nearest in ((0.0, 0.1), (0.13, 0.1), (0.19, 0.2), (0.4, 0.4), (1.0, 0.4)):
        assert searched(asked) is searched(nearest)
    for eps in (0.1, 0.2, 0.4):
        found = searched(eps)
        assert found.means.shape == found.offsets.shape and len(found.means) >= 500
        assert (found.means.diff(dim=1) >= 0).all() and (found.offsets.norm(dim=1) <= 3.0).all()
        assert (found.offsets[:, -1] < 0).float().mean() > 0.6


def test_contamination_rate_and_separation_of_rewards(env):
    """Poisoned steps show r + offset, the others r; a share eps is poisoned, task by task."""
    env = make_env("bandit", horizon=500)
    tasks = env.sample_tasks(40, Rng(0))
    eps = torch.linspace(0, 1, 40)
    attacker = ATTACKERS.create("raise_worst", budget=3.0)
    t = rollout(env, tasks, AGENTS.create("uniform"), attacker, eps, rng=Rng(1))
    rate = t.poisoned.float().mean(1)
    assert ((rate - eps).abs() <= 4 * (eps * (1 - eps) / 500).sqrt() + 1e-9).all()
    shift = attacker.offsets.gather(1, t.actions)
    torch.testing.assert_close(t.proposed_rewards, t.true_rewards + shift)
    assert torch.equal(t.observed_rewards[t.poisoned], t.proposed_rewards[t.poisoned])
    assert torch.equal(t.observed_rewards[~t.poisoned], t.true_rewards[~t.poisoned])


# REINFORCE ---------------------------------------------------------------------------------


def trajectory(actions, true, shift, poisoned) -> Trajectory:
    return Trajectory(
        observations=None, actions=actions, true_rewards=true, proposed_rewards=true + shift,
        observed_rewards=true, poisoned=poisoned, optimal_actions=torch.zeros_like(actions),
        optimal_after=actions[:, 0], keys=torch.zeros_like(actions),
    )  # fmt: skip


def test_the_score_function_is_the_gradient_of_the_log_density(env):
    attacker = GaussianAttacker(GaussianConfig(penalty=0.0))
    generator = torch.Generator().manual_seed(0)
    actions = torch.randint(0, 5, (7, 40), generator=generator)
    shift, weights = torch.randn(2, 7, 40, generator=generator)
    offsets = torch.randn(7, 5, generator=generator).requires_grad_()
    logs = (0.3 * torch.randn(7, 5, generator=generator)).requires_grad_()
    density = torch.distributions.Normal(offsets.gather(1, actions), logs.exp().gather(1, actions))
    objective = (weights * density.log_prob(shift)).mean(1).sum()
    expected = torch.cat(torch.autograd.grad(objective, (offsets, logs)), 1)
    got = attacker._gradient(offsets.detach(), logs.detach(), weights, shift, actions)
    torch.testing.assert_close(got, expected)


def test_the_estimate_is_unbiased_for_a_victim_with_a_known_answer():
    """A victim whose later true rewards fall by c times the offset it has just seen: the gradient
    of the attacker's objective with respect to the mean offset is c for every poisoned step."""
    attacker = GaussianAttacker(GaussianConfig(penalty=0.0))
    batch, c = 200_000, 0.7
    generator = torch.Generator().manual_seed(0)
    std = 0.5
    shift = 0.2 + std * torch.randn(batch, 1, generator=generator)
    noise = 0.1 * torch.randn(batch, 1, generator=generator)
    weights = c * shift + noise  # what the attacker gains after the step
    offsets = torch.full((batch, 1), 0.2)
    logs = torch.full((batch, 1), math.log(std))
    gradient = attacker._gradient(offsets, logs, weights, shift, torch.zeros(batch, 1).long())
    assert gradient[:, 0].mean().item() == pytest.approx(c, rel=0.02)
    assert gradient[:, 1].mean().item() == pytest.approx(0.0, abs=0.02), "the spread is neutral"


def test_the_penalty_is_the_papers():
    attacker = GaussianAttacker(GaussianConfig(budget=3.0, spread_budget=1.0, penalty=10.0))
    offsets = torch.tensor([[3.0, 4.0], [1.0, 1.0]])
    logs = torch.tensor([[0.1, 0.1], [-3.0, -3.0]])
    none = torch.zeros(2, 4)
    got = attacker._gradient(offsets, logs, none, none, none.long())
    torch.testing.assert_close(got[0, :2], -10 * offsets[0] / 5)
    assert (got[0, 2:] < 0).all() and not got[1].any()


def test_advantages_are_what_comes_after_minus_the_mean():
    true = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    mean = 0.5
    after = torch.tensor([[mean * 3 - 1.0, mean * 2 - 1.0, mean * 1 - 1.0, 0.0]])
    torch.testing.assert_close(advantages(true), after / after.std(1, keepdim=True))
    assert advantages(torch.ones(2, 6)).abs().max() == 0


def test_only_poisoned_steps_teach(env):
    actions, true = torch.randint(0, 5, (3, 40)), torch.rand(3, 40)
    shift = torch.randn(3, 40)
    tasks = env.sample_tasks(3, Rng(0))
    updated = []
    for hit in (torch.zeros(3, 40).bool(), torch.ones(3, 40).bool()):
        attacker = GaussianAttacker()
        attacker.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
        attacker.update(trajectory(actions, true, shift, hit))
        updated.append(attacker.tensors()["offsets"])
    assert not updated[0].any() and updated[1].all()


def test_true_and_poisoned_rewards_are_never_mixed(env):
    """The attacker learns from true rewards: what the victim saw must not change a bit of it."""
    tasks = env.sample_tasks(6, Rng(0))
    results = []
    for seen in (0.0, 1e6, math.nan):
        attacker = GaussianAttacker()
        t = rollout(env, tasks, AGENTS.create("ts"), attacker, 0.4, rng=Rng(1))
        t.observed_rewards.fill_(seen)
        attacker.update(t)
        results.append(attacker.tensors()["offsets"])
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_attackers_learn_to_hurt_thompson_sampling():
    env = make_env("bandit", horizon=200)
    tasks = env.sample_tasks(50, Rng(0))
    attacker = GaussianAttacker(GaussianConfig(budget=2.0))
    regret = []
    for n in range(6):
        t = rollout(env, tasks, AGENTS.create("ts"), attacker, 0.4, rng=Rng(1).child(n))
        regret.append(env.score(tasks, t).sum(1).mean().item())
        log = attacker.update(t)
        assert log["norm_max"] <= 2.0
    assert regret[-1] > 2.5 * regret[0], regret


def test_the_best_attack_of_every_task_may_be_kept():
    env = make_env("linear_bandit", horizon=60)
    tasks = env.sample_tasks(20, Rng(0))
    attacker = GaussianAttacker(GaussianConfig(keep="best"))
    last = GaussianAttacker()
    attacker.learning = last.learning = True
    earned, offsets, spreads = [], [], []
    for n in range(5):
        for each in (last, attacker):
            t = rollout(env, tasks, AGENTS.create("linucb"), each, 0.4, rng=Rng(1).child(n))
            each.update(t)
            assert torch.equal(each.offsets, last.offsets), "learning is not another for it"
        earned.append(t.true_rewards.sum(1))
        offsets.append(attacker.offsets)
        spreads.append(attacker.spreads)
    assert "least" not in last.tensors()
    best = torch.stack(earned).argmin(0)
    assert len(best.unique()) > 2
    kept = GaussianAttacker(GaussianConfig(keep="best"))
    kept.load_tensors(attacker.tensors())
    kept.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
    rows = torch.arange(20)
    torch.testing.assert_close(kept.offsets, torch.stack(offsets)[best, rows])
    torch.testing.assert_close(kept.spreads, torch.stack(spreads)[best, rows])
    fresh = env.sample_tasks(2, Rng(0), first=100)
    kept.reset(env.spec, fresh, Rng(1).streams(fresh.ids))
    assert not kept.offsets.any()


def test_without_projection_the_norm_may_drift_but_not_in_evaluation(env):
    tasks = env.sample_tasks(20, Rng(0))
    attacker = GaussianAttacker(GaussianConfig(budget=0.5, project=False, penalty=0.0))
    attacker.learning = True
    for n in range(5):
        t = rollout(env, tasks, AGENTS.create("ts"), attacker, 0.4, rng=Rng(1).child(n))
        log = attacker.update(t)
    assert log["norm_max"] > 0.5
    attacker.learning = False
    rollout(env, tasks, AGENTS.create("ts"), attacker, 0.4, rng=Rng(2))
    assert attacker.cost().max() <= 0.5
    assert norm(attacker.spreads).max() <= 1.0


def test_attackers_belong_to_their_tasks(env):
    """Whatever the order or the subset, a task meets its own attacker; learning is per task."""
    tasks = env.sample_tasks(8, Rng(0))
    attacker = GaussianAttacker()
    attacker.update(rollout(env, tasks, AGENTS.create("ts"), attacker, 0.4, rng=Rng(1)))
    whole = attacker.tensors()["offsets"].clone()
    order = torch.tensor([5, 2, 7])
    attacker.reset(env.spec, tasks.select(order), Rng(1).streams(tasks.ids[order]))
    torch.testing.assert_close(attacker.offsets, project(whole[order], 3.0))
    attacker.forget(tasks.ids[:4])
    attacker.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
    assert not attacker.offsets[:4].any()
    torch.testing.assert_close(attacker.offsets[4:], project(whole[4:], 3.0))
    other = make_env("bandit", arms=3)
    few = other.sample_tasks(2, Rng(0))
    with pytest.raises(UserError, match="trained for 5 arms"):
        attacker.reset(other.spec, few, Rng(1).streams(few.ids))


def test_a_mixture_is_its_parts(env):
    tasks = env.sample_tasks(10, Rng(0))
    parts = [(4, ATTACKERS.create("raise_worst")), (3, None), (3, ATTACKERS.create("uniform"))]
    mixture = Population(parts)
    agent = AGENTS.create("ts")
    whole = rollout(env, tasks, agent, mixture, 0.4, rng=Rng(1))
    assert mixture.cost()[4:7].eq(0).all()
    for rows, (_, attacker) in zip(mixture.slices(), parts, strict=True):
        alone = rollout(env, tasks.select(rows), agent, attacker, 0.4, rng=Rng(1))
        assert torch.equal(whole.observed_rewards[rows], alone.observed_rewards)


# Keys --------------------------------------------------------------------------------------


class Disguised:
    """A room whose cells agents see in another order, or not at all."""

    def __init__(self, env, seen):
        self._env, self.observe = env, seen
        self.spec = env.spec

    def __getattr__(self, name):
        return getattr(self._env, name)


@pytest.mark.parametrize("name", ["tabular", "pooled", "uniform", "decoys"])
def test_tables_do_not_look_at_observations(name):
    env = make_env("darkroom2", size=3, horizon=30)
    other = Disguised(env, lambda state: 8 - state)
    tasks, walker = env.sample_tasks(6, Rng(0)), AGENTS.create("uniform")
    found = []
    for room in (env, other):
        attacker = ATTACKERS.create(name)
        for number in range(2):
            lived = rollout(room, tasks, walker, attacker, 0.5, rng=Rng(number))
            if hasattr(attacker, "update"):
                attacker.update(lived)
        found.append(lived)
    assert torch.equal(found[0].proposed_rewards, found[1].proposed_rewards)
    assert not torch.equal(found[0].observations, found[1].observations)


@pytest.mark.parametrize("name", ATTACKERS.names())
def test_nothing_falls_back_where_there_are_neither_arms_nor_keys(name):
    """Numbered states are no reason to take an attacker for the wrong environment."""
    env = make_env("darkroom2", size=3, horizon=5)
    spec, tasks = replace(env.spec, n_attack_keys=1), env.sample_tasks(2, Rng(0))
    with pytest.raises(UserError, match="needs") as refused:
        ATTACKERS.create(name).reset(spec, tasks, Rng(1).streams(tasks.ids))
    assert "\n" not in str(refused.value)


def test_of_two_episodes_of_a_task_the_gradients_are_averaged(env):
    """A first update moves Adam's first moment by a tenth of the gradient: so it is the mean of
    what it would be after either episode."""
    config = GaussianConfig(iterations=1)
    tasks = env.sample_tasks(3, Rng(0)).repeat(2)
    lived = rollout(env, tasks, AGENTS.create("uniform"), GaussianAttacker(config), 0.5, rng=Rng(1))

    def moment(rows):
        attacker = GaussianAttacker(config)
        some = tasks.select(rows)
        attacker.reset(env.spec, some, Rng(1).streams(some.luck))
        attacker.update(lived.select(rows))
        return attacker.tensors()["first"]

    # The same episode twice is exactly as good as once, update after update.
    alone, twice = GaussianAttacker(), GaussianAttacker()
    index = torch.arange(0, 6, 2)
    for attacker, rows in ((alone, index), (twice, index.repeat_interleave(2))):
        some = tasks.select(rows)
        for number in range(3):
            attacker.reset(env.spec, some, Rng(number).streams(some.luck))
            attacker.update(lived.select(rows))
    for name, tensor in alone.tensors().items():
        assert torch.equal(twice.tensors()[name], tensor), name
    first, second = moment(slice(0, None, 2)), moment(slice(1, None, 2))
    torch.testing.assert_close(moment(slice(None)), (first + second) / 2)
