"""The key/value cache of a rollout."""

from __future__ import annotations

from torch import Tensor

from mithridate.config import ModelConfig
from mithridate.errors import UserError
from mithridate.model.dispatch import NativeDecoder
from mithridate.native import ALIGNMENT


class KVCache:
    """Keys and values of all past positions, (B, layers, heads, d, capacity) with positions last.

    For a native decoder the positions are in blocks, (B, layers, heads, capacity / 16, d, 16), so
    that a head's cache is one stream of memory. Filled with NaN, so that reading a position that
    was never written cannot go unnoticed.
    """

    def __init__(
        self, batch: int, config: ModelConfig, capacity: int, like: Tensor,
        decoder: NativeDecoder | None = None,
    ) -> None:  # fmt: skip
        head_width = config.width // config.heads
        shape: tuple[int, ...] = (batch, config.layers, config.heads, head_width, capacity)
        if decoder is not None:
            blocks = -(-capacity // ALIGNMENT)
            shape = (batch, config.layers, config.heads, blocks, head_width, ALIGNMENT)
        self.keys = like.new_full(shape, float("nan"))
        self.values = like.new_full(shape, float("nan"))
        self.capacity = capacity
        self.length = 0
        self.decoder = decoder
        """Takes the place of the layers' own steps, if there is one."""

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
