"""Bandits of many kinds, and a model of these that acts in any bandit."""

import pytest
import torch

from mithridate.agents.any_size import AnySizeAgent
from mithridate.agents.in_context import load
from mithridate.envs import make_env
from mithridate.envs.many_bandits import ABSENT
from mithridate.errors import UserError
from mithridate.registry import AGENTS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.scores import total_scores
from mithridate.settings import resolve
from mithridate.stage_config import PretrainConfig
from mithridate.training.pretrain import pretrain
from mithridate.types import Contexts, Poison


@pytest.fixture(scope="module")
def env():
    return make_env("many_bandits")


def test_tasks_have_two_to_twenty_arms_with_labels_and_noise_at_random(env):
    tasks = env.sample_tasks(4000, Rng(0))
    count = tasks.there.sum(1)
    assert count.min() == 2 and count.max() == 20
    shares = torch.bincount(count, minlength=21)[2:] / 4000
    assert (shares - 1 / 19).abs().max() < 0.02
    assert (tasks.there.float().mean(0) - 11 / 20).abs().max() < 0.05, "all labels alike"
    assert ((tasks.means == ABSENT) == ~tasks.there).all()
    assert tasks.means[tasks.there].min() >= 0
    assert tasks.noise.unique().tolist() == pytest.approx([0.1, 0.2, 0.3, 0.5])


def test_a_label_without_an_arm_pays_the_same_always_and_others_have_their_noise(env):
    tasks = env.sample_tasks(500, Rng(0))
    noise = torch.ones(500, 1)
    best = env.optimal_action(tasks, None)
    _, paid = env.step(tasks, None, best, noise)
    torch.testing.assert_close(paid, tasks.means.amax(1) + tasks.noise)
    rows = ~tasks.there.all(1)
    absent = tasks.there.int().argmin(1)
    assert (env.step(tasks, None, absent, noise)[1][rows] == ABSENT).all()


@pytest.mark.parametrize("eps", [0.0, 0.4])
def test_contexts_show_first_which_labels_have_no_arm(env, eps):
    tasks = env.sample_tasks(300, Rng(0))
    poison = Poison(torch.full((300,), eps), torch.full((300,), 3.0), 0.0, Rng(2))
    contexts = env.sample_contexts(tasks, 80, Rng(1), poison)
    clean = env.sample_contexts(tasks, 80, Rng(1))
    there = tasks.there.gather(1, contexts.actions)
    for row in range(300):
        shown = int((~tasks.there[row]).sum())
        assert not there[row, :shown].any() and there[row, shown:].all()
        assert contexts.actions[row, :shown].unique().numel() == shown
    assert (contexts.rewards[~there] == ABSENT).all(), "who is shown them is not lied to"
    assert tasks.there.gather(1, contexts.labels).all()
    assert torch.equal(contexts.labels[:, 0], tasks.means.argmax(1))
    changed = (contexts.rewards != clean.rewards)[there].float().mean()
    assert eps / 2 <= changed <= eps + 0.02, "some attacks leave some arms alone"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small one, that has learned two to four arms with little noise."""
    sets = ("env.arms=4", "env.horizon=44", "env.noises=[0.1]", "steps=400")
    config = resolve(PretrainConfig, "pretrain", "many_bandits", "smoke", sets)
    return pretrain(config, tmp_path_factory.mktemp("many") / "run", [])


def test_it_is_told_of_labels_and_answers_for_arms(model):
    agent = load(str(model))
    assert isinstance(agent, AnySizeAgent)
    env = make_env("bandit", arms=3, horizon=20)
    agent.reset(env.spec, 2, Rng(0).streams([0, 1]))
    labels = agent._labels
    history = [(torch.tensor([0, 2]), torch.tensor([0.3, 0.9]))]
    first = agent.logits()
    for actions, rewards in history:
        agent.observe(None, actions, rewards, None)
    second = agent.logits()
    for task in range(2):
        absent = set(range(4)) - set(labels[task].tolist())
        actions = [*absent, labels[task, history[0][0][task]].item()]
        rewards = [ABSENT, history[0][1][task].item()]
        seen = Contexts(
            torch.tensor([actions]), torch.tensor([rewards]), torch.zeros(1, 3, dtype=torch.int64)
        )
        with torch.no_grad():
            expected = agent.model(seen)[0]  # (T + 1, A)
        torch.testing.assert_close(first[task], expected[1, labels[task]], atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(second[task], expected[2, labels[task]], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("arms", [2, 3, 4])
def test_one_model_learns_in_bandits_of_several_sizes(model, arms):
    env = make_env("bandit", arms=arms, horizon=40, noise_std=0.1)
    tasks = env.sample_tasks(300, Rng(5))
    ours = total_scores(env, tasks, load(str(model)), rng=Rng(6)).mean()
    chance = total_scores(env, tasks, AGENTS.create("uniform"), rng=Rng(6)).mean()
    assert ours < 0.5 * chance


def test_at_home_it_acts_as_any_model(model):
    env = make_env("many_bandits", arms=4, horizon=44, noises=[0.1])
    trajectory = rollout(env, env.sample_tasks(5, Rng(0)), load(str(model)), rng=Rng(1))
    assert trajectory.actions.max() <= 3


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("bandit", {"arms": 1}, "trained for 2 to 4 arms; the environment has 1"),
        ("bandit", {"arms": 5}, "trained for 2 to 4 arms; the environment has 5"),
        ("bandit", {"arms": 3, "horizon": 44}, "with 3 arms this model holds 43 transitions"),
        ("linear_bandit", {}, "'linear_bandit' is none"),
        ("darkroom2", {}, "'darkroom2' is none"),
    ],
)
def test_where_it_does_not_fit_it_says_so(model, name, settings, message):
    env = make_env(name, **settings)
    with pytest.raises(UserError, match=message):
        load(str(model)).reset(env.spec, 1, Rng(0).streams([0]))


def test_more_of_the_fewest_arms_than_of_the_most_are_refused():
    with pytest.raises(UserError, match="fewest 5 exceeds arms 4: lower it"):
        make_env("many_bandits", arms=4, fewest=5)
