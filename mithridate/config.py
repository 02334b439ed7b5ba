"""Configuration: frozen, strict, and each default written once.

The defaults below are the `laptop` preset of the bandit. An environment states in its own file
how the other presets, and its own needs, differ (`presets`); the command line's `--set` comes
last. A run's identity is the hash of the configuration that results.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    model_validator,
)

from mithridate.errors import Caution, UserError, shown, unknown
from mithridate.files import DEEPEST, json_or_text

PRESETS = ("smoke", "laptop", "paper")
StageKind = Literal["pretrain", "distill", "train", "attack", "evaluate"]
SHORT = 128
"""Transitions in a short batch, unless a setting says otherwise."""

IN_ROOMS = 10.0
"""The budget in environments with states, where an attack is a table of states and actions."""
LARGE = 1e6
"""No number that is not a count is larger: its square still means something in 32 bits."""
SMALL = 1e-9
"""And none that must not be zero is smaller."""
Positive = Annotated[int, Field(gt=0, lt=2**31)]
Points = Annotated[int, Field(ge=3, le=10_001)]
"""Of a grid."""
NonNegative = Annotated[int, Field(ge=0, lt=2**31)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Threads = Annotated[int, Field(gt=0, le=1024)]
Replications = Annotated[int, Field(gt=0, le=1000)]
Number = Annotated[float, Field(ge=-LARGE, le=LARGE, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(ge=SMALL, le=LARGE, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, le=LARGE, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
COLDEST, HOTTEST = 1e-3, 1e3
Temperature = Annotated[float, Field(ge=COLDEST, le=HOTTEST, allow_inf_nan=False)]
"""Of a distribution that actions are sampled from. Below, it is greedy; above, it is uniform."""


def _as_tuple(value: Any) -> Any:
    """Lists (from JSON) and single names are welcome where a tuple is kept."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), Field(min_length=1)]


class Config(BaseModel):
    """Base of all configurations: immutable, no unknown keys, no silent conversions."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def hash(self) -> str:
        """Twelve hex digits that identify this configuration's content."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class EnvConfig(Config):
    """Base of the environments' configurations (each in the environment's own file)."""

    name: str
    """The environment's registered name."""
    horizon: Positive
    """Steps of an episode (H)."""

    def memory(self) -> tuple[float, float]:
        """Bytes, roughly, that the environment needs once, and for each task. An environment whose
        tasks are large says so."""
        return 0.0, 0.0


class ModelConfig(Config):
    """The transformer."""

    layers: Positive = 4
    """Number of blocks."""
    heads: Positive = 4
    """Attention heads per block."""
    width: Positive = 32
    """Embedding dimension; must be a multiple of `heads`."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> ModelConfig:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self


class OptimiserConfig(Config):
    """AdamW with a linear warm-up and a cosine decay."""

    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate."""
    warmup_steps: NonNegative = 100
    """Steps over which the learning rate rises from zero."""
    final_fraction: Fraction = 0.02
    """The cosine ends at this fraction of the peak; 1 keeps the rate constant."""
    weight_decay: NonNegativeFloat = 1e-4
    """Decoupled weight decay."""
    clip_norm: PositiveFloat | None = 1.0
    """Gradient norm above which gradients are scaled down; null for no clipping."""


class BatchesConfig(Config):
    """Shapes of the training batches. Short contexts are cheap and hold the hard decisions."""

    long_batch: Positive = 64
    """Contexts in a long batch."""
    long_length: Positive
    """Transitions in each of them; without a setting, the horizon."""
    long_every: Positive = 4
    """Every how many steps a long batch comes; 1 for long batches only."""
    short_batch: Positive = 128
    """Contexts in a short batch."""
    short_length: Positive
    """Transitions in each of them; without a setting, 128, or the horizon if that is less."""

    def shape(self, step: int) -> tuple[int, int]:
        """(batch, length) at `step`, counted from 0."""
        if step % self.long_every == 0:
            return self.long_batch, self.long_length
        return self.short_batch, self.short_length


class TrainingConfig(Config):
    """What all trainings of models have in common."""

    env: SerializeAsAny[EnvConfig]
    """The environment; its fields are in its own file."""
    batches: BatchesConfig

    @model_validator(mode="before")
    @classmethod
    def _lengths_follow_the_horizon(cls, data: Any) -> Any:
        env = data.get("env") if isinstance(data, dict) else None
        batches = data.get("batches", {}) if isinstance(data, dict) else None
        if not isinstance(env, EnvConfig) or not isinstance(batches, Mapping):
            return data
        lengths = {"long_length": env.horizon, "short_length": min(SHORT, env.horizon)}
        return {**data, "batches": {**lengths, **batches}}

    @model_validator(mode="after")
    def _lengths_fit(self) -> TrainingConfig:
        lengths = {"long_length": self.batches.long_length}
        if self.batches.long_every > 1:
            lengths["short_length"] = self.batches.short_length
        for name, length in lengths.items():
            if length > self.env.horizon:
                raise ValueError(
                    f"batches.{name} {length} exceeds env.horizon {self.env.horizon}: lower it"
                )
        return self

    def cautions(self) -> Iterator[str]:
        """What is allowed, and probably not what is meant."""
        longest = self.batches.shape(0)[1]
        if longest < self.env.horizon:
            yield (
                f"the longest batches have {longest} transitions, the horizon is "
                f"{self.env.horizon}: later positions are not trained; raise batches.long_length"
            )


