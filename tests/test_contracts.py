"""What every registered environment, agent and attacker must do. Registering is joining."""

import pytest
import torch
from ring import Ring

from mithridate.agents.in_context import InContextAgent
from mithridate.capabilities import forgets, learns, repeats
from mithridate.config import ModelConfig
from mithridate.envs import env_of
from mithridate.errors import UserError
from mithridate.model.layouts import make_model
from mithridate.native import kernels
from mithridate.registry import AGENTS, ATTACKERS, ENVS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.settings import PRESETS, resolve
from mithridate.stage_config import (
    AdversarialConfig,
    AttackConfig,
    DistillConfig,
    EvaluateConfig,
    PretrainConfig,
)
from mithridate.types import Poison

FIELDS = (
    "actions", "true_rewards", "proposed_rewards", "observed_rewards", "poisoned",
    "optimal_actions",
)  # fmt: skip
STAGES = [
    (PretrainConfig, "pretrain", {}), (AdversarialConfig, "train", {"start": "x"}),
    (DistillConfig, "distill", {"source": "ts"}), (AttackConfig, "attack", {"target": "x"}),
    (EvaluateConfig, "evaluate", {}),
]  # fmt: skip


@pytest.fixture(params=ENVS.names())
def env(request):
    return env_of(resolve(EvaluateConfig, "evaluate", request.param, "smoke").env)


def make_agent(name, env):
    if name == "in_context":
        model = make_model(ModelConfig(layers=2, heads=2, width=16), env.spec)
        model.initialise(Rng(0).torch_generator())
        return InContextAgent(model)
    learns = hasattr(AGENTS.create(name), "learning_episodes")
    return AGENTS.create(name, **({"episodes": 3} if learns else {}))


def fits(env, agent, attacker=None) -> bool:
    """Whether they can meet. If not, that must be a user's error, which says why."""
    try:
        rollout(env, env.sample_tasks(2, Rng(0)), agent, attacker, 0.5, rng=Rng(0))
    except UserError as error:
        if "needs" in str(error):
            return False
        raise
    return True


@pytest.fixture(scope="module")
def fit():
    """fit(env, agent name, attacker name): whether they can meet, tried once."""
    known = {}

    def ask(env, agent, attacker=None):
        key = (env.spec.name, agent, attacker)
        if key not in known:
            made = attacker and ATTACKERS.create(attacker, budget=1.0)
            known[key] = fits(env, make_agent(agent, env), made)
        return known[key]

    return ask


@pytest.fixture(params=[*AGENTS.names(), "in_context"])
def agent(request, env, fit):
    if not fit(env, request.param):
        pytest.skip("not for this environment")
    return make_agent(request.param, env)


@pytest.fixture(params=ATTACKERS.names())
def attacker(request, env, fit):
    if not fit(env, "uniform", request.param):
        pytest.skip("not for this environment")
    return ATTACKERS.create(request.param, budget=1.0)


def test_everybody_fits_somewhere():
    envs = [env_of(resolve(EvaluateConfig, "evaluate", n, "smoke").env) for n in ENVS.names()]
    envs.append(Ring())  # has images where nobody can draw Miniworld's
    for name in AGENTS.names():
        assert any(fits(env, make_agent(name, env)) for env in envs), name
    for name in ATTACKERS.names():
        attackers = [ATTACKERS.create(name, budget=1.0) for _ in envs]
        agent = AGENTS.create("uniform")
        assert any(fits(e, agent, a) for e, a in zip(envs, attackers, strict=True)), name


def test_every_environment_names_attackers_that_fit(env):
    agent = AGENTS.create("uniform")
    for name in (*env.attacks, env.learned_attack):
        attacker = ATTACKERS.create(name)
        assert fits(env, agent, attacker)
        assert hasattr(attacker, "update") == (name == env.learned_attack)


# Environments ------------------------------------------------------------------------------


