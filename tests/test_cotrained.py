"""Attackers that a model was trained along with: kept with it, and a column of tables."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mithridate.agents.in_context import load
from mithridate.agents.named import make_agent
from mithridate.errors import UserError
from mithridate.evaluation.kinds import Heading, named, trained_kinds
from mithridate.experiments import stages as stage_code
from mithridate.experiments.executors import run_graph
from mithridate.experiments.left_out import left_out
from mithridate.experiments.plan import plan
from mithridate.experiments.recipes import MODELS, RECIPES, Level, Recipe, Row
from mithridate.experiments.stages import keeps_attackers
from mithridate.experiments.store import OUT, Store
from mithridate.experiments.upkeep import verify
from mithridate.model import weights
from mithridate.report.html import render
from mithridate.report.views import summarise
from mithridate.rng import Rng
from mithridate.scores import step_scores
from mithridate.settings import resolve
from mithridate.stage_config import AdversarialConfig
from mithridate.tensor_files import part, read_tensors, tensors_sha256, write_sealed
from mithridate.training.adversarial import AdversarialTraining, train_adversarially
from mithridate.training.attack_files import KEPT, LearnedAttack, beside, cotrained
from mithridate.training.run_directory import RunDirectory
from mithridate.training.threats import chasing, last_tasks

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from ship import ship

SMALL_NETWORK = "adaptive(layers=1,heads=2,width=16)"
THREATS = [
    {"attacker": "gaussian", "share": 0.2, "eps": 0.2, "budget": 1.0},
    {"attacker": "none", "share": 0.1},
    {"attacker": SMALL_NETWORK, "share": 0.2},
    {"attacker": "gaussian", "share": 0.1, "target": "start"},
    {"attacker": "uniform", "share": 0.1},
    {"attacker": "gaussian", "share": 0.3},
]
"""Parts 0, 2 and 5 learn against the model."""
TINY = Recipe(
    name="bandit_main", title="Tiny", environment="bandit", static=("none",),
    rows=(Row("AT-DPT", "at-dpt"), Row("TS", "ts"), Row("oracle", "posterior_oracle")),
    trained={"cotrained": ("AT-DPT",)},
)  # fmt: skip
FEW = ("pretrain.steps=20", "train.iterations=2", "train.renew=0.25")


def training(model, *sets, **direct) -> AdversarialConfig:
    return resolve(
        AdversarialConfig, "train", "bandit", "smoke", ("iterations=2", *sets), start=str(model),
        threads=1, **direct,
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(smoke_model, tmp_path_factory):
    """Two trainings that differ in their seeds, and whose tasks are renewed."""
    root = tmp_path_factory.mktemp("trainings")
    for seed in (0, 1):
        train_adversarially(training(smoke_model, "renew=0.25", seed=seed), root / f"run-s{seed}")
    return root


@pytest.fixture(scope="module")
def mixed(smoke_model, tmp_path_factory):
    config = training(smoke_model, f"threats={json.dumps(THREATS)}", "renew=0.5", "rounds=4")
    return train_adversarially(config, tmp_path_factory.mktemp("mixed") / "run").parent


# The file ---------------------------------------------------------------------------------------


def test_the_attackers_of_the_last_round_are_kept(mixed):
    checkpoint = read_tensors(mixed / "checkpoint.safetensors", "checkpoint")[0]
    kept = read_tensors(mixed / KEPT, "attackers")[0]
    assert {name.partition(".")[0] for name in kept} == {"0", "2", "5"}
    ids = part(checkpoint, "tasks.")["ids"]
    for number, rows in ((0, slice(0, 4)), (2, slice(6, 10)), (5, slice(14, 20))):
        mine, theirs = part(kept, f"{number}.attacker."), part(checkpoint, f"attacker{number}.")
        assert tensors_sha256(mine) == tensors_sha256(theirs)
        assert torch.equal(kept[f"{number}.tasks.ids"], ids[rows])
    assert torch.equal(kept["5.attacker.ids"], ids[14:20].sort().values), "each task has its own"
    assert kept["5.attacker.offsets"].any(1).all(), "and has learned"


def test_who_reads_them_takes_the_largest_part_of_a_level(mixed):
    expected = {None: ("gaussian", 6), (0.4, 3.0): ("gaussian", 6), (0.2, 1.0): ("gaussian", 4)}
    for level, (attacker, tasks) in expected.items():
        found = LearnedAttack(mixed, level)
        assert (found.config.attacker, len(found.tasks)) == (attacker, tasks)
        assert level in (None, (found.config.eps, found.config.budget))
    assert found.attacker.cost().max() <= 1.0 + 1e-6
    assert LearnedAttack(mixed, (0.9, 3.0)).config.eps == 0.4, "who asks for it says what is wrong"


def test_a_network_is_kept_as_well(smoke_model, tmp_path):
    threats = [{"attacker": SMALL_NETWORK}]
    path = train_adversarially(
        training(smoke_model, f"threats={json.dumps(threats)}"), tmp_path / "run"
    )
    found = cotrained(path)
    assert found.attacker.updates > 0 and found.config.attacker == SMALL_NETWORK
    kept = part(read_tensors(path.parent / KEPT, "attackers")[0], "0.attacker.")
    assert tensors_sha256(found.attacker.tensors()) == tensors_sha256(kept)


@pytest.mark.parametrize("renew", [0.0, 0.1, 0.25, 0.5, 1.0])
def test_the_tasks_follow_from_the_configuration(smoke_model, renew):
    config = training(smoke_model, f"threats={json.dumps(THREATS)}", f"renew={renew}", "rounds=5")
    trainee = AdversarialTraining(config)
    first_met = {i: 0 for i in trainee.tasks.ids.tolist()}
    for step in range(trainee.rounds):
        trainee.step(step)
        played = max(0, step - config.synthetic.rounds + 1)
        for i in trainee.tasks.ids.tolist():
            first_met.setdefault(i, played)
    for number in chasing(config):
        mine = trainee.tasks.select(trainee.attacker.slices()[number])
        expected = last_tasks(config, trainee.env, number)
        assert tensors_sha256(mine.tensors()) == tensors_sha256(expected.tensors())
        ages = (config.rounds - mine.ids // config.tasks).tolist()
        assert ages == [config.rounds - first_met[i] for i in mine.ids.tolist()]


def test_each_task_has_its_age(runs):
    found = cotrained(runs / "run-s0" / "model.safetensors")
    updates = found.attacker.tensors()["updates"].squeeze(1)  # by id, and younger ids are larger
    rounds = updates / found.attacker.config.iterations
    assert rounds.tolist() == found.ages[found.tasks.ids.argsort()].tolist()
    assert len(set(rounds.tolist())) > 1


@pytest.mark.parametrize(
    "threats",
    [
        [{"attacker": "uniform"}, {"attacker": "none"}],
        [{"attacker": "gaussian", "target": "ts"}, {"attacker": "gaussian", "target": "start"}],
    ],
)
def test_without_attackers_that_learn_against_the_model_nothing_is_written(
    smoke_model, tmp_path, threats
):
    path = train_adversarially(
        training(smoke_model, f"threats={json.dumps(threats)}"), tmp_path / "run"
    )
    assert not beside(path).exists()
    with pytest.raises(UserError, match="no attackers are kept with"):
        cotrained(path)


def test_what_the_file_says_is_what_the_model_suffers(runs):
    path = runs / "run-s0" / "model.safetensors"
    found = cotrained(path)
    rng = Rng(0).child("adversarial", "kept", 0)
    scores = step_scores(
        found.env, found.tasks, load(path), found.attacker, 0.4, rng=rng, block=len(found.tasks)
    ).sum(1)
    assert found.metrics["final_mean"] == pytest.approx(scores.mean().item(), rel=1e-6)
    assert 0 < found.metrics["used_norm_max"] <= 3.0 + 1e-6


def test_who_is_stopped_before_they_are_written_writes_the_same(smoke_model, tmp_path, monkeypatch):
    def interrupted(*given):
        raise KeyboardInterrupt

    config = training(smoke_model, "renew=0.25")
    whole = train_adversarially(config, tmp_path / "whole").parent
    with monkeypatch.context() as patch:
        patch.setattr(AdversarialTraining, "keep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train_adversarially(config, tmp_path / "stopped")
    assert not (tmp_path / "stopped" / KEPT).exists()
    again = train_adversarially(config, tmp_path / "stopped").parent
    for name in (KEPT, "model.safetensors", "model.json"):
        assert (again / name).read_bytes() == (whole / name).read_bytes()


def test_the_file_does_not_depend_on_where_models_are(runs, smoke_model, tmp_path):
    shutil.copytree(smoke_model.parent, tmp_path / "elsewhere")
    config = training(tmp_path / "elsewhere" / "model.safetensors", "renew=0.25", seed=0)
    again = train_adversarially(config, tmp_path / "run").parent
    assert (again / KEPT).read_bytes() == (runs / "run-s0" / KEPT).read_bytes()


def test_a_last_checkpoint_that_has_lost_attackers_is_refused(smoke_model, tmp_path):
    """As versions wrote it that renewed tasks after the last round, too."""
    config = training(smoke_model, "renew=0.25")
    trainee = AdversarialTraining(config)
    for step in range(trainee.rounds):
        trainee.step(step)
    trainee._renew(trainee.rounds - 1)
    run = RunDirectory(tmp_path / "run", trainee.config)
    run.save_checkpoint(trainee.tensors(), {"step": trainee.rounds, "seconds": 1.0})
    run.close()
    with pytest.raises(UserError, match="checkpoint .* delete it to start the run anew"):
        train_adversarially(config, tmp_path / "run")
    assert not (tmp_path / "run" / "model.json").exists()


# Forged and misplaced ---------------------------------------------------------------------------


def forged(path, meta=None, **changes):
    tensors, metadata, _ = read_tensors(path, "attackers")
    tensors = {k: changes.get(k.replace(".", "_"), lambda t: t)(t) for k, t in tensors.items()}
    tensors = {k: t for k, t in tensors.items() if t is not None}
    write_sealed(path, tensors, json.loads(metadata["meta"]) | (meta or {}))


@pytest.fixture
def copied(runs, tmp_path):
    """A run's directory to damage."""
    shutil.copytree(runs / "run-s0", tmp_path / "run")
    return tmp_path / "run"


