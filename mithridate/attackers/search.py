"""Black-box search for the worst attack on each task: the cross-entropy method (Rubinstein, 1999).

A round is a generation. For each task several candidates are drawn from a Gaussian over the
attack's parameters, brought into the budget and kept for a whole episode, several times each; the
Gaussian moves towards those under which the victim earned least. A steady shift of an arm's rewards
is what hurts, and noise at every step hardly ever looks like one: drawing the parameters once per
episode finds twice the damage of attackers that explore step by step, with the same episodes.

The first generation has, besides, the attacks that need no learning and, with arms, a learned one
if it is given any (`begin_with`). In the end the candidates that are left, the Gaussian's mean, the
best one seen and those, are compared on luck of their own (`settle`), and each task keeps the worst
for the victim. What is printed is measured on other luck.

With arms, the parameters are the offsets, and the spreads if `spread_budget` is not 0. Where there
are keys, a table has too many entries for so few episodes: a parameter for each kind of entry that
the environment tells apart, and one for each key that is reached, are added up, and their tanh is
the mean offset of the entry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mithridate.attackers.arm_offsets import NEEDS_ARMS, ArmOffsets, are_arms
from mithridate.attackers.offset_tables import SEVERAL, OffsetTable
from mithridate.attackers.task_parameters import Episodes, LearnsPerTask, PerTask
from mithridate.budget import project
from mithridate.capabilities import Added
from mithridate.config import Config, Fraction, NonNegativeFloat, Positive, PositiveFloat
from mithridate.errors import UserError
from mithridate.registry import ATTACKERS
from mithridate.rng import TaskStreams
from mithridate.tables import AttackTables, unchanged
from mithridate.types import Attacker, EnvSpec, Step, Tasks, Trajectory

UNMET = 1e9
"""What the victim earned under the best candidate before the first: more than it ever will."""
MOST_KINDS = 8
"""Of entries of a table."""
STARTS = 4
"""Attacks without learning that a search begins and ends with."""


class SearchConfig(Config):
    budget: NonNegativeFloat = 3.0
    """Bound B on the norm of the offsets."""
    spread_budget: NonNegativeFloat = 0.0
    """Bound on the norm of the arms' spreads; 0 for none."""
    candidates: Positive = 16
    """Attacks that are tried on a task in a generation."""
    repeats: Positive = 1
    """Episodes that each of them is tried for."""
    sharpness: PositiveFloat = 1.5
    """Candidates are weighed by softmax(sharpness · z), z what the victim lost in units of the
    standard deviation over the task's candidates."""
    step: Fraction = 0.6
    """How far mean and spread move towards those of the weighted candidates."""
    initial_spread: PositiveFloat = 1.0
    """Of the first generation; at 1, offsets have about the norm of the budget."""
    least_spread: NonNegativeFloat = 0.2
    """The search does not become narrower than this, in the same unit."""
    trials: Positive = 8
    """Episodes that each finalist is tried for, on luck of their own."""


