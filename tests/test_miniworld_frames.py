"""Miniworld's frames, held against the package's own, and what is kept of them."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from mithridate.agents.in_context import InContextAgent, load
from mithridate.agents.single_task import Solo, as_agent
from mithridate.config import ModelConfig
from mithridate.envs import make_env
from mithridate.envs.miniworld import bank, frames, rays, room
from mithridate.envs.miniworld.frames import Frames
from mithridate.envs.miniworld.render import SIDE, Renderer, world
from mithridate.envs.miniworld.resize import matrix, resized
from mithridate.errors import UserError
from mithridate.model import in_parts
from mithridate.model.layouts import make_model
from mithridate.native import kernels
from mithridate.registry import AGENTS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.settings import resolve
from mithridate.stage_config import AdversarialConfig, PretrainConfig
from mithridate.training.adversarial import train_adversarially
from mithridate.training.pretrain import pretrain


@pytest.fixture(scope="module")
def stock():
    """A world that draws and moves by the package's own code."""
    try:
        return world()
    except UserError as error:
        pytest.skip(str(error))


def some_poses(count, seed=0, layouts=room.LAYOUTS):
    """Anywhere in the room that an agent can be."""
    draw = Rng(seed).generator()
    low, high = room.AGENT_RADIUS, room.SIZE - room.AGENT_RADIUS
    places = torch.from_numpy(draw.uniform(low, high, (count, 2)) / room.UNIT).long()
    numbers = torch.from_numpy(draw.integers(0, layouts, count))
    return room.poses(numbers, places, torch.from_numpy(draw.integers(0, room.HEADINGS, count)))


def drawn_by(stock, pose):
    """What the package's `render_obs` shows (60, 80, 3)."""
    stock.put(room.layout(room.layouts_of(pose)[None])[0][0].numpy())
    stock.stand(*room.metres(pose).tolist(), room.headings_of(pose).item())
    return stock.render_obs()


def shrunk(picture):
    """By SciPy, as skimage does it: (25, 25, 3) in 0 … 255."""
    ndimage = pytest.importorskip("scipy.ndimage")
    rows, columns = picture.shape[0] / SIDE, picture.shape[1] / SIDE
    sigma = ((rows - 1) / 2, (columns - 1) / 2, 0)
    blurred = ndimage.gaussian_filter(picture.astype(np.float64), sigma, mode="mirror")
    zoom = (1 / rows, 1 / columns, 1)
    return ndimage.zoom(blurred, zoom, order=1, mode="mirror", grid_mode=True)


# Resizing --------------------------------------------------------------------------------------


def test_resizing_is_what_scipy_does():
    pictures = Rng(0).generator().integers(0, 256, (5, 60, 80, 3), dtype=np.uint8)
    wanted = np.stack([shrunk(picture) for picture in pictures])
    assert np.abs(resized(pictures, SIDE, SIDE) - wanted).max() <= 0.501
    for before in (60, 80):
        np.testing.assert_allclose(matrix(before, SIDE).sum(1), 1, rtol=1e-5)


# Against the package ---------------------------------------------------------------------------


@pytest.mark.gl
def test_frames_are_the_packages(stock):
    poses = some_poses(1000).sort().values
    mine = Renderer().frames(poses).astype(np.float64)
    theirs = np.stack([shrunk(drawn_by(stock, pose)) for pose in poses])
    difference = np.abs(mine - theirs)
    assert difference.mean() < 2.0, "the standard that any renderer is held to"
    assert difference.mean() < 0.3 and difference.max() <= 2.0, "this one rounds, and no more"
    assert len({frame.tobytes() for frame in mine}) > 990


