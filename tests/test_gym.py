"""The Gymnasium interface: our environments, single and vector, and poisoned rewards."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from mithridate.attackers import make_attacker
from mithridate.budget import Account
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.gym import IDS, PoisonReward, PoisonRewardVector, TaskEnv
from mithridate.gym.episodes import RNG
from mithridate.rollout import rollout
from mithridate.settings import resolve
from mithridate.stage_config import AttackConfig
from mithridate.training.attack import attack
from mithridate.training.attack_files import LearnedAttack
from mithridate.types import Tasks

BANDIT, LINEAR, ROOM, BOXES = IDS
WITHOUT_IMAGES = [BANDIT, LINEAR, ROOM]
EVERY = [*WITHOUT_IMAGES, pytest.param(BOXES, marks=pytest.mark.gl)]
LAKE = {"id": "FrozenLake-v1", "is_slippery": False}


class Script:
    """An agent of ours that does what it is told, (B, T)."""

    def __init__(self, actions):
        self.actions = torch.as_tensor(actions)

    def reset(self, spec, batch, rng):
        self.step = 0

    def act(self, obs):
        self.step += 1
        return self.actions[:, self.step - 1].clone()

    def observe(self, obs, actions, rewards, next_obs):
        pass


class Watcher:
    """An attacker that writes down what it is shown, and adds 1."""

    blind = True

    def __init__(self):
        self.resets, self.steps = 0, []

    def reset(self, spec, tasks, rng):
        self.resets += 1
        self.account = Account(len(tasks), spec.n_actions, 100.0, tasks.device)

    def poison(self, step):
        self.steps.append((step.key.tolist(), step.actions.tolist(), step.true_rewards.tolist()))
        self.account.charge(step.actions, torch.ones(len(step.actions)))
        return step.true_rewards + 1

    def cost(self):
        return self.account.means().norm(dim=1)


def script(id, length, rows=1, **settings):
    """Actions that are always the same, (B, T)."""
    count = gym.make(id, **settings).action_space.n
    return np.random.default_rng(0).integers(0, count, (rows, length))


def play(env, actions, seed=None, options=None):
    """Observations, rewards and infos of an episode."""
    seen, info = env.reset(seed=seed, options=options)
    steps = [(seen, 0.0, info)]
    for i, action in enumerate(actions):
        seen, reward, terminated, truncated, info = env.step(action)
        assert not terminated and truncated == (i == len(actions) - 1)
        steps.append((seen, reward, info))
    return steps


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other)


def error_of(call):
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Environments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", EVERY)
def test_gymnasium_finds_nothing_wrong(id):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        check_env(gym.make(f"mithridate.gym:{id}", horizon=20).unwrapped, skip_render_check=True)
    bounds = "A Box observation space"  # the heading is a vector without bounds
    assert [w for w in said if bounds not in str(w.message)] == []


def test_the_spaces():
    found = {i: gym.make(i).observation_space for i in WITHOUT_IMAGES}
    assert found[BANDIT] == found[LINEAR] == spaces.Discrete(1)
    assert found[ROOM] == spaces.Discrete(25)
    assert gym.make(BANDIT, arms=7).action_space == spaces.Discrete(7)


@pytest.mark.gl
def test_the_spaces_of_miniworld():
    env = gym.make(BOXES, horizon=5)
    assert env.observation_space["image"] == spaces.Box(0, 255, (25, 25, 3), np.uint8)
    seen, _ = env.reset(seed=0)
    assert seen["image"].std() > 0 and np.hypot(*seen["heading"]) == pytest.approx(1)


@pytest.mark.parametrize("id", WITHOUT_IMAGES)
def test_same_seed_same_episodes(id):
    actions = script(id, 12, horizon=12)[0]
    runs = []
    for _ in range(2):
        env = gym.make(id, horizon=12)
        runs.append([play(env, actions, seed=5), play(env, actions)])
    assert same(*runs)
    assert runs[0][0][0][2]["task"] != runs[0][1][0][2]["task"]
    assert not same(runs[0][0], play(gym.make(id, horizon=12), actions, seed=6))


@pytest.mark.parametrize("id", EVERY)
def test_episodes_are_those_of_our_rollout(id):
    actions = script(id, 15, horizon=15)[0]
    steps = play(gym.make(id, horizon=15), actions, seed=3)
    numbers, env = steps[0][2], make_env(IDS[id], horizon=15)
    tasks = env.sample_tasks(1, RNG.child("tasks"), first=numbers["task"])
    tasks = type(tasks)(**tasks.tensors(), episodes=torch.tensor([numbers["episode_number"]]))
    done = rollout(env, tasks, Script(actions[None]), rng=RNG)
    assert [reward for _, reward, _ in steps[1:]] == done.true_rewards[0].tolist()
    assert [i["optimal_action"] for _, _, i in steps[1:]] == done.optimal_actions[0].tolist()
    assert [i["score"] for _, _, i in steps[1:]] == env.score(tasks, done)[0].tolist()
    if id == ROOM:
        assert [int(seen) for seen, _, _ in steps] == done.observations[0, 0].tolist()


@pytest.mark.parametrize("id", EVERY)
def test_a_row_of_a_vector_is_the_single_environment(id):
    """With the seed of its row; over the end of an episode, which one step is spent on."""
    rows = script(id, 13, rows=3, horizon=6)
    vector = gym.make_vec(id, num_envs=3, horizon=6)
    assert vector.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    found = [(*vector.reset(seed=10), np.zeros(3))]
    for t in range(13):
        seen, rewards, terminated, truncated, info = vector.step(rows[:, t])
        assert seen in vector.observation_space and not terminated.any()
        assert (truncated == (t % 7 == 5)).all()
        found.append((seen, info, rewards))
    for i in range(3):
        single = gym.make(id, horizon=6)
        first = play(single, rows[i, :6], seed=10 + i)
        second = play(single, rows[i, 7:])
        for (seen, reward, info), (all_seen, infos, rewards) in zip(
            first + second, found, strict=True
        ):
            mine = (
                {k: v[i] for k, v in all_seen.items()}
                if isinstance(all_seen, dict)
                else all_seen[i]
            )
            assert same(seen, mine) and reward == rewards[i]
            assert info == {k: v[i] for k, v in infos.items() if not k.startswith("_")}


def test_which_task():
    def tasks(env, *resets):
        return [env.reset(**given)[1]["task"] for given in resets]

    new = tasks(gym.make(BANDIT), {"seed": 0}, {}, {})
    assert len(set(new)) == 3
    kept = tasks(gym.make(BANDIT, resample=False), {"seed": 0}, {}, {}, {"seed": 1}, {"seed": 0})
    assert kept[:3] == [new[0]] * 3 and kept[3] != new[0] and kept[4] == new[0]
    assert tasks(gym.make(BANDIT, task=7), {"seed": 0}, {}, {"options": {"task": 2}}) == [7, 7, 2]
    told = tasks(gym.make(BANDIT), {"options": {"task": 2}}, {"options": {"same_task": True}}, {})
    assert told[:2] == [2, 2] and told[2] != 2
    rows = gym.make_vec(BANDIT, num_envs=3, task=[4, 5, 4]).reset(seed=0)[1]
    assert rows["task"].tolist() == [4, 5, 4] and len(set(rows["episode_number"])) == 3


def test_wrappers_that_count_find_their_place_free():
    """Gymnasium's own keep what they count under "episode"."""
    env = gym.wrappers.RecordEpisodeStatistics(gym.make(ROOM, horizon=3))
    steps = play(env, [4] * 3, seed=0)
    assert steps[-1][2]["episode"]["l"] == 3 and "episode" not in steps[0][2]
    rows = gym.wrappers.vector.RecordEpisodeStatistics(gym.make_vec(ROOM, num_envs=2, horizon=3))
    rows.reset(seed=0)
    infos = [rows.step([4, 4])[4] for _ in range(4)]
    assert [i for i, info in enumerate(infos) if "episode" in info] == [2]


