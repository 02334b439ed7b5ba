"""Kinds of attacks have one owner: a new one is seen everywhere, and records store it."""

import csv
import json
import os

import pytest

import mithridate as mi
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.evaluation.kinds import (
    Heading,
    all_kinds,
    heading_of,
    named,
    trained_as,
    trained_kinds,
)
from mithridate.experiments import first_edition
from mithridate.experiments.executors import run_graph
from mithridate.experiments.plan import plan
from mithridate.experiments.recipes import RECIPES, Recipe, Row
from mithridate.experiments.store import Store
from mithridate.registry import KINDS
from mithridate.report.html import render, write_report
from mithridate.report.views import summarise

OUTSIDE = """
from mithridate import KINDS, Kind
from mithridate.experiments.recipes import RECIPES, Recipe, Row

@KINDS.register("patient")
class Patient(Kind):
    attacker = "gaussian(learning_rate=0.01)"
    order = 35
    phrase = "learned, with patience"

    def rounds(self, config):
        return 2

RECIPES["toy"] = Recipe(
    name="toy", title="A toy", environment="bandit", rows=(Row("TS", "ts"), Row("UCB", "ucb1")),
    static=("none", "swap"), trained={"learned": ("TS",), "patient": ("TS",)},
)
"""


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A module that is not ours, named in the environment as a user would."""
    (tmp_path / "my_kinds.py").write_text(OUTSIDE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MITHRIDATE_IMPORT", "my_kinds")
    return tmp_path


def test_a_kind_from_outside_is_seen_by_every_command(outside, cli):
    """In processes of their own, so that nothing of it stays here."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    code, stdout, stderr = cli(
        "evaluate", "bandit", "--agents", "TS=ts,UCB=ucb1", "--attackers",
        "none,swap,learned(TS),patient(TS)", "--replications", "2", "--preset", "smoke", "--json",
        env=environment,
    )  # fmt: skip
    assert code == 0, stderr
    asked = {(r["agent"], r["kind"], r["replication"]): r for r in json.loads(stdout)["records"]}
    assert asked["TS", "patient", 0]["attacker"] == "gaussian(learning_rate=0.01)"
    reproduce = ("reproduce", "toy", "--preset", "smoke", "--executor", "processes")
    code, stdout, stderr = cli(*reproduce, "--workers", "1", "--json", env=environment)
    assert code == 0, stderr
    records = json.loads(stdout)["records"]
    assert len(records) == len(asked) == 16
    for r in records:
        same = asked[r["agent"], r["kind"], r["replication"]]
        assert (r["mean"], r["norm"]) == (same["mean"], same["norm"])
    code, _, stderr = cli("report", env=environment)
    assert code == 0, stderr
    page = (outside / "report.html").read_text()
    assert "learned, with patience: TS" in page and "patient: TS" in page
    rows = list(csv.DictReader((outside / "report_files/toy-smoke-2x-s0-eps0.4.csv").open()))
    columns = list(dict.fromkeys(row["attacker"] for row in rows))
    assert columns == ["learned(TS)", "patient(TS)", "swap", "none"]
    assert all(row["mean"] for row in rows)
    code, stdout, _ = cli("reproduce", "toy", "--dry-run", "--preset", "smoke", env=environment)
    assert code == 0 and "patient attack on TS #1" in stdout


