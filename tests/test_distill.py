"""Algorithm Distillation: the data, a source simple enough to be learned, keeping, errors."""

import pytest
import torch

from mithridate.agents.in_context import InContextAgent
from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.model.weights import load_model
from mithridate.registry import AGENTS, ATTACKERS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.settings import resolve
from mithridate.stage_config import DistillConfig
from mithridate.training.distill import Distillation, distill, histories


def smoke(*sets, source="ts", **direct) -> DistillConfig:
    return resolve(DistillConfig, "distill", "bandit", "smoke", sets, source=source, **direct)


def test_labels_are_what_the_source_did_next():
    env = make_env("bandit", arms=3, horizon=20)
    tasks = env.sample_tasks(5, Rng(0))
    attacker = ATTACKERS.create("swap")
    t = rollout(env, tasks, AGENTS.create("ts"), attacker, 0.5, rng=Rng(1))
    data = histories(t)
    assert data.actions.shape == (5, 19) and data.labels.shape == (5, 20)
    for h in range(20):
        assert torch.equal(data.labels[:, h], t.actions[:, h])
    assert torch.equal(data.rewards, t.observed_rewards[:, :-1]), "what the source saw"
    assert not torch.equal(data.rewards, t.true_rewards[:, :-1])


SOURCE = """
class Cycle:
    # Two pulls of each arm in turn, from the last to the first.
    def reset(self): self.t = 0
    def act(self, obs): return 2 - self.t // 2 % 3
    def observe(self, obs, action, reward, next_obs): self.t += 1
"""


def test_a_trivial_source_is_learned(tmp_path, monkeypatch):
    (tmp_path / "cycling.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    weights = distill(smoke("steps=150", "tasks=8", source="cycling:Cycle"), tmp_path / "run")
    model, card = load_model(str(weights))
    assert card["kind"] == "ad" and card["training"]["source_sha256"]
    env = make_env("bandit", arms=3, horizon=20)
    t = rollout(env, env.sample_tasks(50, Rng(9)), InContextAgent(model), rng=Rng(1))
    expected = torch.tensor([2 - h // 2 % 3 for h in range(20)])
    assert (t.actions == expected).float().mean() > 0.97
    (tmp_path / "cycling.py").write_text(SOURCE + "# changed\n")
    with pytest.raises(UserError, match="another configuration"):
        distill(smoke("steps=150", "tasks=8", source="cycling:Cycle"), tmp_path / "run")


def test_interrupted_and_resumed_is_bit_identical(tmp_path, monkeypatch):
    config = smoke("steps=30", attacker="uniform")
    whole = distill(config, tmp_path / "whole").read_bytes()
    original = Distillation.step

    def step(self, number):
        if number == 25:
            raise KeyboardInterrupt
        return original(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Distillation, "step", step)
        with pytest.raises(KeyboardInterrupt):
            distill(config, tmp_path / "parts")
    assert distill(config, tmp_path / "parts").read_bytes() == whole


def test_the_pool_forgets(tmp_path):
    trainee = Distillation(smoke("refresh_every=1", "pool=2", "tasks=4"))
    first = trainee.step(0) and trainee.pool[0]
    trainee.step(1)
    assert trainee.pool[0] is first
    trainee.step(2)
    assert len(trainee.pool) == 2 and trainee.pool[0] is not first


@pytest.mark.parametrize(
    ("direct", "message"),
    [
        ({"source": "tss"}, "did you mean 'ts'"),
        ({"source": "posterior_oracle"}, "knows what a model cannot"),
        ({"attacker": "gaussian"}, "learns"),
        ({"attacker": "swap(budget=4)"}, "its budget exceeds"),
        ({"source": "dpt-bandit-s0"}, "for 5 actions"),
        ({"attacker": "swop"}, "did you mean 'swap'"),
        ({"source": "npg"}, "npg needs an env"),
    ],
)
def test_bad_settings(tmp_path, direct, message):
    with pytest.raises(UserError, match=message):
        distill(smoke(**direct), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command(tmp_path, command):
    code, stdout, _ = command(
        "distill", "bandit", "--source", "ucb1", "--preset", "smoke", "--attacker", "uniform",
        "--eps", "0.3", "--set", "steps=20", "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert code == 0 and "clean score" in stdout
    assert load_model(str(tmp_path / "run"))[1]["training"]["eps"] == 0.3