def test_a_task_stays_and_its_luck_does_not():
    env = gym.make(BANDIT, task=7, horizon=5)
    one, other = play(env, [0] * 5, seed=0), play(env, [0] * 5)
    assert one[1][2]["score"] == other[1][2]["score"] and one[1][1] != other[1][1]


def test_users_mistakes_in_environments():
    assert "did you mean 'arms'" in error_of(lambda: gym.make(BANDIT, armz=3))
    assert "horizon" in error_of(lambda: gym.make_vec(BANDIT, num_envs=2, horizon=0))
    assert "task" in error_of(lambda: gym.make(BANDIT, task=-1))
    assert "num_envs" in error_of(lambda: gym.make_vec(BANDIT, num_envs=0))
    env = gym.make(BANDIT, horizon=1).unwrapped
    assert "reset" in error_of(lambda: env.step(0))
    assert "no task yet" in error_of(lambda: env.reset(options={"same_task": True}))
    assert "unknown option" in error_of(lambda: env.reset(options={"tsk": 1}))
    env.reset()
    assert "0…4" in error_of(lambda: env.step(5))
    env.step(0)
    assert "over" in error_of(lambda: env.step(0))
    assert "picture" in error_of(lambda: TaskEnv("bandit", render_mode="human"))


def test_without_gymnasium_one_line_says_what_to_install():
    code = "import sys; sys.modules['gymnasium'] = None; import mithridate.gym"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith("pip install 'mithridate[gym]'")