@pytest.mark.gl
def test_rays_show_what_the_package_draws(stock):
    if kernels() is None:
        pytest.skip("needs the native kernels")
    middle = (room.layout(torch.arange(40))[0][:, 1] / room.UNIT).long()  # inside a distractor
    inside = room.poses(torch.arange(40), middle, torch.arange(40) % room.HEADINGS)
    poses = torch.cat([some_poses(1000), inside]).sort().values
    theirs = np.stack([shrunk(drawn_by(stock, pose)) for pose in poses])
    difference = np.abs(rays.frames(poses) - theirs)
    assert difference.mean() < 0.5 and difference.mean((1, 2, 3)).max() < 1.0
    assert np.quantile(difference, 0.99) < 2.0


@pytest.mark.gl
def test_dynamics_rewards_and_oracle_are_the_originals(stock):
    """400 steps on each of 8 tasks: the package moves its own agent, in floating point, by its own
    collisions; near and facing are measured as angles."""
    tasks = make_env("miniworld").sample_tasks(8, Rng(3))
    draw, farthest, paid = Rng(4).generator(), 0.0, 0
    for i in range(8):
        pose, goal = tasks.start[i : i + 1], tasks.goal[i : i + 1]
        stock.put(tasks.boxes[i].numpy())
        stock.solid = [stock.boxes[tasks.goals[i]]]
        stock.stand(*room.metres(pose)[0].tolist(), 0)
        for _ in range(400):
            best = original_oracle(stock)
            assert room.oracle(pose, goal).item() == best
            action = best if draw.random() < 0.3 else int(draw.integers(0, 4))
            if action == room.AHEAD:
                stock.move_agent(room.FORWARD, 0.0)
            elif action != room.STAY:
                stock.turn_agent(15 if action == room.LEFT else -15)
            pose = room.move(pose, torch.tensor([action]), goal[:, None])
            assert room.rewards(pose, goal).item() == original_reward(stock)
            paid += original_reward(stock)
            away = np.abs(room.metres(pose)[0].numpy() - stock.agent.pos[[0, 2]]).max()
            farthest = max(farthest, away)
    stock.solid = list(stock.boxes)
    assert farthest < 1e-3 and 100 < paid < 3000


def bearing(stock):
    """Degrees from the heading to the goal, to the left, in −180 … 180; and how far it is."""
    way = (stock.solid[0].pos - stock.agent.pos)[[0, 2]]
    left = np.degrees(np.arctan2(-way[1], way[0]) - stock.agent.dir)
    return (left + 180) % 360 - 180, np.linalg.norm(way)


def is_near(stock):
    reach = stock.solid[0].radius + stock.agent.radius + 1.5 * stock.max_forward_step
    return bearing(stock)[1] < reach


def original_reward(stock):
    return int(is_near(stock) and abs(bearing(stock)[0]) <= 30)


def original_oracle(stock):
    left, _ = bearing(stock)
    if abs(left) > 30:
        return room.LEFT if left > 0 else room.RIGHT
    return room.STAY if is_near(stock) else room.AHEAD


@pytest.mark.gl
def test_the_camera_sees_75_degrees(stock):
    """From the start, looking east: often red at the left, and green at the right."""
    seen = Renderer().frames(room.layout(torch.arange(100))[1]).astype(int)
    red = (seen[..., 0] > seen[..., 1] + 60) & (seen[..., 0] > seen[..., 2] + 60)
    green = (seen[..., 1] > seen[..., 0] + 60) & (seen[..., 1] > seen[..., 2] + 60)
    for colour, elsewhere in ((red, slice(13, None)), (green, slice(None, 12))):
        assert 0.2 < colour.any((1, 2)).mean() < 0.9
        assert not colour[:, :, elsewhere].any()


@pytest.mark.gl
def test_another_thread_is_refused(stock):
    """OpenGL would give it what is in the buffer."""
    renderer, poses = Renderer(), some_poses(2)
    renderer.frames(poses)
    with ThreadPoolExecutor(1) as pool, pytest.raises(UserError, match="in the thread that"):
        pool.submit(renderer.frames, poses).result()


