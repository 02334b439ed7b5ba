"""What `mixture_linucb` and `mixture_lin_ts` know of the weights, in the kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mithridate.model.player import Played, run
from mithridate.model.threads import kernel_threads
from mithridate.native import ALIGNMENT, kernels
from mithridate.tables import AttackTables, WorldTables

SIDE = 4
"""Of a tile of points: an arm's means are close together in it."""


def tiles(axis: int, dimension: int) -> tuple[Tensor, Tensor]:
    """(P,) each: the points of a grid in tiles of ALIGNMENT neighbours, and whether they are there.
    At the edges of the grid some are not; another stands for them."""
    side = SIDE if dimension == 2 else ALIGNMENT
    along = torch.arange(-(-axis // side) * side)
    if dimension == 1:
        return along.clamp(max=axis - 1), along < axis
    cut = along.view(-1, side)
    i, j = cut[:, None, :, None], cut[None, :, None, :]
    point = i.clamp(max=axis - 1) * axis + j.clamp(max=axis - 1)
    return point.flatten(), ((i < axis) & (j < axis)).flatten()


class NativeWeights:
    """Of B tasks: an arm's table is (O, columns) here, and logarithms in it are to base 2. By
    default a task of 10 arms takes 140 kB."""

    def __init__(
        self, order: tuple[Tensor, Tensor], prior: Tensor, log_share: Tensor, below: Tensor,
        beyond: Tensor, rows: Tensor, batch: int, **grid: Any,
    ) -> None:  # fmt: skip
        point, there = order
        self._mixture = kernels().LinearMixture(
            below=below[:, point].int(), beyond=beyond[:, point], rows=rows[:, point] * there,
            arms=len(below), **grid,
        )  # fmt: skip
        columns = self._mixture.columns()
        self._tables = log_share[:, None].repeat(batch, len(below), 1, columns)
        self._marginals = torch.zeros(batch, len(below), columns)
        self._logs = prior[point].masked_fill(~there, -torch.inf).repeat(batch, 1)  # (B, P)
        self._place = torch.empty(len(prior), dtype=torch.int64)
        self._place[point[there]] = there.nonzero().squeeze(1)
        self._rows = len(rows)

    @property
    def logs(self) -> Tensor:
        """(B, G): the posterior, up to a constant."""
        return self._logs[:, self._place]

    def _known(self) -> tuple[Tensor, ...]:
        return self._tables, self._marginals, self._logs

    def observe(self, actions: Tensor, rewards: Tensor) -> None:
        self._mixture.observe(
            *self._known(), actions.contiguous(), rewards.float().contiguous(), kernel_threads()
        )

    def expected(self) -> Tensor:
        """(B, K): what the rows are on average."""
        found = torch.empty(len(self._logs), self._rows)
        self._mixture.expected(self._logs, found, kernel_threads())
        return found

    def act(self, uniforms: Tensor, factor: float) -> Tensor:
        actions = torch.empty(len(uniforms), dtype=torch.int64)
        self._mixture.act(self._logs, uniforms.contiguous(), factor, actions, kernel_threads())
        return actions

    def player(self) -> LinearPlayer:
        return LinearPlayer(self._mixture, self._known())


class LinearPlayer:
    """Plays whole episodes in the kernels, from what is known of the tasks to what is known after
    them: of some tasks, and then of the next."""

    def __init__(self, mixture: Any, known: tuple[Tensor, ...]) -> None:
        self._mixture, self._known, self._played = mixture, known, 0

    def play(
        self, world: WorldTables, noise: Tensor | None, hit: Tensor, attack: AttackTables | None,
        uniforms: Tensor, temperature: float,
    ) -> Played:  # fmt: skip
        """See `NativePlayer.play`. The temperature may be another factor."""
        part = slice(self._played, self._played + len(hit))
        self._played += len(hit)
        names = ("tables", "marginals", "logs")
        known = {n: x[part] for n, x in zip(names, self._known, strict=True)}
        luck, play = uniforms.contiguous(), self._mixture.play
        return run(play, world, noise, hit, attack, luck=luck, factor=temperature, **known)[0]


def is_sound(player: object) -> bool:
    """Whether it is this player, and what it plays with is the kernels'."""
    ours = type(player) is LinearPlayer and vars(player).keys() == {"_mixture", "_known", "_played"}
    return ours and type(vars(player)["_mixture"]) is kernels().LinearMixture