def test_miniworld_without_the_package(monkeypatch):
    from mithridate.envs.miniworld import frames, render

    def missing(poses):
        raise UserError(render.EXTRA)

    monkeypatch.setattr(frames, "rendered", missing)
    monkeypatch.setattr(frames.shared(), "_place", {})
    assert error_of(lambda: gym.make(BOXES)) == render.EXTRA


def test_the_guides_examples_run():
    text = (Path(__file__).parent.parent / "docs" / "gym.md").read_text()
    blocks = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 5 and names["q"].max() > 0 and names["rewards"].shape == (64,)


# Poison in our environments ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "attacker"),
    [
        (BANDIT, "swap"),
        (BANDIT, "uniform"),
        (BANDIT, "ace"),
        (BANDIT, "jun_ucb(target=2)"),
        (LINEAR, "mirror"),
        (ROOM, "uniform"),
        (ROOM, "swap_goals"),
        pytest.param(BOXES, "all_decoys", marks=pytest.mark.gl),
    ],
)
def test_poisoned_episodes_are_those_of_our_rollout(id, attacker):
    """Rewards seen, and where they were poisoned; in a batch too."""
    length, rows = 30, script(id, 30, rows=3, horizon=30)
    env = make_env(IDS[id], horizon=length)
    vector = PoisonRewardVector(gym.make_vec(id, num_envs=3, horizon=length), attacker, eps=0.5)
    _, numbers = vector.reset(seed=4)
    steps = [vector.step(rows[:, t]) for t in range(length)]
    parts = [env.sample_tasks(1, RNG.child("tasks"), first=int(n)) for n in numbers["task"]]
    tasks = type(parts[0]).cat(parts)
    tasks = type(tasks)(**tasks.tensors(), episodes=torch.tensor(numbers["episode_number"]))
    theirs = make_attacker(attacker, env.budget, env.config.facts())
    done = rollout(env, tasks, Script(rows), theirs, 0.5, rng=RNG)
    assert np.stack([s[1] for s in steps], 1).tolist() == done.observed_rewards.tolist()
    assert np.stack([s[4]["poisoned"] for s in steps], 1).tolist() == done.poisoned.tolist()
    assert not torch.equal(done.observed_rewards, done.true_rewards)
    for i in range(3):
        single = PoisonReward(gym.make(id, horizon=length), attacker, eps=0.5)
        rewards = [reward for _, reward, _ in play(single, rows[i], seed=4 + i)[1:]]
        assert rewards == done.observed_rewards[i].tolist()


