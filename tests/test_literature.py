"""Attacks of the literature: their formulas by hand, their budgets, what they do to a victim."""

import json
import math
from dataclasses import replace

import pytest
import torch

import mithridate as mi
from mithridate.attackers import make_attacker
from mithridate.budget import norm
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.evaluation.kinds import all_kinds, named, untrained
from mithridate.experiments.executors import run_graph
from mithridate.experiments.plan import plan
from mithridate.experiments.recipes import Level, Recipe, Row
from mithridate.experiments.store import Store
from mithridate.registry import AGENTS, ATTACKERS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.types import Step

WATCHING = ("ace", "jun_egreedy", "jun_ucb")
ALL = ("jun_oracle", *WATCHING)
AMPLE = 1000.0


def arms(*means, **settings):
    """An environment, and a task for each row of means."""
    env = make_env("bandit", arms=len(means[0]), **settings)
    tasks = env.sample_tasks(len(means), Rng(0))
    return env, replace(tasks, means=torch.tensor(means))


def begun(env, tasks, name, **settings):
    attacker = ATTACKERS.create(name, **settings)
    attacker.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
    return attacker


def shown(attacker, *pulls):
    """What is added at each of these pulls, (arm, true reward) for every task: (T, B)."""
    found = []
    for pull in pulls:
        actions = torch.tensor([arm for arm, _ in pull])
        rewards = torch.tensor([reward for _, reward in pull])
        step = Step(None, None, actions, rewards, None, torch.zeros_like(actions))
        found.append(attacker.poison(step) - rewards)
    return torch.stack(found)


def beta(n, n_arms=2, sigma=0.3, delta=0.05):
    return math.sqrt(2 * sigma**2 / n * math.log(math.pi**2 * n_arms * n**2 / (3 * delta)))


# Formulas ----------------------------------------------------------------------------------------


def test_the_oracle_makes_the_target_look_best_by_the_margin():
    env, tasks = arms([0.9, 0.2], [0.3, 0.6])
    attacker = begun(env, tasks, "jun_oracle", budget=AMPLE, margin=0.25)
    wanted = torch.tensor([[-0.95, 0.0], [0.0, -0.55]])
    torch.testing.assert_close(attacker.offsets, wanted)
    seen = tasks.means + attacker.offsets
    torch.testing.assert_close((seen[:, 0] - seen[:, 1]).abs(), torch.full((2,), 0.25))
    torch.testing.assert_close(attacker.cost(), torch.tensor([0.95, 0.55]))
    within = begun(env, tasks, "jun_oracle", budget=0.5, margin=0.25)
    torch.testing.assert_close(within.cost(), torch.full((2,), 0.5))
    torch.testing.assert_close(within.offsets, torch.tensor([[-0.5, 0.0], [0.0, -0.5]]))


def test_the_oracle_leaves_alone_what_is_below_the_target_by_more_than_the_margin():
    env, tasks = arms([0.9, 0.5, 0.1])
    attacker = begun(env, tasks, "jun_oracle", budget=AMPLE, margin=0.1, target="second")
    torch.testing.assert_close(attacker.offsets, torch.tensor([[-0.5, 0.0, 0.0]]))


def test_ace_by_hand():
    env, tasks = arms([0.9, 0.2], [0.2, 0.9])
    attacker = begun(env, tasks, "ace", budget=AMPLE)
    first, second, third, fourth = shown(
        attacker,
        [(1, 0.3), (1, 1.1)],  # the first task's target is arm 1, the second's arm 0
        [(0, 0.8), (1, 0.7)],
        [(0, 1.2), (0, 0.1)],
        [(0, 0.7), (1, 0.6)],
    )
    assert first.tolist() == [0.0, 0.0], "a target; an arm while nothing is known of the target"
    assert second[0].item() == pytest.approx(-(0.8 - 0.3 + 2 * beta(1)), abs=1e-6)
    assert second[1] == 0.0
    assert third[0].item() == pytest.approx(-(1.0 - 0.3 + beta(2) + beta(1)), abs=1e-6)
    assert third[1] == 0.0
    assert fourth[0].item() == pytest.approx(-(0.9 - 0.3 + beta(3) + beta(1)), abs=1e-6)
    assert fourth[1].item() == pytest.approx(-(0.8 - 0.1 + beta(3) + beta(1)), abs=1e-6)