# What is kept ----------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """Frames that only say which pose they are of, and how many were made. Nothing of the user's
    cache is touched."""
    made = []

    def render(poses):
        made.extend(poses.tolist())
        mixed = poses.numpy()[:, None] * np.arange(1, SIDE * SIDE * 3 + 1)
        return (mixed >> 7).astype(np.uint8).reshape(-1, SIDE, SIDE, 3)

    monkeypatch.setattr(frames, "rendered", render)
    frames.shared.cache_clear()
    monkeypatch.setenv("MITHRIDATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bank, "PART", 40)
    yield made
    frames.shared.cache_clear()


def truth(poses):
    mixed = poses.numpy()[:, None] * np.arange(1, SIDE * SIDE * 3 + 1)
    return torch.from_numpy((mixed >> 7).astype(np.uint8).reshape(-1, SIDE, SIDE, 3))


def test_a_look_makes_each_frame_once(counted):
    some = Frames()
    poses = some_poses(50)
    twice = torch.cat([poses, poses.flip(0)])
    seen = some.look(twice)
    assert torch.equal(seen["image"], truth(twice)) and len(counted) == 50
    assert seen["image"].dtype == torch.uint8 and seen["image"].shape == (100, SIDE, SIDE, 3)
    torch.testing.assert_close(seen["heading"], room.looks(twice).float())
    assert torch.equal(some.look(poses[:7])["image"], truth(poses[:7])) and len(counted) == 50
    assert some.look(poses[:0])["image"].shape == (0, SIDE, SIDE, 3)


def test_the_ring_is_bounded(counted):
    some = Frames(most=30)
    poses = some_poses(100)
    for first in range(0, 100, 10):
        part = poses[first : first + 10]
        assert torch.equal(some.look(part)["image"], truth(part))
    assert len(counted) == 100 and len(some._place) == 30
    some.look(poses[70:])
    assert len(counted) == 100, "the last ones are there"
    assert torch.equal(some.look(poses)["image"], truth(poses)), "more than it holds, at once"
    assert len(some._place) == 30
    assert torch.equal(some.look(poses)["image"], truth(poses))


def test_what_is_no_pose_is_refused(counted):
    for number in (-1, 31):
        with pytest.raises(UserError, match="no poses of miniworld"):
            Frames().look(torch.tensor([number]))


def test_a_bank_is_made_once_and_believed_only_if_it_is_whole(counted, tmp_path):
    poses, heard = some_poses(100), []
    first = Frames()
    first.prepare(poses, lambda done, total: heard.append((done, total)))
    assert heard == [(40, 100), (80, 100), (100, 100)] and len(counted) == 100
    assert torch.equal(first.look(poses)["image"], truth(poses)) and len(counted) == 100
    files = sorted((tmp_path / "cache").iterdir())
    assert len(files) == 3 and all(f.name.startswith("miniworld-") for f in files)
    Frames().prepare(poses.flip(0))
    assert len(counted) == 100, "another process finds them"
    damage = [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: b"nonsense",
        lambda data: files[1].read_bytes(),  # of other poses
    ]
    for spoil in damage:
        whole = files[0].read_bytes()
        files[0].write_bytes(spoil(whole))
        before, again = len(counted), Frames()
        again.prepare(poses)
        assert len(counted) > before, "made anew"
        assert torch.equal(again.look(poses)["image"], truth(poses))
        assert files[0].read_bytes() == whole


def test_an_interrupted_bank_goes_on_where_it_was(counted):
    poses = some_poses(100)

    def stop(done, total):
        if done == 80:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Frames().prepare(poses, stop)
    assert len(counted) == 80
    Frames().prepare(poses)
    assert len(counted) == 100


def test_banks_do_not_fill_the_disk(counted, monkeypatch, tmp_path):
    one = 40 * SIDE * SIDE * 3
    monkeypatch.setattr(bank, "LIMIT", 3 * one)
    for seed in range(4):
        Frames().prepare(some_poses(40, seed))
        assert sum(f.stat().st_size for f in (tmp_path / "cache").iterdir()) <= 3 * one
    before = len(counted)
    Frames().prepare(some_poses(40, 3))
    assert len(counted) == before, "the newest stays"


def test_where_nothing_can_be_written_it_works_all_the_same(counted, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MITHRIDATE_CACHE", str(tmp_path / "file" / "cache"))
    some, poses = Frames(), some_poses(50)
    some.prepare(poses)
    assert torch.equal(some.look(poses)["image"], truth(poses)) and len(counted) == 50


def test_a_bank_holds_all_that_contexts_ask_for(counted):
    env = make_env("miniworld", layouts=3, walks=2, horizon=30)
    env.frames.prepare(env.bank_poses())
    made = len(counted)
    contexts = env.sample_contexts(env.sample_tasks(20, Rng(0)), 30, Rng(1)).banked()
    env.spec.observation.look(contexts.bank)
    assert len(counted) == made


# Models and agents -----------------------------------------------------------------------------


def some_model(env):
    model = make_model(ModelConfig(layers=2, heads=2, width=16), env.spec)
    model.initialise(Rng(0).torch_generator())
    return model.eval()


def test_a_model_looks_at_each_frame_of_a_batch_once(counted, monkeypatch):
    env = make_env("miniworld", layouts=3, horizon=20)
    contexts = env.sample_contexts(env.sample_tasks(10, Rng(0)), 20, Rng(1))
    model, embedded = some_model(env), []
    count_images(model, embedded)
    assert model(contexts).shape == (10, 21, 4)
    assert embedded == [len(contexts.banked().bank)] == [len(counted)]


def count_images(model, embedded):
    """How many images go through the model's embedding, at each call."""
    image = model.embedding.parts[model.embedding.names.index("image")]
    image.register_forward_hook(lambda m, x, y: embedded.append(len(y)))


