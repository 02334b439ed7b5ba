"""The linear bandit: features, the algorithms' algebra, the oracle, and models that know one set of
features only."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mithridate import fast
from mithridate.agents.in_context import InContextAgent, load
from mithridate.agents.linear_grid import tiles
from mithridate.agents.mixture_linear import MixtureLinTS, MixtureLinUCB
from mithridate.agents.posterior_oracle import PosteriorOracle
from mithridate.capabilities import Added
from mithridate.envs import make_env
from mithridate.envs.bandit_poison import on_good_arms
from mithridate.envs.linear_bandit_actors import (
    FixedPulls,
    IndependentThompson,
    LinearThompson,
    play,
)
from mithridate.errors import UserError
from mithridate.model.layouts import make_model
from mithridate.native import ALIGNMENT, kernels
from mithridate.registry import AGENTS, ATTACKERS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.settings import resolve
from mithridate.stage_config import AdversarialConfig, PretrainConfig
from mithridate.training.adversarial import train_adversarially
from mithridate.training.pretrain import pretrain
from mithridate.types import Poison, Secrets

ROBUST = ("v1", "v2", "v3")


def played(agent, env, n=30, seed=0, **settings):
    """What an agent was after a rollout, and the trajectory."""
    agent = AGENTS.create(agent, **settings)
    tasks = env.sample_tasks(n, Rng(seed))
    return agent, tasks, rollout(env, tasks, agent, rng=Rng(seed + 1))


def regret(env, agent, n=500, **settings):
    _, tasks, t = played(agent, env, n, **settings)
    return env.score(tasks, t).sum(1).mean().item()


# The environment ----------------------------------------------------------------------------------


def test_means_are_linear_in_features_that_all_tasks_share():
    env = make_env("linear_bandit", dimension=3, arms=7)
    tasks = env.sample_tasks(4000, Rng(0))
    features = torch.tensor(env.spec.features)
    assert features.shape == (7, 3)
    torch.testing.assert_close(tasks.means, tasks.weights @ features.T)
    assert tasks.weights.std().item() == pytest.approx(math.sqrt(1 / 3), rel=0.03)
    assert make_env("linear_bandit", dimension=3, arms=7).spec == env.spec
    other = make_env("linear_bandit", dimension=3, arms=7, features_seed=1)
    assert other.spec.features != env.spec.features


def test_contexts_are_what_thompson_sampling_lived_through():
    """Ordered: it pulls good arms more and more often, and never anything twice for certain."""
    env = make_env("linear_bandit")
    tasks = env.sample_tasks(300, Rng(0))
    c = env.sample_contexts(tasks, 200, Rng(1))
    chosen = tasks.means.gather(1, c.actions)
    assert torch.equal(c.labels, tasks.means.argmax(1, keepdim=True).expand(300, 201))
    noise = c.rewards - chosen
    assert noise.std().item() == pytest.approx(0.3, rel=0.03) and abs(noise.mean()) < 0.01
    gap = tasks.means.amax(1, keepdim=True) - chosen
    assert gap[:, :10].mean() > 5 * gap[:, -50:].mean()
    # Against the agents that do the same: two thirds of the one, a third of the other.
    independent, exact = (
        env.score(tasks, rollout(env, tasks, AGENTS.create(name, **settings), rng=Rng(2)))
        for name, settings in (("ts", {"prior_mean": 0.0, "prior_std": 1.0}), ("lin_ts", {}))
    )
    expected = (2 * independent + exact).sum(1).mean().item() / 3
    assert gap.sum(1).mean().item() == pytest.approx(expected, rel=0.15)


def test_linear_actors_have_the_exact_posterior():
    draw = np.random.default_rng(0)
    features = draw.normal(size=(6, 3))
    actor = LinearThompson(features, 4, prior=0.8, noise=0.3)
    arms, rewards = draw.integers(0, 6, (4, 25)), draw.normal(size=(4, 25))
    for t in range(25):
        actor.learn(arms[:, t], rewards[:, t])
    for b in range(4):
        x = features[arms[b]]
        covariance = np.linalg.inv(np.eye(3) / 0.8**2 + x.T @ x / 0.3**2)
        np.testing.assert_allclose(actor._covariance[b], covariance, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(actor._mean[b], covariance @ x.T @ rewards[b] / 0.3**2)


def test_each_context_has_one_actor():
    """Who is asked is who acts, and only by what is shown."""
    draw = np.random.default_rng(0)
    offered = draw.normal(size=(3, 40, 4)).astype(np.float32)
    offered[:, :, 2] += 5
    fixed = np.tile(np.arange(40) % 4, (3, 1))
    actors = [IndependentThompson(4, np.full(3, 0.3)), FixedPulls(fixed)]
    actions, rewards = play(offered, actors, np.array([0, 1, 0]), Rng(0))
    assert (actions[1] == fixed[1]).all()
    assert (actions[[0, 2], 20:] == 2).all(), "the arm that looks best"
    assert (rewards == np.take_along_axis(offered, actions[..., None], 2)[..., 0]).all()


def test_some_poisoned_contexts_doubt_and_some_pull_at_random():
    """A quarter each: who doubts, and who decided beforehand, keeps pulling bad arms for long."""
    env = make_env("linear_bandit")
    tasks = env.sample_tasks(400, Rng(0))

    def late_gap(eps):
        poison = Poison(torch.full((400,), eps), torch.full((400,), 1e-6), 0.0, Rng(2))
        c = env.sample_contexts(tasks, 200, Rng(1), poison)
        chosen = tasks.means.gather(1, c.actions[:, 100:])
        return (tasks.means.amax(1, keepdim=True) - chosen).mean(1)

    clean, attacked = late_gap(0.0), late_gap(0.4)
    others = attacked != clean
    assert others.float().mean().item() == pytest.approx(0.5, abs=0.08)
    assert torch.equal(attacked[~others], clean[~others])
    assert attacked[others].median() > 5 * clean.median()


def test_half_of_the_offsets_are_on_good_arms():
    values = torch.arange(8.0).expand(4000, 8)
    offsets = on_good_arms(values, torch.full((4000,), 3.0), Rng(0))
    length = offsets.norm(dim=1)
    assert length.max() <= 3 + 1e-5 and length.median() > 2.7
    hit = offsets != 0
    assert set(hit.sum(1).tolist()) == {1, 2, 3}
    share = hit.float().mean(0)
    assert (share[1:] > share[:-1]).all() and share[-1] > 4 * share[0]
    assert (offsets > 0).sum() / hit.sum() == pytest.approx(0.5, abs=0.03)
    drawn = make_env("linear_bandit").draw_offsets(values, torch.full((4000,), 3.0), Rng(1))
    few = (drawn != 0).sum(1) <= 3  # sparse, opposed and paired ones among the others too
    assert 0.6 < few.float().mean() < 0.8


def test_contexts_do_not_tell_what_the_true_rewards_were():
    """Poisoned, the pulls go by what was seen: the arm that looks best, not the one that is."""
    env = make_env("linear_bandit")
    tasks = env.sample_tasks(400, Rng(0))
    poison = Poison(torch.ones(400), torch.full((400,), 6.0), 0.0, Rng(2))
    c = env.sample_contexts(tasks, 200, Rng(1), poison)
    pulls = F.one_hot(c.actions, 10).float()
    looks = (pulls * c.rewards[..., None]).sum(1) / pulls.sum(1).clamp(min=1)
    late = c.actions[:, 150:]
    looks[pulls.sum(1) < 10] = -math.inf
    assert (late == looks.argmax(1, keepdim=True)).float().mean() > 0.6
    assert (late == c.labels[:, :1]).float().mean() < 0.5


# The algorithms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_rank_one_updates_equal_direct_solves(dimension):
    env = make_env("linear_bandit", dimension=dimension)
    agent, _, t = played("linucb", env, ridge=0.3)
    x = torch.tensor(env.spec.features, dtype=torch.float64)[t.actions]  # (B, T, D)
    v = 0.3 * torch.eye(dimension, dtype=torch.float64) + x.mT @ x
    sums = (x * t.observed_rewards[..., None]).sum(1)
    torch.testing.assert_close(agent.inverse, torch.linalg.inv(v), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(agent.weights(), torch.linalg.solve(v, sums), rtol=1e-8, atol=1e-8)
    features = torch.tensor(env.spec.features, dtype=torch.float64)
    widths = torch.einsum("ad,bde,ae->ba", features, torch.linalg.inv(v), features).sqrt()
    torch.testing.assert_close(agent.widths(), widths)


def test_linucb_chooses_as_a_plain_reference_does():
    """On its own recorded history: a regression from scratch at every step, one task at a time."""
    env = make_env("linear_bandit", horizon=60)
    _, _, t = played("linucb", env, n=8)
    features = np.array(env.spec.features)
    for actions, rewards in zip(t.actions.numpy(), t.observed_rewards.numpy(), strict=True):
        for step in range(60):
            x, r = features[actions[:step]], rewards[:step]
            v = np.eye(2) + x.T @ x
            theta = np.linalg.solve(v, x.T @ r)
            index = [f @ theta + math.sqrt(f @ np.linalg.solve(v, f)) for f in features]
            assert actions[step] == int(np.argmax(index)), step


def test_crlinucb_chooses_as_its_formula_says():
    env = make_env("linear_bandit", horizon=40)
    features = np.array(env.spec.features)
    for variant, corruption in (("v1", 0.2 * 3 * 40), ("v2", 0.2 * 3 / 40), ("v3", 0.2 * 4)):
        agent, _, t = played("crlinucb", env, n=4, variant=variant, eps=0.2)
        assert agent.corruption() == pytest.approx(corruption)
        for actions, rewards in zip(t.actions.numpy(), t.observed_rewards.numpy(), strict=True):
            spent = 0.0
            for step in range(40):
                x, r = features[actions[:step]], rewards[:step]
                v = 0.1 * np.eye(2) + x.T @ x
                theta = np.linalg.solve(v, x.T @ r)
                width = np.sqrt([f @ np.linalg.solve(v, f) for f in features])
                longest = np.linalg.norm(features, axis=1).max()
                inside = ((step + 1) * longest**2 / 0.1 + 1) / 0.01
                beta = 0.01 * math.sqrt(2 * math.log(inside)) + math.sqrt(0.1)
                index = features @ theta + (beta + corruption * math.sqrt(spent)) * width
                assert index[actions[step]] == pytest.approx(index.max(), abs=1e-9), step
                spent += width[actions[step]] ** 2


def test_the_corruption_may_be_said():
    env = make_env("linear_bandit", horizon=40)
    for variant in ("v1", "v3"):
        agent, _, told = played("crlinucb", env, variant=variant, corruption=0.2 * 3 / 40)
        assert agent.corruption() == 0.2 * 3 / 40
        assert torch.equal(told.actions, played("crlinucb", env, eps=0.2)[2].actions)


def test_clean_columns_are_the_papers():
    """500 tasks; the paper's intervals, widened by two standard errors of ours."""
    env = make_env("linear_bandit")
    assert abs(regret(env, "linucb") - 3.51) < 0.88 + 0.3
    assert abs(regret(env, "crlinucb") - 2.94) < 0.78 + 0.4
    assert abs(regret(env, "crlinucb", variant="v3") - 34.08) < 1.66 + 1.2


