"""Search finds what is known to be worst, within its budget, however it is cut into parts."""

import math

import pytest
import torch
from safetensors.torch import load_file

from mithridate.attackers.search import STARTS, _clearly_least
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.registry import ATTACKERS
from mithridate.returns import less_than_the_others
from mithridate.rng import Rng
from mithridate.settings import resolve
from mithridate.stage_config import AttackConfig
from mithridate.training import attack as attacks
from mithridate.training.attack import AttackTraining, LearnedAttack, attack


class Gullible:
    """Pulls the second arm if the first looks worse than half by at least 0.2 on average after ten
    pulls of it, else the first for ever: to hurt it where the first is best, lower the first."""

    def reset(self, spec, batch, rng):
        self._sums, self._steps = torch.zeros(batch), 0

    def act(self, obs):
        poor = self._sums / 10 < 0.3
        return (poor & torch.tensor(self._steps >= 10)).long()

    def observe(self, obs, actions, rewards, next_obs):
        if self._steps < 10:
            self._sums += rewards
        self._steps += 1


def config(*sets, **direct):
    direct = {"target": "ts", "attacker": "search", "tasks": 8, "rounds": 6, **direct}
    return resolve(AttackConfig, "attack", "bandit", "smoke", sets, **direct)


def test_it_finds_the_worst_offsets():
    """What the victim loses falls off where the mean of the first arm's rewards passes 0.3: search
    must lower the first arm by enough, in every task where that arm is the better one."""
    settings = config(
        "env.arms=2", "env.horizon=60", "env.noise_std=0.05", tasks=30, rounds=8, eps=1.0
    )
    training = AttackTraining(settings, Gullible())
    rounds = [training.step(step) for step in range(settings.rounds)]
    scores = [values["score_mean"] for values in rounds]
    assert scores[-1] > 1.2 * scores[0], "by its own generations, before any choice"
    training.step(settings.rounds)
    training.attacker.learning = False
    training.attacker.reset(training.env.spec, training.tasks, Rng(0).streams(training.tasks.ids))
    means, added = training.tasks.means, training.attacker.adds().mean[:, 0]
    better = means[:, 0] > means[:, 1] + 0.05
    seen = (means + added)[:, 0]
    assert better.sum() > 5 and (seen[better] < 0.3).all()
    assert (seen[means[:, 1] > means[:, 0] + 0.05] > 0.3).all(), "and elsewhere it must not"


def test_each_candidate_is_kept_for_its_repeats():
    env = make_env("bandit", arms=3, horizon=10)
    tasks = env.sample_tasks(4, Rng(0))
    attacker = ATTACKERS.create("search", budget=2.0, candidates=5, repeats=3)
    attacker.learning = True
    copies = tasks.repeat(attacker.episodes)
    attacker.reset(env.spec, copies, Rng(1).streams(copies.luck))
    offsets = attacker.adds().mean[:, 0].view(4, 5, 3, 3)
    assert torch.equal(offsets, offsets[:, :, :1].expand_as(offsets))
    assert (offsets[:, 4] != offsets[:, 3]).any()
    assert (attacker.cost() <= 2.0).all()
    one = tasks.select(slice(2, 3)).repeat(attacker.episodes)
    attacker.reset(env.spec, one, Rng(1).streams(one.luck))
    assert torch.equal(attacker.adds().mean[:, 0].view(5, 3, 3), offsets[2])


