import pytest
import torch

from mithridate.agents.single_task import Solo, as_agent
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.registry import AGENTS
from mithridate.rng import Rng
from mithridate.rollout import rollout


class Shout:
    """An attacker whose proposals cannot be mistaken for true rewards."""

    def reset(self, spec, tasks, rng):
        self.seen = []

    def poison(self, step):
        self.seen.append(step)
        return torch.full_like(step.true_rewards, 1e6)

    def cost(self):
        return torch.zeros(1)


class Listen:
    """An agent that notes what it observes."""

    def reset(self, spec, batch, rng):
        self.rewards, self.batch, self.n = [], batch, spec.n_actions
        self.episodes = []

    def act(self, obs):
        return torch.full((self.batch,), len(self.rewards) % self.n)

    def observe(self, obs, actions, rewards, next_obs):
        self.rewards.append(rewards)


@pytest.fixture
def env():
    return make_env("bandit", horizon=200)


def test_true_and_observed_rewards_are_never_mixed(env):
    tasks = env.sample_tasks(50, Rng(0))
    agent, attacker = Listen(), Shout()
    attacked = rollout(env, tasks, agent, attacker, 0.4, rng=Rng(1))
    clean = rollout(env, tasks, Listen(), rng=Rng(1))
    heard = torch.stack(agent.rewards, 1)
    # The agent hears exactly the observed rewards: the shout where poisoned, else the truth.
    assert torch.equal(heard, attacked.observed_rewards)
    assert (heard[attacked.poisoned] == 1e6).all()
    assert torch.equal(heard[~attacked.poisoned], attacked.true_rewards[~attacked.poisoned])
    # The attacker sees, and the metric uses, only the truth.
    seen = torch.stack([step.true_rewards for step in attacker.seen], 1)
    assert torch.equal(seen, attacked.true_rewards)
    assert torch.equal(attacked.true_rewards, clean.true_rewards)
    assert torch.equal(env.score(tasks, attacked), env.score(tasks, clean))


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.4, 1.0])
def test_contamination_rate(env, eps):
    tasks = env.sample_tasks(100, Rng(0))
    poisoned = rollout(env, tasks, Listen(), Shout(), eps, rng=Rng(1)).poisoned.float()
    sd = (eps * (1 - eps) / poisoned.numel()) ** 0.5
    assert abs(poisoned.mean() - eps) <= 4 * sd


def test_learning_episodes_are_lived_but_not_recorded(env):
    class Learner(Listen):
        learning_episodes = 3

        def begin_episode(self):
            self.episodes.append("begin")

        def end_episode(self):
            self.episodes.append("end")

    agent = Learner()
    tasks = env.sample_tasks(2, Rng(0))
    trajectory = rollout(env, tasks, agent, rng=Rng(1))
    assert trajectory.actions.shape == (2, 200)
    assert len(agent.rewards) == 4 * 200
    assert agent.episodes == ["begin", "end"] * 4
    assert torch.equal(torch.stack(agent.rewards[600:], 1), trajectory.observed_rewards)
    every = rollout(env, tasks, agent, rng=Rng(1), record_learning=True)
    assert every.actions.shape == (2, 800)
    assert torch.equal(every.observed_rewards[:, 600:], trajectory.observed_rewards)


def test_a_capability_is_had_whole_or_not_at_all(env):
    class Misspelt(Listen):
        def begin_episode(self):
            pass

        def ends_episode(self):
            pass

    with pytest.raises(UserError, match="Misspelt has 'begin_episode' but no 'end_episode'"):
        rollout(env, env.sample_tasks(2, Rng(0)), Misspelt(), rng=Rng(1))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (torch.zeros(4), "int64"),
        (torch.zeros(3, dtype=torch.int64), r"shape \(4,\)"),
        (torch.full((4,), 5), "0…4, not 5"),
        (torch.full((4,), -1), "0…4, not -1"),
        ([0, 0, 0, 0], "not list"),
    ],
)
def test_wrong_actions_are_named(env, answer, message):
    agent = Listen()
    agent.act = lambda obs: answer
    with pytest.raises(UserError, match=message):
        rollout(env, env.sample_tasks(4, Rng(0)), agent, rng=Rng(0))


def test_a_plain_single_task_agent_is_adapted(env):
    class FollowTheLeader:
        def reset(self):
            self.sums, self.counts = [0.0] * 5, [0] * 5

        def act(self, obs):
            for arm in range(5):
                if not self.counts[arm]:
                    return arm
            return max(range(5), key=lambda a: self.sums[a] / self.counts[a])

        def observe(self, obs, action, reward, next_obs):
            self.sums[action] += reward
            self.counts[action] += 1

    tasks = env.sample_tasks(40, Rng(0))
    scores = [
        env.score(tasks, rollout(env, tasks, agent, rng=Rng(1))).sum(1).mean()
        for agent in (
            as_agent(FollowTheLeader),
            as_agent(FollowTheLeader()),
            AGENTS.create("uniform"),
        )
    ]
    assert scores[0] == scores[1]
    assert scores[0] < scores[2] / 2


def test_solo_equals_a_batch_of_one(env):
    """Our agent in a user's own loop."""
    solo = Solo(AGENTS.create("ts"), env.spec, seed=3)
    agent = AGENTS.create("ts")
    agent.reset(env.spec, 1, Rng(3).child("solo").streams([0]))
    for t in range(50):
        action = solo.act()
        assert action == agent.act(None).item()
        solo.observe(action, 0.1 * (t % 7))
        agent.observe(None, torch.tensor([action]), torch.tensor([0.1 * (t % 7)]), None)


def test_things_that_are_not_agents_are_named():
    with pytest.raises(UserError, match="no method 'observe'"):
        as_agent(type("Half", (), {"reset": lambda self: None, "act": lambda self, obs: 0}))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (torch.zeros(4), "int64 tensor of shape"),
        (torch.zeros(4, 1, dtype=torch.int64), "int64 tensor of shape"),
        (torch.full((4,), 9), "keys in 0…8"),
        (torch.full((4,), -1), "keys in 0…8"),
    ],
)
def test_wrong_keys_are_named(keys, message):
    env = make_env("darkroom2", size=3, horizon=5)
    env.attack_key = lambda tasks, state: keys
    with pytest.raises(UserError, match=f"attack_key.. must return .*{message}"):
        rollout(env, env.sample_tasks(4, Rng(0)), AGENTS.create("uniform"), rng=Rng(0))


def test_an_environment_with_one_key_is_not_asked_for_it(env, monkeypatch):
    monkeypatch.setattr(type(env), "attack_key", lambda *a: pytest.fail("asked"))
    lived = rollout(env, env.sample_tasks(4, Rng(0)), Listen(), Shout(), 0.5, rng=Rng(0))
    assert lived.keys.shape == (4, 200) and not lived.keys.any()
