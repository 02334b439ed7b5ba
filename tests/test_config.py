import pytest
from pydantic import BaseModel
from ring import Ring

from mithridate import config, stage_config
from mithridate.capabilities import learns
from mithridate.config import Config, EnvConfig
from mithridate.envs import env_of
from mithridate.envs.bandit import Bandit
from mithridate.envs.darkroom import SEEN, Darkroom
from mithridate.errors import UserError
from mithridate.evaluation.crossplay import evaluate_config
from mithridate.model.weights import load_model, zoo_names
from mithridate.registry import AGENTS, ATTACKERS, ENVS
from mithridate.rng import Rng
from mithridate.rollout import rollout
from mithridate.settings import FIRST_EDITION, parse, preset_settings, resolve
from mithridate.stage_config import (
    AdversarialConfig,
    AttackConfig,
    DistillConfig,
    EvaluateConfig,
    PretrainConfig,
)
from mithridate.training.adversarial import train_adversarially
from mithridate.training.attack import AttackTraining
from mithridate.training.distill import distill
from mithridate.training.fitness import try_out
from mithridate.training.pretrain import pretrain


def test_presets_and_overrides():
    laptop = resolve(PretrainConfig, "pretrain", "bandit")
    assert (laptop.steps, laptop.optimiser.learning_rate) == (6000, 1e-3)
    paper = resolve(PretrainConfig, "pretrain", "bandit", "paper")
    assert paper.steps == 400 * 1250
    assert [paper.batches.shape(s) for s in range(3)] == [(64, 500)] * 3
    changed = resolve(
        PretrainConfig, "pretrain", "bandit", "smoke",
        ["optimiser.clip_norm=null", "env.arms=4", "model.width=8"], seed=5,
    )  # fmt: skip
    assert changed.optimiser.clip_norm is None
    assert changed.optimiser.warmup_steps == 5, "the preset's sibling keys survive"
    assert (changed.env.arms, changed.env.horizon, changed.model.width) == (4, 20, 8)
    assert changed.seed == 5


def test_hash_is_of_content():
    a = resolve(PretrainConfig, "pretrain", "bandit")
    assert a.hash() == resolve(PretrainConfig, "pretrain", "bandit", sets=["seed=0"]).hash()
    assert a.hash() != resolve(PretrainConfig, "pretrain", "bandit", seed=1).hash()
    assert a.hash() != resolve(PretrainConfig, "pretrain", "bandit", sets=["env.arms=6"]).hash()
    assert parse(PretrainConfig, a.to_json()) == a


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("stepz=3", "unknown key 'stepz'; did you mean 'steps'"),
        ("optimiser.learningrate=3", "did you mean 'optimiser.learning_rate'"),
        ("env.arm=3", "unknown key 'arm'; did you mean 'arms'"),
        ("steps=ten", "'steps': input should be a valid integer, not \"ten\""),
        ("steps=1.5", "'steps'"),
        ("steps=0", "greater than 0, not 0"),
        ("env.horizon=-1", "'horizon': input should be greater than 0, not -1"),
        ("env.noise_std=NaN", "noise_std"),
        ("batches.long_length=900", "batches.long_length 900 exceeds env.horizon 500"),
        ("model.heads=3", "width 32 is not a multiple of heads 3"),
        ("steps", "expected key=value"),
        ("=3", "expected key=value"),
        ("model=3", "'model'"),
        ("env.name=other", "the environment is the argument 'bandit'"),
    ],
)
def test_bad_settings_are_named_in_one_line(sets, message):
    with pytest.raises(UserError) as error:
        resolve(PretrainConfig, "pretrain", "bandit", sets=[sets])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_configs_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        resolve(PretrainConfig, "pretrain", "bandit").steps = 3


def all_configs() -> set[type[Config]]:
    """Every configuration of the package: the stages', and those of all registered classes."""
    both = [*vars(config).values(), *vars(stage_config).values()]
    found = {c for c in both if isinstance(c, type) and issubclass(c, Config)}
    for registry in (ENVS, AGENTS, ATTACKERS):
        classes = [registry.get(name) for name in registry.names()]
        found |= {cls.Config for cls in classes if hasattr(cls, "Config")}
    return found - {Config, EnvConfig}


def fits(config, attacker) -> bool:
    """Whether an attacker needs no learning and is for this environment."""
    made = ATTACKERS.create(attacker)
    try:
        try_out(env_of(config.env), (), [made])
    except UserError:
        return False
    return not learns(made)


