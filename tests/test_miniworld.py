"""Miniworld without pictures: layouts, poses, moves, rewards, the oracle, keys and contexts."""

import math
import subprocess
import sys

import pytest
import torch

from mithridate.envs import make_env
from mithridate.envs.miniworld import AT_BOX, KEYS, keys, room
from mithridate.envs.miniworld.walks import walk
from mithridate.errors import UserError
from mithridate.evaluation.crossplay import evaluate
from mithridate.observations import Views
from mithridate.registry import AGENTS, ATTACKERS
from mithridate.rng import Rng
from mithridate.rollout import rollout

NOWHERE = torch.full((1, 1, 2), -100.0, dtype=torch.float64)


@pytest.fixture
def env():
    return make_env("miniworld")


def at(x, z, heading=0, layout=0):
    """(1,): the pose nearest to a place."""
    place = torch.tensor([[x, z]], dtype=torch.float64)
    units = (place / room.UNIT).round().long()
    return room.poses(torch.tensor([layout]), units, torch.tensor([heading]))


def go(pose, *actions, solid=NOWHERE):
    for action in actions:
        pose = room.move(pose, torch.tensor([action]), solid)
    return pose


def box(x, z):
    return torch.tensor([[x, z]], dtype=torch.float64)


# Poses and layouts -----------------------------------------------------------------------------


def test_a_pose_is_one_number():
    draw = Rng(0).generator()
    layouts = torch.from_numpy(draw.integers(0, room.LAYOUTS, 1000))
    places = torch.from_numpy(draw.integers(0, room.PLACES, (1000, 2)))
    headings = torch.from_numpy(draw.integers(0, room.HEADINGS, 1000))
    found = room.poses(layouts, places, headings)
    assert (found >= 0).all() and len(found.unique()) == 1000
    assert torch.equal(room.layouts_of(found), layouts)
    assert torch.equal(room.places_of(found), places)
    assert torch.equal(room.headings_of(found), headings)


def test_layouts():
    boxes, start = room.layout(torch.arange(2000))
    corners = torch.tensor(room.CORNERS, dtype=torch.float64)
    away = (boxes - corners).abs()
    assert away.min() >= room.BOX_RADIUS and away.max() <= 2 * room.BOX_RADIUS
    assert away.std(0).min() > 0.1, "each box is jittered in both directions"
    place = room.metres(start)
    assert place.min() >= 2.6 - room.UNIT and place.max() <= 3.4 + room.UNIT
    assert place.std(0).min() > 0.2 and not room.headings_of(start).any()
    again, same = room.layout(torch.tensor([7, 7, 3]))
    assert torch.equal(again, boxes[[7, 7, 3]]) and torch.equal(same, start[[7, 7, 3]])


def test_tasks_have_every_goal_and_few_layouts_if_told():
    tasks = make_env("miniworld", layouts=5).sample_tasks(400, Rng(0))
    assert set(tasks.layouts.tolist()) == set(range(5))
    assert torch.bincount(tasks.goals, minlength=4).min() > 60
    many = make_env("miniworld").sample_tasks(400, Rng(0))
    assert len(many.layouts.unique()) > 390
    with pytest.raises(UserError, match="layouts must be at most"):
        make_env("miniworld", layouts=room.LAYOUTS + 1)


# Moves -----------------------------------------------------------------------------------------


def test_turns_and_steps():
    pose = at(3.0, 3.0)
    assert room.headings_of(go(pose, room.LEFT)).item() == 1
    assert room.headings_of(go(pose, room.RIGHT)).item() == 23
    assert torch.equal(go(pose, room.STAY), pose)
    assert torch.equal(go(pose, *[room.LEFT] * 24), pose)
    for heading in range(24):
        there = room.metres(go(at(3.0, 3.0, heading), room.AHEAD))[0]
        angle = math.radians(15 * heading)
        wanted = torch.tensor([3 + 0.7 * math.cos(angle), 3 - 0.7 * math.sin(angle)])
        torch.testing.assert_close(there, wanted.double(), atol=2 * room.UNIT, rtol=0)


def test_one_comes_back_exactly():
    draw = Rng(1).generator()
    pose = start = at(3.0, 3.0)
    turned = [room.LEFT] * 12
    for heading in draw.integers(0, 24, 3):
        turns = [room.LEFT] * int(heading)
        pose = go(pose, *turns, room.AHEAD, *turned, room.AHEAD, *turned)
        pose = go(pose, *[room.RIGHT] * int(heading))
    assert torch.equal(pose, start)


