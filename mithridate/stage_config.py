"""The configurations of stages. A run's identity is the hash of its configuration.

The defaults are the `laptop` preset of the bandit; those of adversarial training were it in the
first edition. An environment states in its own file how presets, and its own needs, differ
(`presets`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from mithridate.config import (
    Config,
    EnvConfig,
    Fraction,
    ModelConfig,
    Names,
    NonNegative,
    NonNegativeFloat,
    OptimiserConfig,
    Positive,
    PositiveFloat,
    Replications,
    Seed,
    Temperature,
    Threads,
    as_tuple,
)

SHORT = 128
"""Transitions in a short batch, unless a setting says otherwise."""


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

    later: ClassVar = ("widen", "teacher", "teacher_sha256", "relabel")
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
    threats: Annotated[tuple[ThreatConfig, ...], BeforeValidator(as_tuple)] = (
        ThreatConfig(share=0.8),
        ThreatConfig(attacker="none", share=0.2),
    )
    """What the tasks are divided among."""
    rounds: Positive = 70
    """N, the rounds of the game: roll out, attackers learn, the model learns."""
    iterations: Positive = 40
    """Gradient steps of the model in a round."""
    widen: Annotated[int, Field(ge=1, le=8)] = 1
    """How many times as wide as the start the model is; it computes the same at first."""
    teacher: str | None = None
    """An agent that sees what the model has seen and says what it would do: that is then the label
    of what the model lives through. null for the optimal action."""
    teacher_sha256: str | None = None
    """Fingerprint of a teacher of your own; filled in when the run begins."""
    relabel: bool = False
    """Whether actions are numbered anew, at random, whenever a context is learned from. For
    environments whose actions are alike: a bandit's arms without features."""
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
    remembered: Positive | None = None
    """Trajectories of a round that are remembered, drawn at random; null for all."""
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
        if self.teacher is not None and self.suboptimal:
            raise ValueError("teacher, suboptimal: labels come from the one or the other")
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
    """Tasks per replication; of attackers that have tasks of their own, at most the first so
    many."""
    replications: Replications = 1
    """Independent repetitions, each with its own tasks."""
    attackers: Names = ("none",)
    """Each of them none, a registered attacker, attackers from files, or a kind of attack that is
    trained now, KIND(TARGET): learned(ts); without (TARGET), against every agent.
    cotrained(TARGET) are those that a model was trained along with."""
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
