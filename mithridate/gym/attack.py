"""Who attacks: what a user names, trained attackers and their tasks, or a table of offsets."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mithridate.attackers import make_attacker
from mithridate.budget import norm
from mithridate.capabilities import Added, forgets, learns
from mithridate.config import IN_ROOMS, Config, Fraction, NonNegativeFloat, Seed
from mithridate.errors import UserError, shown
from mithridate.registry import ATTACKERS, parse_call
from mithridate.rng import TaskStreams
from mithridate.scores import norms_of
from mithridate.tables import AttackTables
from mithridate.training.attack_files import LearnedAttack
from mithridate.types import Attacker, Env, EnvSpec, Step, Tasks

WITH_ONE_KEY = 3.0
"""The budget elsewhere, as in our bandits and rooms."""
SLACK = 1 + 1e-6


class PoisonConfig(Config):
    eps: Fraction = 0.4
    """The probability that a reward is the attacker's."""
    budget: NonNegativeFloat | None = None
    """Bound on the norm of the mean offsets; null for the environment's."""
    seed: Seed = 0
    """Of contamination and attacker."""
    renew: bool | None = None
    """Whether the attacker begins anew with every episode, also in the same task; null: if it
    watches the episode. A fixed attack lasts as long as the task."""


class Attack(NamedTuple):
    attacker: Attacker
    name: str
    budget: float
    tasks: Tasks | None = None
    """Those that it was trained for, if it is of use in no others."""

    def check(self, batch: int) -> None:
        """Who spends more than the budget is an error."""
        most = norms_of(self.attacker, batch).max().item()
        if most > self.budget * SLACK:
            raise UserError(
                f"attacker {self.name} spent {most:.3g} of a budget of {self.budget:g}; "
                "it must keep to it (`project` of mithridate/budget.py)"
            )


class GivenOffsets:
    """Adds to a reward the offset that a table (K, A) has for key and action."""

    blind = True

    def __init__(self, table: Any, budget: float) -> None:
        try:
            self.table = torch.as_tensor(np.asarray(table, dtype=np.float32)).clone()
        except (TypeError, ValueError):
            raise UserError("attacker: offsets must be an array of numbers") from None
        if self.table.dim() == 1:
            self.table = self.table[None]
        if self.table.dim() != 2 or not torch.isfinite(self.table).all():
            raise UserError(
                "attacker: offsets must be finite numbers, one for each action or for each key and "
                f"action, not of shape {tuple(self.table.shape)}"
            )
        length = norm(self.table[None]).item()
        if length > budget * SLACK:
            raise UserError(
                f"attacker: these offsets have norm {length:.4g}, the budget is {budget:g}: scale "
                "them down, or give a larger budget"
            )

    def reset(self, spec: EnvSpec, tasks: Tasks, rng: TaskStreams) -> None:
        wanted = (spec.n_attack_keys, spec.n_actions)
        if tuple(self.table.shape) != wanted:
            raise UserError(
                f"attacker: offsets of shape {tuple(self.table.shape)}; the environment has "
                f"{wanted[0]} keys and {wanted[1]} actions"
            )
        self._batch = len(tasks)

    def poison(self, step: Step) -> Tensor:
        return step.true_rewards + self.table[step.key, step.actions]

    def adds(self) -> Added:
        return Added(self.table.expand(self._batch, -1, -1), None)

    def has_tables(self) -> bool:
        return True

    def attack_tables(self, steps: int) -> AttackTables:
        return AttackTables(self.table[None, :, :, None].expand(self._batch, -1, -1, -1))

    def cost(self) -> Tensor:
        return norm(self.table[None]).expand(self._batch)


def attack_on(
    env: Env | None, keys: int, thing: Any, budget: float | None, tasks_are_given: bool = False
) -> Attack:
    """The attack that `thing` stands for. `env`: ours, or None; `tasks_are_given`: whether somebody
    has said which tasks it has."""
    if isinstance(thing, LearnedAttack) or _is_file(thing):
        return _learned(env, thing, budget)
    if budget is None:
        elsewhere = WITH_ONE_KEY if keys == 1 else IN_ROOMS
        budget = elsewhere if env is None else env.budget
    if isinstance(thing, str):
        return _named(thing, budget, {} if env is None else env.config.facts())
    if isinstance(thing, np.ndarray | Tensor | list | tuple):
        return Attack(GivenOffsets(thing, budget), "GivenOffsets", budget)
    if inspect.isclass(thing) or not all(hasattr(thing, m) for m in ("reset", "poison", "cost")):
        raise UserError(
            "attacker: it must be a name, a file of trained attackers, a table of offsets, or an "
            f"object with reset, poison and cost, not {shown(thing, 60)}"
        )
    if forgets(thing) and not tasks_are_given:
        raise UserError(
            f"attacker {type(thing).__name__} was trained for certain tasks: call "
            "env.unwrapped.episodes.draw_from(tasks) first, or give the file that it was kept in"
        )
    return Attack(thing, type(thing).__name__, budget)


def _is_file(thing: Any) -> bool:
    if isinstance(thing, Path):
        return True
    if not isinstance(thing, str) or "\0" in thing:
        return False
    found = os.path.exists(thing) and ATTACKERS.known(thing) is None
    return found or thing.endswith(".safetensors") or (os.sep in thing and "(" not in thing)


def _named(text: str, budget: float, facts: Mapping[str, float]) -> Attack:
    name, _ = parse_call(text, "attacker")
    known = ATTACKERS.get(name).registered_name
    attacker = make_attacker(known + text[len(name) :], budget, facts)
    if learns(attacker):
        raise UserError(
            f"attacker '{known}' must be trained first: `mithridate attack`, then give its run"
        )
    return Attack(attacker, f"'{known}'", budget)


def _learned(env: Env | None, thing: Any, budget: float | None) -> Attack:
    found = thing if isinstance(thing, LearnedAttack) else LearnedAttack(thing)
    name = shown(found.path)
    if budget is not None and found.config.budget > budget:
        raise UserError(
            f"attackers {name}: their budget is {found.config.budget:g}, and {budget:g} is allowed"
        )
    of_tasks = forgets(found.attacker)
    if of_tasks and env is None:
        raise UserError(
            f"attackers {name} were trained for certain tasks of '{found.config.env.name}', and "
            "this environment is none of ours"
        )
    if env is not None and _world(found.env) != _world(env):
        raise UserError(
            f"attackers {name} were trained in another environment: "
            f"{shown(found.config.env.to_json())}"
        )
    budget = found.config.budget if budget is None else budget
    return Attack(found.attacker, name, budget, found.tasks if of_tasks else None)


def _world(env: Env) -> dict[str, Any]:
    """Its configuration, but for which of its tasks are drawn."""
    config = env.config
    return {k: v for k, v in config.to_json().items() if k not in config.which_tasks}
