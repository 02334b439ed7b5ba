"""What a pose shows: made when it is first asked for, and kept.

In memory there is a bounded ring of frames (rollouts, where poses recur) and the banks that were
prepared (contexts for pretraining). Nothing depends on what is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mithridate.envs.miniworld import bank, rays, room
from mithridate.envs.miniworld.render import SIDE, Renderer
from mithridate.errors import UserError
from mithridate.native import kernels
from mithridate.observations import Array as Seen
from mithridate.sizes import require

SEEN = {"image": Seen((SIDE, SIDE, 3), torch.uint8), "heading": Seen((2,))}
MOST = 100_000
"""Frames in the ring: 190 MB, once they are there."""

Array = np.ndarray[Any, Any]

_renderer: Renderer | None = None


def rendered(poses: Tensor) -> Array:
    """Frames of poses in ascending order: by the kernels, or else by the one renderer of this
    process."""
    global _renderer
    if kernels() is not None:
        return rays.frames(poses)
    if _renderer is None:
        _renderer = Renderer()
    return _renderer.frames(poses)


@cache
def shared() -> Frames:
    """The frames of this process: a model and the environment it acts in look at the same."""
    return Frames()


class Frames:
    def __init__(self, most: int = MOST) -> None:
        self._ring = np.empty((most, SIDE, SIDE, 3), dtype=np.uint8)
        self._owner: list[int] = []  # of each place in the ring that is taken
        self._next = 0
        self._place: dict[int, int] = {}
        self._known = np.empty(0, dtype=np.int64)  # poses of the bank, ascending
        self._bank = np.empty((0, SIDE, SIDE, 3), dtype=np.uint8)

    def __deepcopy__(self, memo: object) -> Frames:
        return self  # a copy of a model looks at the same frames

    def look(self, poses: Tensor) -> dict[str, Tensor]:
        """What SEEN says, of poses (N,)."""
        if poses.numel() and (poses.min() < 0 or room.headings_of(poses).max() >= room.HEADINGS):
            raise UserError("these are no poses of miniworld; were they made by it?")
        wanted, where = np.unique(poses.cpu().numpy(), return_inverse=True)
        images = torch.from_numpy(self._fetch(wanted)[where.reshape(poses.shape)])
        return {"image": images.to(poses.device), "heading": room.looks(poses).float()}

    def prepare(self, poses: Tensor, progress: Callable[[int, int], None] | None = None) -> None:
        """Have the frames of poses (N,) at hand, from disk if they were made before. `progress`
        hears how many there are and how many in all. What was made before an interruption is on
        disk."""
        wanted = np.unique(poses.cpu().numpy())
        require(float(len(wanted)) * SIDE * SIDE * 3, f"a bank of {len(wanted)} frames")
        self._bank = bank.load_or_make(wanted, rendered, progress)
        self._known = wanted

    def _fetch(self, wanted: Array) -> Array:
        """Frames of poses that are all different, in ascending order."""
        out = np.empty((len(wanted), SIDE, SIDE, 3), dtype=np.uint8)
        at = np.searchsorted(self._known, wanted)
        banked = np.zeros(len(wanted), dtype=bool)
        if len(self._known):
            at = np.minimum(at, len(self._known) - 1)
            banked = self._known[at] == wanted
            out[banked] = self._bank[at[banked]]
        rest = np.flatnonzero(~banked)
        places = np.array([self._place.get(n, -1) for n in wanted[rest].tolist()], dtype=np.int64)
        out[rest[places >= 0]] = self._ring[places[places >= 0]]
        new = rest[places < 0]
        if len(new):
            out[new] = rendered(torch.from_numpy(wanted[new]))
            self._keep(wanted[new][-len(self._ring) :], out[new][-len(self._ring) :])
        return out

    def _keep(self, poses: Array, frames: Array) -> None:
        """The oldest make room."""
        for number, frame in zip(poses.tolist(), frames, strict=True):
            if len(self._owner) < len(self._ring):
                self._owner.append(number)
            else:
                del self._place[self._owner[self._next]]
                self._owner[self._next] = number
            self._ring[self._next] = frame
            self._place[number] = self._next
            self._next = (self._next + 1) % len(self._ring)
