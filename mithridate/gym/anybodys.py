"""Poisoned rewards in anybody's environment, of which nothing is known but its spaces.

The environment is one task. Rows of a vector end when they like, so that each has its own steps; an
attack that is fixed is the same in all of them, and one that watches watches each row by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from mithridate.agents.single_task import checked_action, checked_reward
from mithridate.capabilities import is_blind
from mithridate.envs.bandit_base import ArmTasks
from mithridate.errors import UserError, shown
from mithridate.gym.attack import PoisonConfig, attack_on
from mithridate.gym.episodes import MOST_EPISODES, Array
from mithridate.rng import Rng
from mithridate.rollout import checked_rewards
from mithridate.tables import is_fixed
from mithridate.types import Attacker, EnvSpec, Metric, Step
from mithridate.users_code import blaming

ENDLESS = 2**31 - 1
"""The horizon of an environment that has none."""


class AnybodysRewards:
    def __init__(
        self,
        name: str,
        actions: spaces.Discrete,
        observations: spaces.Space[Any],
        horizon: int | None,
        batch: int,
        attacker: Any,
        config: PoisonConfig,
        key: Callable[[Any], int] | None,
        keys: int | None,
    ) -> None:
        self._first = int(actions.start)
        self._key, count = _keys(observations, key, keys)
        self.spec = EnvSpec(
            name=name, n_actions=int(actions.n), horizon=horizon or ENDLESS,
            metric=Metric("return", "higher"), n_attack_keys=count,
        )  # fmt: skip
        self.attack = attack_on(None, count, attacker, config.budget)
        one = self.attack.attacker
        if not is_blind(one):
            raise UserError(
                f"attacker {self.attack.name} knows the task that it attacks, and of {shown(name)} "
                "nothing is known: use uniform, a table of offsets, or ace(target=0)"
            )
        fixed = is_fixed(one)
        self._renew = not fixed if config.renew is None else config.renew
        self._shared = fixed and not self._renew
        self._rows = [
            Row(self.spec, one if self._shared or i == 0 else copy.deepcopy(one), i)
            for i in range(batch)
        ]
        self._eps, self._seed = config.eps, Rng(config.seed)
        self._start(self._seed)
        self._rows[0].begin(self._rng, 0, 0, anew=True)  # what does not fit is said at once

    def _start(self, rng: Rng) -> None:
        self._rng = rng
        self._settled = False  # whether the attack that all rows share has been chosen
        self._began = [-1] * len(self._rows)

    def key(self, observation: Any) -> int:
        """The situation that an observation is."""
        count = self.spec.n_attack_keys
        return checked_action(self._key(observation), count, "key of an observation: it must be")

    def begin(self, seen: Sequence[Any], seed: Any, rows: Sequence[int]) -> None:
        """New episodes in some rows. After a reset with a seed all is as the first time."""
        if seed is not None:
            self._start(self._seed.child("reset", *np.atleast_1d(seed).tolist()))
        for i in rows:
            self._began[i] = (self._began[i] + 1) % MOST_EPISODES
            first = not self._settled if self._shared else self._began[i] == 0
            row, anew = self._rows[i], first or self._renew
            row.begin(self._rng, self._began[i], self.key(seen[i]), anew)
            self._settled = True
            if anew:
                self._check(row)

    def before(self) -> None:
        """An action is about to be taken: rows know where they are."""

    @torch.no_grad()
    def after(
        self, given: Sequence[Any], rewards: Array, seen: Sequence[Any], ended: Array,
        live: Array | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        """What is shown, and where it is the attacker's, (B,) each."""
        shown, hit = rewards.astype(np.float64), np.zeros(len(self._rows), dtype=bool)
        for i, row in enumerate(self._rows):
            if live is not None and not live[i]:
                continue
            shown[i], hit[i] = row.step(int(given[i]) - self._first, rewards[i], self._eps)
            if ended[i]:
                self._check(row)
            else:
                row.key = self.key(seen[i])
        return shown, hit

    def _check(self, row: Row) -> None:
        self.attack._replace(attacker=row.attacker).check(1)


class Row:
    """One episode at a time."""

    def __init__(self, spec: EnvSpec, attacker: Attacker, number: int) -> None:
        self.attacker = attacker
        self.key = 0
        self._spec, self._number = spec, number

    def begin(self, rng: Rng, episode: int, key: int, anew: bool) -> None:
        """`anew`: the attacker, too."""
        self.key = key
        tasks = ArmTasks(  # nobody who would look at the means is let in
            torch.tensor([self._number]), torch.zeros(1, self._spec.n_actions),
            episodes=torch.tensor([episode]),
        )  # fmt: skip
        self._contamination = rng.child("contamination").streams(tasks.luck)
        if anew:
            with blaming(self.attacker):
                streams = rng.child("attacker").streams(tasks.luck)
                self.attacker.reset(self._spec, tasks, streams)

    def step(self, action: int, reward: Any, eps: float) -> tuple[float, bool]:
        """What is shown, and whether it is the attacker's."""
        true = torch.tensor([checked_reward(reward)])
        key = torch.tensor([self.key])
        hit = bool(self._contamination.uniform().item() < eps)
        with blaming(self.attacker):
            proposed = self.attacker.poison(
                Step(None, None, torch.tensor([action]), true, None, key)
            )
        shown = checked_rewards(proposed, 1, self.attacker)
        return shown.item() if hit else float(reward), hit


def _keys(
    space: spaces.Space[Any], key: Callable[[Any], int] | None, keys: int | None
) -> tuple[Callable[[Any], int], int]:
    """From an observation to a key, and how many there are."""
    if keys is not None and (isinstance(keys, bool) or not isinstance(keys, int) or keys < 1):
        raise UserError(f"keys: it must be a positive whole number, not {shown(keys, 40)}")
    if key is not None:
        if not callable(key) or keys is None:
            raise UserError("key: it must be a function, and keys must say how many there are")
        return key, keys
    if keys == 1:
        return (lambda observation: 0), 1
    if not isinstance(space, spaces.Discrete) or keys not in (None, int(space.n)):
        raise UserError(
            f"PoisonReward cannot tell situations apart by {shown(space, 60)}: give key (a "
            "function of the observation) and keys (how many there are), or keys=1 for one"
        )
    first = int(space.start)
    return (lambda observation: int(observation) - first), int(space.n)
