"""Poisoned rewards in our own environments: as in the rollout, a step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mithridate.errors import UserError
from mithridate.gym.attack import PoisonConfig, attack_on
from mithridate.gym.episodes import Array, Episodes
from mithridate.observations import own
from mithridate.rng import Rng
from mithridate.rollout import checked_rewards
from mithridate.tables import is_fixed
from mithridate.types import Step
from mithridate.users_code import blaming


class OurRewards:
    """One attacker for all rows, which begin and end together."""

    def __init__(
        self, episodes: Episodes, attacker: Any, config: PoisonConfig, key: Any, keys: int | None
    ) -> None:
        if key is not None or keys is not None:
            raise UserError("key, keys: our environments have keys of their own; leave it out")
        self._episodes = episodes
        spec, env = episodes.env.spec, episodes.env
        self.attack = attack_on(env, spec.n_attack_keys, attacker, config.budget, episodes.told)
        if self.attack.tasks is not None:
            episodes.draw_from(self.attack.tasks)
        self._eps, self._rng = config.eps, Rng(config.seed)
        self._try_out()
        self._renew = not is_fixed(self.attack.attacker) if config.renew is None else config.renew
        self._moved = -1

    def _try_out(self) -> None:
        """What does not fit is said at once."""
        with blaming(self.attack.attacker):
            tasks = self._episodes.example()
            streams = Rng(0).streams(tasks.ids)
            self.attack.attacker.reset(self._episodes.env.spec, tasks.copy(), streams)

    def begin(self, seen: Sequence[Any], seed: Any, rows: Sequence[int]) -> None:
        e = self._episodes
        if self._renew or e.moved != self._moved:
            streams = self._rng.child("attacker").streams(e.tasks.luck)
            with blaming(self.attack.attacker):
                self.attack.attacker.reset(e.env.spec, e.tasks.copy(), streams)
            self.attack.check(e.batch)
        self._moved = e.moved
        self._contamination = self._rng.child("contamination").streams(e.tasks.luck)

    def before(self) -> None:
        """An action is about to be taken."""
        e = self._episodes
        if e.began:
            self._where = own(e.observation), own(e.state), own(e.key())

    @torch.no_grad()
    def after(
        self, given: Sequence[Any], rewards: Array, seen: Sequence[Any], ended: Array,
        live: Array | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        """What is shown, and where it is the attacker's, (B,) each."""
        e = self._episodes
        if live is not None and not live.any():
            return rewards, np.zeros(e.batch, dtype=bool)
        observation, state, key = self._where
        actions, true = e.actions(given), torch.from_numpy(rewards.astype(np.float32))
        step = Step(observation, state, actions, true, own(e.observation), key)
        hit = self._contamination.uniform().squeeze(1) < self._eps
        with blaming(self.attack.attacker):
            proposed = self.attack.attacker.poison(step)
        shown = checked_rewards(proposed, e.batch, self.attack.attacker)
        if ended.all():
            self.attack.check(e.batch)
        return shown.to(torch.float64).numpy(), hit.numpy()