class PretrainConfig(TrainingConfig):
    """Pretraining a Decision-Pretrained Transformer."""

    seed: Seed = 0
    """Root of every random stream of the run."""
    threads: Threads = 2
    """CPU threads. Sums over threads are not bit-equal across counts, so it is part of the run."""
    steps: Positive = 6000
    """Gradient steps, each on fresh tasks."""
    model: ModelConfig = ModelConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    log_every: Positive = 10
    """Steps between two lines of log.jsonl."""
    evaluate_every: Positive = 500
    """Steps between two evaluations on validation tasks."""
    evaluate_tasks: Positive = 200
    """Validation tasks, the same at every evaluation."""
    final_tasks: Positive = 1000
    """Fresh tasks on which the finished model is measured for its card."""
    checkpoint_every: Positive = 100
    """Steps between two checkpoints."""
    explosion_factor: PositiveFloat = 10.0
    """Stop when the loss exceeds this many times that of guessing, ln(actions)."""


class DistillConfig(PretrainConfig):
    """Algorithm Distillation: a model that imitates a learning algorithm."""

    source: str
    """Whom to imitate: an agent, as in --agents."""
    source_sha256: str | None = None
    """Fingerprint of a source of your own; filled in when the run begins."""
    attacker: str = "none"
    """Who poisons what the source sees: none, or a registered attacker that does not learn."""
    eps: Fraction = 0.4
    """Probability that a step's reward is replaced by the attacker's (none: unused)."""
    budget: NonNegativeFloat = 3.0
    """Bound on the norm of the attack (none: unused)."""
    tasks: Positive = 256
    """Fresh tasks that the source acts in at a time."""
    refresh_every: Positive = 20
    """Steps between two such rollouts."""
    pool: Positive = 8
    """Rollouts that contexts are drawn from."""


class ThreatConfig(Config):
    """Who poisons a part of the training tasks, and how much."""

    attacker: str = "gaussian"
    """A registered attacker, with parameters if wanted ("uniform(range=3)"), or none for clean
    episodes."""
    target: str | None = None
    """Whom these attackers learn to hurt: an agent ({eps} in it stands for the share of poisoned
    steps), start for the model as it was at the start, rival for the run's `rival`, null for the
    model in training."""
    share: PositiveFloat = 1.0
    """Weight of this part among all threats."""
    eps: Fraction | None = None
    """Share of poisoned steps; null takes the run's eps."""
    budget: NonNegativeFloat | None = None
    """Bound on the attack's norm; null takes the run's budget."""


class SyntheticConfig(Config):
    """Contexts that are poisoned at random, without an attacker (the environment's
    `sample_contexts`)."""

    rounds: NonNegative = 90
    """Rounds at the beginning that learn from these alone."""
    share: Fraction = 0.6
    """Their share of every batch in the later rounds."""
    clean: Fraction = 0.2
    """Share of them that are left clean."""
    switching: Fraction = 0.0
    """Share of them whose offsets change on the way or follow the rewards, as an adaptive
    attacker's do."""


