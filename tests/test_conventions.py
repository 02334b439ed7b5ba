"""Agents of other bandit libraries: small ones that follow the real signatures."""

from __future__ import annotations

import numpy as np
import pytest

import mithridate as mi
from mithridate.errors import UserError
from mithridate.rng import Rng
from mithridate.rollout import rollout


class FakeMAB:
    """As mabwiser.mab.MAB (2.7): arms may be anything, and a first fit is needed."""

    def __init__(self, arms=None, contextual=False):
        self.arms = arms or ["a", "b", "c", "d", "e"]
        self.is_contextual = contextual
        self._is_initial_fit = False
        self.calls = []

    def fit(self, decisions, rewards, contexts=None):
        self.seen = {arm: [] for arm in self.arms}
        self._is_initial_fit = True
        self.calls.append("fit")
        self._learn(decisions, rewards)

    def partial_fit(self, decisions, rewards, contexts=None):
        assert self._is_initial_fit
        self.calls.append("partial_fit")
        self._learn(decisions, rewards)

    def _learn(self, decisions, rewards):
        for arm, reward in zip(decisions, rewards, strict=True):
            self.seen[arm].append(reward)

    def predict(self, contexts=None):
        assert self._is_initial_fit, "call fit first"
        return max(self.arms, key=lambda arm: np.mean(self.seen[arm]))


class FakeOpenBandit:
    """As obp.policy.BaseContextFreePolicy (0.4): an array of actions, numbers come back."""

    def __init__(self, n_actions=5, len_list=1):
        self.n_actions, self.len_list = n_actions, len_list
        self.action_counts = np.zeros(n_actions)
        self.reward_counts = np.zeros(n_actions)

    def select_action(self) -> np.ndarray:
        if (self.action_counts == 0).any():
            return np.array([int(self.action_counts.argmin())] * self.len_list)
        means = self.reward_counts / self.action_counts
        return means.argsort()[::-1][: self.len_list]

    def update_params(self, action: int, reward: float) -> None:
        self.action_counts[action] += 1
        self.reward_counts[action] += reward


class FakeContextual(FakeOpenBandit):
    def select_action(self, context: np.ndarray) -> np.ndarray:
        return np.array([0])


class FakeSMPy:
    """As SMPyBandits.Policies.BasePolicy (0.9): needs the number of arms."""

    def __init__(self, nbArms, lower=0.0, amplitude=1.0):
        self.nbArms, self.t = nbArms, -1

    def startGame(self):
        self.t = 0
        self.pulls, self.rewards = np.zeros(self.nbArms, int), np.zeros(self.nbArms)

    def getReward(self, arm, reward):
        self.t += 1
        self.pulls[arm] += 1
        self.rewards[arm] += reward

    def choice(self):
        if self.t < self.nbArms:
            return self.t
        return np.argmax(self.rewards / self.pulls)  # a NumPy integer


class Plain:
    """The same algorithm, in our words."""

    def reset(self, n_actions):
        self.sums, self.counts = np.zeros(n_actions), np.zeros(n_actions)

    def act(self, obs):
        if (self.counts == 0).any():
            return int(self.counts.argmin())
        return int((self.sums / self.counts).argmax())

    def observe(self, obs, action, reward, next_obs):
        self.sums[action] += reward
        self.counts[action] += 1


def make_smpy():
    return FakeSMPy(5)


@pytest.fixture(scope="module")
def world():
    env = mi.make_env("bandit", horizon=40)
    return env, env.sample_tasks(6, Rng(3))


def _played(world, agent):
    env, tasks = world
    attacker = mi.ATTACKERS.create("mirror")
    return rollout(env, tasks, mi.make_agent(agent)[1], attacker, 0.4, rng=Rng(4))


@pytest.mark.parametrize(
    "agent", [FakeMAB, FakeMAB(), FakeOpenBandit, FakeOpenBandit(), FakeSMPy(5), make_smpy]
)
def test_every_convention_is_the_same_greedy_agent(world, agent):
    """Same actions, so the poisoned rewards reach each of them, and objects are kept apart."""
    assert (_played(world, agent).actions == _played(world, Plain).actions).all()
    assert (_played(world, agent).actions == _played(world, Plain).actions).all(), "again"


def test_an_instance_is_copied(world):
    mine = FakeMAB()
    _played(world, mine)
    assert mine.calls == []


def test_fit_comes_first_and_once(world):
    made = []

    def make():
        made.append(FakeMAB())
        return made[-1]

    _played(world, make)
    played = [mab.calls for mab in made if mab.calls]
    assert len(played) == 6
    assert all(calls == ["fit"] + ["partial_fit"] * 35 for calls in played)


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (FakeMAB(contextual=True), "needs contexts"),
        (FakeContextual, "needs contexts"),
        (FakeMAB(arms=[0, 1]), "was made for 2 arms, here are 5"),
        (FakeOpenBandit(n_actions=3), "was made for 3 arms, here are 5"),
        (FakeSMPy(7), "was made for 7 arms, here are 5"),
        (FakeOpenBandit(len_list=3), "len_list=1"),
        (FakeSMPy, "write a function that makes one"),
        (lambda arms: FakeSMPy(arms), "takes nothing"),
        (lambda: 3, "has no method 'reset'"),
    ],
)
def test_what_does_not_fit_is_one_line(world, agent, said):
    with pytest.raises(UserError, match=said) as error:
        _played(world, agent)
    assert "\n" not in str(error.value)


def test_a_prediction_that_is_no_arm(world):
    class Lost(FakeMAB):
        def predict(self, contexts=None):
            return "z"

    with pytest.raises(UserError, match="none of its arms"):
        _played(world, Lost)


def test_who_raises_is_blamed(world):
    class Broken(FakeOpenBandit):
        def update_params(self, action, reward):
            raise KeyError("oh")

    with pytest.raises(UserError, match=r"Broken.update_params\(\) \(test_conventions.py, line"):
        _played(world, Broken)


def test_evaluate_and_stress_take_them(tmp_path, monkeypatch):
    result = mi.evaluate("bandit", {"mab": FakeMAB, "smpy": make_smpy}, tasks=4)
    assert result.cell("mab", "none") == result.cell("smpy", "none")
    test = mi.stress_test(make_smpy, suite="smoke")
    assert test.entry.agent == "make_smpy" and test.worst_case[0] > test.entry.clean