FORGED = {
    "large": {"_0_attacker_offsets": lambda t: t + 1e10},
    "other tasks": {"_0_tasks_means": lambda t: t + 0.5},
    "fewer tasks": {"_0_tasks_ids": lambda t: t[:3]},
    "one task": {"_0_tasks_ids": lambda t: t[0]},
    "no ids": {"_0_tasks_ids": lambda t: None},
    "other ids": {"_0_attacker_ids": lambda t: t + 1000},
    "other arms": {"_0_attacker_offsets": lambda t: t[:, :2]},
    "no moments": {"_0_attacker_first": lambda t: None},
}


@pytest.mark.parametrize("changes", FORGED.values(), ids=FORGED)
def test_forged_attackers_are_refused(copied, changes):
    forged(copied / KEPT, **{name.removeprefix("_"): change for name, change in changes.items()})
    with pytest.raises(UserError, match=r"attackers .* are damaged"):
        LearnedAttack(copied)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 5}, {"rounds": 70}, {"tasks": 21}, {"renew": 0.5},
        {"threats": [{"attacker": "gaussian"}]}, {"threats": [{"attacker": "none"}]},
        {"threats": [{"attacker": "gaussian"}, {"attacker": "gaussian", "share": 1e-9}]},
        {"threats": [{"attacker": "gaussian", "target": "ts"}]},
        {"threats": [{"attacker": SMALL_NETWORK, "share": 4}, {"attacker": "none"}]},
    ],
)  # fmt: skip
def test_attackers_of_another_training_are_refused(copied, change):
    config = json.loads(read_tensors(copied / KEPT, "x")[1]["meta"])["training"]
    forged(copied / KEPT, {"training": config | change})
    with pytest.raises(UserError, match=r"attackers .* are damaged"):
        LearnedAttack(copied)


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"training": 3}, "not a file of trained attackers"),
        ({"training": {}}, "is missing"),
        ({"metrics": {}}, "their parts are not those of their training"),
        ({"metrics": {"0": {}}}, "not a file of trained attackers"),
        ({"target_sha256": None}, "not a file of trained attackers"),
        ({"format": 3}, "format 3; this version reads 2"),
    ],
)
def test_files_that_say_something_else_are_refused(copied, meta, said):
    forged(copied / KEPT, meta)
    with pytest.raises(UserError, match=said):
        LearnedAttack(copied)


