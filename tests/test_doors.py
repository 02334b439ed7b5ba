"""What others' code hands us is looked at before it is let in: rewards, actions, observations, and
whatever agents of the users' own do instead of acting."""

import json
import math
import sys

import numpy as np
import pytest
import torch

import mithridate as mi
from mithridate.agents.single_task import as_agent
from mithridate.errors import UserError

NO_REWARDS = [math.nan, math.inf, -math.inf, 1e39, 2e6, None, "1", b"1", [1.0], {}, 10**400]
NO_ACTIONS = [-1, 5, 2.5, math.nan, math.inf, "1", None, True, 10**30, [1], np.float64(0.5)]


@pytest.fixture
def twins():
    """Two agents with the same past."""
    env = mi.make_env("bandit")
    pair = [mi.Solo(mi.load("at-dpt-bandit-s0"), env.spec) for _ in range(2)]
    for t in range(10):
        arms = {solo.act() for solo in pair}
        for solo in pair:
            solo.observe(min(arms), 0.1 * t)
    return pair


def future(solo):
    arms = []
    for _ in range(10):
        arms.append(solo.act())
        solo.observe(arms[-1], 0.5)
    return arms


@pytest.mark.parametrize("reward", NO_REWARDS, ids=repr)
def test_what_is_no_reward_leaves_an_agent_unharmed(twins, reward):
    solo, other = twins
    with pytest.raises(UserError, match="reward: it must be a number within") as error:
        solo.observe(0, reward)
    assert "\n" not in str(error.value)
    assert future(solo) == future(other)


@pytest.mark.parametrize("action", NO_ACTIONS, ids=repr)
def test_what_is_no_action_leaves_an_agent_unharmed(twins, action):
    solo, other = twins
    with pytest.raises(UserError, match=r"action: it must be a whole number in 0…4, not "):
        solo.observe(action, 0.5)
    assert future(solo) == future(other)


def test_numbers_of_all_kinds_are_welcome(twins):
    solo, other = twins
    same = ((np.int64(1), np.float32(0.5)), (torch.tensor(1), torch.tensor(0.5)), (1.0, 0.5))
    for action, reward in same:
        solo.observe(action, reward)
        other.observe(1, 0.5)
    assert future(solo) == future(other)


def test_observations_of_another_environment():
    room = mi.make_env("darkroom2")
    solo, other = (mi.Solo(mi.load("dpt-darkroom2-s0"), room.spec) for _ in range(2))
    assert solo.act(0) == other.act(0)
    for bad in (None, 25, -1, 1.5, "corner", math.nan):
        with pytest.raises(UserError, match=r"obs: it must be a whole number in 0…24"):
            solo.act(bad)
        with pytest.raises(UserError, match="next_obs: it must be"):
            solo.observe(1, 0.0, 0, bad)
    for one in (solo, other):
        one.observe(1, 0.0, 0, 5)
    assert [solo.act(5), solo.act(7)] == [other.act(5), other.act(7)]
    bandit = mi.Solo(mi.make_agent("ts")[1], mi.make_env("bandit").spec)
    with pytest.raises(UserError, match="bandit has nothing to observe"):
        bandit.act(3)


class Plain:
    def reset(self):
        pass

    def act(self, obs):
        return 0

    def observe(self, obs, action, reward, next_obs):
        pass


@pytest.mark.parametrize("action", NO_ACTIONS, ids=repr)
def test_a_plain_agent_that_returns_no_action(action):
    class Bad(Plain):
        def act(self, obs):
            return action

    with pytest.raises(UserError, match=r"agent Bad: act\(\) must return a whole number in 0…4"):
        mi.evaluate("bandit", [Bad], tasks=2, threads=1)


def test_a_plain_agent_may_ask_how_many_arms_there_are():
    class Counts(Plain):
        def reset(self, n_actions):
            self.n = n_actions

        def act(self, obs):
            return self.n - 1

    env = mi.make_env("bandit", arms=3, horizon=5)
    assert mi.evaluate(env, [Counts], tasks=2, threads=1).records

    class Odd(Plain):
        def reset(self, a, b):
            pass

    with pytest.raises(UserError, match=r"agent Odd: reset\(\) must take nothing, the number of"):
        as_agent(Odd)


