"""Rooms: structured attacks, and contexts that are poisoned at random."""

import pytest
import torch
import torch.nn.functional as F

from mithridate.attackers.offset_tables import OFFSETS
from mithridate.envs import make_env
from mithridate.envs.darkroom import STAY, transitions
from mithridate.envs.darkroom_poison import random_offsets
from mithridate.registry import ATTACKERS
from mithridate.rng import Rng
from mithridate.types import Poison


def table(name, tasks, env, **parameters):
    attacker = ATTACKERS.create(name, **parameters)
    attacker.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
    return attacker, attacker.adds().mean


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


def test_decoys_are_on_a_third_of_the_empty_cells():
    env = make_env("darkroom2")
    tasks = env.sample_tasks(60, Rng(0))
    _, swapped = table("swap_goals", tasks, env)
    attacker, offsets = table("decoys", tasks, env)
    entered = tasks.rewards[:, transitions(5)]
    empty = entered == 0
    assert torch.equal(offsets.masked_fill(empty, 0.0), swapped)
    raised = offsets[:, :, STAY][tasks.rewards == 0]
    assert set(raised.tolist()) == {0.0, 1.0} and abs(raised.mean() - 1 / 3) < 0.05
    assert (attacker.cost() <= 10).all() and attacker.cost().median() > 6


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

    assert contradictory(1.0) > contradictory(0.0) + 0.1


def test_some_of_the_poison_is_noise():
    """A third of the contexts have none, a fifth nothing else."""
    env = make_env("darkroom2", size=2)
    tasks = env.sample_tasks(600, Rng(0))
    c, shift = poisoned(env, tasks, 200, eps=1.0)
    place = F.one_hot(c.states * 5 + c.actions, 20).bool()  # (B, T, S A)
    up, down = ((place & (shift == x)[..., None]).float().sum(1) for x in (1, -1))
    least, most = torch.minimum(up, down).sum(1), torch.maximum(up, down).sum(1)
    assert abs((least == 0).float().mean() - 1 / 3) < 0.08
    assert (least / most.clamp(min=1) > 0.5).float().mean() > 0.2