@pytest.mark.parametrize("how", ["tampered", "of another model", "of a run of attack", "cut"])
def test_the_command_says_in_one_line_what_is_wrong(copied, runs, command, how, tmp_path):
    path = copied / KEPT
    if how == "tampered":
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    elif how == "of another model":
        shutil.copy(runs / "run-s1" / KEPT, path)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:200])
    else:
        words = ("attack", "bandit", "--target", "ts", "--preset", "smoke", "--rounds", "1")
        assert command(*words, "--out", tmp_path / "attack")[0] == 0
        shutil.copy(tmp_path / "attack" / KEPT, path)
    code, stdout, stderr = command(
        "evaluate", "bandit", "--preset", "smoke", "--agents", f"AT={copied}",
        "--attackers", "cotrained(AT)",
    )  # fmt: skip
    assert (code, stdout, len(stderr.splitlines())) == (2, "", 1)
    wanted = "were not trained along with" if how.startswith("of") else "damaged"
    assert wanted in stderr and KEPT in stderr


# Evaluations ------------------------------------------------------------------------------------


def evaluated(command, *more):
    code, stdout, stderr = command("evaluate", "bandit", "--preset", "smoke", "--json", *more)
    assert code == 0, stderr
    return json.loads(stdout)["records"]


def test_an_evaluation_crosses_them(runs, command, monkeypatch):
    monkeypatch.chdir(runs)
    asked = ("--agents", "AT=run-s*,ts", "--replications", "2", "--attackers")
    records = evaluated(command, *asked, "cotrained(AT)")
    assert {(r["kind"], r["attacker"], r["target"], r["tasks"]) for r in records} == {
        ("cotrained", "gaussian", "AT", 16)
    }
    for r in records:
        other = cotrained(runs / f"run-s{1 - r['replication']}" / "model.safetensors")
        agent = (
            load(runs / f"run-s{r['replication']}") if r["agent"] == "AT" else make_agent("ts")[1]
        )
        rng = Rng(0).child("evaluate", r["replication"])
        scores = step_scores(other.env, other.tasks, agent, other.attacker, 0.4, rng=rng).sum(1)
        assert r["mean"] == pytest.approx(scores.mean().item(), rel=1e-6)

    def means(found):
        return [(r["agent"], r["kind"], r["replication"], r["mean"]) for r in found]

    assert means(evaluated(command, *asked, "cotrained")) == means(records)
    from_files = evaluated(command, *asked, "run-s*")
    assert means(from_files) == means(records) and from_files[0]["target"] == "at-dpt"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--agents", "ts", "--attackers", "cotrained"), "no agent here has attackers"),
        (("--agents", "ts", "--attackers", "cotrained(ts)"), "'ts' is not a model"),
        (("--agents", "ts", "--attackers", "cotrained(dpt-bandit-s0)"), "no attackers are kept"),
        (("--agents", "A=run-s*", "--attackers", "cotrained(A)", "--eps", "0.1"), "the same --b"),
        (("--agents", "A=run-s*", "--attackers", "cotrained(A)", "--replications", "3"),
         "3 replications need as many models"),
        (("--agents", "A=run-s*", "--attackers", "cotrained(A)", "--set", "env.horizon=19"),
         "horizon|another environment"),
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_one_line(runs, command, monkeypatch, words, said):
    monkeypatch.chdir(runs)
    code, stdout, stderr = command("evaluate", "bandit", "--preset", "smoke", *words)
    assert (code, stdout, len(stderr.splitlines())) == (2, "", 1)
    assert any(one in stderr for one in said.split("|"))