def test_every_field_is_read_by_somebody(monkeypatch, tmp_path):
    read: set[tuple[type, str]] = set()
    original = BaseModel.__getattribute__

    def spy(self, name):
        read.add((type(self), name))
        return original(self, name)

    monkeypatch.setattr(Config, "__getattribute__", spy)
    config = resolve(PretrainConfig, "pretrain", "bandit", "smoke", ["steps=8"], threads=1)
    weights = pretrain(config, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    room = resolve(
        EvaluateConfig, "evaluate", "darkroom2", "smoke", ["env.size=2", "env.horizon=5"],
        attackers=("none", *Darkroom.attacks, "learned(npg)", "pooled(npg)"), tasks=4, rounds=1,
    )  # fmt: skip
    evaluate_config(room, ["npg", "q_learning", "mixture_room"])
    kinds = ("learned", "adaptive", "search", "steady")
    config = resolve(
        EvaluateConfig, "evaluate", "bandit", "smoke", ["threads=1", "adaptive_rounds=1"],
        attackers=("none", *Bandit.attacks, *(f"{kind}(ts)" for kind in kinds)),
    )  # fmt: skip
    ring = Ring()
    rollout(ring, ring.sample_tasks(2, Rng(0)), AGENTS.create("ppo", episodes=1), rng=Rng(0))
    rooms = ("npg", "q_learning", "mixture_room", "ppo")
    linear = ("linucb", "crlinucb", "lin_ts", "mixture_linucb", "mixture_lin_ts")
    features = resolve(EvaluateConfig, "evaluate", "linear_bandit", "smoke", tasks=3)
    evaluate_config(features, [*linear, "posterior_oracle"])
    bandits = [name for name in AGENTS.names() if name not in (*rooms, *linear)]
    agents = ["rts(level=known)", "rts(level=unknown)", *bandits, str(weights)]
    evaluate_config(config, agents)
    config = resolve(
        AdversarialConfig, "train", "bandit", "smoke", ["threads=1"], start=str(weights)
    )
    train_adversarially(config, tmp_path / "adversarial")
    config = resolve(
        DistillConfig, "distill", "bandit", "smoke", ["steps=8"], source="ts", attacker="uniform"
    )
    distill(config, tmp_path / "distilled")
    by_episodes = {"darkroom2": ("tabular", "pooled"), "bandit": ("adaptive",)}
    for env, names in by_episodes.items():
        for name in names:
            config = resolve(
                AttackConfig, "attack", env, "smoke", target="uniform",
                attacker=f"{name}(episodes=2)", tasks=4,
            )  # fmt: skip
            AttackTraining(config).step(0)
    for name in ENVS.names():  # whoever else is registered
        config = resolve(EvaluateConfig, "evaluate", name, "smoke", tasks=2)
        fitting = [text for text in ATTACKERS.names() if fits(config, text)]
        evaluate_config(config.model_copy(update={"attackers": ("none", *fitting)}), ["uniform"])
    unread = {
        f"{cls.__name__}.{field}"
        for cls in all_configs()
        for field in cls.model_fields
        if not any((sub, field) in read for sub in {cls, *cls.__subclasses__()})
    }
    assert not unread


def test_the_first_editions_laptop_preset_trains_its_models_again():
    """The settings on the cards of the models that are called v1."""
    names = [f"bandit-s{number}" for number in range(3)] + ["darkroom2-s0", "darkroom2-s1"]
    for name in names:
        card = load_model(f"at-dpt-v1-{name}")[1]["training"]
        config = resolve(
            AdversarialConfig, "train", card["env"]["name"], FIRST_EDITION, seed=card["seed"],
            start=card["start"], start_sha256=card["start_sha256"],
        )  # fmt: skip
        assert config == parse(AdversarialConfig, card)
    laptop = preset_settings("train", "miniworld", "laptop")
    assert preset_settings("train", "miniworld", FIRST_EDITION) == laptop
    for env in ("bandit", "darkroom2"):
        first, now = (preset_settings("train", env, p) for p in (FIRST_EDITION, "laptop"))
        assert first != now


def test_the_shipped_models_are_those_of_the_laptop_preset():
    for env, where in (("bandit", {}), ("darkroom2", SEEN)):
        for name in (n for n in zoo_names() if n.startswith(f"at-dpt-{env}-s")):
            card = load_model(name)[1]["training"]
            settings = [f"env.{key}={value}" for key, value in where.items()]
            config = resolve(
                AdversarialConfig, "train", env, "laptop", settings, seed=card["seed"],
                start=card["start"], start_sha256=card["start_sha256"],
            )  # fmt: skip
            assert config == parse(AdversarialConfig, card)
