"""Exploratory walks through layouts, and the contexts for pretraining that are made of them.

A walk goes from box to box, at times to a place between them, in the oracle's way with random steps
in between, and looks around where it arrives. It keeps out of all boxes: so it is what would have
happened whichever of them is the goal, and a frame of it serves all goals. Each layout has a fixed
number of walks; contexts are made of their poses alone, so that frames are few and can be kept
(`bank.py`).

A context is, in three of four tasks, one of the walks, by somebody who pauses where he is while
rewards come, more or less faithfully; in the others, transitions out of all walks of the layout in
any order. What is asked about is the pose at hand or one of any walk of the layout.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mithridate.envs.darkroom_poison import RoomPoison
from mithridate.envs.miniworld import room
from mithridate.rng import Rng
from mithridate.types import Contexts

KEPT = 2**25
"""Steps of walks that are kept in memory, at most."""
BORED = 0.02
"""How often a walk has another target before it has arrived, at each step; it may be stuck."""
DRAWS = 6
"""Random numbers that a step of a walk takes."""

Array = np.ndarray[Any, Any]


def walk(layouts: Tensor, numbers: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Poses (N, T + 1) and actions (N, T) of walks (N,) in layouts (N,). A shorter one is the
    beginning of a longer one."""
    ids = layouts * 2**20 + numbers
    luck = Rng(0).child("miniworld", "walks").streams(ids).ahead("uniform", length, DRAWS)
    boxes, pose = room.layout(layouts)
    rows = torch.arange(len(layouts))
    noisy = 0.3 * luck[:, 0, 5]  # how often it steps at random
    target = _target(boxes, luck[:, 0])
    left = torch.zeros(len(layouts))  # how long it still looks around
    seen, done = [pose], []
    for t in range(length):
        u = luck[:, t]
        arrived = (room.oracle(pose, target) == room.STAY) & (left <= 0)
        left = torch.where(arrived, (u[:, 0] * 8).floor() + 1, left - 1)
        change = (left == 0) | (u[:, 5] < BORED)
        target = torch.where(change[:, None], _target(boxes, u), target)
        around = (left > 0) | (u[:, 3] < noisy)
        action = torch.where(around, (u[:, 4] * room.ACTIONS).long(), room.oracle(pose, target))
        inside = room.distances(_ahead(pose)[:, None], boxes).amin(1) < room.TOUCHING
        action = torch.where((action == room.AHEAD) & inside, room.LEFT, action)
        pose = room.move(pose, action, boxes[rows])
        seen.append(pose)
        done.append(action)
    return torch.stack(seen, 1), torch.stack(done, 1)


def _target(boxes: Tensor, u: Tensor) -> Tensor:
    """(N, 2): a box in four of five cases, else a place in the room."""
    box = boxes[torch.arange(len(boxes)), (u[:, 1] * len(room.COLOURS)).long()]
    return torch.where(u[:, 0:1] < 0.8, box, u[:, 1:3].double() * room.SIZE)


def _ahead(pose: Tensor) -> Tensor:
    """Where a step leads if nothing blocks it, inside the room's numbers."""
    there = room.places_of(pose) + room.STRIDES[room.headings_of(pose)]
    there = there.clamp(0, room.PLACES - 1)
    return room.poses(room.layouts_of(pose), there, room.headings_of(pose))