def test_linear_thompson_sampling_has_the_exact_posterior():
    env = make_env("linear_bandit")
    agent, _, t = played("lin_ts", env, n=3)
    x = torch.tensor(env.spec.features, dtype=torch.float64)[t.actions]
    precision = 2 * torch.eye(2, dtype=torch.float64) + x.mT @ x / 0.09
    torch.testing.assert_close(0.09 * agent.inverse, torch.linalg.inv(precision))
    sums = (x * t.observed_rewards[..., None]).sum(1) / 0.09
    torch.testing.assert_close(agent.weights(), torch.linalg.solve(precision, sums))
    drawn = torch.stack([agent.act(None) for _ in range(300)])
    assert (drawn != drawn[0]).any() or (agent.inverse.diagonal(0, 1, 2) < 0.05).all()
    assert regret(env, "lin_ts") < 5


def test_linear_thompson_sampling_draws_with_the_posteriors_covariance():
    """20,000 tasks with the same history, which says much of one direction and little of others."""
    env = make_env("linear_bandit")
    x = torch.tensor(env.spec.features, dtype=torch.float64)
    arm, n = 3, 20_000
    agent = AGENTS.create("lin_ts")
    agent.reset(env.spec, n, Rng(0).streams(range(n)))
    for reward in (0.2, 0.5, 0.1):
        agent.observe(None, torch.full((n,), arm), torch.full((n,), reward), None)
    often = torch.bincount(agent.act(None), minlength=10) / n
    precision = 2 * torch.eye(2).double() + 3 * torch.outer(x[arm], x[arm]) / 0.09
    covariance = torch.linalg.inv(precision)
    assert covariance[0, 1].abs() > 0.3 * covariance.diagonal().prod().sqrt()
    normal = torch.distributions.MultivariateNormal(covariance @ x[arm] * 0.8 / 0.09, covariance)
    torch.manual_seed(0)
    best = (normal.sample((n,)) @ x.T).argmax(1)
    exact = torch.bincount(best, minlength=10) / n
    torch.testing.assert_close(often, exact, atol=0.015, rtol=0)


