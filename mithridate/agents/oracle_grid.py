"""What `posterior_oracle` knows of two weights, in the kernels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mithridate.model.player import Played, run
from mithridate.model.threads import kernel_threads, left_to_kernels
from mithridate.native import ALIGNMENT, kernels
from mithridate.rng import TaskStreams
from mithridate.tables import AttackTables, WorldTables

PEAK = math.sqrt(0.5 / math.log(2))
"""A normal density is 2 to the power of −(PEAK · distance / standard deviation)²."""
NEVER = -1e30
"""The logarithm of what does not happen."""
ROOM = 64


class NativeGrid:
    """See `_Weights` of `posterior_oracle.py`. A row of its logarithms, which are to base 2, has
    minus infinity after its points."""

    @left_to_kernels()
    def __init__(
        self, features: Tensor, batch: int, axis: int, reach: float, noise: float, rng: TaskStreams
    ) -> None:
        self._rng, self._axis, self._number = rng, axis, 0
        line = torch.linspace(-reach, reach, axis)
        row = -(-axis // ALIGNMENT) * ALIGNMENT
        self._line = torch.cat([line, line[-1:].expand(row - axis)])
        step = 2 * reach / (axis - 1)
        self._oracle = kernels().WeightOracle(step, PEAK / noise, self._line, features, axis)
        root = math.sqrt(0.5)
        self._places = torch.tensor([[0.0, 0.0, root, 0.0, root]])  # of one task, and then of all
        prior = torch.full((axis, row), -torch.inf)
        prior[:, :axis] = -self.weights.square().sum(2).view(axis, axis) / math.log(2)
        self._logs, self._places = prior.repeat(batch, 1, 1), self._places.repeat(batch, 1)
        self._seen = torch.empty(batch, 0, 8)

    @property
    def weights(self) -> Tensor:
        """(B, G, 2): the points."""
        line = self._line[: self._axis]
        x, y = torch.cartesian_prod(line, line).T
        c0, c1, r00, r10, r11 = self._places.T[..., None]
        return torch.stack([c0 + r00 * x, c1 + r10 * x + r11 * y], 2)

    @property
    def logs(self) -> Tensor:
        """(B, G): the posterior, up to a constant."""
        return self._logs[..., : self._axis].flatten(1) * math.log(2)

    def _with_room(self, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """What is known, with room for so many rewards more."""
        lacking = self._number + steps - self._seen.shape[1]
        if lacking > 0:
            more = self._seen.new_zeros(len(self._seen), max(lacking, self._number, ROOM), 8)
            self._seen = torch.cat([self._seen, more], 1)
        return self._logs, self._places, self._seen

    def observe(self, actions: Tensor, rewards: Tensor, attack: Tensor) -> None:
        """The attack is (B, A, 4): see `attack_on`."""
        self._oracle.observe(
            *self._with_room(1), self._number, attack, actions.contiguous(),
            rewards.float().contiguous(), kernel_threads(),
        )  # fmt: skip
        self._number += 1

    def act(self) -> Tensor:
        uniforms = self._rng.uniform(3).contiguous()
        actions = torch.empty(len(uniforms), dtype=torch.int64)
        self._oracle.act(*self._with_room(0), uniforms, actions, kernel_threads())
        return actions

    def player(self, steps: int, attack: Tensor) -> tuple[OraclePlayer, Tensor]:
        """Who plays so many steps, and the luck for it."""
        known = self._with_room(steps)
        player = OraclePlayer(self._oracle, known, self._number, attack)
        self._number += steps
        return player, self._rng.ahead("uniform", steps, 3)


def attack_on(eps: Tensor, shift: Tensor, std: Tensor, noise: float) -> Tensor:
    """(B, A, 4), of shares eps (B, 1), and of what is added to an arm's reward and a poisoned
    reward's standard deviation (B, A): logarithm of a clean reward's peak, offset, scale, and
    logarithm of a poisoned reward's peak."""
    clean = (1 - eps).log2().clamp(min=NEVER).expand_as(std)
    poisoned = (eps.log2() - (std / noise).log2()).clamp(min=NEVER)
    return torch.stack([clean, shift.expand_as(std), PEAK / std, poisoned], 2).float().contiguous()


class OraclePlayer:
    """Plays whole episodes in the kernels, from what is known of the tasks to what is known after
    them: of some tasks, and then of the next."""

    def __init__(self, oracle: Any, known: tuple[Tensor, ...], number: int, attack: Tensor) -> None:
        self._oracle, self._known, self._number, self._attack = oracle, known, number, attack
        self._played = 0

    def play(
        self, world: WorldTables, noise: Tensor | None, hit: Tensor, attack: AttackTables | None,
        uniforms: Tensor, temperature: float,
    ) -> Played:  # fmt: skip
        """See `NativePlayer.play`. There is no temperature."""
        part = slice(self._played, self._played + len(hit))
        self._played += len(hit)
        names = ("logs", "places", "seen", "believed")
        parts = {n: x[part] for n, x in zip(names, (*self._known, self._attack), strict=True)}
        return run(
            self._oracle.play, world, noise, hit, attack, luck=uniforms.contiguous(),
            known_rewards=self._number, **parts,
        )[0]  # fmt: skip


def is_sound(player: object) -> bool:
    """Whether it is this player, and what it plays with is the kernels'."""
    names = {"_oracle", "_known", "_number", "_attack", "_played"}
    ours = type(player) is OraclePlayer and vars(player).keys() == names
    return ours and type(vars(player)["_oracle"]) is kernels().WeightOracle