class Library:
    """The walks of all layouts of an environment: `each` in every one of `layouts`."""

    def __init__(self, layouts: int, each: int, length: int) -> None:
        self.layouts, self.each, self.length = layouts, each, length

    @property
    def steps(self) -> int:
        """Of all of them."""
        return self.layouts * self.each * (self.length + 1)

    @property
    def small(self) -> bool:
        """Whether all of them are kept."""
        return self.steps <= KEPT

    @cached_property
    def _all(self) -> tuple[Tensor, Tensor]:
        layouts = torch.arange(self.layouts).repeat_interleave(self.each)
        return walk(layouts, torch.arange(self.each).repeat(self.layouts), self.length)

    def poses(self) -> Tensor:
        """All that occur, each once, in ascending order."""
        found: Tensor = self._all[0].unique()  # type: ignore[no-untyped-call]
        return found

    def of(self, layouts: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Poses (B, W, T + 1) and actions (B, W, T) of the walks of layouts (B,)."""
        if self.small and length <= self.length:
            seen, done = (x.view(self.layouts, self.each, -1)[layouts] for x in self._all)
            return seen[..., : length + 1], done[..., :length]
        which, where = layouts.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        numbers = torch.arange(self.each).repeat(len(which))
        seen, done = walk(which.repeat_interleave(self.each), numbers, length)
        return (
            seen.view(len(which), self.each, -1)[where],
            done.view(len(which), self.each, -1)[where],
        )


def contexts(
    seen: Tensor, done: Tensor, goals: Tensor, keys: Tensor, draw: np.random.Generator,
    attack: RoomPoison | None,
) -> Contexts:  # fmt: skip
    """Contexts of walks with poses (B, W, T + 1), of which attackers see the keys (B, W, T + 1),
    and actions (B, W, T); goals (B, 2) are where they are in the room."""
    batch, walks, length = done.shape
    paid = room.rewards(seen, goals[:, None, None]).numpy()  # (B, W, T + 1)
    shuffled = draw.random(batch) < 0.25
    which = draw.integers(0, walks, (batch, length))
    which[~shuffled] = which[~shuffled, :1]
    at = np.where(shuffled[:, None], draw.integers(0, length, (batch, length)), 0)
    walked = _Walked(done.numpy(), keys.numpy(), paid)
    at, actions, observed = walked.by(which, at, shuffled, draw, attack)
    rows = np.arange(batch)[:, None]
    poses, goes = seen.numpy(), actions != PAUSE
    before, after = poses[rows, which, at], poses[rows, which, at + goes]
    several = (batch, length + 1)
    asked = poses[rows, draw.integers(0, walks, several), draw.integers(0, length + 1, several)]
    here = np.concatenate([poses[:, :1, 0], after], 1)
    at_hand = ~shuffled[:, None] & (draw.random(several) < 0.5)
    queries = torch.from_numpy(np.where(at_hand, here, asked))
    where = goals[:, None]
    return Contexts(
        actions=torch.from_numpy(np.where(goes, actions, room.STAY)),
        rewards=torch.from_numpy(observed),
        labels=room.oracle(queries, where),
        states=torch.from_numpy(before),
        next_states=torch.from_numpy(after),
        queries=queries,
        values=room.values(queries, where.expand(-1, length + 1, -1)),
    )


PAUSE = -1
"""Stay where one is, instead of the walk's next step."""


class _Walked:
    """What happens to somebody on a walk."""

    def __init__(self, done: Array, keys: Array, paid: Array) -> None:
        self._done, self._keys, self._paid = done, keys, paid

    def by(
        self, which: Array, at: Array, shuffled: Array, draw: np.random.Generator,
        attack: RoomPoison | None,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        """Where on their walks they are (B, T), what they do there, and what they see of the
        reward. Only what they see decides whether they pause."""
        batch, length = which.shape
        rows = np.arange(batch)
        faithful = draw.random(batch) ** 0.5 * ~shuffled
        faithful[draw.random(batch) < 0.25] = 0.0  # who does not care about rewards
        at, actions = at.copy(), np.empty((batch, length), dtype=np.int64)
        observed = np.zeros((batch, length), dtype=np.float32)
        place, last = np.zeros(batch, dtype=np.int64), np.zeros(batch, dtype=np.float32)
        luck = draw.random((length, batch))
        for t in range(length):
            w = which[:, t]
            at[:, t] = place = np.where(shuffled, at[:, t], place)
            pause = (last > 0) & (luck[t] < faithful)
            actions[:, t] = np.where(pause, PAUSE, self._done[rows, w, place])
            keys = self._keys[rows, w, place][:, None]
            place = place + ~pause
            last = self._paid[rows, w, place]
            if attack is not None:
                taken = np.where(pause, room.STAY, actions[:, t])[:, None]
                last = last + attack(keys, taken, t).squeeze(1)
            observed[:, t] = last
        return at, actions, observed