def test_true_rewards_stay_and_a_share_eps_is_poisoned():
    actions, eps = [0] * 2000, 0.3
    clean = play(gym.make(BANDIT, horizon=2000), actions, seed=0)[1:]
    env = PoisonReward(gym.make(BANDIT, horizon=2000), [1.5, 0, 0, 0, 0], eps=eps)
    steps = play(env, actions, seed=0)[1:]
    hits = sum(info["poisoned"] for _, _, info in steps)
    assert abs(hits - 2000 * eps) < 4 * math.sqrt(2000 * eps * (1 - eps))
    for (_, true, _), (_, seen, info) in zip(clean, steps, strict=True):
        assert info["true_reward"] == true
        assert seen == pytest.approx(true + 1.5 * info["poisoned"], abs=1e-6)
        assert info["poisoned"] or seen == true


@pytest.mark.parametrize(("eps", "seen"), [(0.0, 0), (1.0, 10)])
def test_eps_at_its_ends(eps, seen):
    env = PoisonReward(gym.make(ROOM, horizon=10), "swap_goals", eps=eps)
    assert sum(info["poisoned"] for _, _, info in play(env, [4] * 10, seed=0)[1:]) == seen


def test_other_seeds_poison_other_steps():
    def hits(seed):
        env = PoisonReward(gym.make(BANDIT, horizon=40), "swap", seed=seed)
        return [info["poisoned"] for _, _, info in play(env, [0] * 40, seed=0)[1:]]

    assert hits(1) == hits(1) != hits(2)


def test_the_step_that_resets_is_not_shown_to_the_attacker():
    watcher = Watcher()
    env = gym.make_vec(BANDIT, num_envs=2, horizon=3)
    env = PoisonRewardVector(env, watcher, eps=1.0, budget=100.0)
    env.reset(seed=0)
    before = watcher.resets
    for t in range(8):
        _, rewards, _, _, info = env.step([0, 1])
        resets = t % 4 == 3
        assert (info["poisoned"] != resets).all() and (info["_true_reward"] != resets).all()
        assert rewards == pytest.approx(0 * rewards if resets else info["true_reward"] + 1)
    assert len(watcher.steps) == 6 and watcher.resets == before + 2


def test_a_fixed_attack_lasts_as_long_as_its_task_and_a_watcher_an_episode():
    def offsets(**settings):
        env = PoisonReward(gym.make(BANDIT, horizon=5, task=1), "uniform", eps=1.0, **settings)
        starts = [play(env, [0] * 5, seed=s)[1] for s in (0, None)]
        return [round(seen - info["true_reward"], 5) for _, seen, info in starts]

    same_attack, other_attack = offsets(), offsets(renew=True)
    assert same_attack[0] == same_attack[1] and other_attack[0] != other_attack[1]
    watcher = Watcher()
    env = PoisonReward(gym.make(BANDIT, horizon=5, task=1), watcher, budget=100.0)
    before = watcher.resets
    play(env, [0] * 5), play(env, [0] * 5)
    assert watcher.resets == before + 2


