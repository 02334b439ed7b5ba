"""Teachers, whose choices are labels, and models that are made wider."""

from dataclasses import replace

import pytest
import torch

from mithridate.agents.in_context import load
from mithridate.agents.named import make_agent
from mithridate.envs import env_of, make_env
from mithridate.errors import UserError
from mithridate.model.layouts import make_model
from mithridate.model.widen import widened
from mithridate.registry import AGENTS, ATTACKERS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.settings import resolve
from mithridate.stage_config import AdversarialConfig, PretrainConfig
from mithridate.training.adversarial import AdversarialTraining, train_adversarially
from mithridate.training.run_directory import read_log
from mithridate.training.teaching import Teacher


def smoke(model, *sets) -> AdversarialConfig:
    sets = ("synthetic.rounds=0", "compare_every=0", *sets)
    return resolve(AdversarialConfig, "train", "bandit", "smoke", sets, start=str(model), threads=1)


class Counting:
    """What it would do after h steps is h modulo the number of arms; it keeps what it is told."""

    def reset(self, spec, batch, rng):
        self.arms, self.seen, self.rng = spec.n_actions, [], rng

    def act(self, obs):
        return torch.full((len(self.rng),), len(self.seen) % self.arms)

    def observe(self, obs, actions, rewards, next_obs):
        self.seen.append((obs, actions.clone(), rewards.clone(), next_obs))


def test_a_teacher_sees_what_the_model_saw_and_is_asked_after_every_prefix(smoke_model):
    config = smoke(smoke_model)
    env = env_of(config.env)
    contexts = env.sample_contexts(env.sample_tasks(6, Rng(0)), 7, Rng(1))
    counting = Counting()
    teacher = Teacher(config, "ts")
    teacher.agent = lambda eps: counting
    eps = torch.full((6,), 0.4)
    taught = teacher.teach(contexts, eps, env, torch.arange(6), Rng(2))
    assert taught.labels.tolist() == 6 * [[h % 3 for h in range(8)]]
    assert torch.equal(taught.rewards, contexts.rewards)
    for t, (obs, actions, rewards, _) in enumerate(counting.seen):
        assert obs is None
        assert torch.equal(actions, contexts.actions[:, t])
        assert torch.equal(rewards, contexts.rewards[:, t])
    assert not torch.equal(contexts.labels, taught.labels), "the given contexts are as they were"


def test_a_teacher_is_told_how_much_is_poisoned_and_where_it_is():
    model = "at-dpt-v1-darkroom2-s0"
    config = resolve(AdversarialConfig, "train", "darkroom2", "smoke", start=model, threads=1)
    env = env_of(config.env)
    contexts = env.sample_contexts(env.sample_tasks(5, Rng(0)), 4, Rng(1))
    made, told = [], []
    teacher = Teacher(config, "uniform")

    def agent(eps):
        told.append(eps)
        made.append(Counting())
        return made[-1]

    teacher.agent = agent
    eps = torch.tensor([0.4, 0.1, 0.4, 0.1, 0.4])
    taught = teacher.teach(contexts, eps, env, torch.arange(5), Rng(2))
    assert told == [0.1, 0.4]
    assert torch.equal(taught.labels[0], torch.arange(5) % 5)
    for agent, rows in zip(made, ([1, 3], [0, 2, 4]), strict=True):
        for t, (obs, actions, _, next_obs) in enumerate(agent.seen):
            assert torch.equal(obs, contexts.states[rows, t])
            assert torch.equal(actions, contexts.actions[rows, t])
            assert torch.equal(next_obs, contexts.next_states[rows, t])


def test_its_labels_are_drawn_from_its_posterior():
    """What Bayes' rule says after each prefix, in the mean over many labels of one context."""
    env = make_env("bandit", horizon=12)
    config = resolve(
        AdversarialConfig, "train", "bandit", "smoke", ["env.horizon=12", "env.arms=5"],
        start="dpt-bandit-s0", threads=1,
    )  # fmt: skip
    tasks = env.sample_tasks(1, Rng(0)).repeat(3000)
    attack = ATTACKERS.create("mirror", budget=3.0)
    lived = rollout(env, tasks.select(slice(0, 1)), AGENTS.create("ts"), attack, 0.4, rng=Rng(1))
    one = lived.contexts()
    many = replace(
        one, actions=one.actions.repeat(3000, 1), rewards=one.rewards.repeat(3000, 1),
        labels=one.labels.repeat(3000, 1),
    )  # fmt: skip
    teacher = Teacher(config, "mixture_ts(temperature=1)")
    taught = teacher.teach(many, torch.full((3000,), 0.4), env, tasks.luck, Rng(2))
    bayes = make_agent("mixture_ts(eps=0.4)")[1]
    bayes.reset(env.spec, 1, Rng(3).streams([0]))
    for t in range(13):
        share = torch.bincount(taught.labels[:, t], minlength=5) / 3000
        expected = bayes.best()[0]
        error = (expected * (1 - expected) / 3000).sqrt()
        assert ((share - expected).abs() < 4 * error + 1e-3).all()
        if t < 12:
            bayes.observe(None, one.actions[:, t], one.rewards[:, t], None)