class AdversarialConfig(TrainingConfig):
    """Adversarial training (the paper's Algorithm 1)."""

    start: str
    """The pretrained model: a shipped name, a run's directory or a .safetensors file."""
    start_sha256: str | None = None
    """Fingerprint of its weights; filled in when the run begins."""
    rival: str | None = None
    """Another model, which threats may have as their target (rival)."""
    rival_sha256: str | None = None
    """Fingerprint of its weights; filled in when the run begins."""
    seed: Seed = 0
    """Root of every random stream of the run."""
    threads: Threads = 2
    """CPU threads. Sums over threads are not bit-equal across counts, so it is part of the run."""
    eps: Fraction = 0.4
    """Probability that a step's reward is replaced by the attacker's."""
    budget: NonNegativeFloat = 3.0
    """Bound B on the norm of the attack."""
    tasks: Positive = 200
    """M, the training tasks at a time, each with an attacker of its own."""
    threats: Annotated[tuple[ThreatConfig, ...], BeforeValidator(_as_tuple)] = (
        ThreatConfig(share=0.8),
        ThreatConfig(attacker="none", share=0.2),
    )
    """What the tasks are divided among."""
    rounds: Positive = 70
    """N, the rounds of the game: roll out, attackers learn, the model learns."""
    iterations: Positive = 40
    """Gradient steps of the model in a round."""
    suboptimal: Fraction = 0.0
    """Share of the steps whose label is the second-best action instead of the best."""
    temperature: Temperature = 0.35
    """Of the distribution that the model samples its actions from in the rounds; 1 is posterior
    sampling."""
    acts_at: Temperature | None = None
    """The temperature that it acts at afterwards; null for the same."""
    renew: Fraction = 0.05
    """Share of the tasks that is replaced by fresh ones, with fresh attackers, after a round."""
    memory: Positive = 10
    """Rounds whose trajectories the model learns from: the last one and those before it."""
    synthetic: SyntheticConfig = SyntheticConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    compare_every: NonNegative = 10
    """Rounds between two looks at the frozen model and at the environment's `peer` under the same
    attack; 0 for never."""
    evaluate_every: Positive = 25
    """Rounds between two evaluations on validation tasks."""
    evaluate_tasks: Positive = 200
    """Validation tasks, the same at every evaluation."""
    final_tasks: Positive = 1000
    """Fresh tasks on which the finished model is measured for its card."""
    checkpoint_every: Positive = 5
    """Rounds between two checkpoints."""
    explosion_factor: PositiveFloat = 10.0
    """Stop when the loss exceeds this many times that of guessing, ln(actions)."""

    @model_validator(mode="after")
    def _consistent(self) -> AdversarialConfig:
        if not self.threats:
            raise ValueError("threats: at least one is needed")
        if len(self.threats) > self.tasks:
            raise ValueError(f"{len(self.threats)} threats need at least as many tasks")
        return self


class AttackConfig(Config):
    """Training attackers against a target that does not learn from it."""

    env: SerializeAsAny[EnvConfig]
    """The environment; its fields are in its own file."""
    target: str
    """Whom to attack: a registered agent, a shipped model, a file, or module:Class."""
    target_sha256: str | None = None
    """Fingerprint of its weights or source code; filled in when the run begins."""
    seed: Seed = 0
    """Root of every random stream of the run."""
    threads: Threads = 2
    """CPU threads."""
    attacker: str = "gaussian"
    """A registered attacker that learns, with parameters if wanted: "adaptive(layers=2)"."""
    eps: Fraction = 0.4
    """Probability that a step's reward is replaced by the attacker's."""
    budget: NonNegativeFloat = 3.0
    """Bound B on the norm of the attack."""
    tasks: Positive = 200
    """M, the tasks; each has an attacker of its own, unless it is one network for all."""
    rounds: Positive = 20
    """N, the rounds: roll out, learn."""
    checkpoint_every: Positive = 1
    """Rounds between two checkpoints."""


class EvaluateConfig(Config):
    """Measuring agents on fresh tasks."""

    env: SerializeAsAny[EnvConfig]
    """The environment; its fields are in its own file."""
    seed: Seed = 0
    """Root of every random stream."""
    threads: Threads = 2
    """CPU threads."""
    tasks: Positive = 200
    """Tasks per replication."""
    replications: Replications = 1
    """Independent repetitions, each with its own tasks."""
    attackers: Names = ("none",)
    """Each of them none, a registered attacker, attackers from files, or a kind of attack that is
    trained now, KIND(TARGET): learned(ts); without (TARGET), against every agent."""
    eps: Fraction = 0.4
    """Probability that a step's reward is replaced by the attacker's (none: unused)."""
    budget: NonNegativeFloat = 3.0
    """Bound on the norm of the attack (none: unused)."""
    preset: Literal["smoke", "laptop", "paper"] = "laptop"
    """Where the settings of attackers that are trained come from, if they are not given here."""
    rounds: Positive | None = None
    """Rounds of training for attackers, unless they are networks; null for the attack preset's."""
    adaptive_rounds: Positive = 40
    """The same for attackers that are networks: adaptive(TARGET), from_nothing(TARGET)."""
    block: Positive = 250
    """Tasks rolled out at once; changes memory and speed, never the result."""


ConfigT = TypeVar("ConfigT", bound=Config)


def parse(config_type: type[ConfigT], data: Mapping[str, Any], where: str = "config") -> ConfigT:
    """`data` as a `config_type`, or a one-line error that names the key and the remedy. What no
    memory could hold is an error, too."""
    if not isinstance(data, Mapping):
        raise UserError(f"{where}: expected keys and values, not {_input(data)}")
    data = dict(data)
    env_field = config_type.model_fields.get("env")
    if env_field is not None and isinstance(data.get("env"), Mapping):
        data["env"] = _parse_env(data["env"], where)
    try:
        config = config_type.model_validate(data)
    except ValidationError as error:
        raise _one_line(error, config_type, where) from None
    if env_field is not None:
        from mithridate.sizes import check_size

        check_size(config)
    if isinstance(config, TrainingConfig):
        for text in config.cautions():
            warnings.warn(text, Caution, stacklevel=2)
    return config


