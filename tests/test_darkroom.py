"""Darkroom2: the room, its oracle, the learners of single tasks, and the attacker."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mithridate.agents.in_context import InContextAgent
from mithridate.agents.npg import NPG, NPGConfig
from mithridate.agents.q_learning import QLearning, QLearningConfig
from mithridate.agents.resolve import Victim
from mithridate.attackers.tabular import OFFSETS, TabularAttacker, TabularConfig, mean_offsets
from mithridate.config import (
    AdversarialConfig,
    AttackConfig,
    ModelConfig,
    PretrainConfig,
    resolve,
)
from mithridate.envs import make_env
from mithridate.envs.darkroom import STAY, transitions
from mithridate.envs.poisoned_rooms import random_offsets
from mithridate.errors import UserError
from mithridate.evaluation.episode import Room
from mithridate.experiments.executors import run_graph
from mithridate.experiments.plan import plan
from mithridate.experiments.recipes import RECIPES
from mithridate.experiments.store import Store
from mithridate.model.layouts import make_model
from mithridate.model.query_first import QueryFirstModel
from mithridate.model.two_stream import TwoStreamModel
from mithridate.registry import AGENTS, ATTACKERS
from mithridate.report.exports import export
from mithridate.report.html import render
from mithridate.report.picture import draw_room, room_svg
from mithridate.report.summary import summarise
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.training.adversarial import AdversarialTraining, train_adversarially
from mithridate.training.attack import AttackTraining
from mithridate.training.pretrain import pretrain
from mithridate.types import Poison, Transition

UP, DOWN, LEFT, RIGHT = range(4)


def test_walls_and_moves():
    after = transitions(3)
    assert after[0].tolist() == [0, 3, 0, 1, 0], "the corner: up and left lead nowhere"
    assert after[4].tolist() == [1, 7, 3, 5, 4], "the middle"
    assert after[8].tolist() == [5, 8, 7, 8, 8]


def test_rewards_are_for_the_cell_that_is_reached():
    env = make_env("darkroom2", size=3)
    tasks = env.sample_tasks(200, Rng(0))
    assert (tasks.rewards.sort(1).values[:, -3:] == torch.tensor([0.0, 1.0, 2.0])).all()
    state = env.reset(tasks)
    assert (state == 0).all()
    for action in (RIGHT, DOWN, LEFT, STAY):
        state, reward = env.step(tasks, state, torch.full((200,), action), None)
        assert torch.equal(reward, tasks.rewards[torch.arange(200), state])
    assert (state == 3).all()


def test_all_pairs_of_goals_occur_and_parts_are_disjoint():
    def pairs(**settings):
        tasks = make_env("darkroom2", size=3, **settings).sample_tasks(3000, Rng(1))
        return set(zip((tasks.rewards == 1).int().argmax(1).tolist(),
                       (tasks.rewards == 2).int().argmax(1).tolist(), strict=True))  # fmt: skip

    assert len(pairs()) == 72
    train, test = (pairs(held_out=0.25, part=part) for part in ("train", "test"))
    assert (len(train), len(test)) == (54, 18) and not train & test
    with pytest.raises(UserError, match="part test is empty"):
        make_env("darkroom2", part="test")


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_oracle_is_optimal(size):
    """Against dynamic programming over the whole episode, without a discount."""
    env = make_env("darkroom2", size=size, horizon=40)
    tasks = env.sample_tasks(150, Rng(2))
    after = transitions(size)
    value = torch.zeros_like(tasks.rewards)
    for _ in range(40):
        value = (tasks.rewards + value)[:, after].amax(2)
    t = rollout(env, tasks, AGENTS.create("oracle"), rng=Rng(0))
    torch.testing.assert_close(env.score(tasks, t).sum(1), value[:, 0])


def test_contexts_are_true_to_the_room():
    env = make_env("darkroom2", size=4)
    tasks = env.sample_tasks(60, Rng(0))
    data = env.sample_contexts(tasks, 30, Rng(1))
    rows = torch.arange(60)[:, None]
    assert torch.equal(data.next_states, transitions(4)[data.states, data.actions])
    assert torch.equal(data.rewards, tasks.rewards[rows, data.next_states])
    assert torch.equal(data.labels, tasks.values.argmax(2)[rows, data.queries])
    walks = (data.states[:, 1:] == data.next_states[:, :-1]).all(1) & (data.states[:, 0] == 0)
    assert 15 <= walks.sum() <= 45, "about half of them are walks"
    here = torch.cat([torch.zeros(60, 1, dtype=torch.int64), data.next_states], 1)
    share = (data.queries == here)[walks].float().mean()
    assert 0.4 < share < 0.65, "half of the queries of a walk are where it is"


def test_queries_in_a_rollout_equal_the_full_forward():
    env = make_env("darkroom2", horizon=60)
    tasks = env.sample_tasks(7, Rng(0))
    c = env.sample_contexts(tasks, 60, Rng(1))
    model = TwoStreamModel(ModelConfig(), env.spec)
    model.initialise(torch.Generator().manual_seed(0))
    with torch.no_grad():
        full = model(c)
        cache, logits = model.begin_at(7, c.queries[:, 0])
        steps = [logits]
        for t in range(60):
            fields = (c.states, c.actions, c.rewards, c.next_states)
            transition = Transition(*(x[:, t] for x in fields))
            steps.append(model.follow(cache, transition, c.queries[:, t + 1]))
    torch.testing.assert_close(torch.stack(steps, 1), full, atol=2e-5, rtol=1e-5)


def test_an_agent_may_be_asked_about_another_state():
    """Same context, another observation: as if it had been asked about that one at once; and the
    question leaves no trace."""
    env = make_env("darkroom2", horizon=20)
    tasks = env.sample_tasks(5, Rng(0))
    c = env.sample_contexts(tasks, 20, Rng(1))
    model = TwoStreamModel(ModelConfig(), env.spec)
    model.initialise(torch.Generator().manual_seed(0))

    def logits(*asked):
        agent = InContextAgent(model)
        agent.reset(env.spec, 5, Rng(0).streams(tasks.ids))
        with torch.no_grad():
            for t in range(20):
                for obs in asked if t == 9 else (c.states[:, t],):
                    agent.logits(obs)
                agent.observe(c.states[:, t], c.actions[:, t], c.rewards[:, t], c.next_states[:, t])
                if t == 8:
                    found = agent.logits(asked[-1])
            return found, agent.logits(c.next_states[:, 19])

    one, another = c.states[:, 9], (c.states[:, 9] + 7) % 25
    direct, end = logits(another)
    torch.testing.assert_close(logits(one, another)[0], direct)
    assert not torch.allclose(logits(another, one)[0], direct)
    torch.testing.assert_close(logits(another, one, another)[1], end)


def test_the_query_first_layout_in_a_rollout_equals_its_full_forward():
    """It answers one query after every prefix; in a rollout each step asks its own."""
    env = make_env("darkroom2", horizon=12)
    c = env.sample_contexts(env.sample_tasks(4, Rng(0)), 12, Rng(1))
    model = QueryFirstModel(ModelConfig(), env.spec)
    model.initialise(torch.Generator().manual_seed(0))
    with torch.no_grad():
        cache, logits = model.begin_at(4, c.queries[:, 0])
        for t in range(13):
            same = replace(c, queries=c.queries[:, t : t + 1].expand(-1, 13))
            torch.testing.assert_close(logits, model(same)[:, t], atol=2e-5, rtol=1e-5)
            if t < 12:
                fields = (c.states, c.actions, c.rewards, c.next_states)
                transition = Transition(*(x[:, t] for x in fields))
                logits = model.follow(cache, transition, c.queries[:, t + 1])


def test_a_query_sees_the_past_only_and_is_seen_by_nobody():
    env = make_env("darkroom2", horizon=30)
    c = env.sample_contexts(env.sample_tasks(3, Rng(0)), 30, Rng(1))
    model = TwoStreamModel(ModelConfig(), env.spec)
    model.initialise(torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = model(c)
        rewards = c.rewards.clone()
        rewards[:, 10] += 1
        changed = model(replace(c, rewards=rewards))
        asked = c.queries.clone()
        asked[:, 5] = (asked[:, 5] + 1) % 25
        other = model(replace(c, queries=asked))
    assert torch.equal(before[:, :11], changed[:, :11]), "query h sees the first h transitions"
    assert (before[:, 11] != changed[:, 11]).any(1).all()
    same = [h for h in range(31) if h != 5]
    torch.testing.assert_close(before[:, same], other[:, same], atol=1e-6, rtol=1e-6)
    assert (before[:, 5] != other[:, 5]).any(1).all()


@pytest.mark.parametrize(
    "agent",
    [
        QLearning(QLearningConfig(exploration=0.3, exploration_after=0.0, initial=2.0)),
        NPG(NPGConfig(learning_rate=0.1)),
    ],
    ids=lambda a: type(a).__name__,
)
def test_learners_solve_a_small_clean_room(agent):
    env = make_env("darkroom2", size=3, horizon=40)
    tasks = env.sample_tasks(60, Rng(0))
    got = env.score(tasks, rollout(env, tasks, agent, rng=Rng(1))).sum(1)
    best = env.score(tasks, rollout(env, tasks, AGENTS.create("oracle"), rng=Rng(1))).sum(1)
    assert got.mean() > 0.8 * best.mean(), (got.mean(), best.mean())


def test_the_attacker_adds_one_of_three_and_stays_within_its_budget():
    env = make_env("darkroom2", size=3, horizon=60)
    tasks = env.sample_tasks(20, Rng(0))
    attacker = TabularAttacker(TabularConfig(budget=1.5, learning_rate=0.3))
    agent = AGENTS.create("uniform")
    for number in range(5):
        t = rollout(env, tasks, agent, attacker, 0.4, rng=Rng(number))
        shift = t.proposed_rewards - t.true_rewards
        assert set(shift.unique().tolist()) <= set(OFFSETS)
        assert (attacker.cost() <= 1.5).all()
        attacker.update(t)
    assert attacker.cost().max() > 1.4, "strong enough to need the bound"
    torch.testing.assert_close(
        attacker.cost(), mean_offsets(attacker.probabilities).flatten(1).norm(dim=1)
    )


def test_a_single_attacker_learns_too():
    env = make_env("darkroom2", size=3, horizon=60)
    tasks = env.sample_tasks(1, Rng(0))
    attacker = TabularAttacker(TabularConfig())
    for number in range(3):
        attacker.update(
            rollout(env, tasks, AGENTS.create("uniform"), attacker, 0.4, rng=Rng(number))
        )
    assert attacker.tensors()["logits"].abs().max() > 0.01


def test_a_model_is_refused_where_states_are_others():
    def model(**settings):
        env = make_env(settings.pop("name", "darkroom2"), **settings)
        return InContextAgent(make_model(ModelConfig(), env.spec))

    room, small = make_env("darkroom2").spec, make_env("darkroom2", size=3).spec
    bandit = make_env("bandit", horizon=100).spec
    model().check(room)
    for agent, spec, message in (
        (model(), small, "trained for 25 states; the environment has 9 states"),
        (model(), bandit, "trained for 25 states; the environment has no states"),
        (model(name="bandit"), room, "trained for no states; the environment has 25 states"),
    ):
        with pytest.raises(UserError, match=message):
            agent.check(spec)


# Attacks on rooms ---------------------------------------------------------------------------------


def table(name, tasks, env, **parameters):
    attacker = ATTACKERS.create(name, **parameters)
    attacker.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
    return attacker, mean_offsets(attacker.probabilities)


@pytest.mark.parametrize(
    ("name", "best", "lesser"),
    [("hide_best", -1, 0), ("raise_lesser", 0, 1), ("swap_goals", -1, 1)],
)
def test_structured_attacks_are_on_every_way_to_a_goal(name, best, lesser):
    env = make_env("darkroom2")
    tasks = env.sample_tasks(40, Rng(0))
    attacker, offsets = table(name, tasks, env)
    reached = tasks.rewards[:, transitions(5)]  # (B, S, A): what the true reward would be
    assert torch.equal(offsets, best * (reached == 2).float() + lesser * (reached == 1).float())
    assert (attacker.cost() <= 10).all()
    small, weaker = table(name, tasks, env, budget=1.0)
    torch.testing.assert_close(small.cost(), torch.ones(40))
    assert torch.equal(weaker.sign(), offsets.sign()), "weaker, but the same"


def test_a_fake_goal_is_on_an_empty_cell_near_the_start():
    env = make_env("darkroom2")
    tasks = env.sample_tasks(60, Rng(0))
    _, offsets = table("fake_goal", tasks, env)
    raised = (offsets[:, :, STAY] == 1).int().argmax(1)  # staying there enters it
    assert (tasks.rewards.gather(1, raised[:, None]) == 0).all()
    assert set(raised.tolist()) <= {1, 2, 5, 6, 10}, "at most two steps away"
    assert (offsets >= 0).all()
    assert torch.equal((offsets > 0), transitions(5)[None] == raised[:, None, None])


def test_the_uniform_attack_has_an_offset_for_every_state_and_action():
    env = make_env("darkroom2")
    tasks = env.sample_tasks(80, Rng(0))
    _, offsets = table("uniform", tasks, env, budget=100.0)
    share = [(offsets == x).float().mean() for x in OFFSETS]
    assert all(abs(s - 1 / 3) < 0.03 for s in share)
    assert (table("uniform", tasks, env, budget=2.0)[0].cost() <= 2.0).all()


@pytest.mark.parametrize("budget", [0.5, 3.0, 10.0])
def test_synthetic_offsets_are_within_the_budget_and_of_all_kinds(budget):
    env = make_env("darkroom2")
    tasks = env.sample_tasks(400, Rng(0))
    offsets = random_offsets(tasks.rewards, tasks.after, torch.full((400,), budget), Rng(1))
    lengths = offsets.flatten(1).norm(dim=1)
    assert (lengths <= budget).all() and lengths.max() > 0.95 * budget
    assert (offsets.abs() <= 1).all()
    reached = tasks.rewards[:, tasks.after]
    against = (offsets[:, :, STAY] * (reached[:, :, STAY] == 2)).sum(1)
    assert (against < 0).float().mean() > 0.25, "the best goal is often made to look worse"
    empty = (offsets * (reached == 0)).clamp(min=0).flatten(1).sum(1)
    assert (empty > 0).float().mean() > 0.5, "and empty cells better"


def poisoned(env, tasks, length, budget=10.0, eps=0.4, switching=0.0):
    """Poisoned contexts, and what was added to the true rewards (B, T)."""
    n = len(tasks)
    poison = Poison(torch.full((n,), eps), torch.full((n,), budget), switching, Rng(2))
    c = env.sample_contexts(tasks, length, Rng(1), poison)
    return c, c.rewards - tasks.rewards.gather(1, c.next_states)


def test_poisoned_rewards_differ_by_one():
    env = make_env("darkroom2")
    _, shift = poisoned(env, env.sample_tasks(50, Rng(0)), 100, switching=0.5)
    assert set(shift.unique().tolist()) == set(OFFSETS)


def test_walks_go_by_what_was_seen():
    """Where a walk returns to must not tell where the true goal is."""
    env = make_env("darkroom2")
    tasks = env.sample_tasks(600, Rng(0))

    def returns_to_the_best(eps):
        c, _ = poisoned(env, tasks, 200, budget=50.0, eps=eps)
        walks = (c.states[:, 1:] == c.next_states[:, :-1]).all(1) & (c.states[:, 0] == 0)
        favourite = F.one_hot(c.next_states[:, 100:], 25).sum(1).argmax(1)
        return (favourite == tasks.rewards.argmax(1))[walks].float().mean().item()

    clean, dirty = returns_to_the_best(0.0), returns_to_the_best(1.0)
    assert clean > 0.55 and dirty < clean - 0.1, "offsets of one do not change everything"


def test_offsets_may_change_on_the_way():
    """With switching, what a state and action yields when poisoned changes within a context."""
    env = make_env("darkroom2", size=2)
    tasks = env.sample_tasks(400, Rng(0))

    def contradictory(switching):
        c, shift = poisoned(env, tasks, 150, eps=1.0, switching=switching)
        place = F.one_hot(c.states * 5 + c.actions, 20).bool()  # (B, T, S A)
        up, down = ((place & (shift == x)[..., None]).any(1) for x in (1, -1))
        return (up & down).any(1).float().mean().item()

    assert contradictory(0.0) == 0.0
    assert contradictory(1.0) > 0.3


# Learning -----------------------------------------------------------------------------------------


def test_attackers_learn_from_all_of_a_learners_episodes():
    env = make_env("darkroom2", size=3, horizon=10)
    tasks = env.sample_tasks(4, Rng(0))
    agent = QLearning(QLearningConfig(episodes=6))
    last = rollout(env, tasks, agent, rng=Rng(1))
    whole = rollout(env, tasks, agent, rng=Rng(1), record_learning=True)
    assert whole.actions.shape == (4, 70) and whole.observations.shape == (4, 7, 11)
    assert torch.equal(whole.actions[:, 60:], last.actions)
    assert torch.equal(whole.observations[:, 6:], last.observations)
    assert (whole.observations[:, :, 0] == 0).all(), "every episode begins at the start"
    assert torch.equal(whole.optimal_after, last.optimal_after)


def test_attack_training_scores_the_measured_episode_and_learns_from_all(monkeypatch):
    config = resolve(
        AttackConfig, "attack", "darkroom2", "smoke", ["env.size=3", "env.horizon=10", "tasks=8"],
        target="q_learning(episodes=4)",
    )  # fmt: skip
    trainee = AttackTraining(config)
    seen = []
    original = TabularAttacker.update

    def update(self, trajectory):
        seen.append(trajectory)
        return original(self, trajectory)

    monkeypatch.setattr(TabularAttacker, "update", update)
    values = trainee.step(0)
    assert seen[0].actions.shape == (8, 50), "four episodes of learning and the measured one"
    last = seen[0].true_rewards[:, 40:].sum(1).mean().item()
    assert values["score_mean"] == pytest.approx(last)
    assert Victim("Q", ["q_learning(episodes=4)"]).episodes() == 5
    assert Victim("oracle", ["oracle"]).episodes() == 1


def test_an_attacker_learns_to_hurt_a_learner():
    config = resolve(
        AttackConfig, "attack", "darkroom2", "smoke",
        ["env.size=3", "env.horizon=30", "tasks=60", "eps=0.5"],
        target="q_learning(episodes=10,exploration=0.2,exploration_after=0)",
    )  # fmt: skip
    trainee = AttackTraining(config)
    scores = [trainee.step(step)["score_mean"] for step in range(4)]
    assert scores[-1] < 0.8 * scores[0], scores


def test_what_a_model_lives_through_becomes_contexts():
    env = make_env("darkroom2", size=3, horizon=12)
    tasks = env.sample_tasks(5, Rng(0))
    t = rollout(env, tasks, AGENTS.create("uniform"), rng=Rng(1))
    c = t.contexts()
    assert torch.equal(c.next_states, transitions(3)[c.states, c.actions])
    assert torch.equal(c.queries[:, 1:], c.next_states) and (c.queries[:, 0] == 0).all()
    assert torch.equal(c.labels, tasks.values.argmax(2).gather(1, c.queries))
    part = c.select(slice(1, 3), 4)
    assert part.states.shape == (2, 4) and part.queries.shape == part.labels.shape == (2, 5)


def test_suboptimal_labels_are_second_best_where_they_are_asked(tmp_path):
    weights = pretrain(smoke(PretrainConfig, "pretrain", "steps=2"), tmp_path / "run")
    trainee = AdversarialTraining(
        smoke(AdversarialConfig, "train", "suboptimal=0.3", start=str(weights))
    )
    env = trainee.env
    tasks = env.sample_tasks(300, Rng(0))
    contexts = env.sample_contexts(tasks, 20, Rng(1))
    taught = trainee._taught(contexts, tasks, Rng(2))
    values = env.action_values(tasks, contexts.queries)
    changed = taught.labels != contexts.labels
    assert abs(changed.float().mean() - 0.3) < 0.03
    second = values.topk(2).values[..., 1]
    torch.testing.assert_close(values.gather(2, taught.labels[..., None])[changed][:, 0],
                               second[changed])  # fmt: skip


def test_attackers_that_chase_a_learner_learn_from_all_its_episodes(tmp_path, monkeypatch):
    weights = pretrain(smoke(PretrainConfig, "pretrain", "steps=2"), tmp_path / "run")
    threats = [{"attacker": "tabular", "target": "q_learning(episodes=2)"}]
    config = smoke(
        AdversarialConfig, "train", f"threats={json.dumps(threats)}", "synthetic.rounds=0",
        start=str(weights),
    )  # fmt: skip
    trainee = AdversarialTraining(config)
    lengths = []
    monkeypatch.setattr(
        TabularAttacker, "update", lambda self, t: lengths.append(t.actions.shape[1]) or {}
    )
    trainee.step(0)
    assert lengths == [3 * trainee.env.spec.horizon]


def smoke(kind, stage, *sets, **direct):
    return resolve(kind, stage, "darkroom2", "smoke", sets, threads=1, **direct)


def test_training_resumes_bit_for_bit(tmp_path):
    """Pretraining and adversarial training, interrupted after a checkpoint."""

    class Stop(Exception):
        pass

    class Interrupts:
        def started(self, step, total):
            pass

        def stepped(self, step, values):
            if step == self.at:
                raise Stop

        def logged(self, step, values):
            pass

        def evaluated(self, step, values):
            pass

        def __init__(self, at):
            self.at = at

    weights = {}
    for out in ("whole", "stopped"):
        config = smoke(PretrainConfig, "pretrain", "steps=25")
        if out == "stopped":
            with pytest.raises(Stop):
                pretrain(config, tmp_path / out / "dpt", [Interrupts(14)])
        weights[out] = pretrain(config, tmp_path / out / "dpt")
    assert weights["whole"].read_bytes() == weights["stopped"].read_bytes()
    config = smoke(
        AdversarialConfig, "train", "suboptimal=0.1", "rounds=4", start=str(weights["whole"])
    )
    whole = train_adversarially(config, tmp_path / "whole" / "at")
    with pytest.raises(Stop):
        train_adversarially(config, tmp_path / "stopped" / "at", [Interrupts(4)])
    stopped = train_adversarially(config, tmp_path / "stopped" / "at")
    assert whole.read_bytes() == stopped.read_bytes()


# The commands -------------------------------------------------------------------------------------


def test_the_picture(cli, tmp_path):
    sets = ("--preset", "smoke", "--agent", "q_learning(episodes=2)")
    code, out, _ = cli("picture", "darkroom2", *sets, "--attacker", "swap_goals",
                       "--out", "room.svg", "--json", cwd=tmp_path)  # fmt: skip
    assert code == 0
    assert 0 <= json.loads(out)["settled"] < 9
    assert (tmp_path / "room.svg").read_text().count("<path") > 9 * 5
    for wrong, message in (
        (("picture", "bandit", *sets), "no rooms to draw"),
        (("picture", "darkroom2", *sets, "--task", "999"), "there are 20"),
        (("picture", "darkroom2", *sets, "--attacker", "gaussian"), "must be trained first"),
        (
            ("picture", "darkroom2", *sets[:2], "--agent", "oracle", "--attacker", "learned"),
            "name a target, learned(AGENT)",
        ),
    ):
        code, _, err = cli(*wrong, "--out", "wrong.svg", cwd=tmp_path)
        assert (code, err.count("\n")) == (2, 1) and message in err
    assert not (tmp_path / "wrong.svg").exists()


def test_the_room_is_drawn_as_it_is(tmp_path):
    path = np.array([0, 1, 1, 4, 4, 4, 4, 4])
    room = Room(np.array([0, 1, 0, 0, 2, 0, 0, 0, 0]), np.zeros((9, 5)), path, "a title")
    assert (room.size, room.settled()) == (3, 4)
    draw_room(room, tmp_path / "room.png")
    again = Room.from_json(json.loads(json.dumps(room.to_json())))
    assert room_svg(again) == room_svg(room), "nothing is lost, and nothing depends on the time"
    assert (tmp_path / "room.png").stat().st_size > 5000


def test_the_matrix_of_a_room(cli, tmp_path):
    code, out, _ = cli(
        "evaluate", "darkroom2", "--preset", "smoke", "--agents", "npg(episodes=3),oracle",
        "--attackers", "none,hide_best,learned", "--json", cwd=tmp_path,
    )  # fmt: skip
    assert code == 0
    records = json.loads(out)["records"]
    assert {r["target"] for r in records} == {None, "npg(episodes=3)"}
    assert {r["attacker"] for r in records} == {"none", "hide_best", "tabular"}
    oracle = [r["mean"] for r in records if r["agent"] == "oracle"]
    assert all(r["mean"] <= max(oracle) for r in records)


def test_the_layouts_are_compared(tmp_path):
    script = Path(__file__).parent.parent / "scripts" / "compare_layouts.py"
    command = [sys.executable, str(script), "--steps", "2", "--tasks", "3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["two streams", "query first"]
    assert all("over 3 tasks; 2 steps" in line for line in lines)


def test_the_recipe_of_rooms(tmp_path):
    """Every row and kind of column, and the figures that go with them."""
    recipe = RECIPES["darkroom2_main"]
    planned = plan(recipe, "smoke", 1, sets=["evaluate.tasks=8", "attack.tasks=8"])
    store = Store.open(tmp_path / "store")
    store.remember(planned.name, planned.describe())
    run_graph(planned.stages(), store)
    (section,) = summarise(store)
    (table,) = section.tables
    assert section.done == section.total
    assert set(table.columns[-6:]) == set(recipe.static)
    cells = {(c.victim, c.column): c.mean for c in table.cells()}
    assert len(cells) == len(recipe.rows) * 10 and None not in cells.values()
    for column in table.columns:
        worst = max(mean for (_, where), mean in cells.items() if where == column)
        assert cells["oracle", column] == worst, "more is better here"
    assert {best for _, _, best, *_ in table.paired}.isdisjoint({"oracle"})
    assert [room.title.partition(",")[0] for room in section.pictures] == [
        f"{row} under {column}" for row, column in recipe.pictures
    ]
    assert all(room.path[0] == 0 and room.offsets.any() for room in section.pictures)
    page = render(store)
    assert page.count("data:image/svg+xml;base64,") == len(recipe.pictures)
    files = {path.name for path in export(store, tmp_path / "files")}
    assert sum("-picture-" in name for name in files) == 2 * len(recipe.pictures)


def test_attackers_against_learners_of_single_tasks_learn_briefly():
    stages = plan(RECIPES["darkroom2_main"], "laptop", 1).stages()
    rounds = {s.config["target"]: s.config["rounds"] for s in stages if s.kind == "attack"}
    assert rounds.pop("(input)") > 5
    assert set(rounds.values()) == {5} and len(rounds) == 2
