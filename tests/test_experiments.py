"""Recipes, the graph, and reproduce: nothing twice, nothing lost, the same records everywhere."""

import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from mithridate import versions
from mithridate.agents.named import make_agent
from mithridate.errors import UserError
from mithridate.experiments.artifacts import Artifact
from mithridate.experiments.claims import Claim
from mithridate.experiments.estimate import _step, seconds, work
from mithridate.experiments.executors import run_graph
from mithridate.experiments.plan import plan
from mithridate.experiments.recipes import MODELS, RECIPES, Level, Model, Recipe, Row
from mithridate.experiments.stages import _copy_shipped, _filled, in_order, perform
from mithridate.experiments.store import Store
from mithridate.model.weights import find
from mithridate.registry import AGENTS
from mithridate.report.exports import export
from mithridate.report.views import summarise

MAIN = RECIPES["bandit_main"]
ARGUMENTS = ("bandit_main", "--preset", "smoke", "--replications", "1")


def without_time(records):
    return sorted(
        ({k: v for k, v in r.items() if k != "seconds"} for r in records),
        key=lambda r: json.dumps(r, sort_keys=True),
    )


def records_of(root):
    store = Store(root)
    return without_time(r for name in store.names() for r in store.get(name).records())


# Recipes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["none", "search(itself)"])
def test_a_row_may_act_at_another_temperature(column):
    """Where it is measured, and where a search looks for the worst against it."""
    rows = {"AT-DPT": [], "AT-DPT (T = 1)": []}
    for stage in plan(MAIN, "smoke", 1).cells:
        label, _, met = stage.label.partition(" #")[0].partition(" / ")
        if label in rows and met == column:
            rows[label].append(stage)
    (usual,), (hot,) = rows.values()
    assert usual.config["cell"]["victim"] == "(input)"
    assert hot.config["cell"]["victim"] == "(input)(temperature=1)"
    assert usual.inputs["victim"] is hot.inputs["victim"], "the same model"
    if column != "none":
        assert hot.inputs["attack"].config["target"] == "(input)(temperature=1)"


def test_what_stands_behind_an_input_is_how_the_model_acts(smoke_model):
    cold = _filled("(input)(temperature=0.01)", Artifact("x", smoke_model.parent, None))
    assert make_agent(cold)[1].temperature == 0.01


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("preset", ["smoke", "laptop", "paper"])
def test_every_recipe_can_be_planned(name, preset):
    planned = plan(RECIPES[name], preset)
    stages = planned.stages()
    seen = set()
    for stage in stages:
        assert all(part.name in seen for part in stage.inputs.values()), "inputs come first"
        seen.add(stage.name)
    assert len(seen) == len(stages)
    assert seconds(stages, None) > 0


def test_the_main_recipe_is_the_papers_table():
    planned = plan(MAIN, "laptop")
    kinds = [stage.kind for stage in planned.stages()]
    assert {k: kinds.count(k) for k in set(kinds)} == {
        "pretrain": 3, "train": 2 * 3, "attack": (6 + 11) * 3, "evaluate": (12 * 14 + 11) * 3,
    }  # fmt: skip
    for cell in planned.cells:
        if "attack" in cell.inputs:
            replication, target = (cell.config["cell"][key] for key in ("replication", "target"))
            met = replication if target == "itself" else (replication + 1) % 3
            assert cell.inputs["attack"].config["seed"] == met, "crossed, but for their own"
            trained_along = cell.about.kind == "cotrained"
            assert cell.inputs["attack"].kind == ("train" if trained_along else "attack")


def test_a_changed_learning_rate_changes_exactly_the_stages_below_it():
    before = {s.label: s for s in plan(MAIN, "smoke").stages()}
    sets = ["pretrain.optimiser.learning_rate=0.001"]
    after = {s.label: s for s in plan(MAIN, "smoke", sets=sets).stages()}
    assert before.keys() == after.keys()
    for label, stage in before.items():
        below = any(s.kind == "pretrain" for s in in_order([stage]))
        assert (stage.name != after[label].name) == below, label


