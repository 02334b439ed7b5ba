"""The key/value cache of a rollout."""

from __future__ import annotations

import torch
from torch import Tensor

from mithridate.errors import UserError
from mithridate.model.dispatch import NativeDecoder
from mithridate.native import ALIGNMENT


class KVCache:
    """Keys and values of all past positions: (B, layers, heads, d, capacity), positions last
    (and padded to a multiple of the vector width).

    Filled with NaN, so that reading a position that was never written cannot go unnoticed.
    """

    def __init__(
        self, batch: int, layers: int, heads: int, head_width: int, capacity: int,
        device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        padded = -(-capacity // ALIGNMENT) * ALIGNMENT
        shape = (batch, layers, heads, head_width, padded)
        self.keys = torch.full(shape, float("nan"), device=device, dtype=dtype)
        self.values = torch.full(shape, float("nan"), device=device, dtype=dtype)
        self.capacity = capacity
        self.length = 0
        self.decoder: NativeDecoder | None = None
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