def test_tasks_depend_only_on_rng_and_id(env):
    whole = env.sample_tasks(6, Rng(0))
    assert whole.ids.tolist() == list(range(6))
    part = env.sample_tasks(2, Rng(0), first=3)
    assert same_tasks(part, whole.select(slice(3, 5)))
    assert not same_tasks(env.sample_tasks(6, Rng(1)), whole)


def same_tasks(a, b) -> bool:
    mine, other = a.tensors(), b.tensors()
    return mine.keys() == other.keys() and all(torch.equal(t, other[k]) for k, t in mine.items())


def test_environment_shapes_and_oracle(env):
    tasks = env.sample_tasks(6, Rng(0))
    state = env.reset(tasks)
    values = env.action_values(tasks, state)
    assert values.shape == (6, env.spec.n_actions)
    best = env.optimal_action(tasks, state)
    assert best.dtype == torch.int64
    torch.testing.assert_close(values.gather(1, best[:, None]).squeeze(1), values.amax(1))
    noise = torch.zeros(6, env.spec.noise_size)
    _, reward = env.step(tasks, state, best, noise)
    assert reward.shape == (6,) and reward.dtype == torch.float32


def test_step_is_a_function_of_its_arguments(env):
    tasks = env.sample_tasks(6, Rng(0))
    noise = Rng(0).streams(tasks.ids).normal(env.spec.noise_size)
    actions = torch.arange(6) % env.spec.n_actions
    first = env.step(tasks, env.reset(tasks), actions, noise)[1]
    assert torch.equal(env.step(tasks, env.reset(tasks), actions, noise)[1], first)


def test_contexts(env):
    tasks = env.sample_tasks(5, Rng(0))
    data = env.sample_contexts(tasks, 9, Rng(1))
    assert data.actions.shape == data.rewards.shape == (5, 9)
    assert data.labels.shape == (5, 10)
    again = env.sample_contexts(tasks, 9, Rng(1))
    assert torch.equal(data.rewards, again.rewards)
    assert not torch.equal(data.actions, env.sample_contexts(tasks, 9, Rng(2)).actions)
    if env.spec.n_states is not None:
        assert data.states.shape == data.next_states.shape == (5, 9)
        assert data.queries.shape == (5, 10)
    assert data.values.shape in {(5, 10, env.spec.n_actions), (5, 1, env.spec.n_actions)}
    labelled = data.values.expand(5, 10, -1).gather(2, data.labels[..., None]).squeeze(2)
    torch.testing.assert_close(labelled, data.values.amax(2).expand(5, 10))


def test_poisoned_contexts(env):
    """A share eps of the rewards is false; without eps or a budget nothing is; labels are true."""
    n, length = 300, env.spec.horizon
    tasks = env.sample_tasks(n, Rng(0))
    clean = env.sample_contexts(tasks, length, Rng(1))

    def poisoned(budget, switching=0.0, eps=0.3):
        budgets = torch.as_tensor(budget).expand(n)
        poison = Poison(torch.full((n,), eps), budgets, switching, Rng(2))
        return env.sample_contexts(tasks, length, Rng(1), poison)

    def equal(a, b):
        """(B,): whether the contexts are the same; what is in a bank is not compared."""
        pairs = zip(a._by_task().values(), b._by_task().values(), strict=True)
        return torch.stack([(x == y).flatten(1).all(1) for x, y in pairs]).all(0)

    for switching in (0.0, 0.5):
        dirty = poisoned(30.0, switching)
        assert equal(dirty, poisoned(30.0, switching)).all()
        values = dirty.values.expand(n, length + 1, -1)
        labelled = values.gather(2, dirty.labels[..., None]).squeeze(2)
        torch.testing.assert_close(labelled, values.amax(2))
        # Until an actor is deceived for the first time, it does what it would have done.
        alike = (dirty.actions == clean.actions).long().cumprod(1).bool()
        false = (dirty.rewards != clean.rewards) & alike
        assert 0.03 < false.sum() / alike.sum() < 0.33
    assert equal(poisoned(0.0), clean).all()
    assert equal(poisoned(1.0, eps=0.0), clean).all()
    some = torch.arange(n) % 2 == 0
    same = equal(poisoned(some.float(), 0.5), clean)
    assert same[~some].all() and not same[some].all(), "each context has a budget of its own"