def test_a_kind_from_outside_is_seen_by_the_library(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    KINDS.names()
    monkeypatch.setattr(KINDS, "_classes", dict(KINDS._classes))

    @mi.KINDS.register("short")
    class Short(mi.Kind):
        def rounds(self, config):
            return 1

        def fits(self, spec):
            return spec.n_states is not None

    result = mi.evaluate("darkroom2", ["q_learning"], preset="smoke", attackers="short", tasks=4)
    assert result.columns() == ["short(q_learning)"] and result.records[0].kind == "short"
    with pytest.raises(UserError, match="'short' make no sense in 'bandit'; here are: adaptive, "):
        mi.evaluate("bandit", ["ts"], preset="smoke", attackers="short")
    recipe = Recipe(
        name="toy", title="", environment="darkroom2", rows=(Row("Q", "q_learning"),),
        static=("none",), trained={"short": ("Q",)},
    )  # fmt: skip
    monkeypatch.setitem(RECIPES, "toy", recipe)
    planned = plan(recipe, "smoke", 1)
    store = Store.open(tmp_path / "store")
    store.remember(planned.name, planned.describe())
    run_graph(planned.stages(), store)
    assert "short: Q" in render(store)
    # A reader who does not have the kind sees the same cells.
    del KINDS._classes["short"]
    (section,) = summarise(store)
    assert section.tables[0].columns == ["short(Q)", "none"]
    assert all(cell.mean is not None for cell in section.tables[0].cells())
    assert "short: Q" in render(store)


def test_a_module_that_cannot_be_imported_is_one_line(cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    for name, said in (("nowhere", "No module named 'nowhere'"), ("broken", "ZeroDivisionError")):
        code, _, stderr = cli("doctor", env={**os.environ, "MITHRIDATE_IMPORT": name})
        assert code == 2 and said in stderr and len(stderr.splitlines()) == 1


def test_two_names_for_one_attack_are_refused_in_a_recipe(monkeypatch):
    KINDS.names()
    monkeypatch.setattr(KINDS, "_classes", dict(KINDS._classes))
    KINDS.register("alias")(type("Alias", (mi.Kind,), {}))
    recipe = Recipe(
        name="toy", title="", environment="bandit", rows=(Row("TS", "ts"),), static=("none",),
        trained={"learned": ("TS",), "alias": ("TS",)},
    )  # fmt: skip
    with pytest.raises(UserError, match="are the same attack"):
        plan(recipe, "smoke", 1)


def test_each_row_meets_attackers_of_its_own(tmp_path, monkeypatch):
    """One column for all rows: those of the same replication, on their tasks. Who knows the attack
    has none, and the cell is not missing."""
    recipe = Recipe(
        name="toy", title="", environment="bandit", own=("steady",), static=("none",),
        rows=(Row("TS", "ts"), Row("UCB", "ucb1"), Row("oracle", "posterior_oracle")),
    )  # fmt: skip
    monkeypatch.setitem(RECIPES, "toy", recipe)
    planned = plan(recipe, "smoke", 2)
    own = [cell for cell in planned.cells if "attack" in cell.inputs]
    met = {(c.config["cell"]["label"], c.config["cell"]["replication"]): c.inputs for c in own}
    assert set(met) == {("TS", 0), ("TS", 1), ("UCB", 0), ("UCB", 1)}
    for (label, replication), inputs in met.items():
        attack = inputs["attack"]
        assert attack.label.startswith(f"steady attack on {label} #{replication + 1}")
        assert attack.config["target"] == dict(TS="ts", UCB="ucb1")[label]
        assert attack.config["seed"] == replication
    store = Store.open(tmp_path / "store")
    store.remember(planned.name, planned.describe())
    run_graph(planned.stages(), store)
    (section,) = summarise(store)
    (table,) = section.tables
    assert table.columns == ["steady(itself)", "none"]
    shown = {(cell.victim, cell.column) for cell in table.cells() if cell.mean is not None}
    rows = {"TS", "UCB", "oracle"}
    assert shown == {(row, "none") for row in rows} | {
        (row, "steady(itself)") for row in ("TS", "UCB")
    }
    assert "learned by episodes: itself" in render(store)
    assert section.done == section.total


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("learnt", "unknown attack kind 'learnt'; did you mean 'learned'"),
        ("pooled", "'pooled' make no sense in 'bandit'"),
        ("structured", "unknown attack kind 'structured'"),
    ],
)
def test_a_recipe_with_a_kind_that_cannot_be_trained_is_refused(kind, said):
    recipe = Recipe(
        name="toy", title="", environment="bandit", rows=(Row("TS", "ts"),), static=("none",),
        trained={kind: ("TS",)},
    )  # fmt: skip
    with pytest.raises(UserError, match=said):
        plan(recipe, "smoke", 1)


def test_the_order_and_the_titles_of_columns():
    names = ("none", "swap", "uniform", "pooled(A)", "kept(A)", "learned(A (B))", "from_nothing(A)",
             "adaptive(A)", "hide_best")  # fmt: skip
    headings = sorted(map(named, names), key=lambda heading: heading.order)
    assert [heading.title for heading in headings] == [
        "adaptive: A", "adaptive, from nothing: A", "learned: A (B)", "learned, best kept: A",
        "pooled: A", "uniform random", "swap", "hide best", "clean",
    ]  # fmt: skip
    assert {str(named(name)) for name in names} == set(names), "a name is read as it is written"
    assert len({kind.order for kind in all_kinds()}) == len(all_kinds())