def test_a_learned_attacker_brings_its_tasks(tmp_path):
    config = resolve(AttackConfig, "attack", "bandit", "smoke", target="ts", rounds=2, tasks=6)
    learned = LearnedAttack(attack(config, tmp_path / "run"))
    settings = {"arms": config.env.arms, "horizon": config.env.horizon}
    env = PoisonReward(gym.make(BANDIT, **settings), str(tmp_path / "run"), eps=1.0)
    seen = set()
    for seed in range(20):
        info = env.reset(seed=seed)[1]
        seen.add(info["task"])
        means = learned.tasks.means[info["task"]]
        assert env.step(1)[4]["score"] == pytest.approx((means.max() - means[1]).item())
    assert seen <= set(range(6)) and len(seen) > 2
    assert "budget" in error_of(lambda: PoisonReward(gym.make(BANDIT, **settings), learned, 0.4, 1))
    assert "another environment" in error_of(lambda: PoisonReward(gym.make(BANDIT), learned))
    other = gym.make(BANDIT, **settings)
    assert "draw_from" in error_of(lambda: PoisonReward(other, learned.attacker))
    other.unwrapped.episodes.draw_from(learned.tasks)
    PoisonReward(other, learned.attacker).reset(seed=0)


@pytest.mark.parametrize(
    ("id", "attacker"),
    [
        (BANDIT, "gaussian"),
        (BANDIT, "adaptive(layers=1,heads=1,width=8)"),
        (ROOM, "tabular"),
        (ROOM, "search(candidates=2,trials=1)"),
    ],
)
def test_learned_attackers_do_what_they_do_in_our_rollout(id, attacker, tmp_path):
    config = resolve(
        AttackConfig, "attack", IDS[id], "smoke", target="uniform", attacker=attacker,
        rounds=2, tasks=4,
    )  # fmt: skip
    learned = LearnedAttack(attack(config, tmp_path / "run"))
    settings = config.env.model_dump(exclude={"name"})
    env, rows = learned.env, script(id, config.env.horizon, rows=3, **settings)
    vector = PoisonRewardVector(gym.make_vec(id, num_envs=3, **settings), learned, eps=0.5)
    vector.reset(seed=0)
    tasks = vector.unwrapped.episodes.tasks
    if not attacker.startswith("adaptive"):  # which has no attack for each task
        assert torch.isin(tasks.ids, learned.tasks.ids).all()
    seen = np.stack([vector.step(actions)[1] for actions in rows.T], 1)
    theirs = LearnedAttack(tmp_path / "run").attacker
    done = rollout(env, tasks, Script(rows), theirs, 0.5, rng=RNG)
    assert seen.tolist() == done.observed_rewards.tolist()
    assert not torch.equal(done.observed_rewards, done.true_rewards)


@pytest.mark.parametrize("id", EVERY)
def test_all_attacks_of_an_environment_can_be_put_around_it(id):
    for attacker in make_env(IDS[id]).attacks:
        env = PoisonReward(gym.make(id, horizon=4), attacker, eps=1.0)
        steps = play(env, [0] * 4, seed=0)[1:]
        assert all(info["poisoned"] for _, _, info in steps)
        assert env.poison.attack.attacker.cost().item() > 0


def test_the_wrapper_can_be_made_again():
    env = PoisonReward(gym.make(BANDIT, arms=3, horizon=20), "swap", eps=0.5, seed=3)
    again = gym.make(pickle.loads(pickle.dumps(env.spec)))
    assert isinstance(again, PoisonReward)
    assert same(*(play(e, [0, 1] * 10, seed=1) for e in (env, again)))


