"""The key/value cache of a rollout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from mithridate.config import ModelConfig
from mithridate.errors import UserError
from mithridate.model.dispatch import NativeDecoder
from mithridate.model.memory import Pool
from mithridate.model.player import NativePlayer
from mithridate.native import ALIGNMENT
from mithridate.observations import Observation

_CACHES = Pool()


def _nothing(observation: Observation) -> Tensor:
    raise AssertionError("this model does not embed observations")


class KVCache:
    """Keys and values of all past positions, (B, layers, heads, d, capacity) with positions last.

    The native kernels have both in blocks of positions: `blocks`, (B, layers, 2, heads,
    capacity / 16, d, 16). All is filled with NaN, so that reading a position that was never written
    cannot go unnoticed.
    """

    def __init__(
        self, batch: int, config: ModelConfig, capacity: int, like: Tensor,
        decoder: NativeDecoder | None = None, player: NativePlayer | None = None,
    ) -> None:  # fmt: skip
        empty = like.new_empty(0)
        self.keys, self.values, self.blocks = empty, empty, empty
        d = config.width // config.heads
        if decoder is None and player is None:
            shape = (batch, config.layers, config.heads, d, capacity)
            self.keys, self.values = (like.new_full(shape, float("nan")) for _ in range(2))
        else:
            blocks = -(-capacity // ALIGNMENT)
            both = (batch, config.layers, 2, config.heads, blocks, d, ALIGNMENT)
            self._memory = _CACHES.take(math.prod(both))
            self.blocks = self._memory.parts[0].view(both).fill_(float("nan"))
        self.capacity = capacity
        self.length = 0
        self.decoder = decoder
        """Takes the place of the layers' own steps, if there is one."""
        self.player = player
        """Takes the place of the whole model, if there is one."""
        self.last: Any = None
        """What was last written, of models that may be asked about another state after it."""
        self.tables: tuple[Tensor, ...] = ()
        """What such models look tokens up in, if they can."""
        self.embed: Callable[[Observation], Tensor] = _nothing
        """Else what they have for observations: a vector (D,) each."""

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store (B, heads, d) at the current position; return all (B, heads, d, length + 1)."""
        self.keys[:, layer, :, :, self.length] = k
        self.values[:, layer, :, :, self.length] = v
        end = self.length + 1
        return self.keys[:, layer, :, :, :end], self.values[:, layer, :, :, :end]

    def position(self) -> int:
        """Where the next token goes."""
        if self.length >= self.capacity:
            raise UserError(
                f"the context is full: this model holds {self.capacity - 1} transitions; "
                "use a shorter horizon or a model trained on a longer one"
            )
        return self.length

    def advance(self) -> None:
        """Move to the next position, once every layer has written."""
        self.length += 1