def test_keys_are_those_of_the_states(env):
    """The rollout records the keys, and hands them to the attacker; what it recorded of values is
    what the environment says."""

    class Notes:
        def reset(self, spec, tasks, rng):
            self.keys, self.values = [], []

        def poison(self, step):
            if env.spec.n_attack_keys > 1:
                assert torch.equal(step.key, env.attack_key(tasks, step.state))
            else:
                assert not step.key.any()
            self.keys.append(step.key.clone())
            self.values.append(env.action_values(tasks, step.state))
            if env.spec.n_attack_keys > 1:
                step.key.add_(1)  # what it is handed is its own
            return step.true_rewards

        def cost(self):
            return torch.zeros(4)

    tasks, notes = env.sample_tasks(4, Rng(0)), Notes()
    lived = rollout(
        env, tasks, AGENTS.create("uniform"), notes, 0.5, rng=Rng(1), record_values=True
    )
    assert torch.equal(lived.keys, torch.stack(notes.keys, 1))
    assert lived.keys.min() >= 0 and lived.keys.max() < env.spec.n_attack_keys
    values = torch.stack(notes.values, 1)
    assert torch.equal(lived.values[:, : env.spec.horizon].expand_as(values), values)
    after = lived.values[torch.arange(4), -1].gather(1, lived.optimal_after[:, None]).squeeze(1)
    torch.testing.assert_close(after, lived.values[:, -1].amax(1))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("kind", "stage", "needed"), STAGES)
def test_presets_are_valid(env, preset, kind, stage, needed):
    resolve(kind, stage, env.spec.name, preset, **needed)


def test_nobody_beats_the_oracle(env, agent):
    tasks = env.sample_tasks(20, Rng(0))
    better = 1 if env.spec.metric.better == "higher" else -1
    mine = env.score(tasks, rollout(env, tasks, agent, rng=Rng(3))).sum(1).mean() * better
    best = rollout(env, tasks, AGENTS.create("oracle"), rng=Rng(3))
    assert mine <= env.score(tasks, best).sum(1).mean() * better + 1e-6


# Agents ------------------------------------------------------------------------------------


def test_same_seed_same_trajectory(env, agent):
    tasks = env.sample_tasks(5, Rng(0))
    first, second, other = (rollout(env, tasks, agent, rng=Rng(s)) for s in (1, 1, 2))
    for field in FIELDS:
        assert torch.equal(getattr(first, field), getattr(second, field))
    if env.spec.noise_size:
        assert not torch.equal(first.true_rewards, other.true_rewards)


def test_a_batch_equals_batches_of_one(env, agent):
    tasks = env.sample_tasks(5, Rng(0))
    attacker = ATTACKERS.create("uniform")
    whole = rollout(env, tasks, agent, attacker, 0.5, rng=Rng(1))
    for i in range(5):
        one = rollout(env, tasks.select(slice(i, i + 1)), agent, attacker, 0.5, rng=Rng(1))
        for field in FIELDS:
            assert torch.equal(getattr(one, field)[0], getattr(whole, field)[i]), field


def test_agents_share_their_luck(env, agent):
    """Noise and contamination do not depend on who acts."""
    tasks = env.sample_tasks(5, Rng(0))
    attacker = ATTACKERS.create("uniform")
    mine = rollout(env, tasks, agent, attacker, 0.5, rng=Rng(1))
    other = rollout(env, tasks, AGENTS.create("uniform"), attacker, 0.5, rng=Rng(1))
    assert torch.equal(mine.poisoned, other.poisoned)
    together = mine.actions == other.actions
    if env.spec.observation is None:
        assert torch.equal(mine.true_rewards[together], other.true_rewards[together])