def test_users_mistakes_in_poison():
    env = gym.make(BANDIT, horizon=5)
    assert "did you mean 'swap'" in error_of(lambda: PoisonReward(env, "swop"))
    assert "needs" in error_of(lambda: PoisonReward(env, "hide_best"))
    assert "trained first" in error_of(lambda: PoisonReward(env, "gaussian"))
    assert "eps" in error_of(lambda: PoisonReward(env, "swap", eps=1.5))
    assert "budget" in error_of(lambda: PoisonReward(env, "swap", budget=-1))
    assert "exceeds" in error_of(lambda: PoisonReward(env, "swap(budget=9)", budget=3))
    assert "norm 4" in error_of(lambda: PoisonReward(env, [4, 0, 0, 0, 0], budget=3))
    assert "5 actions" in error_of(lambda: PoisonReward(env, [1, 0]))
    assert "no_such" in error_of(lambda: PoisonReward(env, "no_such/attackers.safetensors"))
    assert "attacker: it must be" in error_of(lambda: PoisonReward(env, 7))
    assert "keys" in error_of(lambda: PoisonReward(env, "swap", keys=2))
    assert "Vector" in error_of(lambda: PoisonReward(gym.make_vec(BANDIT), "swap"))
    assert "PoisonReward" in error_of(lambda: PoisonRewardVector(env, "swap"))
    sync = gym.make_vec(BANDIT, num_envs=2, vectorization_mode="sync")
    assert "vectorization_mode" in error_of(lambda: PoisonRewardVector(sync, "swap"))
    loop = gym.wrappers.Autoreset(env)
    assert "Autoreset" in error_of(lambda: PoisonReward(loop, "swap"))
    spender = PoisonReward(env, Watcher(), budget=0.5)
    assert "budget of 0.5" in error_of(lambda: play(spender, [0] * 5))


# Poison in anybody's -----------------------------------------------------------------------------


def lake(**settings):
    return gym.make(**LAKE, **settings)


def test_a_table_of_offsets_in_anybodys_environment():
    """From the lake's first cell, right and down are named in the table, and nothing else."""
    table = np.zeros((16, 4))
    table[0, 2], table[1, 1] = 2.0, -1.0
    env = PoisonReward(lake(), table, eps=1.0)
    env.reset(seed=0)
    seen = [env.step(action) for action in (2, 1, 0)]
    assert [s[1] for s in seen] == [2.0, -1.0, 0.0]
    assert [s[4]["true_reward"] for s in seen] == [0, 0, 0]
    assert all(s[4]["poisoned"] for s in seen)


@pytest.mark.parametrize("attacker", ["uniform", "ace(target=1,sigma=1)"])
def test_others_that_need_not_know_the_task(attacker):
    """The same seed, the same episode; ace, with one situation, lowers all actions but its own."""
    settings = {} if attacker == "uniform" else {"keys": 1}
    env = PoisonReward(gym.make("CliffWalking-v1"), attacker, eps=0.5, **settings)
    runs = []
    for _ in range(2):
        env.reset(seed=1)
        runs.append([env.step(t % 4)[1:] for t in range(60)])
    assert same(*runs)
    hits = [(t, s[0] - s[3]["true_reward"]) for t, s in enumerate(runs[0]) if s[3]["poisoned"]]
    assert any(change != 0 for _, change in hits)
    if settings:
        assert all(change <= 0 for _, change in hits)
        assert all(change == 0 for t, change in hits if t % 4 == 1)
    else:
        assert {round(change, 3) for _, change in hits} <= {-1, 0, 1}


def test_observations_that_are_not_discrete_need_a_key():
    cart = gym.make("CartPole-v1")
    assert "keys=1" in error_of(lambda: PoisonReward(cart, "uniform"))
    env = PoisonReward(cart, [[5, 5], [-5, -5]], eps=1.0, budget=10, key=leans_right, keys=2)
    seen, _ = env.reset(seed=0)
    for t in range(5):
        expected = 1 + (-5 if leans_right(seen) else 5)
        seen, reward, _, _, _ = env.step(t % 2)
        assert reward == expected
    bad = PoisonReward(gym.make("CartPole-v1"), "uniform", key=lambda seen: 3, keys=3)
    assert "0…2" in error_of(lambda: bad.reset(seed=0))


def leans_right(seen):
    return int(seen[2] > 0)