def test_how_tasks_are_cut_into_parts_changes_nothing(tmp_path, monkeypatch):
    whole = load_file(attack(config(), tmp_path / "whole"))
    monkeypatch.setattr(attacks, "AT_ONCE", 40)
    parts = load_file(attack(config(), tmp_path / "parts"))
    assert whole.keys() == parts.keys()
    for name, tensor in whole.items():
        torch.testing.assert_close(tensor, parts[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("env", ["bandit", "linear_bandit", "darkroom2"])
def test_it_beats_every_attack_it_begins_with(env, tmp_path):
    """On the luck that the finalists met, by its choice; and it says what it used."""
    target = {"darkroom2": "uniform"}.get(env, "ts")
    settings = resolve(
        AttackConfig, "attack", env, "smoke", target=target, attacker="search", rounds=3
    )
    learned = LearnedAttack(attack(settings, tmp_path / "run"))
    assert learned.metrics["used_norm_max"] <= settings.budget * (1 + 1e-6)


def test_it_begins_with_what_was_learned(tmp_path):
    """It is a candidate of the first generation, and a finalist."""
    by_episodes = "gaussian(explore=episode,episodes=4,learning_rate=2)"
    learned = LearnedAttack(attack(config(attacker=by_episodes), tmp_path / "learned"))
    training = AttackTraining(config(), start=learned)
    search, spec, tasks = training.attacker, training.env.spec, training.tasks
    learned.attacker.reset(spec, tasks, Rng(0).streams(tasks.ids))
    offsets = learned.attacker.offsets
    assert (offsets.abs().sum(1) > 0.1).all()
    many = tasks.repeat(search.episodes)
    search.reset(spec, many, Rng(0).streams(many.ids))
    first = search.adds().mean[:, 0].view(len(tasks), search.episodes, -1)
    torch.testing.assert_close(first[:, STARTS], offsets)
    assert search.finalists == 2 + STARTS + 1
    search.present(search.finalists - 1)
    search.reset(spec, tasks, Rng(0).streams(tasks.ids))
    torch.testing.assert_close(search.played(), offsets)
    for settings, said in ((config(seed=5), "other tasks"), (config(attacker="gaussian"), "begin")):
        with pytest.raises(UserError, match=said):
            AttackTraining(settings, start=learned)


def test_the_choice_between_finalists_is_careful():
    luck = torch.tensor([0.0, 1.0, 2.0, 3.0])
    first = 10 + luck
    slightly, clearly = first - torch.tensor([1.0, -1, 1, -0.9]), first - 1
    found = _clearly_least(
        torch.stack([torch.stack([first, slightly]), torch.stack([first, clearly])])
    )
    assert found.tolist() == [0, 1]


def test_it_goes_on_where_it_stopped(tmp_path):
    whole = attack(config(), tmp_path / "whole").read_bytes()

    class Stop(Exception):
        pass

    training = AttackTraining(config())
    original = training.step

    def step(number):
        if number == 4:
            raise Stop
        return original(number)

    training.step = step
    with pytest.raises(Stop):
        attack(training, tmp_path / "stopped")
    assert attack(config(), tmp_path / "stopped").read_bytes() == whole


# Attackers that learn by episodes -----------------------------------------------------------------


NOISE = 0.7
BY_EPISODES = (
    f"gaussian(explore=episode,episodes=8,learning_rate=1.5,noise={NOISE},initial_spread=0.01)"
)


class Linear:
    """Loses 1 for each unit by which the first arm's rewards are lowered: pulls the second arm in
    proportion to that, whatever else is done."""

    def reset(self, spec, batch, rng):
        self._seen, self._steps = torch.zeros(batch), 0

    def act(self, obs):
        share = (0.5 - self._seen / 4).clamp(0, 1)
        return (torch.tensor((self._steps % 20) / 20) < share).long()

    def observe(self, obs, actions, rewards, next_obs):
        self._seen = torch.where(actions == 0, rewards, self._seen)
        self._steps += 1


def steady(rounds, target, **more):
    sets = ("env.arms=2", "env.horizon=60", "env.noise_std=0.01")
    settings = config(*sets, attacker=BY_EPISODES, tasks=20, rounds=rounds, eps=1.0, **more)
    training = AttackTraining(settings, target)
    for step in range(training.steps):
        training.step(step)
    return training


def test_a_steady_attack_gets_a_gradient_of_the_right_sign():
    """It works from the first step to the last: compared with its own mean it earns nothing."""
    training = steady(1, Linear())
    moved = training.attacker.tensors()["offsets"][:, 0]  # the first arm's offset
    means = training.tasks.means
    clear = (means[:, 0] - means[:, 1]).abs() > 0.2
    better = means[:, 0] > means[:, 1]
    assert clear.sum() > 8
    assert (moved[clear & better] < 0).float().mean() > 0.8
    assert (moved[clear & ~better] > 0).float().mean() > 0.8


def test_what_changes_nothing_teaches_nothing():
    """Over many tasks the gradient of an attack on an agent that ignores rewards has mean zero."""

    class Deaf(Linear):
        def observe(self, obs, actions, rewards, next_obs):
            self._steps += 1

    settings = config(attacker=BY_EPISODES, tasks=400, rounds=1)
    training = AttackTraining(settings, Deaf())
    training.step(0)
    tensors = training.attacker.tensors()
    for moved in (tensors["offsets"], tensors["log_noise"] - math.log(NOISE)):
        assert (moved.std(0) > 0).all(), "luck moves single tasks"
        assert (moved.mean(0).abs() < 4 * moved.std(0) / 20).all()


def test_the_noise_grows_where_what_hurts_is_far_away_and_shrinks_where_it_is_not():
    """Of an agent that is hurt by large offsets of either sign, and of one that is not."""

    class Even(Linear):
        def act(self, obs):
            share = (0.5 + self.sign * (self._seen.abs() - 1) / 4).clamp(0, 1)
            return (torch.tensor((self._steps % 20) / 20) < share).long()

    def learned(sign):
        agent = Even()
        agent.sign = sign
        training = steady(1, agent)
        means = training.tasks.means
        worse = means[:, 1] < means[:, 0] - 0.2  # pulling the second arm hurts
        return training.attacker.tensors()["log_noise"][worse, 0].mean() - math.log(NOISE)

    assert learned(1.0) > 0.02 and learned(-1.0) < -0.02


def test_attackers_that_learn_by_episodes_settle():
    """What the victim loses grows, and stays."""
    scores = [steady(rounds, Linear()).evaluate(0)["final_mean"] for rounds in (1, 4, 12)]
    assert scores[0] < scores[1] and scores[2] > 0.9 * max(scores)


@pytest.mark.parametrize("text", ["episodes=3", "episodes=4,keep=best"])
def test_episodes_come_in_pairs(text):
    with pytest.raises(UserError, match="even number of episodes"):
        AttackTraining(config(attacker=f"gaussian(explore=episode,{text})"))


def test_steps_are_compared_with_those_of_other_episodes():
    """Three episodes of one task and three of another: leave-one-out, without the step itself."""
    rewards = torch.tensor([[0.0, 1, 1], [0, 0, 0], [0, 2, 2], [5, 5, 5], [5, 5, 5], [5, 5, 5]])
    found = less_than_the_others(rewards, 1.0, 3)
    expected = torch.tensor([[0.0, 0, 0], [3, 1.5, 0], [-3, -1.5, 0], *[[0.0, 0, 0]] * 3])
    torch.testing.assert_close(found, expected / expected.std(correction=0))


def test_tables_learn_by_episodes(tmp_path):
    """Within the budget, and the same with or without a directory. (How much they hurt is measured
    at full size: docs/attacks.md.)"""
    settings = resolve(
        AttackConfig, "attack", "darkroom2", "smoke", target="q_learning(episodes=2)", tasks=10,
        attacker="tabular(episodes=8,learning_rate=0.3)", rounds=8,
    )  # fmt: skip
    training = AttackTraining(settings)
    for step in range(8):
        training.step(step)
    found = training.evaluate(8)
    assert found["used_norm_mean"] > 0 and found["used_norm_max"] <= 10.0
    again = attack(settings, tmp_path / "run")
    assert LearnedAttack(again).metrics["final_mean"] == found["final_mean"]