def test_the_loss_learns_from_each_frame_once(counted, monkeypatch):
    monkeypatch.setattr(in_parts, "PART", 16)
    env = make_env("miniworld", layouts=3, horizon=20)
    contexts = env.sample_contexts(env.sample_tasks(10, Rng(0)), 20, Rng(1))
    model, embedded, learned = some_model(env), [], []
    count_images(model, embedded)
    backward = torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda out, *rest: learned.append(len(out)) or backward(out, *rest)
    )
    model.loss(contexts).backward()
    distinct = len(contexts.banked().bank)
    assert sum(embedded) == distinct == len(counted) and max(embedded) == 16
    assert sum(learned) == 2 * distinct, "image and heading"


@pytest.mark.parametrize("threads", [1, 2])
def test_parts_are_the_whole(monkeypatch, threads):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    rows, weights = torch.randn(50, 6), torch.randn(50, 3)

    def gradients():
        layers.zero_grad()
        out = in_parts.in_parts(layers, rows)
        (out * weights).sum().backward()
        return [out.detach(), *(p.grad.clone() for p in layers.parameters())]

    whole = gradients()
    monkeypatch.setattr(in_parts, "PART", 16)
    monkeypatch.setattr(in_parts, "kernel_threads", lambda: threads)
    found = gradients()
    torch.testing.assert_close(found, whole)
    monkeypatch.setattr(in_parts, "kernel_threads", lambda: 3)
    assert all(map(torch.equal, gradients(), found)), "the number of threads does not matter"
    with torch.no_grad():
        assert not in_parts.in_parts(layers, rows).requires_grad


def test_a_rollout_embeds_each_frame_once(counted):
    env = make_env("miniworld", layouts=3, horizon=20)
    tasks, model, embedded = env.sample_tasks(6, Rng(0)), some_model(env), []
    count_images(model, embedded)
    lived = rollout(env, tasks, InContextAgent(model), rng=Rng(1))
    seen = lived.observations[:, 0, :-1].unique()  # nobody acts on the last one
    assert sum(embedded) == len(seen) < 6 * 20
    assert len(embedded) <= 20, "at most one call a step"


