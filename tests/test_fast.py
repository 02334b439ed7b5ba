"""The native loop over steps is the Python loop, bit by bit."""

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mithridate import fast
from mithridate.agents.in_context import SPENT, InContextAgent
from mithridate.attackers import make_attacker
from mithridate.attackers.arm_offsets import ArmOffsets
from mithridate.attackers.population import Population
from mithridate.config import ModelConfig
from mithridate.envs import make_env
from mithridate.envs.bandit import Bandit
from mithridate.errors import UserError
from mithridate.model.layouts import make_model
from mithridate.model.query_first import QueryFirstModel
from mithridate.native import kernels
from mithridate.registry import ATTACKERS
from mithridate.rng import Rng
from mithridate.rollout import rollout

pytestmark = pytest.mark.skipif(kernels() is None, reason="native kernels are not built")

ARMS = (
    "none",
    "uniform",
    "raise_worst",
    "lower_best",
    "swap",
    "mirror",
    "few_arms",
    "disguise",
    "gaussian",
    "search",
)
ROOMS = ("none", "uniform", "tabular", "pooled", "hide_best", "raise_lesser", "swap_goals",
         "fake_goal", "decoys", "search")  # fmt: skip
MODELS = ((1, 2, 16), (2, 4, 32), (1, 1, 32), (2, 3, 48), (1, 2, 64))


def model_of(env, layers=2, heads=4, width=32, seed=0):
    """Weights that make decided predictions, so that actions depend on what was seen."""
    model = make_model(ModelConfig(layers=layers, heads=heads, width=width), env.spec)
    generator = Rng(seed).torch_generator()
    model.initialise(generator)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator))
        model.head.weight.mul_(3)
    return model


def attacker_of(name, spec, budget=2.0):
    if name == "none":
        return None
    attacker = make_attacker(name, budget)
    attacker.learning = True  # whatever it has learned counts
    return attacker


def both_ways(monkeypatch, *arguments, **options):
    """The trajectories of the native loop and of the Python loop."""
    planned = []
    plan = fast.plan

    def spy(*args):
        planned.append(plan(*args))
        return planned[-1]

    with monkeypatch.context() as m:
        m.setattr(fast, "plan", spy)
        native = rollout(*arguments, **options)
        assert planned[0] is not None, "this does not run in the kernels"
        m.setattr(fast, "plan", lambda *_: None)
        return native, rollout(*arguments, **options)


def assert_same(one, other):
    for field in fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, Tensor):
            assert a.dtype == b.dtype and torch.equal(a, b), field.name
        else:
            assert a is None and b is None, field.name


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    torch.set_num_threads(request.param)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", ARMS)
@pytest.mark.parametrize("env_name", ["bandit", "linear_bandit"])
def test_arms(env_name, name, monkeypatch):
    env = make_env(env_name, horizon=37, arms=6)
    tasks = env.sample_tasks(13, Rng(0))
    agent = InContextAgent(model_of(env))
    native, python = both_ways(
        monkeypatch, env, tasks, agent, attacker_of(name, env.spec), 0.4, rng=Rng(1),
        record_values=True,
    )  # fmt: skip
    assert_same(native, python)
    assert native.actions.unique().numel() > 1 and native.poisoned.any()
    changed = native.proposed_rewards != native.true_rewards
    assert changed.any() == (name not in ("none",))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", ROOMS)
