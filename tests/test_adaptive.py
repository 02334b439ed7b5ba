"""The adaptive attacker: what it sees, its budget, what it learns from, and how it is kept."""

from dataclasses import replace

import pytest
import torch

from mithridate.attackers.adaptive import AdaptiveAttacker, gains
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.registry import AGENTS, ATTACKERS
from mithridate.returns import less_than_the_others, returns_after
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.settings import resolve
from mithridate.stage_config import AttackConfig
from mithridate.training.attack import AttackTraining, LearnedAttack, attack

SMALL = {"layers": 2, "heads": 2, "width": 16}


def make(**parameters) -> AdaptiveAttacker:
    return ATTACKERS.create("adaptive", **{**SMALL, **parameters})


def lively(attacker, env, tasks, strength=30.0):
    """Weights that put out large offsets, which differ from step to step."""
    attacker.reset(env.spec, tasks, Rng(0).streams(tasks.ids))
    with torch.no_grad():
        attacker.model.head.weight[0] *= strength
    return attacker


@pytest.fixture
def env():
    return make_env("bandit", arms=4, horizon=50)


@pytest.mark.parametrize("width", [16, 12])  # 12: not for the native kernels
def test_the_cache_equals_the_full_forward(env, width):
    tasks = env.sample_tasks(9, Rng(0))
    attacker = lively(make(width=width), env, tasks)
    t = rollout(env, tasks, AGENTS.create("ts"), attacker, 0.4, rng=Rng(1))
    seen = attacker.trace()
    assert torch.equal(seen.inputs[..., 0], t.true_rewards)
    with torch.no_grad():
        mean, spread, _ = attacker.model(t.actions, seen.inputs)
    torch.testing.assert_close(seen.mean, mean.clamp(seen.low, seen.high), atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(seen.spread, spread, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("tilt", [-2.0, 0.0, 1.0])
def test_it_begins_with_offsets_along_the_rewards(env, tilt):
    tasks = env.sample_tasks(20, Rng(0))
    attacker = lively(make(tilt=tilt), env, tasks, strength=0.0)
    t = rollout(env, tasks, AGENTS.create("uniform"), attacker, 0.4, rng=Rng(1))
    centre, seen = tasks.means.mean(), attacker.trace()
    expected = 3 * (tilt * (t.true_rewards - centre) / 3).tanh()
    torch.testing.assert_close(seen.mean, expected.clamp(seen.low, seen.high))
    assert (seen.mean == 0).all() == (tilt == 0)


def test_it_reads_the_past_and_the_present_but_not_the_future(env):
    tasks = env.sample_tasks(5, Rng(0))
    attacker = lively(make(), env, tasks)
    t = rollout(env, tasks, AGENTS.create("ts"), attacker, 0.4, rng=Rng(1))
    inputs = attacker.trace().inputs
    changed = inputs.clone()
    changed[:, 20, 0] += 1
    with torch.no_grad():
        before = attacker.model(t.actions, inputs)[0]
        after = attacker.model(t.actions, changed)[0]
    assert torch.equal(before[:, :20], after[:, :20])
    assert (before[:, 20] != after[:, 20]).all(), "the reward it is about to replace"
    assert (before[:, 21:] != after[:, 21:]).any(1).all()


@pytest.mark.parametrize("budget", [0.0, 0.5, 3.0])
def test_the_budget_holds_at_every_step(env, budget):
    tasks = env.sample_tasks(40, Rng(0))
    attacker = lively(make(budget=budget), env, tasks, strength=100.0)
    t = rollout(env, tasks, AGENTS.create("uniform"), attacker, 0.4, rng=Rng(1))
    inputs, mean, spread, _, _ = attacker.trace()
    one_hot = torch.nn.functional.one_hot(t.actions, 4).double()  # (B, T, A)
    sums, counts = (one_hot * mean[..., None]).cumsum(1), one_hot.cumsum(1)
    norms = (sums / counts.clamp(min=1)).norm(dim=2)
    assert (norms <= budget).all()
    spent = (sums / counts.clamp(min=1))[:, :-1].gather(2, t.actions[:, 1:, None])  # before a pull
    torch.testing.assert_close(inputs[:, 1:, 1:2].double(), spent, atol=1e-5, rtol=1e-5)
    assert (inputs[..., 1].abs() <= inputs[..., 2] + 1e-3).all(), "spent, and the limit"
    torch.testing.assert_close(attacker.cost(), norms[:, -1].float())
    assert (mean.abs() <= budget).all(), "reach is 1"
    assert (spread <= 1 / 4**0.5).all()
    if budget:
        assert norms[:, -1].max() > 0.9 * budget, "strong enough to need the bound"
        with torch.no_grad():
            wanted = attacker.model(t.actions, inputs)[0]
        assert (wanted - mean).abs().max() > 0.1 * budget


def test_within_the_budget_nothing_is_cut(env):
    tasks = env.sample_tasks(10, Rng(0))
    attacker = make()
    t = rollout(env, tasks, AGENTS.create("ts"), attacker, 0.4, rng=Rng(1))
    with torch.no_grad():
        wanted = attacker.model(t.actions, attacker.trace().inputs)[0]
    torch.testing.assert_close(attacker.trace().mean, wanted, atol=1e-5, rtol=1e-5)


def test_returns():
    rewards = torch.tensor([[1.0, 2.0, 3.0]])
    torch.testing.assert_close(returns_after(rewards, 0.5), torch.tensor([[3.5, 3.0, 0.0]]))


def test_gains_know_neither_the_task_nor_the_time():
    rewards = torch.randn(6, 30, generator=torch.Generator().manual_seed(0))
    gain = gains(rewards, 0.9)
    torch.testing.assert_close(gain.mean(0), torch.zeros(30), atol=1e-5, rtol=0)
    torch.testing.assert_close(gain.std(correction=0), torch.tensor(1.0))
    torch.testing.assert_close(gains(rewards + torch.arange(6.0)[:, None], 0.9), gain,
                               atol=1e-4, rtol=1e-4)  # fmt: skip
    worse = rewards.clone()
    worse[2, 15:] -= 1
    change = gains(worse, 0.9)[2] - gain[2]
    assert change[14] > change[0], "earning less afterwards is a gain"


def test_the_first_update_follows_the_score_function(env):
    """Of the mean's bias, against REINFORCE by hand: one batch, one pass, no penalty."""
    tasks = env.sample_tasks(30, Rng(0))
    attacker = make(passes=1, batch=30, penalty=0.0)
    t = rollout(env, tasks, AGENTS.create("ts"), attacker, 0.4, rng=Rng(1))
    gradients = []
    attacker._optimiser.step = lambda loss, _: gradients.extend(
        torch.autograd.grad(loss, attacker.model.head.bias)
    )
    attacker.update(t)
    with torch.no_grad():
        mean, spread, value = attacker.model(t.actions, attacker.trace().inputs)
        advantage = (gains(t.true_rewards, 0.97) - value)[t.poisoned]
        advantage = (advantage - advantage.mean()) / advantage.std()
        shift = t.proposed_rewards - t.true_rewards
        score = (shift - mean) / spread**2 * (3.0 * (1 - (mean / 3.0) ** 2))  # d mean / d bias
        expected = -(score[t.poisoned] * advantage).mean()
    torch.testing.assert_close(gradients[0][0], expected, rtol=1e-3, atol=1e-5)


def test_only_poisoned_steps_teach_and_only_true_rewards_count(env):
    tasks = env.sample_tasks(10, Rng(0))

    def learned(change):
        attacker = make(penalty=0.0)
        t = rollout(env, tasks, AGENTS.create("ts"), attacker, 0.4, rng=Rng(1))
        before = attacker.model.head.weight[0].clone()
        attacker.update(change(t))
        return attacker.model.head.weight[0].detach(), before

    after, before = learned(lambda t: replace(t, poisoned=torch.zeros_like(t.poisoned)))
    torch.testing.assert_close(after, before, rtol=1e-5, atol=0)
    as_it_is, before = learned(lambda t: t)
    assert not torch.allclose(as_it_is, before, rtol=1e-3)
    otherwise, _ = learned(lambda t: replace(t, observed_rewards=t.observed_rewards + 7))
    assert torch.equal(as_it_is, otherwise)


def test_it_learns_to_hurt_thompson_sampling():
    config = resolve(
        AttackConfig, "attack", "bandit", "smoke", target="ts", tasks=150, rounds=15,
        attacker="adaptive(layers=2,heads=2,width=16)", sets=["env.horizon=60"], seed=1,
    )  # fmt: skip
    trainee = AttackTraining(config)
    scores = [trainee.step(i)["score_mean"] for i in range(15)]
    assert sum(scores[-3:]) > 1.4 * sum(scores[:3]), scores
    assert trainee.evaluate(15)["used_norm_max"] <= 3.0


def test_by_episodes_an_attack_that_works_throughout_is_credited(env):
    """Against its own mean it earns nothing; against the task's other episodes it does."""
    rewards = torch.ones(4, 50)
    rewards[0] -= 0.5  # of four episodes of a task, the one with the steady attack
    assert gains(rewards, 0.97).abs().max() < 1e-3
    gained = less_than_the_others(rewards, 0.97, 4)
    assert (gained[0, :-1] > 0).all() and (gained[1:, :-1] < 0).all()


def test_by_episodes_it_hurts_more_and_the_rate_falls():
    """In as many rounds, from nothing; four episodes are more to learn from as well."""

    def learned(more):
        config = resolve(
            AttackConfig, "attack", "bandit", "smoke", target="ts", tasks=60, rounds=12, seed=1,
            attacker=f"adaptive(layers=2,heads=2,width=16,tilt=0{more})", sets=["env.horizon=60"],
        )  # fmt: skip
        trainee = AttackTraining(config)
        for i in range(12):
            trainee.step(i)
        return trainee

    alone, several = learned(""), learned(",episodes=4")
    assert several.evaluate(12)["final_mean"] > alone.evaluate(12)["final_mean"]
    optimiser = several.attacker._optimiser
    assert optimiser.steps == several.attacker.updates == 12 * 8 * 5
    assert optimiser.rate(optimiser.steps) == pytest.approx(6e-4)


@pytest.mark.parametrize("episodes", [1, 4])
def test_an_attack_is_resumed_where_it_stopped(tmp_path, monkeypatch, episodes):
    config = resolve(
        AttackConfig, "attack", "bandit", "smoke", target="ts", rounds=5,
        attacker=f"adaptive(layers=2,heads=2,width=16,episodes={episodes})",
    )  # fmt: skip
    whole = attack(config, tmp_path / "whole")
    original = AttackTraining.step

    def step(self, number):
        if number == 3:
            raise KeyboardInterrupt
        return original(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(AttackTraining, "step", step)
        with pytest.raises(KeyboardInterrupt):
            attack(config, tmp_path / "parts")
    assert attack(config, tmp_path / "parts").read_bytes() == whole.read_bytes()
    assert LearnedAttack(whole).attacker.updates > 0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"heads": 3}, "not a multiple of heads"),
        ({"spread_budget": 0.0}, "greater than or equal to 0.000000001"),
    ],
)
def test_bad_parameters(parameters, message):
    with pytest.raises(UserError, match=message):
        make(**parameters)


