"""Darkroom2: the room, its oracle, the models, the learners of single tasks, and the attacker."""

from dataclasses import replace

import pytest
import torch

from mithridate.agents.in_context import InContextAgent
from mithridate.agents.npg import NPG, NPGConfig
from mithridate.agents.q_learning import QLearning, QLearningConfig
from mithridate.attackers.offset_tables import OFFSETS, mean_offsets
from mithridate.attackers.tabular import (
    PooledAttacker,
    PooledConfig,
    TabularAttacker,
    TabularConfig,
    surprising_losses,
)
from mithridate.attackers.task_parameters import Episodes
from mithridate.config import ModelConfig
from mithridate.envs import make_env
from mithridate.envs.darkroom import STAY, DarkroomTasks, transitions
from mithridate.errors import UserError
from mithridate.model.layouts import make_model
from mithridate.model.query_first import QueryFirstModel
from mithridate.model.two_stream import TwoStreamModel
from mithridate.registry import AGENTS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.types import Trajectory, Transition

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


def test_on_the_best_goal_one_stays():
    """Walking into a wall would be as good there."""
    env = make_env("darkroom2", size=3)
    tasks = env.sample_tasks(60, Rng(0))
    goal = tasks.rewards.argmax(1)
    assert (env.optimal_action(tasks, goal) == STAY).all()
    best = tasks.values.amax(2)
    assert torch.equal(tasks.values.gather(2, tasks.best[..., None]).squeeze(2), best)


def test_some_walks_end_on_the_best_goal():
    env = make_env("darkroom2")
    tasks = env.sample_tasks(300, Rng(0))
    c = env.sample_contexts(tasks, 200, Rng(1))
    there = c.next_states[:, -50:] == tasks.rewards.argmax(1, keepdim=True)
    assert 0.1 < there.all(1).float().mean() < 0.22, "nearly two of five walks, half of all"
    assert (c.actions[:, -50:][there.all(1)] == STAY).all()


def test_contexts_are_true_to_the_room():
    env = make_env("darkroom2", size=4)
    tasks = env.sample_tasks(60, Rng(0))
    data = env.sample_contexts(tasks, 30, Rng(1))
    rows = torch.arange(60)[:, None]
    assert torch.equal(data.next_states, transitions(4)[data.states, data.actions])
    assert torch.equal(data.rewards, tasks.rewards[rows, data.next_states])
    assert torch.equal(data.labels, tasks.best[rows, data.queries])
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


def test_losses_are_compared_with_what_is_usual_at_a_step_and_a_place():
    rewards = torch.tensor([[0.0, 2, 0, 1], [0, 0, 2, 1]])
    place = torch.tensor([[0, 1, 0, 1], [0, 1, 2, 2]])
    # Earned after each step, at discount 0.5: 2.25 0.5 1 0 and 1.25 2.5 1 0. Less the step's mean:
    # 0.5 -1 0 0 and its opposite. Less the mean at the place, in the other direction:
    expected = torch.tensor([[-0.25, 0.5, 0.25, -0.5], [0, 0, 0, 0]])
    got = surprising_losses(rewards, place, 3, 0.5, Episodes(torch.arange(2)))
    torch.testing.assert_close(got, expected / expected.std(correction=0))
    # Two episodes of one task have their places in common: there the means are 0.
    expected = torch.tensor([[-0.5, 1, 0, 0], [0.5, -1, 0, 0]])
    got = surprising_losses(rewards, place, 3, 0.5, Episodes(torch.zeros(2, dtype=torch.int64)))
    torch.testing.assert_close(got, expected / expected.std(correction=0))


def test_attackers_have_something_in_common():
    """What is learned in some tasks is known in others; what was never visited stays as it is."""
    env = make_env("darkroom2", size=3, horizon=60)
    seen, other = env.sample_tasks(30, Rng(0)), env.sample_tasks(5, Rng(0), first=30)
    attacker, alone = PooledAttacker(), TabularAttacker()
    walker = AGENTS.create("uniform")
    for a in (attacker, alone):
        a.update(rollout(env, seen, walker, a, 0.4, rng=Rng(2)))
        rollout(env, other, walker, a, 0.4, rng=Rng(3))
    assert (attacker.probabilities - 1 / 3).abs().amax(-1).min() > 0.05
    assert (alone.probabilities - 1 / 3).abs().max() < 1e-6
    # Which entries are alike: what is reached is worth 0, 1 or 2, by a move or by staying.
    assert seen.kinds.unique().tolist() == [0, 1, 2, 3, 4, 5]
    cell = seen.rewards.argmax(1)
    assert (seen.kinds[torch.arange(30), cell, STAY] == 5).all()
    own = {name: t.clone() for name, t in attacker.tensors().items()}
    again = PooledAttacker()
    again.load_tensors(own)
    rollout(env, other, walker, again, 0.4, rng=Rng(3))
    assert torch.equal(again.probabilities, attacker.probabilities)


def test_a_task_learns_what_differs_from_the_others():
    """Of five poisoned steps at one place that were all followed by losses, three had −1. That is
    often if nothing is known; it is seldom for attackers that have −1 in common."""
    env = make_env("darkroom2", size=2, horizon=10)
    tasks = env.sample_tasks(1, Rng(0))
    rewards = torch.tensor(
        [[2.0, 0, 0, 0, 0, 0, 2, 2, 2, 2]]
    )  # after steps 0 … 4 nothing is earned
    shift = torch.tensor([[-1.0, -1, -1, 0, 1, 0, 0, 0, 0, 0]])
    lived = Trajectory(
        observations=torch.zeros(1, 1, 11, dtype=torch.int64),
        actions=torch.full((1, 10), STAY), true_rewards=rewards,
        proposed_rewards=rewards + shift, observed_rewards=rewards + shift,
        poisoned=torch.arange(10)[None] < 5, optimal_actions=torch.zeros(1, 10, dtype=torch.int64),
        optimal_after=torch.zeros(1, dtype=torch.int64),
        keys=torch.zeros(1, 10, dtype=torch.int64),
    )  # fmt: skip
    for known, sign in ((0.0, 1), (10.0, -1)):
        attacker = PooledAttacker(PooledConfig(discount=0.0, iterations=1, penalty=0.0))
        attacker.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
        attacker._common.state["logits"][:, 0] = known
        attacker.update(lived)
        assert attacker.tensors()["logits"][0, 0, STAY, 0].sign() == sign


def test_without_kinds_all_entries_are_alike(monkeypatch):
    monkeypatch.delattr(DarkroomTasks, "kinds")
    env = make_env("darkroom2", size=3, horizon=60)
    attacker, walker = PooledAttacker(), AGENTS.create("uniform")
    attacker.update(rollout(env, env.sample_tasks(30, Rng(0)), walker, attacker, 0.4, rng=Rng(2)))
    rollout(env, env.sample_tasks(5, Rng(0), first=30), walker, attacker, 0.4, rng=Rng(3))
    p = attacker.probabilities
    assert torch.equal(p, p[:1, :1, :1].expand_as(p)) and (p[0, 0, 0] - 1 / 3).abs().max() > 0.01


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