class _Space(Protocol):
    """From parameters to an attack."""

    @property
    def size(self) -> int:
        """P, the number of parameters."""
        ...

    @property
    def unit(self) -> float:
        """A spread that is neither narrow nor wide."""
        ...

    def starts(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> list[Tensor]:
        """Parameters (B, P) of attacks that need no learning."""
        ...

    def within(self, parameters: Tensor) -> Tensor:
        """The nearest that the budget allows."""
        ...

    def attack(self, parameters: Tensor, tasks: Tasks) -> ArmOffsets | OffsetTable: ...


class _Fixed(ArmOffsets):
    """Offsets and spreads that somebody else has chosen."""

    def __init__(self, offsets: Tensor, spreads: Tensor | None) -> None:
        super().__init__()
        self._chosen = offsets, spreads

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> tuple[Tensor, Tensor | None]:
        return self._chosen


@dataclass(frozen=True)
class _Arms:
    config: SearchConfig
    arms: int
    learned: ArmOffsets | None
    names = ("raise_worst", "lower_best", "swap", "mirror")

    @property
    def size(self) -> int:
        return 2 * self.arms if self.config.spread_budget else self.arms

    @property
    def unit(self) -> float:
        return self.config.budget / math.sqrt(self.arms)

    def starts(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> list[Tensor]:
        found = []
        attackers = [ATTACKERS.create(name, budget=self.config.budget) for name in self.names]
        for attacker in [*attackers, *([self.learned] if self.learned else [])]:
            offsets, _ = attacker.choose(spec, tasks, rng)
            found.append(
                torch.cat([offsets, offsets.new_zeros(len(tasks), self.size - self.arms)], 1)
            )
        return found

    def within(self, parameters: Tensor) -> Tensor:
        offsets, spreads = parameters[:, : self.arms], parameters[:, self.arms :].abs()
        parts = project(offsets, self.config.budget), project(spreads, self.config.spread_budget)
        return torch.cat(parts, 1) if self.config.spread_budget else parts[0]

    def attack(self, parameters: Tensor, tasks: Tasks) -> _Fixed:
        spreads = parameters[:, self.arms :] if self.config.spread_budget else None
        return _Fixed(parameters[:, : self.arms], spreads)


class _FixedTable(OffsetTable):
    """Mean offsets (B, K, A) within ±1 that somebody else has chosen."""

    def __init__(self, means: Tensor, budget: float) -> None:
        self._means, self.budget = means, budget

    def choose(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> Tensor:
        up, down = self._means.clamp(min=0.0), (-self._means).clamp(min=0.0)
        return torch.stack([down, 1 - up - down, up], -1)


@dataclass(frozen=True)
class _Table:
    config: SearchConfig
    keys: int
    unit = 1.0

    @property
    def size(self) -> int:
        return MOST_KINDS + self.keys

    def starts(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> list[Tensor]:
        """Against what entries are worth: each kind up or down, all that have the same worth."""
        base = torch.zeros(len(tasks), self.size)
        found = []
        for signs in ((0, 0, -1), (0, 1, 0), (0, 1, -1), (1, 1, -1)):
            start = base.clone()
            for worth, sign in enumerate(signs):
                start[:, 2 * worth : 2 * worth + 2] = 2.0 * sign
            found.append(start)
        return found

    def within(self, parameters: Tensor) -> Tensor:
        return parameters.clamp(-3.0, 3.0)

    def attack(self, parameters: Tensor, tasks: Tasks) -> _FixedTable:
        kinds: Tensor = tasks.kinds  # type: ignore[attr-defined]
        after: Tensor = tasks.after  # type: ignore[attr-defined]
        by_kind = parameters[:, :MOST_KINDS].gather(1, kinds.flatten(1)).view(kinds.shape)
        by_place = parameters[:, MOST_KINDS:][:, after]  # (B, K, A)
        return _FixedTable((by_kind + by_place).tanh(), self.config.budget)


@ATTACKERS.register("search")
class SearchAttacker(LearnsPerTask):
    """One search for each task it has met."""

    Config = SearchConfig
    together = False

    def __init__(self, config: SearchConfig | None = None) -> None:
        self.config = config or SearchConfig()
        self.episodes = self.config.candidates * self.config.repeats
        self.trials = self.config.trials
        self.learning = False
        """While learning, candidates are tried; else each task has the attack it has come to."""
        self._tasks = PerTask()
        self._learned: ArmOffsets | None = None
        self._finalist: int | None = None
        self._attack: ArmOffsets | OffsetTable | None = None

    @property
    def finalists(self) -> int:
        return 2 + STARTS + (self._learned is not None)

    def begin_with(self, attacker: Attacker) -> None:
        if not isinstance(attacker, ArmOffsets):
            raise UserError("attacker 'search' begins with attackers that have offsets of arms")
        self._learned = attacker

    # Acting ----------------------------------------------------------------------------------

    def reset(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> None:
        space = self._space(spec, tasks)
        self._horizon = spec.horizon
        zeros, unit = torch.zeros(space.size), self.config.initial_spread * space.unit
        fresh = {
            "mean": zeros, "spread": torch.full((space.size,), unit), "best": zeros,
            "chosen": zeros, "least": torch.tensor([UNMET]), "rounds": torch.zeros(1),
        }  # fmt: skip
        known = self._tasks.state.get("mean")
        if known is not None and known.shape[1] != space.size:
            raise UserError("this search was for another number of arms or keys; start anew")
        self._rows = self._tasks.rows(tasks.ids.cpu(), fresh)
        mine = {name: value.to(tasks.device) for name, value in self._tasks.at(self._rows).items()}
        if self._finalist is not None:
            drawn = self._finalists(mine, space, spec, tasks, rng)[self._finalist]
        elif self.learning:
            drawn = self._candidates(mine, space, spec, tasks, rng)
        else:
            drawn = mine["chosen"]
        self._drawn = space.within(drawn)
        self._least = self.config.least_spread * space.unit
        self._attack = space.attack(self._drawn, tasks)
        self._attack.reset(spec, tasks, rng)

    def _space(self, spec: EnvSpec, tasks: Tasks) -> _Arms | _Table:
        if are_arms(spec, tasks):
            return _Arms(self.config, spec.n_actions, self._learned)
        if spec.n_attack_keys > 1 and hasattr(tasks, "kinds") and hasattr(tasks, "after"):
            if tasks.kinds.min() < 0 or tasks.kinds.max() >= MOST_KINDS:
                raise UserError(f"attacker 'search' needs kinds of entries in 0…{MOST_KINDS - 1}")
            return _Table(self.config, spec.n_attack_keys)
        raise UserError(f"attacker 'search' {NEEDS_ARMS}, or {SEVERAL}, and kinds of entries")

    def _candidates(
        self, mine: dict[str, Tensor], space: _Space, spec: EnvSpec, tasks: Tasks, rng: TaskStreams
    ) -> Tensor:
        """(B, P): each candidate is the same in all its repeats."""
        episode = torch.zeros_like(tasks.ids) if tasks.episodes is None else tasks.episodes
        first = torch.arange(len(tasks), device=tasks.device) - episode % self.config.repeats
        luck = rng.normal(space.size)[first.clamp(min=0)]
        drawn = mine["mean"] + mine["spread"] * luck
        candidate = (episode // self.config.repeats)[:, None]
        for number, start in enumerate(space.starts(spec, tasks, rng)):
            new = (mine["rounds"] == 0) & (candidate == number)
            drawn = torch.where(new, start, drawn)
        return drawn

    def _finalists(
        self, mine: dict[str, Tensor], space: _Space, spec: EnvSpec, tasks: Tasks, rng: TaskStreams
    ) -> Sequence[Tensor]:
        return [mine["mean"], mine["best"], *space.starts(spec, tasks, rng)]

    def poison(self, step: Step) -> Tensor:
        assert self._attack is not None
        return self._attack.poison(step)

    def has_tables(self) -> bool:
        attack = self._attack
        return unchanged(self, SearchAttacker, "poison") and bool(attack and attack.has_tables())

    def attack_tables(self, steps: int) -> AttackTables:
        assert self._attack is not None
        return self._attack.attack_tables(steps)

    def cost(self) -> Tensor:
        assert self._attack is not None
        return self._attack.cost()

    def adds(self) -> Added:
        assert self._attack is not None
        return self._attack.adds()

    # Learning --------------------------------------------------------------------------------

    def update(self, trajectory: Trajectory) -> dict[str, float]:
        """A generation: what was tried in the rollout that the last `reset` began."""
        c, episodes = self.config, Episodes(self._rows)
        mine = self._tasks.at(episodes.rows)
        shape = (len(episodes.rows), c.candidates, c.repeats)
        earned = trajectory.true_rewards.cpu()[:, -self._horizon :].sum(1).view(shape).mean(2)
        tried = self._drawn.cpu().view(*shape, -1)[:, :, 0]  # (M, C, P)
        z = (earned.mean(1, keepdim=True) - earned) / earned.std(1, keepdim=True).clamp(min=1e-6)
        weights = (c.sharpness * z).softmax(1)[..., None]
        mean = (weights * tried).sum(1)
        spread = (weights * (tried - mean[:, None]) ** 2).sum(1).sqrt()
        mine["mean"] = mine["mean"] + c.step * (mean - mine["mean"])
        mine["spread"] = mine["spread"] + c.step * (spread - mine["spread"])
        mine["spread"] = mine["spread"].clamp(min=self._least)
        least, which = earned.min(1, keepdim=True)
        better = least < mine["least"]
        best = tried.gather(1, which[..., None].expand(-1, 1, tried.shape[2])).squeeze(1)
        mine["best"] = torch.where(better, best, mine["best"])
        mine["least"] = torch.where(better, least, mine["least"])
        mine["chosen"] = mine["mean"]
        mine["rounds"] = mine["rounds"] + 1
        self._tasks.put(episodes.rows, mine)
        return {"spread_mean": mine["spread"].mean().item()}

    # Settling --------------------------------------------------------------------------------

    def present(self, finalist: int | None) -> None:
        self._finalist = finalist

    def settle(self, earned: Tensor, tried: Tensor) -> None:
        which = _clearly_least(earned)
        chosen = tried[torch.arange(len(which)), which]
        self._tasks.put(Episodes(self._rows).rows, {"chosen": chosen})

    def played(self) -> Tensor:
        return Episodes(self._rows).first(self._drawn.cpu())


def _clearly_least(earned: Tensor) -> Tensor:
    """(M,): of the finalists' earned (M, F, N), the one with the least mean; the first, unless
    another is lower by more than a standard error, all having met the same luck."""
    gain = earned[:, :1] - earned  # (M, F, N)
    error = gain.std(2) / math.sqrt(gain.shape[2]) if gain.shape[2] > 1 else 0.0
    return (gain.mean(2) - error).argmax(1)
