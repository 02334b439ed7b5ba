"""What a model sees of observations that are not the numbers of states: a vector for each.

An image goes through two convolutions with stride 2, any other array through one hidden layer; the
parts of a dict are embedded each for itself and added. Views are looked at first, each once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mithridate.observations import Array, Observation, ObservationSpec, Views, parts

CHANNELS = (16, 32)
"""Of the two convolutions."""


class ObservationEmbedding(nn.Module):
    """Observations (N, ...) in, vectors (N, D) out."""

    def __init__(self, spec: ObservationSpec, width: int) -> None:
        super().__init__()
        self.names = sorted(parts(spec))
        self.views = spec if isinstance(spec, Views) else None
        self.parts = nn.ModuleList([_part(parts(spec)[name], width) for name in self.names])

    def forward(self, observation: Observation) -> Tensor:
        assert observation is not None
        if self.views is not None and isinstance(observation, Tensor):
            numbers, places = observation.unique(return_inverse=True)  # type: ignore[no-untyped-call]
            return self(self.views.look(numbers))[places]  # type: ignore[no-any-return]
        named = {"": observation} if isinstance(observation, Tensor) else observation
        vectors = [part(named[name]) for name, part in zip(self.names, self.parts, strict=True)]
        return torch.stack(vectors).sum(0)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Weights that keep the scale of what goes in, through ReLUs."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                inputs = math.prod(layer.weight.shape[1:])
                layer.weight.normal_(0.0, math.sqrt(2 / inputs), generator=generator)
                assert layer.bias is not None
                layer.bias.zero_()


def _part(array: Array, width: int) -> nn.Module:
    if len(array.shape) != 3:
        size = math.prod(array.shape)
        return nn.Sequential(
            _Scaled(array), nn.Flatten(), nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width)
        )
    height, across, channels = array.shape
    first, second = CHANNELS
    left = -(-height // 4) * -(-across // 4) * second
    return nn.Sequential(
        _Scaled(array), _ChannelsFirst(),
        nn.Conv2d(channels, first, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(first, second, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(left, width),
    )  # fmt: skip


class _Scaled(nn.Module):
    """Bytes become numbers from 0 to 1."""

    def __init__(self, array: Array) -> None:
        super().__init__()
        self.scale = 1 / 255 if array.dtype == torch.uint8 else 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x.float() * self.scale


class _ChannelsFirst(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 3, 1, 2)