def test_rooms(name, monkeypatch):
    env = make_env("darkroom2", size=3, horizon=33)
    tasks = env.sample_tasks(13, Rng(0))
    agent = InContextAgent(model_of(env))
    native, python = both_ways(
        monkeypatch, env, tasks, agent, attacker_of(name, env.spec), 0.4, rng=Rng(1),
        record_values=True,
    )  # fmt: skip
    assert_same(native, python)
    assert native.keys.unique().numel() > 1


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_shapes(data):
    """Any tasks, horizon, arms, width, temperature and share that the kernels take."""
    draw = data.draw
    torch.set_num_threads(draw(st.integers(1, 3)))
    horizon, batch = draw(st.integers(1, 70)), draw(st.integers(1, 30))
    if draw(st.booleans()):
        name = draw(st.sampled_from(["bandit", "linear_bandit"]))
        env = make_env(name, horizon=horizon, arms=draw(st.integers(2, 40)))
        attacker = draw(st.sampled_from(ARMS))
    else:
        env = make_env("darkroom2", horizon=horizon, size=draw(st.integers(2, 6)))
        attacker = draw(st.sampled_from(ROOMS))
    model = model_of(env, *draw(st.sampled_from(MODELS)), seed=draw(st.integers(0, 9)))
    greedy = draw(st.booleans())
    agent = InContextAgent(model, greedy=greedy, temperature=draw(st.sampled_from([0.3, 1.0, 2.5])))
    eps = draw(st.sampled_from([0.0, 0.3, 1.0, None]))
    if eps is None:
        eps = torch.linspace(0, 1, batch)
    seed = draw(st.integers(0, 1000))
    tasks = env.sample_tasks(batch, Rng(seed))
    if draw(st.booleans()):
        tasks = tasks.repeat(2)
        eps = eps.repeat(2) if isinstance(eps, Tensor) else eps
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(fast, "CHUNK", draw(st.sampled_from([512, 7])))
        assert_same(
            *both_ways(
                monkeypatch, env, tasks, agent, attacker_of(attacker, env.spec), eps,
                rng=Rng(seed).child("luck"), record_values=draw(st.booleans()),
            )
        )  # fmt: skip


@pytest.mark.parametrize("env_name", ["bandit", "darkroom2"])
def test_attackers_side_by_side(env_name, monkeypatch):
    """In adversarial training each attacker has its own stretch of the tasks."""
    env = make_env(env_name, horizon=40)
    learned, other = ("gaussian", "swap") if env_name == "bandit" else ("tabular", "hide_best")
    parts = [(4, attacker_of(learned, env.spec)), (3, None), (5, attacker_of(other, env.spec)),
             (1, attacker_of("uniform", env.spec))]  # fmt: skip
    tasks = env.sample_tasks(13, Rng(0))
    eps = torch.linspace(0.1, 0.9, 13)
    agent = InContextAgent(model_of(env))
    assert_same(*both_ways(monkeypatch, env, tasks, agent, Population(parts), eps, rng=Rng(1)))
    nobody = Population([(13, None)])
    assert_same(*both_ways(monkeypatch, env, tasks, agent, nobody, eps, rng=Rng(1)))


def test_an_attacker_learns_the_same(monkeypatch):
    env = make_env("bandit", horizon=40)
    agent = InContextAgent(model_of(env))
    tasks = env.sample_tasks(9, Rng(0))
    learned = []
    for loop in (fast.plan, lambda *_: None):
        monkeypatch.setattr(fast, "plan", loop)
        attacker = attacker_of("gaussian", env.spec)
        for i in range(3):
            attacker.update(rollout(env, tasks, agent, attacker, 0.4, rng=Rng(i)))
        learned.append(attacker.tensors())
    assert learned[0].keys() == learned[1].keys()
    for name, tensor in learned[0].items():
        assert torch.equal(tensor, learned[1][name]), name


def test_steps_are_counted():
    env = make_env("bandit", horizon=30)
    said = []
    tasks = env.sample_tasks(5, Rng(0))
    rollout(env, tasks, InContextAgent(model_of(env)), rng=Rng(1), on_step=lambda: said.append(1))
    assert len(said) == 30


# Who stays on the Python loop --------------------------------------------------------------


def planned(env, agent, attacker=None, batch=3):
    tasks = env.sample_tasks(batch, Rng(0))
    agent.reset(env.spec, batch, Rng(1).streams(tasks.luck))
    if attacker is not None:
        attacker.reset(env.spec, tasks, Rng(2).streams(tasks.luck))
    return fast.plan(env, tasks, agent, attacker, 0.5, Rng(3)) is not None


class OwnStep(Bandit):
    def step(self, tasks, state, actions, noise):
        return super().step(tasks, state, actions, noise)


class OwnPoison(ArmOffsets):
    def choose(self, spec, tasks, rng):
        return torch.zeros(len(tasks), spec.n_actions), None

    def poison(self, step):
        return -step.true_rewards


class OwnAct(InContextAgent):
    def act(self, obs=None):
        return super().act(obs)


