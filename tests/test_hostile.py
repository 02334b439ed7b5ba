"""Nobody can change the world that he is measured in, in any environment: neither an agent nor an
attacker that writes to what it is handed, now or later. Registering an environment is joining."""

import dataclasses

import pytest
import torch

from mithridate.agents.in_context import load
from mithridate.envs import env_of, make_env
from mithridate.errors import UserError
from mithridate.evaluation.crossplay import evaluate
from mithridate.model.player import Played
from mithridate.native import kernels
from mithridate.registry import AGENTS, ATTACKERS, ENVS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.settings import resolve
from mithridate.stage_config import AttackConfig, EvaluateConfig
from mithridate.tables import AttackTables, Playing
from mithridate.training.attack import AttackTraining


@pytest.fixture(params=ENVS.names())
def env(request):
    return env_of(resolve(EvaluateConfig, "evaluate", request.param, "smoke").env)


def tensors_in(thing):
    """Every tensor that can be reached from what somebody was handed."""
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from tensors_in(value)
    elif dataclasses.is_dataclass(thing):
        for field in dataclasses.fields(thing):
            yield from tensors_in(getattr(thing, field.name))


def spoil(*things):
    for thing in things:
        for tensor in tensors_in(thing):
            tensor.fill_(1)


class Honest:
    """Acts at random, from its own streams."""

    def reset(self, spec, batch, rng):
        self.rng, self.n, self.kept = rng, spec.n_actions, []

    def act(self, obs):
        actions = (self.rng.uniform().squeeze(1) * self.n).long()
        self.handed(obs)
        self.returned(actions)
        return actions

    def observe(self, obs, actions, rewards, next_obs):
        self.handed(obs, actions, rewards, next_obs)

    def handed(self, *things):
        pass

    def returned(self, actions):
        pass


class WritesAtOnce(Honest):
    def handed(self, *things):
        spoil(*things)


class WritesLater(Honest):
    """To all that it was ever handed, and to what it returned."""

    def handed(self, *things):
        self.kept += things
        spoil(*self.kept)

    def returned(self, actions):
        self.kept.append(actions)


class Oracle(Honest):
    def reveal(self, secrets):
        self.secrets = secrets

    def handed(self, *things):
        spoil(self.secrets.tasks, self.secrets.state)


class HonestAttacker:
    def __init__(self):
        self.kept = []

    def reset(self, spec, tasks, rng):
        self.tasks = tasks

    def poison(self, step):
        proposed = step.true_rewards + 0.25
        self.handed(step)
        self.kept.append(proposed)
        return proposed

    def handed(self, step):
        pass

    def cost(self):
        return torch.zeros(len(self.tasks))


class WritingAttacker(HonestAttacker):
    def handed(self, step):
        spoil(step, self.tasks, *self.kept)


def world(env, agent, attacker):
    tasks = env.sample_tasks(6, Rng(0))
    before = tasks.copy()
    trajectory = rollout(env, tasks, agent, attacker, 0.5, rng=Rng(1))
    for name, tensor in tasks.tensors().items():
        assert torch.equal(tensor, getattr(before, name)), name
    return [*tensors_in(trajectory), env.score(tasks, trajectory)]


@pytest.mark.parametrize("agent", [WritesAtOnce, WritesLater, Oracle])
def test_a_hostile_agent_changes_nothing(env, agent):
    honest, hostile = (world(env, a(), HonestAttacker()) for a in (Honest, agent))
    assert len(honest) > 5
    for mine, theirs in zip(honest, hostile, strict=True):
        assert torch.equal(mine, theirs)


def test_a_hostile_attacker_changes_nothing(env):
    honest, hostile = (world(env, Honest(), a()) for a in (HonestAttacker, WritingAttacker))
    for mine, theirs in zip(honest, hostile, strict=True):
        assert torch.equal(mine, theirs)