# Attackers ---------------------------------------------------------------------------------


def test_attacker_stays_within_budget_and_is_reproducible(env, attacker):
    tasks = env.sample_tasks(30, Rng(0))
    agent = AGENTS.create("uniform")
    first = rollout(env, tasks, agent, attacker, 0.5, rng=Rng(1))
    assert attacker.cost().shape == (30,)
    assert (attacker.cost() <= 1.0).all()
    second = rollout(env, tasks, agent, attacker, 0.5, rng=Rng(1))
    assert torch.equal(first.proposed_rewards, second.proposed_rewards)


def learn(env, tasks, attacker, seed):
    """One round: what happened."""
    if repeats(attacker):
        tasks = tasks.repeat(attacker.episodes)
    attacker.learning = True
    trajectory = rollout(env, tasks, AGENTS.create("uniform"), attacker, 0.5, rng=Rng(seed))
    attacker.update(trajectory)
    attacker.learning = False
    return trajectory


def test_attacker_is_asked_at_every_step(env, attacker):
    tasks = env.sample_tasks(30, Rng(0))
    if repeats(attacker):  # it begins with nothing
        learn(env, tasks, attacker, 2)
    trajectory = rollout(env, tasks, AGENTS.create("uniform"), attacker, 0.0, rng=Rng(1))
    assert not trajectory.poisoned.any()
    assert (trajectory.proposed_rewards != trajectory.true_rewards).any()
    assert torch.equal(trajectory.observed_rewards, trajectory.true_rewards)


def test_an_attackers_batch_equals_batches_of_one(env, attacker):
    tasks = env.sample_tasks(5, Rng(0))
    agent = AGENTS.create("uniform")
    if learns(attacker):  # let there be something to tell tasks apart by
        learn(env, tasks, attacker, 2)
    whole = rollout(env, tasks, agent, attacker, 0.5, rng=Rng(1))
    for i in (3, 0):
        one = rollout(env, tasks.select(slice(i, i + 1)), agent, attacker, 0.5, rng=Rng(1))
        if kernels() is None and hasattr(attacker, "model"):  # PyTorch's products round by batch
            torch.testing.assert_close(one.proposed_rewards[0], whole.proposed_rewards[i])
        else:
            assert torch.equal(one.proposed_rewards[0], whole.proposed_rewards[i])


def test_a_learning_attacker_is_restored_by_its_tensors(env, attacker):
    if not learns(attacker):
        pytest.skip("does not learn")
    tasks = env.sample_tasks(5, Rng(0))
    learn(env, tasks, attacker, 1)
    copy = ATTACKERS.create(attacker.registered_name, budget=1.0)
    copy.load_tensors({name: t.clone() for name, t in attacker.tensors().items()})
    for number in (2, 3):
        first, second = (learn(env, tasks, one, number) for one in (attacker, copy))
        assert torch.equal(first.proposed_rewards, second.proposed_rewards)
    again = learn(env, tasks, attacker, 2)
    assert not torch.equal(again.proposed_rewards, first.proposed_rewards)


# Several episodes of a task ------------------------------------------------------------------


def test_episodes_of_a_task_have_luck_of_their_own(env, attacker):
    """Copies agree in the task and differ in luck; an episode is what it is, however many others
    there are of its task; the first is what the task alone gives."""
    tasks, agent = env.sample_tasks(4, Rng(0)), AGENTS.create("uniform")
    plain = rollout(env, tasks, agent, attacker, 0.5, rng=Rng(1))
    lived = {}
    for times in (1, 2, 3):
        copies = tasks.repeat(times)
        assert copies.ids.tolist() == [i for i in range(4) for _ in range(times)]
        assert same_tasks(copies.select(slice(0, None, times)), tasks.repeat(1))
        lived[times] = rollout(env, copies, agent, attacker, 0.5, rng=Rng(1))
    assert_same(lived[1], plain, attacker)
    for times, e in ((2, 0), (2, 1), (3, 0), (3, 1)):
        wanted = lived[3].select(slice(e, None, 3))
        assert_same(lived[times].select(slice(e, None, times)), wanted, attacker)
    first, second, third = (lived[3].select(slice(e, None, 3)) for e in range(3))
    for one, other in ((first, second), (second, third), (first, third)):
        assert (one.actions != other.actions).any(1).all(), "the agent's luck"
        assert (one.poisoned != other.poisoned).any(1).all(), "the contamination"
        if env.spec.noise_size:
            assert (one.true_rewards != other.true_rewards).any(1).all(), "the noise"


