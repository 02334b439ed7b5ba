"""What a model sees of observations that are not the numbers of states: a vector for each.

An image is cut into squares, a convolution whose stride is its size; what comes of all of them goes
through a hidden layer. Any other array goes through a hidden layer alone. The parts of a dict are
embedded each for itself and added. Views are looked at first, each once.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mithridate.model.in_parts import in_parts
from mithridate.observations import (
    Array,
    Observation,
    ObservationSpec,
    Views,
    equal,
    looked_at,
    own,
    parts,
)

SQUARE = 5
"""Side of a square, in pixels."""
FEATURES = 32
"""Of each square."""
HIDDEN = 128
"""Width of the hidden layer of images."""


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
        vectors = [
            in_parts(part, named[name]) for name, part in zip(self.names, self.parts, strict=True)
        ]
        return torch.stack(vectors).sum(0)

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Weights that keep the scale of what goes in, through ReLUs."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.normal_(0.0, math.sqrt(2 / layer.in_features), generator=generator)
                assert layer.bias is not None
                layer.bias.zero_()


class Remembered:
    """An embedding that embeds no view twice, and of other observations not those of the step
    before: for rollouts, in which the weights stay as they are."""

    def __init__(self, embedding: ObservationEmbedding) -> None:
        self._embedding = embedding
        self._place: dict[int, int] = {}
        self._vectors = torch.empty(0)
        """(M, D), of which the first ones are taken."""
        self._last: list[tuple[Observation, Tensor]] = []

    def __call__(self, observation: Observation) -> Tensor:
        if self._embedding.views is not None and isinstance(observation, Tensor):
            return self._viewed(observation)
        for seen, vectors in self._last:
            if equal(seen, observation):
                return vectors
        vectors = self._embedding(observation)
        assert isinstance(vectors, Tensor)
        self._last = [(own(observation), vectors), *self._last][:2]
        return vectors

    def _viewed(self, numbers: Tensor) -> Tensor:
        wanted = numbers.tolist()
        new = [n for n in dict.fromkeys(wanted) if n not in self._place]
        if new:
            first, last = len(self._place), len(self._place) + len(new)
            seen = looked_at(numbers.new_tensor(new), self._embedding.views)
            vectors: Tensor = self._embedding(seen)
            if last > len(self._vectors):
                kept, room = self._vectors[:first].to(vectors), max(last, 2 * first)
                self._vectors = vectors.new_empty(room, vectors.shape[1])
                self._vectors[:first] = kept.view(first, vectors.shape[1])
            self._vectors[first:last] = vectors
            self._place |= zip(new, range(first, last), strict=True)
        return self._vectors[[self._place[n] for n in wanted]]


def _part(array: Array, width: int) -> nn.Module:
    if len(array.shape) != 3:
        size = math.prod(array.shape)
        return nn.Sequential(
            _Scaled(array), nn.Flatten(), nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width)
        )
    height, across, channels = array.shape
    squares = -(-height // SQUARE) * -(-across // SQUARE)
    return nn.Sequential(
        _Squares(), _Scaled(array), nn.Linear(SQUARE * SQUARE * channels, FEATURES), nn.ReLU(),
        nn.Flatten(), nn.Linear(squares * FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, width),
    )  # fmt: skip


class _Scaled(nn.Module):
    """Bytes become numbers from 0 to 1."""

    def __init__(self, array: Array) -> None:
        super().__init__()
        self.scale = 1 / 255 if array.dtype == torch.uint8 else 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x.float() * self.scale


class _Squares(nn.Module):
    """Images (N, height, width, channels) become squares (N, squares, pixels · channels). At the
    right and at the bottom, what is missing is zero."""

    def forward(self, x: Tensor) -> Tensor:
        n, height, across, channels = x.shape
        x = F.pad(x, (0, 0, 0, -across % SQUARE, 0, -height % SQUARE))
        rows, columns = x.shape[1] // SQUARE, x.shape[2] // SQUARE
        cut = x.view(n, rows, SQUARE, columns, SQUARE * channels).transpose(2, 3)
        return cut.reshape(n, rows * columns, SQUARE * SQUARE * channels)