def test_the_kind():
    kind = trained_kinds()["cotrained"]
    assert kind.with_model and [k.name for k in trained_kinds().values() if k.with_model] == [
        "cotrained"
    ]
    heading = named("cotrained(AT-DPT)")
    assert heading == Heading("cotrained", "AT-DPT")
    assert heading.title == "trained along with: AT-DPT"
    assert kind.paper("AT-DPT", "bandit_main") == "AT-DPT"
    assert kind.paper("AT-DPT (A)", "bandit_adaptive_main") == "adaptive:AT-DPT"
    assert kind.paper("AT-DPT (n-A)", "bandit_adaptive_main") == "non-adaptive:AT-DPT"


# Recipes ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    planned = plan(TINY, "smoke", 2, sets=FEW)
    store = Store.open(tmp_path_factory.mktemp("tiny") / "store")
    store.remember(planned.name, planned.describe())
    run_graph(planned.stages(), store)
    return store


def cells_of(planned):
    return [cell for cell in planned.cells if cell.about.kind == "cotrained"]


def records_of(store, planned):
    return {
        (r["agent"], r["replication"]): r
        for cell in cells_of(planned)
        for r in store.get(cell.name).records()
    }


def test_rows_meet_the_attackers_of_another_training_on_its_tasks(finished):
    planned = plan(TINY, "smoke", 2, sets=FEW)
    trainings = {stage.config["seed"]: stage for stage in planned.trainings}
    assert not [stage for stage in planned.stages() if stage.kind == "attack"]
    for cell in cells_of(planned):
        replication = cell.config["cell"]["replication"]
        assert cell.inputs["attack"].name == trainings[1 - replication].name
    records = records_of(finished, planned)
    assert len(records) == 3 * 2
    for (label, replication), r in records.items():
        artifact = finished.get(trainings[1 - replication].name)
        assert KEPT in artifact.manifest.files
        other = cotrained(artifact.path / "model.safetensors", (0.4, 3.0))
        assert (r["tasks"], r["kind"], r["target"]) == (len(other.tasks), "cotrained", "AT-DPT")
        if label != "oracle":
            mine = finished.get(trainings[replication].name).path
            agent = load(mine) if label == "AT-DPT" else make_agent("ts")[1]
            rng = Rng(0).child("evaluate", replication)
            scores = step_scores(other.env, other.tasks, agent, other.attacker, 0.4, rng=rng)
            assert r["mean"] == pytest.approx(scores.sum(1).mean().item(), rel=1e-6)