TAUGHT = (
    "teacher=mixture_ts(temperature=1)", "widen=2", "relabel=true", "rounds=3", "iterations=4",
)  # fmt: skip


def test_a_taught_game_is_resumed_bit_by_bit(smoke_model):
    config = smoke(smoke_model, *TAUGHT)
    whole, first = AdversarialTraining(config), AdversarialTraining(config)
    for step in range(2):
        whole.step(step)
        first.step(step)
    assert not (first.memory[0].labels == first.memory[0].labels[:, :1]).all()
    second = AdversarialTraining(config)
    second.load_tensors({name: t.clone() for name, t in first.tensors().items()})
    for trainee in (whole, second):
        trainee.step(2)
    mine, yours = whole.tensors(), second.tensors()
    assert mine.keys() == yours.keys()
    assert all(torch.equal(tensor, yours[name]) for name, tensor in mine.items())


def test_a_taught_and_widened_model_is_saved_and_loaded(smoke_model, tmp_path):
    config = smoke(smoke_model, *TAUGHT)
    path = train_adversarially(config, tmp_path / "run", [])
    model = load(path).model
    assert model.config.width == 2 * load(smoke_model).model.config.width
    assert any("clean_mean" in line for line in read_log(tmp_path / "run" / "log.jsonl"))


def test_renumbered_contexts_say_the_same():
    """Rewards stay with the arms that paid them, and labels with the arms that are best."""
    env = make_env("bandit")
    tasks = env.sample_tasks(400, Rng(0))
    contexts = env.sample_contexts(tasks, 30, Rng(1))
    contexts = replace(contexts, values=tasks.means[:, None])
    new = contexts.renumbered(5, Rng(2).generator())
    assert torch.equal(new.rewards, contexts.rewards)
    for old, worth in ((contexts.actions, tasks.means), (contexts.labels, tasks.means)):
        now = new.actions if old is contexts.actions else new.labels
        assert torch.equal(new.values[:, 0].gather(1, now), worth.gather(1, old))
    counts = torch.bincount(new.labels[:, 0], minlength=5)
    assert (counts > 50).all()
    moved = (new.actions != contexts.actions).any(1).float().mean()
    assert moved > 0.9


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (("teacher=nobody",), "nobody"),
        (("teacher=posterior_oracle",), "knows what a model cannot"),
        (("teacher=ts", "suboptimal=0.1"), "labels come from the one or the other"),
        (("widen=0",), "widen"),
        (("widen=9",), "widen"),
        (("relabel=1",), "relabel"),
    ],
)
def test_what_cannot_teach_is_refused(smoke_model, sets, message):
    with pytest.raises(UserError, match=message):
        AdversarialTraining(smoke(smoke_model, *sets))


def test_a_changed_teacher_is_found(smoke_model):
    config = AdversarialTraining(smoke(smoke_model, "teacher=ts")).config
    assert config.teacher_sha256 is not None or config.teacher == "ts"
    with pytest.raises(UserError, match="teacher 'ts' has changed"):
        AdversarialTraining(config.model_copy(update={"teacher_sha256": "0" * 64}))


@pytest.mark.parametrize("name", ["bandit", "linear_bandit", "darkroom2"])
def test_a_wider_model_computes_the_same_and_learns_apart(name):
    env = env_of(resolve(PretrainConfig, "pretrain", name, "smoke").env)
    config = resolve(PretrainConfig, "pretrain", name, "smoke").model
    model = make_model(config, env.spec)
    model.initialise(Rng(0).torch_generator())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=Rng(1).torch_generator())
    wide = widened(model, 3, env.spec, Rng(2).torch_generator())
    assert wide.config.width == 3 * config.width and wide.config.heads == 3 * config.heads
    contexts = env.sample_contexts(env.sample_tasks(8, Rng(3)), 10, Rng(4))
    contexts = replace(contexts, values=None)
    before, after = model.loss(contexts), wide.loss(contexts)
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)
    after.backward()
    grown = wide.transformer.blocks[0].up.weight.grad
    parts = grown.view(3, 4 * config.width, 3, config.width)
    assert (parts[0] - parts[1]).abs().max() > 1e-6, "copies have gradients of their own"


def test_images_are_not_widened():
    env = make_env("bandit")
    model = make_model(resolve(PretrainConfig, "pretrain", "bandit", "smoke").model, env.spec)
    spec = replace(env.spec, observation=torch.float32)
    with pytest.raises(UserError, match="cannot be made wider"):
        widened(model, 2, spec, Rng(0).torch_generator())
    assert widened(model, 1, spec, Rng(0).torch_generator()) is model


def test_only_actions_that_are_alike_are_renumbered():
    config = resolve(
        AdversarialConfig, "train", "darkroom2", "laptop", ["relabel=true"],
        start="at-dpt-v1-darkroom2-s0", threads=1,
    )  # fmt: skip
    with pytest.raises(UserError, match="relabel: the actions of 'darkroom2' are not all alike"):
        AdversarialTraining(config)
