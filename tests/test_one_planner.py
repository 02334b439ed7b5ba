"""The same question through the library, the command and a recipe has the same answer."""

import json

import pytest

import mithridate as mi
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.evaluation.columns import attack_config
from mithridate.evaluation.kinds import trained_kinds
from mithridate.experiments.executors import run_graph
from mithridate.experiments.plan import plan
from mithridate.experiments.recipes import Level, Recipe, Row
from mithridate.experiments.store import Store
from mithridate.settings import PRESETS, resolve
from mithridate.stage_config import AttackConfig, EvaluateConfig

QUESTIONS = {
    "bandit": (("ts", "crucb"), "swap", 3.0),
    "linear_bandit": (("linucb", "crlinucb"), "mirror", 3.0),
    "darkroom2": (("q_learning", "npg"), "swap_goals", 10.0),
}
"""By environment: two agents, a structured attack, the budget that the presets have."""


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def recipe_for(env: str, **more) -> Recipe:
    agents, structured, budget = QUESTIONS[env]
    return Recipe(
        name="asked", title="", environment=env, rows=tuple(Row(a, a) for a in agents),
        static=("none", structured), trained={"learned": agents[:1]},
        levels=(Level(budget=budget),), **more,
    )  # fmt: skip


def numbers(records) -> dict:
    return {
        (r["agent"], r["kind"], r["attacker"], r["target"], r["replication"]): (
            r["mean"], r["ci95"], r["norm"], r["eps"], r["budget"], r["tasks"],
        )
        for r in records
    }  # fmt: skip


@pytest.mark.parametrize("env", QUESTIONS)
def test_three_ways_to_ask_give_one_answer(env, tmp_path, command):
    agents, structured, _ = QUESTIONS[env]
    attackers = ("none", structured, f"learned({agents[0]})")
    called = mi.evaluate(env, agents, preset="smoke", attackers=attackers, replications=2)
    (tmp_path / "runs").rename(tmp_path / "earlier")  # the command trains attackers of its own
    code, stdout, stderr = command(
        "evaluate", env, "--agents", ",".join(agents), "--attackers", ",".join(attackers),
        "--preset", "smoke", "--replications", "2", "--json",
    )  # fmt: skip
    assert code == 0, stderr
    planned = plan(recipe_for(env), "smoke", 2)
    store = Store.open(tmp_path / "store")
    run_graph(planned.stages(), store)
    reproduced = [r for cell in planned.cells for r in store.get(cell.name).records()]
    answers = [
        numbers(records)
        for records in (called.to_json()["records"], json.loads(stdout)["records"], reproduced)
    ]
    assert len(answers[0]) == 2 * 3 * 2
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("env", QUESTIONS)
def test_attackers_are_trained_alike_in_every_preset(env, preset):
    """The paper's attackers in rooms are others than the laptop's."""
    (target, _), _, budget = QUESTIONS[env]
    spec = make_env(env).spec
    config = resolve(EvaluateConfig, "evaluate", env, preset)
    assert config.budget == budget
    for kind in trained_kinds().values():
        if kind.with_model or not kind.fits(spec):
            continue
        recipe = Recipe(
            name="asked", title="", environment=env, rows=(Row(target, target),), static=(),
            trained={kind.name: (target,)}, levels=(Level(budget=budget),),
        )  # fmt: skip
        stages = [s for s in plan(recipe, preset, 2).stages() if s.kind == "attack"]
        evaluated = [attack_config(kind, config, target, seed).to_json() for seed in (0, 1)]
        assert sorted((s.config for s in stages), key=lambda c: c["seed"]) == evaluated
        if kind.name == "learned":  # as `mithridate attack` trains them
            alone = resolve(AttackConfig, "attack", env, preset, target=target)
            assert evaluated[0] == alone.to_json()


def test_the_call_takes_presets_as_the_command_does(monkeypatch):
    seen = {}

    def stop(config, agents, **more):
        seen["config"] = config

    monkeypatch.setattr("mithridate.evaluation.crossplay.evaluate_config", stop)
    mi.evaluate("darkroom2", ["npg"])
    command = resolve(EvaluateConfig, "evaluate", "darkroom2")
    assert seen["config"] == command and (command.budget, command.rounds) == (10.0, 60)
    mi.evaluate("linear_bandit", ["linucb"], preset="smoke", tasks=7)
    assert seen["config"] == resolve(EvaluateConfig, "evaluate", "linear_bandit", "smoke", tasks=7)
    own = make_env("darkroom2", size=4, horizon=30)
    mi.evaluate(own, ["npg"], preset="smoke")
    assert seen["config"].env == own.config and seen["config"].budget == 10.0
    with pytest.raises(UserError, match="unknown preset 'large'"):
        mi.evaluate("bandit", ["ts"], preset="large")


def test_what_rounds_mean():
    """Those of an evaluation are those of its attackers, unless they are networks."""
    learned, adaptive = trained_kinds()["learned"], trained_kinds()["adaptive"]

    def rounds(kind, *sets):
        config = resolve(EvaluateConfig, "evaluate", "bandit", "laptop", sets)
        return attack_config(kind, config, "ts", 0).rounds

    assert (rounds(learned), rounds(learned, "rounds=5")) == (20, 5)
    assert rounds(adaptive, "rounds=5") == 40 and rounds(adaptive, "adaptive_rounds=6") == 6

    def planned(*sets):
        stages = plan(recipe_for("bandit"), "laptop", 1, sets=sets).stages()
        return {s.config["rounds"] for s in stages if s.kind == "attack"}

    assert planned() == {20} and planned("evaluate.rounds=5") == {5}
    assert planned("evaluate.rounds=5", "attack.rounds=6") == {6}, "the stage's own comes last"


def test_a_preset_is_not_a_setting(command):
    code, _, stderr = command(
        "evaluate", "bandit", "--agents", "ts", "--set", "preset=smoke",
    )  # fmt: skip
    assert code == 2 and "--preset" in stderr
    with pytest.raises(UserError, match="the recipe's own"):
        plan(recipe_for("bandit"), "smoke", 1, sets=["evaluate.preset=paper"])


def test_kinds_that_make_no_sense_are_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(UserError, match="'kept' make no sense in 'darkroom2'"):
        mi.evaluate("darkroom2", ["npg"], preset="smoke", attackers=("learned", "kept"))
    assert not (tmp_path / "runs").exists()