def test_with_one_replication_they_are_its_own():
    cells = cells_of(plan(TINY, "smoke", 1, sets=FEW))
    mine = next(c for c in cells if "victim" in c.inputs)
    assert mine.inputs["attack"].name == mine.inputs["victim"].name


def test_the_report_has_the_column(finished, monkeypatch):
    monkeypatch.setitem(RECIPES, TINY.name, TINY)
    (section,) = summarise(finished)
    assert section.tables[0].columns == ["cotrained(AT-DPT)", "none"]
    assert all(cell.mean is not None for cell in section.tables[0].cells())
    assert "trained along with: AT-DPT" in render(finished)


def test_attackers_in_a_store_are_verified(finished, tmp_path):
    shutil.copytree(finished.root, tmp_path / "store")
    store = Store.open(tmp_path / "store")
    name = next(n for n in store.names() if n.startswith("train-"))
    path = tmp_path / "store" / "artifacts" / name / KEPT
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert verify(store) == {name: f"{KEPT} has the wrong content"}
    assert store.get(name) is None, "it counts as absent, and is computed again"


@pytest.mark.parametrize("agent", ["ts", "dpt", "ad-ts"])
def test_a_row_that_is_not_trained_along_with_attackers_is_refused(agent):
    recipe = replace(TINY, rows=(Row("X", agent),), trained={"cotrained": ("X",)})
    with pytest.raises(UserError, match=r"cotrained\(X\): X is not trained along with attackers"):
        plan(recipe, "smoke", 2)