@pytest.mark.parametrize(
    ("heading", "axis", "edge"), [(0, 0, 5.6), (12, 0, 0.4), (6, 1, 0.4), (18, 1, 5.6)]
)
def test_walls_stop_a_step_as_a_whole(heading, axis, edge):
    sign = 1 if edge > 3 else -1
    step = room.STRIDES[heading, axis].item() * room.UNIT  # to the unit
    for beyond, blocked in ((-1, False), (1, True)):
        place = [3.0, 3.0]
        place[axis] = edge - step + sign * beyond * 2 * room.UNIT
        pose = at(*place, heading)
        assert torch.equal(go(pose, room.AHEAD), pose) == blocked


def test_the_goal_blocks_and_others_are_walked_through(env):
    tasks = env.sample_tasks(200, Rng(0))
    rows = torch.arange(200)
    for goals, stopped in ((tasks.goals, True), ((tasks.goals + 1) % 4, False)):
        target, pose, entered = tasks.boxes[rows, goals], tasks.start, torch.zeros(200).bool()
        for _ in range(40):  # straight on, past the point where the oracle stays
            action = torch.where(room.facing(pose, target), room.AHEAD, room.oracle(pose, target))
            pose, _ = env.step(tasks, pose, action, torch.zeros(200, 0))
            entered |= room.distances(pose, target) < room.TOUCHING
        assert entered.any() != stopped
        if not stopped:
            assert entered.float().mean() > 0.9


def test_a_box_is_touched_at_its_radius_and_the_agents():
    pose = at(3.0, 3.0)
    there = room.metres(go(pose, room.AHEAD))[0]
    for more, blocked in ((-1e-6, True), (1e-6, False)):
        solid = box(there[0] + room.TOUCHING + more, there[1])[:, None]
        assert torch.equal(go(pose, room.AHEAD, solid=solid), pose) == blocked
    assert math.isclose(room.TOUCHING, 0.9657, abs_tol=1e-4)


# Rewards and the oracle ------------------------------------------------------------------------


def test_near_at_its_exact_threshold():
    pose = at(1.0, 3.0)
    x, z = room.metres(pose)[0].tolist()
    assert math.isclose(room.NEAR, 2.0157, abs_tol=1e-4)
    assert room.rewards(pose, box(x + room.NEAR - 1e-9, z)).item() == 1
    assert room.rewards(pose, box(x + room.NEAR + 1e-9, z)).item() == 0


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("heading", [0, 5, 12, 23])
def test_facing_at_its_exact_threshold(heading, side):
    pose = at(3.0, 3.0, heading)
    x, z = room.metres(pose)[0].tolist()
    for degrees, faced in ((30 - 1e-6, True), (30 + 1e-6, False), (180, False), (0, True)):
        angle = math.radians(15 * heading + side * degrees)
        goal = box(x + 1.5 * math.cos(angle), z - 1.5 * math.sin(angle))
        assert room.facing(pose, goal).item() == faced
        assert room.rewards(pose, goal).item() == faced


def test_the_oracle_turns_goes_and_stays():
    pose = at(3.0, 3.0)
    assert room.oracle(pose, box(3.0, 1.0)).item() == room.LEFT  # north
    assert room.oracle(pose, box(3.0, 5.0)).item() == room.RIGHT
    assert room.oracle(pose, box(5.5, 3.0)).item() == room.AHEAD
    assert room.oracle(pose, box(4.5, 3.0)).item() == room.STAY


def test_the_oracle_earns_nearly_every_step(env):
    tasks = env.sample_tasks(200, Rng(0))
    earned = rollout(env, tasks, AGENTS.create("oracle"), rng=Rng(1)).true_rewards
    assert earned.sum(1).min() > 230 and earned.sum(1).mean() < 249
    assert (earned[:, 1:] >= earned[:, :-1]).all(), "who has arrived stays"
    nobody = rollout(env, tasks, AGENTS.create("uniform"), rng=Rng(1)).true_rewards
    assert nobody.sum(1).mean() < 0.2 * earned.sum(1).mean()


def test_values_are_minus_the_steps_that_are_left(env):
    """The oracle really takes so many steps, and a few more: it need not go straight."""
    tasks = env.sample_tasks(300, Rng(0))
    pose, goal = tasks.start, tasks.goal
    said = room.steps_to(pose, goal)
    taken = torch.zeros(300)
    for _ in range(30):
        taken += room.oracle(pose, goal) != room.STAY
        pose = room.move(pose, room.oracle(pose, goal), goal[:, None])
    assert (taken >= said).all() and (taken - said).max() <= 3 and (taken == said).any()
    values = env.action_values(tasks, tasks.start)
    best = env.optimal_action(tasks, tasks.start)
    others = values.scatter(1, best[:, None], -math.inf).amax(1)
    assert (values.amax(1) >= others + 1).all() and torch.equal(values.argmax(1), best)