def assert_same(one, other, attacker):
    for field in FIELDS:
        if field in ("proposed_rewards", "observed_rewards") and hasattr(attacker, "model"):
            # Products of matrices round by batch.
            torch.testing.assert_close(getattr(one, field), getattr(other, field))
        else:
            assert torch.equal(getattr(one, field), getattr(other, field)), field


def test_repeated_tasks_are_cut_and_joined(env):
    tasks = env.sample_tasks(3, Rng(0))
    copies = tasks.repeat(2)
    assert len(copies.luck.unique()) == 6
    joined = type(tasks).cat([tasks, copies.select(slice(4, None))])
    assert torch.equal(joined.luck, torch.cat([tasks.ids, copies.luck[4:]]))
    assert same_tasks(copies.copy(), copies) and same_tasks(copies.to("cpu"), copies)
    assert "episodes" not in tasks.tensors()
    with pytest.raises(ValueError, match="already"):
        copies.repeat(2)


class Halfway:
    """Takes the best action or any, with equal probability: it earns something everywhere, and its
    episodes differ."""

    def reveal(self, secrets):
        self.secrets = secrets

    def reset(self, spec, batch, rng):
        self.rng, self.actions = rng, spec.n_actions

    def act(self, obs):
        u, which = self.rng.uniform(2).unbind(1)
        best = self.secrets.env.optimal_action(self.secrets.tasks, self.secrets.state)
        return torch.where(u < 0.5, best, (which * self.actions).long())

    def observe(self, obs, actions, rewards, next_obs):
        pass


def test_an_attacker_learns_from_all_episodes_of_a_task(env, attacker):
    """By the gradient of one update, a tenth of which is Adam's first moment after it. (Adam itself
    makes much of rounding where there is nothing to learn.)"""
    if not forgets(attacker) or repeats(attacker):
        pytest.skip("has no gradient for single tasks")
    tasks, agent = env.sample_tasks(4, Rng(0)), Halfway()

    def moment(some, lived):
        new = ATTACKERS.create(attacker.registered_name, budget=1.0, iterations=1)
        new.reset(env.spec, some, Rng(1).streams(some.luck))
        new.update(lived)
        found = new.tensors()
        assert found["ids"].tolist() == [0, 1, 2, 3] and (found["updates"] == 1).all()
        return torch.cat([t.flatten() for name, t in found.items() if name.endswith("first")])

    def close(one, other):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)

    lived = rollout(env, tasks, agent, attacker, 0.5, rng=Rng(1))
    for times in (2, 3):  # the same episode again teaches what it teaches once
        index = torch.arange(4).repeat_interleave(times)
        close(moment(tasks.repeat(times), lived.select(index)), moment(tasks, lived))
    # Episodes that differ all count, in whatever order they come.
    copies = tasks.repeat(2)
    lived = rollout(env, copies, agent, attacker, 0.5, rng=Rng(1))
    both = moment(copies, lived)
    order = torch.tensor([5, 0, 3, 6, 1, 7, 2, 4])
    close(moment(copies.select(order), lived.select(order)), both)
    for e in (0, 1):
        one = moment(tasks, lived.select(slice(e, None, 2)))
        assert (one - both).abs().max() > 1e-3
