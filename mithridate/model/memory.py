"""Memory that is used again: fresh pages cost a few per cent of a training step or a rollout."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

KEPT = 2
"""Pieces that a pool keeps when nobody needs them."""


class Pool:
    """Pieces of float32 memory on the CPU, given out to one user at a time."""

    def __init__(self) -> None:
        self.free: list[Tensor] = []

    def take(self, *sizes: int) -> Piece:
        return Piece(self, sizes)


class Piece:
    """Uninitialised memory in parts of the given sizes. It goes back to its pool with this object,
    so nothing may be read or written there afterwards."""

    def __init__(self, pool: Pool, sizes: tuple[int, ...]) -> None:
        self._pool = pool
        total = sum(sizes)
        fitting = [i for i, memory in enumerate(pool.free) if len(memory) >= total]
        # NumPy asks for huge pages where they are to be had; PyTorch does not.
        self._memory = (
            pool.free.pop(fitting[0])
            if fitting
            else torch.from_numpy(np.empty(total, dtype=np.float32))
        )
        self.parts = torch.split(self._memory[:total], list(sizes))

    def __del__(self) -> None:
        self.parts = ()
        if len(self._pool.free) < KEPT:
            self._pool.free.append(self._memory)
