"""The actor and critic of `ppo` for one task: what it sees in, logits and a value out.

Images go through two convolutions with stride 2; with all other arrays, as they are, what is left
of them goes through one hidden layer to both heads. ReLUs, and orthogonal weights, as in CleanRL.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mithridate.observations import Array

CHANNELS = (16, 32)
"""Of the two convolutions."""
KERNEL = 3
ACTOR, CRITIC, OTHERS = 0.01, 1.0, math.sqrt(2)
"""Gains of the weights at the beginning."""

Weights = dict[str, Tensor]
Seen = Mapping[str, Tensor]


class _Layer(NamedTuple):
    shape: tuple[int, ...]
    gain: float


class Network:
    """The form of the network; weights are handed in."""

    def __init__(self, parts: Mapping[str, Array], actions: int, width: int) -> None:
        self.parts = dict(sorted(parts.items()))
        first, second = CHANNELS
        self.layers: dict[str, _Layer] = {}
        inputs = 0
        for name, part in self.parts.items():
            if len(part.shape) == 3:
                height, across, channels = part.shape
                self.layers[f"{name}.first"] = _Layer((first, channels, KERNEL, KERNEL), OTHERS)
                self.layers[f"{name}.second"] = _Layer((second, first, KERNEL, KERNEL), OTHERS)
                inputs += -(-height // 4) * -(-across // 4) * second
            else:
                inputs += math.prod(part.shape)
        self.layers["hidden"] = _Layer((width, inputs), OTHERS)
        self.layers["actor"] = _Layer((actions, width), ACTOR)
        self.layers["critic"] = _Layer((1, width), CRITIC)

    @property
    def size(self) -> int:
        """Numbers in the weights, biases apart."""
        return sum(math.prod(layer.shape) for layer in self.layers.values())

    def initial(self, normal: Tensor) -> Weights:
        """Weights made of standard normal numbers (size,)."""
        weights, used = {}, 0
        for name, layer in self.layers.items():
            count = math.prod(layer.shape)
            drawn = normal[used : used + count].view(layer.shape[0], -1)
            weights[name] = (layer.gain * _orthogonal(drawn)).view(layer.shape)
            weights[f"{name} bias"] = normal.new_zeros(layer.shape[0])
            used += count
        return weights

    def __call__(self, weights: Weights, seen: Seen) -> tuple[Tensor, Tensor]:
        """Logits (N, A) and values (N,) of observations (N, ...)."""
        flat = [self._flat(weights, name, x) for name, x in self.scaled(seen).items()]
        hidden = _linear(weights, "hidden", torch.cat(flat, 1)).relu()  # (N, width)
        return _linear(weights, "actor", hidden), _linear(weights, "critic", hidden).squeeze(1)

    def scaled(self, seen: Seen) -> dict[str, Tensor]:
        """Bytes become numbers from 0 to 1."""
        bytes_ = torch.uint8
        return {
            name: seen[name].float() / (255 if part.dtype == bytes_ else 1)
            for name, part in self.parts.items()
        }

    def _flat(self, weights: Weights, name: str, x: Tensor) -> Tensor:
        if x.dim() == 4:
            x = x.permute(0, 3, 1, 2)  # (N, channels, height, width)
            for layer in (f"{name}.first", f"{name}.second"):
                bias = weights[f"{layer} bias"]
                x = functional.conv2d(x, weights[layer], bias, stride=2, padding=KERNEL // 2).relu()
        return x.flatten(1)


def _linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return functional.linear(x, weights[name], weights[f"{name} bias"])


def _orthogonal(normal: Tensor) -> Tensor:
    """Rows, or columns if these are fewer, at right angles and of length 1."""
    tall = normal if normal.shape[0] >= normal.shape[1] else normal.T
    q, r = torch.linalg.qr(tall)
    found: Tensor = q * r.diagonal().sign()
    return found if tall is normal else found.T.contiguous()