def test_the_oracle_sees_through_the_attack_and_is_thompson_sampling_without_one():
    env = make_env("linear_bandit")
    tasks = env.sample_tasks(100, Rng(0))

    def score(agent, attacker):
        t = rollout(env, tasks, AGENTS.create(agent), attacker, 0.4, rng=Rng(1))
        return env.score(tasks, t).sum(1).mean().item()

    assert score("posterior_oracle", None) == pytest.approx(score("lin_ts", None), abs=1.0)
    swap = ATTACKERS.create("swap")
    assert score("posterior_oracle", swap) < 6 < 20 < score("lin_ts", swap)
    oracle = AGENTS.create("posterior_oracle")
    t = rollout(env, tasks, oracle, rng=Rng(1))
    x = torch.tensor(env.spec.features)[t.actions]
    precision = 2 * torch.eye(2) + x.mT @ x / 0.09
    exact = torch.linalg.solve(precision, (x * t.observed_rewards[..., None]).sum(1) / 0.09)
    share = oracle.belief.logs.softmax(1)[..., None]
    found = (share * oracle.belief.weights).sum(1)
    torch.testing.assert_close(found, exact, atol=2e-3, rtol=0)
    away = oracle.belief.weights - found[:, None]
    spread = (share[..., None] * away[..., :, None] * away[..., None, :]).sum(1)
    torch.testing.assert_close(spread, torch.linalg.inv(precision), atol=1e-4, rtol=0.02)
    with pytest.raises(UserError, match="needs features of at most two dimensions"):
        played("posterior_oracle", make_env("linear_bandit", dimension=3))


