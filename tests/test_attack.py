"""Training attackers against a target that does not learn from it."""

import pytest
import torch

from mithridate.envs import make_env
from mithridate.errors import UserError
from mithridate.registry import AGENTS
from mithridate.rng import Rng
from mithridate.settings import resolve
from mithridate.stage_config import AttackConfig
from mithridate.training.attack import AttackTraining, LearnedAttack, attack
from mithridate.training.run_directory import read_log


def attack_config(**direct) -> AttackConfig:
    settings = {"target": "ts", "threads": 1, **direct}
    return resolve(AttackConfig, "attack", "bandit", "smoke", **settings)


def test_attackers_are_saved_with_their_tasks_and_hurt_as_reported(tmp_path):
    path = attack(attack_config(rounds=6, seed=3), tmp_path / "run")
    learned = LearnedAttack(path)
    env = make_env("bandit", arms=3, horizon=20)
    expected = env.sample_tasks(20, Rng(3).child("attack", "tasks"))
    assert torch.equal(learned.tasks.means, expected.means)
    again = AttackTraining(attack_config(rounds=6, seed=3))
    again.load_tensors(learned.attacker.tensors())
    assert again.evaluate(6) == learned.metrics
    assert learned.metrics["used_norm_max"] <= 3.0
    lines = read_log(tmp_path / "run" / "log.jsonl")
    assert [line["step"] for line in lines if "score_mean" in line] == list(range(1, 7))


def test_an_attack_is_resumed_where_it_stopped(tmp_path, monkeypatch):
    whole = attack(attack_config(rounds=5), tmp_path / "whole").read_bytes()
    original = AttackTraining.step

    def step(self, number):
        if number == 3:
            raise KeyboardInterrupt
        return original(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(AttackTraining, "step", step)
        with pytest.raises(KeyboardInterrupt):
            attack(attack_config(rounds=5), tmp_path / "parts")
    assert attack(attack_config(rounds=5), tmp_path / "parts").read_bytes() == whole


ELSEWHERE = {
    "ppo": "miniworld",
    **dict.fromkeys(("mixture_room", "npg", "q_learning"), "darkroom2"),
    **dict.fromkeys(
        ("linucb", "crlinucb", "lin_ts", "mixture_linucb", "mixture_lin_ts"), "linear_bandit"
    ),
}
BRIEF = {"ppo": "ppo(episodes=2)"}
PRIVILEGED = ("oracle", "posterior_oracle")


@pytest.mark.parametrize("target", [n for n in AGENTS.names() if n not in PRIVILEGED])
def test_every_agent_can_be_attacked(target, tmp_path):
    env = ELSEWHERE.get(target, "bandit")
    agent = BRIEF.get(target, target)
    config = resolve(
        AttackConfig, "attack", env, "smoke", target=agent, threads=1, rounds=2, tasks=5
    )
    learned = LearnedAttack(attack(config, tmp_path / "run"))
    assert (learned.config.target, learned.env.spec.name) == (agent, env)
    assert learned.config.attacker == learned.env.learned_attack


@pytest.mark.parametrize("target", ["npg", "linucb"])
def test_nothing_is_made_for_a_target_that_cannot_act_there(target, tmp_path):
    with pytest.raises(UserError, match=f"{target} needs an environment"):
        attack(attack_config(target=target), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Stubborn:
    """A user's plain agent for one task."""

    def reset(self):
        pass

    def act(self, obs):
        return 0

    def observe(self, obs, action, reward, next_obs):
        pass


def test_a_users_own_agent_can_be_attacked(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "class Mine:\n"
        "    def reset(self): pass\n"
        "    def act(self, obs): return 1\n"
        "    def observe(self, *a): pass\n"
    )
    code, stdout, _ = command("attack", "bandit", "--target", "mine:Mine", "--preset", "smoke",
                              "--figure", "curve.png")  # fmt: skip
    assert code == 0 and "mine:Mine under these attackers" in stdout
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    path = attack(attack_config(target="Stubborn", rounds=1), tmp_path / "run", target=Stubborn())
    assert LearnedAttack(path).config.target == "Stubborn"


def test_damaged_attackers_are_refused(tmp_path):
    path = attack(attack_config(rounds=1), tmp_path / "run")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match="damaged"):
        LearnedAttack(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(UserError, match="file of attackers .* is damaged: not a safetensors"):
        LearnedAttack(path)
    with pytest.raises(UserError, match="cannot read"):
        LearnedAttack(tmp_path / "missing.safetensors")


def test_an_attacker_that_does_not_learn_is_refused(tmp_path):
    with pytest.raises(UserError, match="does not learn"):
        attack(attack_config(attacker="uniform"), tmp_path / "run")


def test_a_single_task_has_no_interval(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, stdout, _ = command(
        "attack", "bandit", "--target", "ts", "--preset", "smoke", "--set", "tasks=1"
    )
    assert code == 0 and "±" not in stdout and "(1 tasks" in stdout
