"""Numbers that are too large, too small, or not numbers; sizes that no machine holds; settings that
follow from others. One line each, before anything is allocated or written."""

import math

import pytest

import mithridate as mi
from mithridate import sizes
from mithridate.agents.named import make_agent, told
from mithridate.envs.darkroom_goals import all_pairs
from mithridate.errors import Caution, UserError
from mithridate.registry import AGENTS, ATTACKERS, ENVS
from mithridate.settings import parse, resolve
from mithridate.stage_config import AttackConfig, EvaluateConfig, PretrainConfig

TOO_MUCH = [
    ("evaluate", ["--budget", "1e20"]),
    ("evaluate", ["--budget", "nan"]),
    ("evaluate", ["--budget", "inf"]),
    ("evaluate", ["--eps", "nan"]),
    ("evaluate", ["--seed", "9" * 30]),
    ("evaluate", ["--seed", "9" * 5000]),
    ("evaluate", ["--tasks", "1" + "0" * 12]),
    ("evaluate", ["--tasks", "1000000000"]),
    ("evaluate", ["--replications", "1" + "0" * 20]),
    ("evaluate", ["--replications", "100000"]),
    ("evaluate", ["--set", "env.noise_std=1e308"]),
    ("evaluate", ["--set", "env.noise_std=1e999"]),
    ("evaluate", ["--set", "env.arms=1000000000"]),
    ("evaluate", ["--set", "env.horizon=1000000000"]),
    ("evaluate", ["--set", "threads=1000000"]),
    ("evaluate", ["--set", "env=3"]),
    ("evaluate", ["--set", "env=null"]),
    ("evaluate", ["--set", "env=[]"]),
    ("evaluate", ["--set", 'env={"name": 3}']),
    ("evaluate", ["--set", "seed=" + "9" * 5000]),
    ("evaluate", ["--set", "attackers=" + "[" * 10000 + "]" * 10000]),
    ("evaluate", ["--set", "attackers=" + "[" * 400 + "]" * 400]),
    ("evaluate", ["--set", ".".join("a" * 2000) + "=1"]),
    ("evaluate", ["--set", "x" * 300 + "=1"]),
    ("evaluate", ["--set", "a\nb=1"]),
    ("pretrain", ["--set", "model.width=1048576"]),
    ("pretrain", ["--set", "model.layers=100000000"]),
    ("pretrain", ["--set", "batches.long_batch=1000000000"]),
    ("pretrain", ["--set", "optimiser.learning_rate=1e300"]),
    ("pretrain", ["--set", "optimiser.learning_rate=1e-300"]),
    ("pretrain", ["--out", "x" * 300]),
    ("pretrain", ["--out", "a\0b"]),
]


@pytest.mark.parametrize(("name", "options"), TOO_MUCH, ids=lambda x: str(x)[:60])
def test_refused_in_one_line(command, tmp_path, monkeypatch, name, options):
    monkeypatch.chdir(tmp_path)
    needed = ["--agents", "ts"] if name == "evaluate" else []
    code, stdout, stderr = command(name, "bandit", *needed, *options)
    assert (code, stdout) == (2, "")
    assert stderr.startswith("error: ") and stderr.count("\n") == 1 and len(stderr) < 1200
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("at-dpt-bandit-s0(temperature=1e-39)", "temperature must be a number from 0.001"),
        ("at-dpt-bandit-s0(temperature=1e39)", "temperature must be a number from 0.001"),
        ("at-dpt-bandit-s0(temperature=true)", "temperature must be a number"),
        ("ts(prior_std=1e-39)", "greater than or equal to 0.000000001"),
        ("ts(prior_mean=1e39)", "less than or equal to 1000000"),
        ("ts(prior_mean=NaN)", "NaN is not a number"),
        ("posterior_oracle(grid=1000000000)", "less than or equal to 10001"),
    ],
)
def test_agents_numbers(command, agent, message):
    code, _, stderr = command("evaluate", "bandit", "--agents", agent, "--preset", "smoke")
    assert code == 2 and message in stderr


