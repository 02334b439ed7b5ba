"""Held-out goals: which pairs a part of Darkroom2 has, and that trainings keep to theirs."""

from collections import Counter

import pytest

from mithridate.agents.named import make_agent
from mithridate.config import EnvConfig
from mithridate.envs import make_env
from mithridate.envs.darkroom import HELD_OUT, SEEN, Darkroom, DarkroomConfig
from mithridate.envs.darkroom_goals import pairs_of
from mithridate.errors import UserError
from mithridate.evaluation.columns import check_level
from mithridate.experiments.executors import run_graph
from mithridate.experiments.plan import plan
from mithridate.experiments.recipes import RECIPES, Level, Recipe, Row
from mithridate.experiments.store import Store
from mithridate.report.paper import is_the_papers, paper_value
from mithridate.report.views import summarise
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.settings import resolve
from mithridate.stage_config import AdversarialConfig, AttackConfig, EvaluateConfig, PretrainConfig
from mithridate.training.adversarial import train_adversarially
from mithridate.training.attack import attack
from mithridate.training.attack_files import LearnedAttack
from mithridate.training.pretrain import pretrain


def goals(tasks):
    """The pairs, in the order of the tasks."""
    lesser, best = ((tasks.rewards == worth).int().argmax(1).tolist() for worth in (1, 2))
    return list(zip(lesser, best, strict=True))


def sampled(n=3000, seed=1, first=0, **settings):
    return goals(make_env("darkroom2", **settings).sample_tasks(n, Rng(seed), first))


def listed(part, size=5, share=1 / 3, seed=0):
    return [tuple(pair) for pair in pairs_of(part, size**2, share, seed).tolist()]


def test_all_pairs_of_goals_occur_and_parts_are_disjoint():
    assert len(set(sampled(size=3))) == 72
    train, test = (set(sampled(size=3, held_out=0.25, part=p)) for p in ("train", "test"))
    assert (len(train), len(test)) == (54, 18) and not train & test


@pytest.mark.parametrize(("size", "share", "seed"), [(5, 1 / 3, 0), (5, 0.25, 3), (2, 0.5, 0)])
def test_parts_are_disjoint_complete_and_closed_under_a_swap(size, share, seed):
    train, test = (listed(part, size, share, seed) for part in ("train", "test"))
    assert len({*train, *test}) == len(train) + len(test) == size**2 * (size**2 - 1)
    assert sorted(train + test) == listed("all", size)
    for part in (train, test):
        assert set(part) == {(b, a) for a, b in part}, "two cells, in both orders or in none"


def test_two_thirds_are_seen_and_a_third_is_held_out():
    assert (len(listed("train")), len(listed("test"))) == (400, 200)
    assert set(sampled(9000, **SEEN)) == set(listed("train"))
    assert set(sampled(200, **HELD_OUT)) == set(listed("test"))


def test_the_split_and_its_order_are_written_down():
    """Models that were trained by it depend on it."""
    assert listed("test")[:5] == [(6, 15), (9, 15), (0, 18), (3, 16), (3, 11)]
    assert sampled(5, **HELD_OUT) == [(17, 24), (18, 3), (21, 15), (22, 11), (20, 12)]
    as_ever = [(19, 11), (1, 0), (9, 24), (3, 24), (18, 4)]
    assert sampled(5) == as_ever, "without a split"


def test_another_seed_is_another_split():
    assert set(listed("test")) != set(listed("test", seed=1))


def test_held_out_pairs_are_drawn_without_replacement():
    first, second = sampled(200, **HELD_OUT), sampled(200, first=200, **HELD_OUT)
    assert set(Counter(first).values()) == set(Counter(second).values()) == {1}
    assert first != second and set(first) == set(second)
    assert sampled(400, **HELD_OUT) == first + second, (
        "a task does not depend on how many there are"
    )
    assert sampled(30, first=190, **HELD_OUT) == (first + second)[190:220]
    other = sampled(200, seed=2, **HELD_OUT)
    assert other != first and set(other) == set(first), "replications permute"
    assert sampled(0, **HELD_OUT) == []
    assert len(set(sampled(400, **SEEN))) < 300, "trainings draw each task on its own"


def test_errors():
    with pytest.raises(UserError, match="part test is empty: raise held_out"):
        make_env("darkroom2", part="test")
    with pytest.raises(UserError, match="part test is empty"):
        make_env("darkroom2", part="test", held_out=0.001)
    with pytest.raises(UserError, match="part train is empty: lower held_out"):
        make_env("darkroom2", part="train", held_out=1.0)
    with pytest.raises(UserError, match="part"):
        make_env("darkroom2", part="seen")


def test_without_a_split_the_configuration_is_as_ever():
    """Its hash is in runs, stages and shipped models."""
    assert DarkroomConfig().hash() == "0b8e16f69e58"