def test_ace_does_not_raise_a_poor_arm():
    env, tasks = arms([0.9, 0.2])
    attacker = begun(env, tasks, "ace", budget=AMPLE, target=0, sigma=0.01)
    first, second = shown(attacker, [(0, 0.9)], [(1, 0.2)])
    assert beta(1, sigma=0.01) < 0.1
    assert (first == 0.0).all() and (second == 0.0).all()


@pytest.mark.parametrize(("name", "margin"), [("jun_egreedy", 0.0), ("jun_ucb", 0.4)])
def test_the_attacks_of_jun_et_al_by_hand(name, margin):
    env, tasks = arms([0.9, 0.2])
    settings = {"margin": margin} if margin else {}
    attacker = begun(env, tasks, name, budget=AMPLE, sigma=0.1, delta=0.2, **settings)
    level = 0.3 - 2 * beta(1, sigma=0.1, delta=0.2) - margin
    target, first, second, again, third = shown(
        attacker, [(1, 0.3)], [(0, 0.8)], [(0, 1.0)], [(1, 0.5)], [(0, 0.7)]
    )
    assert target == 0.0 and again == 0.0
    # After each pull, the mean as seen is the level: first at once, then by what the reward adds.
    assert first.item() == pytest.approx(-(0.8 - level), abs=1e-6)
    assert second.item() == pytest.approx(-(1.0 - level), abs=1e-6)
    # The target looks better now, and is better known: the level is higher, and so is the mean.
    higher = 0.4 - 2 * beta(2, sigma=0.1, delta=0.2) - margin
    total = 2 * level + 0.7
    assert third.item() == pytest.approx(-max(0.0, total - 3 * higher), abs=1e-6)


def test_egreedys_attack_rests_when_the_arm_is_low_enough():
    env, tasks = arms([0.9, 0.2])
    attacker = begun(env, tasks, "jun_egreedy", budget=AMPLE)
    *_, last = shown(attacker, [(1, 0.3)], [(0, 0.8)], [(0, -9.0)], [(0, 0.5)])
    assert last == 0.0


# Settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("target", "wanted"), [("worst", [2, 1]), ("second", [1, 2]), (0, [0, 0]), (2, [2, 2])]
)
def test_nothing_is_spent_on_the_target(name, target, wanted):
    env, tasks = arms([0.9, 0.5, 0.1], [0.8, 0.2, 0.4], horizon=60)
    attacker = ATTACKERS.create(name, target=target, budget=2.0)
    played = rollout(env, tasks, AGENTS.create("uniform"), attacker, 1.0, rng=Rng(4))
    added = played.proposed_rewards - played.true_rewards
    is_target = played.actions == torch.tensor(wanted)[:, None]
    assert is_target.any(1).all()
    assert (added[is_target] == 0.0).all()
    # Not all others have to be lowered, but the best arm is, unless it is the target itself.
    best = (played.actions == 0) & ~is_target
    assert not best.any() or added[best].min() < 0.0
    assert (added <= 1e-6).all(), "rewards are only ever lowered"


@pytest.mark.parametrize("name", ALL)
def test_a_target_that_is_no_arm_is_one_line(name):
    env, tasks = arms([0.9, 0.2])
    with pytest.raises(UserError, match=f"attacker '{name}': target 2 is not an arm in 0…1"):
        begun(env, tasks, name, target=2)
    for wrong in ("best", -1, 1.5, True):
        with pytest.raises(UserError, match="'target': .*must be 'worst', 'second' or the number"):
            ATTACKERS.create(name, target=wrong)


def test_a_single_arm_is_always_the_target():
    env, tasks = arms([0.5], horizon=5)
    for name in ALL:
        for target in ("worst", "second", 0):
            attacker = ATTACKERS.create(name, target=target)
            played = rollout(env, tasks, AGENTS.create("uniform"), attacker, 1.0, rng=Rng(4))
            assert torch.equal(played.proposed_rewards, played.true_rewards)


