"""Adversarial training and attacks: what is learned from, resumed, refused, and that it helps."""

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mithridate.agents.in_context import load
from mithridate.attackers.adaptive import AdaptiveAttacker
from mithridate.attackers.gaussian import GaussianAttacker
from mithridate.envs import make_env
from mithridate.envs.bandit_poison import poisoned, random_offsets
from mithridate.errors import TrainingDiverged, UserError
from mithridate.evaluation.crossplay import evaluate
from mithridate.model.weights import load_model, save_model
from mithridate.registry import AGENTS, ATTACKERS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.settings import parse, resolve
from mithridate.stage_config import AdversarialConfig
from mithridate.tensor_files import tensors_sha256
from mithridate.training.adversarial import AdversarialTraining, train_adversarially
from mithridate.training.run_directory import read_log


def smoke(model, *sets, **direct) -> AdversarialConfig:
    return resolve(
        AdversarialConfig, "train", "bandit", "smoke", sets, start=str(model), threads=1, **direct
    )


# What it learns from ---------------------------------------------------------------------------


def test_the_victim_learns_from_what_it_saw_and_the_labels_are_true():
    env = make_env("bandit", horizon=30)
    tasks = env.sample_tasks(6, Rng(0))
    attacker = ATTACKERS.create("raise_worst")
    t = rollout(env, tasks, AGENTS.create("ts"), attacker, 0.4, rng=Rng(1))
    contexts = t.contexts()
    assert torch.equal(contexts.rewards, t.observed_rewards)
    assert not torch.equal(contexts.rewards, t.true_rewards)
    assert contexts.labels.shape == (6, 31)
    assert (contexts.labels == tasks.means.argmax(1, keepdim=True)).all()


def test_random_offsets_fill_the_budget_and_no_more():
    values = torch.rand(4000, 5, generator=torch.Generator().manual_seed(0))
    offsets = random_offsets(values, torch.full((4000,), 3.0), Rng(0))
    length = offsets.norm(dim=1)
    assert length.max() <= 3.0 + 1e-5 and length.min() < 0.3
    assert (offsets.count_nonzero(1) <= 2).float().mean() > 0.2, "some are sparse"
    against = torch.cosine_similarity(offsets, values - values.mean(1, keepdim=True), dim=1)
    assert (against < -0.8).float().mean() > 0.2, "some oppose the values"


def test_synthetic_poison_hits_the_right_share_and_nothing_else():
    env = make_env("bandit", horizon=400)
    tasks = env.sample_tasks(100, Rng(0))
    clean = env.sample_contexts(tasks, 400, Rng(1))
    eps = torch.tensor([0.0, 0.4]).repeat(50)
    ones = torch.ones(100)
    dirty = poisoned(clean, tasks.means, eps=eps, budget=3 * ones, spread_budget=ones, rng=Rng(2))
    assert torch.equal(dirty.actions, clean.actions) and torch.equal(dirty.labels, clean.labels)
    changed = (dirty.rewards != clean.rewards).float().mean(1)
    assert changed[0::2].max() == 0
    assert changed[1::2].mean() < 0.4 and changed[1::2].max() == pytest.approx(0.4, abs=0.1)


def test_no_budget_no_poison():
    env = make_env("bandit", horizon=20)
    tasks = env.sample_tasks(10, Rng(0))
    clean = env.sample_contexts(tasks, 20, Rng(1))
    eps = torch.full((10,), 0.4)
    none = torch.zeros(10)
    same = poisoned(clean, tasks.means, eps=eps, budget=none, spread_budget=none, rng=Rng(2))
    assert torch.equal(same.rewards, clean.rewards)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_offsets_may_change_on_the_way(share):
    env = make_env("bandit", arms=3, horizon=200)
    tasks = env.sample_tasks(400, Rng(0))
    clean = env.sample_contexts(tasks, 200, Rng(1))
    dirty = poisoned(
        clean, tasks.means, eps=torch.ones(400), budget=torch.full((400,), 3.0),
        spread_budget=torch.zeros(400), switching=share, rng=Rng(2),
    )  # fmt: skip
    shift = dirty.rewards - clean.rewards
    assert (shift.abs() <= 3.0 + 1e-5).all()
    # In about half of those that adapt, offsets oppose the rewards from the first step on.
    falls = [torch.corrcoef(torch.stack(x))[0, 1] for x in zip(shift, clean.rewards, strict=True)]
    follow = (torch.stack(falls) < -0.999).float().mean()
    assert 0.1 * share <= follow <= 0.3 * share + 1e-6, "not those that change again later"
    changed = 0
    for row, actions in zip(shift, clean.actions, strict=True):
        values = [row[actions == arm] for arm in range(3)]
        changed += any(len(v) and (v.max() - v.min()) > 1e-4 for v in values)
    # A change may come to nothing: no attack before and after, or an arm that is not pulled.
    assert 0.8 * share * 400 - 20 <= changed <= share * 400 + 40 * (0 < share < 1)


# The game -------------------------------------------------------------------------------------


def test_a_model_may_act_at_another_temperature_than_it_was_trained_at(smoke_model, tmp_path):
    runs = {
        acts_at: train_adversarially(
            smoke(smoke_model, "temperature=0.5", f"acts_at={acts_at}"), tmp_path / acts_at
        )
        for acts_at in ("null", "2.0")
    }
    (same, card), (other, hot) = (load_model(path) for path in runs.values())
    assert tensors_sha256(same.state_dict()) == tensors_sha256(other.state_dict())
    assert (load(str(runs["null"])).temperature, load(str(runs["2.0"])).temperature) == (0.5, 2.0)
    logs = [
        [
            {k: v for k, v in line.items() if k != "seconds"}
            for line in read_log(path.parent / "log.jsonl")
        ]
        for path in runs.values()
    ]
    assert logs[0] == logs[1], "validation is at the temperature of the training"
    assert hot["metrics"]["clean_mean"] > card["metrics"]["clean_mean"], (
        "its regret is measured hot"
    )


def test_a_card_after_another_temperature_is_the_one_of_a_training_with_it(smoke_model, tmp_path):
    plain, hot = (
        train_adversarially(smoke(smoke_model, f"acts_at={acts_at}"), tmp_path / acts_at)
        for acts_at in ("null", "2.0")
    )
    script = Path(__file__).parent.parent / "scripts" / "act_at.py"
    subprocess.run([sys.executable, script, str(plain), "2.0"], check=True)
    assert load_model(str(plain))[1] == load_model(str(hot))[1]


def test_tasks_are_divided_among_threats_and_renewed(smoke_model):
    threats = [
        {"attacker": "gaussian", "share": 0.5, "eps": 0.3},
        {"attacker": "none", "share": 0.2},
        {"attacker": "raise_worst", "share": 0.3, "budget": 1.0},
    ]
    config = smoke(smoke_model, f"threats={json.dumps(threats)}", "renew=0.25")
    trainee = AdversarialTraining(config)
    assert [n for n, _ in trainee.attacker.parts] == [10, 4, 6]
    torch.testing.assert_close(trainee.eps[[0, 10, 14]], torch.tensor([0.3, 0.4, 0.4]))
    before = trainee.tasks.ids.clone()
    for step in range(3):
        values = trainee.step(step)
    assert {"score_0_gaussian", "score_1_none", "score_2_raise_worst", "frozen_0_gaussian",
            "ts_2_raise_worst", "norm_max_0", "loss"} <= values.keys()  # fmt: skip
    ids = trainee.tasks.ids
    assert len(set(ids.tolist())) == 20
    kept = torch.isin(ids, before).sum().item()
    assert kept == 20 - (2 + 1 + 2), "a quarter of every part is new"
    attacked = trainee.attacker.parts[0][1].tensors()["ids"]
    assert set(attacked.tolist()) <= set(ids.tolist()) | set(range(10))
    assert len(trainee.memory) == 1


def test_synthetic_contexts_are_of_a_threats_eps_and_budget(smoke_model, monkeypatch):
    threats = [{"eps": 0.1, "budget": 5.0}, {"eps": 0.3, "budget": 1.0}, {}, {"attacker": "none"}]
    config = smoke(smoke_model, f"threats={json.dumps(threats)}", "synthetic.clean=0.25")
    trainee = AdversarialTraining(config)
    seen, few = [], trainee.env.sample_contexts(trainee.tasks, 5, Rng(1))
    monkeypatch.setattr(
        trainee.env, "sample_contexts", lambda *given: seen.append(given[-1]) or few
    )
    trainee._synthetic(4000, 5, Rng(0))
    pairs = torch.stack([seen[0].eps, seen[0].budget], 1)
    kinds, count = pairs.unique(dim=0, return_counts=True)
    wanted = [(e, b) for e, b in ((0.1, 5.0), (0.3, 1.0), (0.4, 3.0))]
    wanted += [(0.0, b) for _, b in wanted]
    torch.testing.assert_close(kinds, torch.tensor(sorted(wanted)))
    share = dict(zip(map(tuple, kinds.tolist()), (count / 4000).tolist(), strict=True))
    assert sum(s for (e, _), s in share.items() if e == 0) == pytest.approx(0.25, abs=0.03)
    assert all(s == pytest.approx(0.25, abs=0.03) for (e, _), s in share.items() if e > 0)


def test_what_is_remembered_comes_in_the_order_asked_for(smoke_model):
    trainee = AdversarialTraining(smoke(smoke_model))
    tasks = [trainee.env.sample_contexts(trainee.tasks, 20, Rng(i)) for i in range(3)]
    trainee.memory = [replace(contexts, values=None) for contexts in tasks]
    rounds, rows = np.array([2, 0, 2, 0, 2]), np.array([1, 7, 0, 7, 1])
    found = trainee._remembered(rounds, rows, 6)
    for i, (r, row) in enumerate(zip(rounds, rows, strict=True)):
        one = trainee.memory[r].select(slice(row, row + 1), 6)
        for name, tensor in one.tensors().items():
            assert torch.equal(found.tensors()[name][i : i + 1], tensor)


SEARCHED = (
    'threats=[{"attacker":"search(candidates=6)","share":0.8},{"attacker":"none","share":0.2}]',
    "synthetic.rounds=0", "memory=5", "compare_every=0", "renew=0.25",
)  # fmt: skip


def test_a_task_may_have_several_episodes_in_a_round(smoke_model):
    """Searches try their candidates in the game, and the model learns from all of them."""
    trainee = AdversarialTraining(smoke(smoke_model, *SEARCHED))
    assert [n for n, _ in trainee.attacker.parts] == [96, 4] and len(trainee.eps) == 100
    played = trainee._episodes()
    assert torch.equal(played.ids[:96], trainee.tasks.ids[:16].repeat_interleave(6))
    assert torch.equal(played.ids[96:], trainee.tasks.ids[16:])
    assert len(played.luck.unique()) == 100
    before = trainee.tasks.ids.clone()
    trainee.step(0)
    assert trainee.memory[0].actions.shape == (100, 20)
    search = trainee.attacker.parts[0][1]
    assert search.tensors()["ids"].tolist() == before[4:16].tolist(), "the renewed are forgotten"
    offsets = search.adds().mean.view(16, 6, 3)
    assert (offsets.std(1) > 0.1).any(1).all(), "a task's candidates differ"
    trainee.step(1)
    rounds = dict(
        zip(
            search.tensors()["ids"].tolist(), search.tensors()["rounds"][:, 0].tolist(), strict=True
        )
    )
    assert {rounds[i] for i in trainee.tasks.ids[:8].tolist() if i in rounds} == {2}


def test_a_part_of_a_round_is_remembered(smoke_model):
    config = smoke(smoke_model, *SEARCHED, "remembered=30", "iterations=1")
    trainee = AdversarialTraining(config)
    trainee.step(0)
    trainee.step(1)
    few = trainee.memory
    assert [len(contexts.actions) for contexts in few] == [30, 30]
    whole = AdversarialTraining(smoke(smoke_model, *SEARCHED, "iterations=1"))
    whole.step(0)
    every = {tuple(row) for row in whole.memory[0].rewards.tolist()}
    found = [tuple(row) for row in few[0].rewards.tolist()]
    assert len(set(found)) == 30 and set(found) <= every
    seen = {tuple(row) for row in trainee._batch(2, True, Rng(3)).rewards[:, :5].tolist()}
    assert len(seen) > 1


def test_a_game_with_searches_is_resumed_bit_by_bit(smoke_model):
    config = smoke(smoke_model, *SEARCHED, "remembered=30")
    whole, first = AdversarialTraining(config), AdversarialTraining(config)
    for step in range(2):
        whole.step(step)
        first.step(step)
    second = AdversarialTraining(config)
    second.load_tensors({name: t.clone() for name, t in first.tensors().items()})
    for trainee in (whole, second):
        trainee.step(2)
    mine, yours = whole.tensors(), second.tensors()
    assert mine.keys() == yours.keys()
    assert all(torch.equal(tensor, yours[name]) for name, tensor in mine.items())


def test_attackers_may_chase_somebody_else(smoke_model, updates):
    """A part with a target learns from the target's rollouts, the other from the model's."""
    threats = [{"attacker": "gaussian"}, {"attacker": "gaussian", "target": "ts"}]
    trainee = AdversarialTraining(smoke(smoke_model, f"threats={json.dumps(threats)}"))
    seen = updates(GaussianAttacker)
    trainee.step(2)
    lived = trainee.memory[-1].actions
    assert torch.equal(seen[0].actions, lived[:10])
    assert not torch.equal(seen[1].actions, lived[10:])
    assert trainee.attacker.parts[1][1].tensors()["offsets"].any()


def test_attackers_may_chase_the_start(smoke_model):
    threats = [
        {"attacker": "gaussian", "target": "start"},
        {"target": "crucb(alpha={eps})", "eps": 0.2},
    ]
    trainee = AdversarialTraining(smoke(smoke_model, f"threats={json.dumps(threats)}"))
    start, crucb = trainee.targets
    assert start is trainee.start and start.temperature == 1.0
    assert crucb.config.alpha == 0.2
    trainee.step(2)
    weights = zip(trainee.model.parameters(), start.model.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in weights), "the start stays as it was"


def test_attackers_may_chase_a_rival(smoke_model, tmp_path):
    threats = f"threats={json.dumps([{'target': 'rival'}, {'attacker': 'none'}])}"
    with pytest.raises(UserError, match="the target is rival, but there is none"):
        train_adversarially(smoke(smoke_model, threats), tmp_path / "run")
    rival = tmp_path / "rival.safetensors"
    model, card = load_model(smoke_model)
    with torch.no_grad():
        model.head.bias += 1.0
    save_model(rival, model, card)
    trainee = AdversarialTraining(smoke(smoke_model, threats, f"rival={rival}"))
    config = trainee.config
    assert config.rival_sha256 == tensors_sha256(model.state_dict()) != config.start_sha256
    torch.testing.assert_close(trainee.targets[0].model.head.bias, model.head.bias)
    with torch.no_grad():
        model.head.bias += 1.0
    save_model(rival, model, card)
    with pytest.raises(UserError, match="rival .* is not the model this run began with"):
        AdversarialTraining(config)


def test_attackers_learn_from_the_rollout_they_lived_through(smoke_model, monkeypatch):
    """Rounds with a look at the frozen model and at TS are no different."""
    seen = []

    def update(self, trajectory):
        seen.append((self.trace().inputs[..., 0], trajectory.true_rewards))
        return {}

    monkeypatch.setattr(AdaptiveAttacker, "update", update)
    threats = [{"attacker": "adaptive(layers=1)"}, {"attacker": "adaptive(layers=1)"}]
    config = smoke(smoke_model, f"threats={json.dumps(threats)}", "compare_every=1")
    trainee = AdversarialTraining(config)
    trainee.step(2)
    assert len(seen) == 2 and all(torch.equal(*pair) for pair in seen)
    weights = [attacker.model.head.weight for _, attacker in trainee.attacker.parts]
    assert not torch.equal(*weights), "each threat has a network of its own"


def test_a_threat_may_have_parameters(smoke_model):
    threats = [
        {"attacker": "uniform(range=0.25)"},
        {"attacker": "adaptive(layers=1)", "budget": 2.0},
    ]
    config = smoke(smoke_model, f"threats={json.dumps(threats)}", "seed=5")
    trainee = AdversarialTraining(config)
    uniform, adaptive = (attacker.config for _, attacker in trainee.attacker.parts)
    assert (uniform.range, uniform.budget) == (0.25, 3.0)
    assert (adaptive.layers, adaptive.budget) == (1, 2.0)
    values = trainee.step(2)
    assert {"score_0_uniform", "score_1_adaptive", "norm_max_1"} <= values.keys()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_share_of_suboptimal_labels_is_exact_in_expectation(smoke_model, share):
    trainee = AdversarialTraining(smoke(smoke_model, f"suboptimal={share}"))
    trainee.step(2)
    synthetic = trainee._synthetic(200, 20, Rng(3))
    ranks = {}
    lived = trainee.memory[-1].labels
    tasks = trainee.env.sample_tasks(200, Rng(3).child("tasks"))
    ranks["synthetic"] = (
        tasks.means.argsort(1, descending=True).argsort(1).gather(1, synthetic.labels)
    )
    fresh = AdversarialTraining(trainee.config)  # the tasks before the first renewal
    ranks["lived"] = fresh.tasks.means.argsort(1, descending=True).argsort(1).gather(1, lived)
    for name, rank in ranks.items():
        assert rank.max() <= 1, "the best or the second-best arm"
        n = rank.numel()
        error = abs(rank.float().mean().item() - share)
        assert error <= 4 * (share * (1 - share) / n) ** 0.5, (name, error)


def test_the_synthetic_rounds_need_no_rollout(smoke_model, monkeypatch):
    trainee = AdversarialTraining(smoke(smoke_model))
    monkeypatch.setattr(AdversarialTraining, "_play", lambda *a: pytest.fail("rolled out"))
    assert "loss" in trainee.step(0)


def test_it_makes_a_model_robust(tmp_path, smoke_model):
    """A short training on a small bandit: less regret under attack, by a clear margin."""
    config = smoke(
        smoke_model, "rounds=15", "iterations=20", "tasks=50", "synthetic.rounds=15",
        "optimiser.learning_rate=0.003", "compare_every=0", "evaluate_every=30",
        "batches.long_batch=64", "batches.short_batch=64", "batches.long_every=1",
    )  # fmt: skip
    weights = train_adversarially(config, tmp_path / "run")
    env = make_env("bandit", arms=3, horizon=20)
    agents = {"before": str(smoke_model), "after": str(weights)}
    for attacker in ("raise_worst", "swap"):
        result = evaluate(env, agents, attackers=attacker, tasks=400, threads=1).summary()
        assert result["after"][0] < 0.85 * result["before"][0], (attacker, result)
    card = json.loads(weights.with_suffix(".json").read_text())
    assert card["kind"] == "at-dpt" and card["training"]["start_sha256"]
    assert card["metrics"]["raise_worst_mean"] > 0


THREATS = '[{"attacker": "gaussian"}, {"attacker": "adaptive(layers=1,heads=2,width=16)"}]'
SETS = (
    "threads=1", "rounds=12", "iterations=4", "checkpoint_every=3", f"threats={THREATS}",
    "suboptimal=0.1",
)  # fmt: skip


def start(model, out):
    sets = [word for s in SETS for word in ("--set", s)]
    command = [sys.executable, "-m", "mithridate", "train", "bandit", "--preset", "smoke"]
    return subprocess.Popen(
        [*command, "--from", str(model), *sets, "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_killed_and_resumed_is_bit_identical(smoke_model, tmp_path):
    config = resolve(
        AdversarialConfig, "train", "bandit", "smoke", SETS, start=str(smoke_model)
    )  # fmt: skip
    undisturbed = train_adversarially(config, tmp_path / "undisturbed")
    moments = random.Random(1)
    killed = 0
    for target in (2, 6, 11):
        process = start(smoke_model, tmp_path / "killed")
        log = tmp_path / "killed" / "log.jsonl"
        while process.poll() is None and not (
            log.exists() and log.read_text().count("\n") >= target
        ):
            time.sleep(0.002)
        time.sleep(moments.random() * 0.03)
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        process.communicate()
    assert killed >= 2, "the kills came too late to mean anything"
    process = start(smoke_model, tmp_path / "killed")
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr.decode()
    resumed = tmp_path / "killed" / "model.safetensors"
    assert resumed.read_bytes() == undisturbed.read_bytes()
    attackers = (path.with_name("attackers.safetensors") for path in (resumed, undisturbed))
    assert len({path.read_bytes() for path in attackers}) == 1
    logs = [
        [{k: v for k, v in line.items() if k != "seconds"} for line in read_log(path)]
        for path in (tmp_path / "killed" / "log.jsonl", tmp_path / "undisturbed" / "log.jsonl")
    ]
    assert logs[0] == logs[1]


def test_a_diverging_run_says_so(smoke_model, tmp_path, monkeypatch):
    monkeypatch.setattr(AdversarialTraining, "_play", lambda *a: {})
    config = smoke(smoke_model, "explosion_factor=1e-9")
    with pytest.raises(TrainingDiverged, match=r"training diverged: loss .* checkpoint is kept"):
        train_adversarially(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["threats=[]"], "at least one"),
        (["threats=[{'attacker': 'none'}]".replace("'", '"'), "env.arms=4"], "for 3 actions"),
        (["batches.long_length=30"], "exceeds env.horizon"),
        (['threats=[{"attaker": "none"}]'], "unknown key"),
        (['threats=[{"attacker": "swop"}]'], "did you mean 'swap'"),
        (['threats=[{"target": "tss"}]'], "did you mean 'ts'"),
        (['threats=[{"target": "oracle"}]'], "knows the attack"),
        (['threats=[{"attacker": "swap", "target": "ts"}]'], "does not learn"),
        (['threats=[{"attacker": "none", "target": "ts"}]'], "does not learn"),
        (['threats=[{"attacker": "swap(budget=4)"}]'], "its budget exceeds"),
        (['threats=[{"target": "dpt-bandit-s0"}]'], "for 5 actions"),
        (['threats=[{"share": 1.0}, {"share": 1e-9}]'], "too small"),
        (['threats=[{"attacker": "tabular"}]'], "needs an environment with several attack keys"),
        (['threats=[{"target": "npg"}]'], "npg needs an env"),
    ],
)
def test_bad_settings(smoke_model, tmp_path, sets, message):
    with pytest.raises(UserError, match=message):
        train_adversarially(smoke(smoke_model, *sets), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_lists_are_welcome_in_configurations():
    config = parse(
        AdversarialConfig,
        {"env": {"name": "bandit"}, "start": "x", "threats": [{"attacker": "none"}]},
    )
    assert config.threats[0].attacker == "none"
