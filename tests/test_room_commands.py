"""Rooms: commands, pictures and recipes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mithridate.evaluation.episode import Room
from mithridate.evaluation.kinds import TABLES
from mithridate.experiments.estimate import work
from mithridate.experiments.executors import run_graph
from mithridate.experiments.plan import plan
from mithridate.experiments.recipes import RECIPES
from mithridate.experiments.stages import Stage
from mithridate.experiments.store import Store
from mithridate.report.exports import export
from mithridate.report.html import render
from mithridate.report.picture import draw_room, room_svg
from mithridate.report.views import summarise


def test_the_picture(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sets = ("--preset", "smoke", "--agent", "q_learning(episodes=2)")
    code, out, _ = command("picture", "darkroom2", *sets, "--attacker", "swap_goals",
                           "--out", "room.svg", "--json")  # fmt: skip
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
        code, _, err = command(*wrong, "--out", "wrong.svg")
        assert (code, err.count("\n")) == (2, 1) and message in err
    code, _, err = command("attack", "darkroom2", "--target", "npg", "--set", "attacker=gaussian",
                           "--preset", "smoke", "--out", "wrong")  # fmt: skip
    assert (code, err.count("\n")) == (2, 1) and "in rooms use tabular" in err
    code, _, err = command("evaluate", "bandit", "--agents", "ts", "--attackers", "pooled",
                           "--preset", "smoke")  # fmt: skip
    assert (code, err.count("\n")) == (2, 1) and "make no sense in 'bandit'" in err
    assert not (tmp_path / "wrong").exists() and not (tmp_path / "runs").exists()
    code, _, err = command("picture", "darkroom2", *sets, "--out", "room.txt")
    assert (code, err.count("\n")) == (2, 1) and "--out room.txt: the name must end in" in err
    assert not (tmp_path / "wrong.svg").exists()


def test_the_room_is_drawn_as_it_is(tmp_path):
    path = np.array([0, 1, 1, 4, 4, 4, 4, 4])
    room = Room(np.array([0, 1, 0, 0, 2, 0, 0, 0, 0]), np.zeros((9, 5)), path, "a title")
    assert (room.size, room.settled()) == (3, 4)
    draw_room(room, tmp_path / "room.png")
    again = Room.from_json(json.loads(json.dumps(room.to_json())))
    assert room_svg(again) == room_svg(room), "nothing is lost, and nothing depends on the time"
    assert (tmp_path / "room.png").stat().st_size > 5000


def test_the_matrix_of_a_room(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = command(
        "evaluate", "darkroom2", "--preset", "smoke", "--agents", "npg(episodes=3),oracle",
        "--attackers", "none,hide_best,learned,pooled", "--json",
    )  # fmt: skip
    assert code == 0
    records = json.loads(out)["records"]
    assert {r["target"] for r in records} == {None, "npg(episodes=3)"}
    assert {r["attacker"] for r in records} == {"none", "hide_best", "tabular", "pooled"}
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
    trained = {f"{kind}({t})" for kind, some in recipe.trained.items() for t in some}
    assert set(table.columns) == {*recipe.static, *trained, "steady(itself)"}
    kinds = {s.config["attacker"] for s in planned.stages() if s.kind == "attack"}
    assert kinds == {"tabular", "pooled", TABLES}
    cells = {(c.victim, c.column): c.mean for c in table.cells()}
    assert len(cells) == len(recipe.rows) * len(table.columns)
    without = {row for (row, _), mean in cells.items() if mean is None}
    assert without == {"NPG", "NPG (tuned)", "Q-learning", "Q-learning (tuned)", "oracle"}
    assert {column for (_, column), mean in cells.items() if mean is None} == {"steady(itself)"}
    for column in (*recipe.static, *trained):
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
    attacks = (
        s for s in plan(RECIPES["darkroom2_main"], "laptop", 1).stages() if s.kind == "attack"
    )
    rounds = {s.config["target"]: s.config["rounds"] for s in attacks if "steady" not in s.label}
    assert rounds.pop("(input)") > 5
    assert set(rounds.values()) == {5} and len(rounds) == 2


def test_the_estimate_counts_episodes_of_learning_and_both_streams():
    stages = plan(RECIPES["darkroom2_main"], "laptop", 1).stages()
    cells = {s.label: work(s) for s in stages if s.kind == "evaluate"}
    learner = next(w for label, w in cells.items() if label.startswith("Q-learning / none"))
    one = next(w for label, w in cells.items() if label.startswith("oracle / none"))
    assert learner == pytest.approx(101 * one)
    room = next(s for s in stages if s.kind == "pretrain")
    alike = Stage("pretrain", "", {**room.config, "env": {"name": "bandit", "horizon": 200}})
    assert 1.8 < work(room) / work(alike) < 2
