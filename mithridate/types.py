"""The data that flows through the library, and the three protocols.

Axis letters, everywhere: B tasks, T steps, E episodes, A actions, S states, K keys of attacks,
D features.
Everything is batched over B; a single task is B = 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from mithridate.contexts import Contexts as Contexts
from mithridate.observations import Observation as Observation
from mithridate.observations import ObservationSpec, States, each, rows_of

if TYPE_CHECKING:
    from mithridate.config import EnvConfig
    from mithridate.rng import Rng, TaskStreams

Follows = Mapping[str, str]
"""Of an agent's settings, which follow from what about the situation, unless they are given."""

State = Any
"""The environment's own state: whatever `reset` returned."""

TasksT = TypeVar("TasksT", bound="Tasks")


@dataclass(frozen=True)
class Metric:
    """What the tables show: a per-step quantity, summed over the episode."""

    name: str
    better: Literal["lower", "higher"]


@dataclass(frozen=True)
class EnvSpec:
    """What agents may know about an environment before they meet a task."""

    name: str
    n_actions: int
    horizon: int
    metric: Metric
    observation: ObservationSpec = None
    """What agents see: kind, shape and dtype; None if there is nothing to observe."""
    features: tuple[tuple[float, ...], ...] | None = None
    """(A, D): what is known of each action, the same in all tasks."""
    noise_size: int = 0
    """Standard normal numbers that one `step` consumes per task."""
    n_attack_keys: int = 1
    """How many situations attackers tell apart (K): see `Env.attack_key`."""

    @property
    def n_states(self) -> int | None:
        """If observations are the numbers of states, 0 … n_states − 1: how many there are."""
        return self.observation.count if isinstance(self.observation, States) else None


COPIES = 2**40
"""Tasks have ids below this, so that every episode of every task has luck of its own."""


@dataclass(frozen=True)
class Tasks:
    """A batch of B tasks: every field is a tensor whose first axis is B. A task may be in it
    several times; these are different episodes."""

    ids: Tensor
    """(B,) int64. A task's identity: what belongs to the task is found by it."""
    episodes: Tensor | None = field(default=None, kw_only=True)
    """(B,) int64: which of its task's episodes each is; all are the first ones if None."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def luck(self) -> Tensor:
        """(B,) int64: what selects the random streams. The luck of an episode does not depend on
        how many there are of its task, and that of the first is the task's id."""
        return self.ids if self.episodes is None else self.ids + COPIES * self.episodes

    def repeat(self: TasksT, times: int) -> TasksT:
        """So many episodes of each task, one after the other: (B · times)."""
        if self.episodes is not None:
            raise ValueError("these tasks are repeated already")
        each = {name: t.repeat_interleave(times, 0) for name, t in self.tensors().items()}
        episodes = torch.arange(times, device=self.device).repeat(len(self))
        return type(self)(**each, episodes=episodes)

    @property
    def device(self) -> torch.device:
        return self.ids.device

    def select(self: TasksT, index: Tensor | slice) -> TasksT:
        """Some of the tasks, in the order of `index`."""
        return type(self)(**{name: tensor[index] for name, tensor in self.tensors().items()})

    @classmethod
    def cat(cls: type[TasksT], parts: Sequence[TasksT]) -> TasksT:
        """One batch after the other."""
        every = [p.tensors() for p in parts]
        if any("episodes" in tensors for tensors in every):
            every = [{"episodes": torch.zeros_like(t["ids"]), **t} for t in every]
        return cls(**{name: torch.cat([t[name] for t in every]) for name in every[0]})

    def tensors(self) -> dict[str, Tensor]:
        """The fields that there are."""
        return {f.name: t for f in fields(self) if (t := getattr(self, f.name)) is not None}

    def copy(self: TasksT) -> TasksT:
        """The same tasks in memory of their own."""
        return type(self)(**{name: tensor.clone() for name, tensor in self.tensors().items()})

    def to(self: TasksT, device: torch.device | str) -> TasksT:
        return type(self)(**{name: tensor.to(device) for name, tensor in self.tensors().items()})


@dataclass(frozen=True)
class Poison:
    """How contexts are corrupted that no attacker has seen."""

    eps: Tensor
    """(B,): the share of the rewards."""
    budget: Tensor
    """(B,): a bound on the norm of the attack."""
    switching: float
    """The share of the contexts in which the attack adapts on the way."""
    rng: Rng


class Transition(NamedTuple):
    """One step of B tasks, as an agent sees it."""

    observation: Observation
    actions: Tensor
    """(B,) int64."""
    rewards: Tensor
    """(B,) float32, as observed."""
    next_observation: Observation


