"""Stress tests: figures mean what they say, suites are frozen, runs resume, entries are data."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import mithridate as mi
from mithridate.errors import Interrupted, UserError
from mithridate.rng import Rng
from mithridate.stress import measure as measuring
from mithridate.stress import self_test as testing
from mithridate.stress.entry import Entry, entry_text, read_entry, write_entry
from mithridate.stress.flags import stress_flags
from mithridate.stress.measure import Measured
from mithridate.stress.run import stress_test
from mithridate.stress.suites import (
    _SUITES,
    CLEAN,
    FROZEN,
    Attack,
    Suite,
    find_suite,
    left_out,
    register,
    suite_env,
)
from mithridate.stress.worst import Figure, average, paired, single_worst, worst_case

AGENT = """
import random

class Greedy:
    def reset(self, n_actions):
        self.sums, self.counts = [0.0] * n_actions, [0] * n_actions

    def act(self, obs):
        if 0 in self.counts:
            return self.counts.index(0)
        if random.random() < 0.1:
            return random.randrange(len(self.counts))
        return max(range(len(self.counts)), key=lambda arm: self.sums[arm] / self.counts[arm])

    def observe(self, obs, action, reward, next_obs):
        self.sums[action] += reward
        self.counts[action] += 1
"""


class Stubborn:
    """Whatever it is paid."""

    def reset(self):
        self.step = 0

    def act(self, obs):
        self.step += 1
        return self.step % 5

    def observe(self, obs, action, reward, next_obs):
        pass


class Leader(Stubborn):
    """The arm with the largest sum so far."""

    def reset(self, n_actions):
        self.sums = [0.0] * n_actions

    def act(self, obs):
        return self.sums.index(max(self.sums))

    def observe(self, obs, action, reward, next_obs):
        self.sums[action] += reward


class Unseeded(Leader):
    """Has luck of its own."""

    def act(self, obs):
        return int.from_bytes(os.urandom(2), "big") % 5


class Dice(Leader):
    """Draws from everybody's generators."""

    def act(self, obs):
        if random.random() < 0.3:
            return random.randrange(5)
        if np.random.rand() < 0.3:  # noqa: NPY002
            return int(np.random.randint(5))  # noqa: NPY002
        return int(torch.randint(5, (1,))) if torch.rand(1) < 0.3 else super().act(obs)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Runs have their default place in the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A finished test of Thompson sampling."""
    return stress_test("ts", suite="smoke-v0", out=tmp_path_factory.mktemp("smoke") / "run")


# The figures -------------------------------------------------------------------------------------


def _noise(attacks, tasks, means=0.0, seed=0):
    drawn = np.random.default_rng(seed).normal(size=(attacks, 2, tasks)) + means
    return {f"a{i}": row for i, row in enumerate(drawn.tolist())}


@pytest.mark.parametrize("better", ["lower", "higher"])
def test_the_worst_of_equal_noisy_attacks_is_not_worse_than_each(better):
    scores = _noise(12, 4000)
    sign = 1 if better == "lower" else -1
    naive = np.mean((sign * np.array(list(scores.values())).mean(1)).max(0))
    assert naive > 1.0, "the largest of twelve is far above their mean"
    _, case = worst_case(scores, better)
    _, single = single_worst(scores, better)
    assert abs(case.mean) < 2 * case.ci95 and case.ci95 < 0.05
    assert abs(single.mean) < 2 * single.ci95


def test_the_worst_case_is_a_lower_bound_that_finds_what_is_there():
    """Each task has one attack that is clearly worse, and it is another one in each half."""
    means = np.zeros((2, 1, 1000))
    means[0, :, :600], means[1, :, 600:] = 10.0, 10.0
    scores = _noise(2, 1000, means)
    shares, case = worst_case(scores, "lower")
    name, single = single_worst(scores, "lower")
    assert 9.5 < case.mean < 10.0 + 2 * case.ci95
    assert name == "a0" and single.mean == pytest.approx(6.0, abs=0.2)
    assert shares["a0"] == pytest.approx(0.6, abs=0.02)


def test_rewards_are_worst_when_they_are_low():
    scores = {"mild": [[9.0, 9.0], [9.0, 9.0]], "harsh": [[1.0, 2.0], [1.0, 2.0]]}
    assert single_worst(scores, "higher")[0] == "harsh"
    assert worst_case(scores, "higher")[1].by_task == [1.0, 2.0]
    assert worst_case(scores, "lower")[1].by_task == [9.0, 9.0]


def test_agents_are_compared_task_by_task():
    mine, other = Figure.of(torch.tensor([1.0, 20.0])), Figure.of(torch.tensor([2.0, 21.0]))
    assert paired(mine, other) == (-1.0, 0.0)


# The suites --------------------------------------------------------------------------------------


def test_a_version_never_changes():
    """If this fails, make a new version; the old one must stay what it was. (v0 may still change:
    `python scripts/leaderboard.py --digests`, then compute the entries again.)"""
    now = {f"{env}/{name}": suite.sha256() for (env, name), suite in _SUITES.items()}
    assert {name: now.get(name) for name in FROZEN} == FROZEN
    assert now.keys() == FROZEN.keys(), "write the digest of a new suite down"


def test_the_digest_covers_the_attackers_own_settings(monkeypatch):
    from mithridate.attackers.search import SearchConfig

    before = find_suite("standard-v0", "bandit").sha256()
    monkeypatch.setattr(SearchConfig.model_fields["candidates"], "default", 8)
    SearchConfig.model_rebuild(force=True)
    try:
        assert find_suite("standard-v0", "bandit").sha256() != before
    finally:
        monkeypatch.undo()
        SearchConfig.model_rebuild(force=True)
    assert find_suite("standard-v0", "bandit").sha256() == before


@pytest.mark.parametrize("change", ["eps", "tasks", "seed", "attackers", "budget", "repeats"])
def test_no_argument_changes_a_suite(change, command, tmp_path):
    with pytest.raises(TypeError):
        stress_test("ts", suite="smoke-v0", **{change: 1})
    options = ("--out", tmp_path / "run", f"--{change}", "1")
    code, _, stderr = command("stress", "bandit", "--agent", "ts", "--suite", "smoke", *options)
    assert code == 2 and "no such option" in stderr and stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_name_keeps_its_content():
    standard = find_suite("standard-v0", "bandit")
    with pytest.raises(UserError, match="choose another name"):
        register(Suite("standard-v0", "bandit", 3.0, standard.attacks[:2]))
    with pytest.raises(UserError, match="fixed"):
        stress_test("ts", suite=standard)
    with pytest.raises(UserError, match="belongs to a name"):
        stress_test("ts", env=mi.make_env("bandit", arms=2))


def test_a_name_without_a_version_is_the_newest(monkeypatch):
    assert find_suite("quick", "bandit").name == "quick-v0"
    newer = Suite("quick-v11", "bandit", 3.0, ())
    monkeypatch.setitem(_SUITES, ("bandit", "quick-v11"), newer)
    monkeypatch.setitem(_SUITES, ("bandit", "quick-v2"), Suite("quick-v2", "bandit", 3.0, ()))
    assert find_suite("quick", "bandit") is newer


def test_every_attacker_without_learning_is_in_the_standard_suite():
    for env in ("bandit", "linear_bandit", "darkroom2"):
        suite = find_suite("standard-v0", env)
        assert {attack.name for attack in suite.attacks} >= set(suite_env(suite).attacks)
        assert suite.budget == suite_env(suite).budget


def test_what_a_search_begins_with_comes_before_it():
    for env in ("bandit", "linear_bandit"):
        names = [attack.name for attack in find_suite("standard-v0", env).attacks]
        search = next(a for a in find_suite("standard-v0", env).attacks if a.name == "search")
        assert search.after == "steady" and names.index("steady") < names.index("search")


def test_what_quick_leaves_out_is_said():
    said = "; ".join(left_out(find_suite("quick", "bandit")))
    for part in ("learned", "steady", "eps 0.1", "tasks: 40 instead of 200", "rounds of search"):
        assert part in said
    assert left_out(find_suite("standard", "bandit")) == []
    assert left_out(find_suite("plus", "bandit")) == []


# Running -----------------------------------------------------------------------------------------


def test_a_test_of_thompson_sampling(smoke):
    entry = smoke.entry
    assert [(a.name, a.eps) for a in entry.attacks] == [
        ("none", 0.0), ("uniform", 0.4), ("mirror", 0.4), ("search", 0.4)
    ]  # fmt: skip
    name, single, _ = smoke.worst_attack
    assert name == "search" and single > entry.clean > 0
    assert smoke.worst_case[0] > entry.clean
    assert [flag.code for flag in smoke.flags] == ["few-tasks"]
    under = entry.under("mirror", 0.4)
    assert under.offsets[0] < 0 < under.offsets[-1], "the best arm is lowered, the worst raised"
    assert entry.under("none", 0.4).offsets == [0.0] * 5
    assert under.curve == sorted(under.curve), "regret grows"
    assert under.curve[-1] == pytest.approx(average(under.scores).mean, abs=0.01)


def test_a_second_run_is_the_same_file(smoke, tmp_path):
    again = stress_test("ts", suite="smoke-v0", out=tmp_path / "run")
    assert entry_text(again.entry) == entry_text(smoke.entry)


def test_the_luck_of_the_measurement_is_its_own(smoke, monkeypatch):
    """Nothing is measured on luck that learning or search has met, and halves differ."""
    met = []
    original = measuring.rollout

    def watch(*args, rng, **more):
        met.append(rng.path)
        return original(*args, rng=rng, **more)

    monkeypatch.setattr(measuring, "rollout", watch)
    suite = find_suite("smoke", "bandit")
    env = suite_env(suite)
    found = measuring.measure(suite, env, suite.sample_tasks(env), mi.make_agent("ts")[1], None, 0)
    assert set(met) == {("stress", "measure", 0), ("stress", "measure", 1)}
    assert found.scores[0] != found.scores[1]
    assert average(found.scores).mean == pytest.approx(smoke.entry.clean, abs=0.01)


def test_some_of_the_tasks_have_the_scores_that_they_have_among_all(smoke):
    suite = find_suite("smoke", "bandit")
    env = suite_env(suite)
    few = suite.sample_tasks(env).select(slice(2, 5))
    found = measuring.measure(suite, env, few, mi.make_agent("ts")[1], None, 0.0)
    whole = smoke.entry.under("none", 0.0).scores
    for half, scores in enumerate(found.scores):
        assert scores == pytest.approx(whole[half][2:5], abs=0.006)


@pytest.mark.parametrize("env", ["linear_bandit"])
def test_other_environments(env, tmp_path):
    test = stress_test("linucb", env, "smoke", out=tmp_path / "run")
    assert test.entry.environment == env and test.worst_case[0] > test.entry.clean


def test_in_rooms_low_rewards_are_worst(tmp_path):
    tiny = Suite(
        "tiny-v0", "darkroom2", 10.0, (Attack("structured", "swap_goals"),), eps=(0.4,), tasks=6,
        repeats=2, settings={"size": 3, "horizon": 30},
    )  # fmt: skip
    register(tiny)
    try:
        test = stress_test("q_learning(episodes=3)", "darkroom2", "tiny-v0", out=tmp_path)
        read_entry(tmp_path / "entry.json")
    finally:
        del _SUITES["darkroom2", "tiny-v0"]
    means = {attack.name: average(attack.scores).mean for attack in test.entry.attacks}
    assert test.entry.better == "higher" and test.worst_attack[0] == min(means, key=means.get)


def test_agents_of_all_sorts(tmp_path, monkeypatch):
    """A class, an object, 'module:Class' with an object's figures, a batched one, a model."""
    (tmp_path / "my_greedy.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    by_name = stress_test("my_greedy:Greedy", suite="smoke")
    assert by_name.entry.sha256 is not None and by_name.entry.agent == "Greedy"
    cls = type(mi.make_agent("my_greedy:Greedy")[1].wraps)
    for thing in (cls, cls()):
        test = stress_test(thing, suite="smoke")
        assert test.directory is None and test.entry.sha256 is None
        assert test.entry.attacks == by_name.entry.attacks
    batched = stress_test(mi.make_agent("ts")[1], suite="smoke", label="mine")
    assert batched.entry.agent == "mine"
    assert stress_test("dpt-bandit-s0", suite="smoke").entry.sha256 is not None
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_label_changes_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = stress_test("ucb1", suite="smoke")
    again = stress_test("ucb1", suite="smoke", label="UCB")
    assert again.directory == first.directory and again.entry.agent == "UCB"
    assert again.entry.attacks == first.entry.attacks


def test_an_object_resumes_where_its_owner_says(tmp_path):
    first = stress_test(Leader(), suite="smoke", out=tmp_path / "run")
    (tmp_path / "run" / "cells" / "mirror-eps0.4.json").unlink()
    again = stress_test(Leader(), suite="smoke", out=tmp_path / "run")
    assert entry_text(again.entry) == entry_text(first.entry)


def test_generators_of_everybody_are_seeded_and_then_as_before(tmp_path):
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    expected = random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    first = stress_test(Dice, suite="smoke")
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected  # noqa: NPY002
    assert entry_text(stress_test(Dice, suite="smoke").entry) == entry_text(first.entry)
    assert "not-repeatable" not in {flag.code for flag in first.flags}


def test_two_agents_are_compared_on_the_same_tasks(smoke, tmp_path):
    other = stress_test("uniform", suite="smoke", out=tmp_path / "run")
    difference, ci95 = smoke.compared(other)
    assert difference == pytest.approx(smoke.worst_case[0] - other.worst_case[0], abs=0.01)
    assert other.compared(smoke) == (-difference, ci95)
    linear = stress_test("linucb", "linear_bandit", "smoke", out=tmp_path / "linear")
    with pytest.raises(UserError, match="same suite"):
        smoke.compared(linear)


def test_the_page_says_how_to_repeat_it(smoke):
    assert "<pre>mithridate stress bandit --agent ts --suite smoke-v0</pre>" in smoke.html()
    assert (smoke.directory / "report.html").read_text() == smoke.html()
    handed = stress_test(Leader(), suite="smoke")
    assert "mithridate.stress_test(Leader, &#34;bandit&#34;" in handed.html()


def test_a_registered_class_of_a_user_is_known_by_its_file(monkeypatch, tmp_path):
    class Batched(type(mi.make_agent("ts")[1])):
        __module__ = __name__

    monkeypatch.setitem(mi.AGENTS._classes, "batched", Batched)
    test = stress_test("batched", suite="smoke", out=tmp_path / "run")
    assert test.entry.sha256 == hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


# Resuming ----------------------------------------------------------------------------------------


class _StopsAt:
    """An onlooker that interrupts at some moment."""

    def __init__(self, cell: int, in_training: bool = False) -> None:
        self.left, self.in_training = cell, in_training
        self.names = []

    def planned(self, total): ...

    def began(self, name, steps):
        self.names.append((name, steps))
        if self.left == 0 and not self.in_training:
            raise KeyboardInterrupt
        self.left -= 1

    def stepped(self): ...

    def training(self, name):
        onlooker = self

        class Watch:
            def started(self, step, total): ...
            def logged(self, step, values): ...
            def stepped(self, step, values):
                if onlooker.in_training and step == onlooker.left + 4:
                    raise KeyboardInterrupt

        return [Watch()]

    def finished(self): ...


@pytest.mark.parametrize("stop", [0, 2, 3])
def test_a_stopped_run_goes_on_and_ends_the_same(smoke, tmp_path, stop):
    with pytest.raises(Interrupted):
        stress_test("ts", suite="smoke", out=tmp_path / "run", onlooker=_StopsAt(stop))
    assert not (tmp_path / "run" / "entry.json").exists()
    look = _StopsAt(99)
    again = stress_test("ts", suite="smoke", out=tmp_path / "run", onlooker=look)
    assert [steps == 0 for _, steps in look.names] == [i < stop for i in range(4)]
    assert entry_text(again.entry) == entry_text(smoke.entry)


def test_a_damaged_cell_is_measured_again(smoke, tmp_path):
    run = shutil.copytree(smoke.directory, tmp_path / "run")
    cell = run / "cells" / "uniform-eps0.4.json"
    cell.write_text(cell.read_text().replace("1", "2", 40))
    (run / "cells" / "clean.json").write_text("{")
    assert entry_text(stress_test("ts", suite="smoke", out=run).entry) == entry_text(smoke.entry)


def test_killed(smoke, tmp_path):
    """By SIGKILL, in the middle of a search. (scripts/crash.py does it everywhere.)"""
    out = tmp_path / "run"
    words = [sys.executable, "-m", "mithridate", "stress", "bandit", "--agent", "ts"]
    process = subprocess.Popen([*words, "--suite", "smoke", "--out", str(out)])
    checkpoint = out / "attackers" / "search-eps0.4" / "checkpoint.safetensors"
    while process.poll() is None and not checkpoint.exists():
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert (out / "cells" / "mirror-eps0.4.json").exists() and not (out / "entry.json").exists()
    again = stress_test("ts", suite="smoke", out=out)
    assert entry_text(again.entry) == entry_text(smoke.entry)


def test_an_interrupt_is_one_line(tmp_path):
    out = tmp_path / "run"
    words = [sys.executable, "-m", "mithridate", "stress", "bandit", "--agent", "ts"]
    process = subprocess.Popen(
        [*words, "--suite", "quick", "--out", str(out)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while process.poll() is None and not (out / "cells" / "clean.json").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130 and stdout == ""
    assert stderr.startswith("error: interrupted") and stderr.count("\n") == 1


def test_a_run_belongs_to_one_agent(smoke, tmp_path):
    run = shutil.copytree(smoke.directory, tmp_path / "run")
    with pytest.raises(UserError, match="another configuration"):
        stress_test("ucb1", suite="smoke", out=run)


def test_a_class_that_has_changed_has_a_run_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, rate in enumerate(("0.1", "0.55"), 1):
        (tmp_path / "changing.py").write_text(AGENT.replace("0.1", rate))
        sys.modules.pop("changing", None)
        stress_test("changing:Greedy", suite="smoke")
        assert len(list((tmp_path / "runs").iterdir())) == number


# Flags and the self-test -------------------------------------------------------------------------


def test_an_agent_that_ignores_rewards_is_flagged():
    codes = {flag.code for flag in stress_test(Stubborn, suite="smoke").flags}
    assert "ignores-rewards" in codes and "not-repeatable" not in codes
    assert "ignores-rewards" in {f.code for f in stress_test("uniform", suite="smoke").flags}


def test_luck_that_no_seed_fixes_is_flagged():
    assert "not-repeatable" in {flag.code for flag in stress_test(Unseeded, suite="smoke").flags}


def test_poison_that_does_not_arrive_is_noticed(monkeypatch, tmp_path):
    """As if the loop showed the agent what the environment paid."""
    original = testing.rollout

    def leaky(env, tasks, agent, attacker=None, eps=0.0, **more):
        return original(env, tasks, agent, None if attacker is None else _Nothing(), eps, **more)

    class _Nothing(testing._Shift):
        def poison(self, step):
            return step.true_rewards

    monkeypatch.setattr(testing, "rollout", leaky)
    with pytest.raises(UserError, match="poison does not reach"):
        stress_test("ts", suite="smoke", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_agent_that_is_shown_something_else_is_noticed(monkeypatch):
    """As if the record said that other steps were poisoned than those it was shown."""
    original = testing.rollout

    def wrong(*args, **more):
        found = original(*args, **more)
        return dataclasses.replace(found, poisoned=found.poisoned.roll(1, 1))

    monkeypatch.setattr(testing, "rollout", wrong)
    with pytest.raises(UserError, match="poison does not reach"):
        stress_test("ts", suite="smoke")


def test_oracles_are_refused():
    for agent in ("oracle", "posterior_oracle"):
        with pytest.raises(UserError, match="told the attack"):
            stress_test(agent, suite="smoke")


def _flags_of(**means):
    """Flags for attacks with these means, by kind, on 200 tasks with a little noise."""
    draw = np.random.default_rng(0)
    suite = Suite("s-v0", "bandit", 3.0, tuple(Attack(k, k) for k in means), eps=(0.4,))
    noise = draw.normal(size=(2, 200))

    def measured(mean, norm=3.0):
        scores = (mean + noise + 0.1 * draw.normal(size=(2, 200))).tolist()
        return Measured(scores, [], norm, norm, [], [])

    cells = [(CLEAN, 0.0, measured(10.0))]
    cells += [
        (attack, 0.4, measured(*np.atleast_1d(means[attack.kind]))) for attack in suite.attacks
    ]
    return [flag.code for flag in stress_flags(suite, cells, "lower")]


def test_flags():
    assert _flags_of(random=20, learned=40, search=50) == []
    assert "random-beats-learned" in _flags_of(random=60, learned=40, search=50)
    assert "search-beats-learned" in _flags_of(learned=20, search=30)
    assert "search-beats-learned" not in _flags_of(learned=25, search=30)
    assert "poison-helps" in _flags_of(random=8, learned=40, search=50)
    assert "spent-little" in _flags_of(structured=(20, 0.2))
    assert "spent-little" not in _flags_of(structured=(20, 0.4))


def test_halves_that_differ_are_flagged():
    suite = Suite("s-v0", "bandit", 3.0, (), eps=(0.4,))
    noise = np.random.default_rng(0).normal(size=(2, 200))
    far = noise + np.array([[0.0], [5.0]])
    for scores, expected in ((noise, []), (far, ["halves-differ"])):
        cells = [(CLEAN, 0.0, Measured(scores.tolist(), [], 0.0, 0.0, [], []))]
        assert [flag.code for flag in stress_flags(suite, cells, "lower")] == expected


# Mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bandit", "--agent", "ts", "--suite", "standrad"), "did you mean 'standard-v0'"),
        (("bandit", "--agent", "nobody"), "unknown agent"),
        (("chess", "--agent", "ts"), "unknown environment"),
        (("bandit", "--agent", "linucb", "--suite", "smoke"), "linucb"),
        (("bandit", "--agent", "dpt-darkroom2-s0", "--suite", "smoke"), "error"),
        (("bandit", "--agent", "posterior_oracle", "--suite", "smoke"), "told the attack"),
        (("bandit", "--agent", "ts", "--suite", "smoke", "--label", ""), "label"),
        (("bandit", "--agent", "ts", "--suite", "smoke", "--out", "/proc/x"), "cannot write"),
    ],
)
def test_mistakes_are_one_line(words, said, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, stdout, stderr = command("stress", *words)
    assert code == 2 and stdout == "" and stderr.count("\n") == 1
    assert said in stderr
    assert list(tmp_path.iterdir()) == []


def test_an_environment_without_a_suite(monkeypatch):
    for key in [key for key in _SUITES if key[0] == "darkroom2"]:
        monkeypatch.delitem(_SUITES, key)
    with pytest.raises(UserError, match="there is no suite for 'darkroom2'; there are for: bandit"):
        stress_test("q_learning", "darkroom2")


def test_an_agent_that_raises_is_blamed(tmp_path, monkeypatch, command):
    (tmp_path / "bad.py").write_text(AGENT.replace("self.counts[action] += 1", "1 / 0"))
    monkeypatch.chdir(tmp_path)
    code, _, stderr = command("stress", "bandit", "--agent", "bad:Greedy", "--suite", "smoke")
    assert code == 2 and stderr.count("\n") == 1
    assert "Greedy.observe() (bad.py, line 17) raised ZeroDivisionError" in stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("label", ["a\udcffb", "a\u202eb\x00", "<b>é 中</b>"])
def test_labels_of_all_sorts(label, tmp_path):
    test = stress_test("ts", suite="smoke", label=label, out=tmp_path / "run")
    assert read_entry(tmp_path / "run" / "entry.json") == test.entry
    assert test.entry.agent == "".join(c if c.isprintable() else "?" for c in label)


def test_json_is_one_document(command, tmp_path):
    words = ("stress", "bandit", "--agent", "ts", "--suite", "smoke", "--out", tmp_path / "run")
    code, stdout, _ = command(*words, "--json")
    assert code == 0 and Entry.model_validate(json.loads(stdout)).agent == "ts"
    assert (tmp_path / "run" / "report.html").exists()
    code, stdout, _ = command(*words)
    assert code == 0 and "worst single attack (search)" in stdout and "left out" in stdout
    assert "a lower bound" in stdout and "report.html" in stdout


# Entries -----------------------------------------------------------------------------------------


def _altered(smoke, change):
    data = smoke.entry.to_json()
    change(data)
    return json.dumps(data)


def _scores(data):
    data["attacks"][1]["scores"][0][0] += 50.0


@pytest.mark.parametrize(
    "change",
    [
        _scores,
        lambda d: d["figures"][0].update(case=1.0),
        lambda d: d.update(clean=0.0),
        lambda d: d.update(suite="standard-v0"),
        lambda d: d.update(suite="standard-v9"),
        lambda d: d.update(suite_sha256="0" * 64),
        lambda d: d.update(environment="chess"),
        lambda d: d.update(better="higher"),
        lambda d: d.update(agent="x" * 81),
        lambda d: d.update(agent="a\x1b[2Jb"),
        lambda d: d.update(agent="a\u202eb"),
        lambda d: d.update(agent="a\udcffb"),
        lambda d: d.update(made_of="a\nb"),
        lambda d: d["versions"].update({"a\x00": "b"}),
        lambda d: d.update(extra=1),
        lambda d: d.update(format=2),
        lambda d: d["attacks"].pop(),
        lambda d: d["attacks"][2].update(eps=0.1),
        lambda d: d["attacks"][2].update(norm_max=30.0),
        lambda d: d["attacks"][2]["scores"][0].pop(),
        lambda d: d["attacks"][2]["offsets"].pop(),
        lambda d: d["attacks"][2]["curve"].clear(),
        lambda d: d["attacks"][2]["scores"][0].__setitem__(0, float("nan")),
        lambda d: d["attacks"][2]["scores"][0].__setitem__(0, 1e300),
        lambda d: d["attacks"][2]["scores"][0].__setitem__(0, "7"),
        lambda d: d.pop("versions"),
    ],
)
def test_a_forged_entry_is_one_line(smoke, change, tmp_path):
    (tmp_path / "e.json").write_text(_altered(smoke, change))
    with pytest.raises(UserError) as error:
        read_entry(tmp_path / "e.json")
    assert "e.json" in str(error.value) and "\n" not in str(error.value)


def test_an_entry_is_read_as_it_was_written(smoke, tmp_path):
    write_entry(tmp_path / "e.json", smoke.entry)
    assert read_entry(tmp_path / "e.json") == smoke.entry
    assert Rng(0).streams([1]).integer() != Rng(0).streams([2]).integer()
    (tmp_path / "e.json").write_bytes(b" " * (5 * 2**20))
    with pytest.raises(UserError, match="more than"):
        read_entry(tmp_path / "e.json")