class Stop(Exception):
    pass


class Looker:
    """Hears what is prepared, and may end a training after a step."""

    def __init__(self, at=None, counted=()):
        self.at, self.counted, self.heard, self.made = at, counted, [], []

    def prepared(self, done, total):
        self.heard.append((done, total))

    def started(self, step, total):
        self.made.append(len(self.counted))

    def stepped(self, step, values):
        self.made.append(len(self.counted))
        if step == self.at:
            raise Stop

    def logged(self, step, values):
        pass


TINY = ["steps=8", "checkpoint_every=3", "log_every=1", "evaluate_every=8", "evaluate_tasks=4",
        "final_tasks=4", "env.horizon=12", "env.layouts=4", "batches.short_length=6"]  # fmt: skip


def test_pretraining_prepares_its_frames_and_resumes_bit_for_bit(counted, tmp_path):
    config = resolve(PretrainConfig, "pretrain", "miniworld", "smoke", TINY)
    looker = Looker(counted=counted)
    whole = pretrain(config, tmp_path / "whole", [looker])
    poses = make_env("miniworld", layouts=4, walks=2, horizon=12).bank_poses()
    assert looker.heard[-1] == (len(poses), len(poses)), "progress is told"
    assert len(set(looker.made)) == 1, "no step makes a frame"
    with pytest.raises(Stop):
        pretrain(config, tmp_path / "stopped", [Looker(at=5)])
    assert pretrain(config, tmp_path / "stopped").read_bytes() == whole.read_bytes()


def test_adversarial_training_resumes_bit_for_bit(counted, tmp_path):
    start = pretrain(
        resolve(PretrainConfig, "pretrain", "miniworld", "smoke", TINY), tmp_path / "p"
    )
    few = ["env.horizon=12", "env.layouts=4", "batches.short_length=6", "tasks=6", "iterations=2"]
    few += ["evaluate_tasks=4", "final_tasks=4", "rounds=2", "synthetic.rounds=1"]
    assert load(str(start)).model.embedding.views.look == make_env("miniworld").frames.look
    config = resolve(AdversarialConfig, "train", "miniworld", "smoke", few, start=str(start))
    whole = train_adversarially(config, tmp_path / "whole")
    with pytest.raises(Stop):
        train_adversarially(config, tmp_path / "stopped", [Looker(at=2)])
    assert train_adversarially(config, tmp_path / "stopped").read_bytes() == whole.read_bytes()


def test_with_many_layouts_nothing_is_prepared(counted):
    heard = []
    make_env("miniworld").prepare(lambda done, total: heard.append(total))
    assert not heard and not counted


def test_a_cached_rollout_equals_the_full_forward(counted):
    env = make_env("miniworld", layouts=3, horizon=20)
    tasks, model = env.sample_tasks(6, Rng(0)), some_model(env)
    agent = InContextAgent(model, greedy=True)
    lived = rollout(env, tasks, agent, rng=Rng(1))
    with torch.no_grad():
        logits = model(lived.contexts())
    assert torch.equal(logits[:, :-1].argmax(2), lived.actions)


def test_a_plain_agent_is_shown_images(counted):
    class Plain:
        def reset(self):
            pass

        def act(self, obs):
            assert obs["image"].shape == (SIDE, SIDE, 3) and obs["heading"].shape == (2,)
            return 2

        def observe(self, obs, action, reward, next_obs):
            assert next_obs["image"].dtype == np.uint8

    env = make_env("miniworld", layouts=3, horizon=5)
    lived = rollout(env, env.sample_tasks(2, Rng(0)), as_agent(Plain()), rng=Rng(1))
    assert (lived.actions == 2).all()