def raises(error):
    def method(self, *arguments):
        raise error

    return method


@pytest.mark.parametrize("method", ["__init__", "reset", "act", "observe", "__deepcopy__"])
@pytest.mark.parametrize("error", [ValueError("no\nsuch arm"), SystemExit(3), KeyError("x")])
def test_an_agent_that_fails_is_named_with_its_line(method, error):
    failing = type("Failing", (Plain,), {method: raises(error), "__module__": __name__})
    with pytest.raises(UserError) as found:
        mi.evaluate("bandit", [failing], tasks=2, threads=1)
    text = str(found.value)
    assert "Failing" in text and type(error).__name__ in text and "\n" not in text
    assert "test_doors.py, line" in text
    assert found.value.__cause__ is error, "the traceback is there for who wants it"


def test_our_own_faults_are_not_blamed_on_users(monkeypatch):
    monkeypatch.setattr("mithridate.rollout.MOST_EPISODES", None)
    with pytest.raises(TypeError):
        mi.evaluate("bandit", [Plain], tasks=2, threads=1)


MODULES = {
    "raises": ("raise RuntimeError('at home')", "RuntimeError: at home (users.py, line 1)"),
    "exits": ("import sys; sys.exit(5)", "SystemExit: 5 (users.py, line 1)"),
    "no Python": ("class Agent(:", "users.py, line 1"),
    "imports nothing": ("import no_such_module", "no_such_module"),
    "is no class": ("Agent = 3", "agent int has no method 'reset'"),
}


@pytest.mark.parametrize(("text", "message"), MODULES.values(), ids=MODULES)
def test_users_modules_on_the_command_line(command, tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "users", raising=False)
    (tmp_path / "users.py").write_text(text + "\n")
    code, stdout, stderr = command("evaluate", "bandit", "--agents", "users:Agent")
    assert (code, stdout) == (2, "")
    assert message in stderr and stderr.count("\n") == 1 and stderr.startswith("error: ")


def test_prints_do_not_enter_the_document(cli, tmp_path):
    (tmp_path / "loud.py").write_text(
        "print('hello from the module')\n"
        "class Agent:\n"
        "    def reset(self): print('reset')\n"
        "    def act(self, obs): print('act'); return 0\n"
        "    def observe(self, *a): pass\n"
    )
    code, stdout, stderr = cli(
        "evaluate", "bandit", "--agents", "loud:Agent", "--preset", "smoke", "--json", cwd=tmp_path
    )
    assert code == 0
    assert json.loads(stdout)["records"]
    assert "hello from the module" in stderr and "act" in stderr


def test_an_interrupt_in_users_code_is_an_interrupt(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "interrupting.py").write_text("raise KeyboardInterrupt\n")
    code, _, stderr = command("evaluate", "bandit", "--agents", "interrupting:Agent")
    assert (code, stderr) == (130, "error: interrupted\n")


def test_the_public_names_are_listed():
    assert {"evaluate", "load", "Solo", "make_env"} <= set(dir(mi))


def test_names_are_found_whatever_their_case(command):
    code, stdout, _ = command(
        "evaluate", "Bandit", "--agents", "TS,CRUCB(alpha=0.1)", "--attackers", "None,UNIFORM",
        "--preset", "smoke", "--json",
    )  # fmt: skip
    assert code == 0
    records = json.loads(stdout)["records"]
    assert {(r["agent"], r["attacker"], r["environment"]) for r in records} >= {
        ("TS", "uniform", "bandit"), ("CRUCB(alpha=0.1)", "none", "bandit"),
    }  # fmt: skip


def test_hints_are_short(command):
    _, _, stderr = command("evaluate", "bandit", "--agents", "x" * 5000)
    assert len(stderr) < 600
    _, _, stderr = command("evaluate", "bandit", "--agents", "tss")
    assert "did you mean 'ts'?" in stderr and len(stderr) < 600