class Alternating:
    """An attack whose offsets change from step to step."""

    offsets = None

    def __init__(self, spreads):
        self.spreads = spreads

    def reset(self, spec, tasks, rng):
        self.offsets = torch.full((len(tasks), spec.n_actions), 2.0)

    def poison(self, step):
        self.offsets = -self.offsets
        return step.true_rewards + self.offsets[:, 0]

    def adds(self):
        spread = None if self.spreads is None else self.spreads[:, None]
        return Added(self.offsets[:, None], spread)

    def cost(self):
        return torch.zeros(len(self.offsets))


@pytest.mark.parametrize("spread", [0.0, 0.4])
def test_the_oracle_remembers_what_the_attack_was(spread):
    """When it lays its grid anew, rewards of the past count with the offsets of their time; what
    an attacker scatters counts for less: arm a's by a · `spread`."""
    env = make_env("linear_bandit", horizon=70)
    tasks = env.sample_tasks(5, Rng(0))
    oracle = AGENTS.create("posterior_oracle")
    spreads = spread * torch.arange(10).expand(5, 10) if spread else None
    t = rollout(env, tasks, oracle, Alternating(spreads), 0.4, rng=Rng(1))
    means = (oracle.belief.weights[:, :, None] * torch.tensor(env.spec.features)).sum(3)
    logs = -oracle.belief.weights.square().sum(2).double()
    for step in range(70):
        mean = means.gather(2, t.actions[:, step, None, None].expand(-1, means.shape[1], 1))
        left = (t.observed_rewards[:, step, None] - mean.squeeze(2)).double()
        moved = left - (-2.0 if step % 2 == 0 else 2.0)
        std = (0.09 + (spread * t.actions[:, step, None].double()) ** 2).sqrt()
        clean, poisoned = (
            (-0.5 * (left / 0.3) ** 2).exp() / 0.3,
            (-0.5 * (moved / std) ** 2).exp() / std,
        )
        logs += (0.6 * clean + 0.4 * poisoned + 1e-300).log()
    found = oracle.belief.logs.softmax(1)
    torch.testing.assert_close(found, logs.softmax(1).float(), atol=2e-4, rtol=0.02)


def two_oracles(env, tasks, attacker, eps, **settings):
    """In the kernels, and the reference."""
    oracles = [AGENTS.create("posterior_oracle", **settings) for _ in range(2)]
    oracles[1]._in_kernels = lambda *_: False
    if attacker is not None:
        attacker.reset(env.spec, tasks, Rng(5).streams(tasks.luck))
    for oracle in oracles:
        oracle.reveal(Secrets(env, tasks, eps, attacker))
        oracle.reset(env.spec, len(tasks), Rng(0).streams(tasks.luck))
    assert [type(oracle.belief).__name__ for oracle in oracles] == ["NativeGrid", "_Weights"]
    return oracles