# Keys and attacks ------------------------------------------------------------------------------


def test_keys_say_which_box_whether_it_is_near_and_whether_it_is_faced(env):
    boxes = torch.tensor(room.CORNERS, dtype=torch.float64)[None] * 0.7 + 0.9  # 0.9 … 5.1
    blue, red = 0, 1
    assert keys(at(2.5, 0.9, 12), boxes).item() == 4 * blue + AT_BOX  # near, looking west at it
    assert keys(at(2.5, 0.9, 6), boxes).item() == 4 * blue + 2  # near, looking north
    assert keys(at(2.9, 2.9, 9), boxes).item() == 4 * blue + 1  # from afar
    assert keys(at(2.9, 2.9, 18), boxes).item() == 4 * blue
    assert keys(at(3.5, 0.9, 0), boxes).item() == 4 * red + AT_BOX
    tasks = env.sample_tasks(50, Rng(0))
    lived = rollout(env, tasks, AGENTS.create("oracle"), rng=Rng(1))
    last = lived.keys[:, -1]
    assert torch.equal(last, 4 * tasks.goals + AT_BOX), "the oracle ends near its goal, facing it"


def test_of_two_boxes_the_one_that_is_faced_counts():
    boxes = torch.tensor([[[1.1, 1.1], [4.8, 1.1], [5.0, 5.0], [1.0, 5.0]]], dtype=torch.float64)
    pose = at(2.9, 1.1, 0)  # nearer to the first, but looking at the second
    assert room.distances(pose, boxes[:, 0]) < room.distances(pose, boxes[:, 1]) < room.NEAR
    assert keys(pose, boxes).item() == 4 * 1 + AT_BOX


def test_the_budget_binds(env):
    tasks = env.sample_tasks(20, Rng(0))
    assert math.sqrt(KEYS * 4) > env.budget > math.sqrt(5 * 4), "five keys could not spend it"
    random = ATTACKERS.create("uniform", budget=env.budget)
    random.reset(env.spec, tasks, Rng(0).streams(tasks.ids))
    torch.testing.assert_close(random.cost(), torch.full((20,), env.budget))


@pytest.mark.parametrize(
    ("name", "goal", "others", "norm"),
    [("hide_goal", -1, 0, 2.0), ("raise_decoy", 0, 1, 2.0), ("swap_boxes", -1, 1, 8**0.5),
     ("all_decoys", -1, 3, 4.0)],
)  # fmt: skip
def test_structured_attacks(env, name, goal, others, norm):
    tasks = env.sample_tasks(40, Rng(0))
    attacker = ATTACKERS.create(name)
    attacker.reset(env.spec, tasks, Rng(0).streams(tasks.ids))
    adds = attacker.adds().mean  # (B, K, A)
    at_goal = 4 * tasks.goals + AT_BOX
    assert (adds[torch.arange(40), at_goal] == goal).all()
    rest = adds.scatter(1, at_goal[:, None, None].expand(-1, 1, 4), 0.0)
    assert (rest.sum(1) == others).all() and (rest[:, torch.arange(KEYS) % 4 != AT_BOX] == 0).all()
    torch.testing.assert_close(attacker.cost(), torch.full((40,), norm))


def test_attacks_of_boxes_need_boxes():
    other = make_env("darkroom2")
    tasks = other.sample_tasks(2, Rng(0))
    with pytest.raises(UserError, match="needs boxes, as miniworld has"):
        ATTACKERS.create("hide_goal").reset(other.spec, tasks, Rng(0).streams(tasks.ids))


def test_search_and_pooled_attackers_know_the_kinds(env):
    tasks = env.sample_tasks(6, Rng(0))
    assert tasks.kinds.shape == (6, KEYS, 4) and set(tasks.kinds.unique().tolist()) == set(range(6))
    search = ATTACKERS.create("search", budget=5.0)
    search.learning = True
    search.reset(env.spec, tasks.repeat(search.episodes), Rng(0).streams(range(6 * 16)))
    first = search.adds().mean[:: search.episodes]  # the first start: against the goal
    at_goal = first[torch.arange(6), 4 * tasks.goals + AT_BOX]
    assert (at_goal < -0.9).all() and (first.abs().sum((1, 2)) < 4.1).all()