def resolve(
    config_type: type[ConfigT],
    stage: StageKind,
    env: str | EnvConfig,
    preset: str = "laptop",
    sets: Sequence[str] = (),
    **direct: Any,
) -> ConfigT:
    """Defaults, then the environment's preset for this stage, then `direct`, then `--set`s. An
    environment with a configuration of its own keeps it."""
    data = preset_settings(stage, env, preset)
    name = data["env"]["name"]
    _merge(data, {key: value for key, value in direct.items() if value is not None})
    short = data.get("batches", {}).pop("short_length", None)  # it may have to follow the horizon
    for text in sets:
        _merge(data, _assignment(text))
    if not isinstance(data["env"], dict):
        raise UserError(f"--set env: expected keys and values, not {_input(data['env'])}")
    if data["env"].get("name") != name:
        raise UserError(f"--set env.name: the environment is the argument '{name}'")
    if data.get("preset", preset) != preset:
        raise UserError("--set preset: it is an option of its own, --preset")
    parsed = _parse_env(data["env"], "config")
    data["env"] = parsed
    if short is not None and isinstance(data["batches"], dict):
        data["batches"].setdefault("short_length", min(short, parsed.horizon))
    return parse(config_type, data)


def preset_settings(stage: StageKind, env: str | EnvConfig, preset: str) -> dict[str, Any]:
    """What a preset says about a stage in an environment, which may be there already."""
    from mithridate.registry import ENVS

    if preset not in PRESETS:
        raise unknown("preset", shown(preset), PRESETS)
    data: dict[str, Any] = {}
    if isinstance(env, str) or ENVS.known(env.name) is not None:  # or somebody's own, without any
        found = ENVS.get(env if isinstance(env, str) else env.name)
        data["env"] = {"name": found.registered_name}
        _merge(data, found.presets.get(stage, {}).get(preset, {}))
    if not isinstance(env, str):
        data["env"] = env.to_json()
    if stage == "evaluate":
        data["preset"] = preset  # attackers that are trained for it have settings of their own
    return data


def _parse_env(data: Mapping[str, Any], where: str) -> EnvConfig:
    from mithridate.registry import ENVS

    name = data.get("name")
    if not isinstance(name, str):
        raise UserError(f"{where} env: 'name' should be the environment's, not {_input(name)}")
    config: EnvConfig = parse(ENVS.get(name).Config, data, where=f"{where} env")
    return config


def _assignment(text: str) -> dict[str, Any]:
    """'a.b=1' as {'a': {'b': 1}}; the value is JSON, or else a plain string."""
    key, equals, value = text.partition("=")
    keys = key.split(".")
    if not equals or not all(keys) or len(keys) > DEEPEST:
        raise UserError(f"--set '{shown(text)}': expected key=value or key.subkey=value")
    parsed = json_or_text(value, f"--set '{text}'")
    for part in reversed(keys):
        parsed = {part: parsed}
    result: dict[str, Any] = parsed
    return result


def _merge(into: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Deep merge; `other` wins."""
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.deepcopy(dict(value) if isinstance(value, Mapping) else value)


def _one_line(error: ValidationError, config_type: type[Config], where: str) -> UserError:
    first = error.errors()[0]
    path = [shown(part, 80) for part in first["loc"]]
    dotted = ".".join(path)
    if first["type"] == "extra_forbidden":
        valid = _keys_at(config_type, path[:-1])
        close = difflib.get_close_matches(path[-1], valid, n=1, cutoff=0.4)
        hint = f"; did you mean '{'.'.join([*path[:-1], close[0]])}'?" if close else ""
        return UserError(f"{where}: unknown key '{dotted}'{hint} (keys: {', '.join(valid)})")
    message = shown(first["msg"].removeprefix("Value error, "), 500)
    if first["type"] == "missing":
        return UserError(f"{where}: '{dotted}' is missing")
    got = "" if first["type"] == "value_error" else f", not {_input(first['input'])}"
    prefix = f"'{dotted}': " if dotted else ""
    return UserError(f"{where}: {prefix}{message[0].lower()}{message[1:]}{got}")


def _input(value: Any) -> str:
    """What was given, as an error shows it."""
    return shown(json.dumps(value, default=str), 80)


def _keys_at(config_type: type[Config], path: Sequence[str]) -> list[str]:
    """The valid keys of the (sub)configuration at `path`."""
    for part in path:
        field = config_type.model_fields.get(part)
        annotation = None if field is None else field.annotation
        if not (isinstance(annotation, type) and issubclass(annotation, Config)):
            return []
        config_type = annotation
    return sorted(config_type.model_fields)