@pytest.mark.parametrize(
    "text",
    ["steps=3", "pretran.steps=3", "pretrain.stepz=3", "pretrain.seed=7", "evaluate.eps=0.2",
     "evaluate.budget=1", "pretrain.env.arms=3", "train.start=x"],
)  # fmt: skip
def test_a_wrong_setting_is_refused(text):
    with pytest.raises(UserError, match="begin with the stage|unknown key|the recipe's own"):
        plan(MAIN, "smoke", sets=[text])


@pytest.mark.parametrize(
    ("recipe", "text", "message"),
    [
        ("bandit_main", 'train.threats=[{"attacker":"nope"}]', "unknown attacker 'nope'"),
        ("bandit_main", 'train.threats=[{"attacker":"uniform(range=-1)"}]', "range"),
        ("bandit_main", 'train.threats=[{"attacker":"uniform","target":"ts"}]', "does not learn"),
        ("bandit_main", 'train.threats=[{"target":"rival"}]', "there is none"),
        ("bandit_main", 'train.threats=[{"target":"oracle"}]', "knows the attack"),
        ("bandit_main", 'train.threats=[{"target":"npg"}]', "numbered states"),
        ("bandit_main", 'train.threats=[{"target":"nobody"}]', "unknown agent 'nobody'"),
        ("bandit_main", 'train.threats=[{},{"share":1e-9}]', "too small"),
        ("bandit_main", "train.rounds=1" + 25 * "0", "too large"),
        ("bandit_main", 'attack.attacker="swap"', "does not learn"),
        ("bandit_main", 'attack.attacker="tabular"', "several attack keys"),
        ("bandit_main", 'attack.attacker="gaussian(budget=9)"', "exceeds"),
        ("bandit_full", "distill.attacker=nope", "unknown attacker"),
        ("bandit_full", "distill.attacker=gaussian", "learns"),
        ("darkroom2_main", 'attack.attacker="few_arms"', "few_arms"),
        ("bandit_main", "pretrain.steps=\n3", "line breaks"),
    ],
)
def test_what_cannot_be_run_is_found_before_anything_is_written(
    recipe, text, message, command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, stdout, stderr = command("reproduce", recipe, "--preset", "smoke", "--set", text)
    assert (code, stdout, stderr.count("\n")) == (2, "", 1) and message in stderr
    assert not list(tmp_path.iterdir())


def test_plans_that_differ_have_names_that_differ():
    names = {
        plan(MAIN, "smoke", r, seed, sets).name
        for r in (1, 2) for seed in (0, 1) for sets in ((), ("pretrain.steps=9",))
    }  # fmt: skip
    assert len(names) == 8


def test_a_moved_store_goes_on(tmp_path, monkeypatch):
    """Unfinished work belongs to the paths of its inputs; elsewhere it starts anew, not never."""
    stages = plan(MAIN, "smoke", 1).stages()
    store = Store.open(tmp_path / "here")
    pretrained = next(s for s in stages if s.kind == "pretrain")
    training = next(s for s in stages if s.kind == "train")
    perform(pretrained, store)

    def stop(*args, **more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mithridate.training.model_run.save_model", stop)
        with pytest.raises(KeyboardInterrupt):
            perform(training, store)
    (tmp_path / "here").rename(tmp_path / "there")
    assert perform(training, Store(tmp_path / "there")) == "computed"


def test_brief_rows_and_rows_of_one_level():
    full = RECIPES["bandit_full"]
    for preset, sub, ad in (("laptop", {(0.4, 0)}, {(0.4, 0)}), ("paper", None, None)):
        seen = {}
        for cell in plan(full, preset).cells:
            where = (cell.config["eps"], cell.config["cell"]["replication"])
            seen.setdefault(cell.config["cell"]["label"], set()).add(where)
        everything = {(eps, r) for eps in (0.1, 0.2, 0.4) for r in range(full.replications[preset])}
        assert seen["AT-DPT"] == seen["TS"] == everything
        assert seen["AT-DPT (sub. 30%)"] == (sub or everything)
        assert seen["AD [TS]"] == (ad or {(0.4, r) for r in range(10)})


def test_a_costly_row_has_fewer_tasks_and_columns_outside_the_paper_preset():
    recipe = RECIPES["miniworld_full"]
    laptop, paper = plan(recipe, "laptop"), plan(recipe, "paper", 1)
    cells = [c for c in laptop.cells if c.config["cell"]["label"] == "PPO"]
    assert {c.config["tasks"] for c in cells} == {40}
    assert {(c.about.kind, c.about.who) for c in cells} == {
        ("clean", "none"), ("random", "uniform"),
    }  # fmt: skip
    assert {s.config["tasks"] for s in laptop.stages() if s.kind == "attack"} == {200}
    assert {c.config["cell"]["victim"] for c in cells} == {"ppo"}
    smoke = [c for c in plan(recipe, "smoke", 1).cells if c.config["cell"]["label"] == "PPO"]
    assert {c.config["cell"]["victim"] for c in smoke} == {"ppo(episodes=2)"}
    cells = [c for c in paper.cells if c.config["cell"]["label"] == "PPO"]
    assert {c.config["tasks"] for c in cells} == {200}
    assert len(cells) == len([c for c in paper.cells if c.config["cell"]["label"] == "DPT"])


def test_estimates_know_that_views_and_ppo_take_longer(monkeypatch):
    def cell(recipe, label):
        return next(
            c
            for c in plan(RECIPES[recipe], "laptop", 1).cells
            if c.config["cell"]["label"] == label and c.about.kind == "clean"
        )

    seen, room = cell("miniworld_main", "DPT"), cell("darkroom2_main", "DPT")
    assert work(seen) > 4 * work(room), "250 steps with frames, and 200 without"
    ppo, oracle = cell("miniworld_main", "PPO"), cell("miniworld_main", "oracle")
    steps = 101 * ppo.config["tasks"] / oracle.config["tasks"]  # the evaluated episode, too
    assert work(ppo) > 100 * steps * work(oracle), "every step has its share of the updates"
    for nonsense in ("much", math.nan, math.inf, -1.0):
        monkeypatch.setattr(AGENTS.get("ppo"), "step_seconds", nonsense)
        _step.cache_clear()
        assert work(ppo) == pytest.approx(steps * work(oracle))
    _step.cache_clear()


def test_what_a_level_means_for_each_stage():
    budgets = plan(RECIPES["bandit_budgets"], "laptop", 2)
    trainings = [s for s in budgets.stages() if s.kind == "train"]
    assert len(trainings) == 2 and {s.config["budget"] for s in trainings} == {1.0}
    attacks = [s for s in budgets.stages() if s.kind == "attack"]
    assert {s.config["budget"] for s in attacks} == {1.0, 3.0, 5.0}
    full = plan(RECIPES["bandit_full"], "laptop")
    for cell in full.cells:
        if cell.config["cell"]["label"] == "RTS (C known)":
            eps = cell.config["eps"]
            assert cell.config["cell"]["victim"] == f"rts(level=known,eps={eps:g},budget=3)"
    sources = {
        s.config["source"]: s.config["attacker"] for s in full.stages() if s.kind == "distill"
    }
    assert sources.keys() == {"ts", "crucb(alpha=0.4)"} and sources["ts"] == "none"
    assert {s.config["eps"] for s in full.stages() if s.kind == "train"} == {0.1, 0.2, 0.4}


def test_a_rival_is_of_the_same_level_and_replication():
    planned = plan(RECIPES["bandit_adaptive_full"], "laptop", 2)
    trained = [s for s in planned.stages() if "rival" in s.inputs]
    assert len(trained) == 6
    for stage in trained:
        rival = stage.inputs["rival"]
        assert {k: rival.config[k] for k in ("eps", "budget", "seed")} == {
            k: stage.config[k] for k in ("eps", "budget", "seed")
        }
        assert rival.inputs == {"start": stage.inputs["start"]}
        assert stage.config["rival"] == "(input)" and rival.config["rival"] is None
    paper = plan(RECIPES["bandit_adaptive_full"], "paper", 1)
    assert not [s for s in paper.stages() if "rival" in s.inputs]


def test_a_training_may_start_from_another_model(monkeypatch):
    second = Model("train", {"eps": 0.2, "rounds": 7}, start="at-dpt-b1", paper=Model("train"))
    monkeypatch.setitem(MODELS, "second", second)
    recipe = replace(TINY, rows=(Row("second", "second"),), trained={})
    trained = plan(recipe, "laptop", 2).trainings
    assert len(trained) == 4, "two levels and two replications"
    for stage in trained:
        first = stage.inputs["start"]
        assert (first.kind, first.config["budget"], first.config["eps"]) == ("train", 1.0, 0.2)
        assert first.config["seed"] == stage.config["seed"]
        assert first.inputs["start"].kind == "pretrain"
    assert {s.inputs["start"].kind for s in plan(recipe, "paper", 1).trainings} == {"pretrain"}


def test_a_recipe_may_have_adaptive_attackers_at_some_levels_only():
    mixture = RECIPES["bandit_mixture"]
    low, _, high = (mixture.columns(level) for level in mixture.levels)
    assert low == [c for c in high if c.kind != "adaptive"] != high


def test_what_the_paper_does_not_have_is_compared_with_nothing(finished, monkeypatch):
    """Without a table, not even cells that another table of the paper has."""
    monkeypatch.setattr("mithridate.report.paper.is_the_papers", lambda env: True)
    assert any(c.paper for s in summarise(finished) for t in s.tables for c in t.cells())
    monkeypatch.setitem(RECIPES, MAIN.name, replace(MAIN, table=None))
    assert not any(c.paper for s in summarise(finished) for t in s.tables for c in t.cells())


TINY = Recipe(
    name="tiny", title="Every kind of stage", environment="bandit",
    rows=(
        Row("AT-DPT (A)", "at-dpt-adaptive"), Row("AD [TS]", "ad-ts"), Row("TS", "ts"),
        Row("posterior oracle", "posterior_oracle"),
    ),
    static=("none",),
    trained={
        "learned": ("AD [TS]",), "kept": ("TS",), "adaptive": ("TS",), "from_nothing": ("TS",),
    },
    table="bandit_adaptive_full",
    levels=(Level(0.4, 1.0), Level(0.4, 3.0)),
)  # fmt: skip


def test_every_kind_of_stage_runs_and_is_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(RECIPES, "tiny", TINY)
    adaptive = MODELS["at-dpt-adaptive"]
    few = {
        **adaptive.settings,
        "rounds": 6,
        "synthetic": {**adaptive.settings["synthetic"], "rounds": 3},
    }
    monkeypatch.setitem(MODELS, "at-dpt-adaptive", replace(adaptive, settings=few))
    store = Store.open(tmp_path / "store")
    planned = plan(TINY, "smoke", 1)
    store.remember(planned.name, planned.describe())
    run_graph(planned.stages(), store)
    (section,) = summarise(store)
    assert section.done == section.total
    for table, budget in zip(section.tables, (1.0, 3.0), strict=True):
        assert table.level.budget == budget
        assert table.columns == [
            "adaptive(TS)", "from_nothing(TS)", "learned(AD [TS])", "kept(TS)", "none",
        ]  # fmt: skip
        assert all(cell.mean is not None for cell in table.cells())
        assert not [flag for flag in table.flags if flag.code == "over-budget"]
    attacked = {r["attacker"] for r in section.records if r["target"] == "TS"}
    assert attacked == {"adaptive", "adaptive(tilt=0)", "gaussian(keep=best)"}
    curves = [curve.title for curve in section.curves if "of adversarial training" in curve.title]
    assert [title.rpartition("train ")[2] for title in curves] == [
        f"at-dpt-adaptive, eps 0.4, B {budget}" for budget in (1, 3)
    ], "each training has curves of its own"
    assert set(section.curves[0].lines) >= {"AT-DPT", "DPT (frozen)", "TS", "AT-DPT, clean tasks"}
    attacks = {c.title: c.lines for c in section.curves if "round of attack" in c.title}
    assert set(attacks) == {f"Per round of attack: eps 0.4, B {budget}" for budget in (1, 3)}
    for lines in attacks.values():
        assert set(lines) == {"AD [TS]", "adaptive: TS", "from nothing: TS"}
        assert [x for x, _ in lines["AD [TS]"]] == [1, 2, 3]
    ratios = section.ratios()
    assert {victim for victim, *_ in ratios} == {"AT-DPT (A)", "AD [TS]", "TS"}
    for victim, ratio, column, level in ratios:
        table = next(t for t in section.tables if t.level == level)
        cells = {(c.victim, c.column): c.mean for c in table.cells()}
        assert ratio == cells[victim, column] / cells["posterior oracle", column]
        for other in table.columns:
            assert ratio >= cells[victim, other] / cells["posterior oracle", other]
    names = {path.name for path in export(store, tmp_path / "files")}
    assert {"tiny-smoke-1x-s0-eps0.4-B1.csv", "tiny-smoke-1x-s0-eps0.4-B3.tex"} <= names


# Running ----------------------------------------------------------------------------------------


def test_a_second_run_computes_nothing(finished):
    stages = plan(MAIN, "smoke", 1).stages()
    assert all(perform(stage, finished) == "done" for stage in stages)


def test_records_are_complete_and_honest(finished):
    records = records_of(finished.root)
    assert len(records) == 12 * 14 + 11  # the oracle has no attackers of its own
    assert all(r["norm"] <= r["budget"] * (1 + 1e-6) for r in records)
    targets = {r["target"] for r in records if r["kind"] == "paper"}
    assert targets == set(MAIN.trained["paper"])


def test_pandas_can_read_the_records_directly(finished):
    pandas = pytest.importorskip("pandas")
    path = next(finished.root.glob("artifacts/evaluate-*/records.jsonl"))
    assert pandas.read_json(path, lines=True).loc[0, "environment"] == "bandit"


def test_a_damaged_artifact_is_recomputed_with_the_same_result(finished, tmp_path):
    name = next(n for n in finished.names() if n.startswith("evaluate"))
    path = finished.root / "artifacts" / name / "records.jsonl"
    before = json.loads(path.read_text())
    path.write_text(path.read_text().replace("0", "1", 1))
    store = Store(finished.root)
    assert store.get(name) is None
    run_graph(plan(MAIN, "smoke", 1).stages(), store)
    assert without_time(store.get(name).records()) == without_time([before])


def reproduce(store, *more, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "mithridate", "reproduce", *ARGUMENTS, "--store", str(store), *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        env={**os.environ, "MITHRIDATE_CLAIM_SECONDS": "2"},
    )  # fmt: skip


def artifacts(store):
    path = store / "artifacts"
    return len(list(path.iterdir())) if path.exists() else 0


def finish(process):
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err.decode()
    return out.decode()


def test_killed_five_times_and_finished_has_the_same_records(finished, tmp_path):
    store, moments, killed = tmp_path / "store", random.Random(0), 0
    for target in (0, 3, 12, 30, 55):
        process = reproduce(store)
        while process.poll() is None and artifacts(store) < target:
            time.sleep(0.01)
        time.sleep(moments.random() * 0.5 + (2.0 if target == 0 else 0.0))
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        process.communicate()
    assert killed == 5
    finish(reproduce(store))
    assert records_of(store) == records_of(finished.root)


def test_two_at_once_compute_nothing_twice(finished, tmp_path):
    store = tmp_path / "store"
    first, second = reproduce(store, "--json"), reproduce(store, "--json")
    computed = [json.loads(finish(p))["computed"] for p in (first, second)]
    assert not set(computed[0]) & set(computed[1])
    assert len(computed[0]) + len(computed[1]) == len(plan(MAIN, "smoke", 1).stages())
    assert records_of(store) == records_of(finished.root)


def test_local_processes_give_the_same_records(finished, tmp_path):
    finish(reproduce(tmp_path / "store", "--executor", "processes", "--workers", "2"))
    assert records_of(tmp_path / "store") == records_of(finished.root)


# The command ------------------------------------------------------------------------------------


def test_list_and_dry_run(command, tmp_path, finished):
    code, stdout, _ = command("reproduce", "--list")
    assert code == 0 and "bandit_main" in stdout and "bandit_training" in stdout
    store = tmp_path / "store"
    code, stdout, _ = command("reproduce", *ARGUMENTS, "--store", store, "--dry-run")
    assert code == 0 and "to do" in stdout and not store.exists()
    code, stdout, _ = command("reproduce", *ARGUMENTS, "--store", finished.root, "--dry-run")
    assert " 0 to do" in stdout


def test_store_commands(command, finished, tmp_path):
    code, stdout, _ = command("store", "ls", "--store", finished.root)
    assert code == 0 and "train at-dpt #1" in stdout
    code, stdout, _ = command("store", "verify", "--store", finished.root)
    assert (code, " 0 damaged" in stdout) == (0, True)
    code, stdout, _ = command("store", "gc", "--store", finished.root, "--dry-run")
    assert code == 0
    code, _, stderr = command("store", "ls", "--store", tmp_path / "none")
    assert code == 2 and "there is no store" in stderr and stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce"], "which recipe"),
        (["reproduce", "bandit_mian"], "did you mean 'bandit_main'?"),
        (["reproduce", "bandit_main", "--preset", "smok"], "did you mean 'smoke'?"),
        (["reproduce", "bandit_main", "--executor", "slurm"], "unknown executor"),
        (["reproduce", "bandit_main", "--replications", "0"], "at least 1"),
        (["reproduce", "bandit_main", "--replications", "1001"], "at most 1000"),
        (["reproduce", "bandit_main", "--replications", str(10**20)], "at most 1000"),
        (["reproduce", "bandit_main", "--replications", "1e20"], "--replications"),
        (["reproduce", "all", "--replications", "1000"], "evaluations are more than"),
        (["reproduce", "bandit_main", "--seed", str(10**30)], "--seed"),
        (["reproduce", "bandit_main", "--workers", "1000"], "--workers"),
        (["reproduce", "bandit_main", "--executor", "ray", "--address", "a\nb"], "HOST:PORT"),
        (["reproduce", "bandit_main", "--executor", "ray", "--address", "h:99999"], "HOST:PORT"),
        (["reproduce", "bandit_main", "--store", 300 * "n"], "too long"),
        (["reproduce", "bandit_main", "--store", "a\nb"], "control characters"),
        (["reproduce", "bandit_main", "--store", "a\0b", "--dry-run"], "--store"),
        (["store", "verify", "--store", 300 * "n"], "too long"),
        (["reproduce", "bandit_main", "--set", "steps=1"], "begin with the stage"),
        (["report", "--store", "nowhere"], "there is no store in nowhere"),
    ],
)
def test_bad_input(arguments, message, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, stdout, stderr = command(*arguments)
    assert (code, stdout) == (2, "")
    assert message in stderr and stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command_line", [
    ["reproduce", *ARGUMENTS], ["reproduce", *ARGUMENTS, "--dry-run"], ["store", "ls"],
    ["store", "gc"], ["report"],
])  # fmt: skip
@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("file", "is not a store"),
        ("nowhere", "a link to nowhere"),
        ("file/in", "directory"),
        ("other", "is not a store"),
        ("future", "has format 7"),
        ("array", "not a JSON object"),
        ("text", "no format"),
        ("pipe", "not a regular file"),
        ("linked", "does not lie inside"),
    ],
)
def test_places_that_are_no_store(command_line, store, message, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "nowhere").symlink_to("never")
    for name in ("other", "future", "array", "text", "pipe", "linked"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    (tmp_path / "future" / "store.json").write_text('{"format": 7}')
    (tmp_path / "array" / "store.json").write_text("[]")
    (tmp_path / "text" / "store.json").write_text('{"format": "1"}')
    os.mkfifo(tmp_path / "pipe" / "store.json")
    (tmp_path / "linked" / "store.json").symlink_to(tmp_path / "file")
    before = sorted(tmp_path.rglob("*"))
    code, stdout, stderr = command(*command_line, "--store", store)
    assert (code, stdout, stderr.count("\n")) == (2, "", 1) and message in stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dry_run_of_many_stages_is_a_summary(command, tmp_path):
    # At this size AT-DPT and AT-DPT (as printed) are the same training, and share its searches.
    many = ("reproduce", "bandit_main", "--preset", "smoke", "--dry-run", "--store", tmp_path / "s")
    code, stdout, _ = command(*many, "--replications", "100")
    assert code == 0 and "19700 stages, 19700 to do" in stdout and stdout.count("\n") < 20
    assert re.search(r"evaluate\s*│ to do │\s*17900", stdout)
    code, stdout, _ = command(*many, "--replications", "1", "--verbose")
    assert code == 0 and stdout.count("evaluate-") == 179
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("words", ["store ls", "store verify", "store ls --json"])
def test_a_reader_that_has_gone_is_no_traceback(words, finished):
    line = f"'{sys.executable}' -m mithridate {words} --store '{finished.root}' | true"
    done = subprocess.run(line, shell=True, capture_output=True, timeout=60)
    assert done.stderr == b""


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_interrupted_it_ends_in_one_line_and_goes_on(executor, finished, tmp_path):
    """Ctrl-C in a terminal is for all processes of the command at once."""
    store = tmp_path / "store"
    process = reproduce(store, "--executor", executor, start_new_session=True)
    while process.poll() is None and artifacts(store) < 3:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    said = b"error: interrupted: finished stages are kept; the same command goes on from there\n"
    assert err == said
    assert os.listdir(store / "claims") == [], "nobody has to wait for the dead"
    finish(reproduce(store))
    assert records_of(store) == records_of(finished.root)


def test_shipped_models_stand_in_only_for_the_same_training(tmp_path, monkeypatch):
    stages = plan(MAIN, "laptop", 1).stages()
    shipped = next(s for s in stages if s.kind == "pretrain")
    store = Store.open(tmp_path / "store")
    assert perform(shipped, store, shipped=True) == "computed"
    assert store.get(shipped.name).manifest.shipped
    work = store.work("train-0")
    for sets, seed in ((["pretrain.steps=6001"], 0), ([], 99)):
        other = next(
            s for s in plan(MAIN, "laptop", 1, seed, sets).stages() if s.kind == "pretrain"
        )
        assert not _copy_shipped(other, work, {})
    trained = next(s for s in stages if s.kind == "train")
    assert _copy_shipped(trained, work, {"start": store.get(shipped.name)})
    with monkeypatch.context() as patch:
        patch.setitem(versions.STAGES, "train", 99)
        assert not _copy_shipped(trained, work, {"start": store.get(shipped.name)})
    elsewhere = tmp_path / "another start"
    elsewhere.mkdir()
    for suffix in (".safetensors", ".json"):
        shutil.copy(find("dpt-bandit-s1").with_suffix(suffix), elsewhere / f"model{suffix}")
    assert not _copy_shipped(trained, work, {"start": Artifact("x", elsewhere, {})})
    both = {"start": store.get(shipped.name), "rival": store.get(shipped.name)}
    assert not _copy_shipped(trained, work, both), "trained without a rival"
    adaptive = next(
        s for s in plan(RECIPES["bandit_adaptive"], "laptop", 1).stages() if "rival" in s.inputs
    )
    assert not _copy_shipped(adaptive, work, both), "another rival"
    rival = adaptive.inputs["rival"]
    perform(rival, store, shipped=True)
    right = {"start": store.get(shipped.name), "rival": store.get(rival.name)}
    assert _copy_shipped(adaptive, work, right)
    card = json.loads((work / "out" / "model.json").read_text())
    assert card["training"]["rival"] == "at-dpt-v1-bandit-s0"


def test_who_was_taken_for_dead_publishes_nothing(tmp_path, monkeypatch):
    store = Store.open(tmp_path / "store")
    stage = next(s for s in plan(MAIN, "smoke", 1).stages() if not s.inputs)
    monkeypatch.setattr(Claim, "held", lambda self: False)
    assert perform(stage, store) == "busy"
    assert store.names() == []


def test_a_dry_run_says_what_would_be_taken_from_the_package(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def state(*more):
        code, out, _ = command("reproduce", "linear_main", "--dry-run", "--verbose", *more)
        line = next(line for line in out.splitlines() if "train at-dpt #1" in line)
        count = re.search(r"(\d+) stages, (\d+) to do", out)
        return code, "shipped" in line, int(count[1]) - int(count[2])

    assert state() == (0, False, 0)
    assert state("--shipped") == (0, True, 6), "two replications of DPT, AT-DPT, and as printed"
    assert state("--shipped", "--set", "train.rounds=9") == (0, False, 2)
    assert not list(tmp_path.iterdir())
