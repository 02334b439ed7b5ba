"""What some environments, agents and attackers can do besides: one protocol for each capability,
and one function that says whether somebody has it.

A capability is had whole or not at all. Who has a part of one is told what is missing, so that a
misspelt method is not a capability that nobody notices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, TypeGuard

from torch import Tensor

from mithridate.errors import UserError
from mithridate.types import Agent, Attacker, Env, Secrets, Trajectory

# Environments ------------------------------------------------------------------------------------


class PreparedEnv(Env, Protocol):
    """Has work that is better done once, before the first step of a training."""

    def prepare(self, progress: Callable[[int, int], None] | None = None) -> None:
        """`progress` hears how much is done, and how much there is in all."""
        ...


class Picture(Protocol):
    """An episode as it can be stored, and drawn by `report/picture.py`, which knows its kind."""

    wide: ClassVar[bool]
    """Whether it needs the whole width of a page."""

    @property
    def title(self) -> str: ...

    @property
    def score(self) -> float: ...

    def settled(self) -> Any:
        """Where the agent was most often in the end, as JSON."""
        ...

    def describe(self) -> str:
        """What can be seen, for those who do not."""
        ...

    def to_json(self) -> dict[str, Any]: ...


class PicturedEnv(Env, Protocol):
    """Its episodes can be drawn."""

    def picture(
        self, tasks: Any, trajectory: Trajectory, offsets: Tensor, title: str, score: float
    ) -> Picture:
        """Of the episode of one task, under an attacker that adds `offsets` (K, A) on average."""
        ...


# Agents ------------------------------------------------------------------------------------------


class PrivilegedAgent(Agent, Protocol):
    """An oracle."""

    def reveal(self, secrets: Secrets) -> None:
        """Called before `reset`."""
        ...


class LearningAgent(Agent, Protocol):
    """Learns for some episodes before the one that is measured."""

    learning_episodes: int


class LightAgent(Agent, Protocol):
    light: bool
    """Its steps are so small that more than one thread for PyTorch is only in the way."""


class EpisodicAgent(Agent, Protocol):
    """Hears when episodes begin and end."""

    def begin_episode(self) -> None: ...

    def end_episode(self) -> None: ...


# Attackers ---------------------------------------------------------------------------------------


class LearningAttacker(Attacker, Protocol):
    learning: bool
    """Set while it learns."""

    def update(self, trajectory: Trajectory) -> dict[str, float]:
        """Learn from the rollout that the last `reset` began. Returns what to log."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Everything that `update` changes."""
        ...

    def load_tensors(self, tensors: dict[str, Tensor]) -> None: ...


class RepeatingAttacker(Attacker, Protocol):
    """Learns from several episodes of each task in a round, compared with each other."""

    episodes: int
    together: bool
    """Whether all tasks have to be in the same rollout, because they learn from each other."""


class SettlingAttacker(Attacker, Protocol):
    """Ends with a choice between finalists, on luck that it has not learned from."""

    finalists: int
    trials: int
    """Episodes of each task that each finalist is tried for."""

    def present(self, finalist: int | None) -> None:
        """From the next `reset` on, every task is attacked by this one of its finalists; None for
        the one that it has come to."""
        ...

    def played(self) -> Tensor:
        """(M, P): the parameters of each task's attack in the rollout that the last `reset` began,
        for the tasks in ascending order."""
        ...

    def settle(self, earned: Tensor, tried: Tensor) -> None:
        """Keep one finalist for each task of the last `reset`: what the victim earned, (M, F,
        trials), and the finalists' parameters (M, F, P)."""
        ...


class StartingAttacker(Attacker, Protocol):
    """Can begin from what another has learned."""

    def begin_with(self, attacker: Attacker) -> None:
        """Called before the first round: trained ones of the same tasks."""
        ...


class ForgettingAttacker(Attacker, Protocol):
    """Has parameters of its own for each task."""

    def forget(self, ids: Tensor) -> None:
        """Drop what belongs to these tasks."""
        ...


class Added(NamedTuple):
    """What an attacker adds to the true reward, for each task, key and action."""

    mean: Tensor
    """(B, K, A)."""
    spread: Tensor | None
    """(B, K, A) standard deviations; None if there is no luck in it."""


class TransparentAttacker(Attacker, Protocol):
    """Shows what it does, to oracles and pictures."""

    def adds(self) -> Added:
        """At this moment; for those whose attack is fixed, once they are reset, at every one."""
        ...


class RuleAttacker(Attacker, Protocol):
    """What it adds to a reward follows from what the action is worth, by a rule that an oracle may
    be told."""

    def rule(self, means: Tensor) -> Tensor: ...


class BlindAttacker(Attacker, Protocol):
    blind: bool
    """It looks at nothing of a task but how many actions and keys there are, and can be used where
    no more is known."""


# Who can what ------------------------------------------------------------------------------------


def is_prepared(env: Any) -> TypeGuard[PreparedEnv]:
    return _can(env, "prepare")


def is_pictured(env: Any) -> TypeGuard[PicturedEnv]:
    return _can(env, "picture")


def is_privileged(agent: Any) -> TypeGuard[PrivilegedAgent]:
    return _can(agent, "reveal")


def is_learning(agent: Any) -> TypeGuard[LearningAgent]:
    return _can(agent, "learning_episodes")


def is_light(agent: Any) -> bool:
    return _can(agent, "light") and bool(agent.light)


def is_episodic(agent: Any) -> TypeGuard[EpisodicAgent]:
    return _can(agent, "begin_episode", "end_episode")


def learns(attacker: Any) -> TypeGuard[LearningAttacker]:
    return _can(attacker, "update", "tensors", "load_tensors", "learning")


def repeats(attacker: Any) -> TypeGuard[RepeatingAttacker]:
    return _can(attacker, "episodes", "together")


def settles(attacker: Any) -> TypeGuard[SettlingAttacker]:
    return _can(attacker, "finalists", "trials", "present", "played", "settle")


def starts(attacker: Any) -> TypeGuard[StartingAttacker]:
    return _can(attacker, "begin_with")


def forgets(attacker: Any) -> TypeGuard[ForgettingAttacker]:
    return _can(attacker, "forget")


def is_transparent(attacker: Any) -> TypeGuard[TransparentAttacker]:
    return _can(attacker, "adds")


def has_rule(attacker: Any) -> TypeGuard[RuleAttacker]:
    return _can(attacker, "rule")


def is_blind(attacker: Any) -> bool:
    return _can(attacker, "blind") and bool(attacker.blind)


def _can(thing: Any, *members: str) -> bool:
    missing = [name for name in members if not hasattr(thing, name)]
    if 0 < len(missing) < len(members):
        there = next(name for name in members if name not in missing)
        name = type(thing).__name__
        raise UserError(f"{name} has '{there}' but no '{missing[0]}': they belong together")
    return not missing