def test_plain_agents_get_observations_of_their_own(env):
    class Plain:
        def reset(self, n_actions):
            self.t, self.n = 0, n_actions

        def act(self, obs):
            self.t += 1
            self.write(obs)
            return self.t % self.n

        def observe(self, obs, action, reward, next_obs):
            self.write(obs)
            self.write(next_obs)

        def write(self, obs):
            pass

    class Writes(Plain):
        def write(self, obs):
            for array in obs.values() if isinstance(obs, dict) else [obs]:
                if array is not None:
                    array.fill(1)

    result = evaluate(env, {"honest": Plain, "writes": Writes}, tasks=4, threads=1)
    (a, _), (b, _) = result.summary().values()
    assert a == b


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.tensor(float("nan")), "not finite"),
        (torch.tensor(float("inf")), "not finite"),
        (torch.zeros(3, 3), r"\(4,\) rewards"),
        (torch.zeros(4, dtype=torch.int64), "tensor of floats"),
        ([0.0] * 4, "tensor of floats"),
        (None, "tensor of floats"),
    ],
)
def test_what_is_no_reward_is_refused(env, value, message):
    class Broken(HonestAttacker):
        def poison(self, step):
            if isinstance(value, torch.Tensor) and value.dim() == 0:
                return step.true_rewards + value
            return value

    tasks = env.sample_tasks(4, Rng(0))
    with pytest.raises(UserError, match=f"attacker Broken: poison.*{message}"):
        rollout(env, tasks, Honest(), Broken(), 0.5, rng=Rng(1))


def test_an_environment_that_pays_nonsense_is_refused(env, monkeypatch):
    original = env.step

    def step(tasks, state, actions, noise):
        state, rewards = original(tasks, state, actions, noise)
        return state, rewards / 0

    monkeypatch.setattr(env, "step", step)
    with pytest.raises(UserError, match=f"environment {env.spec.name}: step.*not finite"):
        rollout(env, env.sample_tasks(4, Rng(0)), AGENTS.create("uniform"), rng=Rng(1))


@pytest.mark.parametrize("episodes", [-1, 1.5, "3", 10**9, True])
def test_what_is_no_number_of_episodes_is_refused(env, episodes):
    agent = Honest()
    agent.learning_episodes = episodes
    with pytest.raises(UserError, match="learning_episodes must be a whole number"):
        rollout(env, env.sample_tasks(4, Rng(0)), agent, rng=Rng(1))


def test_the_attackers_of_the_library_are_handed_what_they_need(env):
    """A copy of the tasks is as good as the tasks."""
    tasks = env.sample_tasks(4, Rng(0))
    for name in env.attacks:
        attacker = ATTACKERS.create(name, budget=1.0)
        rollout(env, tasks, AGENTS.create("oracle"), attacker, 0.5, rng=Rng(1))
        assert (attacker.cost() <= 1.0).all()


def test_nobody_else_plays_in_the_kernels():
    """An agent that brings a player of its own would say itself what it was paid."""
    env = make_env("darkroom2", horizon=5)
    tasks = env.sample_tasks(3, Rng(0))

    class Generous:
        def play(self, *words):
            rich = torch.full((3, 5), 1e6)
            zeros = torch.zeros(3, 5, dtype=torch.int64)
            return Played(zeros, zeros, rich, rich, rich)

    class Cheat:
        def reset(self, spec, batch, rng):
            pass

        def act(self, obs):
            return torch.zeros(3, dtype=torch.int64)

        def observe(self, obs, actions, rewards, next_obs):
            pass

        def plays(self, steps):
            return True

        def playing(self, steps):
            return Playing(Generous(), 0.0, None, "")

    with pytest.raises(UserError, match="is for models of ours alone"):
        rollout(env, tasks, Cheat(), rng=Rng(0))


def test_an_object_that_is_false_is_still_the_target():
    class Nothing(AGENTS.get("uniform")):
        def __len__(self):
            return 0

    settings = resolve(AttackConfig, "attack", "bandit", "smoke", target="ts", rounds=1)
    target = Nothing()
    assert AttackTraining(settings, target).target is target
    assert AttackTraining(settings, agent=target).target is target


def test_tables_that_do_not_fit_are_one_line():
    if kernels() is None:
        pytest.skip("nobody plays in the kernels")
    env = make_env("bandit")

    class Wide(ATTACKERS.get("swap")):
        def attack_tables(self, steps):
            return AttackTables(torch.zeros(3, 1, 7, 1))

    with pytest.raises(UserError, match="tables of an environment or attacker do not fit"):
        rollout(env, env.sample_tasks(3, Rng(0)), load("dpt-bandit-s0"), Wide(), 0.4, rng=Rng(0))