@pytest.mark.parametrize(
    ("agent", "sets", "left"),
    [
        ("at-dpt-random", (), []),
        ("at-dpt-b1", (), [1.0]),
        ("at-dpt", ('train.threats=[{"target": "ts"}]',), []),
        ("at-dpt", ('train.threats=[{"budget": 1.0}]',), [1.0]),
        ("at-dpt", (), [1.0, 3.0]),
    ],
)
def test_levels_without_such_attackers_have_no_column(agent, sets, left, tmp_path):
    recipe = replace(
        TINY, rows=(Row("X", agent),), trained={"cotrained": ("X",)},
        levels=(Level(budget=1.0), Level(budget=3.0)),
    )  # fmt: skip
    whole = plan(recipe, "smoke", 2, sets=sets)
    possible, said = left_out(whole, None, shipped=False)
    assert sorted({cell.about.budget for cell in cells_of(possible)}) == left
    assert len(said) == 2 - len(left)
    assert all("no attackers of this level learn against the model" in line for line in said)
    assert {c.about.kind for c in possible.cells if c not in cells_of(possible)} == {"clean"}


def test_who_asks_for_another_level_all_the_same_is_told(tmp_path):
    recipe = replace(TINY, rows=(Row("X", "at-dpt-b1"),), trained={"cotrained": ("X",)})
    planned = plan(recipe, "smoke", 1, sets=FEW)
    with pytest.raises(UserError, match="have budget 1 and eps 0.4"):
        run_graph(planned.stages(), Store.open(tmp_path / "store"))


def test_models_of_many_threats_have_a_column_at_each_of_their_levels():
    assert MODELS["at-dpt-mixture"].settings["eps"] == 0.4
    recipe = replace(
        TINY, rows=(Row("X", "at-dpt-mixture"),), trained={"cotrained": ("X",)},
        levels=(Level(0.1), Level(0.2), Level(0.4), Level(budget=1.0), Level(budget=5.0)),
    )  # fmt: skip
    planned, said = left_out(plan(recipe, "smoke", 2), None, shipped=False)
    assert len(cells_of(planned)) == 5 * 2 and not said


# Shipped models ---------------------------------------------------------------------------------


@pytest.fixture
def zoo(finished, tmp_path, monkeypatch):
    """A package that ships what the recipe trains."""
    folder = tmp_path / "zoo"
    folder.mkdir()
    planned = plan(TINY, "smoke", 2, sets=FEW)
    for stage in planned.stages():
        if stage.kind in ("pretrain", "train"):
            name = {"pretrain": "dpt", "train": "at-dpt"}[stage.kind]
            ship(finished.get(stage.name).path, f"{name}-toy-s{stage.config['seed']}", folder)
    monkeypatch.setattr(weights, "ZOO", folder)
    stage_code._shipped_trainings.cache_clear()
    yield folder
    stage_code._shipped_trainings.cache_clear()


def test_shipped_attackers_stand_in_for_those_of_a_training(finished, zoo, tmp_path):
    assert sorted(p.name for p in zoo.glob("*.attackers.*")) == [
        "at-dpt-toy-s0.attackers.safetensors", "at-dpt-toy-s1.attackers.safetensors"
    ]  # fmt: skip
    assert weights.zoo_names() == ["at-dpt-toy-s0", "at-dpt-toy-s1", "dpt-toy-s0", "dpt-toy-s1"]
    assert cotrained(weights.find("at-dpt-toy-s1")).config.seed == 1
    store = Store.open(tmp_path / "store")
    planned, said = left_out(plan(TINY, "smoke", 2, sets=FEW), store, shipped=True)
    assert not said
    run_graph(planned.stages(), store, shipped=True)
    assert all(store.get(stage.name).manifest.shipped for stage in planned.trainings)

    def numbers(root):
        return {k: (r["mean"], r["norm"]) for k, r in records_of(root, planned).items()}

    assert numbers(store) == numbers(finished)


