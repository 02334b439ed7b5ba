"""Pictures of Miniworld's episodes: what is on them, how they are stored and shown."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from mithridate.agents.named import told
from mithridate.capabilities import is_pictured
from mithridate.envs import make_env
from mithridate.envs.miniworld import frames as frames_module
from mithridate.envs.miniworld import room
from mithridate.envs.miniworld.picture import FRAMES, BoxRoom, chosen
from mithridate.errors import UserError
from mithridate.evaluation.columns import make_columns
from mithridate.evaluation.episode import picture_of, pictured, watch
from mithridate.evaluation.victims import make_victims
from mithridate.experiments.executors import run_graph
from mithridate.experiments.formats import picture
from mithridate.experiments.plan import plan
from mithridate.experiments.recipes import RECIPES, Recipe, Row
from mithridate.experiments.store import Store
from mithridate.report.exports import export
from mithridate.report.html import render
from mithridate.report.picture import draw_room, room_svg
from mithridate.report.views import summarise
from mithridate.settings import resolve
from mithridate.stage_config import EvaluateConfig

needs_textures = pytest.mark.skipif(find_spec("miniworld") is None, reason="needs the extra")
PNG = "data:image/png;base64,"


def seen(agent="oracle", attacker="none", sets=(), env="miniworld", task=0):
    config = resolve(EvaluateConfig, "evaluate", env, "smoke", sets, attackers=(attacker,))
    victim = make_victims([agent], told(config))[0]
    return watch(config, victim, make_columns(config, [victim])[0], task)


@pytest.fixture(scope="module")
def swapped():
    if find_spec("miniworld") is None:
        pytest.skip("needs the extra")
    return seen(attacker="swap_boxes", sets=["env.horizon=120", "env.layouts=50"])


# What is on it -----------------------------------------------------------------------------------


def test_the_episode_is_told_as_it_was(swapped):
    assert swapped.title.startswith("oracle under swap_boxes, task 0: episode reward 1")
    assert len(swapped.path) == len(swapped.headings) == 121 and swapped.headings[0] == 0
    assert np.abs(swapped.path[0] - room.SIZE / 2).max() <= room.AGENT_RADIUS + 0.001
    steps = np.linalg.norm(np.diff(swapped.path, axis=0), axis=1)
    assert np.all((steps < 0.002) | (np.abs(steps - room.FORWARD) < 0.002))
    wanted = np.zeros((16, 4))
    wanted[4 * swapped.goal + 3] = -1
    wanted[(4 * swapped.goal + 7) % 16] = 1
    assert np.array_equal(swapped.offsets, wanted)
    end = swapped.boxes[swapped.goal] - swapped.settled()
    assert list(swapped.settled()) == swapped.path[-1].tolist() and np.linalg.norm(end) < room.NEAR
    assert swapped.describe().endswith(f"settles near the {room.COLOURS[swapped.goal]} box")


def test_the_frames_are_what_the_agent_saw(swapped):
    env = make_env("miniworld", layouts=50)
    config = resolve(
        EvaluateConfig, "evaluate", "miniworld", "smoke", ["env.horizon=120", "env.layouts=50"]
    )
    tasks = env.sample_tasks(config.tasks, _tasks_rng(config))
    first = env.spec.observation.look(tasks.start[:1])["image"][0].numpy()
    assert (swapped.frames[0].step, swapped.frames[0].seen) == (0, None)
    assert np.array_equal(swapped.frames[0].image, first)
    assert len({frame.image.tobytes() for frame in swapped.frames}) > 2, "it moved"
    assert {(f.seen, f.true) for f in swapped.frames[-3:]} == {(0.0, 1.0)}, (
        "poisoned ones are shown"
    )


def _tasks_rng(config):
    from mithridate.rng import Rng

    return Rng(config.seed).child("evaluate", 0).child("tasks")


def test_the_steps_that_are_shown():
    nothing = np.zeros(250, dtype=bool)
    soon = np.minimum(np.arange(251), 7)  # an oracle: seven steps, and it stays
    steps = chosen(soon, nothing)
    assert len(steps) == FRAMES and steps == sorted(set(steps)) and steps[0] == 0
    assert len([s for s in steps if s <= 7]) >= 4 and steps[-1] == 250
    poisoned = nothing.copy()
    poisoned[180] = True
    assert 181 in chosen(soon, poisoned) and 181 not in steps
    assert chosen(np.zeros(2), np.zeros(1, dtype=bool)) == [0, 1]
    assert len(chosen(np.zeros(251), nothing)) > 4, "whoever never moves is seen over time"


@needs_textures
def test_without_an_attack_nothing_is_poisoned():
    found = seen("uniform")
    assert not found.offsets.any()
    assert all(frame.seen == frame.true for frame in found.frames)
    assert "poisoned" not in found.title and "under no attack" in found.title


@needs_textures
@pytest.mark.parametrize("horizon", [1, 2, 5])
def test_short_episodes_can_be_drawn(horizon, tmp_path):
    found = seen("uniform", "all_decoys", [f"env.horizon={horizon}"])
    draw_room(found, tmp_path / "a.pdf")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF") and len(found.path) == horizon + 1


# How it is drawn and stored ----------------------------------------------------------------------


def test_what_is_stored_is_drawn_alike(swapped):
    stored = json.dumps(swapped.to_json())
    assert len(stored) < 60_000
    again = picture_of(picture(stored).model_dump())
    assert isinstance(again, BoxRoom) and again.to_json() == swapped.to_json()
    drawn = room_svg(again)
    assert drawn == room_svg(swapped), "nothing is lost, and nothing depends on the time"
    assert drawn.count(PNG) >= len(swapped.frames) and "http://" not in re.sub(
        r'"[^"]*"', "", drawn
    )


def test_the_worst_that_a_store_may_say_can_be_drawn(swapped, tmp_path):
    wild = swapped.to_json() | {
        "title": "$\\frac{" + 490 * "x", "offsets": [[1e12, -1e12, 0.001, 0.0]] * 16,
        "boxes": [[0.0, 6.0]] * 4, "path": [[0.0, 6.0]], "headings": [23],
    }  # fmt: skip
    wild["frames"] = [wild["frames"][0] | {"seen": 1e12, "true": -1e12}]
    draw_room(picture_of(picture(json.dumps(wild)).model_dump()), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


# Where it is shown -------------------------------------------------------------------------------


@needs_textures
def test_a_recipe_with_a_picture_is_reported(tmp_path, monkeypatch):
    recipe = Recipe(
        name="boxes", title="Boxes", environment="miniworld",
        rows=(Row("random", "uniform"), Row("oracle", "oracle")), static=("none", "swap_boxes"),
        trained={"learned": ("random",)},
        pictures=(("random", "learned(random)"), ("oracle", "swap_boxes")),
    )  # fmt: skip
    monkeypatch.setitem(RECIPES, "boxes", recipe)
    planned = plan(recipe, "smoke", 1, sets=["evaluate.tasks=3", "attack.tasks=3"])
    store = Store.open(tmp_path / "store")
    store.remember(planned.name, planned.describe())
    run_graph(planned.stages(), store)

    def nobody(poses):
        raise AssertionError("a report needs no extra")

    monkeypatch.setattr(frames_module, "rendered", nobody)
    (section,) = summarise(Store.open(tmp_path / "store"))
    assert section.done == section.total
    assert [room.title.partition(",")[0] for room in section.pictures] == [
        "random under learned(random)", "oracle under swap_boxes",
    ]  # fmt: skip
    page = render(store)
    assert (
        page.count("data:image/svg+xml;base64,") == 2 and page.count('<figure class="wide">') == 2
    )
    assert "the room from above" in page
    names = {path.name for path in export(store, tmp_path / "files")}
    assert sum("-picture-" in name for name in names) == 4
    svg = next(path for path in (tmp_path / "files").glob("*.svg"))
    assert PNG in svg.read_text()


@needs_textures
def test_the_command(cli, tmp_path):
    words = ("picture", "miniworld", "--preset", "smoke", "--agent", "oracle")
    code, out, _ = cli(*words, "--attacker", "swap_boxes", "--out", "a.png", "--json", cwd=tmp_path)
    assert code == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    x, z = json.loads(out)["settled"]
    assert 0 < x < room.SIZE and 0 < z < room.SIZE
    code, out, _ = cli(*words, "--attacker", "learned(uniform)", "--out", "b.svg", cwd=tmp_path)
    assert code == 0 and out.startswith("oracle under learned(uniform), task 0: episode reward")
    for wrong, message in (
        (("--task", "20"), "there are 20"),
        (("--attacker", "swap_goals"), "needs a room with goals"),
    ):
        code, _, err = cli(*words, *wrong, "--out", "new/c.svg", cwd=tmp_path)
        assert (code, err.count("\n")) == (2, 1) and message in err
    assert not list(tmp_path.rglob("c.svg"))


WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyglet", "miniworld", "gymnasium"):
            raise ImportError(f"no {name}")
sys.meta_path.insert(0, Refuse())
from mithridate.cli import main
sys.argv = ["mithridate", "picture", "miniworld", "--preset", "smoke", "--agent", "uniform",
            "--attacker", "learned(uniform)", "--out", "new/a.png"]
main()
"""


def test_without_the_extra_one_line_says_so_and_nothing_is_written(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "a frame of Miniworld needs the miniworld package: pip install" in done.stderr
    assert list(tmp_path.iterdir()) == []


# Who can be drawn --------------------------------------------------------------------------------


def test_environments_say_whether_they_can_be_drawn():
    assert is_pictured(make_env("miniworld")) and is_pictured(make_env("darkroom2"))
    config = resolve(EvaluateConfig, "evaluate", "linear_bandit", "smoke")
    with pytest.raises(
        UserError, match="'linear_bandit' has no rooms to draw; try darkroom2 or mi"
    ):
        pictured(config)


def test_a_picture_that_nobody_can_draw(tmp_path):
    class Sketch:
        title = "a sketch"

    with pytest.raises(UserError, match="nobody can draw a Sketch; a picture is a Room or BoxRoom"):
        draw_room(Sketch(), tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []
