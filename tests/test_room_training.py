"""Rooms: attackers and models that learn."""

import json
import math

import pytest
import torch

from mithridate.agents.q_learning import QLearning, QLearningConfig
from mithridate.attackers.tabular import TabularAttacker
from mithridate.envs import make_env
from mithridate.envs.darkroom import transitions
from mithridate.evaluation.victims import Victim
from mithridate.registry import AGENTS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.settings import resolve
from mithridate.stage_config import AdversarialConfig, AttackConfig, PretrainConfig
from mithridate.training.adversarial import AdversarialTraining, train_adversarially
from mithridate.training.attack import AttackTraining
from mithridate.training.pretrain import pretrain


def test_attackers_learn_from_all_of_a_learners_episodes():
    env = make_env("darkroom2", size=3, horizon=10)
    tasks = env.sample_tasks(4, Rng(0))
    agent = QLearning(QLearningConfig(episodes=6))
    last = rollout(env, tasks, agent, rng=Rng(1))
    whole = rollout(env, tasks, agent, rng=Rng(1), record_learning=True)
    assert whole.actions.shape == (4, 70) and whole.observations.shape == (4, 7, 11)
    assert torch.equal(whole.actions[:, 60:], last.actions)
    assert torch.equal(whole.observations[:, 6:], last.observations)
    assert (whole.observations[:, :, 0] == 0).all(), "every episode begins at the start"
    assert torch.equal(whole.optimal_after, last.optimal_after)


def test_attack_training_scores_the_measured_episode_and_learns_from_all(updates):
    config = resolve(
        AttackConfig, "attack", "darkroom2", "smoke", ["env.size=3", "env.horizon=10", "tasks=8"],
        target="q_learning(episodes=4)",
    )  # fmt: skip
    trainee = AttackTraining(config)
    seen = updates(TabularAttacker)
    values = trainee.step(0)
    assert seen[0].actions.shape == (8, 50), "four episodes of learning and the measured one"
    last = seen[0].true_rewards[:, 40:].sum(1).mean().item()
    assert values["score_mean"] == pytest.approx(last)
    assert Victim("Q", ["q_learning(episodes=4)"]).episodes() == 5
    assert Victim("oracle", ["oracle"]).episodes() == 1


def test_an_attacker_learns_to_hurt_a_learner():
    config = resolve(
        AttackConfig, "attack", "darkroom2", "smoke",
        ["env.size=3", "env.horizon=30", "tasks=60", "eps=0.5"],
        target="q_learning(episodes=10,exploration=0.2,exploration_after=0)",
    )  # fmt: skip
    trainee = AttackTraining(config)
    scores = [trainee.step(step)["score_mean"] for step in range(8)]
    assert scores[-1] < 0.8 * scores[0], scores


def test_what_a_model_lives_through_becomes_contexts():
    env = make_env("darkroom2", size=3, horizon=12)
    tasks = env.sample_tasks(5, Rng(0))
    t = rollout(env, tasks, AGENTS.create("uniform"), rng=Rng(1))
    c = t.contexts()
    assert torch.equal(c.next_states, transitions(3)[c.states, c.actions])
    assert torch.equal(c.queries[:, 1:], c.next_states) and (c.queries[:, 0] == 0).all()
    assert torch.equal(c.labels, tasks.best.gather(1, c.queries))
    part = c.select(slice(1, 3), 4)
    assert part.states.shape == (2, 4) and part.queries.shape == part.labels.shape == (2, 5)


def test_suboptimal_labels_are_second_best_where_they_are_asked(tmp_path):
    weights = pretrain(smoke(PretrainConfig, "pretrain", "steps=2"), tmp_path / "run")
    trainee = AdversarialTraining(
        smoke(AdversarialConfig, "train", "suboptimal=0.3", start=str(weights))
    )
    env = trainee.env
    tasks = env.sample_tasks(300, Rng(0))
    contexts = env.sample_contexts(tasks, 20, Rng(1))
    taught = trainee._taught(contexts, Rng(2))
    values = tasks.values[torch.arange(300)[:, None], contexts.queries]
    assert torch.equal(values, contexts.values) and taught.values is None
    changed = taught.labels != contexts.labels
    assert abs(changed.float().mean() - 0.3) < 0.03
    worse = values.masked_fill(values == values.amax(2, keepdim=True), -math.inf)
    torch.testing.assert_close(values.gather(2, taught.labels[..., None])[changed][:, 0],
                               worse.amax(2)[changed])  # fmt: skip


def test_attackers_that_chase_a_learner_learn_from_all_its_episodes(tmp_path, updates):
    weights = pretrain(smoke(PretrainConfig, "pretrain", "steps=2"), tmp_path / "run")
    threats = [{"attacker": "tabular", "target": "q_learning(episodes=2)"}]
    config = smoke(
        AdversarialConfig, "train", f"threats={json.dumps(threats)}", "synthetic.rounds=0",
        start=str(weights),
    )  # fmt: skip
    trainee = AdversarialTraining(config)
    seen = updates(TabularAttacker)
    trainee.step(0)
    assert [t.actions.shape[1] for t in seen] == [3 * trainee.env.spec.horizon]


def smoke(kind, stage, *sets, **direct):
    return resolve(kind, stage, "darkroom2", "smoke", sets, threads=1, **direct)


def test_training_resumes_bit_for_bit(tmp_path):
    """Pretraining and adversarial training, interrupted after a checkpoint."""

    class Stop(Exception):
        pass

    class Interrupts:
        def started(self, step, total):
            pass

        def stepped(self, step, values):
            if step == self.at:
                raise Stop

        def logged(self, step, values):
            pass

        def evaluated(self, step, values):
            pass

        def __init__(self, at):
            self.at = at

    weights = {}
    for out in ("whole", "stopped"):
        config = smoke(PretrainConfig, "pretrain", "steps=25")
        if out == "stopped":
            with pytest.raises(Stop):
                pretrain(config, tmp_path / out / "dpt", [Interrupts(14)])
        weights[out] = pretrain(config, tmp_path / out / "dpt")
    assert weights["whole"].read_bytes() == weights["stopped"].read_bytes()
    config = smoke(
        AdversarialConfig, "train", "suboptimal=0.1", "rounds=4", start=str(weights["whole"])
    )
    whole = train_adversarially(config, tmp_path / "whole" / "at")
    with pytest.raises(Stop):
        train_adversarially(config, tmp_path / "stopped" / "at", [Interrupts(4)])
    stopped = train_adversarially(config, tmp_path / "stopped" / "at")
    assert whole.read_bytes() == stopped.read_bytes()