@pytest.mark.skipif(kernels() is None, reason="the kernels are not built")
@pytest.mark.parametrize("isa", kernels().instruction_sets() if kernels() else [])
@pytest.mark.parametrize(
    ("batch", "world", "attack", "eps", "settings"),
    [
        (40, {}, "swap", 0.4, {}), (7, {}, None, 0.4, {}), (1, {"arms": 1}, "uniform", 0.4, {}),
        (5, {"arms": 2}, "mirror", 0.0, {"axis": 16}), (5, {}, "mirror", 1.0, {"axis": 33}),
        (5, {"noise_std": 1.0}, "gaussian", torch.linspace(0, 1, 5), {"axis": 50}),
    ],
)  # fmt: skip
def test_the_oracle_in_the_kernels_is_the_reference(batch, world, attack, eps, settings, isa):
    env = make_env("linear_bandit", horizon=70, **world)
    tasks, draw = env.sample_tasks(batch, Rng(0)), Rng(3).generator()
    attacker = None if attack is None else ATTACKERS.create(attack)
    before = kernels().active()
    kernels().use(isa)
    try:
        native, slow = two_oracles(env, tasks, attacker, eps, **settings)
        same = 0.0
        for _ in range(70):
            arms = [oracle.act(None) for oracle in (native, slow)]
            same += (arms[0] == arms[1]).float().mean().item() / 70
            actions = torch.where(torch.from_numpy(draw.random(batch)) < 0.5, arms[1], arms[1] // 2)
            rewards = tasks.means[torch.arange(batch), actions]
            rewards = rewards + torch.from_numpy(draw.normal(0.0, 0.5, batch)).float()
            for oracle in (native, slow):
                oracle.observe(None, actions, rewards, None)
            one, other = (oracle.belief for oracle in (native, slow))
            torch.testing.assert_close(one.weights, other.weights, atol=2e-4, rtol=1e-4)
            torch.testing.assert_close(
                one.logs.softmax(1), other.logs.softmax(1), atol=2e-4, rtol=2e-2
            )
        assert same > 0.995
    finally:
        kernels().use(before)


class AskedOracle(PosteriorOracle):
    """The same, but it is asked at every step."""

    def act(self, obs):
        return super().act(obs)


@pytest.mark.skipif(kernels() is None, reason="the kernels are not built")
@pytest.mark.parametrize("isa", kernels().instruction_sets() if kernels() else [])
@pytest.mark.parametrize("attack", [None, "uniform", "mirror", "gaussian"])
@pytest.mark.parametrize("world", [{}, {"arms": 1, "horizon": 5}, {"arms": 23, "horizon": 130}])
def test_whole_episodes_of_the_oracle_are_what_the_loop_does(world, attack, isa, monkeypatch):
    """And what it knows afterwards is the same; neither threads nor chunks change anything."""
    env = make_env("linear_bandit", **{"horizon": 40, **world})
    tasks = env.sample_tasks(11, Rng(1))
    attacker = None if attack is None else ATTACKERS.create(attack)
    eps, before = torch.linspace(0, 1, 11), kernels().active()
    kernels().use(isa)
    try:
        found = []
        for kind, threads, chunk in (
            (AskedOracle, 2, 512), (PosteriorOracle, 1, 512), (PosteriorOracle, 3, 4),
        ):  # fmt: skip
            torch.set_num_threads(threads)
            monkeypatch.setattr(fast, "CHUNK", chunk)
            oracle = kind()
            t = rollout(env, tasks, oracle, attacker, eps, rng=Rng(2))
            assert oracle.plays(40) == (kind is PosteriorOracle)
            oracle.observe(None, t.actions[:, 0], t.observed_rewards[:, 0], None)
            known = (oracle.belief.logs, oracle.belief.weights, oracle.act(None))
            found.append((t.actions, t.observed_rewards, *known))
    finally:
        kernels().use(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.skipif(kernels() is None, reason="the kernels are not built")
def test_the_oracle_stays_on_the_reference_where_the_kernels_know_less():
    env = make_env("linear_bandit", horizon=10)
    tasks = env.sample_tasks(3, Rng(0))
    for world, settings in (({"dimension": 1}, {}), ({}, {"knows": "rule"})):
        other = make_env("linear_bandit", horizon=10, **world)
        oracle = AGENTS.create("posterior_oracle", **settings)
        rollout(
            other, other.sample_tasks(3, Rng(0)), oracle, ATTACKERS.create("mirror"), rng=Rng(1)
        )
        assert type(oracle.belief).__name__ == "_Weights"
    native, _ = two_oracles(env, tasks, ATTACKERS.create("swap"), 0.4)
    for actions, rewards in (([0, 1, 10], [0.1] * 3), ([0, 1, -1], [0.1] * 3), ([0, 1, 2], [0.1])):
        with pytest.raises(ValueError, match="out of range|elements"):
            native.observe(None, torch.tensor(actions), torch.tensor(rewards), None)
    line = torch.linspace(-1, 1, 16)
    for bad in ((line[:15], line, 15), (line, line, 17), (line, line[:3], 16), (line, line, 0)):
        with pytest.raises(ValueError, match="no grid|elements"):
            kernels().WeightOracle(0.1, 1.0, *bad)
    oracle = kernels().WeightOracle(0.1, 1.0, line, line, 16)
    arms, room = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 3, 8)
    known, attack = (torch.zeros(1, 16, 16), torch.zeros(1, 5)), torch.ones(1, 8, 4)
    oracle.observe(*known, room, 2, attack, arms, torch.zeros(1), 1)
    with pytest.raises(ValueError, match="no room"):
        oracle.observe(*known, room, 3, attack, arms, torch.zeros(1), 1)


def test_mixture_linucb_sums_the_offsets_out():
    """Its posterior is what a direct sum over every arm's offset gives, at each of its weights."""
    env = make_env("linear_bandit", horizon=25)
    settings = {"axis": 21, "means": 801, "offsets": 9, "eps": 0.3, "untouched": 0.6, "slab": 1.0}
    agent, _, t = played("mixture_linucb", env, n=3, spread=0.4, **settings)
    line = math.sqrt(0.5) * np.linspace(-4, 4, 21)
    weights = np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
    means = weights @ np.array(env.spec.features).T  # (G, A)
    slab = np.linspace(-3, 3, 9)
    share = np.exp(-0.5 * slab**2)
    offsets = np.concatenate([[0.0], slab])
    share = np.concatenate([[0.6], 0.4 * share / share.sum()])

    def density(x, std):
        return np.exp(-0.5 * (x / std) ** 2) / std

    for task in range(3):
        posterior = np.exp(-(weights**2).sum(1))
        for arm in range(10):
            rewards = t.observed_rewards[task][t.actions[task] == arm].double().numpy()
            away = rewards[:, None, None] - means[None, :, arm, None]  # (N, G, 1)
            each = 0.7 * density(away, 0.3) + 0.3 * density(away - offsets, 0.5)  # (N, G, O)
            posterior *= each.prod(0) @ share
        found = agent.logs[task].softmax(0).double().numpy()
        np.testing.assert_allclose(found, posterior / posterior.sum(), atol=2e-3)
    mean = agent.logs.softmax(1).double() @ torch.from_numpy(means)
    square = agent.logs.softmax(1).double() @ torch.from_numpy(means**2)
    index = mean + 1.5 * (square - mean**2).sqrt()
    assert torch.equal(agent.act(None), index.argmax(1))


def test_mixture_linucb_without_poison_is_ridge_regression():
    env = make_env("linear_bandit")
    agent, _, t = played("mixture_linucb", env, n=5, eps=0.0, axis=201, means=401)
    x = torch.tensor(env.spec.features)[t.actions]
    precision = 2 * torch.eye(2) + x.mT @ x / 0.09
    exact = torch.linalg.solve(precision, (x * t.observed_rewards[..., None]).sum(1) / 0.09)
    means = exact @ torch.tensor(env.spec.features).T
    found = agent.logs.softmax(1) @ agent._means
    torch.testing.assert_close(found, means, atol=0.02, rtol=0)


def two_mixtures(env, batch, name, **settings):
    """In the kernels, and the reference."""
    agents = [AGENTS.create(name, **settings) for _ in range(2)]
    agents[1]._in_kernels = lambda points: False
    for agent in agents:
        agent.reset(env.spec, batch, Rng(0).streams(range(batch)))
    assert agents[1]._native is None
    return agents


@pytest.mark.skipif(kernels() is None, reason="the kernels are not built")
@pytest.mark.parametrize("isa", kernels().instruction_sets() if kernels() else [])
@pytest.mark.parametrize("name", ["mixture_linucb", "mixture_lin_ts"])
@pytest.mark.parametrize(
    ("batch", "world", "settings"),
    [
        (1, {"arms": 1}, {}), (1, {"arms": 2}, {}), (7, {}, {}), (3, {"arms": 20}, {"eps": 0.1}),
        (5, {"dimension": 1}, {"means": 32}), (5, {}, {"untouched": 0.0, "axis": 5, "means": 17}),
        (5, {}, {"eps": 0.0}), (5, {}, {"eps": 1.0, "spread": 0.0, "untouched": 1.0}),
    ],
)  # fmt: skip
def test_mixtures_in_the_kernels_are_the_reference(batch, world, settings, name, isa):
    env = make_env("linear_bandit", horizon=60, **world)
    draw, before = Rng(3).generator(), kernels().active()
    kernels().use(isa)
    try:
        native, slow = two_mixtures(env, batch, name, **settings)
        assert native._native is not None
        for step in range(60):
            actions = torch.from_numpy(draw.integers(0, env.spec.n_actions, batch))
            rewards = torch.from_numpy(draw.normal(0.0, 1.0, batch)).float()
            rewards += 40.0 * (step == 30)  # far outside
            for agent in (native, slow):
                agent.observe(None, actions, rewards, None)
            torch.testing.assert_close(
                native.logs.softmax(1), slow.logs.softmax(1), atol=1e-3, rtol=1e-2
            )
            means = [agent.logs.softmax(1) @ agent._means for agent in (native, slow)]
            torch.testing.assert_close(*means, atol=1e-3, rtol=0)
            torch.testing.assert_close(native.expected(), slow.expected(), atol=1e-3, rtol=1e-3)
        assert (native.act(None) == slow.act(None)).all()
    finally:
        kernels().use(before)


@pytest.mark.skipif(kernels() is None, reason="the kernels are not built")
def test_mixtures_choose_alike_through_whole_episodes():
    """Some choices are near ties: from the first that falls otherwise, an episode is another."""
    env = make_env("linear_bandit")
    native, slow = two_mixtures(env, 50, "mixture_linucb")
    tasks, draw = env.sample_tasks(50, Rng(0)), Rng(4).generator()
    same, n = 0, 150
    for _ in range(n):
        actions = slow.act(None)
        same += (native.act(None) == actions).float().mean().item() / n
        added = 0.3 * draw.standard_normal(50) + 1.5 * (draw.random(50) < 0.4)
        paid = tasks.means[torch.arange(50), actions] + torch.from_numpy(added)
        for agent in (native, slow):
            agent.observe(None, actions, paid.float(), None)
    assert same > 0.999


@pytest.mark.skipif(kernels() is None, reason="the kernels are not built")
def test_mixtures_on_small_grids_are_left_to_the_reference_and_nan_stays_in_its_task():
    env = make_env("linear_bandit")
    assert two_mixtures(env, 2, "mixture_linucb", means=9)[0]._native is None
    for agent in two_mixtures(env, 2, "mixture_linucb"):
        agent.observe(None, torch.tensor([0, 1]), torch.tensor([math.nan, 0.2]), None)
        assert agent.logs.isnan().any(1).tolist() == [True, False]
    native = two_mixtures(env, 2, "mixture_linucb")[0]
    with pytest.raises(ValueError, match="out of range"):
        native.observe(None, torch.tensor([0, 10]), torch.tensor([0.1, 0.2]), None)


class AskedUCB(MixtureLinUCB):
    """The same, but it is asked at every step."""

    def act(self, obs):
        return super().act(obs)


class AskedTS(MixtureLinTS):
    def observe(self, *seen):
        super().observe(*seen)


@pytest.mark.skipif(kernels() is None, reason="the kernels are not built")
@pytest.mark.parametrize("isa", kernels().instruction_sets() if kernels() else [])
@pytest.mark.parametrize("attack", [None, "uniform", "mirror", "gaussian"])
@pytest.mark.parametrize(
    ("asked", "world", "settings"),
    [
        (AskedUCB, {}, {}), (AskedUCB, {"arms": 1}, {}), (AskedUCB, {"dimension": 1}, {"width": 0}),
        (AskedTS, {}, {}), (AskedTS, {"arms": 1}, {}),
        (AskedTS, {"arms": 23}, {"temperature": 3.0, "axis": 30, "means": 50}),
    ],
)  # fmt: skip
def test_whole_episodes_of_mixtures_are_what_the_loop_does(
    asked, world, settings, attack, isa, monkeypatch
):
    """And what they know afterwards is the same; neither threads nor chunks change anything."""
    env = make_env("linear_bandit", horizon=40, **world)
    tasks = env.sample_tasks(11, Rng(1))
    attacker = None if attack is None else ATTACKERS.create(attack)
    before = kernels().active()
    kernels().use(isa)
    try:
        found = []
        kind = asked.__mro__[1]
        for agent, threads, chunk in ((asked, 2, 512), (kind, 1, 512), (kind, 3, 4)):
            torch.set_num_threads(threads)
            monkeypatch.setattr(fast, "CHUNK", chunk)
            known = agent(agent.Config(**settings))
            t = rollout(env, tasks, known, attacker, 0.4, rng=Rng(2))
            assert known.plays(40) == (agent is kind)
            known.observe(None, t.actions[:, 0], t.observed_rewards[:, 0], None)
            found.append((t.actions, t.observed_rewards, known.logs, known.act(None)))
    finally:
        kernels().use(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.skipif(kernels() is None, reason="the kernels are not built")
def test_tiles_hold_every_point_once():
    for axis, dimension in ((3, 2), (4, 2), (49, 2), (17, 1), (32, 1)):
        point, there = tiles(axis, dimension)
        assert len(point) % ALIGNMENT == 0
        assert point[there].sort().values.tolist() == list(range(axis**dimension))
        assert point.min() >= 0 and point.max() < axis**dimension


@pytest.mark.skipif(kernels() is None, reason="the kernels are not built")
def test_grids_that_do_not_fit_are_refused():
    fine = {
        "scale": 1.0, "squeeze": 1.0, "log_clean": -1.0, "log_poisoned": -1.0,
        "grid": torch.linspace(-1, 1, 20), "moves": torch.zeros(3),
        "below": torch.zeros(2, 16, dtype=torch.int32), "beyond": torch.zeros(2, 16),
        "rows": torch.ones(2, 16), "features": None, "arms": 2, "dimension": 1,
    }  # fmt: skip
    mixture = kernels().LinearMixture(**fine)
    for name, value in (
        ("below", torch.full((2, 16), 19, dtype=torch.int32)),
        ("below", torch.full((2, 16), -1, dtype=torch.int32)), ("beyond", torch.zeros(31)),
        ("rows", torch.ones(3, 16)), ("arms", 0), ("arms", 3), ("features", torch.ones(2, 3)),
        ("grid", torch.zeros(1)), ("moves", torch.zeros(0)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="no grid|fit|elements|out of range"):
            kernels().LinearMixture(**{**fine, name: value})
    luck, arms = torch.zeros(1), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="logs has"):
        mixture.act(torch.zeros(1, 15), luck, 1.0, arms, 1)
    with pytest.raises(ValueError, match="tables has"):
        mixture.observe(torch.zeros(1), torch.zeros(1, 2, 32), torch.zeros(1, 16), arms, luck, 1)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_mixture_lin_ts_pulls_an_arm_as_often_as_it_is_the_best(temperature):
    """Drawn 2,000 times after the same 30 pulls; temperature 1/2 squares the probabilities."""
    env = make_env("linear_bandit", horizon=30)
    settings = {"eps": 0.3, "noise_std": 1.0, "temperature": temperature}
    agent, _, _ = played("mixture_lin_ts", env, n=4, **settings)
    share, best = agent.logs.softmax(1), agent._means.argmax(1)
    arms = torch.stack([share[:, best == arm].sum(1) for arm in range(10)], 1)
    arms = arms ** (1 / temperature)
    drawn = torch.stack([agent.act(None) for _ in range(2000)])  # (N, B)
    often = torch.nn.functional.one_hot(drawn, 10).float().mean(0)
    torch.testing.assert_close(often, arms / arms.sum(1, keepdim=True), atol=0.045, rtol=0)
    assert often.amax(1).amin() < 0.9


def test_mixture_linucb_sees_through_what_misleads_the_others():
    env = make_env("linear_bandit")
    tasks = env.sample_tasks(100, Rng(0))

    def score(agent, attacker):
        t = rollout(env, tasks, AGENTS.create(agent), attacker, 0.4, rng=Rng(1))
        return env.score(tasks, t).sum(1).mean().item()

    assert score("mixture_linucb", None) < 5
    for attack in ("swap", "lower_best"):
        attacker = ATTACKERS.create(attack)
        others = [score(name, attacker) for name in ("linucb", "crlinucb", "lin_ts")]
        assert score("mixture_linucb", attacker) < min(others) / 3


@pytest.mark.parametrize("agent", ["linucb", "crlinucb", "lin_ts"])
def test_without_features_there_is_nothing_to_do(agent):
    with pytest.raises(UserError, match=f"{agent} needs an environment whose arms have features"):
        played(agent, make_env("bandit"))


@pytest.mark.parametrize("agent", ["mixture_linucb", "mixture_lin_ts"])
@pytest.mark.parametrize("env", [make_env("bandit"), make_env("linear_bandit", dimension=3)])
def test_mixtures_need_few_features(env, agent):
    with pytest.raises(UserError, match=f"{agent} needs .* one or two features"):
        played(agent, env)


@pytest.mark.parametrize("agent", ["posterior_oracle", "mixture_linucb", "mixture_lin_ts"])
def test_two_points_are_no_grid(agent):
    with pytest.raises(UserError, match="'axis': input should be greater than or equal to 3"):
        AGENTS.create(agent, axis=2)


# Models -------------------------------------------------------------------------------------------


def smoke(kind, stage, *sets, **direct):
    return resolve(kind, stage, "linear_bandit", "smoke", sets, **direct)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return pretrain(smoke(PretrainConfig, "pretrain", "steps=4"), tmp_path_factory.mktemp("dpt"))


def test_a_model_is_refused_with_other_features(weights, tmp_path, command, monkeypatch):
    agent = load(str(weights))
    here = make_env("linear_bandit", arms=4, horizon=20)
    torch.testing.assert_close(agent.model.features, torch.tensor(here.spec.features))
    agent.check(here.spec)
    others = make_env("linear_bandit", arms=4, horizon=20, features_seed=7)
    for env in (others, make_env("bandit", arms=4, horizon=20)):
        with pytest.raises(UserError, match="trained for arms with other features"):
            agent.check(env.spec)
    config = smoke(AdversarialConfig, "train", "env.features_seed=7", start=str(weights))
    with pytest.raises(UserError, match="other features"):
        train_adversarially(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.chdir(tmp_path)
    code, _, err = command(
        "evaluate", "linear_bandit", "--preset", "smoke", "--agents", str(weights),
        "--set", "env.features_seed=7",
    )  # fmt: skip
    assert (code, err.count("\n")) == (2, 1) and "other features" in err


def test_a_model_without_features_of_its_own_may_try(tmp_path):
    env = make_env("linear_bandit", arms=4, horizon=20)
    plain = make_model(smoke(PretrainConfig, "pretrain").model, make_env("bandit", arms=4).spec)
    plain.initialise(Rng(0).torch_generator())
    InContextAgent(plain).check(env.spec)


def test_no_training_goes_on_from_what_it_could_not_load_again(weights, tmp_path):
    """A model without features, or for another horizon, can act here; trained on, its weights
    would not fit the card."""
    plain = pretrain(
        resolve(PretrainConfig, "pretrain", "bandit", "smoke", ("env.arms=4", "steps=1")),
        tmp_path / "plain",
    )
    for start, sets, message in (
        (plain, (), "start .*: it was trained where arms have no features"),
        (
            weights,
            ("env.horizon=10", "batches.long_length=10"),
            "it was trained for 20 steps, here are 10",
        ),
    ):
        with pytest.raises(UserError, match=message):
            train_adversarially(
                smoke(AdversarialConfig, "train", *sets, start=str(start)), tmp_path / "run"
            )
    assert not (tmp_path / "run").exists()


def test_a_trained_model_is_kept_with_its_features(weights, tmp_path):
    config = smoke(AdversarialConfig, "train", start=str(weights))
    trained = load(str(train_adversarially(config, tmp_path / "run")))
    assert torch.equal(trained.model.features, load(str(weights)).model.features)