# Contexts --------------------------------------------------------------------------------------


def test_walks_are_what_would_happen_whatever_the_goal():
    layouts = torch.arange(30)
    seen, done = walk(layouts, torch.zeros(30, dtype=torch.int64), 120)
    boxes, start = room.layout(layouts)
    assert torch.equal(seen[:, 0], start)
    for goal in range(4):
        for t in range(120):
            reached = room.move(seen[:, t], done[:, t], boxes[:, goal : goal + 1])
            assert torch.equal(reached, seen[:, t + 1])
    short, _ = walk(layouts[3:5], torch.zeros(2, dtype=torch.int64), 40)
    assert torch.equal(short, seen[3:5, :41]), "a shorter walk is its beginning"
    other, _ = walk(layouts, torch.ones(30, dtype=torch.int64), 120)
    assert (other != seen).any(1).all()


@pytest.mark.parametrize("layouts", [12, room.LAYOUTS])
def test_contexts_are_transitions_of_the_room(layouts):
    env = make_env("miniworld", layouts=layouts, horizon=60)
    tasks = env.sample_tasks(40, Rng(0))
    c = env.sample_contexts(tasks, 60, Rng(1))
    goal = tasks.goal[:, None].expand(-1, 60, -1)
    reached = room.move(c.states, c.actions, goal[:, :, None])
    assert torch.equal(reached, c.next_states)
    assert torch.equal(room.rewards(reached, goal), c.rewards)
    assert torch.equal(c.labels, room.oracle(c.queries, tasks.goal[:, None]))
    assert torch.equal(room.layouts_of(c.queries), tasks.layouts[:, None].expand(-1, 61))
    walked = (c.states[:, 1:] == c.next_states[:, :-1]).all(1)
    assert 0.5 < walked.float().mean() < 0.95
    assert torch.equal(c.states[walked, 0], tasks.start[walked])
    assert 0.05 < c.rewards.mean() < 0.6
    if layouts < room.LAYOUTS:
        used = torch.cat([c.states, c.next_states, c.queries], 1)
        assert torch.isin(used, env.bank_poses()).all(), "all of them are in the bank"


def test_distinct_poses_are_in_the_bank_of_a_batch_once(env):
    tasks = env.sample_tasks(6, Rng(0))
    c = env.sample_contexts(tasks, 50, Rng(1))
    banked = c.banked()
    assert len(banked.bank.unique()) == len(banked.bank)
    for name in ("states", "next_states", "queries"):
        assert torch.equal(banked.bank[getattr(banked, name)], getattr(c, name))
    assert c.bank is None and torch.equal(banked.labels, c.labels)


def test_trajectories_and_their_contexts_have_poses(env):
    tasks = env.sample_tasks(3, Rng(0))
    lived = rollout(env, tasks, AGENTS.create("oracle"), rng=Rng(1))
    assert lived.observations.shape == (3, 1, 251) and lived.observations.dtype == torch.int64
    c = lived.contexts()
    assert c.bank is None and torch.equal(c.states, lived.observations[:, 0, :-1])


# Without pictures ------------------------------------------------------------------------------

NO_PICTURES = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyglet", "miniworld", "gymnasium"):
            raise ImportError(f"no {name}")
sys.meta_path.insert(0, Refuse())
import torch
import mithridate as mi
from mithridate.errors import UserError
from mithridate.rng import Rng
attackers = ("none", "swap_boxes", "learned(uniform)")
mi.evaluate("miniworld", ["oracle", "uniform"], attackers=attackers, preset="smoke")
env = mi.make_env("miniworld")
try:
    env.spec.observation.look(env.sample_tasks(1, Rng(0)).start)
except UserError as error:
    print(error)
"""


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_everything_but_pictures_works_without_the_extra():
    done = run(NO_PICTURES)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "a frame of Miniworld needs the miniworld package: pip install 'mithridate[miniworld]'\n"
    )


def test_nothing_of_it_is_imported_with_the_library():
    code = (
        "import sys, mithridate, mithridate.envs; "
        "print([m for m in ('pyglet', 'miniworld', 'gymnasium') if m in sys.modules])"
    )
    assert run(code).stdout == "[]\n"


def test_agents_with_tables_say_that_it_is_not_for_them(env):
    with pytest.raises(UserError, match="needs"):
        evaluate("miniworld", ["q_learning"], attackers=("none",), preset="smoke")
    assert isinstance(env.spec.observation, Views) and env.spec.n_states is None
