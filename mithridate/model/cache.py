"""The key/value cache of a rollout."""

from __future__ import annotations

import math

from torch import Tensor

from mithridate.config import ModelConfig
from mithridate.errors import UserError
from mithridate.model.dispatch import NativeDecoder
from mithridate.model.memory import Pool
from mithridate.native import ALIGNMENT

_CACHES = Pool()


class KVCache:
    """Keys and values of all past positions, (B, layers, heads, d, capacity) with positions last.

    A native decoder keeps instead each layer's normed inputs, from which keys and values are
    linear, in blocks of positions: `inputs`, (B, layers, capacity / 16, D, 16). That is half the
    memory, and one stream of it. All is filled with NaN, so that reading a position that was never
    written cannot go unnoticed.
    """

    def __init__(
        self, batch: int, config: ModelConfig, capacity: int, like: Tensor,
        decoder: NativeDecoder | None = None,
    ) -> None:  # fmt: skip
        empty = like.new_empty(0)
        self.keys, self.values, self.inputs = empty, empty, empty
        if decoder is None:
            shape = (batch, config.layers, config.heads, config.width // config.heads, capacity)
            self.keys, self.values = (like.new_full(shape, float("nan")) for _ in range(2))
        else:
            blocks = -(-capacity // ALIGNMENT)
            inputs = (batch, config.layers, blocks, config.width, ALIGNMENT)
            self._memory = _CACHES.take(math.prod(inputs))
            self.inputs = self._memory.parts[0].view(inputs).fill_(float("nan"))
        self.capacity = capacity
        self.length = 0
        self.decoder = decoder
        """Takes the place of the layers' own steps, if there is one."""
        self.last: Tensor | None = None
        """The token last written, of models that may be asked about another state after it."""
        self.tables: tuple[Tensor, ...] = ()
        """What such models look tokens up in, if they can."""

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