def test_the_papers_values_stand_beside_held_out_results():
    for settings in ({}, SEEN, HELD_OUT, {"split_seed": 4}):
        env = make_env("darkroom2", **settings).config
        assert is_the_papers(env)
        assert paper_value(env, "AT-DPT", "none", eps=0.4, budget=10.0) is not None
    assert not is_the_papers(make_env("darkroom2", **HELD_OUT, size=4).config)
    assert EnvConfig.which_tasks == ()


# Trainings ---------------------------------------------------------------------------------------


@pytest.fixture
def met(monkeypatch):
    """The pairs of all tasks that are made."""
    found, sample = set(), Darkroom.sample_tasks

    def noted(self, *args, **kwargs):
        tasks = sample(self, *args, **kwargs)
        found.update(goals(tasks))
        return tasks

    monkeypatch.setattr(Darkroom, "sample_tasks", noted)
    return found


def small(config, stage, env, **settings):
    sets = [f"env.{name}={value}" for name, value in env.items()]
    return resolve(config, stage, "darkroom2", "smoke", sets, threads=1, **settings)


def test_training_never_meets_a_held_out_pair(met, tmp_path):
    """A model of the seen pairs acts among the others, and attackers learn there."""
    seen, held = (set(listed(part, size=3)) for part in ("train", "test"))
    start = pretrain(small(PretrainConfig, "pretrain", SEEN, steps=4), tmp_path / "dpt")
    assert met and met <= seen
    met.clear()
    config = small(AdversarialConfig, "train", SEEN, start=str(start), rounds=3, renew=0.5)
    trained = train_adversarially(config, tmp_path / "at-dpt")
    assert met and met <= seen
    met.clear()
    config = small(AttackConfig, "attack", HELD_OUT, target=str(trained), rounds=1)
    learned = LearnedAttack(attack(config, tmp_path / "attack"))
    env = learned.env
    _, agent = make_agent(str(trained))
    rollout(env, env.sample_tasks(24, Rng(0)), agent, learned.attacker, 0.4, rng=Rng(1))
    assert met == held
    at = {"eps": config.eps, "budget": config.budget}
    check_level(learned, small(EvaluateConfig, "evaluate", HELD_OUT, **at))
    with pytest.raises(UserError, match="another environment"):
        check_level(learned, small(EvaluateConfig, "evaluate", SEEN, **at))


# Recipes -----------------------------------------------------------------------------------------


APART = Recipe(
    name="apart", title="Held-out goals", environment="darkroom2",
    rows=(Row("AT-DPT", "at-dpt"), Row("oracle", "oracle")), static=("none",),
    trained={"learned": ("AT-DPT",)}, levels=(Level(0.4, 10.0),), table="darkroom2_main",
    pictures=(("AT-DPT", "none"),), training_env=SEEN, testing_env=HELD_OUT,
)  # fmt: skip


def test_a_recipe_trains_in_one_part_and_measures_in_another():
    for stage in plan(APART, "smoke", 2).stages():
        part = "train" if stage.kind in ("pretrain", "train") else "test"
        assert stage.config["env"]["part"] == part, stage.label
        assert stage.config["env"]["size"] == 3, "the preset's, too"


def test_its_stages_run_and_are_reported(met, tmp_path, monkeypatch):
    monkeypatch.setitem(RECIPES, APART.name, APART)
    store, planned = Store.open(tmp_path / "store"), plan(APART, "smoke", 1)
    store.remember(planned.name, planned.describe())
    run_graph(planned.stages(), store)
    (section,) = summarise(store)
    assert section.done == section.total
    assert all(cell.mean is not None for table in section.tables for cell in table.cells())
    assert len(met & set(listed("test", size=3))) >= 20, "as many as there are tasks"


def test_the_main_table_is_of_goals_that_no_model_has_met():
    for stage in plan(RECIPES["darkroom2_main"], "laptop", 1).stages():
        met = stage.kind in ("pretrain", "train")
        assert stage.config["env"] == DarkroomConfig(**(SEEN if met else HELD_OUT)).to_json()


def test_other_recipes_have_the_environment_of_the_preset():
    """A recipe without such settings has the stages that it always had."""
    stage = plan(RECIPES["darkroom2_full"], "laptop", 1).cells[0]
    assert stage.config["env"] == DarkroomConfig().to_json()


def test_attackers_of_a_training_do_not_fit_other_tasks():
    recipe = Recipe(
        name="kept", title="", environment="darkroom2", rows=APART.rows, static=("none",),
        trained={"cotrained": ("AT-DPT",)}, levels=APART.levels, training_env=SEEN,
        testing_env=HELD_OUT,
    )  # fmt: skip
    with pytest.raises(UserError, match="recipe kept measures in another environment"):
        plan(recipe, "smoke", 2)


def test_what_a_recipe_says_wrongly_of_its_environment_is_an_error():
    recipe = Recipe(
        name="slip", title="", environment="darkroom2", rows=APART.rows, static=("none",),
        testing_env={"parts": "test"},
    )  # fmt: skip
    with pytest.raises(UserError, match="unknown key 'parts'; did you mean 'part'"):
        plan(recipe, "smoke", 1)