def test_an_attacker_is_of_the_kind_that_trains_it():
    arms, rooms = make_env("bandit").spec, make_env("darkroom2").spec
    assert trained_as("gaussian(keep=best)", arms) == "kept"
    assert trained_as("gaussian", arms) == trained_as("tabular", rooms) == "learned"
    steady = trained_kinds()["steady"]
    assert [trained_as(str(steady.attacker_in(s)), s) for s in (arms, rooms)] == ["steady"] * 2


# The first edition ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attacker", "target", "kind"),
    [
        ("none", None, "clean"), ("uniform", None, "random"), ("swap", None, "structured"),
        ("gaussian", "TS", "learned"), ("tabular", "TS", "learned"), ("pooled", "TS", "pooled"),
        ("gaussian(keep=best)", "TS", "kept"), ("adaptive", "TS", "adaptive"),
        ("adaptive(layers=1)", "TS", "adaptive"), ("adaptive(tilt=0)", "TS", "from_nothing"),
        ("tabular(discount=1,iterations=20)", "TS", "learned"),
    ],
)  # fmt: skip
def test_records_of_the_first_edition_have_a_kind(attacker, target, kind):
    assert first_edition.kind_of(attacker, target) == kind


def test_what_stages_of_the_first_edition_are_about():
    assert first_edition.about("from_nothing attack on AD [TS] #2, eps 0.4, B 10") == {
        "kind": "from_nothing", "who": "AD [TS]", "replication": 1, "eps": 0.4, "budget": 10.0,
    }  # fmt: skip
    assert first_edition.about("train at-dpt #1, eps 0.1, B 3")["kind"] is None
    assert first_edition.about("TS / learned(TS) #1, eps 0.4, B 3") is None
    assert first_edition.about("learned attack on TS #1, eps x, B 3") is None


def test_a_store_of_the_first_edition_gives_the_same_report(tmp_path):
    recipe = RECIPES["bandit_main"]
    small = Recipe(
        name=recipe.name, title=recipe.title, environment="bandit", static=("none", "uniform"),
        rows=(Row("TS", "ts"), Row("UCB1.0", "ucb1")),
        trained={"learned": ("TS",), "kept": ("TS",)},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES, recipe.name, small)
        planned = plan(small, "smoke", 2)
        store = Store.open(tmp_path / "store")
        store.remember(planned.name, planned.describe())
        run_graph(planned.stages(), store)
        write_report(store, tmp_path / "new" / "report.html")
        old = Store.open(tmp_path / "old_store")
        for stage in planned.stages():
            _publish_as_before(store, old, stage)
        graph = planned.describe()
        for entry in graph["stages"]:
            del entry["about"]
        old.remember(planned.name, graph)
        write_report(old, tmp_path / "old" / "report.html")
        assert {heading_of(r) for s in summarise(old) for r in s.records} == {
            Heading("clean", "none"), Heading("random", "uniform"), Heading("learned", "TS"),
            Heading("kept", "TS"),
        }  # fmt: skip
        assert [c.title for c in summarise(old)[0].curves] == [
            c.title for c in summarise(store)[0].curves
        ]
    for path in sorted((tmp_path / "new" / "report_files").glob("*.csv")):
        assert path.read_text() == (tmp_path / "old" / "report_files" / path.name).read_text()


def _publish_as_before(store, old, stage):
    """The artifact, without what the first edition did not write."""
    from mithridate.experiments.store import OUT

    artifact = store.get(stage.name)
    out = old.work(stage.name) / OUT
    for name in artifact.manifest.files:
        data = (artifact.path / name).read_bytes()
        if name == "records.jsonl":
            record = json.loads(data)
            assert record.pop("kind")
            data = (json.dumps(record) + "\n").encode()
        (out / name).write_bytes(data)
    description = {k: v for k, v in stage.describe().items() if k != "about"}
    old.publish(stage.name, description, artifact.seconds)