def test_a_model_in_a_loop_of_ones_own_is_given_images(counted):
    env = make_env("miniworld", layouts=3, horizon=5)
    solo = Solo(InContextAgent(some_model(env)), env.spec)
    seen = env.spec.observation.look(env.sample_tasks(1, Rng(0)).start)
    image, heading = seen["image"][0].numpy(), seen["heading"][0].numpy()
    shown = {"image": image, "heading": heading}
    solo.observe(solo.act(shown), 1.0, shown, shown)
    assert solo.act(shown) in range(4)
    with pytest.raises(UserError, match="must have the keys image, heading"):
        solo.act({"image": image})


# Without GL ------------------------------------------------------------------------------------

NO_GL = """
import ctypes.util, sys
real = ctypes.util.find_library
ctypes.util.find_library = lambda name: None if name in ("GL", "EGL", "GLU") else real(name)
import ctypes
loads = ctypes.CDLL.__init__
def init(self, name, *rest, **more):
    if name and any(part in str(name) for part in ("libGL", "libEGL")):
        raise OSError(f"{name}: cannot open shared object file")
    loads(self, name, *rest, **more)
ctypes.CDLL.__init__ = init
import torch
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.rng import Rng
"""
LOOK = """
env = make_env("miniworld")
try:
    seen = env.spec.observation.look(env.sample_tasks(1, Rng(0)).start)
    print(len(seen["image"].unique()) > 20)
except UserError as error:
    print(error)
"""


def run(code, kernels="reference", out="", cache=""):
    environment = {**os.environ, "MITHRIDATE_KERNELS": kernels, "MITHRIDATE_CACHE": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", code, str(out)],
        capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip


def test_without_gl_one_line_names_the_packages():
    pytest.importorskip("pyglet")
    done = run(NO_GL + LOOK)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 1 and "libegl1 libgl1 libglu1-mesa libfreetype6" in said[0]


def test_rays_need_no_gl():
    if kernels() is None or find_spec("miniworld") is None:
        pytest.skip("needs the native kernels and the miniworld package")
    assert run(NO_GL + LOOK, "native").stdout == "True\n"


PRETRAIN = """
from mithridate.cli import main
sys.argv = ["mithridate", "pretrain", "miniworld", "--preset", "smoke", "--out", sys.argv[1]]
sys.exit(main())
"""
NO_EXTRA = """
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "miniworld" else real(name, *rest)
sys.modules["pyglet"] = None
"""


@pytest.mark.parametrize(
    ("missing", "by", "said"),
    [
        (NO_GL, "reference", "libegl1 libgl1 libglu1-mesa libfreetype6"),
        (NO_EXTRA, "reference", "pip install 'mithridate[miniworld]'"),
        (NO_EXTRA, "native", "pip install 'mithridate[miniworld]'"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_written(tmp_path, missing, by, said):
    pytest.importorskip("pyglet")
    if by == "native" and kernels() is None:
        pytest.skip("needs the native kernels")
    done = run(missing + PRETRAIN, by, tmp_path / "run", tmp_path / "cache")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert said in done.stderr and not list(tmp_path.iterdir())


def test_textures_have_all_their_levels():
    texels = np.arange(12 * 12 * 3).reshape(12, 12, 3) % 251
    found = rays.levels(texels)
    assert found.shape == (12**2 + 6**2 + 3**2 + 1, 4) and not found[:, 3].any()
    np.testing.assert_array_equal(found[:144, :3], texels.reshape(-1, 3))
    (a, b), (c, d) = texels[:2, :2]
    np.testing.assert_array_equal(found[144, :3], ((a + b + 1) // 2 + (c + d + 1) // 2 + 1) // 2)


@pytest.mark.gl
def test_random_agents_need_no_frames(stock, monkeypatch):
    def fail(poses):
        raise AssertionError("somebody looked")

    monkeypatch.setattr(frames, "rendered", fail)
    env = make_env("miniworld", horizon=20)
    rollout(env, env.sample_tasks(5, Rng(0)), AGENTS.create("uniform"), rng=Rng(1))