def test_without_them_the_column_is_left_out_and_that_is_said(zoo, tmp_path, monkeypatch, command):
    monkeypatch.setitem(RECIPES, TINY.name, TINY)
    (zoo / "at-dpt-toy-s1.attackers.safetensors").unlink()
    words = ["reproduce", TINY.name, "--preset", "smoke", "--store", tmp_path / "store"]
    words += [word for setting in FEW for word in ("--set", setting)]
    code, stdout, stderr = command(*words, "--shipped", "--dry-run")
    assert code == 0 and "cotrained" not in stdout and not (tmp_path / "store").exists()
    assert len(stderr.splitlines()) == 1
    assert "column cotrained(AT-DPT) at eps 0.4, B 3 is left out" in stderr
    code, stdout, said = command(*words, "--shipped", "--json")
    assert code == 0 and said == stderr
    assert {r["kind"] for r in json.loads(stdout)["records"]} == {"clean"}
    (section,) = summarise(Store.open(tmp_path / "store"))
    assert section.tables[0].columns == ["none"] and section.done == section.total
    # The store has the shipped model now, with or without --shipped.
    code, stdout, stderr = command(*words, "--dry-run")
    assert code == 0 and "is left out" in stderr and " 0 to do" in stdout
    code, stdout, stderr = command(*words[:4], *words[6:], "--dry-run", "--store", tmp_path / "new")
    assert code == 0 and not stderr and "cotrained(AT-DPT)" in stdout


def test_the_shipped_package_says_what_it_has_not(command, tmp_path, monkeypatch):
    """Models of the first edition have no attackers beside them."""
    recipe = replace(TINY, rows=(Row("AT-DPT", "at-dpt-v1"), *TINY.rows[1:]))
    monkeypatch.setitem(RECIPES, TINY.name, recipe)
    words = ("reproduce", TINY.name, "--dry-run", "--shipped", "--store", tmp_path / "store")
    code, stdout, stderr = command(*words, "--verbose")
    assert code == 0 and stderr.count("is left out") == 1
    whole = plan(recipe)
    missing = [cell for cell in cells_of(whole) if cell.about.who == "AT-DPT"]
    left = len(whole.stages()) - len(missing)
    assert f"{left} stages" in stdout and missing


def test_misplaced_shipped_attackers_stop_with_one_line(zoo, tmp_path, monkeypatch, command):
    monkeypatch.setitem(RECIPES, TINY.name, TINY)
    first, second = (zoo / f"at-dpt-toy-s{n}.attackers.safetensors" for n in (0, 1))
    shutil.copy(second, first)
    words = ["reproduce", TINY.name, "--preset", "smoke", "--store", tmp_path / "store"]
    words += [word for setting in FEW for word in ("--set", setting)]
    code, _, stderr = command(*words, "--shipped")
    assert code == 2 and "were not trained along with" in stderr.splitlines()[-1]
    assert not [n for n in os.listdir(tmp_path / "store" / "artifacts") if n.startswith("train-")]


def test_trainings_of_earlier_versions_have_none(finished, tmp_path):
    """They are not done again: what was computed from them stays."""
    planned = plan(TINY, "smoke", 2, sets=FEW)
    old = Store.open(tmp_path / "store")
    for stage in planned.trainings:
        artifact, out = finished.get(stage.name), old.work(stage.name) / OUT
        for name in artifact.manifest.files:
            if name != KEPT:
                shutil.copy(artifact.path / name, out / name)
        old.publish(stage.name, stage.describe(), 1.0)
    assert not any(keeps_attackers(stage, old, shipped=False) for stage in planned.trainings)
    possible, said = left_out(planned, old, shipped=False)
    assert not cells_of(possible) and len(possible.cells) == len(planned.cells) - 6
    assert len(said) == 1 and "of an earlier version" in said[0]
    assert left_out(planned, finished, shipped=False) == (planned, [])


def test_a_run_is_shipped_with_its_attackers_or_not_at_all(runs, tmp_path):
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    ship(runs / "run-s0", "at-dpt-toy-s0", zoo)
    assert cotrained(zoo / "at-dpt-toy-s0.safetensors").config.seed == 0
    shutil.copytree(runs / "run-s1", tmp_path / "run")
    shutil.copy(runs / "run-s0" / KEPT, tmp_path / "run" / KEPT)
    with pytest.raises(UserError, match="were not trained along with"):
        ship(tmp_path / "run", "at-dpt-toy-s1", zoo)
    assert len(os.listdir(zoo)) == 4