def test_every_number_of_every_configuration_is_bounded():
    """No infinity, no NaN and no number beyond 64 bits gets into any configuration."""
    classes = [r.get(name) for r in (ENVS, AGENTS, ATTACKERS) for name in r.names()]
    configs = {cls.Config for cls in classes if hasattr(cls, "Config")}
    tried = 0
    for config in configs:
        for field, info in config.model_fields.items():
            kinds = str(info.annotation)
            if "float" not in kinds and "int" not in kinds:
                continue
            for value in (math.inf, math.nan, 1e300, 10**30, -(10**30)):
                tried += 1
                with pytest.raises(UserError):
                    parse(config, {field: value})
    assert tried > 200


def test_what_is_refused_depends_on_the_machine(monkeypatch):
    resolve(EvaluateConfig, "evaluate", "bandit", sets=["tasks=5000"])
    monkeypatch.setattr(sizes, "available", lambda: 1e6)
    with pytest.raises(UserError, match="tasks or env would need about .* this machine has 1 MB"):
        resolve(EvaluateConfig, "evaluate", "bandit", sets=["tasks=5000"])


def test_the_estimate_is_not_far_from_what_is_used():
    """Tasks need what their tensors have, at least."""
    env = mi.make_env("darkroom2")
    tasks = env.sample_tasks(50, mi.Rng(0))
    used = sum(t.nbytes for t in (tasks.values, tasks.rewards, tasks.best))
    once, each = env.config.memory()
    assert used <= 50 * each <= 20 * used
    assert once >= all_pairs(env.states).nbytes


def test_many_episodes_are_refused_before_they_are_recorded(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = "npg(episodes=1000000)"
    code, _, stderr = command("attack", "darkroom2", "--target", target)
    assert code == 2 and "would need about" in stderr


def test_lengths_follow_the_horizon():
    for env, horizon, length in (("bandit", 2000, 128), ("linear_bandit", 30, 30)):
        sets = [f"env.horizon={horizon}"]
        batches = resolve(PretrainConfig, "pretrain", env, sets=sets).batches
        assert (batches.long_length, batches.short_length) == (horizon, length)


def test_positions_that_are_never_trained_are_a_warning(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(Caution, match="the horizon is 500: later positions are not trained"):
        resolve(PretrainConfig, "pretrain", "bandit", sets=["batches.long_length=200"])
    code, _, stderr = command(
        "pretrain", "bandit", "--preset", "smoke", "--set", "batches.long_length=15",
        "--set", "steps=1", "--json",
    )  # fmt: skip
    assert code == 0
    assert stderr.startswith("warning: the longest batches have 15") and stderr.count("\n") == 1


def test_baselines_are_told_what_the_situation_is():
    config = resolve(
        EvaluateConfig, "evaluate", "bandit", sets=["env.noise_std=1"], eps=0.1, budget=2.0
    )
    situation = told(config)
    assert make_agent("crucb", situation)[1].config.alpha == 0.1
    assert make_agent("crucb(alpha=0.3)", situation)[1].config.alpha == 0.3
    assert make_agent("ts", situation)[1].config.noise_std == 1.0
    assert make_agent("rts(level=known)", situation)[1].config.budget == 2.0
    assert make_agent("q_learning", situation)[1].config.exploration == 0.1
    assert make_agent("crlinucb", situation)[1].config.eps == 0.1
    assert make_agent("mixture_linucb", situation)[1].config.eps == 0.1
    assert make_agent("crucb", {"eps": 0.9, "trimmed": 0.49})[1].config.alpha == 0.49
    assert make_agent("crucb")[1].config.alpha == 0.4, "nobody told it anything"


def test_baselines_follow_on_the_way_from_the_command(command):
    import json

    def mean(*agents):
        code, stdout, _ = command(
            "evaluate", "bandit", "--agents", ",".join(agents), "--eps", "0.1", "--json",
            "--attackers", "swap", "--preset", "smoke",
        )  # fmt: skip
        assert code == 0
        return [record["mean"] for record in json.loads(stdout)["records"]]

    followed, said, other = mean("crucb", "crucb(alpha=0.1)", "crucb(alpha=0.4)")
    assert followed == said != other


def test_attacks_targets_are_told_too(tmp_path):
    from mithridate.training.attack import AttackTraining

    config = resolve(AttackConfig, "attack", "bandit", "smoke", target="crucb", eps=0.2)
    assert AttackTraining(config).target.config.alpha == 0.2
