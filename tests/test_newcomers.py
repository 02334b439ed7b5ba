"""Slips of the pen in a first environment, agent, attacker or kind are one line that names them."""

from dataclasses import replace

import pytest
import torch
from ring import Ring, RingConfig

from mithridate import KINDS, Kind
from mithridate.attackers import make_attacker
from mithridate.attackers.structured_arms import StructuredConfig
from mithridate.config import Config
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.evaluation.crossplay import evaluate
from mithridate.registry import AGENTS, ATTACKERS, ENVS, Registry
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.scores import step_scores
from mithridate.settings import resolve
from mithridate.stage_config import PretrainConfig
from mithridate.training.pretrain import Pretraining


@pytest.fixture
def registered(monkeypatch):
    """Classes that are registered here, and nowhere else."""
    for registry in (ENVS, AGENTS, ATTACKERS, KINDS):
        registry.names()
        monkeypatch.setattr(registry, "_classes", dict(registry._classes))


def without(cls, old, new=None):
    """The class with a member missing, or under another name."""
    members = {n: v for n, v in vars(cls).items() if n not in (old, "__dict__", "__weakref__")}
    if new is not None:
        members[new] = vars(cls)[old]
    return type(cls.__name__, (), members)


@pytest.mark.parametrize(
    ("name", "new", "message"),
    [
        ("budget", None, "environment class Ring has no 'budget'"),
        ("presets", None, "has no 'presets'"),
        ("optimal_action", "optimal_actions", "did you mean 'optimal_action' by 'optimal_actions'"),
        ("sample_contexts", "sample_context", "did you mean 'sample_contexts'"),
    ],
)
def test_an_environment_that_lacks_something(registered, name, new, message):
    with pytest.raises(UserError, match=message):
        ENVS.register("another")(without(Ring, name, new))


def test_agents_and_attackers_that_lack_something(registered):
    oracle, swap = AGENTS.get("oracle"), ATTACKERS.get("mirror")
    with pytest.raises(UserError, match="did you mean 'observe' by 'observes'"):
        AGENTS.register("mine")(without(oracle, "observe", "observes"))

    class Poisoner:
        Config = swap.Config
        reset = swap.reset
        cost = swap.cost

        def poision(self, step): ...

    with pytest.raises(UserError, match="did you mean 'poison' by 'poision'"):
        ATTACKERS.register("mine")(Poisoner)


def test_kinds_that_are_misspelt():
    with pytest.raises(UserError, match="did you mean 'rounds' by 'rouds'"):
        type("Patient", (Kind,), {"rouds": lambda self, config: 3})
    with pytest.raises(UserError, match="did you mean 'phrase' by 'phraze'"):
        type("Patient", (Kind,), {"phraze": "patient"})
    with pytest.raises(UserError, match="'order' must be a whole number"):
        type("Patient", (Kind,), {"order": "35"})
    with pytest.raises(UserError, match="attack kind class Patient has no 'trained'"):
        Registry("attack kind", "mithridate", ("trained",)).register("x")(type("Patient", (), {}))


def test_attackers_keep_to_the_budget(registered):
    @ATTACKERS.register("spender")
    class Spender(ATTACKERS.get("swap")):
        Config = StructuredConfig

        def choose(self, spec, tasks, rng):
            offsets, spreads = super().choose(spec, tasks, rng)
            return 2 * offsets, spreads

    with pytest.raises(UserError, match="'spender' spent 6 of a budget of 3"):
        evaluate("bandit", ["ts"], preset="smoke", attackers=("spender",))

    class Nothing(Config):
        pass

    ATTACKERS.register("free")(type("Free", (Spender,), {"Config": Nothing}))
    with pytest.raises(UserError, match="attacker 'free': its Config needs a field 'budget'"):
        make_attacker("free", 3.0)


@pytest.mark.parametrize(
    ("method", "wrong", "message"),
    [
        ("optimal_action", lambda x: x.float(), r"optimal_action\(\) must return an int64 tensor"),
        ("action_values", lambda x: x.T, r"action_values\(\) must return .* shape \(4, 5\)"),
        (
            "score",
            lambda x: x.sum(1),
            r"score\(\) must return a tensor of floats of shape \(4, 20\)",
        ),
    ],
)
def test_environments_that_answer_in_another_form(method, wrong, message, monkeypatch):
    env = make_env("bandit", horizon=20)
    tasks, right = env.sample_tasks(4, Rng(0)), getattr(env, method)
    monkeypatch.setattr(env, method, lambda *words: wrong(right(*words)))
    agent = AGENTS.create("uniform")

    def go():
        rollout(env, tasks, agent, rng=Rng(0), record_values=True)
        step_scores(env, tasks, agent, rng=Rng(0))

    with pytest.raises(UserError, match=message):
        go()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": lambda c: c.labels[:, :-1]}, "labels as torch.int64 of shape"),
        ({"rewards": lambda c: c.rewards.double()}, "rewards as torch.float32"),
        ({"actions": lambda c: c.actions + 99}, r"actions in 0…\d"),
    ],
)
def test_contexts_of_another_form(change, message, monkeypatch):
    training = Pretraining(resolve(PretrainConfig, "pretrain", "bandit", "smoke"))
    right = training.env.sample_contexts

    def wrong(*words):
        contexts = right(*words)
        return replace(contexts, **{name: value(contexts) for name, value in change.items()})

    monkeypatch.setattr(training.env, "sample_contexts", wrong)
    with pytest.raises(UserError, match=message):
        training.step(0)


def test_the_ring_is_sound(registered):
    """The model that is recommended to newcomers can be registered as it is."""
    ENVS.register("ring")(Ring)
    assert torch.equal(make_env("ring").sample_tasks(3, Rng(0)).ids, torch.arange(3))
    assert Ring.Config is RingConfig