def test_a_budget_above_the_runs_is_refused(tmp_path):
    config = resolve(
        AttackConfig, "attack", "bandit", "smoke", target="ts", attacker="adaptive(budget=4)"
    )
    with pytest.raises(UserError, match="its budget exceeds"):
        attack(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_seeds_give_other_networks(env):
    tasks = env.sample_tasks(3, Rng(0))
    weights = []
    for seed in (0, 1):
        attacker = make(seed=seed)
        attacker.reset(env.spec, tasks, Rng(0).streams(tasks.ids))
        weights.append(attacker.model.head.weight)
    assert not torch.equal(*weights)


def test_another_environment_is_refused(env):
    tasks = env.sample_tasks(3, Rng(0))
    attacker = make()
    attacker.reset(env.spec, tasks, Rng(0).streams(tasks.ids))
    other = make_env("bandit", arms=3, horizon=50)
    with pytest.raises(UserError, match="trained for 4 arms and 50 steps; the environment has 3"):
        attacker.reset(other.spec, other.sample_tasks(3, Rng(0)), Rng(0).streams(tasks.ids))


def test_the_oracle_knows_it(env):
    tasks = env.sample_tasks(20, Rng(0))
    attacker = lively(make(), env, tasks)
    t = rollout(env, tasks, AGENTS.create("posterior_oracle"), attacker, 0.4, rng=Rng(1))
    ts = rollout(env, tasks, AGENTS.create("ts"), attacker, 0.4, rng=Rng(1))
    assert env.score(tasks, t).sum() < env.score(tasks, ts).sum()
