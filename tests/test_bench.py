"""The benchmark's form, and that its peers do the same work as we do. No times are asserted."""

import json

import pytest
import torch

from mithridate.agents.in_context import InContextAgent
from mithridate.bench import run
from mithridate.bench.episodes import ALGORITHMS, LINEAR
from mithridate.bench.one_bandit import steps
from mithridate.bench.peers import HuggingFaceAgent, HuggingFaceModel, reference_path
from mithridate.config import ModelConfig
from mithridate.envs import make_env
from mithridate.envs.miniworld import frames
from mithridate.errors import UserError
from mithridate.model.one_stream import OneStreamModel
from mithridate.native import kernels
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.training.fitness import check_views


def can_draw():
    """Whether there are frames of Miniworld here."""
    try:
        check_views(make_env("miniworld"))
    except UserError:
        return False
    return True


def test_bench_prints_one_document(command):
    code, stdout, _ = command("bench", "--quick", "--threads", "1", "--json")
    assert code == 0
    document = json.loads(stdout)
    pairs = [(r["name"], r["peer"]) for r in document["results"]]
    assert pairs == [
        ("train_step", "hf_gpt2"), ("train_step", "reference"), ("rollout", "reference"),
        ("rollout", "hf_gpt2"), ("rollout", "recompute_no_cache"),
        ("room_rollout", "query_first"), ("room_rollout", "query_first_hf_gpt2"),
        *([("view_rollout", "recompute_no_cache")] if can_draw() else []),
        ("one_bandit", "mixture_ts"), ("one_bandit", "ts"),
        ("one_bandit_fine", "mixture_ts"), ("one_bandit_fine", "ts"),
    ]  # fmt: skip
    for r in document["results"]:
        assert r["ratio"] == pytest.approx(r["peer_s"] / r["ours_s"])
        assert 0 < r["share_of_peak"] < 1
    assert [r["name"][:7] for r in document["rounds"]] == ["4 steps", "a round"]
    assert all(r["outside"] is None or 0 < r["outside"] < 1 for r in document["rounds"])
    assert 0 < document["startup"]["python_s"] < document["startup"]["help_s"]
    axes = [(g["name"], g["axis"]) for g in document["growth"]]
    assert axes == [("rollout", "tasks"), ("rollout", "length"), ("train_step", "length")]
    searched = {e["agent"]: e for e in document["episodes"]}
    assert searched.keys() == {"in_context", *ALGORITHMS, *LINEAR}
    assert {"crucb", "mixture_ts", "mixture_linucb", "posterior_oracle"} <= searched.keys()
    assert all(e["episodes"] == 24 and e["per_second"] > 0 for e in searched.values())
    assert searched["ts"]["outside"] is None
    if kernels() is not None:
        assert 0 < searched["in_context"]["outside"] < 1
    assert document["per_episode"]["tasks"] == [12, 20]
    shared = {s["name"]: s for s in document["two_at_once"]}
    assert shared.keys() == {"rollout", "train_step"}
    assert all(s["ratio"] == s["together_s"] / s["alone_s"] for s in shared.values())


def test_one_part_of_the_benchmark(command):
    quick = ("bench", "--quick", "--threads", "1", "--only")
    code, stdout, _ = command(*quick, "room_rollout")
    assert code == 0 and "query_first" in stdout
    assert "train_step" not in stdout and "Growth" not in stdout
    code, stdout, stderr = command(*quick, "rooms")
    assert (code, stdout, stderr.count("\n")) == (2, "", 1) and "room_rollout" in stderr


def test_views_that_cannot_be_drawn_are_left_out_unless_asked_for(monkeypatch):
    def missing(poses):
        raise UserError("no frames here")

    monkeypatch.setattr(frames, "rendered", missing)
    monkeypatch.setattr("mithridate.envs.miniworld.shared", frames.Frames)
    heard = []
    assert run._views(run.QUICK, 1.0, heard.append, False) == []
    assert heard[-1] == "no view_rollout: no frames here"
    with pytest.raises(UserError, match="no frames here"):
        run._views(run.QUICK, 1.0, heard.append, True)


def test_peers_are_timed_in_turns_or_say_their_time():
    turns = []
    ours, peer = run._alternate(
        lambda: turns.append("we"), lambda: turns.append("they") or 5.0, 2, in_a_row=2
    )
    assert turns == ["we", "they", *["we"] * 2, *["they"] * 2, *["we"] * 2, *["they"] * 2]
    assert (ours < 1, peer) == (True, 5.0)


def test_a_fine_bandit_is_one():
    """Otherwise the two that are timed would be the same."""
    for fine in (False, True):
        ours, peers, gflop = steps(3, fine, most=910)
        assert peers.keys() == {"mixture_ts", "ts"} and gflop > 0
        for work in (ours, *peers.values()):
            work()
        if fine:
            bandit = ours.args[0].__self__
            assert len(bandit) == 2 * 910 + 3 and len(bandit._posterior._refined) == 2


@pytest.fixture
def setup():
    env = make_env("bandit", horizon=30)
    model = OneStreamModel(ModelConfig(), env.spec)
    model.initialise(Rng(0).torch_generator())
    return env, model, env.sample_tasks(9, Rng(0))


def test_peers_have_the_same_loss_and_gradient(setup):
    env, model, tasks = setup
    data = env.sample_contexts(tasks, 30, Rng(1))
    theirs = HuggingFaceModel(model)
    ours = model.loss(data)
    other = theirs.loss(data)
    assert other.item() == pytest.approx(ours.item(), rel=1e-5)
    ours.backward()
    mine = model.encoder.weight.grad.clone()
    model.zero_grad()
    other.backward()
    torch.testing.assert_close(model.encoder.weight.grad, mine, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("cached", [True, False])
def test_peers_choose_the_same_actions(setup, cached):
    env, model, tasks = setup
    mine = rollout(env, tasks, InContextAgent(model), rng=Rng(1))
    peer = HuggingFaceAgent(HuggingFaceModel(model), cached=cached)
    assert torch.equal(rollout(env, tasks, peer, rng=Rng(1)).actions, mine.actions)


def test_the_reference_path_is_left_again(setup):
    before = kernels()
    with reference_path():
        assert kernels() is None
        assert setup[1].transformer.new_cache(1).decoder is None
    assert kernels() is before