def test_only_what_is_known_runs_in_the_kernels(monkeypatch):
    env = make_env("bandit", horizon=20)
    model = model_of(env)
    agent = InContextAgent(model)
    assert planned(env, agent)
    assert planned(env, agent, make_attacker("gaussian", 1.0))
    assert not planned(OwnStep(env.config), agent)
    assert not planned(env, OwnAct(model))
    assert not planned(env, agent, OwnPoison())
    assert not planned(env, agent, ATTACKERS.make("adaptive"))
    mixture = Population([(2, OwnPoison()), (1, None)])
    assert not planned(env, agent, mixture)
    agent.act = lambda obs: torch.zeros(3, dtype=torch.int64)
    assert not planned(env, agent)
    rooms = make_env("darkroom2", size=3, horizon=20)
    assert planned(rooms, InContextAgent(model_of(rooms)))
    assert not planned(rooms, InContextAgent(QueryFirstModel(ModelConfig(), rooms.spec)))
    odd = make_env("bandit", horizon=20)
    assert not planned(odd, InContextAgent(model_of(odd, heads=3, width=24)))
    monkeypatch.setenv("MITHRIDATE_KERNELS", "reference")
    kernels.cache_clear()
    assert not planned(env, InContextAgent(model))
    monkeypatch.undo()
    kernels.cache_clear()


def test_an_agent_that_has_played_must_be_reset():
    env = make_env("bandit", horizon=20)
    tasks = env.sample_tasks(3, Rng(0))
    agent = InContextAgent(model_of(env))
    rollout(env, tasks, agent, rng=Rng(1))
    with pytest.raises(UserError, match=SPENT):
        agent.act(None)
    with pytest.raises(UserError, match=SPENT):
        agent.observe(None, torch.zeros(3, dtype=torch.int64), torch.zeros(3), None)
    agent.reset(env.spec, 3, Rng(2).streams(tasks.luck))
    assert agent.act(None).shape == (3,)


def test_predictions_that_are_not_finite_are_refused():
    env = make_env("bandit", horizon=20)
    model = model_of(env)
    with torch.no_grad():
        model.head.bias[0] = float("nan")
    with pytest.raises(UserError, match="not finite"):
        rollout(env, env.sample_tasks(3, Rng(0)), InContextAgent(model), rng=Rng(1))


def test_tables_are_checked():
    """The kernels refuse what would lead them out of their tables."""
    env = make_env("darkroom2", size=3, horizon=20)
    player = model_of(env).player()
    world = env.tables(env.sample_tasks(2, Rng(0)))
    hit, luck = torch.zeros(2, 20, dtype=torch.bool), torch.zeros(2, 20)
    player.play(world, None, hit, None, luck, 1.0)
    bad = world.after.clone()
    bad[0, 0] = 9
    with pytest.raises(ValueError, match="led to are out of range"):
        player.play(type(world)(world.rewards, world.optimal, bad), None, hit, None, luck, 1.0)
    with pytest.raises(ValueError, match="luck has"):
        player.play(world, None, hit, None, luck[:, 1:], 1.0)
    with pytest.raises(ValueError, match="positions"):
        player.play(world, None, hit.repeat(1, 2), None, luck, 1.0)
    with pytest.raises(ValueError, match="out of range"):
        player.step(torch.zeros(2, 2, 2, 4, 2, 8, 16), 0, asked=torch.tensor([0, 9]))


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_numbers_drawn_ahead_are_those_of_the_steps(kind):
    for before, ahead in [(0, 10), (3, 10), (3, 100), (64, 70), (70, 500), (1, 63)]:
        one, other = (Rng(0).streams([3, 5, 2**41 + 1]) for _ in range(2))
        expected = [getattr(one, kind)() for _ in range(before + ahead + 70)]
        found = [getattr(other, kind)() for _ in range(before)]
        found += list(other.ahead(kind, ahead).T[..., None])
        found += [getattr(other, kind)() for _ in range(70)]
        assert torch.equal(torch.stack(expected), torch.stack(found))
        expected = [getattr(one, kind)(3) for _ in range(before + ahead + 70)]
        found = [getattr(other, kind)(3) for _ in range(before)]
        found += list(other.ahead(kind, ahead, 3).transpose(0, 1))
        found += [getattr(other, kind)(3) for _ in range(70)]
        assert torch.equal(torch.stack(expected), torch.stack(found))