def test_an_environment_that_always_hands_out_the_same_info():
    class Same(gym.Wrapper):
        said: dict = {}  # noqa: RUF012

        def step(self, action):
            return (*self.env.step(action)[:4], self.said)

    env = PoisonReward(Same(gym.make("CliffWalking-v1")), "uniform", eps=0.5)
    env.reset(seed=0)
    assert [env.step(action)[4]["true_reward"] for action in (0, 2, 1)] == [-1, -1, -100]
    assert Same.said == {}


def test_who_knows_the_task_is_refused_where_nothing_is_known():
    one = gym.make(**LAKE)
    for attacker in ("swap", "swap_goals", "mirror", "ace", "jun_oracle(target=0)"):
        assert "nothing is known" in error_of(lambda a=attacker: PoisonReward(one, a, keys=1))
    assert "needs" in error_of(lambda: PoisonReward(one, "ace(target=0)"))
    pendulum = gym.make("Pendulum-v1")
    assert "discrete actions" in error_of(lambda: PoisonReward(pendulum, "uniform"))


def test_a_trained_adaptive_attacker_around_anybodys_environment(tmp_path):
    config = resolve(
        AttackConfig, "attack", "bandit", "smoke", ["env.arms=4", "env.horizon=6"],
        attacker="adaptive(layers=1,heads=1,width=8)", target="ts", rounds=1, tasks=4,
    )  # fmt: skip
    attack(config, tmp_path / "run")
    env = PoisonReward(lake(max_episode_steps=6), tmp_path / "run", eps=1.0, keys=1)
    for _ in range(2):  # the second episode has room, too
        steps = play(env, [0] * 6)[1:]
        changes = np.array([reward - info["true_reward"] for _, reward, info in steps])
        assert (changes != 0).all() and (np.abs(changes) < 6).all()
    longer = lake(max_episode_steps=7)
    assert "6 steps" in error_of(lambda: PoisonReward(longer, tmp_path / "run", keys=1))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_rows_of_others_vectors_end_when_they_like(mode):
    """What a watcher is shown are the steps, and nothing but the steps, each with its cell."""
    watcher = Watcher()
    vector = SyncVectorEnv([lake, lambda: lake(max_episode_steps=5)], autoreset_mode=mode)
    env = PoisonRewardVector(vector, watcher, eps=1.0, budget=1000.0)
    seen, _ = env.reset(seed=0)
    watchers = [row.attacker for row in env.poison._rows]
    expected, over = [[], []], np.zeros(2, dtype=bool)
    for t in range(30):
        actions = [0, 0] if t % 3 else [1, 0]  # into a hole, or against the wall
        if mode == AutoresetMode.DISABLED and over.any():
            seen, _ = env.reset(options={"reset_mask": over})
            over = np.zeros(2, dtype=bool)
        skipped = over if mode == AutoresetMode.NEXT_STEP else np.zeros(2, dtype=bool)
        before = seen.copy()
        seen, rewards, terminated, truncated, info = env.step(actions)
        over = terminated | truncated
        assert (info["poisoned"] == ~skipped).all()
        assert (rewards == info["true_reward"] + ~skipped).all()
        for i in np.flatnonzero(~skipped):
            expected[i].append(([int(before[i])], [actions[i]], [0.0]))
    assert [w.steps for w in watchers] == expected
    assert all(w.resets > 2 for w in watchers)


def test_a_fixed_attack_is_the_same_in_all_rows():
    env = PoisonRewardVector(SyncVectorEnv([lake] * 4), "uniform(budget=100)", 1.0, 100.0)
    env.reset(seed=0)
    changes = [env.step([t % 4] * 4)[1].tolist() for t in range(10)]
    assert all(len(set(row)) == 1 for row in changes)


def test_rows_may_share_a_task_and_never_luck():
    rows = gym.make_vec(ROOM, num_envs=2, task=3, horizon=4)
    rows.reset(seed=0)
    tasks: Tasks = rows.unwrapped.episodes.tasks
    assert tasks.ids.tolist() == [3, 3] and len(set(tasks.luck.tolist())) == 2