@dataclass(frozen=True)
class Trajectory:
    """What happened in a rollout of B tasks for T = E * horizon steps."""

    observations: Observation
    """(B, E, horizon + 1, ...), each stored once: the last of an episode is its final state."""
    actions: Tensor
    """(B, T) int64."""
    true_rewards: Tensor
    """(B, T) float32: what the environment paid. Metrics use only these."""
    proposed_rewards: Tensor
    """(B, T) float32: what the attacker would have the agent see (the true ones without one)."""
    observed_rewards: Tensor
    """(B, T) float32: what the agent saw."""
    poisoned: Tensor
    """(B, T) bool: steps at which the proposed reward was shown."""
    optimal_actions: Tensor
    """(B, T) int64."""
    optimal_after: Tensor
    """(B,) int64: the optimal action where the last episode ended."""
    keys: Tensor
    """(B, T) int64: what the environment gave attackers to tell situations apart by."""
    values: Tensor | None = None
    """(B, T + 1, A), or (B, 1, A) without states: what actions were worth in the last episode, at
    its end too, if that was to be recorded."""

    def select(self, rows: Tensor | slice) -> Trajectory:
        """Some of the tasks."""
        return Trajectory(**{name: rows_of(value, rows) for name, value in vars(self).items()})

    def contexts(self) -> Contexts:
        """What the agent saw in its only episode, with the optimal actions as labels."""
        labels = torch.cat([self.optimal_actions, self.optimal_after[:, None]], 1)
        if self.observations is None:
            return Contexts(self.actions, self.observed_rewards, labels, values=self.values)
        bank = None
        if isinstance(self.observations, Tensor) and self.observations.dim() == 3:
            seen = self.observations[:, 0]  # (B, T + 1)
        else:
            bank = each(self.observations, lambda x: x[:, 0].flatten(0, 1))  # (B (T + 1), ...)
            seen = torch.arange(labels.numel(), device=labels.device).view(labels.shape)
        return Contexts(
            self.actions, self.observed_rewards, labels, states=seen[:, :-1],
            next_states=seen[:, 1:], queries=seen, values=self.values, bank=bank,
        )  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step of B tasks, as an attacker sees it."""

    observation: Observation
    state: State
    actions: Tensor
    """(B,) int64."""
    true_rewards: Tensor
    """(B,) float32."""
    next_observation: Observation
    key: Tensor
    """(B,) int64 in 0 … K − 1: the situation that the action was taken in, as attackers tell them
    apart."""

    def select(self, rows: slice) -> Step:
        """Some of the tasks. (A state is a tensor, a dict of tensors, or nothing.)"""
        return Step(**{name: rows_of(value, rows) for name, value in vars(self).items()})


@dataclass
class Secrets:
    """What only privileged agents (oracles) are given. The rollout keeps `state` current."""

    env: Env
    tasks: Tasks
    eps: float | Tensor
    attacker: Attacker | None
    state: State = None


class Env(Protocol):
    """A *distribution of tasks*, not a single one."""

    spec: EnvSpec
    config: EnvConfig
    presets: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """What differs from the defaults of stage_config.py, by stage and preset."""
    attacks: tuple[str, ...]
    """Attackers for it that need no learning."""
    learned_attack: str
    """The attacker that `learned` stands for."""
    budget: float
    """What an attacker may spend, unless told."""
    peer: str | None
    """An agent that adversarial training compares the model with, if it is cheap."""

    def sample_tasks(self, n: int, rng: Rng, first: int = 0) -> Tasks:
        """n tasks with ids first … first + n − 1; each depends only on `rng` and its id."""
        ...

    def reset(self, tasks: Tasks) -> State: ...

    def step(
        self, tasks: Tasks, state: State, actions: Tensor, noise: Tensor
    ) -> tuple[State, Tensor]:
        """Next state and true reward (B,), given (B,) actions and (B, noise_size) noise."""
        ...

    def observe(self, state: State) -> Observation: ...

    def attack_key(self, tasks: Tasks, state: State) -> Tensor:
        """(B,) int64 in 0 … spec.n_attack_keys − 1: the situation, as attackers tell them apart,
        whatever the agent observes of it. Attackers without a network have a table over keys and
        actions. Not asked if there is but one key."""
        ...

    def action_values(self, tasks: Tasks, state: State) -> Tensor:
        """(B, A): what each action is worth; for bandits its mean reward, for MDPs Q*."""
        ...

    def optimal_action(self, tasks: Tasks, state: State) -> Tensor:
        """(B,) the oracle's action."""
        ...

    def score(self, tasks: Tasks, trajectory: Trajectory) -> Tensor:
        """(B, T): the metric's contribution of each step, from true quantities only."""
        ...

    def sample_contexts(
        self, tasks: Tasks, length: int, rng: Rng, poison: Poison | None = None
    ) -> Contexts:
        """Pretraining data: one context of `length` transitions for each task. With `poison`, some
        of the rewards are corrupted by attacks of many kinds, and whoever acted saw only those: an
        action must not tell what the true reward was. It says what actions are worth (`values`):
        training on second-best actions needs that."""
        ...


class Agent(Protocol):
    """Anything that acts. One `reset` per batch of tasks, never between episodes.

    What it may do besides is in capabilities.py: learn for some episodes before the evaluated one,
    hear when episodes begin and end, and, if it is an oracle, be told secrets.
    """

    def reset(self, spec: EnvSpec, batch: int, rng: TaskStreams) -> None: ...

    def act(self, obs: Observation) -> Tensor:
        """(B,) int64."""
        ...

    def observe(
        self, obs: Observation, actions: Tensor, rewards: Tensor, next_obs: Observation
    ) -> None: ...


class Attacker(Protocol):
    """Corrupts rewards. It sees the true ones; the victim is a black box to it.

    What it may do besides is in capabilities.py: learn, forget tasks, and show what it adds.
    """

    def reset(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> None: ...

    def poison(self, step: Step) -> Tensor:
        """(B,) proposed rewards; asked at every step, whether or not it is contaminated."""
        ...

    def cost(self) -> Tensor:
        """(B,) the norm of the attack on each task, to be held against the budget."""
        ...