def test_sigma_follows_from_the_environment():
    facts = make_env("bandit", noise_std=0.7).config.facts()
    assert make_attacker("ace", 3.0, facts).config.sigma == 0.7
    assert make_attacker("ace(sigma=0.2)", 3.0, facts).config.sigma == 0.2
    assert make_attacker("ace", 3.0).config.sigma == 0.3
    assert not hasattr(make_attacker("jun_oracle", 3.0, facts).config, "sigma")


# Episodes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WATCHING)
@pytest.mark.parametrize("budget", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("environment", ["bandit", "linear_bandit"])
def test_the_budget_holds_at_every_step(name, budget, environment):
    env = make_env(environment, horizon=100)
    tasks = env.sample_tasks(20, Rng(0))
    attacker = ATTACKERS.create(name, budget=budget)
    played = rollout(env, tasks, AGENTS.create("uniform"), attacker, 0.4, rng=Rng(5))
    added = (played.proposed_rewards - played.true_rewards).double()
    sums, counts = torch.zeros(2, *tasks.means.shape, dtype=torch.float64)
    spent = []
    for t in range(100):
        where = played.actions[:, t : t + 1]
        sums.scatter_add_(1, where, added[:, t : t + 1])
        counts.scatter_add_(1, where, torch.ones(20, 1, dtype=torch.float64))
        spent.append(norm(sums / counts.clamp(min=1)))
    assert torch.stack(spent).max() <= budget + 1e-6
    torch.testing.assert_close(attacker.cost().double(), spent[-1], atol=1e-5, rtol=0)
    if budget == 0.3:  # they want more, and take what there is
        assert torch.stack(spent).max() > 0.29


@pytest.mark.parametrize(
    ("attack", "least"), [("jun_oracle(margin=1)", 0.9), ("jun_ucb(margin=1)", 0.9), ("ace", 0.85)]
)
def test_at_eps_one_ucb_pulls_the_worst_arm(attack, least):
    """The papers' guarantee, with 2 arms and a gap of 0.7. What ace takes beyond the gap becomes
    less as it learns, so that UCB looks at the other arm for longer."""
    env, tasks = arms(*[[0.9, 0.2], [0.2, 0.9]] * 10, horizon=400, noise_std=0.1)
    attacker = make_attacker(attack, AMPLE, env.config.facts())
    share = {}
    for eps in (0.0, 1.0):
        played = rollout(env, tasks, AGENTS.create("ucb1"), attacker, eps, rng=Rng(6))
        share[eps] = (played.actions == tasks.means.argmin(1)[:, None]).float().mean(1)
    assert share[0.0].max() < 0.1
    assert share[1.0].min() > least


class Greedy:
    """Pulls arm 0, arm 1, and then what has the best mean."""

    def reset(self, spec, batch, rng):
        self.sums, self.counts = torch.zeros(2, batch, spec.n_actions)

    def act(self, obs):
        pulled = int(self.counts.sum(1)[0])
        if pulled < self.counts.shape[1]:
            return torch.full((len(self.counts),), pulled)
        return (self.sums / self.counts).argmax(1)

    def observe(self, obs, actions, rewards, next_obs):
        self.sums.scatter_add_(1, actions[:, None], rewards[:, None])
        self.counts.scatter_add_(1, actions[:, None], torch.ones(len(actions), 1))


@pytest.mark.parametrize("name", ["jun_egreedy", "jun_ucb"])
def test_at_eps_one_a_greedy_victim_is_put_off_at_once(name):
    """The other arm is seen at most twice: its first pull may come before the target's, and is not
    attacked; the next puts its mean, that pull included, below all that the target's will be."""
    env, tasks = arms(*[[0.9, 0.2], [0.2, 0.9]] * 50, horizon=300, noise_std=0.1)
    attacker = make_attacker(name, AMPLE, env.config.facts())
    others = {}
    for eps in (0.0, 1.0):
        played = rollout(env, tasks, Greedy(), attacker, eps, rng=Rng(6))
        others[eps] = (played.actions != tasks.means.argmin(1)[:, None]).sum(1)
    assert (others[0.0] == 299).all()
    assert others[1.0][0::2].tolist() == [2] * 50, "arm 0, the better one, is pulled first"
    assert others[1.0][1::2].tolist() == [1] * 50, "the target is pulled first"


@pytest.mark.parametrize("name", WATCHING)
def test_an_episode_begins_with_nothing(name):
    env, tasks = arms([0.9, 0.2], [0.4, 0.6], horizon=30)
    attacker = ATTACKERS.create(name)
    agent = AGENTS.create("ts")
    first = rollout(env, tasks, agent, attacker, 0.4, rng=Rng(7))
    rollout(env, tasks.select(slice(0, 1)), agent, attacker, 1.0, rng=Rng(8))
    again = rollout(env, tasks, agent, attacker, 0.4, rng=Rng(7))
    assert torch.equal(first.proposed_rewards, again.proposed_rewards)
    attacker.reset(env.spec, tasks, Rng(1).streams(tasks.ids))
    assert (attacker.cost() == 0.0).all() and (attacker.adds().mean == 0.0).all()


def test_what_an_oracle_is_shown_is_what_was_just_proposed():
    env, tasks = arms([0.9, 0.2])
    attacker = begun(env, tasks, "ace")
    *_, last = shown(attacker, [(1, 0.3)], [(0, 0.8)])
    assert attacker.adds().mean[0, 0, 0] == pytest.approx(last.item(), abs=1e-6)


# As columns --------------------------------------------------------------------------------------


def test_they_are_a_kind_of_their_own():
    assert {untrained(name) for name in ALL} == {"literature"}
    assert untrained("ace(target=second)") == "literature"
    assert untrained("swap") == "structured" and untrained("uniform") == "random"
    names = [kind.name for kind in all_kinds()]
    assert names.index("random") < names.index("literature") < names.index("structured")
    assert named("jun_oracle").title == "literature: jun oracle"
    kind = next(kind for kind in all_kinds() if kind.name == "literature")
    assert set(kind.members) == set(ALL) <= set(ATTACKERS.names())


@pytest.mark.parametrize("environment", ["bandit", "linear_bandit"])
def test_they_are_evaluated(environment):
    asked = ("none", *ALL, "ace(target=second)")
    result = mi.evaluate(environment, ["ts"], preset="smoke", attackers=asked)
    assert [record.kind for record in result.records] == ["clean", *["literature"] * 5]
    assert all(record.norm <= record.budget for record in result.records)


def test_an_evaluation_tells_them_the_noise(command):
    code, stdout, stderr = command(
        "evaluate", "bandit", "--agents", "ts", "--attackers", "ace,ace(sigma=0.3)", "--preset",
        "smoke", "--replications", "1", "--set", "env.noise_std=0.8", "--json",
    )  # fmt: skip
    assert code == 0, stderr
    told, fixed = (r["mean"] for r in json.loads(stdout)["records"])
    assert told != fixed


def test_a_recipe_may_have_them(tmp_path):
    recipe = Recipe(
        name="asked", title="", environment="bandit", rows=(Row("ts", "ts"),),
        static=("none", "swap", *ALL), levels=(Level(budget=3.0),),
    )  # fmt: skip
    planned = plan(recipe, "smoke", 1)
    store = Store.open(tmp_path / "store")
    run_graph(planned.stages(), store)
    found = [r for cell in planned.cells for r in store.get(cell.name).records()]
    assert {r["kind"] for r in found if r["attacker"] in ALL} == {"literature"}
    asked = mi.evaluate("bandit", ["ts"], preset="smoke", attackers=ALL)
    means = {r["attacker"]: r["mean"] for r in found}
    assert all(means[record.column] == record.mean for record in asked.records)


@pytest.mark.parametrize("name", ALL)
def test_rooms_refuse_them_in_one_line(name):
    with pytest.raises(UserError, match=f"attacker '{name}' needs an environment whose tasks are"):
        mi.evaluate("darkroom2", ["uniform"], preset="smoke", attackers=(name,))
